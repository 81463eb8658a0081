"""What `convgrad explain` says of plans with vectors along a row of a plane."""

from __future__ import annotations

from collections.abc import Iterator
from math import prod
from typing import Any

from convgrad.cli.roofs import size
from convgrad.dtypes import SIZES
from convgrad.plan.depthwise.plane_data import PlaneDataPlan
from convgrad.plan.depthwise.plane_row_weights import PlaneRowWeightsPlan
from convgrad.plan.depthwise.plane_rows import PlaneRowsPlan
from convgrad.plan.depthwise.plane_weights import PlaneWeightsPlan

PlanePlan = PlaneDataPlan | PlaneWeightsPlan


def vectors(plan: PlanePlan) -> str:
    """What they run along."""
    return f"{'outputs' if isinstance(plan, PlaneDataPlan) else 'windows'} of a row, plane by plane"


def tile(plan: PlanePlan) -> str:
    """Of registers."""
    if isinstance(plan, PlaneDataPlan):
        return f"{plan.rows} rows x {plan.width} outputs"
    return f"{plan.tap_rows}x{plan.tap_columns} taps x {plan.lanes} lanes"


def facts(plan: PlanePlan) -> Iterator[tuple[str, Any, str]]:
    """Name, value for programs, words for people."""
    data, block = isinstance(plan, PlaneDataPlan), "x".join(map(str, plan.block))
    yield "tile", {"rows": plan.rows, "tap rows": plan.tap_rows}, f"{tile(plan)}, in registers"
    of = "outputs of each phase" if data else "windows"
    yield "block", plan.block, f"{block} {of} of a plane at a time (batch first)"
    yield "slid", plan.slid, f"{len(plan.slid)} places in a vector, put together from two vectors"
    yield "groups", plan.run, f"{plan.run} in a task, one after the other"
    if isinstance(plan, PlaneDataPlan):
        result = "written where it lies" if plan.direct else "tile by tile to a buffer, then copied"
        yield "result", plan.direct, result
    else:
        one = "one: every sum is formed in one go"
        yield "chunks", plan.chunks, one if plan.chunks == 1 else f"{plan.chunks}, summed apart and then added"
        if not isinstance(plan, PlaneRowWeightsPlan):
            yield "fetching", plan.fetches_ahead, "the next plane meanwhile" if plan.fetches_ahead else "nothing ahead"
    if isinstance(plan, PlaneRowsPlan | PlaneRowWeightsPlan):
        ahead = plan.fetches if isinstance(plan, PlaneRowsPlan) else ("x", "y") if plan.fetches_ahead else ()
        yield "asked for ahead", ahead, " and ".join(ahead) or "nothing"
        yield "slab", 0, f"none: rows are read where they lie, or from {size(plan.slab_bytes)} of zeros"
    else:
        yield "slab", plan.slab_bytes, f"{size(plan.slab_bytes)}, packed for every block of a plane"


def traffic(plan: PlanePlan) -> Iterator[tuple[str, int, str]]:
    """What the plan moves, predicted from its sizes: kind, bytes and where."""
    number, p = SIZES[plan.compute], plan.problem
    if isinstance(plan, PlaneRowsPlan):
        yield "input packed", 0, ": read where it lies"
        yield "results copied", 0, ": written where they lie"
        return
    if isinstance(plan, PlaneRowWeightsPlan):
        yield "inputs packed", 0, ": read where they lie"
        yield "sums", plan.chunks * p.groups * plan.taps * plan.lanes * number, ", a vector for every tap"
        return
    if isinstance(plan, PlaneDataPlan):
        planes = p.groups * prod(plan.grid[:-1])
        yield "input packed", planes * plan.slab_bytes, f", {size(plan.slab_bytes)} at a time"
        copied = 0 if plan.direct else number * prod(p.shapes[p.solved])
        yield "results copied", copied, "" if copied else ": written where they lie"
        return
    planes = p.groups * prod(plan.block_grid)
    yield "inputs packed", planes * plan.slab_bytes, f", {size(plan.slab_bytes)} at a time"
    yield "sums", plan.chunks * p.groups * plan.taps * plan.lanes * number, ", a vector for every tap"
