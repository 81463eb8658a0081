"""Lowering of a DotsInPlacePlan: that of a DotDataPlan that looks at the input and does not pack it."""

from __future__ import annotations

from convgrad.codegen.by_dots.dot_data import DotStages
from convgrad.codegen.copies.input_slab import channels_of
from convgrad.codegen.ir import Builder
from convgrad.codegen.ir_module import Index, Value, index
from convgrad.codegen.isa.base import STORAGE
from convgrad.codegen.isa.dots import LANES, PAIR
from convgrad.codegen.stages import Places
from convgrad.plan.by_dots.dots_in_place import DotsInPlacePlan

KIND, NUMBERS = STORAGE["bf16"], PAIR * LANES


class DotsInPlaceStages(DotStages):
    """Both stages of a DotsInPlacePlan."""

    plan: DotsInPlacePlan

    def _in_place(self, b: Builder, at: Places, block: Index) -> None:
        if self.watch is not None:
            with b.when(b.compare("eq", block, self.first)):
                self._look(b, at, 0)
        super()._in_place(b, at, block)

    def _look(self, b: Builder, at: Places, i_block: Index) -> None:
        """At all of a block of channels that the task multiplies."""
        plan, (steps, _) = self.plan, self.plan.slab_strides
        channels = channels_of(plan, b, i_block)
        first = b.add(b.mul(self.group, self.in_strides[1]), b.mul(i_block, plan.i_block))
        source = b.at(at.of(self.input), first, KIND)

        def nest(n: int, place: Value) -> None:
            if n == len(plan.axes):
                self._look_along(b, place, channels)
                return
            axis, start = plan.axes[n], self.starts[n]
            (phase,) = axis.phases
            last = b.minimum(b.add(start, plan.block[n]), axis.count)
            first = b.at(place, phase.offset * steps[n], KIND)
            step = axis.in_step * steps[n]
            b.loop(start, last, lambda i, _: nest(n + 1, b.at(first, b.mul(i, step), KIND)), name="look")

        nest(0, source)

    def _look_along(self, b: Builder, row: Value, channels: Index) -> None:
        assert self.watch is not None
        watch, dtype = self.watch, self.plan.problem.dtype
        whole = b.mul(b.floor_div(channels, NUMBERS), NUMBERS)

        def note(i: Index, count: Value | None) -> None:
            watch.note_bf16(b, self.isa.load_bits(b, dtype, b.at(row, i, KIND), NUMBERS, count))

        b.loop(0, whole, lambda i, _: note(i, None), step=NUMBERS, name="look")
        left = b.sub(channels, whole)
        if left != 0:
            with b.when(b.compare("sgt", left, 0)):
                note(whole, index(left))
