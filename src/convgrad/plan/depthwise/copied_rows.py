"""X or Y of one channel per group, channels side by side, from copies of the rows that a task reads."""

from __future__ import annotations

from convgrad.dtypes import SIZES
from convgrad.plan.costs import LINE
from convgrad.plan.depthwise.depthwise_data import DepthwiseDataPlan
from convgrad.plan.general.room import Room
from convgrad.problem.conv import Ints
from convgrad.values import frozen


@frozen(kw_only=True)
class CopiedRowsPlan(DepthwiseDataPlan):
    """A DepthwiseDataPlan whose tasks copy what they read, since positions of the image share few places of L1.

    Positions a power of two apart do: what a tile reads of one row drives out what it reads of the next. Copies lie an
    odd number of lines apart. A task has rows of one image, and some of its channels.
    """

    KIND = "across groups, rows copied"

    @property
    def met_rows(self) -> tuple[int, int]:
        """The first and the last row of the input that a tile meets, from where its first one is."""
        places = [place for place, _ in self.row_steps]
        return min(places), max(places)

    @property
    def copied_rows(self) -> int:
        """Of a task, at most."""
        first, last = self.met_rows
        return min(self.rows.in_extent, (self.block[-2] - self.tile[-2]) * self.rows.in_step + last - first + 1)

    @property
    def pitch(self) -> int:
        """Numbers from a position of a copy to the next."""
        size = SIZES[self.problem.dtype]
        lines = -(-self.blocks_per_task * self.width * size // LINE)
        return (lines + (lines + 1) % 2) * LINE // size

    @property
    def copied_size(self) -> int:
        """Numbers that a task copies."""
        return self.copied_rows * self.columns.in_extent * self.pitch

    @property
    def slab_strides(self) -> tuple[Ints, int]:
        """Of the copy; an image has its own."""
        return (0, self.columns.in_extent * self.pitch, self.pitch), 1

    @property
    def work_bytes(self) -> Room:
        """With the copy."""
        shared, own = super().work_bytes
        return shared, own + SIZES[self.problem.dtype] * self.copied_size

    def validate(self) -> None:
        """Assert what the emitter relies on."""
        super().validate()
        assert len(self.axes) == 3
        assert self.block[-2] % self.tile[-2] == 0
