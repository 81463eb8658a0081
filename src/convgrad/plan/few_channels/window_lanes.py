"""Plans for weights gradients of few channels: vectors run along windows, and lanes are added up in the end."""

from __future__ import annotations

from math import prod

from convgrad.dtypes import SIZES
from convgrad.plan.general.flat import FlatWeightsPlan
from convgrad.plan.general.weights import KEPT_BYTES
from convgrad.plan.strides import row_major
from convgrad.problem.conv import Ints
from convgrad.values import frozen

LINE = 16  # numbers, in f32


@frozen(kw_only=True)
class WindowLanesPlan(FlatWeightsPlan):
    """Blocking of a problem that solves for W, with so many windows in a vector as it has lanes.

    Rows of the register tile are vectors of x, of some channels and taps of the innermost axis, columns are vectors of
    y, one for each of `vectors` channels. A sum is a vector, too, until all windows are in it; so the sums of one
    weight take as much room as elsewhere a whole row of lanes. Channels fill no lanes, and need not be many.
    """

    KIND = "lanes along windows"
    FINISHED = True
    ALONG_WINDOWS = True

    @property
    def along_windows(self) -> bool:
        """Yes."""
        return True

    @property
    def planes_packed(self) -> str:
        """Both."""
        return "xy"

    @property
    def block_channels(self) -> int:
        """Channels of y in a block of lanes: a vector each."""
        return self.vectors

    @property
    def tile_steps(self) -> int:
        """Vectors of windows in a block."""
        return prod(self.outer_block) * self.depth // self.lanes

    @property
    def fetches_ahead(self) -> bool:
        """Where channels are planes: what a block reads of one is a long run, if blocks are."""
        p = self.problem
        size = SIZES[p.dtype] * (prod(p.shapes["x"]) + prod(p.shapes["y"]))
        apart = all(abs(p.strides[name][2]) > abs(p.strides[name][-1]) for name in "xy")
        return apart and size > KEPT_BYTES and prod(self.block_grid) > 1

    @property
    def straight(self) -> bool:
        """No: lanes are to be added first."""
        return False

    @property
    def lane_blocks(self) -> int:
        """Blocks of channels of y."""
        return -(-self.lane_count // self.vectors)

    @property
    def row_slab(self) -> tuple[Ints, int]:
        """Of x: per axis, where the flat ones count elements of a plane, and of the channel: an odd number of lines."""
        plane = self.x_outer_strides[0] * self.outer_extent[0] + self.lanes  # the last vector may reach beyond
        return (*self.x_outer_strides, *self.plane_strides[1]), (-(-plane // LINE) | 1) * LINE

    @property
    def row_slab_size(self) -> int:
        """All of x."""
        return self.row_slab[1] * self.share_rows

    @property
    def lane_channel(self) -> int:
        """From a channel of the slab of y to the next: an odd number of lines."""
        return (-(-prod(self.outer_block) * self.depth // LINE) | 1) * LINE

    @property
    def lane_slab(self) -> Ints:
        """Of y per axis, of one channel."""
        return (*row_major(self.outer_block, self.depth), *row_major(self.plane_extent, 1))

    @property
    def lane_slab_block(self) -> int:
        """Numbers of a block of channels of y."""
        return self.lane_channel * self.vectors

    def validate(self) -> None:
        """Assert what the emitter relies on."""
        assert self.lane_side == "y"
        assert not any((self.spread, self.direct))
        assert self.lane_groups == 1
        assert self.axes[-1].taps % self.tile_taps == 0

    def __str__(self) -> str:
        lines = [
            f"weights plan on {self.isa}: lanes along windows, tile {self.tile_taps} taps of {self.row_channels} "
            f"channels of x by {self.vectors} of y, block {self.block} with rows of {self.pitch}, "
            f"{self.chunks} chunks, {prod(self.grid)} tasks",
            *(f"  {reason}" for reason in self.reasons),
        ]
        return "\n".join(lines)
