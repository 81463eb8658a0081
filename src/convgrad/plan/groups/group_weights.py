"""W of a few channels per group, lanes along x across groups: numbers of y are picked in registers, for all taps."""

from __future__ import annotations

from math import prod

from convgrad.dtypes import SIZES
from convgrad.plan.general.weights import KEPT_BYTES, WeightsPlan
from convgrad.plan.strides import row_major
from convgrad.problem.conv import Ints
from convgrad.values import frozen


@frozen(kw_only=True)
class GroupWeightsPlan(WeightsPlan):
    """A WeightsPlan whose vectors of x hold whole groups, and meet numbers of y, one for all lanes of a group.

    Lanes that are left over behind the last group of a vector hold zeros.

    Such a vector of numbers is picked out of one or two of y once for each window, and multiplied with what several
    taps of the window meet: `taps_together` by `tile_rows` sums, of taps and channels of y. A task packs x and y of a
    bundle of groups, whole positions at a time, into slabs of one vector of groups after the other, with zeros around
    x; so a tap is a shift of the slab.
    """

    KIND = "lanes along x across groups, y picked"
    FINISHED = True

    taps_together: int  # of a tile, in the order of all taps
    tile_rows: int  # channels of y in a tile

    @property
    def vector_groups(self) -> int:
        """Groups in a vector of x."""
        return self.lanes // self.lane_count

    @property
    def groups_of_part(self) -> int:
        """Those, if they do not fill it."""
        return self.vector_groups if self.lanes % self.lane_count else 0

    @property
    def fetches_ahead(self) -> bool:
        """Where the channels of a bundle are one run at every position, or planes, of which blocks are long runs."""
        p = self.problem
        size = SIZES[p.dtype] * (prod(p.shapes["x"]) + prod(p.shapes["y"]))
        even = all(p.strides[name][1] == p.shapes[name][2] * p.strides[name][2] for name in "xy")
        return even and size > KEPT_BYTES and prod(self.block_grid) > 1

    @property
    def width(self) -> int:
        """Sums of a channel of y at a tap, with room behind them."""
        return _odd_lines(self.vectors * self.lanes, self.lanes)

    def banded(self, n: int) -> bool:
        """No."""
        return False

    def whole(self, n: int) -> bool:
        """No: there are zeros around x, if windows reach there."""
        return False

    @property
    def tap_places(self) -> Ints:
        """Where the slab of x has each tap of a window, from the first one."""
        places = [0]
        for n, (axis, step) in enumerate(zip(self.axes, self.lane_slab, strict=True)):
            places = [place + r * self.tap_step(n) * step for place in places for r in range(axis.taps)]
        return tuple(places)

    @property
    def tiles(self) -> tuple[tuple[range, range], ...]:
        """Taps and channels of y of the tiles that a window meets, one after the other."""
        taps, rows = self.taps_together, self.tile_rows
        return tuple(
            (range(tap, min(self.taps, tap + taps)), range(row, min(self.row_count, row + rows)))
            for tap in range(0, self.taps, taps)
            for row in range(0, self.row_count, rows)
        )

    # --- slabs

    @property
    def row_numbers(self) -> int:
        """Of y at a position, that a vector of groups has."""
        return self.vector_groups * self.row_count

    @property
    def row_slab(self) -> tuple[Ints, int]:
        """Of y: per axis, and of a channel; of one vector of groups."""
        return row_major(self.block, self.row_numbers), 1

    @property
    def row_vector(self) -> int:
        """From a vector of groups of y to the next."""
        return _odd_lines(self.row_slab[0][0] * self.block[0], self.lanes)

    @property
    def row_slab_size(self) -> int:
        """All of y; the last vector may reach beyond."""
        return self.vectors * self.row_vector + self.lanes

    @property
    def lane_slab(self) -> Ints:
        """Of x per axis, of one vector of groups."""
        return row_major(self.x_extent, self.lanes)

    @property
    def lane_vector(self) -> int:
        """From a vector of groups of x to the next."""
        return _odd_lines(self.lane_slab[0] * self.x_extent[0], self.lanes)

    @property
    def lane_slab_block(self) -> int:
        """Of a bundle."""
        return self.vectors * self.lane_vector

    def validate(self) -> None:
        """Assert what the emitter relies on."""
        assert self.lane_side == "x"
        assert self.spread
        assert not self.direct
        assert self.lane_count <= self.lanes
        assert self.lane_groups == self.vectors * self.vector_groups
        assert self.lane_shares == self.row_shares == self.row_channels == self.tile_taps == 1

    def __str__(self) -> str:
        text = WeightsPlan.__str__(self)
        tile = f"lanes along x across {self.lane_groups} groups, tile {self.taps_together} taps x {self.tile_rows} of y"
        return text.replace(text[text.index("lanes along") : text.index(", block")], tile, 1)


def _odd_lines(numbers: int, lanes: int) -> int:
    """So many vectors, and one more if need be: what is an even number of them apart shares sets of L1."""
    return (-(-numbers // lanes) | 1) * lanes
