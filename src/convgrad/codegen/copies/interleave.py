"""Runs of numbers that belong to several planes in turn: a b c a b c ... and aa.. bb.. cc..

Strided reads, the phases of strided results, and images of a few channels with channels innermost are all this.
Element q of a run belongs to plane q mod planes and is at position q div planes there.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from convgrad.codegen.ir import Builder
from convgrad.codegen.ir_module import Index, Value, index, lanes_of
from convgrad.codegen.isa.base import Isa, shuffle

MOST_PLANES, FEW_PLANES = 16, 8  # that registers hold, and of which a vector of the run is picked at once

Counts = list[Value] | None  # lanes of each vector that hold numbers; None: all of them
Scalar = Callable[[Index, Index, Index], None]  # moves one number, of element q, plane and position


def emit_deinterleave(
    b: Builder, isa: Isa, lanes: int, planes: int, run: Index,
    load: Callable[[Index, Value | None], Value], store: Callable[[Value, int, Index, Value | None], None],
    scalar: Scalar, *, again: bool = True,
) -> None:  # fmt: skip
    """From a run to planes, some numbers twice, if `again`.

    `load(q, count)` reads a vector of the run, `store(vector, plane, position, count)` writes one of a plane.
    """

    def vectors(q: Index, in_run: Counts, in_plane: Counts, _: int = 0) -> None:
        parts = [load(b.add(q, i * lanes), in_run[i] if in_run else None) for i in range(planes)]
        for plane, value in enumerate(_dealt(b, isa, parts)):
            store(value, plane, b.floor_div(q, planes), in_plane[plane] if in_plane else None)

    _emit_groups(b, isa, lanes, planes, run, vectors, scalar, again=again)


def emit_interleave(
    b: Builder, isa: Isa, lanes: int, planes: int, run: Index,
    load: Callable[[int, Index, Value | None], Value], store: Callable[[Value, Index, Value | None], None],
    scalar: Scalar, *, again: bool = True,
) -> None:  # fmt: skip
    """From planes to a run, some numbers twice, if `again`.

    `load(plane, position, count)` reads a vector of a plane, `store(vector, q, count)` writes one of the run.
    """

    def vectors(q: Index, in_run: Counts, in_plane: Counts, done: int = 0) -> None:
        position = b.floor_div(q, planes)
        parts = [load(plane, position, in_plane[plane] if in_plane else None) for plane in range(planes)]
        for i, value in enumerate(gathered(b, isa, parts)):
            if isinstance(q, int) and q + (i + 1) * lanes <= done:
                continue
            store(value, b.add(q, i * lanes), in_run[i] if in_run else None)

    _emit_groups(b, isa, lanes, planes, run, vectors, scalar, again=again)


def load_every(
    b: Builder, lanes: int, step: int, count: Index, load: Callable[[Index, Value | None], Value],
    load_few: Callable[[int, int], Value] | None = None,
) -> Value:  # fmt: skip
    """Numbers 0, step, 2 · step, ... of a run: the first `count` lanes of a vector, anything being in the others.

    `load(q, count)` reads a vector of the run, or its first `count` lanes. Nothing is read beyond the last of the
    numbers: the last vector begins early, or is masked if it cannot or if `count` is not known. Where there are no
    masks, `load_few(q, lanes)` reads a shorter vector instead.
    """
    span, size = b.add(b.mul(b.sub(count, 1), step), 1), lanes
    if not isinstance(span, int):
        starts = list(range(0, lanes * step, lanes))
        parts = [load(start, index(b.minimum(b.maximum(b.sub(span, start), 0), lanes))) for start in starts]
    elif span < lanes and load_few is not None:
        size, starts = overlapping(span)
        parts = [load_few(start, size) for start in starts]
    elif span < lanes:
        starts, parts = [0], [load(0, index(span))]
    else:
        starts = [*range(0, span - lanes, lanes), span - lanes]
        parts = [load(start, None) for start in starts]
    wanted = []
    for lane in range(lanes):
        known = not isinstance(count, int) or lane < count
        part = next((n for n, start in enumerate(starts) if known and lane * step < start + size), 0)
        wanted.append(part * size + lane * step - starts[part] if known else wanted[0])
    return pick(b, parts, wanted)


def overlapping(count: int) -> tuple[int, list[int]]:
    """The largest power of two up to `count`, and where runs of so many numbers begin that cover `count` of them."""
    size = 1 << (count.bit_length() - 1)
    return size, [0, count - size] if size < count else [0]


def _emit_groups(
    b: Builder, isa: Isa, lanes: int, planes: int, run: Index, vectors: Callable[..., None],
    scalar: Scalar, *, again: bool = True,
) -> None:  # fmt: skip
    """A vector of every plane at a time; what is left under masks or, where there are none, one by one.

    `vectors(q, lanes in the run, lanes in planes)` moves them; besides it is told how much of the run is done already.

    If `again`, the last group begins early, some numbers being moved twice, where it ends with the run. Without masks
    it does so wherever the run ends: what is left then are fewer numbers than planes.
    """
    group = planes * lanes
    whole = b.mul(b.floor_div(run, group), group)
    b.loop(0, whole, lambda q, _: vectors(q, None, None), step=group, name="group")
    rest = b.sub(run, whole)
    if rest == 0:
        return
    if again and isinstance(run, int) and run >= group and (run % planes == 0 or not isa.masks):
        first = (run - group) // planes * planes
        vectors(first, None, None, run // group * group)
        for q in range(first + group, run):
            scalar(q, q % planes, q // planes)
        return

    def tail() -> None:
        in_run = [index(b.minimum(b.maximum(b.sub(rest, i * lanes), 0), lanes)) for i in range(planes)]
        in_plane = [index(b.floor_div(b.add(rest, planes - 1 - plane), planes)) for plane in range(planes)]
        vectors(whole, in_run, in_plane)

    def one(q: Index, _: object) -> None:
        position, plane = b.split(q, (1 << 62, planes))
        scalar(q, plane, position)

    if not isa.masks:
        b.loop(whole, run, one, name="rest")
    elif isinstance(rest, int):
        tail()
    else:
        with b.when(b.compare("sgt", rest, 0)):
            tail()


def _dealt(b: Builder, isa: Isa, parts: list[Value]) -> list[Value]:
    """A vector of each of as many planes as there are vectors of a run; every other plane first, or every third."""
    planes, lanes = len(parts), lanes_of(parts[0])
    if planes == 1:
        return parts
    if planes == lanes:
        return isa.transpose(b, parts)
    share = factors(planes)[0]
    of_shares: list[list[Value]] = [[] for _ in range(share)]
    for first in range(0, planes, share):
        run = parts[first : first + share]
        for plane, found in enumerate(of_shares):
            found.append(pick(b, run, [lane * share + plane for lane in range(lanes)]))
    dealt = (_dealt(b, isa, found) for found in of_shares)
    return [plane for alike in zip(*dealt, strict=True) for plane in alike]


def gathered(b: Builder, isa: Isa, parts: list[Value]) -> list[Value]:
    """The run of which each part is of a plane: what `_dealt` takes apart."""
    planes, lanes = len(parts), lanes_of(parts[0])
    if planes == 1:
        return parts
    if planes == lanes:
        return isa.transpose(b, parts)
    share = factors(planes)[0]
    runs = [gathered(b, isa, parts[n::share]) for n in range(share)]
    places = [(q % share) * lanes + q // share for q in range(share * lanes)]
    several = [places[start : start + lanes] for start in range(0, share * lanes, lanes)]
    return [pick(b, [*together], wanted) for together in zip(*runs, strict=True) for wanted in several]


def factors(number: int) -> list[int]:
    """Primes whose product it is, the least first."""
    if number == 1:
        return []
    least = next(n for n in range(2, number + 1) if number % n == 0)
    return [least, *factors(number // least)]


def dealt_order(lanes: int) -> list[int]:
    """Outputs, lane by lane, where every other number of two vectors is picked within quarters of both.

    Processors have more room beside multiply-adds for an instruction that does so than for one that picks anywhere.
    """
    return [half + more for lane in range(0, lanes // 2, 2) for half in (lane, lane + lanes // 2) for more in (0, 1)]


def pick(b: Builder, parts: list[Value], wanted: Sequence[int]) -> Value:
    """The vector whose lane l is lane wanted[l] of all parts laid end to end, of which two may be shorter than it."""
    lanes = lanes_of(parts[0])
    result: Value | None = None
    used = [number for number in range(len(parts)) if any(want // lanes == number for want in wanted)]
    if len(used) == 2:
        one, other = used
        both = [want % lanes + (lanes if want // lanes == other else 0) for want in wanted]
        return shuffle(b, parts[one], parts[other], both)
    for number in used:
        part = parts[number]
        if result is None:
            result = shuffle(b, part, part, [want % lanes if want // lanes == number else 0 for want in wanted])
        else:
            chosen = [lanes + want % lanes if want // lanes == number else lane for lane, want in enumerate(wanted)]
            result = shuffle(b, result, part, chosen)
    assert result is not None
    return result
