"""X or Y of one tap by dot products, channels first: planes of bf16 are read and written as they lie."""

from __future__ import annotations

from convgrad.plan.by_dots.paired_outputs import PairedWords
from convgrad.plan.by_matrix.matrix import watched
from convgrad.plan.general.data import DataPlan
from convgrad.plan.in_place.pointwise import PointwisePlan
from convgrad.problem.conv import ConvProblem
from convgrad.values import frozen


@frozen(kw_only=True)
class DotPointwisePlan(PairedWords, PointwisePlan):
    """A PointwisePlan of words, which are made in registers: unpacking interleaves two planes.

    Two vectors of the tile are 32 outputs, in the order that unpacking makes.
    """

    KIND = "by dot products, along outputs, pointwise"

    numbers: ConvProblem
    watch: bool
    fallback: DataPlan | None = None

    def validate(self) -> None:
        """Assert what the emitter relies on."""
        PointwisePlan.validate(self)
        assert self.vectors % 2 == 0
        assert self.numbers.dtype == "bf16"
        assert self.watch
        assert self.fallback is not None
        assert not self.odd or (self.in_channels > 1 and self.runs == 1)

    def __str__(self) -> str:
        return "\n".join([PointwisePlan.__str__(self), *watched(self.fallback)])
