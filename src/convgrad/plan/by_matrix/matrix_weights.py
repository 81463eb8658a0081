"""Plans for weights gradients on matrix units."""

from __future__ import annotations

from math import prod
from typing import ClassVar

from convgrad.plan.by_matrix.matrix import COLUMNS, DEPTH, FAR_BYTES, ROWS, watched
from convgrad.plan.general.flat import FlatWeightsPlan
from convgrad.plan.general.weights import WeightsPlan
from convgrad.plan.strides import row_major
from convgrad.plan.units import WHOLE, Products
from convgrad.problem.conv import Ints
from convgrad.values import frozen

PAIRS_AHEAD = 16


@frozen(kw_only=True)
class MatrixWeightsPlan(FlatWeightsPlan):
    """Blocking of a problem that solves for W on a matrix unit.

    Channels of x are the rows of A, channels of y the columns of B, and windows are summed, 32 at a time. The slab of x
    holds its pieces one after the other. y is transposed once, in the order (piece, lane block, outer axes, pair of
    windows, lane, window of the pair).
    """

    KIND = "on matrix tiles"
    ON_UNITS = True
    LANES_OF: ClassVar[str] = "y"  # the tensor whose channels are columns of B

    pieces: int
    products: Products
    watch: bool
    fallback: WeightsPlan | None = None

    @property
    def exact(self) -> bool:
        """Whether the pieces hold all of a number."""
        return self.pieces >= WHOLE[self.problem.dtype]

    @property
    def fetches_ahead(self) -> bool:
        """No."""
        return False

    @property
    def asks_ahead(self) -> int:
        """Pairs of windows further on that are asked for as others are packed: some, if both sides are far away."""
        p = self.problem
        return PAIRS_AHEAD if p.bytes_of("x") + p.bytes_of("y") >= FAR_BYTES else 0

    @property
    def own_sums(self) -> bool:
        """Whether a task turns its sums into weights by itself: if they were wrong, the fallback writes all again."""
        return self.chunks == 1 and prod(self.block_grid) > 0 and not self.problem.accumulate

    @property
    def by_rows(self) -> bool:
        """Whether sums are weights before those of other rows are begun."""
        return self.own_sums and not self.straight

    @property
    def rounds(self) -> bool:
        """No: the unit stores its tiles itself."""
        return False

    @property
    def packed_bytes(self) -> int:
        """Of a number in a slab."""
        return 2

    @property
    def row_tiles(self) -> int:
        """Tiles of 16 channels of x in a block of tiles."""
        return self.row_channels // ROWS

    @property
    def row_blocks(self) -> int:
        """Blocks of tiles along the rows of a group, at all taps."""
        return self.taps * -(-self.row_count // self.row_channels)

    @property
    def rows(self) -> int:
        """Of A and C that are in use: a product takes as long as it has rows."""
        return min(ROWS, max(1, self.row_count))

    @property
    def pitch_unit(self) -> int:
        """Pairs stay in a row."""
        return 2

    @property
    def depth_unit(self) -> int:
        """Windows that a tile sums at a time."""
        return DEPTH

    @property
    def row_slab(self) -> tuple[Ints, int]:
        """Of x: per axis, where the flat ones count elements of a plane, and of the channel: an odd number of lines."""
        plane = self.x_outer_strides[0] * self.outer_extent[0]
        return (*self.x_outer_strides, *self.plane_strides[1]), (plane + DEPTH - 1) // 64 * 64 + 96

    @property
    def row_step(self) -> int:
        """From row to row of A, which are channels of x."""
        return self.row_slab[1]

    @property
    def row_piece(self) -> int:
        """From a piece of A to the next."""
        return self.row_slab_piece

    @property
    def row_slab_piece(self) -> int:
        """From a piece to the next, of the side that gives the rows."""
        return self.row_slab[1] * self.share_rows

    @property
    def row_slab_size(self) -> int:
        """All of that side."""
        return self.pieces * self.row_slab_piece

    @property
    def fills_slabs(self) -> bool:
        """Whether packing writes all that tiles read: no border, no gap between rows, no tile that is not whole."""
        whole = self.row_count % self.row_channels == self.lane_count % self.width == 0 == self.block[-1] % 2
        blocks = all(axis.windows % size == 0 for axis, size in zip(self.axes, self.block, strict=True))
        return whole and blocks and self.depth == self.summed and not any(axis.clipped for axis in self.axes)

    @property
    def across_lines(self) -> float:
        """The share of taps that move rows of A by other than whole ones."""
        aligned = 1.0
        for n, axis in enumerate(self.axes):
            if n < len(self.outer):
                places = [r * axis.dilation * self.row_slab[0][n] for r in range(axis.taps)]
            else:
                places = [self.tap_place(n, r) for r in range(axis.taps)]
            aligned *= sum(1 for place in places if place % DEPTH == 0) / max(1, axis.taps)
        return 1 - aligned

    @property
    def summed(self) -> int:
        """Windows that `depth` is made of."""
        return prod(self.flat_block)

    @property
    def lane_slab(self) -> Ints:
        """Of y per axis, of one lane block; an element of a flat axis is half a pair."""
        flat = row_major(self.plane_extent, self.width)
        return (*row_major(self.outer_block, self.depth * self.width), *flat)

    @property
    def lane_slab_block(self) -> int:
        """Numbers of one lane block and one piece."""
        return prod(self.outer_block) * self.depth * self.width

    @property
    def lane_piece(self) -> int:
        """From a piece to the next, of the side that gives the lanes."""
        return self.share_blocks * self.lane_slab_block

    @property
    def lane_slab_size(self) -> int:
        """All of that side."""
        return self.pieces * self.lane_piece

    def validate(self) -> None:
        """Assert what the emitter relies on."""
        assert self.lane_side == self.LANES_OF
        assert not any((self.spread, self.direct))
        assert self.tile_taps == self.lane_groups == self.unroll == 1
        assert self.row_channels in (ROWS, 2 * ROWS)
        assert self.width in (COLUMNS, 2 * COLUMNS)
        assert not self.watch or self.fallback is not None

    def __str__(self) -> str:
        lines = [
            f"weights plan on {self.isa}, matrix tiles: {self.row_channels} channels of x by {self.width} of y, "
            f"{len(self.products)} products of {self.pieces} bf16 pieces, block {self.block} with rows of "
            f"{self.pitch}, {self.chunks} chunks, {prod(self.grid)} tasks",
            *(f"  {reason}" for reason in self.reasons),
        ]
        return "\n".join([*lines, *watched(self.fallback)])
