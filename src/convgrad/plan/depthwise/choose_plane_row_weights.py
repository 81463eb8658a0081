"""Plans for W from rows of planes in place, by predicted cycles: one channel per group, channels first."""

from __future__ import annotations

from collections.abc import Iterator
from math import prod
from typing import TypeVar

from convgrad.dtypes import COMPUTE, SIZES
from convgrad.plan.costs import MOVE
from convgrad.plan.depthwise.choose_plane_rows import (
    CROSSING,
    MOST_PRODUCTS,
    MOST_WIDER,
    READ,
    ROW,
    STORE,
    TILE,
    WAITING,
    in_rows,
    is_spread,
    loads,
    picked,
    pieces_of,
)
from convgrad.plan.depthwise.plane_costs import MOST_PHASES, even_rows, has_masks
from convgrad.plan.depthwise.plane_row_weights import PlaneRowWeightsPlan
from convgrad.plan.depthwise.plane_rows import is_large, is_narrow, run_bases, whole_vectors
from convgrad.plan.depthwise.short_rows import short_weights_pay
from convgrad.plan.machine import Machine
from convgrad.plan.steps import FMA_PER_CYCLE
from convgrad.plan.window_axes import window_axes
from convgrad.problem.conv import ConvProblem
from convgrad.values import replace

Plan = TypeVar("Plan", bound=PlaneRowWeightsPlan)

MOST_ROWS, MOST_NARROW_ROWS = 5, 10  # of windows in a tile, and of those of 16 bits, which every tile converts
MOST_SUMS = 25  # taps of a tile of weights; more do not stay in registers
MOST_PIECES = 8  # of a row, that are written out
PLANE = 10.0  # cycles of a block of a plane besides
LEAST_TASKS, MOST_TASKS, MOST_CHUNKS = 16, 32, 16


def plane_row_weights_candidates(problem: ConvProblem, machine: Machine) -> Iterator[tuple[float, PlaneRowWeightsPlan]]:
    """Predicted cycles and the plan for W."""
    p = problem
    if not in_rows(p, machine) or p.stride[-1] > MOST_PHASES:
        return
    compute = COMPUTE[p.dtype]
    lanes = machine.lanes_f32 * 4 // SIZES[compute]
    axes = window_axes(p)
    row, inner = axes[-2:]
    masks = has_masks(machine)
    if row.taps * inner.taps > MOST_SUMS or not (masks or short_weights_pay(p, lanes)):
        return
    width = -(-inner.windows // lanes) * lanes
    outer = (1, *(axis.windows for axis in axes[1:-2]))
    plan = PlaneRowWeightsPlan(
        problem=p, isa=machine.isa, compute=compute, lanes=lanes, axes=axes, tap_rows=row.taps, tap_columns=inner.taps,
        rows=1, slid=(), block=(1, width), chunks=1, run=1, fetches_ahead=is_large(p),
    )  # fmt: skip
    found = []
    for rows in even_rows(row.windows, MOST_NARROW_ROWS if is_narrow(p) else MOST_ROWS):
        whole = -(-row.windows // rows) * rows
        one = replace(plan, rows=rows, block=(*outer, whole, width))
        bases = run_bases(inner.stride, p.dtype, plan.column_offsets)
        written = whole_vectors(inner.windows, inner.windows, lanes, inner.stride, inner.image, bases)
        read = len(one.row_offsets(rows, 0, row.taps)) + rows
        far = one.fetches_ahead and max(p.stride[-2:]) > 1 and is_spread(one, read)
        if rows * row.taps * inner.taps <= MOST_PRODUCTS and pieces_of(*written) <= MOST_PIECES and not far:
            found.append((_weights_cycles(one), one))
    if found:
        cycles, plan = min(found, key=lambda candidate: candidate[0])
        yield cycles, in_chunks(_windows_in_pairs(plan) if masks else plan)


def _windows_in_pairs(plan: PlaneRowWeightsPlan) -> PlaneRowWeightsPlan:
    """bf16 read two by two, where no lane is wasted."""
    inner, pair = plan.axes[-1], 2 * plan.lanes
    width = -(-inner.windows // pair) * pair
    if plan.problem.dtype != "bf16" or inner.stride != 1 or inner.windows % 2 or width > MOST_WIDER * plan.block[-1]:
        return plan
    return replace(plan, pairs=True, block=(*plan.block[:-1], width))


def _weights_cycles(plan: PlaneRowWeightsPlan) -> float:
    """Of all planes."""
    p, (row, inner) = plan.problem, plan.axes[-2:]
    step, offsets = inner.stride, plan.column_offsets
    bases, vectors = run_bases(step, p.dtype, offsets), -(-inner.windows // plan.lanes)
    of_plane = 0.0
    whole, rest = divmod(row.windows, plan.rows)
    for rows, many in ((plan.rows, whole), (rest, 1)):
        met = len(plan.row_offsets(rows, 0, row.taps)) if rows else 0
        products = rows * row.taps * inner.taps + met * picked(p, step, offsets) * (step - 1)
        read = CROSSING * (met * (loads(p, step, offsets) if step > 1 else len(bases)) + rows)
        of_plane += many * vectors * (max(products / FMA_PER_CYCLE, read) + ROW * met + TILE) if rows else 0.0
    deep = prod(axis.windows * axis.taps for axis in plan.axes[1:-2])
    sums = 2 * STORE * plan.taps + PLANE
    read = READ * MOVE * (prod(p.shapes["x"]) + prod(p.shapes["y"]))
    return WAITING * p.groups * p.batch * (of_plane * deep + sums) + read


def in_chunks(plan: Plan) -> Plan:
    """With runs of groups, and where there are few of these blocks of some images, or rows, that are summed apart."""
    run = max(1, plan.problem.groups // MOST_TASKS)
    plan = replace(plan, run=run)
    if plan.runs >= LEAST_TASKS:
        return plan
    wanted = -(-LEAST_TASKS // plan.runs)
    while prod(plan.block_grid) < wanted and plan.block[-2] > plan.rows:
        block = list(plan.block)
        block[-2] = -(-plan.block[-2] // (2 * plan.rows)) * plan.rows
        plan = replace(plan, block=tuple(block))
    return replace(plan, chunks=max(1, min(MOST_CHUNKS, prod(plan.block_grid), wanted)))
