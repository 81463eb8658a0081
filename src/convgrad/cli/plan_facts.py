"""What `convgrad explain` says of a plan: its blocking in words and for programs, and the bytes it moves."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import groupby
from math import prod
from typing import TYPE_CHECKING, Any

from convgrad.cli import plane_facts
from convgrad.cli.roofs import size
from convgrad.codegen.isa.matrix import UNITS
from convgrad.dtypes import SIZES
from convgrad.plan.by_dots.paired_outputs import PairedWords
from convgrad.plan.by_matrix.matrix import MatrixDataPlan
from convgrad.plan.by_matrix.matrix_weights import MatrixWeightsPlan
from convgrad.plan.depthwise.plane_data import PlaneDataPlan
from convgrad.plan.depthwise.plane_weights import PlaneWeightsPlan
from convgrad.plan.few_channels.folded import FoldedPlan
from convgrad.plan.few_channels.lane_sums import LaneSumsPlan
from convgrad.plan.few_channels.phase_lanes import PhaseLanesPlan
from convgrad.plan.few_channels.run_weights import RunWeightsPlan
from convgrad.plan.general.data import DataPlan
from convgrad.plan.general.weights import WeightsPlan

if TYPE_CHECKING:
    from convgrad.plan.choose import Plan

LONG_RUN = 4  # phases


@dataclass(slots=True)
class Traffic:
    """Bytes that one kind of work reads and writes, in all tasks together."""

    what: str
    bytes: int
    note: str


def in_tasks(count: int) -> str:
    """So many, in words."""
    return "1 task" if count == 1 else f"{count} tasks"


def _by(values: tuple[int, ...]) -> str:
    return "x".join(map(str, values))


def tile(plan: Plan) -> str:
    """The register tile."""
    if isinstance(plan, PlaneDataPlan | PlaneWeightsPlan):
        return plane_facts.tile(plan)
    if isinstance(plan, DataPlan):
        return f"{_by(plan.tile)} outputs x {plan.width} channels"
    rows, lanes, taps = _weights_tile(plan)
    return f"{rows} rows x {lanes} lanes x {taps} taps"


def _weights_tile(plan: WeightsPlan) -> tuple[int, int, int]:
    """Rows, lanes and taps besides."""
    if isinstance(plan, RunWeightsPlan):  # whose taps are lanes
        return plan.row_channels, plan.tile_vectors * plan.lanes, 1
    return plan.row_channels, plan.width, plan.tile_taps


def facts(plan: Plan) -> Iterator[tuple[str, Any, str]]:
    """Name, value for programs, words for people."""
    yield "vectors", *_twice(_vectors(plan))
    yield "numbers", *_numbers(plan)
    if isinstance(plan, PlaneDataPlan | PlaneWeightsPlan):
        yield from plane_facts.facts(plan)
    elif isinstance(plan, DataPlan):
        yield from _data_facts(plan)
    else:
        yield from _weights_facts(plan)


def _numbers(plan: Plan) -> tuple[str, str]:
    """What is multiplied; sums are f32, or f64."""
    if isinstance(plan, MatrixDataPlan | MatrixWeightsPlan) and plan.isa in UNITS:
        pieces, products = plan.pieces, len(plan.products)
        split = f"{pieces} pieces each, {products} products of them" if pieces > 1 else "as they are"
        return "bf16", f"bf16 in tiles, {split}"
    if plan.ON_UNITS:
        return "bf16", f"pairs of bf16, {plan.lanes} in a vector, by dot products"
    return plan.compute, f"{plan.compute}, {plan.lanes} in a vector"


def _twice(text: str) -> tuple[str, str]:
    return text, text


def _vectors(plan: Plan) -> str:
    if isinstance(plan, PlaneDataPlan | PlaneWeightsPlan):
        return plane_facts.vectors(plan)
    if isinstance(plan, DataPlan):
        along = "outputs of the innermost axis" if plan.pixels else "output channels"
        along += ", all phases at once" if isinstance(plan, FoldedPlan | PhaseLanesPlan) else ""
        along = plan.KIND.removeprefix("along ") if isinstance(plan, LaneSumsPlan) else along
        return f"{along}, of {plan.lane_groups} groups" if plan.spread else along
    if plan.along_windows:
        return "windows, added up in the end"
    if isinstance(plan, RunWeightsPlan):
        return plan.KIND.removeprefix("lanes along ")
    of = f"channels of {plan.lane_side}"
    return f"{of}, of {plan.lane_groups} groups" if plan.spread else of


def _in_runs(taps: list[int]) -> Iterator[str]:
    """Phases of as many taps are told once where there are many: a large stride has hundreds without any."""
    for count, phases in groupby(taps):
        run = len(list(phases))
        yield from [str(count)] * run if run < LONG_RUN else [f"{run} x {count}"]


def _data_facts(plan: DataPlan) -> Iterator[tuple[str, Any, str]]:
    phases = [len(axis.phases) for axis in plan.axes]
    taps = [[phase.taps for phase in axis.phases] for axis in plan.axes[1:]]
    listed = " and ".join(" + ".join(_in_runs(of_axis)) for of_axis in taps)
    dense = "one: every output meets the same taps"
    split = f"{prod(phases)}: taps per axis {listed}, so no product with an inserted zero"
    yield "phases", phases[1:], dense if prod(phases) == 1 else split
    yield "tile", {"outputs": plan.tile, "channels": plan.width}, f"{tile(plan)}, in registers"
    yield "block", plan.block, f"{_by(plan.block)} outputs of each phase per task (batch first)"
    pairs = "pairs of them, " if isinstance(plan, PairedWords) else ""
    yield "input channels", plan.i_block, f"{pairs}{plan.i_block} of {plan.in_channels} packed at a time"
    blocks = f"{plan.blocks_per_task} of {plan.lane_blocks} blocks of {plan.width}, per task"
    yield "output channels", plan.blocks_per_task, blocks
    if plan.bundle > 1:
        yield "groups", plan.bundle, f"{plan.bundle} of {plan.problem.groups}, per task, one after the other"
    yield "input", plan.reads_in_place, "read where it lies" if plan.reads_in_place else "packed into a slab"
    yield (
        "result",
        plan.writes_in_place,
        "written where it lies" if plan.writes_in_place else "summed aside, then copied",
    )
    yield "written out", plan.unroll, f"taps of {plan.unroll} axes" if plan.unroll else "no taps: loops over all axes"
    size_of = plan.packed_bytes
    yield "weights", plan.panel * size_of, f"panels of {size(plan.panel * size_of)}, read again for every tile"
    packing = "of all weights, by a stage of its own"
    if plan.packs_weights:
        packing = "by the tasks that multiply them, each panel right before"
    elif plan.reads_weights:
        packing = "none: weights are read where they lie"
    yield "packing", plan.packs_weights, packing
    if not plan.reads_in_place:
        yield "slab", plan.slab_size * size_of, f"{size(plan.slab_size * size_of)} of input, packed once per task"


def _weights_facts(plan: WeightsPlan) -> Iterator[tuple[str, Any, str]]:
    yield "tile", dict(zip(("rows", "lanes", "taps"), _weights_tile(plan), strict=True)), f"{tile(plan)}, in registers"
    yield "block", plan.block, f"{_by(plan.block)} windows packed at a time (batch first)"
    chunks = "one: every sum is formed in one go" if plan.chunks == 1 else f"{plan.chunks}, summed apart and then added"
    yield "chunks", plan.chunks, chunks
    shares = f"{plan.lane_shares} of the lanes, {plan.row_shares} of the rows, {plan.bundles} bundles of groups"
    yield "shares", [plan.lane_shares, plan.row_shares, plan.bundles], shares
    sides = [plan.direct or plan.rows_in_place, plan.direct or plan.lanes_in_place]
    places = ["read where they lie" if in_place else "packed into slabs" for in_place in sides]
    yield "inputs", sides, places[0] if sides[0] == sides[1] else f"rows {places[0]}, lanes {places[1]}"
    if not all(sides):
        slabs = [plan.row_slab_size * plan.packed_bytes, plan.lane_slab_size * plan.packed_bytes]
        yield "slabs", slabs, f"{size(slabs[0])} of rows, {size(slabs[1])} of lanes"
    size_of, kept = SIZES[plan.compute], plan.own_sum_size if plan.own_sums else plan.sum_size
    yield "sums", kept * size_of, f"{size(kept * size_of)} in each {'task' if plan.own_sums else 'chunk'}"


def traffic(plan: Plan) -> list[Traffic]:
    """What the plan moves, predicted from its sizes."""
    if isinstance(plan, PlaneDataPlan | PlaneWeightsPlan):
        return [Traffic(*moved) for moved in plane_facts.traffic(plan)]
    packed_number, number = plan.packed_bytes, SIZES[plan.compute]
    if isinstance(plan, DataPlan):
        tasks = prod(plan.grid)
        slabs = 0 if plan.reads_in_place else tasks * plan.i_blocks * plan.slab_size * packed_number
        sweeps = tasks * plan.bundle * plan.blocks_per_task
        panels = sweeps * plan.i_blocks * plan.panel * packed_number
        results = 0 if plan.writes_in_place else sweeps * plan.result_block * number
        packed = panels if plan.packs_weights else plan.weights_size * packed_number
        by = ", by the tasks that multiply them" if plan.packs_weights else ", once"
        by = ": read where they lie" if plan.reads_weights else by
        return [
            Traffic("weights packed", packed, by),
            Traffic("input packed", slabs, _share_of(slabs, prod(plan.grid)) if slabs else ": read where it lies"),
            Traffic("weights read", panels, ", by all tasks together, once per block"),
            Traffic("results copied", results, "" if results else ": written where they lie"),
        ]
    first = prod(plan.grid)
    per_task = 0 if plan.direct else (plan.row_slab_size + plan.lane_slab_size) * packed_number
    blocks = -(-prod(plan.block_grid) // plan.chunks)
    packed = first * blocks * per_task
    sums = Traffic(
        "sums", plan.chunks * plan.sum_size * number, f", of {plan.chunks} chunks, added by the second stage"
    )
    if plan.own_sums:
        sums = Traffic(
            "sums", plan.sum_size * number, ", in registers" if plan.straight else ", by the tasks themselves"
        )
    return [Traffic("inputs packed", packed, _share_of(packed, first) if packed else ": read where it lies"), sums]


def _share_of(total: int, tasks: int) -> str:
    return f", {size(total / tasks)} in each of {in_tasks(tasks)}"
