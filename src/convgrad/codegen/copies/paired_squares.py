"""Squares of words, each a number of one row and its partner of another, whose rows are whole lines of numbers.

A square has sixteen words across and 32 along: what unpacking makes of two rows are two vectors of words, and of these
each half of the square is turned by itself.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from convgrad.codegen.copies.squares import Dim, Square, Squares
from convgrad.codegen.ir import Builder
from convgrad.codegen.ir_module import Index, Value, index
from convgrad.codegen.isa.base import shuffle
from convgrad.plan.costs import LINE
from convgrad.values import frozen

if TYPE_CHECKING:
    from convgrad.codegen.copies.paired_copies import PairedCopy

HALVES = 2
LONG = 128  # numbers of a run, of which one square more is a small part
PART_NUMBERS, PART_WORDS = 8, 4  # of the parts of a vector that unpacking stays inside


@frozen
class PairedSquares(Squares):
    """How `copy` moves words that are contiguous along one axis, made of numbers contiguous along another."""

    copy: PairedCopy
    odd: bool = False  # the last row has no partner, and there is one square across

    @property
    def breadth(self) -> int:
        """Columns of a square: the numbers of a vector."""
        return HALVES * self.lanes

    def _start(self, b: Builder, src: Value, across: Dim, along: Dim) -> Index:
        """Before a run that is long enough, so that squares but the first begin with lines, if those of a row do."""
        extent, alike = along.extent, not any(step % self.breadth for step in (across.src, self.copy.partner or 0))
        if not alike or (isinstance(extent, int) and extent < LONG):
            return 0
        number = b.emit("i64", f"and {b.cast('ptrtoint', src, 'i64')}, {LINE - 1}")
        before = b.floor_div(number, LINE // self.breadth)
        if not isinstance(extent, int):
            before = b.select(b.compare("sge", extent, LONG), index(before), index(0))
        return b.sub(0, before)

    def _first(self, b: Builder, j: Index, extent: Index) -> Index:
        j = b.maximum(j, 0)
        # the last square of whole squares, too: they are cut elsewhere than where the run begins
        return b.minimum(j, extent - self.breadth) if isinstance(extent, int) and extent >= LONG else j

    def _one(self, b: Builder, square: Square) -> None:
        if isinstance(square.columns, int):
            self._turn_lines(b, square, square.columns)
            return
        b.either(
            b.compare("eq", square.columns, self.breadth),
            lambda: self._turn_lines(b, square, self.breadth),
            lambda: self._turn_some(b, square),
        )  # fmt: skip

    def _turn_lines(self, b: Builder, square: Square, columns: int) -> None:
        """So many columns."""

        def store(place: int, words: Value) -> None:
            if place < columns:
                self._store_words(b, square, place, words)

        self._halves(b, square, None if columns == self.breadth else columns, store)

    def _turn_some(self, b: Builder, square: Square) -> None:
        """As many as only the kernel knows, by way of memory."""
        self._halves(b, square, square.columns, lambda place, words: self._keep(b, place, words))

        def one(j: Index, _: object) -> None:
            self._store_words(
                b, square, j, self.copy.isa.load(b, "f32", self._in_room(b, self.copy.room, j), self.lanes)
            )

        b.loop(0, square.columns, one, name="column")

    def _halves(self, b: Builder, square: Square, count: Index | None, put: Callable[[int, Value], None]) -> None:
        """Every column, `count` numbers of each row being there. Rows are read once: L1 may not hold all of them."""
        rows = self._rows(b, square, count)
        for half in range(HALVES):
            columns = self.copy.isa.transpose(b, [self._words(b, row, half) for row in rows])
            for j, words in enumerate(columns):
                put(j // PART_WORDS * PART_NUMBERS + half * PART_WORDS + j % PART_WORDS, words)

    def _rows(self, b: Builder, square: Square, count: Index | None) -> list[tuple[Value, Value] | None]:
        """Numbers and partners, where there are any."""
        copy = self.copy
        assert isinstance(square.rows, int)
        places = [copy.src_at(b, square.src, b.mul(i, square.src_step)) for i in range(square.rows)]
        copies = [copy] * (square.rows - self.odd) + [copy.with_partner(None)] * self.odd
        rows = [
            of.parts(b, place, lambda at: copy.row(b, at, 0, count)) for of, place in zip(copies, places, strict=True)
        ]
        return [*rows, *[None] * (self.lanes - square.rows)]

    def _words(self, b: Builder, row: tuple[Value, Value] | None, half: int) -> Value:
        kind = self.copy.isa.vector("f32")
        if row is None:
            return Value(kind, "zeroinitializer")
        return b.cast("bitcast", shuffle(b, *row, self._unpacked(half)), kind)

    def _unpacked(self, half: int) -> list[int]:
        """Of numbers and partners: half of every part of both, in turn."""
        starts = range(half * PART_WORDS, self.breadth, PART_NUMBERS)
        numbers = [start + n for start in starts for n in range(PART_WORDS)]
        return [n + partner for n in numbers for partner in (0, self.breadth)]

    def _keep(self, b: Builder, place: int, words: Value) -> None:
        self.copy.isa.store(b, "f32", words, self._in_room(b, self.copy.room, place))

    def _store_words(self, b: Builder, square: Square, place: Index, words: Value) -> None:
        target = self.copy.dst_at(b, square.dst, b.mul(place, square.dst_step))
        rows = None if square.rows == self.lanes else index(square.rows)
        self.copy.isa.store_bits(b, b.cast("bitcast", words, f"<{self.lanes} x float>"), target, rows)
