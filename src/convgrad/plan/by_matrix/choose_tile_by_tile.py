"""Plans on matrix units that go from one block of tiles of outputs to the next, with predicted cycles."""

from __future__ import annotations

from collections.abc import Iterator
from math import prod
from typing import Any, TypeVar

from convgrad.plan.by_matrix.across_rows import PER_TILE
from convgrad.plan.by_matrix.choose_across_rows import with_best_blocks
from convgrad.plan.by_matrix.gathered_rows import GatheredRowsPlan, meets_whole_rows
from convgrad.plan.by_matrix.gathered_runs import GatheredRunPlan
from convgrad.plan.by_matrix.matrix import COLUMNS, DEPTH, ROWS, MatrixDataPlan
from convgrad.plan.by_matrix.tile_by_tile import TileByTilePlan
from convgrad.plan.kinds import as_kind

TileByTile = TypeVar("TileByTile", bound=TileByTilePlan)
MOST_TOGETHER = 16  # channels of windows that are one sum
MOST_PIECES = 2  # of three, vectors are as fast
FEWEST_OUTPUTS = 128


def gathered_run_candidates(plan: MatrixDataPlan, packing: float) -> Iterator[tuple[float, GatheredRunPlan]]:
    """Of a problem of few channels that solves for Y, whose windows are summed number by number.

    `packing` are the cycles of the input, which are not among those predicted.
    """
    p, axes, channels = plan.problem, plan.axes, plan.in_channels
    meeting = all(axis.taps == taps for axis, taps in zip(axes[1:], p.taps, strict=True))
    few, row = 0 < channels <= MOST_TOGETHER, prod(p.taps) > 1 == axes[-1].offset_step
    if plan.solves_y and plan.watch and plan.pieces <= MOST_PIECES and few and meeting and row:
        yield from with_best_blocks(_tile_by_tile(GatheredRunPlan, plan, channels), packing)


def gathered_rows_candidates(plan: MatrixDataPlan) -> Iterator[tuple[float, GatheredRowsPlan]]:
    """Of a problem of bf16 with channels side by side and no padding: nothing is packed."""
    p, channels = plan.problem, plan.in_channels
    together = p.dtype == "bf16" and p.strides[p.given][2] == 1 and channels > 0
    run, enough = -(-channels // DEPTH) * DEPTH, prod(axis.count for axis in plan.axes) >= FEWEST_OUTPUTS
    together = together and enough  # else weights are better packed by those who multiply them
    if together and plan.watch and meets_whole_rows(plan) and plan.run_asked_for in (0, run):
        yield from with_best_blocks(_tile_by_tile(GatheredRowsPlan, plan, run), 0.0)


def _tile_by_tile(kind: type[TileByTile], plan: MatrixDataPlan, channels: int) -> TileByTile:
    """With one output in a block, and so many channels in a run."""
    ones: Any = (1,) * len(plan.axes)
    return as_kind(
        kind, plan, tile=ones, block=ones, i_block=channels, unroll=0, rows=ROWS,
        width=PER_TILE * COLUMNS if plan.out_channels > COLUMNS else COLUMNS,
    )  # fmt: skip
