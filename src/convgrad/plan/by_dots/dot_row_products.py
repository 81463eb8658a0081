"""X or Y of windows that are whole images, by dot products: rows of bf16 against rows of bf16, as both lie."""

from __future__ import annotations

from convgrad.plan.by_dots.dots import PAIR, REGISTERS
from convgrad.plan.by_matrix.matrix import watched
from convgrad.plan.general.data import DataPlan
from convgrad.plan.in_place.row_products import RowProductsPlan
from convgrad.values import frozen

LOOKING = 3  # registers that are taken by looking at numbers


@frozen(kw_only=True)
class DotRowProductsPlan(RowProductsPlan):
    """A RowProductsPlan of bf16 by dot products, whose lanes are pairs of numbers of a row.

    Tasks look at all that they read, and where dot products would take numbers for what they are not, `fallback`
    computes everything again.
    """

    KIND = "along pairs of channels and taps of whole images, added at the end"
    ON_UNITS = True

    fallback: DataPlan | None = None

    @property
    def in_vector(self) -> int:
        """Two for each lane."""
        return PAIR * self.lanes

    @property
    def looks_as_it_reads(self) -> bool:
        """Whether tiles look at weights: each is read once, and there are registers for it."""
        rows = self.tile[-1]
        return self.axes[-1].count == rows and rows * self.width + rows + self.width + LOOKING <= REGISTERS

    def validate(self) -> None:
        """Assert what the emitter relies on."""
        super().validate()
        assert self.problem.dtype == "bf16"
        assert self.fallback is not None

    def __str__(self) -> str:
        text = super().__str__().replace("added at the end,", "added at the end, by dots,", 1)
        return "\n".join([text, *watched(self.fallback)])
