"""Weights gradients of planes and rows that are read as they lie, by dot products of windows side by side."""

from __future__ import annotations

from convgrad.plan.by_matrix.matrix import watched
from convgrad.plan.in_place.in_place_weights import InPlaceWeightsPlan
from convgrad.plan.in_place.row_weights import RowWeightsPlan
from convgrad.values import frozen


@frozen(kw_only=True)
class InPlaceDotsPlan(InPlaceWeightsPlan):
    """An InPlaceWeightsPlan whose lanes sum two windows at a time: a vector of bf16 as it lies is sixteen pairs.

    Numbers are looked at block by block, before they are multiplied, so as to know whether dot products may stand for
    f32 arithmetic; where not, `fallback` computes everything again.
    """

    KIND = "lanes along pairs of windows, in place, by dot products"
    ON_UNITS = True

    fallback: InPlaceWeightsPlan | None = None

    @property
    def together(self) -> int:
        """Windows of a lane."""
        return 2

    def validate(self) -> None:
        """Assert what the emitter relies on."""
        InPlaceWeightsPlan.validate(self)
        can_be_summed(self)

    def __str__(self) -> str:
        return told(self, InPlaceWeightsPlan.__str__(self))


@frozen(kw_only=True)
class RowDotsPlan(RowWeightsPlan):
    """A RowWeightsPlan likewise: what windows meet is picked before it is multiplied, numbers of 16 bits at a time."""

    KIND = "lanes along pairs of windows of a row, in place, by dot products"
    ON_UNITS = True

    fallback: InPlaceWeightsPlan | None = None

    @property
    def together(self) -> int:
        """Windows of a lane."""
        return 2

    @property
    def runs_of_row(self) -> int:
        """Runs of as many vectors as the stride is long that the taps of a tile read of a row for one of windows."""
        axis = self.axes[-1]
        return len({(axis.dilation * r - axis.low) // axis.stride for r in range(self.tile_taps)})

    def validate(self) -> None:
        """Assert what the emitter relies on."""
        RowWeightsPlan.validate(self)
        can_be_summed(self)

    def __str__(self) -> str:
        return told(self, RowWeightsPlan.__str__(self))


def can_be_summed(plan: InPlaceDotsPlan | RowDotsPlan) -> None:
    """Assert that dot products may stand for the sums, and something may take over."""
    assert plan.problem.dtype == "bf16"
    assert plan.fallback is not None
    assert not plan.problem.accumulate


def told(plan: InPlaceDotsPlan | RowDotsPlan, text: str) -> str:
    """What such a plan says of itself."""
    text = text.replace("lanes along windows", "lanes along pairs of windows, dot products", 1)
    return "\n".join([text, *watched(plan.fallback)])
