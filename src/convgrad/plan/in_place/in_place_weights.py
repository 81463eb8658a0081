"""Weights gradients of planes that are alike, which are read as they lie: windows are one run, and a tap shifts it."""

from __future__ import annotations

from math import prod

from convgrad.plan.few_channels.window_lanes import WindowLanesPlan
from convgrad.problem.conv import ConvProblem, Ints
from convgrad.values import frozen


@frozen(kw_only=True)
class InPlaceWeightsPlan(WindowLanesPlan):
    """A WindowLanesPlan that packs nothing.

    The column side is read as it lies, the row side moved by the tap: x of windows, or y of the elements that these
    windows meet, whichever makes the better tile. Vectors reach from one row into the next: lanes whose tap falls
    beside the image are masked. A block is some rows of one image.
    """

    KIND = "lanes along windows, in place"

    @property
    def planes_packed(self) -> str:
        """None."""
        return ""

    @property
    def pitch(self) -> int:
        """From one row to the next."""
        return self.axes[-1].windows

    @property
    def together(self) -> int:
        """Windows of a lane."""
        return 1

    @property
    def window_lanes(self) -> int:
        """Windows of a vector."""
        return self.together * self.lanes

    @property
    def x_start(self) -> Ints:
        """Element of x where the first block begins."""
        return (0,) * len(self.axes)

    @property
    def x_extent(self) -> Ints:
        """Elements of x per axis that belong to a block."""
        return self.block

    @property
    def row_slab(self) -> tuple[Ints, int]:
        """Strides of the row side: per axis, and of a channel."""
        strides = self.problem.x_strides if self.rows_shift else self.problem.y_strides
        return (strides[0], *strides[3:]), strides[2]

    @property
    def lane_slab(self) -> Ints:
        """Of the column side, per axis."""
        strides = self.problem.y_strides if self.rows_shift else self.problem.x_strides
        return (strides[0], *strides[3:])

    @property
    def lane_channel(self) -> int:
        """From a channel of the column side to the next."""
        return (self.problem.y_strides if self.rows_shift else self.problem.x_strides)[2]

    @property
    def tile_steps(self) -> int:
        """Vectors of windows in a block."""
        return max(1, prod(self.block[len(self.outer) :]) // self.window_lanes)

    def shift(self, n: int, r: int) -> int:
        """How far tap r of axis n moves the row side."""
        moved = r * self.axes[n].dilation - self.axes[n].low
        return moved if self.rows_shift else -moved

    def validate(self) -> None:
        """Assert what the emitter relies on."""
        p = self.problem
        assert self.direct
        assert not self.spread
        assert self.lane_groups == 1
        assert self.axes[-1].taps % self.tile_taps == 0
        assert self.row_count % self.row_channels == 0
        assert self.lane_count % self.vectors == 0
        assert self.share_rows * self.row_shares == self.row_count
        assert set(self.outer_block) == {1}
        assert self.block[-1] == self.pitch or (len(self.flat) == 1 and self.block[-1] % self.window_lanes == 0)
        assert self.axes[-1].dilation * (self.axes[-1].taps - 1) < self.row_slab[1], "a place is of one row of the tile"
        assert alike(p)

    def __str__(self) -> str:
        text = WindowLanesPlan.__str__(self)
        side = "x" if self.rows_shift else "y"
        return text.replace("lanes along windows,", f"lanes along windows, in place, {side} moving,", 1)


def alike(p: ConvProblem) -> bool:
    """Whether planes of x and y are alike and lie in memory without gaps."""
    step = 1
    flat = min(2, p.rank)
    for n in range(1, flat + 1):
        if p.stride[-n] != 1 or p.x_extent[-n] != p.y_extent[-n] or not p.x_strides[-n] == p.y_strides[-n] == step:
            return False
        step *= p.x_extent[-n]
    return True
