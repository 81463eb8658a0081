"""Copies that turn rows into columns, square by square: where squares lie, and in which order they are turned.

A square has as many rows and columns as a vector has lanes, or fewer at the end of an axis.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import TYPE_CHECKING

from convgrad.codegen.ir import Builder
from convgrad.codegen.ir_module import Index, Value, index
from convgrad.codegen.isa.base import BYTES, STORAGE
from convgrad.values import frozen

if TYPE_CHECKING:
    from convgrad.codegen.copies.copying import Copy


@frozen
class Dim:
    """One axis of the box: how many elements, and the step between them on each side, in elements."""

    extent: Index
    src: int
    dst: int


@frozen
class Square:
    """Rows, `src_step` apart in src, become columns, contiguous in dst and `dst_step` apart.

    Numbers of a row lie `skip` apart in src: next to each other, or nearly so.
    """

    src: Value
    dst: Value
    src_step: Index
    dst_step: Index
    rows: Index
    columns: Index
    skip: int = 1

    def full(self, lanes: int) -> bool | None:
        """Whether nothing is missing; None if that is not known before the kernel runs."""
        if self.rows == lanes and self.columns == lanes:
            return True
        known = (extent for extent in (self.rows, self.columns) if isinstance(extent, int))
        return False if any(extent < lanes for extent in known) else None


@frozen
class Squares(ABC):
    """How `copy` moves what is contiguous, or nearly so, along one axis in src and along another in dst."""

    copy: Copy

    @property
    def lanes(self) -> int:
        """Numbers in a vector."""
        return self.copy.isa.lanes(self.copy.compute)

    @property
    def height(self) -> int:
        """Rows of a square."""
        return self.lanes

    @property
    def breadth(self) -> int:
        """Columns of a square."""
        return self.lanes

    def emit(self, b: Builder, src: Value, dst: Value, across: Dim, along: Dim) -> None:
        """`across` is contiguous in dst, `along` in src, or a few numbers apart there.

        Where results go, whose lines are far apart, a square's lines are followed to their ends before the next ones
        are begun: processors ask early for no more of them than a square has, and L1 may hold no more.
        """
        if self._follows_lines(across, along):
            self._line_by_line(b, src, dst, across, along)
            return

        def tiles(i: Index, _: object) -> None:
            i, rows = self._at(b, i, across.extent, self.height)
            start = self._start(b, src, across, along)

            def tile(j: Index, _: object) -> None:
                j, columns = self._at(b, self._first(b, j, along.extent), along.extent, self.breadth)
                self._square(b, src, dst, (across, i, rows), (along, j, columns))

            b.loop(start, along.extent, tile, step=self.breadth, name="along")

        b.loop(0, across.extent, tiles, step=self.height, name="across")

    def _line_by_line(self, b: Builder, src: Value, dst: Value, across: Dim, along: Dim) -> None:
        def lines(j: Index, _: object) -> None:
            j, columns = self._at(b, j, along.extent, self.breadth)

            def tile(i: Index, _: object) -> None:
                i, rows = self._at(b, i, across.extent, self.height)
                self._square(b, src, dst, (across, i, rows), (along, j, columns))

            b.loop(0, across.extent, tile, step=self.height, name="across")

        b.loop(0, along.extent, lines, step=self.breadth, name="along")

    def _square(
        self, b: Builder, src: Value, dst: Value, rows: tuple[Dim, Index, Index], columns: tuple[Dim, Index, Index]
    ) -> None:  # fmt: skip
        """Of an axis and another: where on it, and how much."""
        copy, (across, i, height), (along, j, breadth) = self.copy, rows, columns
        source = b.hidden(copy.src_at(b, src, b.dot([(i, across.src), (j, along.src)])))
        target = b.hidden(copy.dst_at(b, dst, b.dot([(i, across.dst), (j, along.dst)])))
        self._one(b, Square(source, target, across.src, along.dst, height, breadth, along.src))

    def _follows_lines(self, across: Dim, along: Dim) -> bool:
        """Whether lines of dst are farther apart than those of src, which are near."""
        copy = self.copy
        return copy.of_results and abs(along.dst) * BYTES[copy.dst_dtype] > abs(across.src) * BYTES[copy.src_dtype]

    def _start(self, b: Builder, src: Value, across: Dim, along: Dim) -> Index:
        """Where the first square would begin, had it nothing before it."""
        return 0

    def _first(self, b: Builder, j: Index, extent: Index) -> Index:
        """Where a square begins that would begin at j, of a run of that extent."""
        return j

    def _at(self, b: Builder, start: Index, extent: Index, lanes: int) -> tuple[Index, Index]:
        """Where the square at `start` begins on an axis, and how much of the axis it holds, at most `lanes`.

        The last one begins early where the axis is long enough: some numbers twice cost less than a part of a square.
        """
        known = isinstance(extent, int)
        if known and (extent <= lanes or extent % lanes == 0):
            return start, min(extent, lanes)
        if self.copy.accumulate:
            return start, b.minimum(b.sub(extent, start), lanes)
        early = b.minimum(start, b.sub(extent, lanes))
        if known:
            return early, lanes
        start = b.select(b.compare("sge", extent, lanes), index(early), index(start))
        return start, b.minimum(b.sub(extent, start), lanes)

    @abstractmethod
    def _one(self, b: Builder, square: Square) -> None:
        """Turn a square, of which there may be only a part."""

    def _in_room(self, b: Builder, room: Value | None, i: Index) -> Value:
        assert room is not None, "a copy that splits numbers needs room"
        return b.at(room, b.mul(i, self.lanes), STORAGE[self.copy.compute])
