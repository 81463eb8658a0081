"""Whether the data of a call are what bf16 pieces can stand for.

Every task notes the least and the largest magnitude that it has split, and from these, when all is done, follows one
verdict for the call: a function of the data alone, whichever threads took which task.
"""

from __future__ import annotations

from convgrad.codegen.ir import Builder, Index, Value, constant
from convgrad.codegen.splitting import Watch
from convgrad.codegen.stages import Places

LARGEST = 0x7F000000  # 2^127: beyond, a rounded piece may be infinite
LEAST_EXPONENT = 25  # biased: 2^-102, whose last bit is still a normal number
LEAST_PRODUCT = 2 * 127 - 102  # sum of two biased exponents from which products, to their last bit, are normal
_NUMBERS = 2  # of i32 per task: the least magnitude less one, and the largest


class Verdict:
    """What is known of two operands, in shared memory at `start`: of the second by `seconds` tasks, and so on."""

    def __init__(self, start: int, seconds: int, firsts: int):
        self._start, self._seconds, self._firsts = start, seconds, firsts

    @property
    def size(self) -> int:
        """Bytes, in whole cache lines."""
        return -(-4 * _NUMBERS * (self._seconds + self._firsts) // 64) * 64

    def note_second(self, b: Builder, shared: Value, task: Index, watch: Watch) -> None:
        """At the end of a task."""
        self._note(b, shared, task, watch)

    def note_first(self, b: Builder, shared: Value, task: Index, watch: Watch) -> None:
        """At the end of a task."""
        self._note(b, shared, b.add(task, self._seconds), watch)

    def condition(self, b: Builder, at: Places) -> Value:
        """Whether pieces may have failed; for every task of the stage that begins now."""
        least, most = [], []
        for first, last in ((0, self._seconds), (self._seconds, self._seconds + self._firsts)):
            low, high = self._extremes(b, at.shared, first, last)
            least.append(low)
            most.append(high)
        large = [b.compare_like("uge", high, LARGEST) for high in most]
        none = [b.compare_like("eq", low, -1) for low in least]
        exponents = [b.binary("lshr", b.binary("add", low, constant("i32", 1)), constant("i32", 23)) for low in least]
        small = [b.compare_like("ult", exponent, LEAST_EXPONENT) for exponent in exponents]
        small.append(b.compare_like("ult", b.binary("add", *exponents), LEAST_PRODUCT))
        nothing = b.binary("or", *none)  # all products are zero
        failed = b.binary("or", b.binary("or", small[0], small[1]), small[2])
        failed = b.select(nothing, Value("i1", "false"), failed)
        return b.binary("or", failed, b.binary("or", *large))

    def _note(self, b: Builder, shared: Value, slot: Index, watch: Watch) -> None:
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
