"""Fetching what the next block packs while the present one is multiplied, line by line at the pace of the tiles.

A core has a dozen cache lines on their way at a time. Asked for at once they stall the loads of the tile that asks;
one every so many steps of a register tile, they come for nothing.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import prod
from typing import Protocol

from convgrad.codegen.ir import Builder
from convgrad.codegen.ir_module import Index, Value, index
from convgrad.plan.costs import LINE
from convgrad.values import frozen, replace

AT_ONCE = 6  # lines that one tile may ask for before it begins
LONG_RUN = 16  # lines that are worth walking


@frozen
class Lines:
    """The cache lines of a box in memory: `walk` and the other axes, each an extent and a step in bytes."""

    walk: tuple[int, int]
    others: tuple[tuple[int, int], ...]

    def pieces(self, lines: int) -> int:
        """In which tiles fetch them, so many lines each."""
        return -(-self.walk[0] // lines) * prod(extent for extent, _ in self.others)

    def turned(self, lines: int) -> Lines:
        """The same lines, along the axis by which tiles that fetch so many each are the fewest."""
        axes = (self.walk, *self.others)
        ways = (Lines(axis, (*axes[:n], *axes[n + 1 :])) for n, axis in enumerate(axes))
        return min(ways, key=lambda way: way.pieces(lines))


def lines_of(axes: Sequence[tuple[int, int]]) -> Lines:
    """Of a box with such extents and steps in bytes, the numbers of whose innermost axis share lines."""
    merged: list[tuple[int, int]] = []
    for extent, step in sorted(((e, abs(s)) for e, s in axes if e > 1 and s), key=lambda axis: axis[1]):
        inner = merged[-1] if merged else (1, LINE)
        if merged and step <= inner[0] * inner[1] + LINE:
            merged[-1] = (-(-((extent - 1) * step + inner[0] * inner[1]) // inner[1]), inner[1])
        else:
            merged.append((extent, step))
    if not merged:
        return Lines((1, LINE), ())
    if merged[0][1] < LINE:
        extent, step = merged[0]
        merged[0] = (-(-extent * step // LINE), LINE)
    walk = merged[0] if merged[0][0] >= LONG_RUN else max(merged, key=lambda axis: axis[0])
    return Lines(walk, tuple(axis for axis in merged if axis is not walk))


def inside(b: Builder, first: Value, size: int, end: Value) -> Value:
    """An address, or one before it from which so many bytes end where a tensor does.

    Nothing may lie behind that, and what is asked for there costs a processor more than all else of a tile.
    """
    last = b.beyond(end, -size)
    early = b.compare("ugt", *(b.cast("ptrtoint", place, "i64") for place in (first, last)))
    return b.select(early, last, first)


class Fetch(Protocol):
    """What a register tile asks for while it sums."""

    def begin(self, b: Builder) -> None:
        """Before the first step of the tile."""

    def go_on(self, b: Builder, done: Index) -> None:
        """After so many steps of the tile."""


@frozen
class Walk:
    """What one tile fetches: lines `step` bytes apart, some `at_once`, or `each` of them every 2^shift steps."""

    first: Value
    step: Value
    shift: int
    each: int
    at_once: int

    def begin(self, b: Builder) -> None:
        """Before the first step of the tile."""
        for line in range(self.at_once):
            b.prefetch(b.beyond(self.first, b.mul(self.step, line)), keep=2)

    def go_on(self, b: Builder, done: Index) -> None:
        """After so many steps of the tile."""
        line = b.mul(b.shift_right(done, self.shift), self.each)
        for more in range(0 if self.at_once else self.each):
            b.prefetch(b.beyond(self.first, b.mul(b.add(line, more), self.step)), keep=2)


@frozen
class Ahead:
    """The boxes that `tiles` tiles of `steps` steps each are to fetch, at most `most` lines in a step."""

    boxes: tuple[Lines, ...]
    steps: int
    tiles: int
    most: int = 1

    def complete(self) -> Ahead:
        """With boxes turned if some lines would be left out: runs of a few for each tile that has time for many."""
        most = self.steps * self.most
        if self._pieces(most) <= self.tiles:
            return self
        return replace(self, boxes=tuple(box.turned(most) for box in self.boxes))

    @property
    def shift(self) -> int:
        """Some lines every 2^shift steps: as slow as the tiles allow."""
        shift = 0
        while self.steps >> (shift + 1) and self._pieces(self.steps >> (shift + 1)) <= self._enough:
            shift += 1
        return shift

    @property
    def each(self) -> int:
        """So many lines: more than one only if one in every step is too slow."""
        enough = (each for each in range(1, self.most) if self._pieces(self.steps * each) <= self._enough)
        return next(enough, self.most)

    @property
    def at_once(self) -> int:
        """Lines that a tile asks for before it begins; 0: it has too many to fetch for that."""
        few = (lines for lines in range(1, AT_ONCE + 1) if self._pieces(lines) <= self._enough)
        return next(few, 0)

    @property
    def lines(self) -> int:
        """That one tile fetches."""
        return self.at_once or max(1, self.steps >> self.shift) * self.each

    @property
    def _enough(self) -> int:
        """Pieces: as many as there are tiles, or as whole runs, if these are more: some of them are left out then."""
        return max(self.tiles, sum(box.pieces(box.walk[0]) for box in self.boxes))

    def _pieces(self, lines: int) -> int:
        return sum(box.pieces(lines) for box in self.boxes)

    def walk(self, b: Builder, tile: Index, bases: Sequence[Value]) -> Walk:
        """What tile number `tile` fetches, of boxes that begin at `bases`; tiles that are left over: one line."""
        lines, passed = self.lines, 0
        first, step = bases[0], index(0)
        for box, base in zip(self.boxes, bases, strict=True):
            number = b.sub(tile, passed)
            passed += box.pieces(lines)
            wanted = b.both(b.compare("sge", number, 0), b.compare("slt", tile, passed))
            extents = [*(extent for extent, _ in box.others), -(-box.walk[0] // lines)]
            *places, piece = b.split(index(number), extents)
            line = b.minimum(b.mul(piece, lines), max(0, box.walk[0] - lines))  # the last piece begins early
            steps = [*(step for _, step in box.others), box.walk[1]]
            start = b.beyond(base, b.dot(list(zip([*places, line], steps, strict=True))))
            first, step = b.select(wanted, start, first), b.select(wanted, index(box.walk[1]), step)
        return Walk(first, step, self.shift, self.each, self.at_once)
