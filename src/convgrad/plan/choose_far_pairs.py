"""Plans of pairs of windows far apart, with the cycles that they are predicted to take."""

from __future__ import annotations

from collections.abc import Iterator
from math import prod

from convgrad.plan.costs import SCATTERED, TURN
from convgrad.plan.dots import LANES
from convgrad.plan.far_pairs import FarPairsPlan, Fold, folded, folds
from convgrad.plan.machine import Machine
from convgrad.plan.matrix_blocks import LOOK
from convgrad.plan.row_tiles import best_row_tile
from convgrad.plan.tiles import FMA_PER_CYCLE
from convgrad.plan.units import needs_watch, products_on
from convgrad.plan.window_axes import WindowAxis, window_axes
from convgrad.plan.window_blocks import PACK, cheapest_window_blocks
from convgrad.problem.conv import ConvProblem

TIE = 0.85  # of the cycles of pairs of neighbours: where these are predicted to take hardly fewer, they take more


def far_pairs_candidates(problem: ConvProblem, machine: Machine) -> Iterator[tuple[float, FarPairsPlan]]:
    """Predicted cycles, and a plan, with lanes along the channels of either side, where numbers are bf16."""
    watch = needs_watch(problem.dtype, 1)
    known = problem.dtype == "bf16" and machine.has_dots and products_on(problem, machine) is not None
    if not known or (watch and problem.accumulate):
        return
    axes = window_axes(problem)
    ways = [*folds(problem)]
    if not ways or not prod(axis.windows for axis in axes):
        return
    fold = min(ways, key=lambda fold: _rough_cycles(problem, axes, fold))
    axes = folded(axes, fold)
    lanes_first = {name: abs(problem.strides[name][2]) <= abs(problem.strides[name][-1]) for name in "xy"}
    for side, other in ("yx", "xy"):
        rows, lanes = problem.shapes[other][2], problem.shapes[side][2]
        shape = best_row_tile(rows, axes[-1], lanes, LANES, machine.registers, rows_shift=side == "y")
        plan = FarPairsPlan(
            problem=problem, isa=machine.isa, compute="f32", lanes=LANES, axes=axes, lane_side=side,
            vectors=shape.vectors, lane_groups=1, spread=False, row_channels=shape.row_channels, tile_taps=shape.taps,
            block=(1,) * len(axes), chunks=1, lane_shares=1, row_shares=1, x_pixel_major=lanes_first[other],
            fold=fold, watch=watch,
        )  # fmt: skip
        rows_of_windows = problem.groups * prod(_met(axis) for axis in axes[:-1])
        cycles, plan = cheapest_window_blocks(plan, rows_of_windows * shape.cycles)
        lane_step, row_step = (abs(problem.w_strides[n]) for n in ((1, 2) if side == "y" else (2, 1)))
        if lane_step != 1:
            each = TURN if row_step == 1 else SCATTERED if lane_step > row_step else 0.0
            cycles += each * prod(problem.shapes["w"])
        yield TIE * (cycles + LOOK * watch), plan


def _met(axis: WindowAxis) -> int:
    """Windows that a tap meets x in, over all taps."""
    return sum(last - first for first, last in (axis.met(r) for r in range(axis.taps)))


def _rough_cycles(problem: ConvProblem, axes: tuple[WindowAxis, ...], fold: Fold) -> float:
    """Of products, and to pack all words once."""
    axes, c, k = folded(axes, fold), problem.x_channels, problem.y_channels
    products = c * -(-k // LANES) * prod(map(_met, axes)) / FMA_PER_CYCLE
    words = c * prod(axis.image for axis in axes) + k * prod(axis.windows for axis in axes)
    return products + PACK * words
