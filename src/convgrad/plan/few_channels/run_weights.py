"""W of channels that would leave lanes empty: lanes are runs of taps and channels of x, which meet numbers of y."""

from __future__ import annotations

from math import prod

from convgrad.dtypes import SIZES
from convgrad.plan.general.weights import KEPT_BYTES, WeightsPlan
from convgrad.plan.strides import row_major
from convgrad.problem.conv import Ints
from convgrad.values import frozen

Pieces = tuple[tuple[int, int, int], ...]  # where the first of some pieces begins, how many these are, and their size


def even_pieces(total: int, most: int) -> Pieces:
    """Pieces of at most so many, as few and as even as can be: some of a size, then those that have one less."""
    if not total:
        return ()
    pieces = -(-total // most)
    size, larger = divmod(total, pieces)
    found = (0, larger, size + 1), (larger * (size + 1), pieces - larger, size)
    return tuple(piece for piece in found if piece[1])


@frozen(kw_only=True)
class RunWeightsPlan(WeightsPlan):
    """A WeightsPlan whose vectors hold what a row of taps meets: channels of the first tap, of the second, and so on.

    In a slab with channels innermost that is one run for every window, as long as taps follow each other. Tiles are
    `row_channels` numbers of y against some vectors of the run; sums are in the order (outer taps, channel of y, run).
    All of x that a block of windows meets is packed, with zeros beside its rows.
    """

    KIND = "lanes along runs of taps and channels of x"
    FINISHED = True

    tile_vectors: int  # of a register tile, at most: tiles are as even as they can be, as they are in channels of y

    @property
    def lanes_along_taps(self) -> bool:
        """Yes."""
        return True

    @property
    def row_tiles(self) -> Pieces:
        """Channels of y of tile after tile."""
        return even_pieces(self.row_count, self.row_channels)

    @property
    def column_tiles(self) -> Pieces:
        """Likewise vectors of the run."""
        return even_pieces(self.run_vectors, self.tile_vectors)

    @property
    def share_rows(self) -> int:
        """All: no sums of rows that are not there."""
        return self.row_count

    @property
    def run(self) -> int:
        """Numbers that a row of taps meets."""
        return self.problem.taps[-1] * self.lane_count

    @property
    def run_vectors(self) -> int:
        """Of a run."""
        return -(-self.run // self.lanes)

    @property
    def taps(self) -> int:
        """Of the outer axes; those of the innermost one are lanes."""
        return prod(self.problem.taps[:-1])

    @property
    def width(self) -> int:
        """Sums of a channel of y at the taps of a row."""
        return self.run_vectors * self.lanes

    @property
    def lane_blocks(self) -> int:
        """A run."""
        return 1

    @property
    def block_channels(self) -> int:
        """All of a group."""
        return self.lane_count

    @property
    def own_sums(self) -> bool:
        """No: sums of all chunks become weights in a second stage."""
        return False

    @property
    def in_segments(self) -> bool:
        """No: lanes are all taps of a row, some of which meet zeros."""
        return False

    @property
    def fetches_ahead(self) -> bool:
        """Of large tensors: rows are long runs of them, in either layout."""
        p = self.problem
        size = SIZES[p.dtype] * (prod(p.shapes["x"]) + prod(p.shapes["y"]))
        return size > KEPT_BYTES and prod(self.block_grid) > 1

    @property
    def lane_slab(self) -> Ints:
        """Of x per axis; channels lie side by side."""
        return row_major(self.x_extent, self.lane_count)

    @property
    def lane_slab_block(self) -> int:
        """All of x; the last vector of a run may reach beyond."""
        return self.lane_slab[0] * self.x_extent[0] + self.lanes

    def validate(self) -> None:
        """Assert what the emitter relies on."""
        assert self.lane_side == "x"
        assert self.tile_taps == self.axes[-1].taps > 1
        assert self.axes[-1].dilation == 1
        assert self.lane_shares == self.row_shares == self.lane_groups == 1
        assert not any((self.spread, self.direct, self.lanes_in_place))

    def __str__(self) -> str:
        text = WeightsPlan.__str__(self)
        tile = f"{self.KIND}, tile {self.row_channels} x {self.tile_vectors}·{self.lanes} of {self.run} numbers"
        return text.replace(text[text.index("lanes along") : text.index(", block")], tile, 1)
