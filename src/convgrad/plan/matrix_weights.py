"""Plans for weights gradients on matrix units."""

from __future__ import annotations

from dataclasses import dataclass
from math import prod

from convgrad.plan.matrix import COLUMNS, DEPTH, ROWS, WHOLE, Products, watched
from convgrad.plan.strides import row_major
from convgrad.plan.weights import WeightsPlan, WindowAxis
from convgrad.problem.conv import Ints


@dataclass(frozen=True, slots=True, kw_only=True)
class MatrixWeightsPlan(WeightsPlan):
    """Blocking of a problem that solves for W on a matrix unit.

    Channels of x are the rows of A, channels of y the columns of B, and windows are summed, 32 at a time. The windows
    of the innermost two axes (the flat ones) are numbered as if every row had `pitch` of them; where x has a row of
    that length, y has a window or, behind the last window of a row, zero. That makes a tap a mere shift of x: its slab
    is in the order (piece, channel, outer axes, planes of the flat axes, rows, columns), one plane for each remainder
    of a stride. y is transposed once, in the order (piece, lane block, outer axes, pair of windows, lane, window of
    the pair).
    """

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
    def own_sums(self) -> bool:
        """No: what to make of sums is known when all of them are there."""
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
    def flat(self) -> tuple[WindowAxis, ...]:
        """The axes that windows are numbered through."""
        return self.axes[max(1, len(self.axes) - 2) :]

    @property
    def outer(self) -> tuple[WindowAxis, ...]:
        """The others, batch first."""
        return self.axes[: len(self.axes) - len(self.flat)]

    @property
    def outer_block(self) -> Ints:
        """Windows per outer axis that are packed at a time."""
        return self.block[: len(self.outer)]

    @property
    def flat_block(self) -> Ints:
        """Windows per flat axis that are packed at a time."""
        return self.block[len(self.outer) :]

    @property
    def outer_extent(self) -> Ints:
        """Elements of x per outer axis that a block meets."""
        return tuple(
            axis.stride * (block - 1) + axis.dilation * (axis.taps - 1) + 1
            for axis, block in zip(self.outer, self.outer_block, strict=True)
        )

    def lead(self, axis: WindowAxis) -> int:
        """Elements of the slab before the first that tap 0 of a block meets, so that planes begin with remainder 0."""
        return -axis.low % axis.stride

    @property
    def plane_extent(self) -> Ints:
        """Elements per flat axis of one plane; the innermost is the pitch, which is even: pairs stay in a row."""
        extents = [
            block + (axis.dilation * (axis.taps - 1) + self.lead(axis)) // axis.stride
            for axis, block in zip(self.flat, self.flat_block, strict=True)
        ]
        return (*extents[:-1], extents[-1] + extents[-1] % 2)

    @property
    def pitch(self) -> int:
        """From one row of windows to the next."""
        return self.plane_extent[-1]

    @property
    def planes(self) -> Ints:
        """Per flat axis."""
        return tuple(axis.stride for axis in self.flat)

    @property
    def plane_strides(self) -> tuple[Ints, Ints]:
        """Of x per flat axis: from plane to plane, and from element to element of a plane."""
        elements = row_major(self.plane_extent, 1)
        return row_major(self.planes, prod(self.plane_extent)), elements

    @property
    def depth(self) -> int:
        """Windows that are summed at a time, numbered flat, in whole tiles."""
        *rows, columns = self.flat_block
        return -(-((prod(rows) - 1) * self.pitch + columns) // DEPTH) * DEPTH

    @property
    def x_outer_strides(self) -> Ints:
        """Of x per outer axis."""
        return row_major(self.outer_extent, prod(self.planes) * prod(self.plane_extent))

    @property
    def row_slab(self) -> tuple[Ints, int]:
        """Of x: per axis, where the flat ones count elements of a plane, and of the channel: an odd number of lines."""
        plane = self.x_outer_strides[0] * self.outer_extent[0]
        return (*self.x_outer_strides, *self.plane_strides[1]), (plane + DEPTH - 1) // 64 * 64 + 96

    @property
    def x_piece(self) -> int:
        """From a piece of x to the next."""
        return self.row_slab[1] * self.share_rows

    @property
    def row_slab_size(self) -> int:
        """All of x."""
        return self.pieces * self.x_piece

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
    def y_piece(self) -> int:
        """From a piece of y to the next."""
        return self.share_blocks * self.lane_slab_block

    @property
    def lane_slab_size(self) -> int:
        """All of y."""
        return self.pieces * self.y_piece

    def validate(self) -> None:
        """Assert what the emitter relies on."""
        assert self.lane_side == "y"
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
