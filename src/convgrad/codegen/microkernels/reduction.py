"""What a register tile sums: axes, parts of one, groups, masks."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from convgrad.codegen.ir import Builder
from convgrad.codegen.ir_module import Index, Value
from convgrad.values import frozen, replace

Masks = tuple[Value | None, ...]  # integers of a bit per lane; None, or no masks at all: all lanes


@frozen
class Part:
    """One step of a sum that only some rows of a tile take part in, and where it finds A and B; see `Tile.b_masks`."""

    a: int
    b: int
    rows: tuple[int, ...]
    b_masks: Masks = ()


@frozen
class Segment:
    """Steps of a sum, start <= i < stop, that only some rows and columns of a tile take part in."""

    start: Index
    stop: Index
    rows: Sequence[int]
    columns: Sequence[int]


@frozen
class Reduction:
    """One axis of the sum: start <= i < stop, and the step of each operand per i, in numbers.

    With `parts` its steps are these, written out one after the other. B may take its steps from a table of i64 instead.
    `pace` counts what is fetched along the way, from one i to the next; 0: nothing is, here and further inside.
    `a_masks` and `b_masks` give those of a step, see `Tile`. With `own_block`, see `in_own_block`.
    """

    start: Index
    stop: Index
    a_step: int
    b_step: int | Value
    pace: int = 0
    parts: tuple[Part, ...] = ()
    segments: tuple[Segment, ...] = ()
    a_masks: Callable[[Builder, Index], Masks] | None = None
    b_masks: Callable[[Builder, Index], Masks] | None = None
    own_block: bool = False


@frozen
class Groups:
    """A vector of C holds whole groups: so many lanes of each, which meet so many numbers of A one after the other."""

    numbers: int
    lanes: int

    def per_vector(self, lanes: int) -> int:
        """Numbers of A that belong to a vector."""
        return lanes // self.lanes * self.numbers

    def sources(self, lanes: int, number: int) -> list[int]:
        """Where among them each lane finds a number of its group; lanes that are left over follow the last group."""
        last = lanes // self.lanes - 1
        return [min(lane // self.lanes, last) * self.numbers + number for lane in range(lanes)]


def joined(reductions: Sequence[Reduction]) -> list[Reduction]:
    """The same sum in the same order with fewer axes: one whose steps continue those of the next is joined to it."""
    joined: list[Reduction] = []
    for axis in reversed(reductions):
        if joined and known(joined[0]) and known(axis) and (both := _one_axis(axis, joined[0])):
            joined[0] = both
        else:
            joined.insert(0, axis)
    return joined


def _one_axis(outer: Reduction, inner: Reduction) -> Reduction | None:
    """Both, of which all is known, as one axis, if the steps of the outer one continue those of the inner."""
    stop: Any = inner.stop
    steps = outer.a_step, outer.b_step, outer.pace
    if steps != (stop * inner.a_step, stop * inner.b_step, stop * inner.pace):
        return None
    return replace(inner, stop=stop * outer.stop)


def both(b: Builder, masks: Masks, others: Masks) -> Masks:
    """Lanes that two masks hold."""
    if not (masks and others):
        return masks or others
    pairs = zip(masks, others, strict=True)
    return tuple(x or y if x is None or y is None else b.binary("and", x, y) for x, y in pairs)


def known(axis: Reduction) -> bool:
    """Whether an axis begins with 0 and its length and steps are numbers, the same for all rows."""
    return (
        isinstance(axis.stop, int)
        and isinstance(axis.b_step, int)
        and axis.start == 0
        and not (axis.parts or axis.segments or axis.a_masks or axis.b_masks)
    )


def in_own_block(b: Builder, sums: Callable[[], dict[Any, Value]], before: dict[Any, Value]) -> dict[Any, Value]:
    """What `sums` come to, in a block of their own, which is entered in any case; LLVM does not know that.

    It orders products in the block that computes masks by how long these take, and runs out of registers (295 copies
    to and from memory beside 288 multiply-adds).
    """
    places = list(before)

    def summed() -> list[Value]:
        after = sums()
        return [after[place] for place in places]

    always = b.compare("ne", b.unknown(1), 0)
    found = b.one_of(always, summed, lambda: list(before.values()))
    return dict(zip(places, found, strict=True))
