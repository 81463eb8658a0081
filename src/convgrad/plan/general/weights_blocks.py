"""Blocking of a problem that solves for W: what one task sums at a time, and how much of it there is."""

from __future__ import annotations

from math import prod

from convgrad.dtypes import SIZES
from convgrad.plan.window_axes import WindowAxis
from convgrad.problem.conv import ConvProblem, Ints
from convgrad.values import frozen


@frozen(kw_only=True)
class WeightsBlocks:
    """The numbers that a `WeightsPlan` is made of, and what follows from them by counting.

    Vectors run along the channels of one tensor, the lane side: k of y, or c of x. The other side gives the rows of the
    register tile, one number at a time; taps are rows where x gives the rows, and columns where x gives the lanes.
    Where `lane_groups` > 1 the lanes are the channels of several groups and the rows are vectors of the other side,
    spread so that every lane meets the channel of its own group.

    A task sums the windows of one chunk for a share of the lane blocks and of the rows. Which windows form a chunk, and
    the order of their sum, follows from the shape alone. Sizes count numbers of the arithmetic type.
    """

    problem: ConvProblem
    isa: str
    compute: str
    lanes: int
    axes: tuple[WindowAxis, ...]  # batch first
    lane_side: str  # "y" or "x"
    vectors: int
    lane_groups: int
    spread: bool
    row_channels: int  # channels of the row side in one register tile
    tile_taps: int  # taps of the innermost axis in one register tile; divides their number
    block: Ints  # windows per axis that are packed at a time
    chunks: int
    lane_shares: int  # tasks that divide the lane blocks
    row_shares: int  # tasks that divide the row channels
    x_pixel_major: bool  # of the slab of the row side: channels innermost
    rows_together: int = 0  # of them, that lie side by side: whole tiles; 0: all
    direct: bool = False  # the tensors themselves serve as slabs
    rows_in_place: bool = False  # the tensor of the row side serves as its slab
    lanes_in_place: bool = False  # likewise that of the lane side: the last block of lanes begins early
    at_once: int = 1  # groups of a task, one after the other in each block of windows
    unroll: int = 1  # windows written out together
    reasons: tuple[str, ...] = ()

    @property
    def rows_shift(self) -> bool:
        """Whether the rows come from x, which moves with the tap."""
        return self.lane_side == "y"

    @property
    def x_in_place(self) -> bool:
        """Whether x is read where it lies, and y may be packed."""
        return self.rows_in_place if self.rows_shift else self.lanes_in_place

    @property
    def y_in_place(self) -> bool:
        """Likewise y."""
        return self.lanes_in_place if self.rows_shift else self.rows_in_place

    @property
    def row_count(self) -> int:
        """Channels of the row side, of one group."""
        return self.problem.x_channels if self.rows_shift else self.problem.y_channels

    @property
    def lane_count(self) -> int:
        """Channels of the lane side, of one group."""
        return self.problem.y_channels if self.rows_shift else self.problem.x_channels

    @property
    def taps(self) -> int:
        """Of the whole kernel."""
        return prod(self.problem.taps)

    @property
    def packed_bytes(self) -> int:
        """Of a number in a slab."""
        return SIZES[self.compute]

    # --- blocks and shares of them

    @property
    def width(self) -> int:
        """Lanes of one block."""
        return self.vectors * self.lanes

    @property
    def along_windows(self) -> bool:
        """Whether lanes are windows, to be added up in the end, rather than channels."""
        return False

    @property
    def block_channels(self) -> int:
        """Channels of the lane side in a block of lanes."""
        return self.width

    @property
    def bundles(self) -> int:
        """Bundles of `lane_groups` groups."""
        return -(-self.problem.groups // self.lane_groups)

    @property
    def lane_blocks(self) -> int:
        """Blocks of lanes of one bundle."""
        return 1 if self.spread else -(-self.lane_count // self.width)

    @property
    def share_blocks(self) -> int:
        """Lane blocks of one task."""
        return -(-self.lane_blocks // self.lane_shares)

    @property
    def share_rows(self) -> int:
        """Row channels of one task, a multiple of the tile's."""
        tiles = -(-self.row_count // self.row_channels)
        return -(-tiles // self.row_shares) * self.row_channels

    @property
    def tiles_of_rows(self) -> int:
        """Register tiles along the row channels of one task."""
        return self.share_rows // self.row_channels

    @property
    def tile_steps(self) -> int:
        """Steps of the sum of a tile in a whole block of windows."""
        return prod(self.block)

    @property
    def block_grid(self) -> Ints:
        """Blocks of windows per axis; where x is summed per channel, it is seen even if no window is."""
        least = 1 if self.problem.bias_gradient == "x" else 0
        return tuple(max(least, -(-axis.windows // block)) for axis, block in zip(self.axes, self.block, strict=True))

    @property
    def grid(self) -> Ints:
        """Tasks of the first stage."""
        return (self.chunks, -(-self.bundles // self.at_once), self.lane_shares, self.row_shares)

    @property
    def tasks_alike(self) -> bool:
        """Whether all tasks sum as much: no last block, chunk, or share of channels is smaller than others."""
        tiles = -(-self.row_count // self.row_channels)
        whole = all(axis.windows % block == 0 for axis, block in zip(self.axes, self.block, strict=True))
        shared = self.lane_blocks % self.lane_shares == 0 == tiles % self.row_shares
        return whole and shared and prod(self.block_grid) % self.chunks == 0 == self.bundles % self.at_once
