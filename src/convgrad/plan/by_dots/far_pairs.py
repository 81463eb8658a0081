"""Weights gradients by dot products of two windows that are no neighbours in memory, with slabs of words.

One axis is folded: each window of its first half comes with one of the second, or with the next one. A word is a number
that one of them meets and the one that the other meets at the same tap, so a plan of words is one for f32 of half the
windows: no row of windows has an odd end, strides skip words, taps leave out what lies beside x, and channels that lie
side by side stay so.
"""

from __future__ import annotations

from collections.abc import Iterator
from math import gcd

from convgrad.plan.by_matrix.matrix import watched
from convgrad.plan.general.weights import WeightsPlan
from convgrad.plan.window_axes import WindowAxis, window_axes
from convgrad.problem.conv import ConvProblem, Ints
from convgrad.values import frozen


@frozen(kw_only=True)
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
        """Elements of x from what one window of a pair meets to what the other does."""
        return self.apart * self.axis.stride

    def units(self, tensor: str) -> tuple[int, int]:
        """Elements of a tensor from one that a slab holds to the next, and to its partner."""
        return (self.unit, self.partner) if tensor == "x" else (self.step, self.apart)

    def shared(self, tensor: str) -> tuple[int, int, int]:
        """Words that hold both numbers, start <= u < stop, where partners are alone before these, and all words."""
        if tensor == "y":
            return 0, self.whole_pairs, self.pairs
        return self.met()[0], self.met(self.partner)[1], self.folded.image

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


def folds(problem: ConvProblem) -> Iterator[Fold]:
    """Ways to fold one axis: pairs of a window of each half, and of neighbours.

    There are no elements between those that x has for one window and for the other, and partners are not neighbours in
    memory, as those of other pairs are.
    """
    for n, axis in enumerate(window_axes(problem)):
        half = -(-axis.windows // 2)
        for step, apart in ((1, half), (2, 1)):
            fold = Fold(number=n, axis=axis, step=step, apart=apart)
            new = axis.windows > 1 and (step, apart) != (2, half)
            if new and axis.image >= fold.partner and _apart(problem, fold):
                yield fold


def _apart(problem: ConvProblem, fold: Fold) -> bool:
    steps = (fold.units(name)[1] * of_windows(problem.strides[name])[fold.number] for name in "xy")
    return 1 not in map(abs, steps)


def of_windows(strides: Ints) -> Ints:
    """Those of the axes that windows have."""
    return (strides[0], *strides[3:])


def folded(axes: tuple[WindowAxis, ...], fold: Fold) -> tuple[WindowAxis, ...]:
    """With pairs of windows on one of them."""
    return (*axes[: fold.number], fold.folded, *axes[fold.number + 1 :])


@frozen(kw_only=True)
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

    @property
    def may_halve(self) -> bool:
        """Yes."""
        return True

    @property
    def may_end_early(self) -> bool:
        """Yes."""
        return True

    def strides_of(self, tensor: str) -> Ints:
        """Of a tensor, where the folded axis goes on by pairs, or by elements of the scale."""
        strides = list(self.problem.strides[tensor])
        strides[self.fold.number and self.fold.number + 2] *= self.fold.units(tensor)[0]  # beyond groups and channels
        return tuple(strides)

    def validate(self) -> None:
        """Assert what the emitter relies on."""
        super().validate()
        assert self.axes == folded(window_axes(self.problem), self.fold)
        assert _apart(self.problem, self.fold)
        assert not any((self.spread, self.direct, self.rows_in_place, self.lanes_in_place))
        assert not self.watch or (self.fallback is not None and not self.problem.accumulate)

    def __str__(self) -> str:
        told = f"pairs {self.fold.apart} apart on axis {self.fold.number}, lanes along"
        text = super().__str__().replace("lanes along", told, 1)
        return "\n".join([text, *watched(self.fallback)])
