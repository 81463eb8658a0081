"""Weights gradients of one channel per group by dot products: pairs of windows side by side, read where they lie."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import combinations

from convgrad.plan.matrix import watched
from convgrad.plan.plane_rows import PlaneRowWeightsPlan
from convgrad.plan.plane_weights import PlaneWeightsPlan
from convgrad.plan.window_axes import WindowAxis


@dataclass(frozen=True, slots=True, kw_only=True)
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
    def watched_taps(self) -> tuple[frozenset[int], frozenset[int]]:
        """Rows and columns of taps that meet all numbers of x that any tap meets: others need not look at them."""
        row, inner = (taps_that_meet_all(axis) for axis in self.axes[-2:])
        return row, inner

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


def taps_that_meet_all(axis: WindowAxis) -> frozenset[int]:
    """The fewest taps, of up to two, whose windows meet all elements of an axis that are met; else all of them."""

    def met(taps: Iterable[int]) -> set[int]:
        places = (axis.stride * p + axis.dilation * r - axis.low for r in taps for p in range(axis.windows))
        return {place for place in places if 0 <= place < axis.image}

    every = range(axis.taps)
    wanted = met(every)
    some: Iterable[Sequence[int]] = (taps for many in (1, 2) for taps in combinations(every, many))
    return frozenset(next((taps for taps in some if met(taps) == wanted), every))
