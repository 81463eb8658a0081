"""What dot products need that read bf16 where it lies: tasks look at the numbers on the way, and say what they saw."""

from __future__ import annotations

from math import prod
from typing import TYPE_CHECKING, Any

from convgrad.codegen.copies.splitting import LeastWatch
from convgrad.codegen.ir import Builder
from convgrad.codegen.ir_module import Index, Value
from convgrad.codegen.isa import ISAS
from convgrad.codegen.isa.dots import DOT_UNITS
from convgrad.codegen.module import CALL_FIELDS
from convgrad.codegen.stages import Places
from convgrad.codegen.watch.scan import any_not_finite
from convgrad.codegen.watch.verdict import Verdict, WatchedPlan
from convgrad.plan.guard import whole

if TYPE_CHECKING:

    class Tasks:
        """The stages that are mixed with."""

        shared_bytes: int

        def __init__(self, plan: Any): ...

        def task(self, b: Builder, at: Places, task: Value) -> None:
            """All of one."""
else:
    Tasks = object


class WatchedPairs(Tasks):
    """What is added to stages of vectors, which follow in the order of bases, to make them such of dot products."""

    verdict: Verdict

    def __init__(self, plan: WatchedPlan):
        self.unit = DOT_UNITS[plan.isa]()
        super().__init__(plan)
        self.watch = PairWatch(plan, self.shared_bytes)
        self.verdict = self.watch.verdict

    def task(self, b: Builder, at: Places, task: Value) -> None:
        """Watching both operands."""
        self.watch.begin(b)
        super().task(b, at, task)
        self.watch.end(b, at.shared, task)


class PairWatch:
    """The verdict on a call of a plan: of what is given the least, of what is solved for whether it is finite.

    An infinity or NaN among the numbers makes one of every sum that meets it, be it with a zero.
    """

    def __init__(self, plan: WatchedPlan, shared_bytes: int):
        self.plan, tasks = plan, prod(plan.grid)
        self.given = tuple(name for name in "xyw" if name != plan.problem.solved)
        self.verdict = Verdict(plan, shared_bytes, tasks, tasks, also=self.not_finite)
        self._watches: dict[str, LeastWatch] = {}

    def begin(self, b: Builder) -> None:
        """A task."""
        self._watches = {name: LeastWatch(b, self.plan.lanes) for name in self.given}

    def note(self, b: Builder, name: str, pairs: Value) -> None:
        """Look at numbers of what is given, as they lie."""
        if pairs.text != "zeroinitializer":
            self._watches[name].note_bf16(b, pairs)

    def of(self, name: str) -> LeastWatch:
        """What looks at numbers of x or y as they are packed."""
        return self._watches[name]

    def end(self, b: Builder, shared: Value, task: Index) -> None:
        """All that the task reads was looked at."""
        first, second = self.given
        self.verdict.note_first(b, shared, task, self._watches[first])
        self.verdict.note_second(b, shared, task, self._watches[second])

    def not_finite(self, b: Builder, call: Value) -> Value:
        """Whether a result is not."""
        p = self.plan.problem
        name = p.solved
        results = b.load("ptr", b.at(call, CALL_FIELDS.index(name), "i64"), 8)
        return any_not_finite(b, ISAS[self.plan.isa], p.out_dtype, results, [whole(p, name)])
