"""Lowering of a DotsUnpackedPlan: that of a DotsInPlacePlan whose tiles make words of weights, and look at these."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from convgrad.codegen.by_dots.dot_data import DotSweep
from convgrad.codegen.by_dots.dots_in_place import KIND, DotsInPlaceStages
from convgrad.codegen.copies.panels import pack_bias
from convgrad.codegen.copies.splitting import Watch
from convgrad.codegen.ir import Builder
from convgrad.codegen.ir_module import Index, Value
from convgrad.codegen.isa.base import shuffle
from convgrad.codegen.isa.dots import LANES, PAIR, WORDS
from convgrad.codegen.loops.lanes import weights_origin, weights_steps
from convgrad.codegen.microkernels.dots import DotTile, Steps
from convgrad.codegen.microkernels.reduction import Reduction
from convgrad.codegen.stages import Places
from convgrad.codegen.watch.verdict import Verdict
from convgrad.plan.by_dots.dots_unpacked import DotsUnpackedPlan

INTERLEAVED = [lane + row * LANES for lane in range(LANES) for row in range(PAIR)]


@dataclass(frozen=True, slots=True, kw_only=True)
class UnpackedTile(DotTile):
    """A tile of dot products whose pairs of B lie in two rows, `b_step` / 2 numbers apart; `read` is given each."""

    load_row: Callable[[Value], Value]
    read: Callable[[Value], None]

    def of_b(self, b: Builder, lines: list[Value]) -> list[Value]:
        """Words of the rows at these places."""
        found = []
        for line in lines:
            rows = (self.load_row(b.at(line, row * self.b_step // PAIR, KIND)) for row in range(PAIR))
            words = shuffle(b, *rows, INTERLEAVED)
            self.read(words)
            found.append(b.cast("bitcast", words, WORDS))
        return found


class UnpackedSweep(DotSweep):
    """The one tile of a block of lanes."""

    plan: DotsUnpackedPlan
    look: Callable[[Value], None]

    def run(self) -> None:
        """With whole vectors: others may have computed some of their lanes."""
        self.vectors, self.halves = tuple(self.plan.all_vectors), frozenset()
        self.tile = self._tile(self.plan.tile)
        super().run()

    def _dots(self) -> DotTile:
        dots, dtype = super()._dots(), self.plan.problem.dtype
        return UnpackedTile(
            unit=dots.unit, rows=dots.rows, columns=list(self.vectors), b_step=PAIR * weights_steps(self.plan)[2],
            ahead=dots.ahead, load_row=lambda place: self.isa.load_bits(self.b, dtype, place, LANES),
            read=lambda words: self.look(words),
        )  # fmt: skip

    def _steps(self) -> list[Steps]:
        step = self.plan.channel_unit * weights_steps(self.plan)[2]
        parts = super()._steps()
        return [Steps(Reduction(s.axis.start, s.axis.stop, s.axis.a_step, step), s.pairs) for s in parts]


class DotsUnpackedStages(DotsInPlaceStages):
    """The stage of a DotsUnpackedPlan."""

    plan: DotsUnpackedPlan

    def __init__(self, plan: DotsUnpackedPlan):
        super().__init__(plan)
        self.verdict = Verdict(plan, self.shared_bytes, self.tasks, self.tasks) if plan.watch else None
        self.weights_watch: Watch | None = None

    def sweep(self, *args: object, **named: object) -> UnpackedSweep:  # pyright: ignore
        """Whose tile looks at weights for the task."""
        found = UnpackedSweep(*args, **named)  # pyright: ignore
        found.look = self._look_at_words
        return found

    def task(self, b: Builder, at: Places, task: Value) -> None:
        """Watching both sides."""
        self.weights_watch = self._new_watch(b)
        super().task(b, at, task)
        if self.verdict and self.weights_watch:
            self.verdict.note_second(b, at.shared, task, self.weights_watch)

    def _look_at_words(self, words: Value) -> None:
        if self.weights_watch is not None:
            self.weights_watch.note_bf16(self._b, words)

    def _unpacked(self, b: Builder, at: Places, group: Index, block: Index, i_block: Index) -> Value:
        self._b = b
        if self.plan.problem.bias:
            bias = self._own_bias(b, at)
            pack_bias(self.plan, b, at, group, block, bias)
            if self.weights_watch is not None:
                self._note_bias(b, bias, self.weights_watch)
        return b.at(at.w, weights_origin(self.plan, b, group, block, i_block), KIND)
