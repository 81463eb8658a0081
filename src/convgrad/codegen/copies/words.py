"""Words of 32 bits, of two bf16 each, and the vectors of numbers that they are made of."""

from __future__ import annotations

from convgrad.codegen.copies.splitting import pair, rounded, split
from convgrad.codegen.ir import Builder
from convgrad.codegen.ir_module import Index, Value, index, lanes_of, vector_of
from convgrad.codegen.isa.base import Isa, first_lanes, shuffle
from convgrad.codegen.isa.conversions import bfloats_of_two
from convgrad.plan.by_matrix.matrix import MatrixDataPlan
from convgrad.plan.by_matrix.matrix_weights import MatrixWeightsPlan

PAIR = 2


def load_bf16(b: Builder, isa: Isa, address: Value, lanes: int, count: Index | None) -> Value:
    """Numbers as they are; zeros beyond the first `count`."""
    kind = vector_of(lanes, "i16")
    if count is None:
        return b.load(kind, address, PAIR)
    return isa.load_masked(b, kind, address, PAIR, first_lanes(b, lanes, index(count)))


def concatenated(b: Builder, low: Value, high: Value) -> Value:
    """Both, one behind the other."""
    return shuffle(b, low, high, list(range(2 * lanes_of(low))))


def rounded_pair(b: Builder, isa: Isa, low: Value, high: Value) -> Value:
    """Two vectors of f32, one behind the other, as bf16."""
    if isa.bfloat and low.type == isa.vector("f32"):
        return bfloats_of_two(b, low, high)
    return concatenated(b, rounded(b, isa, low), rounded(b, isa, high))


def words_of_f32(b: Builder, isa: Isa, even: Value, odd: Value) -> Value:
    """Numbers, or vectors of them, rounded to bf16 and put side by side."""
    if not (isa.bfloat and even.type == isa.vector("f32")):
        return pair(b, *(split(b, value, 1, exact=False)[0] for value in (even, odd)))
    both, lanes = rounded_pair(b, isa, even, odd), lanes_of(even)
    words = shuffle(b, both, both, [lane + n * lanes for lane in range(lanes) for n in range(PAIR)])
    return b.cast("bitcast", words, vector_of(lanes, "i32"))


def moves_pairs(plan: MatrixDataPlan | MatrixWeightsPlan) -> bool:
    """Whether a number is one bf16: as it is, or rounded as it is moved."""
    return plan.pieces == 1
