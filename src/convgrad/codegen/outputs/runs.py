"""Runs of results, which lie side by side in memory: what is in them, in which order, and where it is stored."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from convgrad.codegen.ir import Builder
from convgrad.codegen.ir_module import Index, Value, index, lanes_of, vector_of
from convgrad.codegen.isa.base import STORAGE, Isa
from convgrad.dtypes import COMPUTE
from convgrad.values import frozen

IN_TURN = (1, 2, 4)  # vectors of a run


@frozen
class Run:
    """Results side by side in memory: vectors one after the other or, `in_turn`, a number of each in turn.

    There may be any number of the former, and as many of the latter as `IN_TURN` says, two of which may have some
    `numbers` in turn. With `parts` equal parts of the run lie at an address each, where `room` is that of each; of such
    runs all vectors are rounded without a look.
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


def order_in_turn(run: Run) -> list[int]:
    """Of the lanes of all vectors, side by side, where each number comes from."""
    lanes, many, some = lanes_of(run.vectors[0]), len(run.vectors), run.numbers
    return [n // some % many * lanes + n // (some * many) * some + n % some for n in range(many * lanes)]


def left(b: Builder, room: Index | None, place: int, lanes: int) -> Value | None:
    """Of the lanes of a vector that begins at a place of a run those that are stored; None: all of them."""
    if room is None:
        return None
    count = b.maximum(b.minimum(b.sub(room, place), lanes), 0)
    return None if count == lanes else index(count)


def store_if_wanted(b: Builder, run: Run, store: Callable[[Run], None]) -> None:
    """If it is wanted."""
    if run.wanted is None:
        store(run)
    else:
        with b.when(run.wanted):
            store(run)


def store_words(b: Builder, isa: Isa, words: Value, run: Run, place: int) -> None:
    """Numbers of 16 bits, at a place of a run, as many as there is room for."""
    if run.parts:
        _store_parts(b, isa, words, run, place)
        return
    count = left(b, run.room, place, lanes_of(words))
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
