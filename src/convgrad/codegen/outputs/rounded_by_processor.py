"""bf16 that the processor rounds: two vectors by one instruction, which takes denormals for zeros and leaves of a NaN
what it likes.

So all that it makes is looked at before it is stored, three instructions for two vectors: where a result is zero or NaN
the sums are looked at, too, and a NaN or a denormal sends all of them the long way.
"""

from __future__ import annotations

from collections.abc import Sequence

from convgrad.codegen.ir import Builder
from convgrad.codegen.ir_module import Value, constant, lanes_of, vector_of
from convgrad.codegen.isa.base import Isa, shuffle
from convgrad.codegen.isa.conversions import bfloats_of_two
from convgrad.codegen.outputs.rounded_by_integers import store_pairs
from convgrad.codegen.outputs.runs import Run, order_in_turn, store_if_wanted, store_words

UNLIKE = 0x01 | 0x20 | 0x80  # quiet NaN, denormal, signalling NaN (Intel 64 and IA-32 manual, VFPCLASSPS)


def store_checked(b: Builder, isa: Isa, runs: list[Run]) -> None:
    """By the processor's own rounding, if it means the same."""
    sums = [value for run in runs for value in run.vectors]
    ends = [(n, min(n + 1, len(sums) - 1)) for n in range(0, len(sums), 2)]
    pairs = [bfloats_of_two(b, sums[one], sums[other]) for one, other in ends]
    stored = [lanes for run in runs for lanes in _stored_lanes(run)]
    both = [stored[one] + stored[other] for one, other in ends]
    (special,) = b.one_of(
        _any_zero_or_nan(b, pairs, both), lambda: [_any_unlike(b, sums)], lambda: [Value("i1", "false")]
    )  # fmt: skip
    lanes = lanes_of(sums[0])
    parts = [(pair, half * lanes) for pair in pairs for half in range(2)]

    def fast() -> None:
        first = 0
        for run in runs:
            mine = parts[first : first + len(run.vectors)]
            first += len(run.vectors)
            store_if_wanted(b, run, lambda run, mine=mine: _store_halves(b, isa, run, mine))

    def exactly() -> None:
        for run in runs:
            store_if_wanted(b, run, lambda run: store_pairs(b, isa, run))

    b.either(special, exactly, fast)


def store_rounded(b: Builder, isa: Isa, runs: Sequence[Run]) -> None:
    """Runs of which no sum is denormal or NaN."""
    parts = _rounded_parts(b, [value for run in runs for value in run.vectors])
    for run in runs:
        mine, parts = parts[: len(run.vectors)], parts[len(run.vectors) :]
        store_if_wanted(b, run, lambda run, mine=mine: _store_halves(b, isa, run, mine))


def _store_halves(b: Builder, isa: Isa, run: Run, parts: Sequence[tuple[Value, int]]) -> None:
    """Halves of rounded pairs, each by the lane with which it begins; in order, and two at a time."""
    lanes = lanes_of(run.vectors[0])
    places = [(pair, start + lane) for pair, start in parts for lane in range(lanes)]
    if run.in_turn:
        places = [places[n] for n in order_in_turn(run)]
    for first in range(0, len(places), 2 * lanes):
        wanted = places[first : first + 2 * lanes]
        one, other = wanted[0][0], wanted[-1][0]
        order = [lane + (0 if pair is one else 2 * lanes) for pair, lane in wanted]
        words = one if order == list(range(2 * lanes)) else shuffle(b, one, other, order)
        store_words(b, isa, words, run, first)


def _rounded_parts(b: Builder, sums: Sequence[Value]) -> list[tuple[Value, int]]:
    """Of each vector the pair that holds it, and the lane with which it begins there."""
    lanes, found = lanes_of(sums[0]), []
    for n in range(0, len(sums), 2):
        pair = bfloats_of_two(b, sums[n], sums[min(n + 1, len(sums) - 1)])
        found += [(pair, half * lanes) for half in range(2)]
    return found[: len(sums)]


def _stored_lanes(run: Run) -> list[list[bool]]:
    """Of each vector the lanes that are stored, as far as is known: the others are often zero."""
    many, lanes = len(run.vectors), lanes_of(run.vectors[0])
    room = run.room if isinstance(run.room, int) else many * lanes
    order = order_in_turn(run) if run.in_turn else range(many * lanes)
    stored = set(order[:room])
    return [[v * lanes + lane in stored for lane in range(lanes)] for v in range(many)]


def _any_zero_or_nan(b: Builder, words: Sequence[Value], stored: Sequence[list[bool]]) -> Value:
    """Of bf16 in lanes that are stored: without its sign, and less one, such a number is above that of infinity."""
    largest: Value | None = None
    for numbers, lanes in zip(words, stored, strict=True):
        size = b.binary("add", b.binary("add", numbers, numbers), constant(numbers.type, -1))
        if not all(lanes):
            mask = "<" + ", ".join(f"i16 {-int(one)}" for one in lanes) + ">"
            size = b.binary("and", size, Value(size.type, mask))
        largest = size if largest is None else b.call(size.type, f"llvm.umax.v{lanes_of(size)}i16", largest, size)
    assert largest is not None
    return _any(b, b.compare_like("ugt", largest, 2 * 0x7F80 - 1))


def _any_unlike(b: Builder, sums: Sequence[Value]) -> Value:
    """Whether any lane holds a number that the processor rounds in its own way."""
    found: Value | None = None
    for value in sums:
        lanes = lanes_of(value)
        name = f"llvm.x86.avx512.fpclass.ps.{32 * lanes}"
        unlike = b.call(vector_of(lanes, "i1"), name, value, Value("i32", str(UNLIKE)))
        found = unlike if found is None else b.binary("or", found, unlike)
    assert found is not None
    return _any(b, found)


def _any(b: Builder, lanes: Value) -> Value:
    return b.emit("i1", f"icmp ne {b.cast('bitcast', lanes, f'i{lanes_of(lanes)}')}, 0")
