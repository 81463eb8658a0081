"""Vectors of results, several at a time: how they are rounded, put in order and stored."""

from __future__ import annotations

from collections.abc import Iterable

from convgrad.codegen.copies.interleave import gathered
from convgrad.codegen.ir import Builder
from convgrad.codegen.ir_module import Value, lanes_of
from convgrad.codegen.isa.base import STORAGE, Isa, shuffle
from convgrad.codegen.isa.conversions import bfloats_of_two
from convgrad.codegen.outputs.rounded_by_integers import halves, store_by_integers
from convgrad.codegen.outputs.rounded_by_processor import store_checked, store_rounded
from convgrad.codegen.outputs.runs import (
    Run,
    left,
    order_in_turn,
    rounds,
    rounds_together,
    store_if_wanted,
    store_words,
)
from convgrad.values import replace

TOGETHER = 8  # vectors that are looked at at once, at least, if there are so many


def store_exactly(b: Builder, isa: Isa, dtype: str, runs: Iterable[Run]) -> None:
    """Round and store all of them, whatever they are; bf16 by integers."""
    if rounds_together(dtype):
        store_by_integers(b, isa, runs)
        return
    for run in runs:
        store_if_wanted(b, run, lambda run: _store_vectors(b, isa, dtype, run))


def store_runs(b: Builder, isa: Isa, dtype: str, runs: Iterable[Run]) -> None:
    """Round and store all of them, most of which are ordinary numbers."""
    if not (rounds_together(dtype) and isa.bfloat):
        store_exactly(b, isa, dtype, runs)
        return
    runs = [_here(b, run) for run in runs]
    some: list[Run] = []
    for run in runs:
        some.append(run)
        if sum(len(run.vectors) for run in some) >= TOGETHER or run is runs[-1]:
            store_checked(b, isa, some)
            some = []


def store_ordinary(b: Builder, isa: Isa, dtype: str, runs: Iterable[Run]) -> None:
    """Round and store all of them, none of which is denormal or NaN."""
    if not (rounds_together(dtype) and isa.bfloat):
        store_exactly(b, isa, dtype, runs)
        return
    waiting: Run | None = None  # whose only vector has no partner yet
    for run in runs:
        if len(run.vectors) % 2 == 0:
            store_rounded(b, isa, [run])
        elif waiting is None:
            waiting = run
        else:
            store_rounded(b, isa, [waiting, run])
            waiting = None
    if waiting is not None:
        store_rounded(b, isa, [waiting])


def stream_runs(b: Builder, isa: Isa, dtype: str, runs: Iterable[Run], *, ordinary: bool = False) -> None:
    """Round runs of an even number of vectors, and store all of them past the caches, by whole vectors.

    What is `ordinary` the processor may round in its own way.
    """
    for run in runs:
        for n in range(0, len(run.vectors), 2):
            low, high = run.vectors[n : n + 2]
            place = b.at(run.address, n * lanes_of(low), STORAGE[dtype])
            isa.stream(b, _words(b, isa, dtype, low, high, ordinary=ordinary), place)


def _here(b: Builder, run: Run) -> Run:
    """The same, whose sums are not put off until they are stored."""
    return replace(run, vectors=[b.here(vector) for vector in run.vectors])


def _store_vectors(b: Builder, isa: Isa, dtype: str, run: Run) -> None:
    """As the instruction set converts them, one by one; those in turn once they are half as long."""
    if run.numbers > 1:
        lanes = lanes_of(run.vectors[0])
        order = order_in_turn(run)
        low, high = run.vectors
        both = [shuffle(b, low, high, order[n : n + lanes]) for n in (0, lanes)]
        run = replace(run, vectors=both, in_turn=False, numbers=1)
    if run.in_turn and len(run.vectors) > 1 and rounds(dtype):
        words = _in_turn(b, [isa.rounded(b, dtype, value) for value in run.vectors])
        for number, numbers in enumerate(words):
            store_words(b, isa, numbers, run, number * lanes_of(numbers))
        return
    vectors = gathered(b, isa, list(run.vectors)) if run.in_turn else run.vectors
    for number, value in enumerate(vectors):
        place = number * lanes_of(value)
        count = left(b, run.room, place, lanes_of(value))
        if count is None or count.text != "0":
            isa.store(b, dtype, value, b.at(run.address, place, STORAGE[dtype]), count)


def _in_turn(b: Builder, parts: list[Value]) -> list[Value]:
    """Numbers of 16 bits of two or four vectors, one of each in turn, in vectors of twice as many."""
    if len(parts) > 2:
        one, other = (_in_turn(b, parts[start::2])[0] for start in range(2))
    else:
        one, other = parts
    lanes, many = lanes_of(one), lanes_of(parts[0]) * 2
    both = [place for lane in range(lanes) for place in (lane, lanes + lane)]
    return [shuffle(b, one, other, both[start : start + many]) for start in range(0, len(both), many)]


def _words(b: Builder, isa: Isa, dtype: str, low: Value, high: Value, *, ordinary: bool) -> Value:
    """The same in any type of 16 bits."""
    if rounds_together(dtype):
        return bfloats_of_two(b, low, high) if ordinary and isa.bfloat else halves(b, isa, low, high)
    first, second = (isa.rounded(b, dtype, value) for value in (low, high))
    return shuffle(b, first, second, list(range(2 * lanes_of(low))))
