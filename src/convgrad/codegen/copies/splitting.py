"""Numbers as sums of bf16 pieces, and what their splitting has met.

An f32 is three pieces, exactly: the first two are rounded to their eight bits, and what they leave over is a difference
that f32 holds exactly (Dekker, Numerische Mathematik 18, 1971). An f16 is two, exactly.
"""

from __future__ import annotations

from convgrad.codegen.ir import Builder
from convgrad.codegen.ir_module import Value, constant, like
from convgrad.codegen.isa.base import Isa
from convgrad.codegen.isa.conversions import HIGH
from convgrad.values import frozen

NOTHING = -1  # the least magnitude, less one, of zeros alone; the largest as an unsigned number


@frozen
class Pieces:
    """How numbers are split: into `count` pieces, `step` numbers apart in memory; `exact` if they hold everything.

    `room` is memory for two squares of vectors, where a loop is to take them from there: a split is many instructions.
    """

    count: int
    step: int
    exact: bool
    watch: Watch | None = None
    room: Value | None = None

    def store(self, b: Builder, isa: Isa, value: Value, dst: Value, count: Value | None) -> None:
        """All pieces of a number or a vector; with `count` only those of its first lanes."""
        if self.watch is not None:
            self.watch.note(b, value)
        if self.count == 1 and not self.exact:
            isa.store_bits(b, rounded(b, isa, value), dst, count)
            return
        for number, high in enumerate(split(b, value, self.count, self.exact)):
            isa.store_bits(b, upper(b, high), b.at(dst, number * self.step, "i16"), count)


def room_for_squares(b: Builder, lanes: int) -> Value:
    """Memory on the stack, for two; made at the start of a function."""
    return b.emit("ptr", f"alloca [{2 * lanes * lanes} x float], align 64")


def rounded(b: Builder, isa: Isa, value: Value) -> Value:
    """A number or a vector as bf16, halves to even; by the processor, which takes denormals for zeros, if it can."""
    if isa.bfloat and value.type == isa.vector("f32"):
        raw = b.call(like(value, "bfloat"), "llvm.x86.avx512bf16.cvtneps2bf16.512", value)
        return b.cast("bitcast", raw, like(value, "i16"))
    return upper(b, split(b, value, 1, exact=False)[0])


def split(b: Builder, value: Value, count: int, exact: bool) -> list[Value]:
    """Pieces as the bits of f32 whose lower half is zero, the largest first.

    Of what is exact nothing is left there by the last one, but of a number that is to be watched for.
    """
    pieces = []
    for left in reversed(range(count)):
        bits = b.cast("bitcast", value, like(value, "i32"))
        if left or not exact:
            bits = _rounded(b, bits) if left else _rounded_to_even(b, bits)
            bits = b.binary("and", bits, constant(bits.type, HIGH))
        pieces.append(bits)
        if left:
            value = b.binary("fsub", value, b.cast("bitcast", bits, value.type))
    return pieces


def pair(b: Builder, even: Value, odd: Value) -> Value:
    """Pieces side by side: the even one in the lower half of each lane."""
    return b.binary("or", b.binary("lshr", even, constant(even.type, 16)), odd)


class Watch:
    """The least and the largest magnitude, zeros apart, of all numbers that were split.

    Made at the start of a function: its state is on the stack there, and in registers once LLVM has seen it.
    """

    def __init__(self, b: Builder, lanes: int, *, bf16: bool = False):
        self._kinds = (f"<{lanes} x i32>", "i32", *([f"<{2 * lanes} x i16>"] if bf16 else []))
        self._low = [b.emit("ptr", f"alloca {kind}, align 64") for kind in self._kinds]
        self._high = [b.emit("ptr", f"alloca {kind}, align 64") for kind in self._kinds]
        for kind, low, high in zip(self._kinds, self._low, self._high, strict=True):
            b.store(constant(kind, NOTHING), low, 4)
            b.store(constant(kind, 0), high, 4)

    def note(self, b: Builder, value: Value) -> None:
        """Look at a vector of full length or at one number."""
        self._note(b, b.cast("bitcast", value, like(value, "i32")), 0x7FFFFFFF)

    def note_bf16(self, b: Builder, numbers: Value) -> None:
        """Look at twice as many bf16, as they are."""
        self._note(b, numbers, 0x7FFF)

    def _note(self, b: Builder, bits: Value, magnitude: int) -> None:
        which = self._kinds.index(bits.type)
        size = b.binary("and", bits, constant(bits.type, magnitude))
        less = b.binary("add", size, constant(bits.type, -1))  # zero becomes the largest
        suffix = "v" + bits.type[1:-1].replace(" x ", "") if which != 1 else "i32"
        for place, seen, name in ((self._low[which], less, "umin"), (self._high[which], size, "umax")):
            before = b.load(bits.type, place, 4)
            b.store(b.call(bits.type, f"llvm.{name}.{suffix}", before, seen), place, 4)

    def extremes(self, b: Builder) -> tuple[Value, Value]:
        """Bits of the least magnitude, less one, and of the largest: i32, to be compared unsigned."""
        results = []
        for places, name in ((self._low, "umin"), (self._high, "umax")):
            seen = [b.load(kind, place, 4) for kind, place in zip(self._kinds, places, strict=True)]
            whole, one, *halves = (_across(b, value, name) for value in seen)
            result = b.call("i32", f"llvm.{name}.i32", whole, one)
            for half in halves:
                result = b.call("i32", f"llvm.{name}.i32", result, _of_bf16(b, half, less=name == "umin"))
            results.append(result)
        return results[0], results[1]


class LeastWatch:
    """The least magnitude alone, zeros apart, of vectors of bf16 as they lie: two instructions for each.

    Made at the start of a function, too. Minus twice a number, in sixteen bits, has no sign, and is the larger the less
    the number is, but for zero, of which it is the least.
    """

    def __init__(self, b: Builder, lanes: int):
        self._kind, self._lanes = f"<{2 * lanes} x i16>", 2 * lanes
        self._seen = b.emit("ptr", f"alloca {self._kind}, align 64")
        b.store(constant(self._kind, 0), self._seen, 64)

    def note_bf16(self, b: Builder, numbers: Value) -> None:
        """Look at them."""
        times = b.load(self._kind, b.module.opaque(self._kind, _repeated(self._lanes, -2)), 64)
        size = b.binary("mul", numbers, times)  # LLVM would shift and subtract
        before = b.load(self._kind, self._seen, 64)
        b.store(b.call(self._kind, f"llvm.umax.v{self._lanes}i16", before, size), self._seen, 64)

    def extremes(self, b: Builder) -> tuple[Value, Value]:
        """As `Watch` has them; nothing is known of the largest."""
        most = b.cast("zext", _across(b, b.load(self._kind, self._seen, 64), "umax"), "i32")
        twice = b.binary("and", b.binary("sub", constant("i32", 0), most), constant("i32", 0xFFFF))
        bits = b.binary("shl", twice, constant("i32", 15))
        return b.binary("add", bits, constant("i32", NOTHING)), constant("i32", 0)


def _repeated(lanes: int, number: int) -> str:
    """A vector of i16, all alike."""
    return "<" + ", ".join([f"i16 {number}"] * lanes) + ">"


def _across(b: Builder, value: Value, name: str) -> Value:
    """The extreme of all lanes."""
    if not value.type.startswith("<"):
        return value
    lanes, kind = value.type[1:-1].split(" x ")
    return b.call(kind, f"llvm.vector.reduce.{name}.v{lanes}{kind}", value)


def _of_bf16(b: Builder, half: Value, *, less: bool) -> Value:
    """A magnitude of bf16 as that of the same number in f32; less one, if it is `less` one, and none stays none."""
    bits = b.cast("zext", half, "i32")
    if not less:
        return b.binary("shl", bits, constant("i32", 16))
    up = b.binary("shl", b.binary("add", bits, constant("i32", 1)), constant("i32", 16))  # of nothing: zero, in 32 bits
    return b.binary("add", up, constant("i32", -1))


def _rounded(b: Builder, bits: Value) -> Value:
    """To the upper half, halves away from zero: what is left over is exact either way."""
    return b.binary("add", bits, constant(bits.type, 0x8000))


def _rounded_to_even(b: Builder, bits: Value) -> Value:
    """To the upper half, halves to even; NaN stays NaN."""
    odd = b.binary("and", b.binary("lshr", bits, constant(bits.type, 16)), constant(bits.type, 1))
    rounded = b.binary("add", bits, b.binary("add", odd, constant(bits.type, 0x7FFF)))
    size = b.binary("and", bits, constant(bits.type, 0x7FFFFFFF))
    nan = b.compare_like("ugt", size, 0x7F800000)
    return b.select(nan, b.binary("or", bits, constant(bits.type, 0x400000)), rounded)


def upper(b: Builder, bits: Value) -> Value:
    """Of bits of f32 the half that is a bf16."""
    return b.cast("trunc", b.binary("lshr", bits, constant(bits.type, 16)), like(bits, "i16"))
