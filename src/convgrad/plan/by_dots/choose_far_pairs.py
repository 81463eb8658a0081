"""Plans of pairs of windows far apart, with the cycles that they are predicted to take."""

from __future__ import annotations

from collections.abc import Iterator
from math import prod

from convgrad.plan.by_dots.choose_dots import HALF_EMPTY
from convgrad.plan.by_dots.dots import LANES
from convgrad.plan.by_dots.far_pairs import FarPairsPlan, Fold, folded, folds
from convgrad.plan.costs import LOOK, SCATTERED, TURN
from convgrad.plan.general.window_blocks import PACK_WORD, cheapest_window_blocks
from convgrad.plan.machine import Machine
from convgrad.plan.row_tiles import best_row_tile
from convgrad.plan.steps import DOT_LATENCY, FAR, NUMBER, VECTOR
from convgrad.plan.units import needs_watch, products_on
from convgrad.plan.window_axes import WindowAxis, window_axes
from convgrad.problem.conv import ConvProblem
from convgrad.values import replace

AGAIN = 2.0  # times that words are packed, by tasks that share them
PICKED = 2.0  # cycles for a word
TOGETHER = 0.25  # likewise, of planes, before squares of words are turned
ALIKE = 0.5  # of the cycles of products, which are one a cycle: others count two
ONE_VECTOR = 1.5  # cycles, measured, of a row of a tile of one vector: its word is broadcast apart
TIE = 0.9  # of the cycles of pairs of neighbours: where these are predicted to take hardly fewer, they take more
TIE_LAST = 0.78  # likewise where channels of both sides are innermost: words of neighbours are turned there, these not


def far_pairs_candidates(problem: ConvProblem, machine: Machine) -> Iterator[tuple[float, FarPairsPlan]]:
    """Predicted cycles, and a plan, with lanes along the channels of either side, where a number is one bf16."""
    watch = needs_watch(problem.dtype, 1)
    if not machine.has_dots or products_on(problem, machine) is None or (watch and problem.accumulate):
        return
    axes = window_axes(problem)
    ways = [*folds(problem)]
    if not ways or not prod(axis.windows for axis in axes):
        return
    fold = min(ways, key=lambda fold: _rough_cycles(problem, axes, fold))
    base = FarPairsPlan(
        problem=problem, isa=machine.isa, compute="f32", lanes=LANES, axes=folded(axes, fold), lane_side="y", vectors=1,
        lane_groups=1, spread=False, row_channels=1, tile_taps=1, block=(1,) * len(axes), chunks=1, lane_shares=1,
        row_shares=1, x_pixel_major=False, fold=fold, watch=watch,
    )  # fmt: skip
    sides = sorted((_along(base, side, other, machine) for side, other in ("yx", "xy")), key=lambda side: side[0])
    least = 0.0
    for _, cycles, plan in sides:
        least = max(least, cycles)
        yield least, plan


def _along(base: FarPairsPlan, side: str, other: str, machine: Machine) -> tuple[float, float, FarPairsPlan]:
    """Lanes along one side: cycles, those to be compared with other plans, and the plan."""
    problem, axes = base.problem, base.axes
    rows, lanes = problem.shapes[other][2], problem.shapes[side][2]
    lanes_first = {name: abs(problem.strides[name][2]) <= abs(problem.strides[name][-1]) for name in "xy"}
    shape = best_row_tile(rows, axes[-1], lanes, LANES, machine.registers, rows_shift=side == "y")
    plan = replace(
        base, lane_side=side, vectors=shape.vectors, row_channels=shape.row_channels, tile_taps=shape.taps,
        x_pixel_major=lanes_first[other],
    )  # fmt: skip
    products = problem.groups * prod(_met(axis) for axis in axes[:-1]) * _row_cycles(plan)
    cycles, plan = cheapest_window_blocks(plan, products)
    lane_step, row_step = (abs(problem.w_strides[n]) for n in ((1, 2) if side == "y" else (2, 1)))
    if lane_step != 1:
        each = TURN if row_step == 1 else SCATTERED if lane_step > row_step else 0.0
        cycles += each * prod(problem.shapes["w"])
    for tensor, times in ((side, plan.row_shares), (other, plan.lane_shares)):
        cycles += times * _picking(problem, axes, base.fold, tensor)
    if not lanes_first[side]:
        cycles += TOGETHER * plan.row_shares * _words(problem, axes, side)
    tie = TIE_LAST if all(lanes_first.values()) else TIE
    tie = HALF_EMPTY if problem.groups > 1 and 2 * lanes <= LANES else tie
    return cycles, tie * (cycles - ALIKE * products + LOOK * base.watch), plan


def _row_cycles(plan: FarPairsPlan) -> float:
    """Of all tiles, for a row of windows; sums that wait for each other take what they take."""
    cycles, tiles = 0.0, -(-plan.row_count // plan.row_channels) * plan.lane_blocks
    half = plan.lane_blocks == 1 and 0 < plan.lane_count % LANES <= LANES // 2
    computed = 1 - 0.5 / plan.vectors if half else 1.0  # half of the last vector
    for met, windows in plan.axes[-1].meeting(plan.tile_taps).items():
        rows, columns = plan.row_channels, plan.vectors
        rows, columns = (rows * met, columns) if plan.rows_shift else (rows, columns * met)
        loads = ONE_VECTOR * rows if columns == 1 else NUMBER * rows + (VECTOR + FAR) * columns
        cycles += tiles * windows * max(computed * rows * columns, computed * loads, DOT_LATENCY / ALIKE)
    return cycles


def _met(axis: WindowAxis) -> int:
    """Windows that a tap meets x in, over all taps."""
    return sum(last - first for first, last in (axis.met(r) for r in range(axis.taps)))


def _rough_cycles(problem: ConvProblem, axes: tuple[WindowAxis, ...], fold: Fold) -> float:
    """Of products, and of packing."""
    axes, c, k = folded(axes, fold), problem.x_channels, problem.y_channels
    products = c * -(-k // LANES) * prod(map(_met, axes))
    packing = sum(PACK_WORD * _words(problem, axes, name) + _picking(problem, axes, fold, name) for name in "xy")
    return problem.groups * products + AGAIN * packing


def _words(problem: ConvProblem, axes: tuple[WindowAxis, ...], tensor: str) -> int:
    """Of a tensor, in a slab of all of it; rows of planes in whole vectors."""
    channels, strides = problem.shapes[tensor][2], problem.strides[tensor]
    *outer, row = (axis.image if tensor == "x" else axis.windows for axis in axes)
    if abs(strides[2]) > abs(strides[-1]):
        row = -(-row // LANES) * LANES
    return problem.groups * channels * prod(outer) * row


def _picking(problem: ConvProblem, axes: tuple[WindowAxis, ...], fold: Fold, tensor: str) -> float:
    """Cycles to pick numbers from rows, channels being planes, where others lie between them."""
    strides = problem.strides[tensor]
    step = fold.units(tensor)[0] if fold.number == len(axes) - 1 else 1
    among_others = abs(strides[2]) > abs(strides[-1]) and abs(strides[-1] * step) > 1
    return PICKED * _words(problem, axes, tensor) * among_others
