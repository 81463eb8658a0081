"""Vectors of results, several at a time: how they are rounded to 16 bits, put in order and stored.

bf16 is rounded by integers, three instructions a vector, and the upper halves of two vectors become one. Where the
processor rounds, it does so in one for two vectors, but takes denormals for zeros and leaves of a NaN what it likes. So
all that it makes is looked at before it is stored, three instructions for two vectors: where a result is zero or NaN
the sums are looked at, too, and a NaN or a denormal sends all of them the long way.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace

from convgrad.codegen.copies.interleave import gathered
from convgrad.codegen.ir import Builder
from convgrad.codegen.ir_module import Index, Value, constant, index, lanes_of, vector_of
from convgrad.codegen.isa.base import STORAGE, Isa, shuffle
from convgrad.codegen.isa.conversions import bfloats_of_two, rounded_to_bfloat
from convgrad.dtypes import COMPUTE

IN_TURN = (1, 2, 4)  # vectors of a run
TOGETHER = 8  # vectors that are looked at at once, at least, if there are so many
UNLIKE = 0x01 | 0x20 | 0x80  # quiet NaN, denormal, signalling NaN (Intel 64 and IA-32 manual, VFPCLASSPS)


@dataclass(frozen=True, slots=True)
class Run:
    """Results side by side in memory: vectors one after the other or, `in_turn`, a number of each in turn.

    There may be any number of the former, and as many of the latter as `IN_TURN` says, two of which may have some
    `numbers` in turn. With `parts` equal parts of
    the run lie at an address each, where `room` is that of each; of such runs all vectors are rounded without a look.
    """

    vectors: Sequence[Value]
    address: Value
    room: Index | None = None  # how many are stored; None: all of them
    in_turn: bool = False
    wanted: Value | None = None  # an i1, whether the run is stored at all
    parts: Sequence[Value] = ()
    numbers: int = 1


def rounds_together(dtype: str) -> bool:
    """Whether vectors that are stored together take less than one by one."""
    return dtype == "bf16"


def rounds(dtype: str) -> bool:
    """Whether results are shorter than their sums."""
    return dtype != COMPUTE[dtype]


def store_exactly(b: Builder, isa: Isa, dtype: str, runs: Iterable[Run]) -> None:
    """Round and store all of them, whatever they are; bf16 by integers."""
    if rounds_together(dtype):
        _store_by_integers(b, isa, runs)
        return
    for run in runs:
        _store(b, run, lambda run: _store_vectors(b, isa, dtype, run))


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
            _store_checked(b, isa, some)
            some = []


def store_ordinary(b: Builder, isa: Isa, dtype: str, runs: Iterable[Run]) -> None:
    """Round and store all of them, none of which is denormal or NaN."""
    if not (rounds_together(dtype) and isa.bfloat):
        store_exactly(b, isa, dtype, runs)
        return
    waiting: Run | None = None  # whose only vector has no partner yet
    for run in runs:
        if len(run.vectors) % 2 == 0:
            _store_rounded_alone(b, isa, [run])
        elif waiting is None:
            waiting = run
        else:
            _store_rounded_alone(b, isa, [waiting, run])
            waiting = None
    if waiting is not None:
        _store_rounded_alone(b, isa, [waiting])


def _store_rounded_alone(b: Builder, isa: Isa, runs: Sequence[Run]) -> None:
    parts = _rounded_parts(b, [value for run in runs for value in run.vectors])
    for run in runs:
        mine, parts = parts[: len(run.vectors)], parts[len(run.vectors) :]
        _store(b, run, lambda run, mine=mine: _store_rounded(b, isa, run, mine))


def stream_runs(b: Builder, isa: Isa, dtype: str, runs: Iterable[Run]) -> None:
    """Round runs of an even number of vectors, and store all of them past the caches, by whole vectors."""
    for run in runs:
        for n in range(0, len(run.vectors), 2):
            low, high = run.vectors[n : n + 2]
            place = b.at(run.address, n * lanes_of(low), STORAGE[dtype])
            isa.stream(b, _words(b, isa, dtype, low, high), place)


def _here(b: Builder, run: Run) -> Run:
    """The same, whose sums LLVM may not put off until they are stored: it spills what they are made of."""
    vectors = [b.emit(x.type, f'call {x.type} asm sideeffect "", "=v,0"({x})') for x in run.vectors]
    return replace(run, vectors=vectors)


def _store(b: Builder, run: Run, store: Callable[[Run], None]) -> None:
    """If it is wanted."""
    if run.wanted is None:
        store(run)
    else:
        with b.when(run.wanted):
            store(run)


def _store_vectors(b: Builder, isa: Isa, dtype: str, run: Run) -> None:
    """As the instruction set converts them, one by one; those in turn once they are half as long."""
    if run.numbers > 1:
        lanes = lanes_of(run.vectors[0])
        order = _order_in_turn(run)
        low, high = run.vectors
        both = [shuffle(b, low, high, order[n : n + lanes]) for n in (0, lanes)]
        run = replace(run, vectors=both, in_turn=False, numbers=1)
    if run.in_turn and len(run.vectors) > 1 and rounds(dtype):
        words = _in_turn(b, [isa.rounded(b, dtype, value) for value in run.vectors])
        for number, numbers in enumerate(words):
            _store_words(b, isa, numbers, run, number * lanes_of(numbers))
        return
    vectors = gathered(b, isa, list(run.vectors)) if run.in_turn else run.vectors
    for number, value in enumerate(vectors):
        place = number * lanes_of(value)
        count = _left(b, run.room, place, lanes_of(value))
        if count is None or count.text != "0":
            isa.store(b, dtype, value, b.at(run.address, place, STORAGE[dtype]), count)


def _order_in_turn(run: Run) -> list[int]:
    """Of the lanes of all vectors, side by side, where each number comes from."""
    lanes, many, some = lanes_of(run.vectors[0]), len(run.vectors), run.numbers
    return [n // some % many * lanes + n // (some * many) * some + n % some for n in range(many * lanes)]


def _in_turn(b: Builder, parts: list[Value]) -> list[Value]:
    """Numbers of 16 bits of two or four vectors, one of each in turn, in vectors of twice as many."""
    if len(parts) > 2:
        one, other = (_in_turn(b, parts[start::2])[0] for start in range(2))
    else:
        one, other = parts
    lanes, many = lanes_of(one), lanes_of(parts[0]) * 2
    both = [place for lane in range(lanes) for place in (lane, lanes + lane)]
    return [shuffle(b, one, other, both[start : start + many]) for start in range(0, len(both), many)]


def _store_by_integers(b: Builder, isa: Isa, runs: Iterable[Run]) -> None:
    """bf16, two vectors at a time, of one run or the last of one and the first of the next."""
    waiting: Run | None = None  # whose last vector has no partner yet

    def finish(run: Run, last: Value | None) -> None:
        """All of a run: `last` is its last vector of bf16, if that became one together with another run's."""
        whole = run.vectors[: len(run.vectors) - (last is not None)]
        if whole:
            _store(b, replace(run, vectors=whole), lambda run: _store_pairs(b, isa, run))
        if last is not None:
            place = len(whole) * lanes_of(last)
            _store(b, run, lambda run: _store_words(b, isa, last, run, place))

    for run in runs:
        if run.in_turn or len(run.vectors) % 2 == 0:
            finish(run, None)
        elif waiting is None:
            waiting = run
        else:
            lanes = lanes_of(run.vectors[0])
            words = _halves(b, isa, waiting.vectors[-1], run.vectors[-1])
            for n, one in enumerate((waiting, run)):
                finish(one, shuffle(b, words, words, list(range(n * lanes, (n + 1) * lanes))))
            waiting = None
    if waiting is not None:
        finish(waiting, None)


def _store_pairs(b: Builder, isa: Isa, run: Run) -> None:
    """bf16 of one run, by integer arithmetic."""
    if run.numbers > 1:
        words = _halves(b, isa, *run.vectors)
        _store_words(b, isa, shuffle(b, words, words, _order_in_turn(run)), run, 0)
        return
    if run.in_turn:
        words = [_word_of_pair(b, *run.vectors[n : n + 2]) for n in range(0, len(run.vectors), 2)]
        for number, pairs in enumerate(gathered(b, isa, words) if len(words) > 1 else words):
            numbers = b.cast("bitcast", pairs, vector_of(2 * lanes_of(pairs), "i16"))
            _store_words(b, isa, numbers, run, number * lanes_of(numbers))
        return
    for n in range(0, len(run.vectors), 2):
        two = run.vectors[n : n + 2]
        words = _halves(b, isa, *two) if len(two) > 1 else isa.to_bfloat(b, two[0])
        _store_words(b, isa, words, run, n * lanes_of(two[0]))


def _halves(b: Builder, isa: Isa, low: Value, high: Value) -> Value:
    """Both as bf16, exactly, side by side."""
    lanes = 2 * lanes_of(low)
    if isa.packs(low):
        packed = isa.packed(b, low, high)
        return shuffle(b, packed, packed, [n + q for q in (0, 8, 4, 12) for n in range(4)])
    words = [b.cast("bitcast", rounded_to_bfloat(b, value), vector_of(lanes, "i16")) for value in (low, high)]
    return shuffle(b, words[0], words[1], list(range(1, 2 * lanes, 2)))


def _words(b: Builder, isa: Isa, dtype: str, low: Value, high: Value) -> Value:
    """The same in any type of 16 bits."""
    if rounds_together(dtype):
        return _halves(b, isa, low, high)
    first, second = (isa.rounded(b, dtype, value) for value in (low, high))
    return shuffle(b, first, second, list(range(2 * lanes_of(low))))


def _store_checked(b: Builder, isa: Isa, runs: list[Run]) -> None:
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
            _store(b, run, lambda run, mine=mine: _store_rounded(b, isa, run, mine))

    def exactly() -> None:
        for run in runs:
            _store(b, run, lambda run: _store_pairs(b, isa, run))

    b.either(special, exactly, fast)


def _store_rounded(b: Builder, isa: Isa, run: Run, parts: Sequence[tuple[Value, int]]) -> None:
    """Halves of rounded pairs, each by the lane with which it begins; in order, and two at a time."""
    lanes = lanes_of(run.vectors[0])
    places = [(pair, start + lane) for pair, start in parts for lane in range(lanes)]
    if run.in_turn:
        places = [places[n] for n in _order_in_turn(run)]
    for first in range(0, len(places), 2 * lanes):
        wanted = places[first : first + 2 * lanes]
        one, other = wanted[0][0], wanted[-1][0]
        order = [lane + (0 if pair is one else 2 * lanes) for pair, lane in wanted]
        words = one if order == list(range(2 * lanes)) else shuffle(b, one, other, order)
        _store_words(b, isa, words, run, first)


def _store_words(b: Builder, isa: Isa, words: Value, run: Run, place: int) -> None:
    """Numbers of 16 bits, at a place of a run, as many as there is room for."""
    if run.parts:
        _store_parts(b, isa, words, run, place)
        return
    count = _left(b, run.room, place, lanes_of(words))
    if count is None or count.text != "0":
        isa.store_bits(b, words, b.at(run.address, place, STORAGE["bf16"]), count)


def _store_parts(b: Builder, isa: Isa, words: Value, run: Run, place: int) -> None:
    """Likewise, where each part of a run belongs."""
    lanes, size = lanes_of(words), sum(map(lanes_of, run.vectors)) // len(run.parts)
    room = min(size, run.room) if isinstance(run.room, int) else size
    for n, address in enumerate(run.parts):
        there = [0 <= place + lane - n * size < room for lane in range(lanes)]
        target = b.beyond(address, 2 * (place - n * size))
        if sum(there) == 1:  # LLVM 22 writes two under a mask known to hold in one lane only
            one = b.emit("i16", f"extractelement {words}, i64 {there.index(True)}")
            b.store(one, b.beyond(target, 2 * there.index(True)), 2)
        elif any(there):
            mask = "<" + ", ".join(f"i1 {int(one)}" for one in there) + ">"
            isa.store_masked(b, words, target, 2, Value(vector_of(lanes, "i1"), mask))


def _left(b: Builder, room: Index | None, place: int, lanes: int) -> Value | None:
    """Of the lanes of a vector that begins at a place of a run those that are stored; None: all of them."""
    if room is None:
        return None
    count = b.maximum(b.minimum(b.sub(room, place), lanes), 0)
    return None if count == lanes else index(count)


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
    order = _order_in_turn(run) if run.in_turn else range(many * lanes)
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


def _word_of_pair(b: Builder, even: Value, odd: Value) -> Value:
    """Both as bf16, exactly, in a word, whose upper half the odd number has already."""
    low, high = rounded_to_bfloat(b, even), rounded_to_bfloat(b, odd)
    low = b.binary("lshr", low, constant(low.type, 16))
    return b.binary("or", low, b.binary("and", high, constant(high.type, -65536)))
