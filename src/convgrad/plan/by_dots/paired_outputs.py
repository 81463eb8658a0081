"""X or Y by dot products with vectors along outputs: two channels of the input are one word, and a word is a number.

So such a plan is one for f32 of half the channels: slab, panels and tiles hold words instead of numbers.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from convgrad.plan.by_dots.dots import PAIR
from convgrad.plan.by_matrix.matrix import watched
from convgrad.plan.few_channels.folded import FoldedPlan
from convgrad.plan.general.data import DataPlan
from convgrad.problem.conv import ConvProblem, Unknown
from convgrad.values import frozen, replace

if TYPE_CHECKING:
    Words = DataPlan
else:
    Words = object


class PairedWords(Words):
    """What plans of words have in common. `problem` is `numbers` with neighbouring channels of the input as one.

    Numbers are bf16, or f32 that may be rounded. If `watch` is set, tasks look for those that dot products take for
    others, as of matrix units.
    """

    ON_UNITS = True
    BY_DOTS = True

    numbers: ConvProblem
    watch: bool
    fallback: DataPlan | None

    @property
    def odd(self) -> bool:
        """Whether the last channel of the input has no partner."""
        p = self.numbers
        return (p.x_channels if self.solves_y else p.y_channels) % PAIR == 1

    @property
    def channel_unit(self) -> int:
        """As of numbers; all at once, if the last one is special."""
        return max(1, self.in_channels) if self.odd else super().channel_unit

    def validate(self) -> None:
        """Assert what the emitter relies on."""
        super().validate()
        assert self.pixels
        assert not any((self.reads_in_place, self.reads_weights))
        assert not self.odd or self.runs == self.i_blocks == 1
        assert not self.watch or (self.fallback is not None and not self.numbers.accumulate)

    def __str__(self) -> str:
        words = super().__str__().replace("along outputs", "of pairs along outputs", 1)
        return "\n".join([words, *watched(self.fallback)])


@frozen(kw_only=True)
class PairedOutputsPlan(PairedWords, DataPlan):
    """A DataPlan along outputs, of words."""

    KIND = "by dot products, along outputs"

    numbers: ConvProblem
    watch: bool
    fallback: DataPlan | None = None

    @property
    def plain_tiles(self) -> bool:
        """Yes."""
        return True


@frozen(kw_only=True)
class PairedFoldedPlan(PairedWords, FoldedPlan):
    """A FoldedPlan, of words: phases of the innermost stride are computed side by side."""

    KIND = "by dot products, along outputs, phases at once"

    numbers: ConvProblem
    watch: bool
    fallback: DataPlan | None = None


PairedPlan = PairedOutputsPlan | PairedFoldedPlan


def paired(p: ConvProblem) -> ConvProblem:
    """With neighbouring channels of the input as one, the second of the last pair being zero if there is none."""
    group, k, c, *taps = p.w_strides
    if p.unknown is Unknown.Y:
        batch, of_group, channel, *spatial = p.x_strides
        return replace(
            p, x_channels=-(-p.x_channels // PAIR), x_strides=(batch, of_group, PAIR * channel, *spatial),
            w_strides=(group, k, PAIR * c, *taps),
        )  # fmt: skip
    batch, of_group, channel, *spatial = p.y_strides
    return replace(
        p, y_channels=-(-p.y_channels // PAIR), y_strides=(batch, of_group, PAIR * channel, *spatial),
        w_strides=(group, PAIR * k, c, *taps),
    )  # fmt: skip
