"""Plans on matrix units whose rows of A are whole windows of few channels, put together number by number."""

from __future__ import annotations

from math import prod

from convgrad.plan.by_matrix.across_rows import GatheredDataPlan
from convgrad.plan.by_matrix.matrix import DEPTH
from convgrad.plan.by_matrix.runs import Runs
from convgrad.plan.by_matrix.tile_by_tile import TileByTilePlan
from convgrad.problem.conv import Ints
from convgrad.values import frozen

MOST_WRITTEN_OUT = 48  # moves of an output, beyond which there is a loop over rows of its window
PARTS = (8, 16)  # numbers that are moved at once, besides whole lines


@frozen(kw_only=True)
class GatheredRunPlan(Runs, TileByTilePlan):
    """A TileByTilePlan whose sums go through all numbers of a window as one run, whatever taps and channels.

    The slab is as dense as the image, so that what a window meets in a row of it is one run of numbers. Those of all
    rows are copied one behind the other, in the order (output, piece, number of the window). A 7x7 on three channels,
    147 numbers, is 5 products of tiles then, where tap by tap it is 49, and rows of A begin with cache lines.
    """

    KIND = "on matrix tiles, gathered window by window"

    @property
    def order_kind(self) -> str:
        """Its own: a tile ends anywhere among taps and channels."""
        return self.KIND

    @property
    def inner_taps(self) -> int:
        """Taps that are one run: all."""
        return self.taps

    @property
    def run(self) -> int:
        """Numbers of a window."""
        return self.taps * self.in_channels

    @property
    def run_blocks(self) -> int:
        """Tiles that a window takes."""
        return -(-self.run // DEPTH)

    @property
    def steps(self) -> int:
        """As many."""
        return self.run_blocks

    @property
    def panel(self) -> int:
        """Packed weights of one block of lanes: tiles of a window, pieces, tiles of lanes."""
        return self.run_blocks * self.pieces * DEPTH * self.width

    # --- the slab

    @property
    def row_run(self) -> int:
        """Numbers of a window in one row of the image."""
        return self.axes[-1].taps * self.in_channels

    @property
    def rows_of_window(self) -> int:
        """Such rows."""
        return self.taps // self.axes[-1].taps

    @property
    def parts(self) -> tuple[tuple[int, int], ...]:
        """How a row of a window moves: where each part begins, and how many numbers it has, some beyond the row."""
        parts, start = [], 0
        while start < self.row_run:
            rest = self.row_run - start
            size = DEPTH if rest >= DEPTH else PARTS[1] if rest > PARTS[0] else PARTS[0]
            parts.append((start, size))
            start += size
        return tuple(parts)

    @property
    def moves(self) -> int:
        """For every output."""
        return self.pieces * self.rows_of_window * len(self.parts)

    @property
    def piece_step(self) -> int:
        """With room for what the last part reads beyond its row."""
        return -(-prod(self.slab_extent) * self.in_channels // DEPTH) * DEPTH + DEPTH

    @property
    def slab_size(self) -> int:
        """All pieces."""
        return self.pieces * self.piece_step

    # --- what is gathered

    @property
    def window_pitch(self) -> int:
        """From piece to piece of an output: an odd number of lines, so that rows of a tile lie in different sets."""
        return DEPTH * (self.run_blocks | 1)

    @property
    def row_step(self) -> int:
        """Of A, from an output to the next: all pieces."""
        return self.pieces * self.window_pitch

    @property
    def fills_windows(self) -> bool:
        """Whether the rows of a window reach the end of its last tile."""
        start, size = self.parts[-1]
        return (self.rows_of_window - 1) * self.row_run + start + size >= self.run_blocks * DEPTH

    @property
    def a_steps(self) -> tuple[int, int, int]:
        """Of A: from a piece, from a tile of the window, and from a block of tiles to the next."""
        return self.window_pitch, DEPTH, self.together * self.row_step

    @property
    def gathered_size(self) -> int:
        """Numbers of one block of tiles, with room for what the last part of the last window has beyond it."""
        return self.a_steps[2] + DEPTH

    @property
    def tap_steps(self) -> Ints:
        """None: there is one sum."""
        return (0,) * len(self.axes)

    def validate(self) -> None:
        """Assert what the emitter relies on; numbers beyond a window are finite, or the fallback computes all again."""
        TileByTilePlan.validate(self)

    def _validate_rows(self) -> None:
        GatheredDataPlan._validate_rows(self)
        assert self.solves_y
        assert all(axis.taps == taps for axis, taps in zip(self.axes[1:], self.problem.taps, strict=True))
        assert self.axes[-1].offset_step == 1
        assert self.i_block == self.in_channels

    def __str__(self) -> str:
        return super().__str__().replace("matrix tiles", "matrix tiles of whole windows", 1)
