"""Weights of one channel per group from the rows of planes where they lie."""

from __future__ import annotations

from convgrad.dtypes import SIZES
from convgrad.plan.depthwise.plane_rows import BEFORE_ZEROS, windows_ahead
from convgrad.plan.depthwise.plane_weights import PlaneWeightsPlan
from convgrad.values import frozen


@frozen(kw_only=True)
class PlaneRowWeightsPlan(PlaneWeightsPlan):
    """A PlaneWeightsPlan that reads rows of x and y in place.

    Lanes beside the row are zero on both sides. Rows of x beside the image are read from zeros, of which a task has one
    row; the last windows of a block, fewer than `rows`, have a tile of their own.
    """

    KIND = "along windows, rows in place"

    pairs: bool = False  # lanes are two windows side by side, whose numbers are halves of a word

    @property
    def together(self) -> int:
        """Windows of a lane."""
        return 2 if self.pairs else 1

    def bytes_ahead(self, name: str) -> int:
        """From a row of a tensor to the one that is asked for."""
        return windows_ahead(self.problem, name, self.rows)

    @property
    def slab_bytes(self) -> int:
        """Of the row of zeros, and of what lies before it."""
        return BEFORE_ZEROS + SIZES[self.compute] * self.axes[-1].image

    def row_offsets(self, rows: int, first: int, tap_rows: int) -> dict[int, list[tuple[int, int]]]:
        """Rows of x that so many rows of windows meet at some taps: which of them, at which tap from the first on."""
        axis, found = self.axes[-2], {}
        for r in range(tap_rows):
            for j in range(rows):
                found.setdefault(axis.stride * j + axis.dilation * (first + r) - axis.low, []).append((j, r))
        return dict(sorted(found.items()))

    @property
    def column_offsets(self) -> tuple[int, ...]:
        """Of the taps of a row."""
        axis = self.axes[-1]
        return tuple(axis.dilation * tap - axis.low for tap in range(axis.taps))

    def validate(self) -> None:
        """Assert what the emitter relies on."""
        PlaneWeightsPlan.validate(self)
        assert len(self.axes) > 2
        assert self.block_grid[-1] == 1
        assert self.tap_columns == self.axes[-1].taps
        one = self.axes[-1].stride == 1 and self.axes[-1].windows % 2 == 0
        assert not self.pairs or (self.problem.dtype == "bf16" and one)

    def __str__(self) -> str:
        return self._told(f"vectors along {'pairs of ' if self.pairs else ''}windows, rows in place")
