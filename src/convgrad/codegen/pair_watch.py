"""What dot products need that read bf16 where it lies: a look at the numbers on the way, and what takes over."""

from __future__ import annotations

from dataclasses import replace
from math import prod

from convgrad.codegen.guard import shared_with_guard
from convgrad.codegen.ir import Builder
from convgrad.codegen.ir_module import Index, Module, Value
from convgrad.codegen.isa import ISAS
from convgrad.codegen.lower import lower
from convgrad.codegen.module import CALL_FIELDS, Fallback, KernelModule
from convgrad.codegen.plane_weights import PlaneSums
from convgrad.codegen.scan import any_not_finite
from convgrad.codegen.splitting import LeastWatch
from convgrad.codegen.verdict import Verdict
from convgrad.codegen.weights import SumsStage, emit_weights
from convgrad.plan.guard import whole
from convgrad.plan.matrix import limits_of
from convgrad.plan.plane_weights import PlaneWeightsPlan
from convgrad.plan.row_products import DotRowProductsPlan
from convgrad.plan.weights import WeightsPlan


def lower_watched(sums: SumsStage, watch: PairWatch, instead: SumsStage) -> KernelModule:
    """Sums, then weights, a verdict on what was met, and what takes over where numbers are bad."""
    module = Module()
    stages, shared, scratch = emit_weights(module, sums)
    kernel = KernelModule(ir="", stages=stages, shared_bytes=shared, scratch_bytes=scratch)
    return watch.complete(module, kernel, instead)


class PairWatch:
    """The verdict on a call of a plan: of what is given the least, of what is solved for whether it is finite.

    An infinity or NaN among the numbers makes one of every sum that meets it, be it with a zero.
    """

    def __init__(self, plan: WeightsPlan | PlaneWeightsPlan | DotRowProductsPlan, shared_bytes: int):
        self.plan, tasks = plan, prod(plan.grid)
        self.given = tuple(name for name in "xyw" if name != plan.problem.unknown.value)
        self.verdict = Verdict(limits_of(plan.problem.dtype), shared_bytes, tasks, tasks)
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

    def complete(self, module: Module, kernel: KernelModule, instead: SumsStage | PlaneSums) -> KernelModule:
        """The kernel of the plan with its verdict, after all stages, and another one of f32 that takes over."""
        self.verdict.emit(module, self.not_finite)
        plan = instead.plan
        fallback = Fallback(
            after=len(kernel.stages), replaces=True, most_tasks=max(prod(plan.grid), instead.finish_tasks),
            shared_bytes=shared_with_guard(plan, instead.shared_bytes), scratch_bytes=instead.scratch_bytes,
            lower=lambda: lower(plan),
        )  # fmt: skip
        shared = kernel.shared_bytes + self.verdict.size
        return replace(kernel, ir=str(module), shared_bytes=shared, fallback=fallback)

    def not_finite(self, b: Builder, call: Value) -> Value:
        """Whether a result is not."""
        p = self.plan.problem
        name = p.unknown.value
        results = b.load("ptr", b.at(call, CALL_FIELDS.index(name), "i64"), 8)
        return any_not_finite(b, ISAS[self.plan.isa], p.out_dtype, results, [whole(p, name)])
