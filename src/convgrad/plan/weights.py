"""How W is computed: tasks sum outer products of pixels over a chunk of windows; a second stage adds the chunks."""

from __future__ import annotations

from dataclasses import dataclass
from math import prod

from convgrad.dtypes import SIZES
from convgrad.plan.strides import row_major
from convgrad.plan.window_axes import WindowAxis
from convgrad.problem.conv import ConvProblem, Ints

KEPT_BYTES = 3 * 1024 * 1024  # of x and y, that stay in L2 by themselves
PAST_CACHES_BYTES = 4 * 1024 * 1024  # of weights, from which they are not fetched before they are written
BIAS_UNIT = 16  # numbers, which are cache lines in either arithmetic type
FINISH_NUMBERS = 16 * 1024  # sums that one task of the second stage turns into weights, where taps are not too many


@dataclass(frozen=True, slots=True, kw_only=True)
class WeightsPlan:
    """Blocking of a problem that solves for W.

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
    rows_in_place: bool = False  # the tensor of the row side serves as its slab: the last tile begins early
    lanes_in_place: bool = False  # likewise that of the lane side, and the last block of lanes
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
    def tile_steps(self) -> int:
        """Steps of the sum of a tile in a whole block of windows."""
        return prod(self.block)

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
    def fetches_ahead(self) -> bool:
        """Whether the numbers of the next block are asked for while those of the present one are multiplied.

        That is, where they lie together: planes of channels are pages apart, and finding those costs what it saves.
        """
        p = self.problem
        size = SIZES[p.dtype] * (prod(p.shapes["x"]) + prod(p.shapes["y"]))
        together = all(abs(p.strides[name][2]) <= abs(p.strides[name][-1]) for name in "xy")
        return together and not (self.direct or self.spread) and size > KEPT_BYTES and prod(self.block_grid) > 1

    @property
    def tiles_of_rows(self) -> int:
        """Register tiles along the row channels of one task."""
        return self.share_rows // self.row_channels

    @property
    def taps(self) -> int:
        """Of the whole kernel."""
        return prod(self.problem.taps)

    @property
    def in_segments(self) -> bool:
        """Whether windows that only some taps of a tile meet x in are summed for these alone: no zeros around x."""
        axis, (first, last) = self.axes[-1], self.axes[-1].inside
        own = self.spread or self.direct or self.along_windows  # which have other ways
        return self.tile_taps > 1 and axis.clipped and first < last and not own

    # --- slabs

    @property
    def packed_bytes(self) -> int:
        """Of a number in a slab."""
        return SIZES[self.compute]

    def whole(self, n: int) -> bool:
        """Whether every slab holds all of x on axis n, and no zeros around it."""
        if self.direct or self.x_in_place:
            return True
        padded = n == len(self.axes) - 1 and self.tile_taps > 1 and not self.in_segments
        return self.block[n] >= self.axes[n].windows and not padded

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
        return not self.whole(n) and not side_by_side and self.axes[n].dilation > self.band(n)

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

    @property
    def row_run(self) -> int:
        """Row channels that a slab holds side by side."""
        cut = self.rows_together and self.x_pixel_major and not (self.spread or self.direct or self.rows_in_place)
        return min(self.share_rows, self.rows_together) if cut else self.share_rows

    @property
    def row_pitch(self) -> int:
        """Numbers of the slab from a position to the next, of rows side by side."""
        if self.row_run < self.share_rows:
            return self.row_run
        return self.share_rows + (16 if self.share_rows % 64 == 0 else 0)

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
    def row_slab_size(self) -> int:
        """All of it."""
        if self.rows_in_place:
            return 0
        strides, channel = self.row_slab
        extent = self.x_extent if self.rows_shift else self.block
        if self.spread or self.x_pixel_major:
            return strides[0] * extent[0] * -(-self.share_rows // self.row_run)
        return channel * self.share_rows

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

    # --- sums

    @property
    def own_sums(self) -> bool:
        """Whether a task turns its sums into weights by itself, since nobody else has a share of them."""
        return self.chunks == 1 and not self.spread and prod(self.block_grid) > 0

    @property
    def straight(self) -> bool:
        """Whether register tiles are stored as weights: lanes lie side by side there, as they are."""
        p = self.problem
        lane_step = p.w_strides[1 if self.rows_shift else 2]
        return self.own_sums and lane_step == 1 and p.out_dtype == self.compute and not p.accumulate

    @property
    def past_caches(self) -> bool:
        """Whether weights go to memory at once, where the instruction set can: whole vectors, more than L2 holds."""
        p = self.problem
        steps = (p.w_strides[0], p.w_strides[2 if self.rows_shift else 1], *p.w_strides[3:])
        aligned = all(step % self.lanes == 0 for step in steps)
        return self.straight and aligned and SIZES[p.out_dtype] * prod(p.shapes["w"]) >= PAST_CACHES_BYTES

    @property
    def own_sum_size(self) -> int:
        """Sums that a task with its own keeps between blocks, or until they are weights; else those of odd tiles."""
        if self.straight and prod(self.block_grid) == 1:
            return self.tile_taps * self.sum_rows * self.width
        return self.share_blocks * self.sum_block

    @property
    def bias_size(self) -> int:
        """Sums per channel of one chunk, which are the bias gradient; those of a chunk begin on a cache line."""
        return -(-self.problem.bias_length // BIAS_UNIT) * BIAS_UNIT

    @property
    def padded_rows(self) -> int:
        """Row channels of all tasks."""
        return self.share_rows * self.row_shares

    @property
    def sum_rows(self) -> int:
        """Row channels from a tap of the sums to the next."""
        return self.share_rows if self.own_sums else self.padded_rows

    @property
    def sum_block(self) -> int:
        """Sums of one lane block, order (taps, row channel, lane)."""
        return self.taps * self.sum_rows * self.width

    @property
    def sum_size(self) -> int:
        """Sums of one chunk, order (bundle, lane block, sum block)."""
        return self.bundles * self.lane_blocks * self.taps * self.padded_rows * self.width

    @property
    def shared_sums(self) -> int:
        """Those that all tasks share."""
        return 0 if self.own_sums else self.sum_size

    @property
    def finish_rows(self) -> int:
        """Row channels of one task of the second stage."""
        return min(self.sum_rows, max(1, FINISH_NUMBERS // (self.taps * self.width)))

    @property
    def finish_grid(self) -> Ints:
        """Tasks of the second stage, if there is one: bundles, lane blocks, shares of the rows."""
        return (self.bundles, self.lane_blocks, -(-self.row_count // self.finish_rows))

    @property
    def block_grid(self) -> Ints:
        """Blocks of windows per axis; where x is summed per channel, it is seen even if no window is."""
        least = 1 if self.problem.bias_gradient == "x" else 0
        return tuple(max(least, -(-axis.windows // block)) for axis, block in zip(self.axes, self.block, strict=True))

    @property
    def grid(self) -> Ints:
        """Tasks of the first stage."""
        return (self.chunks, self.bundles, self.lane_shares, self.row_shares)

    @property
    def rows_repeated(self) -> int:
        """Row channels of a last tile that begins early, which the one before it has, too."""
        return -self.row_count % self.row_channels if self.rows_in_place else 0

    def validate(self) -> None:
        """Assert what the emitter relies on."""
        in_place = self.rows_in_place or self.lanes_in_place
        assert not in_place or not (self.spread or self.direct)
        beside = self.tile_taps > 1 and self.axes[-1].clipped and not self.in_segments
        assert not (beside and self.x_in_place), "taps of a tile need zeros around x"
        assert not self.rows_in_place or self.row_count >= self.row_channels
        lane_step = (self.problem.y_strides if self.rows_shift else self.problem.x_strides)[2]
        assert not self.lanes_in_place or (self.lane_count >= self.width and lane_step == 1)
        assert self.axes[-1].taps % self.tile_taps == 0
        assert self.spread or self.lane_groups == 1
        assert self.rows_together % self.row_channels == 0, "a tile lies in one run"
        assert not self.direct or (self.spread and self.row_count == self.lane_count == 1)
        assert not self.direct or self.tile_taps in (1, self.axes[-1].taps)
        assert not self.direct or self.block[-1] >= self.axes[-1].windows
        assert not self.spread or (self.rows_shift and self.lane_groups * self.lane_count <= self.width)

    @property
    def _in_place(self) -> str:
        rows, lanes = self.rows_in_place, self.lanes_in_place
        if self.direct or (rows and lanes):
            return "in place, "
        return "rows in place, " if rows else "lanes in place, " if lanes else ""

    def __str__(self) -> str:
        rows = self.row_channels * (self.tile_taps if self.rows_shift else 1)
        columns = self.vectors * (1 if self.rows_shift else self.tile_taps)
        return (
            f"weights plan on {self.isa}: lanes along {self.lane_side}, tile {rows} x {columns}·{self.lanes}, "
            f"{self._in_place}block {self.block}, {self.chunks} chunks, {prod(self.grid)} tasks"
            + (f", with sums of {self.problem.bias_gradient}\n" if self.problem.bias_gradient else "\n")
            + "\n".join(f"  {reason}" for reason in self.reasons)
        )
