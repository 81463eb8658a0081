"""bf16 rounded by integers, three instructions a vector; the upper halves of two vectors become one."""

from __future__ import annotations

from collections.abc import Iterable

from convgrad.codegen.copies.interleave import gathered
from convgrad.codegen.ir import Builder
from convgrad.codegen.ir_module import Value, constant, lanes_of, vector_of
from convgrad.codegen.isa.base import Isa, shuffle
from convgrad.codegen.isa.conversions import HIGH, rounded_to_bfloat
from convgrad.codegen.outputs.runs import Run, order_in_turn, store_if_wanted, store_words
from convgrad.values import replace


def store_by_integers(b: Builder, isa: Isa, runs: Iterable[Run]) -> None:
    """bf16, two vectors at a time, of one run or the last of one and the first of the next."""
    waiting: Run | None = None  # whose last vector has no partner yet

    def finish(run: Run, last: Value | None) -> None:
        """All of a run: `last` is its last vector of bf16, if that became one together with another run's."""
        whole = run.vectors[: len(run.vectors) - (last is not None)]
        if whole:
            store_if_wanted(b, replace(run, vectors=whole), lambda run: store_pairs(b, isa, run))
        if last is not None:
            place = len(whole) * lanes_of(last)
            store_if_wanted(b, run, lambda run: store_words(b, isa, last, run, place))

    for run in runs:
        if run.in_turn or len(run.vectors) % 2 == 0:
            finish(run, None)
        elif waiting is None:
            waiting = run
        else:
            lanes = lanes_of(run.vectors[0])
            words = halves(b, isa, waiting.vectors[-1], run.vectors[-1])
            for n, one in enumerate((waiting, run)):
                finish(one, shuffle(b, words, words, list(range(n * lanes, (n + 1) * lanes))))
            waiting = None
    if waiting is not None:
        finish(waiting, None)


def store_pairs(b: Builder, isa: Isa, run: Run) -> None:
    """bf16 of one run, by integer arithmetic."""
    if run.numbers > 1:
        words = halves(b, isa, *run.vectors)
        store_words(b, isa, shuffle(b, words, words, order_in_turn(run)), run, 0)
        return
    if run.in_turn:
        words = [_word_of_pair(b, *run.vectors[n : n + 2]) for n in range(0, len(run.vectors), 2)]
        for number, pairs in enumerate(gathered(b, isa, words) if len(words) > 1 else words):
            numbers = b.cast("bitcast", pairs, vector_of(2 * lanes_of(pairs), "i16"))
            store_words(b, isa, numbers, run, number * lanes_of(numbers))
        return
    for n in range(0, len(run.vectors), 2):
        two = run.vectors[n : n + 2]
        words = halves(b, isa, *two) if len(two) > 1 else isa.to_bfloat(b, two[0])
        store_words(b, isa, words, run, n * lanes_of(two[0]))


def halves(b: Builder, isa: Isa, low: Value, high: Value) -> Value:
    """Both as bf16, exactly, side by side."""
    lanes = 2 * lanes_of(low)
    if isa.packs(low):
        packed = isa.packed(b, low, high)
        return shuffle(b, packed, packed, [n + q for q in (0, 8, 4, 12) for n in range(4)])
    words = [b.cast("bitcast", rounded_to_bfloat(b, value), vector_of(lanes, "i16")) for value in (low, high)]
    return shuffle(b, words[0], words[1], list(range(1, 2 * lanes, 2)))


def _word_of_pair(b: Builder, even: Value, odd: Value) -> Value:
    """Both as bf16, exactly, in a word, whose upper half the odd number has already."""
    low, high = rounded_to_bfloat(b, even), rounded_to_bfloat(b, odd)
    low = b.binary("lshr", low, constant(low.type, 16))
    return b.binary("or", low, b.binary("and", high, constant(high.type, HIGH)))
