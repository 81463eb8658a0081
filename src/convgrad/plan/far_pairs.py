"""Weights gradients by dot products of two windows half an axis apart, with slabs of words.

One axis is folded: of its windows p the first half comes with window p + half each, at the same place of a slab. A word
is then a number for one of them and the number that the other meets there, and a plan of words is one for f32 of half
the windows: no row of windows has an odd end, strides skip words, and channels that lie side by side stay so.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from math import gcd

from convgrad.plan.matrix import watched
from convgrad.plan.weights import WeightsPlan
from convgrad.plan.window_axes import WindowAxis


@dataclass(frozen=True, slots=True, kw_only=True)
class Fold:
    """How the windows of an axis, and the elements of x that these meet, become words.

    Pair q is windows `step` · q and `step` · q + `apart`. Element u of the scale of x is what lies `unit` · u + `first`
    elements after the first that tap 0 of window 0 meets, for one window of a pair, and `partner` elements further for
    the other.
    """

    number: int  # of the axis
    axis: WindowAxis  # as it is
    step: int
    apart: int

    @property
    def pairs(self) -> int:
        """The last one may lack its second window."""
        return -(-self.axis.windows // 2)

    @property
    def whole_pairs(self) -> int:
        """Those that do not."""
        return self.axis.windows // 2

    @property
    def partner(self) -> int:
        """Elements of x."""
        return self.apart * self.axis.stride

    @property
    def unit(self) -> int:
        """Elements between which no pair meets any."""
        stride = self.step * self.axis.stride
        return gcd(stride, self.axis.dilation) if self.axis.taps > 1 else stride

    @property
    def first(self) -> int:
        """Before which x has nothing for either window."""
        return -(-max(0, self.axis.low - self.partner) // self.unit) * self.unit

    def met(self, ahead: int = 0) -> tuple[int, int]:
        """Elements of the scale, start <= u < stop, where x has something `ahead` elements further."""
        start = self.axis.low - ahead - self.first
        return -(-start // self.unit), -(-(start + self.axis.image) // self.unit)

    @property
    def folded(self) -> WindowAxis:
        """The axis of pairs."""
        axis, unit = self.axis, self.unit
        stride, dilation = self.step * axis.stride // unit, -(-axis.dilation // unit)
        reach = stride * (self.pairs - 1) + dilation * (axis.taps - 1) + 1 - self.first // unit
        image = min(self.met()[1], reach)
        return WindowAxis(self.pairs, image, axis.taps, stride, dilation, self.first // unit)


def folds(axes: tuple[WindowAxis, ...]) -> Iterator[Fold]:
    """Ways to fold one axis: pairs of a window of each half, and of neighbours.

    There are no elements between those that x has for one window and for the other.
    """
    for n, axis in enumerate(axes):
        half = -(-axis.windows // 2)
        for step, apart in ((1, half), (2, 1)):
            if axis.windows > 1 and axis.image >= apart * axis.stride and (step, apart) != (2, half):
                yield Fold(number=n, axis=axis, step=step, apart=apart)


@dataclass(frozen=True, slots=True, kw_only=True)
class FarPairsPlan(WeightsPlan):
    """A WeightsPlan of words. The folded axis counts pairs of windows, and elements of x of its scale.

    Numbers are looked at as they are packed; `fallback` computes everything again where dot products may not stand for
    f32 arithmetic.
    """

    KIND = "by dot products of windows far apart"
    ON_UNITS = True

    fold: Fold
    watch: bool
    fallback: WeightsPlan | None = None

    def validate(self) -> None:
        """Assert what the emitter relies on."""
        super(FarPairsPlan, self).validate()
        assert self.problem.dtype == "bf16"
        assert not any((self.spread, self.direct, self.rows_in_place, self.lanes_in_place))
        assert not self.watch or (self.fallback is not None and not self.problem.accumulate)

    def __str__(self) -> str:
        told = f"pairs {self.fold.apart} apart on axis {self.fold.number}, lanes along"
        text = super(FarPairsPlan, self).__str__().replace("lanes along", told, 1)
        return "\n".join([text, *watched(self.fallback)])
