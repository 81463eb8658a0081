"""Stages of plans for units that take some numbers for others: they look at what they pack, and a fallback waits."""

from __future__ import annotations

from convgrad.codegen.copies.splitting import Watch, room_for_squares
from convgrad.codegen.general.data import DataStages
from convgrad.codegen.ir import Builder
from convgrad.codegen.ir_module import Index, Value, index
from convgrad.codegen.stages import Places
from convgrad.codegen.watch.verdict import Verdict
from convgrad.plan.by_dots.dot_depthwise import DotDepthwisePlan
from convgrad.plan.by_dots.paired_outputs import PairedPlan
from convgrad.plan.by_matrix.matrix import MatrixDataPlan

Watched = MatrixDataPlan | PairedPlan | DotDepthwisePlan


class WatchedStages(DataStages):
    """What such stages add to those of a DataPlan, or of a special one, which follows in the order of bases."""

    plan: Watched  # pyright: ignore

    def __init__(self, plan: Watched):
        super().__init__(plan)
        self.verdict = Verdict(plan, self.shared_bytes, self.packing_tasks, self.tasks) if plan.watch else None
        self.watch: Watch | None = None
        self.room: Value | None = None

    @property
    def watches_pairs(self) -> bool:
        """Whether numbers are bf16 that stay as they are, two by two."""
        return True

    def _new_watch(self, b: Builder) -> Watch | None:
        return Watch(b, self.plan.lanes, bf16=self.watches_pairs) if self.verdict else None

    def _pack(
        self, b: Builder, at: Places, which: tuple[Index, Index, Index], target: Value, bias: Value | None
    ) -> None:
        """As for any DataPlan, watching the weights, in a function that does nothing else."""
        room, watch = self.room, self.watch
        self.room = room_for_squares(b, self.plan.lanes)
        self.watch = self._new_watch(b)
        super()._pack(b, at, which, target, bias)
        if self.verdict and self.watch:
            group, block, i_block = which
            if bias is not None:
                with b.when(b.compare("eq", i_block, 0)):
                    self._note_bias(b, bias, self.watch)
            panel = b.add(b.mul(b.add(b.mul(group, self.plan.lane_blocks), block), self.plan.i_blocks), i_block)
            self.verdict.note_second(b, at.shared, panel, self.watch)
        self.room, self.watch = room, watch

    def _note_bias(self, b: Builder, bias: Value, watch: Watch) -> None:
        """What sums begin with is flushed like they are; the first panel of a lane block has packed it."""
        width, lanes = self.plan.width, self.plan.lanes
        for lane in range(0, width, lanes):
            count = index(width - lane) if lane + lanes > width else None
            watch.note(b, self.isa.load(b, "f32", b.at(bias, lane, "float"), lanes, count))

    def watched_task(self, b: Builder, at: Places, task: Value) -> None:
        """As for any DataPlan, watching the input."""
        self.room = room_for_squares(b, self.plan.lanes)
        self.watch = self._new_watch(b)
        super().task(b, at, task)
        if self.verdict and self.watch:
            self.verdict.note_first(b, at.shared, task, self.watch)
