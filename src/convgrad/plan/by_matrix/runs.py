"""Plans whose taps of the innermost axis and few channels are one run of numbers: on tiles, and by dot products."""

from __future__ import annotations

from math import prod
from typing import Any

from convgrad.plan.by_dots.dots import PAIR, DotDataPlan
from convgrad.plan.by_matrix.matrix import MatrixDataPlan
from convgrad.plan.strides import row_major
from convgrad.problem.conv import Ints
from convgrad.values import frozen

MOST_CHANNELS = 8  # for which taps and channels are one run


def all_in_a_row(plan: MatrixDataPlan) -> bool:
    """Whether the innermost axis has several taps, next to each other, of which none always falls beside the image."""
    p = plan.problem
    return p.taps[-1] > 1 == p.dilation[-1] and plan.axes[-1].taps == p.taps[-1]


class Runs:
    """What such a MatrixDataPlan, which solves for Y, has of its own: a slab as dense as the image.

    Channels lie together in it, position by position. So what the taps of the innermost axis meet is one run of
    numbers, which are summed in pairs, whatever channels they are of. What a pair, or a tile, has beyond the run meets
    weights that are zero.
    """

    @property
    def inner_taps(self: Any) -> int:
        """Of the innermost axis."""
        return self.axes[-1].taps

    @property
    def run(self: Any) -> int:
        """Numbers of the input that one output meets at a tap of the other axes."""
        return self.axes[-1].taps * self.in_channels

    @property
    def channel_unit(self: Any) -> int:
        """They all come together."""
        return self.in_channels

    @property
    def packs_pairs(self: Any) -> bool:
        """No: a pair may be of two taps."""
        return False

    @property
    def stages_weights(self: Any) -> bool:
        """Always, and all taps at once."""
        return True

    @property
    def splits_runs(self: Any) -> bool:
        """No: pairs may be of two taps."""
        return False

    @property
    def taps_staged(self: Any) -> Ints:
        """All."""
        return self.problem.taps

    @property
    def slab_strides(self: Any) -> tuple[Ints, int]:
        """Per axis, and of the input channel."""
        return row_major(self.slab_extent, self.in_channels), 1

    @property
    def slab_numbers(self: Any) -> int:
        """Per position."""
        return self.in_channels

    def validate(self: Any) -> None:
        """Assert what the emitter relies on."""
        inner = self.axes[-1]
        assert self.solves_y
        assert inner.offset_step == inner.tap_step == len(inner.phases) == 1
        assert inner.taps == self.problem.taps[-1]
        assert self.unroll == 1
        assert self.i_block == self.in_channels


@frozen(kw_only=True)
class DotRunPlan(Runs, DotDataPlan):
    """By dot products."""

    KIND = "by dot products of runs"

    @property
    def run_pairs(self) -> int:
        """The last one of an odd run meets a weight that is zero."""
        return -(-self.run // PAIR)

    @property
    def panel(self) -> int:
        """Packed weights of one block of lanes: outer taps, pairs, lanes, numbers of a pair."""
        return self.taps // self.inner_taps * self.run_pairs * PAIR * self.width

    @property
    def slab_size(self) -> int:
        """Even, with room for what an odd run reads at the end."""
        numbers = prod(self.slab_extent) * self.in_channels
        return numbers + PAIR + numbers % PAIR

    def validate(self) -> None:
        """Assert what the emitter relies on."""
        Runs.validate(self)
        self.validate_tile()

    def __str__(self) -> str:
        return DotDataPlan.__str__(self).replace("dot products", "dot products along runs of taps", 1)
