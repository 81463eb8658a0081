"""Two numbers at a time, side by side for every channel: the order in which a matrix unit wants its second operand."""

from __future__ import annotations

from collections.abc import Sequence

from convgrad.codegen.copies.copying import Copy, Dim
from convgrad.codegen.copies.splitting import Pieces, pair, split
from convgrad.codegen.ir import Builder
from convgrad.codegen.ir_module import Index, Value, index
from convgrad.codegen.isa.base import STORAGE, Isa
from convgrad.values import frozen, replace


@frozen(kw_only=True)
class PairCopy:
    """dst[Σ i · dst step + q div 2 · 2 · width + 2 · lane + q mod 2] = src[Σ i · src step + q · step + lane · step].

    dst gets the bf16 pieces of every number; the partner of the last element of an odd run is zero.
    """

    isa: Isa
    src_dtype: str
    pieces: Pieces
    width: int

    def emit(self, b: Builder, src: Value, dst: Value, outer: Sequence[Dim], run: Dim, lanes: Dim) -> None:
        """Over the box of the outer axes, elements q of a run, and lanes, of which dst has room for `width`."""
        copy = Copy(isa=self.isa, compute="f32", src_dtype=self.src_dtype, dst_dtype="bf16", pieces=self.pieces)
        if lanes.src == 1:
            copy.nest(b, src, dst, outer, lambda s, d: self._along_lanes(b, s, d, run, lanes))
        elif run.src == 1:
            copy.nest(b, src, dst, outer, lambda s, d: self._along_run(b, s, d, run, lanes))
        else:
            half = b.floor_div(b.add(run.extent, 1), 2)
            for odd, count in ((0, half), (1, b.sub(run.extent, half))):
                source = b.at(src, odd * run.src, STORAGE[self.src_dtype])
                pairs = Dim(count, 2 * run.src, 2 * self.width)
                copy.emit(b, source, b.at(dst, odd, "i16"), [*outer, pairs, replace(lanes, dst=2)])

    def _along_lanes(self, b: Builder, src: Value, dst: Value, run: Dim, lanes: Dim) -> None:
        """A vector of each of two elements."""
        length = self.isa.lanes("f32")
        whole = b.mul(b.floor_div(run.extent, 2), 2)

        def load(q: Index, lane: int) -> Value:
            place = b.at(src, b.add(b.mul(q, run.src), lane), STORAGE[self.src_dtype])
            count = b.minimum(b.maximum(b.sub(lanes.extent, lane), 0), length)
            return self.isa.load(b, self.src_dtype, place, length, None if count == length else index(count))

        def two(q: Index, both: bool) -> None:
            for lane in range(0, self.width, length):
                odd = load(b.add(q, 1), lane) if both else self._zero()
                store_pairs(b, self.pieces, load(q, lane), odd, b.at(dst, b.add(b.mul(q, self.width), 2 * lane), "i16"))

        b.loop(0, whole, lambda q, _: two(q, True), step=2, name="pair")
        b.loop(whole, run.extent, lambda q, _: two(q, False), name="last")

    def _along_run(self, b: Builder, src: Value, dst: Value, run: Dim, lanes: Dim) -> None:
        """Squares of elements and lanes, transposed."""
        length = self.isa.lanes("f32")
        last, whole = b.sub(lanes.extent, 1), lanes.extent == self.width

        def square(q: Index, lane: Index) -> None:
            left = b.minimum(b.sub(run.extent, q), length)
            count = None if left == length else index(left)
            rows = []
            for i in range(length):
                line = b.add(lane, i) if whole else b.minimum(b.add(lane, i), last)
                place = b.at(src, b.add(b.mul(line, lanes.src), q), STORAGE[self.src_dtype])
                rows.append(self.isa.load(b, self.src_dtype, place, length, count))
            rows = rows if whole else self._only(b, rows, b.sub(lanes.extent, lane))
            room = self.pieces.room
            assert room is not None
            for j, column in enumerate(self.isa.transpose(b, rows)):
                self.isa.store(b, "f32", column, b.at(room, j * length, "float"))

            def two(j: Index, _: object) -> None:
                even, odd = (
                    self.isa.load(b, "f32", b.at(room, b.mul(b.add(j, e), length), "float"), length) for e in range(2)
                )
                there = b.at(dst, b.add(b.mul(b.add(q, j), self.width), b.mul(lane, 2)), "i16")
                store_pairs(b, self.pieces, even, odd, there)

            b.loop(0, left, two, step=2, name="pair")

        def squares(q: Index, _: object) -> None:
            b.loop(0, self.width, lambda lane, _: square(q, lane), step=length, name="lane")

        b.loop(0, run.extent, squares, step=length, name="square")

    def _only(self, b: Builder, rows: list[Value], count: Index) -> list[Value]:
        """Zeros instead of the rows from `count` on."""
        if isinstance(count, int):
            return [row if i < count else self._zero() for i, row in enumerate(rows)]
        return [b.select(b.compare("slt", i, count), row, self._zero()) for i, row in enumerate(rows)]

    def _zero(self) -> Value:
        return Value(self.isa.vector("f32"), "zeroinitializer")


def store_pairs(b: Builder, pieces: Pieces, even: Value, odd: Value, dst: Value) -> None:
    """The pieces of two vectors, two by two."""
    for number, words in enumerate(words_of(b, pieces, even, odd)):
        b.store(words, b.at(dst, number * pieces.step, "i16"), 4)


def words_of(b: Builder, pieces: Pieces, even: Value, odd: Value) -> list[Value]:
    """Each piece of two vectors, side by side."""
    if pieces.watch is not None:
        for value in (even, odd):
            pieces.watch.note(b, value)
    halves = (split(b, value, pieces.count, pieces.exact) for value in (even, odd))
    return [pair(b, low, high) for low, high in zip(*halves, strict=True)]
