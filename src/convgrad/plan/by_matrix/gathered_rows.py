"""Plans on matrix units that copy what windows meet from the tensor itself, as tiles of outputs need it."""

from __future__ import annotations

from math import gcd, prod

from convgrad.dtypes import SIZES
from convgrad.plan.by_matrix.matrix import DEPTH, MatrixDataPlan
from convgrad.plan.by_matrix.tile_by_tile import TileByTilePlan, step_of_numbers
from convgrad.plan.general.data import KEPT_BYTES
from convgrad.problem.conv import Ints
from convgrad.values import frozen

SETS, MOST_SHARED = 64, 16  # of L1; lines from row to row that at most have a factor in common with them
FORGOTTEN_BYTES = 64 * 1024  # of rows of the input that a window meets, which no L1 holds beside weights


@frozen(kw_only=True)
class GatheredRowsPlan(TileByTilePlan):
    """A TileByTilePlan of bf16 with channels side by side and no taps beside the image: there is no slab.

    Lines of 32 channels are looked at, and copied in the order (block of 32 channels, tap, output, channel), unless
    tiles can be loaded from where they lie. Phases, if there are any, have a tap each and meet the same.
    """

    KIND = "on matrix tiles, gathered where it lies"

    @property
    def slab_size(self) -> int:
        """None."""
        return 0

    @property
    def a_tiles(self) -> int:
        """Tiles of A that a tile of outputs meets: phases share them."""
        return -(-self.in_channels // DEPTH) * prod(axis.taps for axis in self.axes)

    @property
    def moves(self) -> int:
        """Lines that are copied for every output."""
        return self.a_tiles

    @property
    def moves_again(self) -> float:
        """Those of windows of other rows, where L1 does not hold as many rows of the input as a window meets."""
        *outer, inner = self.axes
        rows = SIZES[self.problem.dtype] * self.in_channels * inner.in_extent * prod(axis.taps for axis in outer)
        windows = prod(axis.taps / min(axis.taps, axis.in_step) for axis in outer)
        return self.moves * (1 - 1 / windows) if self.is_far and rows > FORGOTTEN_BYTES else 0.0

    @property
    def is_far(self) -> bool:
        """Whether L2 has not all of the input."""
        return self.problem.bytes_of(self.problem.given) > KEPT_BYTES

    @property
    def given_steps(self) -> Ints:
        """From image to image, and from place to place of every axis, in the tensor."""
        batch, _, _, *spatial = self.problem.strides[self.problem.given]
        return batch, *spatial

    @property
    def given_step(self) -> int:
        """From what one output of a block meets to what the next one does, in the tensor; 0 where steps differ."""
        steps = (axis.in_step * stride for axis, stride in zip(self.axes, self.given_steps, strict=True))
        return step_of_numbers(self.block, tuple(steps)) or 0

    @property
    def asks_ahead(self) -> int:
        """Numbers of the tensor from what is multiplied or copied to what is asked for: a block of tiles further.

        0 if nothing is, since L2 has it, or it does not lie equally far apart.
        """
        return self.together * self.given_step if self.is_far else 0

    @property
    def reads_rows(self) -> bool:
        """Whether rows of A are read where they lie, if these begin with cache lines; else they are copied.

        Of one tap and whole lines, not too many of which share a set of L1. No block has fewer than a block of tiles,
        the last of which begins early.
        """
        step = self.given_step
        least = prod(min(size, axis.count % size or size) for axis, size in zip(self.axes, self.block, strict=True))
        whole = self.in_channels == self.a_tiles * DEPTH and least >= self.together
        return self.gathers_ahead and whole and step > 0 == step % DEPTH and gcd(step // DEPTH, SETS) <= MOST_SHARED

    @property
    def gathers_ahead(self) -> bool:
        """Whether a block of tiles is gathered while the one before is multiplied, where there are several."""
        return prod(self.block) > self.together

    @property
    def row_step(self) -> int:
        """Side by side."""
        return DEPTH

    @property
    def a_steps(self) -> tuple[int, int, int]:
        """Of A: from a piece, from a tap or block of 32 channels, and from a block of tiles to the next."""
        tile = self.together * DEPTH
        return tile, tile, self.a_tiles * tile

    @property
    def rooms(self) -> int:
        """For blocks of tiles that are gathered: the present one and the next."""
        return 2 if self.gathers_ahead else 1

    @property
    def gathered_size(self) -> int:
        """Numbers of these."""
        return self.rooms * self.a_steps[2]

    @property
    def tap_steps(self) -> Ints:
        """None: there is one sum."""
        return (0,) * len(self.axes)

    def _validate_rows(self) -> None:
        p = self.problem
        assert p.dtype == "bf16"
        assert self.pieces == 1
        assert p.strides[p.given][2] == 1
        assert self.i_block == -(-self.in_channels // DEPTH) * DEPTH
        assert meets_whole_rows(self)
        inner = next((n for n, size in enumerate(self.block) if size > 1), len(self.block))
        whole = zip(self.block[inner + 1 :], self.axes[inner + 1 :], strict=True)
        assert all(size == axis.count for size, axis in whole), "a smaller last block has the first of all numbers"


def meets_whole_rows(plan: MatrixDataPlan) -> bool:
    """Whether all windows lie inside of the image, and phases, if there are any, meet the same with a tap each."""
    for axis in plan.axes:
        first = axis.phases[0]
        alike = all(phase.taps == 1 and phase.offset == first.offset for phase in axis.phases)
        alike = alike and all(phase.count == axis.count for phase in axis.phases)
        if axis.clipped or not axis.taps or (len(axis.phases) > 1 and not alike):
            return False
        if len(axis.phases) < axis.out_step:
            return False  # some outputs meet nothing, and are zero
    every = plan.solves_y and all(a.taps == taps for a, taps in zip(plan.axes[1:], plan.problem.taps, strict=True))
    return every or all(axis.taps == 1 for axis in plan.axes)  # else weights of a sum are not a row
