"""Lowering of a DotsUnpackedPlan: that of a DotsInPlacePlan whose tiles make words of weights, and look at these."""

from __future__ import annotations

from typing import Any

from convgrad.codegen.by_dots.dot_data import DotSweep
from convgrad.codegen.by_dots.dots_in_place import KIND, DotsInPlaceStages
from convgrad.codegen.copies.panels import pack_bias
from convgrad.codegen.copies.splitting import Watch
from convgrad.codegen.ir import Builder
from convgrad.codegen.ir_module import Index, Value
from convgrad.codegen.isa.base import Isa, shuffle
from convgrad.codegen.isa.dots import LANES, PAIR, WORDS
from convgrad.codegen.loops.lanes import weights_origin, weights_steps
from convgrad.codegen.microkernels.dots import DotTile, Steps
from convgrad.codegen.microkernels.reduction import Reduction
from convgrad.codegen.stages import Places
from convgrad.codegen.watch.verdict import Verdict
from convgrad.plan.by_dots.dots_unpacked import DotsUnpackedPlan
from convgrad.values import frozen

TOGETHER = 2  # vectors, whose numbers of a row are one


@frozen(kw_only=True)
class UnpackedTile(DotTile):
    """A tile of dot products whose pairs of B lie in two rows, `b_step` / 2 numbers apart, and are looked at."""

    isa: Isa
    watch: Watch | None

    def row_of(self, b: Builder, line: Value, row: int) -> Value:
        """Where one of two begins."""
        return b.at(line, row * self.b_step // PAIR, KIND)

    def of_b(self, b: Builder, lines: list[Value]) -> list[Value]:
        """Words of the rows at these places, of two vectors side by side or one."""
        found = []
        for first in range(0, len(lines), TOGETHER):
            many = len(lines[first : first + TOGETHER])
            even, odd = (
                self.isa.load_bits(b, "bf16", self.row_of(b, lines[first], row), many * LANES) for row in range(PAIR)
            )  # fmt: skip
            for n in range(many):
                words = shuffle(b, even, odd, interleaved(n * LANES, many * LANES))
                if self.watch is not None:
                    self.watch.note_bf16(b, words)
                found.append(b.cast("bitcast", words, WORDS))
        return found


def interleaved(first: int, count: int) -> list[int]:
    """Of two vectors of so many numbers, a vector of each in turn."""
    return [first + lane + row * count for lane in range(LANES) for row in range(PAIR)]


class UnpackedSweep(DotSweep):
    """The few tiles of a block of lanes."""

    plan: DotsUnpackedPlan
    watch: Watch | None = None

    def run(self) -> None:
        """With whole vectors: others may have computed some of their lanes."""
        self.vectors, self.halves = tuple(self.plan.all_vectors), frozenset()
        self.tile = self._tile(self.plan.tile)
        super().run()

    def _dots(self) -> DotTile:
        dots = super()._dots()
        return UnpackedTile(
            unit=dots.unit, rows=dots.rows, columns=list(self.vectors), b_step=PAIR * weights_steps(self.plan)[2],
            ahead=dots.ahead, isa=self.isa, watch=self.watch,
        )  # fmt: skip

    def _steps(self) -> list[Steps]:
        step = self.plan.channel_unit * weights_steps(self.plan)[2]
        axes = ((steps.axis, steps.pairs) for steps in super()._steps())
        return [Steps(Reduction(axis.start, axis.stop, axis.a_step, step), pairs) for axis, pairs in axes]


class DotsUnpackedStages(DotsInPlaceStages):
    """The stage of a DotsUnpackedPlan."""

    plan: DotsUnpackedPlan

    def __init__(self, plan: DotsUnpackedPlan):
        super().__init__(plan)
        self.verdict = Verdict(plan, self.shared_bytes, self.tasks, self.tasks) if plan.watch else None
        self.weights_watch: Watch | None = None

    def sweep(self, *arguments: Any, **named: Any) -> UnpackedSweep:  # pyright: ignore[reportIncompatibleVariableOverride]
        """Whose tiles look at weights for the task."""
        found = UnpackedSweep(*arguments, **named)
        found.watch = self.weights_watch
        return found

    def task(self, b: Builder, at: Places, task: Value) -> None:
        """Watching both sides."""
        self.weights_watch = self._new_watch(b)
        super().task(b, at, task)
        if self.verdict and self.weights_watch:
            self.verdict.note_second(b, at.shared, task, self.weights_watch)

    def _pack_slab(self, b: Builder, at: Places, slab: Value, i_block: Index) -> None:
        """Nothing is packed, but looked at, before all blocks of lanes."""
        if self.watch is not None:
            self._look(b, at, i_block)

    def _sweep(
        self, b: Builder, at: Places, slab: Value, results: Value, block: Index, i_block: Index, fresh: bool | Value
    ) -> None:  # fmt: skip
        """Of a block of channels where they lie."""
        if self.plan.i_blocks > 1:
            first = b.add(b.mul(self.group, self.in_strides[1]), b.mul(i_block, self.plan.i_block))
            slab = b.at(at.of(self.input), first, KIND)
        super()._sweep(b, at, slab, results, block, i_block, fresh)

    def _unpacked(self, b: Builder, at: Places, group: Index, block: Index, i_block: Index) -> Value:
        if self.plan.problem.bias:
            bias = self._own_bias(b, at)
            pack_bias(self.plan, b, at, group, block, bias)
            if self.weights_watch is not None:
                self._note_bias(b, bias, self.weights_watch)
        return b.at(at.w, weights_origin(self.plan, b, group, block, i_block), KIND)
