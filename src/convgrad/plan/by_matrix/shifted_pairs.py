"""Plans for weights gradients on matrix units whose taps move pairs of windows of x by whole rows of an operand."""

from __future__ import annotations

from math import prod

from convgrad.plan.by_matrix.matrix import DEPTH
from convgrad.plan.by_matrix.matrix_weights import MatrixWeightsPlan
from convgrad.plan.strides import row_major
from convgrad.problem.conv import ConvProblem, Ints
from convgrad.values import frozen

PAIR = 2  # windows that are neighbours in a row of B


@frozen(kw_only=True)
class ShiftedPairsPlan(MatrixWeightsPlan):
    """A MatrixWeightsPlan with the sides in each other's places: channels of y are rows of A, those of x columns of B.

    B holds x in pairs of windows, in the order (first window of a pair even or odd, piece, lane block, outer axes,
    planes of the flat axes, pair, lane, window of the pair). A tap that moves x by an even number of windows moves B by
    lines, so nothing crosses them, and nothing is copied for a tap. Where a tap moves x by an odd number, pairs that
    begin one window later are made of those that are there, once for all such taps. The price is that zeros are
    multiplied behind each row of windows, as many as taps reach further.
    """

    KIND = "on matrix tiles, x in pairs that taps shift"
    LANES_OF = "x"

    @property
    def across_lines(self) -> float:
        """None are."""
        return 0.0

    @property
    def in_turn(self) -> bool:
        """No: a block of rows meets all lanes."""
        return False

    def lead(self, n: int) -> int:
        """So that what x has of the innermost axis begins with a pair."""
        unit = self.axes[n].stride * (PAIR if n == len(self.axes) - 1 else 1)
        return -self.axes[n].low % unit

    @property
    def begins_with_pairs(self) -> bool:
        """Whether blocks of the innermost axis do."""
        return self.block[-1] % PAIR == 0 or self.block[-1] >= self.axes[-1].windows

    @property
    def odd_taps(self) -> bool:
        """Whether a tap moves x by an odd number of windows: rows and planes have even ones."""
        axis, lead = self.axes[-1], self.lead(len(self.axes) - 1)
        return any((r * axis.dilation + lead) // axis.stride % PAIR for r in range(axis.taps))

    @property
    def fills_slabs(self) -> bool:
        """No: there is something between rows, and behind them."""
        return False

    # --- rows: y

    @property
    def row_slab(self) -> tuple[Ints, int]:
        """Of y: per axis, and of the channel: an odd number of lines."""
        outer = row_major(self.outer_block, self.depth)
        lines = prod(self.outer_block) * self.depth // DEPTH
        return (*outer, *self.plane_strides[1]), (lines + 1 - lines % 2) * DEPTH

    # --- lanes: x

    @property
    def lane_slab(self) -> Ints:
        """Of x per axis, where the flat ones count elements of a plane."""
        return tuple(step * self.width for step in (*self.x_outer_strides, *self.plane_strides[1]))

    @property
    def lane_slab_block(self) -> int:
        """Numbers of one lane block and one piece, with those that the last step meets beyond."""
        return (self.x_outer_strides[0] * self.outer_extent[0] + DEPTH) * self.width

    @property
    def odd_step(self) -> int:
        """From pairs that begin with even windows to those that begin with odd ones."""
        return self.pieces * self.lane_piece

    @property
    def lane_slab_size(self) -> int:
        """All of both."""
        return (1 + self.odd_taps) * self.odd_step

    def validate(self) -> None:
        """Assert what the emitter relies on."""
        super().validate()
        assert self.begins_with_pairs
        assert shifts_pairs(self.problem, self.pieces)

    def __str__(self) -> str:
        return super().__str__().replace("of x by", "of y by", 1).replace("of y, ", "of x, ", 1)


def shifts_pairs(problem: ConvProblem, pieces: int) -> bool:
    """Whether it may be worth while: several taps, and windows of x side by side, or all channels of each.

    A single piece is copied for a tap about as fast as it is paired.
    """
    together = problem.stride[-1] == 1 or abs(problem.x_strides[2]) < abs(problem.x_strides[-1])
    return prod(problem.taps) > 1 and together and pieces > 1
