"""W of single channels with channels side by side, by dot products of pairs of windows that are put side by side."""

from __future__ import annotations

from convgrad.plan.by_matrix.matrix import watched
from convgrad.plan.depthwise.depthwise_weights import DepthwiseWeightsPlan, Met
from convgrad.plan.general.weights import WeightsPlan
from convgrad.plan.window_axes import WindowAxis
from convgrad.values import frozen


@frozen(kw_only=True)
class DepthwiseDotsPlan(DepthwiseWeightsPlan):
    """A DepthwiseWeightsPlan whose lanes sum two neighbouring windows of a row at a time.

    Vectors of two columns are interleaved, of x for each column where a pair of windows begins at some tap, and of y
    for each pair of windows. Vectors of 32 channels make two such; numbers are looked at as they are read for the first
    of them. `fallback` computes everything again where dot products may not stand for f32 arithmetic.
    """

    KIND = "taps together, by dot products"
    ON_UNITS = True

    fallback: DepthwiseWeightsPlan | None = None

    @property
    def kind(self) -> str:
        """How vectors lie, in words."""
        return f"{self.lanes_along}, taps together, by dot products"

    @property
    def together(self) -> int:
        """Windows of a lane, and vectors of sums that are formed of one of numbers."""
        return 2

    def validate(self) -> None:
        """Assert what the emitter relies on."""
        DepthwiseWeightsPlan.validate(self)
        assert self.problem.dtype == "bf16"
        assert self.spread
        assert self.vectors % self.together == 0
        assert self.fallback is not None
        assert not self.problem.accumulate

    def __str__(self) -> str:
        text = WeightsPlan.__str__(self)
        tile = f"in place, dot products, {self.tap_rows} x {self.axes[-1].taps} taps of {self.rows} x {self.columns} "
        return "\n".join([text.replace("in place, ", tile + "windows, ", 1), *watched(self.fallback)])


def pairs_met_on(axis: WindowAxis, windows: int) -> dict[int, Met]:
    """Where the first of a pair of windows meets x, as `met_on` has it, and which pairs do at which tap."""
    found: dict[int, Met] = {}
    for r in range(axis.taps):
        for j in range(0, windows, 2):
            found.setdefault(axis.stride * j + axis.dilation * r - axis.low, []).append((j, r))
    return dict(sorted(found.items()))
