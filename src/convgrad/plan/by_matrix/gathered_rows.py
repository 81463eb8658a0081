"""Plans on matrix units that copy what windows meet from the tensor itself, as tiles of outputs need it."""

from __future__ import annotations

from math import prod

from convgrad.dtypes import SIZES
from convgrad.plan.by_matrix.matrix import DEPTH, MatrixDataPlan
from convgrad.plan.by_matrix.tile_by_tile import TileByTilePlan
from convgrad.plan.general.data import KEPT_BYTES
from convgrad.problem.conv import Ints
from convgrad.values import frozen

FORGOTTEN_BYTES = 64 * 1024  # of rows of the input that a window meets, which no L1 holds beside weights


@frozen(kw_only=True)
class GatheredRowsPlan(TileByTilePlan):
    """A TileByTilePlan of bf16 with channels side by side and no taps beside the image: there is no slab.

    Lines of 32 channels are copied, and looked at on the way, in the order (block of 32 channels, tap, output,
    channel). Phases, if there are any, have a tap each and meet the same.
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
        return self.moves * (1 - 1 / windows) if self.fetches_rows and rows > FORGOTTEN_BYTES else 0.0

    @property
    def fetches_rows(self) -> bool:
        """Where L2 has not all of it."""
        return self.problem.bytes_of(self.problem.given) > KEPT_BYTES

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
    def gathered_size(self) -> int:
        """Numbers of one block of tiles."""
        return self.a_steps[2]

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
