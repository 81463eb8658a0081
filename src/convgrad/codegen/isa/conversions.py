"""Numbers of 16 bits from f32 and back, in integers, for processors that have no instruction for it; nearest even."""

from __future__ import annotations

from collections.abc import Callable

from convgrad.codegen.ir import Builder
from convgrad.codegen.ir_module import Value, constant, lanes_of, like, vector_of

HIGH = -65536  # the bits of an f32 that are a bf16, and those of the second number of a word


def bfloat_to_float(b: Builder, raw: Value) -> Value:
    """Exact: the upper half."""
    wide = b.cast("zext", raw, like(raw, "i32"))
    return b.cast("bitcast", b.binary("shl", wide, constant(wide.type, 16)), like(raw, "float"))


def number_of_words(b: Builder, words: Value, *, odd: bool) -> Value:
    """The first bf16 of every word of two, or with `odd` the second, as f32."""
    operation, operand = ("and", HIGH) if odd else ("shl", 16)
    bits = b.binary(operation, words, constant(words.type, operand))
    return b.cast("bitcast", bits, like(words, "float"))


def rounded_to_bfloat(b: Builder, value: Value) -> Value:
    """Bits whose upper half is `value`, a sum of products of bf16, rounded to nearest; denormals stay what they are.

    With the lowest bit that stays or-ed to the lowest of those that go, a tie is above the half if that makes it even.
    A NaN that came of bf16, or of no NaN at all, has nothing in its lower half: nothing is added to what stays of it.
    """
    bits = b.cast("bitcast", value, like(value, "i32"))
    whole = bits.type
    odd = b.binary("and", b.binary("lshr", bits, constant(whole, 16)), constant(whole, 1))
    return b.binary("add", b.binary("or", bits, odd), constant(whole, 0x7FFF))


def float_to_bfloat(b: Builder, value: Value) -> Value:
    """The same, as numbers of 16 bits."""
    kept = rounded_to_bfloat(b, value)
    return b.cast("trunc", b.binary("lshr", kept, constant(kept.type, 16)), like(value, "i16"))


def bfloats_of_two(b: Builder, low: Value, high: Value) -> Value:
    """Two vectors, one behind the other, by the processor (AVX512_BF16): denormals as zeros, NaN as it likes."""
    lanes = 2 * lanes_of(low)
    both = b.call(vector_of(lanes, "bfloat"), f"llvm.x86.avx512bf16.cvtne2ps2bf16.{16 * lanes}", high, low)
    return b.cast("bitcast", both, vector_of(lanes, "i16"))


def half_to_float(b: Builder, raw: Value) -> Value:
    """Exact: exponent and fraction move into place, and a product with 2^112 mends the bias, subnormals included.

    They are shifted down with their sign, whose copies go. Infinities and NaNs then lack some bits of the exponent.
    """
    if not raw.type.startswith("<"):
        return _alone(b, raw, half_to_float)
    whole, number = like(raw, "i32"), like(raw, "float")
    high = b.binary("shl", b.cast("zext", raw, whole), constant(whole, 16))
    moved = b.binary("and", b.binary("ashr", high, constant(whole, 3)), constant(whole, -0x70000001))
    scaled = b.binary("fmul", b.cast("bitcast", moved, number), constant(number, 2.0**112))
    exponent = b.binary("and", moved, constant(whole, 0x0F800000))
    special = b.cast("sext", b.compare_like("eq", exponent, 0x0F800000), whole)
    missing = b.binary("and", special, constant(whole, 0x7F800000))
    return b.cast("bitcast", b.binary("or", b.cast("bitcast", scaled, whole), missing), number)


def float_to_half(b: Builder, value: Value) -> Value:
    """Round to nearest even by an addition: to a power of two so much larger that one unit of its last place is one of
    the half's, which is 2^-24 of a subnormal one.

    What is too large counts as 2^16, whose bits are those of infinity; so does a NaN, and gets its own bits back.
    """
    if not value.type.startswith("<"):
        return _alone(b, value, float_to_half)
    whole, number = like(value, "i32"), value.type
    bits = b.cast("bitcast", value, whole)
    size = b.binary("and", bits, constant(whole, 0x7FFFFFFF))
    sign = b.binary("ashr", b.binary("xor", bits, size), constant(whole, 16))
    large = constant(number, 2.0**16)
    size = b.cast("bitcast", size, number)
    size = b.select(b.compare_floats("olt", size, large), size, large)
    power = b.binary("and", b.cast("bitcast", size, whole), constant(whole, 0x7F800000))
    least, power = constant(number, 2.0**-14), b.cast("bitcast", power, number)
    power = b.cast("bitcast", b.select(b.compare_floats("ogt", power, least), power, least), whole)
    far = b.cast("bitcast", b.binary("add", power, constant(whole, 13 << 23)), number)
    units = b.binary("sub", b.cast("bitcast", b.binary("fadd", size, far), whole), power)
    bias = constant(whole, -(13 << 23) - (113 << 10))
    finite = b.binary("add", b.binary("add", units, bias), b.binary("lshr", power, constant(whole, 13)))
    payload = b.binary("or", b.binary("lshr", bits, constant(whole, 13)), constant(whole, 0x200))
    nan = b.cast("sext", b.compare_floats("uno", value, value), whole)
    nan = b.binary("and", b.binary("and", payload, constant(whole, 0x3FF)), nan)
    result = b.binary("or", b.binary("or", finite, nan), sign)
    return b.cast("trunc", result, like(value, "i16"))


def _alone(b: Builder, x: Value, converted: Callable[[Builder, Value], Value]) -> Value:
    """A single number, in a vector of its own: it would go back and forth between registers of either kind."""
    vector = vector_of(4, x.type)
    result = converted(b, b.emit(vector, f"insertelement {vector} zeroinitializer, {x}, i64 0"))
    return b.emit(result.type.split(" x ")[1][:-1], f"extractelement {result}, i64 0")
