"""Plans for weights gradients on matrix units whose windows lie side by side, gathered from x for each tap."""

from __future__ import annotations

from math import prod

from convgrad.plan.by_matrix.matrix import DEPTH
from convgrad.plan.by_matrix.matrix_weights import MatrixWeightsPlan
from convgrad.plan.general.room import Room
from convgrad.plan.strides import row_major
from convgrad.problem.conv import Ints
from convgrad.values import frozen


@frozen(kw_only=True)
class GatheredWeightsPlan(MatrixWeightsPlan):
    """A MatrixWeightsPlan that multiplies next to no zeros, for the price of copies.

    Where rows of windows are short, or the kernel reaches far, what lies between windows is a large part of all that a
    MatrixWeightsPlan sums. Here y has windows only, and for each tap and block of tiles a task copies what the windows
    meet from the slab of x, which is as ever, pieces and all: rows of bf16, in as few moves as hold them. All lanes of
    the task then meet that copy.
    """

    KIND = "on matrix tiles, gathered for each tap"

    @property
    def in_turn(self) -> bool:
        """No: all lanes meet what was gathered."""
        return False

    @property
    def across_lines(self) -> float:
        """None: rows begin where copies do."""
        return 0.0

    @property
    def longest(self) -> int:
        """The outermost axis of which a block has several windows: what its taps do not meet x in is left out."""
        return next((n for n, size in enumerate(self.block) if size > 1), len(self.block) - 1)

    @property
    def row(self) -> int:
        """From one row of windows to the next: pairs stay in a row."""
        return -(-self.block[-1] // 2) * 2

    @property
    def window_strides(self) -> Ints:
        """From window to window, per axis."""
        return row_major((*self.block[:-1], self.row), 1)

    @property
    def depth(self) -> int:
        """Windows of a block, in whole units."""
        return -(-self.block[0] * self.window_strides[0] // DEPTH) * DEPTH

    @property
    def summed(self) -> int:
        """Windows that `depth` is made of."""
        return prod(self.block)

    @property
    def lane_slab(self) -> Ints:
        """Of y per axis."""
        return tuple(step * self.width for step in self.window_strides)

    @property
    def lane_slab_block(self) -> int:
        """Numbers of one lane block and one piece."""
        return self.depth * self.width

    @property
    def row_step(self) -> int:
        """From channel to channel of what was gathered: an odd number of lines."""
        return self.depth + (DEPTH if self.depth // DEPTH % 2 == 0 else 0)

    @property
    def row_piece(self) -> int:
        """From piece to piece, with room for what the last row writes beyond its end."""
        return self.row_channels * self.row_step + DEPTH

    @property
    def gathered_size(self) -> int:
        """All of it."""
        return self.pieces * self.row_piece

    @property
    def work_bytes(self) -> Room:
        """Of that, too."""
        sums, slabs = super().work_bytes
        return sums, slabs + self.packed_bytes * self.gathered_size

    def __str__(self) -> str:
        return super().__str__().replace(f"with rows of {self.pitch}", "gathered for each tap")
