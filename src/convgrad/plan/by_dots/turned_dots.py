"""X or Y of groups of as many channels on either side by dot products, across groups, turned at the end."""

from __future__ import annotations

from math import prod

from convgrad.plan.by_dots.dots import LANES, PAIR, DotDataPlan
from convgrad.plan.general.data import DataPlan
from convgrad.plan.groups.turned_data import can_turn
from convgrad.plan.strides import row_major
from convgrad.problem.conv import Ints
from convgrad.values import frozen


@frozen(kw_only=True)
class TurnedDotPlan(DotDataPlan):
    """A `TurnedDataPlan` of pairs: a lane is two neighbouring channels, so a vector holds twice as many groups.

    Lane i of a group of C channels sums what its pair adds to outputs 2j and 2j + 1, j = i xor e, for each e: C vectors
    for an output position, which become two when those of the even and of the odd outputs are turned and added.
    The slab is as dense as the input, groups side by side. A panel is in the order (tap, even or odd outputs, e, lane,
    channel of the pair).
    """

    KIND = "by dot products across groups, turned at the end"

    @property
    def turns(self) -> int:
        """Sums of a position."""
        return self.out_channels

    @property
    def channel_unit(self) -> int:
        """They all come together."""
        return self.in_channels

    @property
    def slab_strides(self) -> tuple[Ints, int]:
        """Per axis, and of the input channel."""
        return row_major(self.slab_extent, self.slab_numbers), 1

    @property
    def slab_size(self) -> int:
        """With room for the last groups to be read by whole vectors."""
        return prod(self.slab_extent) * self.slab_numbers + PAIR * LANES

    @property
    def panel(self) -> int:
        """Packed weights of one block of lanes."""
        return self.taps * self.turns * PAIR * LANES

    def validate(self) -> None:
        """Assert what the emitter relies on."""
        DataPlan.validate(self)
        assert self.spread
        assert not self.reads_in_place
        assert self.i_blocks == 1
        assert self.width == PAIR * LANES
        assert self.pieces == len(self.products) == 1
        assert can_turn(self.in_channels, self.out_channels, LANES)
        assert not self.watch or (self.fallback is not None and not self.problem.accumulate)

    def __str__(self) -> str:
        return DotDataPlan.__str__(self).replace("dot products:", "dot products across groups, turned at the end:", 1)
