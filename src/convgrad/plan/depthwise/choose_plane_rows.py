"""Plans for X or Y from rows of planes in place, by predicted cycles: one channel per group, channels first."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from math import inf, prod
from typing import TYPE_CHECKING, TypeVar

from convgrad.dtypes import COMPUTE, SIZES
from convgrad.plan.axes import gather_axes, in_pairs
from convgrad.plan.costs import MOVE
from convgrad.plan.depthwise.plane_costs import MOST_PHASES, even_rows, has_masks
from convgrad.plan.depthwise.plane_rows import (
    PlaneRowsPlan,
    is_large,
    is_narrow,
    run_bases,
    whole_vectors,
)
from convgrad.plan.depthwise.short_rows import SHORTEST, VECTORS, fills_pairs, short_data_pays
from convgrad.plan.machine import Machine
from convgrad.plan.steps import FMA_PER_CYCLE
from convgrad.problem.conv import ConvProblem
from convgrad.values import replace

if TYPE_CHECKING:
    from convgrad.plan.depthwise.plane_row_weights import PlaneRowWeightsPlan

Rows = TypeVar("Rows", bound=PlaneRowsPlan)

MOST_ROWS = 8  # of outputs, in a tile
MOST_NARROW_ROWS = 14  # of 16 bits, which are converted for every tile that meets them
MOST_TAPS = 49  # beyond these masks and weights cost more than slabs
MOST_SLID = 25  # where a row is one vector, of which the others are made
MOST_COLUMNS = 9  # taps of a row
MOST_PAIR_SUMS = 16  # of a tile that reads pairs, next to which weights and what it reads stay in registers
SHORT_PAIR_SUMS = 8  # likewise of vectors shorter than lines, of which there are half as many registers
MOST_WIDER = 1.15  # times as many lanes, in vain, as pairs are worth
MOST_PRODUCTS = 350  # multiply-adds of a tile
MOST_WRITTEN = 1100  # of all tiles that are written out
WIDE, STREAMS = 256, 14  # bytes of a row, from which on so many rows at a time are more than a core follows
FAR_STREAMS = 9  # with strides, where memory is asked for ahead
HALF_STREAMS = 16  # with strides, of f16: without, to widen fewer numbers is worth any number
SOME_TAPS, MANY_TAPS = 16, 25  # of which so many rows are not too many, or any number
CROSSING = 1.2  # cycles of a vector from L1 that lies in two lines as often as not
WAITING = 1.25  # cycles per predicted one
TILE, STORE, ROW = 4.0, 1.0, 1.0  # cycles of a tile besides, of a vector of results, of a row of the input
MANY_TILE, MANY_ROW = 1.0, 0.5  # of one that computes several phases, whose results take longer
CROWDED, FEW_SUMS = 0.5, 8  # cycles more for a vector of these beyond so many
NUMBER = 0.4  # of a vector, to load a number into all lanes
READ = 0.25  # of what moving a number takes, where tiles wait for it
MOST_TASKS = 48


def plane_rows_candidates(problem: ConvProblem, machine: Machine) -> Iterator[tuple[float, PlaneRowsPlan]]:
    """Predicted cycles and the plan for X or Y."""
    p = problem
    if not in_rows(p, machine) or p.accumulate:
        return
    axes = gather_axes(p)
    row, inner = axes[-2:]
    phases = prod(len(axis.phases) for axis in axes)
    if inner.in_step > MOST_PHASES or inner.out_step > 2 or len(inner.phases) != inner.out_step or phases > MOST_PHASES:
        return
    compute = COMPUTE[p.dtype]
    lanes = machine.lanes_f32 * 4 // SIZES[compute]
    if inner.count <= lanes and prod(p.taps[-2:]) > MOST_SLID:
        return
    masks = has_masks(machine)
    if not (masks or short_data_pays(p, axes, lanes)):
        return
    vectors = 1 if masks or inner.count <= lanes else VECTORS
    width = -(-inner.count // (vectors * lanes)) * vectors * lanes
    outer = (1, *(axis.count for axis in axes[1:-2]))
    plan = PlaneRowsPlan(
        problem=p, isa=machine.isa, compute=compute, lanes=lanes, axes=axes, rows=1, vectors=vectors, tap_rows=1,
        slid=(), block=(*outer, row.count, width), run=1, masks=masks, fetches=("x", "y") if is_large(p) else (),
    )  # fmt: skip
    found = []
    for rows in even_rows(row.count, MOST_NARROW_ROWS if is_narrow(p) else MOST_ROWS):
        whole = -(-row.count // rows) * rows
        one = replace(plan, rows=rows, block=(*outer, whole, width))
        written, cycles = _data_cycles(one)
        many = one.sums > MOST_NARROW_ROWS and rows > MOST_ROWS  # of several phases, which do not stay in registers
        if one.products <= MOST_PRODUCTS and written <= MOST_WRITTEN and not (many or is_spread(one, rows_of(one))):
            found.append((cycles, one))
    if found:
        cycles, best = min(found, key=lambda candidate: candidate[0])
        yield cycles, shared(_in_pairs(plan) or best)


def _in_pairs(plan: PlaneRowsPlan) -> PlaneRowsPlan | None:
    """bf16 read two by two: a pair is a word, of which a shift and a mask make two f32; None where lanes are wasted."""
    row, inner = plan.axes[-2:]
    if plan.problem.dtype != "bf16" or inner.in_step != 1 or inner.count < 2:
        return None
    if not plan.masks and (inner.out_step > 1 or not fills_pairs(inner, plan.lanes)):
        return None
    pairs = in_pairs(inner)
    width = -(-pairs.count // plan.lanes) * plan.lanes
    if 2 * width > MOST_WIDER * plan.block[-1]:
        return None
    found = []
    for rows in even_rows(row.count, MOST_ROWS):
        whole = -(-row.count // rows) * rows
        one = replace(plan, axes=(*plan.axes[:-1], pairs), rows=rows, vectors=1, block=(*plan.block[:-2], whole, width))
        written, cycles = _data_cycles(one)
        sums = MOST_PAIR_SUMS if plan.masks else SHORT_PAIR_SUMS
        if one.sums <= sums and written <= MOST_WRITTEN and not is_spread(one, rows_of(one)):
            found.append((cycles, one))
    return min(found, key=lambda candidate: candidate[0])[1] if found else None


def in_rows(p: ConvProblem, machine: Machine, most: int = MOST_TAPS) -> bool:
    """Whether one channel meets one, and rows of few taps lie side by side, in vectors that are long enough.

    A single axis gains nothing: its rows are images, which lie apart.
    """
    if p.rank == 1 or p.x_channels != 1 or p.y_channels != 1 or machine.lanes_f32 < SHORTEST:
        return False
    if p.x_strides[-1] != 1 or p.y_strides[-1] != 1 or 0 in p.shapes["x"] + p.shapes["y"] + p.taps:
        return False
    return prod(p.taps[-2:]) <= most and p.taps[-1] <= MOST_COLUMNS


def is_spread(
    plan: PlaneRowsPlan | PlaneRowWeightsPlan, rows: int, least: int = WIDE, most: float | None = None
) -> bool:  # fmt: skip
    """Whether a tile reads and writes more rows than a core follows: so many, of at least so many bytes."""
    p = plan.problem
    wide = max(p.x_extent[-1], p.y_extent[-1]) * SIZES[p.dtype] >= least
    return plan.rows > 1 and wide and rows > (_streams(p) if most is None else most)


def _streams(p: ConvProblem) -> float:
    """Rows that a core follows: fewer from far away if strides keep them apart, any if many taps hide the way.

    Of f16, which is converted for every tile that meets it, more are worth what they cost.
    """
    strided, taps, half = max(p.stride[-2:]) > 1, prod(p.taps[-2:]), p.dtype == "f16"
    if (strided and taps >= MANY_TAPS) or (half and not strided):
        return inf
    if half:
        return HALF_STREAMS
    return FAR_STREAMS if strided and is_large(p) and taps < SOME_TAPS else STREAMS


def rows_of(plan: PlaneRowsPlan) -> int:
    """That a tile reads and writes."""
    return len(plan.row_offsets) + plan.rows * len(plan.axes[-2].phases)


def pieces_of(vectors: int, first: int, last: int) -> int:
    """Tiles that are written out, of which the whole ones are one."""
    return vectors - last + first + (last > first)


def _data_cycles(plan: PlaneRowsPlan) -> tuple[int, float]:
    """Multiply-adds that are written out, and cycles of all planes."""
    p, (row, inner) = plan.problem, plan.axes[-2:]
    offsets, step = list(plan.column_offsets), inner.in_step
    bases = run_bases(step, p.dtype, offsets)
    met, results = len(plan.row_offsets), plan.rows * len(row.phases) * len(inner.phases)
    deep = prod(axis.taps for axis in plan.axes[:-2])
    shortest = min(phase.count for phase in inner.phases)
    vectors, first, last = whole_vectors(inner.count, shortest, plan.lanes, step, inner.in_extent, bases)
    of_row = 0.0
    for inside, many in ((True, last - first), (False, vectors - last + first)):
        picks = (picked(p, step, offsets) if step > 1 else 0 if inside else len(offsets) - 1) * max(1, step - 1)
        met_by = loads(p, step, offsets) if step > 1 else len(bases) if inside else 2
        arithmetic = (plan.products + met * picks + results * (len(inner.phases) - 1)) / FMA_PER_CYCLE
        begun, row_begun = (TILE, ROW) if results == plan.rows else (MANY_TILE, MANY_ROW)
        of_row += many * (deep * (max(arithmetic, CROSSING * met * met_by) + row_begun * met) + begun + STORE * results)
        crowded = results > plan.rows and not is_narrow(p)
        of_row += many * CROWDED * max(0, results - FEW_SUMS) if crowded else 0.0
    rows = -(-row.count // plan.rows) * prod(axis.count for axis in plan.axes[1:-2])
    read = READ * MOVE * (prod(p.shapes["x"]) + prod(p.shapes["y"]))
    return plan.products * pieces_of(vectors, first, last), WAITING * p.groups * p.batch * rows * of_row + read


def picked(p: ConvProblem, step: int, offsets: Sequence[int]) -> int:
    """Vectors that are picked from runs of a strided row; the others are slid, which other ports do."""
    if step == 2 and p.dtype == "bf16":
        return len(offsets)
    return len({offset % step for offset in offsets})


def loads(p: ConvProblem, step: int, offsets: Sequence[int]) -> float:
    """Vectors that are loaded of a strided row: runs, and numbers beside them."""
    if step == 2 and p.dtype == "bf16":
        return len(run_bases(step, p.dtype, offsets)) * step
    return step + NUMBER * (len(offsets) - picked(p, step, offsets))


def shared(plan: Rows) -> Rows:
    """With some tasks for every thread: runs of groups, and pieces of planes where there are few of these."""
    groups = plan.problem.groups
    while groups * prod(plan.grid[:-1]) < MOST_TASKS and plan.block[-2] > plan.rows:
        block = list(plan.block)
        block[-2] = -(-plan.block[-2] // (2 * plan.rows)) * plan.rows
        plan = replace(plan, block=tuple(block))
    runs = max(1, min(groups, -(-MOST_TASKS // prod(plan.grid[:-1]))))
    return replace(plan, run=-(-groups // runs))
