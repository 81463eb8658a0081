"""Weights gradients of one channel per group by dot products: pairs of windows side by side, read where they lie."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from itertools import combinations

from convgrad.plan.by_matrix.matrix import watched
from convgrad.plan.depthwise.plane_row_weights import PlaneRowWeightsPlan
from convgrad.plan.depthwise.plane_weights import PlaneWeightsPlan
from convgrad.plan.window_axes import WindowAxis
from convgrad.values import frozen


@frozen(kw_only=True)
class PlaneDotsPlan(PlaneRowWeightsPlan):
    """A PlaneRowWeightsPlan whose lanes sum two windows at a time: a vector of bf16 as it lies is sixteen pairs.

    Numbers are looked at as they are met, so as to know whether dot products may stand for f32 arithmetic; where not,
    `fallback` computes everything again. Rows may end with half a pair, of which y is zero.
    """

    KIND = "along windows, rows in place, by dot products"
    ON_UNITS = True

    fallback: PlaneWeightsPlan | None = None

    @property
    def together(self) -> int:
        """Windows of a lane."""
        return 2

    @property
    def row_pairs(self) -> int:
        """Of windows of a row."""
        return -(-self.axes[-1].windows // self.together)

    @property
    def watched_rows(self) -> frozenset[int]:
        """Of taps, that meet all rows of x that any meets: the others need not look at them."""
        axis = self.axes[-2]
        return enough([axis.dilation * r - axis.low for r in range(axis.taps)], axis, 1)

    @property
    def watched_bases(self) -> frozenset[int]:
        """Places from which on a row is read for the first window, such that all is read that is met."""
        axis = self.axes[-1]
        bases = sorted({offset // axis.stride * axis.stride for offset in self.column_offsets})
        return frozenset(bases[n] for n in enough(bases, axis, axis.stride))

    def validate(self) -> None:
        """Assert what the emitter relies on."""
        PlaneWeightsPlan.validate(self)
        assert self.problem.dtype == "bf16"
        assert self.fallback is not None
        assert not self.problem.accumulate
        assert len(self.axes) > 2
        assert self.block_grid[-1] == 1
        assert self.tap_columns == self.axes[-1].taps
        assert not self.pairs

    def __str__(self) -> str:
        told = self._told("vectors along pairs of windows, rows in place, dot products")
        return "\n".join([told, *watched(self.fallback)])


def enough(offsets: Sequence[int], axis: WindowAxis, length: int) -> frozenset[int]:
    """Numbers of the fewest offsets, if two or one will do, from which windows read what they read from all of them.

    Each reads so many elements.
    """

    def read(some: Iterable[int]) -> set[int]:
        starts = (axis.stride * p + offsets[n] for n in some for p in range(axis.windows))
        return {place for start in starts for place in range(max(0, start), min(start + length, axis.image))}

    every = range(len(offsets))
    wanted = read(every)
    subsets = (some for many in (1, 2) for some in combinations(every, many))
    return frozenset(next((some for some in subsets if read(some) == wanted), every))
