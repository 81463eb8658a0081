"""Runs of numbers that belong to several planes in turn: a b c a b c ... and aa.. bb.. cc..

Strided reads, the phases of strided results, and images of a few channels with channels innermost are all this.
"""

from __future__ import annotations

from collections.abc import Callable

from convgrad.codegen.ir import Builder, Index, Value, index
from convgrad.codegen.isa.base import Isa, shuffle

MOST_PLANES = 16

Load = Callable[[Index, Value | None], Value]  # position in a run, count of lanes or None -> vector
Store = Callable[[Value, Index, Index, Value | None], None]  # vector, plane, position, count of lanes or None


def emit_deinterleave(
    b: Builder, isa: Isa, lanes: int, planes: int, run: Index, load: Load, store: Store,
    scalar: Callable[[Index, Index, Index], None],
) -> None:  # fmt: skip
    """Element q of the run goes to plane q mod planes, position q div planes.

    `load(q, count)` reads a vector of the run, `store(vector, plane, position, count)` writes one of a plane, and
    `scalar(q, plane, position)` moves one number where there are no masks.
    """
    group = planes * lanes
    whole = b.mul(b.floor_div(run, group), group)

    def vectors(q: Index, counts: list[Value] | None, kept: list[Value] | None) -> None:
        parts = [load(b.add(q, i * lanes), counts[i] if counts else None) for i in range(planes)]
        for plane in range(planes):
            value = pick(b, parts, [lane * planes + plane for lane in range(lanes)])
            store(value, plane, b.floor_div(q, planes), kept[plane] if kept else None)

    b.loop(0, whole, lambda q, _: vectors(q, None, None), step=group, name="group")
    rest = b.sub(run, whole)
    if rest == 0:
        return
    if isa.masks:

        def tail() -> None:
            counts = [index(b.minimum(b.maximum(b.sub(rest, i * lanes), 0), lanes)) for i in range(planes)]
            kept = [index(b.floor_div(b.add(rest, planes - 1 - plane), planes)) for plane in range(planes)]
            vectors(whole, counts, kept)

        if isinstance(rest, int):
            tail()
        else:
            with b.when(b.compare("sgt", rest, 0)):
                tail()
        return

    def one(q: Index, _: object) -> None:
        position, plane = b.split(q, (1 << 62, planes))
        scalar(q, plane, position)

    b.loop(whole, run, one, name="rest")


def emit_interleave(
    b: Builder, isa: Isa, lanes: int, planes: int, run: Index,
    load: Callable[[int, Index, Value | None], Value], store: Callable[[Value, Index, Value | None], None],
    scalar: Callable[[Index, Index, Index], None],
) -> None:  # fmt: skip
    """The inverse: element q of the run comes from plane q mod planes, position q div planes."""
    group = planes * lanes
    whole = b.mul(b.floor_div(run, group), group)

    def vectors(q: Index, counts: list[Value] | None, kept: list[Value] | None) -> None:
        position = b.floor_div(q, planes)
        parts = [load(plane, position, counts[plane] if counts else None) for plane in range(planes)]
        for i in range(planes):
            wanted = [(i * lanes + lane) % planes * lanes + (i * lanes + lane) // planes for lane in range(lanes)]
            store(pick(b, parts, wanted), b.add(q, i * lanes), kept[i] if kept else None)

    b.loop(0, whole, lambda q, _: vectors(q, None, None), step=group, name="group")
    rest = b.sub(run, whole)
    if rest == 0:
        return
    if isa.masks:

        def tail() -> None:
            counts = [index(b.floor_div(b.add(rest, planes - 1 - plane), planes)) for plane in range(planes)]
            kept = [index(b.minimum(b.maximum(b.sub(rest, i * lanes), 0), lanes)) for i in range(planes)]
            vectors(whole, counts, kept)

        if isinstance(rest, int):
            tail()
        else:
            with b.when(b.compare("sgt", rest, 0)):
                tail()
        return

    def one(q: Index, _: object) -> None:
        position, plane = b.split(q, (1 << 62, planes))
        scalar(q, plane, position)

    b.loop(whole, run, one, name="rest")


def pick(b: Builder, parts: list[Value], wanted: list[int]) -> Value:
    """The vector whose lane l is lane wanted[l] of all parts laid end to end."""
    lanes = len(wanted)
    result: Value | None = None
    for number, part in enumerate(parts):
        if all(want // lanes != number for want in wanted):
            continue
        if result is None:
            result = shuffle(b, part, part, [want % lanes if want // lanes == number else 0 for want in wanted])
        else:
            chosen = [lanes + want % lanes if want // lanes == number else lane for lane, want in enumerate(wanted)]
            result = shuffle(b, result, part, chosen)
    assert result is not None
    return result
