"""X or Y of groups of as many channels on either side, across groups: what lanes sum is turned at the end."""

from __future__ import annotations

from math import prod

from convgrad.plan.general.data import DataPlan
from convgrad.plan.general.data_in_place import MOST_KNOWN_PHASES
from convgrad.plan.order import MOST_SHUFFLED
from convgrad.problem.conv import ConvProblem, Unknown
from convgrad.values import frozen

MOST_TURNED = 32  # taps and weights of one, written out for each phase


@frozen(kw_only=True)
class TurnedDataPlan(DataPlan):
    """A DataPlan across groups whose lanes multiply numbers of the input as they lie: nothing is picked for each tap.

    Lane c of a group sums, for each d, what its number of the input adds to output c xor d. So an output position is a
    vector for every d until all taps are in it; then vector d is turned, lane by lane to lane c xor d, and they are
    added: C - 1 shuffles for a position, where picking takes one for each of its numbers, and often for each tap.
    """

    KIND = "across groups, turned at the end"

    @property
    def turns(self) -> int:
        """Channels of a group, which are sums of a position."""
        return self.out_channels

    @property
    def known_axes(self) -> int | None:
        """Those of few taps: sums have the same order in any case."""
        return axes_of_few_taps(self)

    def validate(self) -> None:
        """Assert what the emitter relies on."""
        DataPlan.validate(self)
        assert self.spread
        assert not self.reads_in_place
        assert self.i_blocks == 1
        assert self.width == self.lanes
        assert can_turn(self.in_channels, self.out_channels, self.lanes)

    def __str__(self) -> str:
        text = DataPlan.__str__(self)
        return text.replace("channels of several groups,", "channels of several groups, turned at the end,", 1)


def can_turn(given: int, solved: int, lanes: int) -> bool:
    """Whether vectors hold whole groups of channels that are a power of two, as many on either side."""
    return 1 < given == solved <= lanes and given & (given - 1) == 0 == lanes % given


def axes_of_few_taps(plan: DataPlan) -> int:
    """Innermost ones that are written out for each phase."""
    products = plan.in_channels
    for count, axis in enumerate(reversed(plan.axes[1:])):
        products *= axis.taps
        if products > MOST_TURNED or len(axis.phases) > MOST_KNOWN_PHASES:
            return count
    return len(plan.axes) - 1


def worth_turning(p: ConvProblem) -> bool:
    """Whether fewer instructions turn a position and add it up than would pick its numbers, whatever extents are.

    Those of a row are picked once for all taps of the innermost axis that meet them, if these can be written out.
    """
    given, phases = p.x_channels, p.stride if p.unknown is Unknown.X else (1,) * p.rank
    in_step = 1 if p.unknown is Unknown.X else p.stride[-1]
    *outer, inner = (taps / of for taps, of in zip(p.taps, phases, strict=True))
    shared = given * p.taps[-1] <= MOST_SHUFFLED
    picked = given * prod(outer) * (min(in_step, inner) if shared else inner)
    return 2 * (given - 1) <= picked
