"""Plans that sum pairs of windows of one channel per group by dot products, by predicted cycles."""

from __future__ import annotations

from collections.abc import Iterator
from math import prod

from convgrad.plan.by_dots.dots import PAIR
from convgrad.plan.by_dots.plane_dots import PlaneDotsPlan
from convgrad.plan.costs import LOOK, MOVE
from convgrad.plan.depthwise.choose_plane_row_weights import MOST_PIECES, in_chunks
from convgrad.plan.depthwise.choose_plane_rows import in_rows, pieces_of
from convgrad.plan.depthwise.plane_costs import MOST_PHASES, even_rows, tap_pieces
from convgrad.plan.depthwise.plane_row_weights import PlaneRowWeightsPlan
from convgrad.plan.depthwise.plane_rows import is_large, whole_vectors
from convgrad.plan.depthwise.plane_weights import PlaneWeightsPlan
from convgrad.plan.kinds import as_kind
from convgrad.plan.machine import Machine
from convgrad.plan.steps import FMA_PER_CYCLE
from convgrad.plan.window_axes import window_axes
from convgrad.problem.conv import ConvProblem
from convgrad.values import replace

MOST_ROWS, MOST_STRIDED_ROWS = 6, 2  # of windows, in a tile; what is picked of more rows is spilled
MOST_TAPS = 81
MOST_PRODUCTS = 350  # of a tile
WATCHED = 3  # registers of what is looked at
CROSSING = 1.7  # cycles of a vector from L1, most of which lie in two lines
LOOKED = 1.0  # cycles to look at a vector
TILE, STORE, ROW = 4.0, 1.0, 1.0  # cycles of a tile besides, of a vector of sums, of a row of x
PLANE = 10.0  # cycles of a block of a plane besides
READ = 0.25  # of what moving a number takes, where tiles wait for it


def plane_dots_candidates(
    problem: ConvProblem, machine: Machine, fallback: PlaneWeightsPlan
) -> Iterator[tuple[float, PlaneDotsPlan]]:
    """Predicted cycles and the plan for W, of bf16 that is not added to what is there."""
    p = problem
    if p.dtype != "bf16" or p.accumulate or not machine.has_dots or not in_rows(p, machine, MOST_TAPS):
        return
    if p.stride[-1] > MOST_PHASES:
        return
    axes = window_axes(p)
    row, inner = axes[-2:]
    lanes = machine.lanes_f32
    width = -(-inner.windows // (PAIR * lanes)) * PAIR * lanes
    base = as_kind(
        PlaneDotsPlan, PlaneRowWeightsPlan(
            problem=p, isa=machine.isa, compute="f32", lanes=lanes, axes=axes, tap_rows=1, tap_columns=inner.taps,
            rows=1, slid=(), block=(1, width), chunks=1, run=1, fetches_ahead=is_large(p),
        ), fallback=fallback,
    )  # fmt: skip
    found = []
    for tap_rows in {rows for many in range(1, row.taps + 1) for rows, _ in tap_pieces(row.taps, many)}:
        for rows in even_rows(row.windows, MOST_ROWS if inner.stride == 1 else MOST_STRIDED_ROWS):
            whole = -(-row.windows // rows) * rows
            outer = (1, *(axis.windows for axis in axes[1:-2]))
            plan = replace(base, tap_rows=tap_rows, rows=rows, block=(*outer, whole, width))
            held = tap_rows * inner.taps + min(rows, tap_rows) + 1 + WATCHED
            if held <= machine.registers and rows * row.taps * inner.taps <= MOST_PRODUCTS and _few_pieces(plan):
                found.append((_cycles(plan), plan))
    if found:
        cycles, plan = min(found, key=lambda candidate: candidate[0])
        yield cycles, in_chunks(plan)


def _few_pieces(plan: PlaneDotsPlan) -> bool:
    """Whether a row is cut into few pieces that are written out."""
    inner = plan.axes[-1]
    bases = sorted({offset // inner.stride * inner.stride for offset in plan.column_offsets})
    pairs, least = plan.row_pairs, inner.windows // PAIR
    written = whole_vectors(pairs, least, plan.lanes, PAIR * inner.stride, inner.image, bases)
    return pieces_of(*written) <= MOST_PIECES


def _cycles(plan: PlaneDotsPlan) -> float:
    """Of all planes."""
    p, (row, inner) = plan.problem, plan.axes[-2:]
    step, offsets = inner.stride, plan.column_offsets
    bases = {offset // step * step for offset in offsets}
    vectors = -(-plan.row_pairs // plan.lanes)
    of_plane = 0.0
    whole, rest = divmod(row.windows, plan.rows)
    for rows, many in ((plan.rows, whole), (rest, 1)):
        if not rows:
            continue
        cycles, looked = 0.0, rows * (1 + len(plan.watched_rows) * len(plan.watched_bases) * step)
        for tap_rows, pieces in plan.tap_pieces:
            met = len(plan.row_offsets(rows, 0, tap_rows))
            products = rows * tap_rows * inner.taps + met * len(offsets) * (step - 1)
            loads = CROSSING * (met * len(bases) * step + rows)
            cycles += pieces * (max(products / FMA_PER_CYCLE, loads) + ROW * met + TILE)
        of_plane += many * vectors * (cycles + LOOKED * looked)
    deep = prod(axis.windows * axis.taps for axis in plan.axes[1:-2])
    sums = 2 * STORE * plan.taps + PLANE
    read = READ * MOVE * (prod(p.shapes["x"]) + prod(p.shapes["y"]))
    return p.groups * p.batch * (of_plane * deep + sums) + read + LOOK
