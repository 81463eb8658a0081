"""Numbers of 16 bits from f32 and back, in integers, for processors that have no instruction for it; nearest even."""

from __future__ import annotations

from convgrad.codegen.ir import Builder
from convgrad.codegen.ir_module import Value, constant, lanes_of, vector_of

HIGH = -65536  # the bits of an f32 that are a bf16, and those of the second number of a word


def like(x: Value, kind: str) -> str:
    """The type with the lanes of x."""
    return vector_of(lanes_of(x), kind) if x.type.startswith("<") else kind


def bfloat_to_float(b: Builder, raw: Value) -> Value:
    """Exact: the upper half."""
    wide = b.cast("zext", raw, like(raw, "i32"))
    return b.cast("bitcast", b.binary("shl", wide, constant(wide.type, 16)), like(raw, "float"))


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
    """Exact: exponent and fraction move into place, and a product with 2^112 mends the bias, subnormals included."""
    whole = like(raw, "i32")
    bits = b.cast("zext", raw, whole)
    sign = b.binary("shl", b.binary("and", bits, constant(whole, 0x8000)), constant(whole, 16))
    body = b.binary("shl", b.binary("and", bits, constant(whole, 0x7FFF)), constant(whole, 13))
    number = like(raw, "float")
    scaled = b.binary("fmul", b.cast("bitcast", body, number), constant(number, 2.0**112))
    special = b.compare_like("uge", body, 0x0F800000)
    finite = b.cast("bitcast", scaled, whole)
    mended = b.select(special, b.binary("or", body, constant(whole, 0x7F800000)), finite)
    return b.cast("bitcast", b.binary("or", mended, sign), number)


def float_to_half(b: Builder, value: Value) -> Value:
    """Round to nearest even by integers; subnormal results by the rounding of an addition of 0.5."""
    whole, number = like(value, "i32"), value.type
    bits = b.cast("bitcast", value, whole)
    sign = b.binary("and", bits, constant(whole, 0x80000000 - (1 << 32)))
    size = b.binary("xor", bits, sign)
    odd = b.binary("and", b.binary("lshr", size, constant(whole, 13)), constant(whole, 1))
    bias = constant(whole, 0xFFF - (112 << 23))
    normal = b.binary("lshr", b.binary("add", size, b.binary("add", odd, bias)), constant(whole, 13))
    tiny = b.binary("fadd", b.cast("bitcast", size, number), constant(number, 0.5))
    subnormal = b.binary("sub", b.cast("bitcast", tiny, whole), constant(whole, 0x3F000000))
    finite = b.select(b.compare_like("ult", size, 0x38800000), subnormal, normal)
    nan = b.compare_like("ugt", size, 0x7F800000)
    payload = b.binary("or", b.binary("and", b.binary("lshr", size, constant(whole, 13)), constant(whole, 0x3FF)),
                       constant(whole, 0x7E00))  # fmt: skip
    large = b.select(nan, payload, constant(whole, 0x7C00))
    result = b.select(b.compare_like("uge", size, 0x477FF000), large, finite)
    return b.cast("trunc", b.binary("or", result, b.binary("lshr", sign, constant(whole, 16))), like(value, "i16"))
