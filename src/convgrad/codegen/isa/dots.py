"""Dot products of pairs of bf16, which some processors with AVX-512 have: twice as many multiply-adds as of f32.

One instruction adds to each f32 of a vector the products of two pairs, the odd ones first, as if by fma(even, even,
fma(odd, odd, total)), where denormals count as zero, in the operands and in every sum (Intel 64 and IA-32 Architectures
Software Developer's Manual, VDPBF16PS).
"""

from __future__ import annotations

from collections.abc import Sequence

from convgrad.codegen.ir import Builder
from convgrad.codegen.ir_module import Value, constant, lanes_of, like, vector_of
from convgrad.codegen.isa.base import shuffle
from convgrad.codegen.isa.conversions import float_to_bfloat, number_of_words
from convgrad.codegen.isa.halves import lower_half

LANES, PAIR = 16, 2  # f32 of a sum; bf16 that meet in one
SUMS = f"<{LANES} x float>"
WORDS = f"<{LANES} x i32>"


class DotUnit:
    """Dot products as the processor has them (AVX512_BF16)."""

    def load(self, b: Builder, address: Value, lanes: int = LANES) -> Value:
        """A pair for every lane, side by side in memory."""
        return b.load(vector_of(lanes, "i32"), address, 4)

    def splat(self, b: Builder, address: Value) -> Value:
        """One pair for all lanes."""
        one = b.emit(WORDS, f"insertelement {WORDS} poison, {b.load('i32', address, PAIR)}, i64 0")
        return b.emit(WORDS, f"shufflevector {one}, {WORDS} poison, <{LANES} x i32> zeroinitializer")

    def multiply_add(self, b: Builder, x: Value, y: Value, total: Value) -> Value:
        """total + the two products of every lane."""
        lanes = lanes_of(total)
        numbers = (b.cast("bitcast", pairs, vector_of(PAIR * lanes, "bfloat")) for pairs in (x, y))
        return b.call(total.type, f"llvm.x86.avx512bf16.dpbf16ps.{32 * lanes}", total, *numbers)

    def multiply_add_one(self, b: Builder, address: Value, y: Value, total: Value) -> Value:
        """The same of the pair at an address, for all lanes, in one instruction: LLVM would broadcast in another."""
        operands = f"ptr elementtype(i32) {address.text}, {y}, {total}"
        code = f'"vdpbf16ps $1{{1to{lanes_of(total)}}}, $2, $0", "=v,*m,v,0"'
        return b.emit(total.type, f"call {total.type} asm {code}({operands}) memory(argmem: read)")

    def narrow(self, b: Builder, sums: Sequence[Value]) -> Value:
        """One or two vectors of sums, side by side, or half of one, as bf16: rounded to nearest, denormals to zero.

        Two are assembly, since LLVM stores what it takes for bf16 into the caches whatever it is told.
        """
        if len(sums) == 1:
            (one,) = sums
            lanes = lanes_of(one)
            return b.call(vector_of(lanes, "bfloat"), f"llvm.x86.avx512bf16.cvtneps2bf16.{32 * lanes}", one)
        low, high = sums
        code = '"vcvtne2ps2bf16 $1, $2, $0", "=v,v,v"'
        return b.emit(SUMS, f"call {SUMS} asm {code}({low}, {high}) memory(none)")


class EmulatedDotUnit(DotUnit):
    """The same by f32 arithmetic, to the last bit: for tests on machines without the instruction."""

    def narrow(self, b: Builder, sums: Sequence[Value]) -> Value:
        """Vectors of sums, none of them denormal or NaN, as bf16."""
        low, *high = (float_to_bfloat(b, value) for value in sums)
        if not high:
            return low
        return b.cast("bitcast", shuffle(b, low, high[0], list(range(2 * LANES))), SUMS)

    def multiply_add_one(self, b: Builder, address: Value, y: Value, total: Value) -> Value:
        """The same of the pair at an address, for all lanes."""
        pair = self.splat(b, address)
        return self.multiply_add(b, pair if total.type == SUMS else lower_half(b, pair), y, total)

    def multiply_add(self, b: Builder, x: Value, y: Value, total: Value) -> Value:
        """total + the two products of every lane."""
        total = flushed(b, total)
        for part in ("odd", "even"):
            factors = (piece(b, pairs, part) for pairs in (x, y))
            total = flushed(b, b.call(total.type, f"llvm.fma.v{lanes_of(total)}f32", *factors, total))
        return total


def piece(b: Builder, pairs: Value, part: str) -> Value:
    """The even or the odd bf16 of every pair, as f32, denormals as zeros."""
    return flushed(b, number_of_words(b, pairs, odd=part == "odd"))


def flushed(b: Builder, value: Value) -> Value:
    """With zeros of the same sign for denormals."""
    bits = b.cast("bitcast", value, like(value, "i32"))
    tiny = b.compare_like("eq", b.binary("and", bits, constant(bits.type, 0x7F800000)), 0)
    sign = b.cast("bitcast", b.binary("and", bits, constant(bits.type, -(1 << 31))), value.type)
    return b.select(tiny, sign, value)


DOT_UNITS = {"avx512_bf16": DotUnit, "avx512_bf16_emulated": EmulatedDotUnit}
