"""Whether the data of a call are what a matrix unit computes with as f32 arithmetic would.

Every task notes the least and the largest magnitude that it has split, and from these, when all is done, follows one
verdict for the call: a function of the data alone, whichever threads took which task. The driver asks for it.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Protocol

from convgrad.codegen.copies.splitting import LeastWatch, Watch
from convgrad.codegen.ir import Builder
from convgrad.codegen.ir_module import Index, Module, Value, constant
from convgrad.codegen.module import CALL_FIELDS, VERDICT
from convgrad.plan.by_matrix.matrix import limits_of
from convgrad.problem.conv import ConvProblem, Ints

if TYPE_CHECKING:
    from convgrad.plan.choose import Plan

_NUMBERS = 2  # of i32 per task: the least magnitude less one, and the largest


class WatchedPlan(Protocol):
    """A plan with another one that computes a call again, if data are beyond it."""

    @property
    def isa(self) -> str:
        """Of its tasks."""
        ...

    @property
    def lanes(self) -> int:
        """Of f32."""
        ...

    @property
    def grid(self) -> Ints:
        """Its tasks."""
        ...

    @property
    def problem(self) -> ConvProblem:
        """Whose numbers are looked at."""
        ...

    @property
    def fallback(self) -> Plan | None:
        """None if nothing is looked at."""
        ...


class Verdict:
    """What is known of two operands, in shared memory at `start`: of the second by `seconds` tasks, and so on.

    It is asked for `after` so many stages, or all of them; `replaces` says whether these have written results already.
    `also` says of the record of a call what else is bad.
    """

    def __init__(
        self, plan: WatchedPlan, start: int, seconds: int, firsts: int, *, after: int | None = None,
        replaces: bool = True, also: Callable[[Builder, Value], Value] | None = None,
    ):  # fmt: skip
        self._limits, self._start, self._seconds, self._firsts = limits_of(plan.problem.dtype), start, seconds, firsts
        self.fallback, self.after, self.replaces, self._also = plan.fallback, after, replaces, also

    @property
    def size(self) -> int:
        """Bytes, in whole cache lines."""
        return -(-4 * _NUMBERS * (self._seconds + self._firsts) // 64) * 64

    def note_second(self, b: Builder, shared: Value, task: Index, watch: Watch | LeastWatch) -> None:
        """At the end of a task."""
        self._note(b, shared, task, watch)

    def note_first(self, b: Builder, shared: Value, task: Index, watch: Watch | LeastWatch) -> None:
        """At the end of a task."""
        self._note(b, shared, b.add(task, self._seconds), watch)

    def emit(self, module: Module) -> None:
        """The function that a kernel with a fallback exports."""
        b = Builder(module, VERDICT, [("ptr", "call"), ("ptr", "answer")], exported=True)
        call, answer = b.arguments
        shared = b.load("ptr", b.at(call, CALL_FIELDS.index("shared"), "i64"), 8)
        bad = self._bad(b, shared)
        bad = bad if self._also is None else b.binary("or", bad, self._also(b, call))
        b.store(b.cast("zext", bad, "i64"), answer, 8)
        b.finish()

    def _bad(self, b: Builder, shared: Value) -> Value:
        """Whether pieces may have failed, when all tasks that note anything are done."""
        least, most = [], []
        for first, last in ((0, self._seconds), (self._seconds, self._seconds + self._firsts)):
            low, high = self._extremes(b, shared, first, last)
            least.append(low)
            most.append(high)
        limits = self._limits
        large = [b.compare_like("uge", high, limits.large) for high in most]
        some = [b.compare_like("ne", low, -1) for low in least]
        exponents = [b.binary("lshr", b.binary("add", low, constant("i32", 1)), constant("i32", 23)) for low in least]
        tiny = [b.compare_like("ult", exponent, limits.least) for exponent in exponents]
        failed = [b.binary("and", x, y) for x, y in zip(tiny, some, strict=True)]
        product = b.compare_like("ult", b.binary("add", *exponents), limits.least_product)
        failed.append(b.binary("and", product, b.binary("and", *some)))  # else all products are zero
        result, *others = *large, *failed
        for other in others:
            result = b.binary("or", result, other)
        return result

    def _note(self, b: Builder, shared: Value, slot: Index, watch: Watch | LeastWatch) -> None:
        for number, value in enumerate(watch.extremes(b)):
            b.store(value, self._at(b, shared, slot, number), 4)

    def _at(self, b: Builder, shared: Value, slot: Index, number: int) -> Value:
        return b.at(b.at(shared, self._start, "i8"), b.add(b.mul(slot, _NUMBERS), number), "i32")

    def _extremes(self, b: Builder, shared: Value, first: int, last: int) -> tuple[Value, Value]:
        """Over the tasks first <= task < last."""

        def merge(slot: Index, now: dict[str, Value]) -> dict[str, Value]:
            low, high = (b.load("i32", self._at(b, shared, slot, number), 4) for number in range(_NUMBERS))
            return {
                "low": b.call("i32", "llvm.umin.i32", now["low"], low),
                "high": b.call("i32", "llvm.umax.i32", now["high"], high),
            }

        start = {"low": constant("i32", -1), "high": constant("i32", 0)}
        found = b.loop(first, last, merge, carried=start, name="slot")
        return found["low"], found["high"]
