"""Weights gradients of planes that are alike, read as they lie, by dot products of windows side by side."""

from __future__ import annotations

from dataclasses import dataclass

from convgrad.plan.in_place_weights import InPlaceWeightsPlan
from convgrad.plan.matrix import watched


@dataclass(frozen=True, slots=True, kw_only=True)
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
        assert self.problem.dtype == "bf16"
        assert self.fallback is not None
        assert not self.problem.accumulate

    def __str__(self) -> str:
        text = InPlaceWeightsPlan.__str__(self).replace("lanes along windows", "lanes along pairs of windows", 1)
        return "\n".join([text, *watched(self.fallback)])
