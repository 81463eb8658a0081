"""Weights gradients that read rows of x and y as they lie: windows of a row are vectors, written out."""

from __future__ import annotations

from math import prod

from convgrad.plan.few_channels.window_lanes import WindowLanesPlan
from convgrad.plan.in_place.in_place_weights import InPlaceWeightsPlan
from convgrad.problem.conv import ConvProblem, Ints
from convgrad.values import frozen

MOST_STRIDE = 4  # of a row: so many vectors are read for one


@frozen(kw_only=True)
class RowWeightsPlan(InPlaceWeightsPlan):
    """An InPlaceWeightsPlan for planes that are not alike, because of strides or for lack of pads.

    Vectors end with a row. Of x as many are read as the stride is long, for each tap, and what windows meet is picked.
    """

    KIND = "lanes along windows of a row, in place"

    @property
    def vectors_of_row(self) -> int:
        """Of windows."""
        return -(-self.pitch // self.window_lanes)

    @property
    def picks_once(self) -> bool:
        """Whether each phase of a strided row of x is picked once for all taps that meet it; not of 16 bits."""
        return self.problem.dtype == self.compute and self.axes[-1].stride > 1

    @property
    def x_extent(self) -> Ints:
        """Elements of x per axis that belong to a block."""
        ones = self.block[: len(self.outer)]
        flat = zip(self.flat, self.flat_block, strict=True)
        return (*ones, *(min(axis.image, axis.stride * block) for axis, block in flat))

    @property
    def tile_steps(self) -> int:
        """Rows of a block."""
        return self.block[-2]

    def validate(self) -> None:
        """Assert what the emitter relies on."""
        assert self.direct
        assert self.rows_shift
        assert not self.spread
        assert self.lane_groups == 1
        assert self.axes[-1].taps % self.tile_taps == 0
        assert self.row_count % self.row_channels == 0
        assert self.lane_count % self.vectors == 0
        assert self.share_rows * self.row_shares == self.row_count
        assert set(self.outer_block) == {1}
        assert self.block[-1] == self.pitch
        assert rows_in_memory(self.problem)

    def __str__(self) -> str:
        return WindowLanesPlan.__str__(self).replace("lanes along windows,", "lanes along windows, rows in place,", 1)


def rows_in_memory(p: ConvProblem) -> bool:
    """Whether rows of both lie side by side in memory, and a row of x that windows meet is read by few vectors."""
    return p.rank > 1 and p.x_strides[-1] == p.y_strides[-1] == 1 and p.stride[-1] <= MOST_STRIDE


def written_out(plan: RowWeightsPlan) -> int:
    """Multiply-adds of a row."""
    return prod((plan.vectors_of_row, plan.tile_taps, plan.row_channels, plan.vectors))
