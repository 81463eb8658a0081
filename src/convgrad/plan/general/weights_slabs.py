"""The slabs of a task that sums weights: which part of x and of y a block of windows meets, and where it is packed."""

from __future__ import annotations

from itertools import count
from math import gcd

from convgrad.dtypes import SIZES
from convgrad.plan.costs import LINE
from convgrad.plan.general.weights_blocks import WeightsBlocks
from convgrad.plan.strides import row_major
from convgrad.problem.conv import Ints
from convgrad.values import frozen

LEAST_BANDED = 64  # channels side by side, of which to skip what lies between taps saves more than to begin anew takes
L1_WAY = 4096  # bytes after which lines fall into the same set


@frozen(kw_only=True)
class WeightsSlabs(WeightsBlocks):
    """Extents and strides of what is packed of either side, or read in place."""

    # --- of x, around the windows of a block

    @property
    def in_segments(self) -> bool:
        """Whether windows that only some taps of a tile meet x in are summed for these alone: no zeros around x."""
        axis, (first, last) = self.axes[-1], self.axes[-1].inside
        own = self.spread or self.direct or self.along_windows  # which have other ways
        return self.tile_taps > 1 and axis.clipped and first < last and not own

    def whole(self, n: int) -> bool:
        """Whether every slab holds all of x on axis n, and no zeros around it."""
        if self.direct or self.x_in_place:
            return True
        axis, side_by_side = self.axes[n], n == len(self.axes) - 1 and self.tile_taps > 1
        long = self.problem.x_channels >= LEAST_BANDED and self.problem.x_strides[2] == 1
        bands = long and not side_by_side and self._apart(n) and self.band(n) * axis.taps < axis.image
        padded = side_by_side and not self.in_segments
        return self.block[n] >= axis.windows and not (padded or bands)

    @property
    def x_start(self) -> Ints:
        """Position in x of the first element of the slab whose block begins with window 0."""
        return tuple(0 if self.whole(n) else -axis.low for n, axis in enumerate(self.axes))

    def band(self, n: int) -> int:
        """Elements of x on axis n from where a tap meets the first window of a block to where it meets the last."""
        return self.axes[n].stride * (self.block[n] - 1) + 1

    def banded(self, n: int) -> bool:
        """Whether a slab holds a band of axis n for each tap, since taps are so far apart that bands do not meet."""
        side_by_side = n == len(self.axes) - 1 and self.tile_taps > 1
        return not self.whole(n) and not side_by_side and self._apart(n)

    def _apart(self, n: int) -> bool:
        """Whether a tap is farther from the next one than the band that it meets is long."""
        return self.axes[n].dilation > self.band(n)

    def tap_step(self, n: int) -> int:
        """Elements of the slab on axis n from one tap to the next."""
        return self.band(n) if self.banded(n) else self.axes[n].dilation

    @property
    def x_extent(self) -> Ints:
        """Elements of x per axis that a slab holds."""
        return tuple(
            axis.image if self.whole(n) else self.band(n) + self.tap_step(n) * (axis.taps - 1)
            for n, axis in enumerate(self.axes)
        )

    @property
    def x_met(self) -> Ints:
        """Elements of x per axis that a block of windows meets, whether a slab holds them or not."""
        return tuple(
            min(axis.image, self.band(n) + axis.dilation * (axis.taps - 1) if self.x_in_place else extent)
            for n, (axis, extent) in enumerate(zip(self.axes, self.x_extent, strict=True))
        )

    # --- of the row side

    @property
    def row_run(self) -> int:
        """Row channels that a slab holds side by side."""
        cut = self.rows_together and self.x_pixel_major and not (self.spread or self.direct or self.rows_in_place)
        return min(self.share_rows, self.rows_together) if cut else self.share_rows

    @property
    def row_pitch(self) -> int:
        """Numbers of the slab from a position to the next, of rows side by side.

        Tiles read some of every position that a window begins at, which are to lie in many sets of L1. Those of a few
        rows leave out what no tile reads, so that positions which lie together are copied together.
        """
        if self.row_run < self.share_rows:
            return self.row_run
        least_rows = self.row_count if self.few_rows else self.share_rows
        stride = self.axes[-1].stride if self.rows_shift else 1
        if stride > 1 and self.lanes * SIZES[self.compute] < LINE:
            step = SIZES[self.compute] * stride
            least = max(LINE, 2 * gcd(step, L1_WAY))
            return next(n for n in count(least_rows, 2) if gcd(step * n, L1_WAY) <= least)
        return least_rows + (16 if least_rows % 64 == 0 else 0)

    @property
    def may_end_early(self) -> bool:
        """Whether the last block of lanes has a tile of its own, and so have the last rows."""
        return False

    @property
    def few_rows(self) -> bool:
        """Whether all rows are fewer than a vector, and the last tile has no more of them than there are."""
        return self.may_end_early and self.row_count < self.lanes

    @property
    def row_step(self) -> int:
        """Numbers of the slab from a run of row channels to the next."""
        extent = self.x_extent if self.rows_shift else self.block
        return self.row_slab[0][0] * extent[0]

    @property
    def row_slab(self) -> tuple[Ints, int]:
        """Strides of the packed row side: per axis, and of a channel within its run."""
        if self.direct or self.rows_in_place:
            strides = self.problem.x_strides if self.rows_shift else self.problem.y_strides
            return (strides[0], *strides[3:]), strides[2]
        extent = self.x_extent if self.rows_shift else self.block
        if self.spread:
            return row_major(extent, self.share_rows * self.width), self.width
        if self.x_pixel_major:
            return row_major(extent, self.row_pitch), 1
        strides = row_major(extent, 1)
        plane = strides[0] * extent[0]
        return strides, plane + (-plane % 16) + 16

    @property
    def rows_as_met(self) -> bool:
        """Whether a slab holds the rows of one tile, packed right before that needs them: so it stays in L1."""
        return False

    @property
    def row_slab_size(self) -> int:
        """All of it."""
        if self.rows_in_place:
            return 0
        strides, channel = self.row_slab
        extent = self.x_extent if self.rows_shift else self.block
        if self.spread or self.x_pixel_major:
            return strides[0] * extent[0] * -(-self.share_rows // self.row_run)
        return channel * (self.row_channels if self.rows_as_met else self.share_rows)

    # --- of the lane side

    @property
    def lane_slab(self) -> Ints:
        """Strides of the packed lane side, of one lane block, per axis; lanes are innermost."""
        if self.direct or self.lanes_in_place:
            strides = self.problem.y_strides if self.rows_shift else self.problem.x_strides
            return (strides[0], *strides[3:])
        return row_major(self.block if self.rows_shift else self.x_extent, self.width)

    @property
    def lane_slab_block(self) -> int:
        """Numbers of one lane block."""
        if self.lanes_in_place:
            return 0
        return self.lane_slab[0] * (self.block if self.rows_shift else self.x_extent)[0]

    @property
    def lane_slab_size(self) -> int:
        """All lane blocks of one task."""
        return self.lane_slab_block * self.share_blocks
