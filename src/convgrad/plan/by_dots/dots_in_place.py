"""X or Y of one tap where channels of bf16 lie side by side: the pairs of dot products, as they are."""

from __future__ import annotations

from collections.abc import Iterator

from convgrad.plan.by_dots.dots import PAIR, DotDataPlan
from convgrad.plan.general.data import KEPT_BYTES
from convgrad.plan.general.data_in_place import writes_in_place
from convgrad.plan.kinds import as_kind
from convgrad.problem.conv import Ints
from convgrad.values import frozen, replace


@frozen(kw_only=True)
class DotsInPlacePlan(DotDataPlan):
    """A DotDataPlan of one tap whose tiles read words of two channels where they lie, and nothing is packed.

    A task looks at its numbers before the first block of lanes, which brings them to L2.
    """

    KIND = "by dot products, in place"

    @property
    def plain_tiles(self) -> bool:
        """Whether tiles may begin anywhere."""
        return True

    @property
    def fetches_slab(self) -> bool:
        """What the next task looks at, which is a stream that nothing else hides."""
        return self.problem.bytes_of(self.problem.given) > KEPT_BYTES

    @property
    def slab_strides(self) -> tuple[Ints, int]:
        """Per axis, and of a block of input channels."""
        strides = self.problem.strides[self.problem.given]
        return (strides[0], *strides[3:]), self.channel_unit

    def validate(self) -> None:
        """Assert what the emitter relies on."""
        assert self.reads_in_place
        assert self.writes_in_place
        assert self.i_blocks == 1
        self.validate_operands()

    def validate_operands(self) -> None:
        """That words lie in the input, and tiles are of rows."""
        p = self.problem
        assert self.in_channels % PAIR == 0
        assert p.dtype == "bf16"
        assert p.strides[p.given][2] == 1
        assert max(self.tile[:-1]) == 1
        self.validate_tile()


def in_place(plan: DotDataPlan) -> Iterator[DotsInPlacePlan]:
    """The plan of a row of outputs that reads what it multiplies in place, if that can be."""
    p, axes = plan.problem, plan.axes
    given, solved = p.strides[p.given], p.strides[p.solved]
    if plan.taps != 1 or p.dtype != "bf16" or plan.in_channels % PAIR or not plan.in_channels:
        return
    if not given[2] == solved[2] == 1 or plan.out_channels < plan.width or max(plan.tile[:-1]) > 1:
        return
    if any(axis.clipped or len(axis.phases) > 1 for axis in axes) or axes[-1].count < plan.tile[-1]:
        return
    i_block = -(-plan.in_channels // plan.channel_unit) * plan.channel_unit
    found = as_kind(DotsInPlacePlan, plan, reads_in_place=True, writes_in_place=True, i_block=i_block)
    if writes_in_place(found):
        yield replace(found, blocks_per_task=found.lane_blocks)
