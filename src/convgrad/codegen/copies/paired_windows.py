"""Windows as bf16 in the order of sums over pairs of them: runs of x, and pairs of y side by side for every channel."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from convgrad.codegen.copies.copying import Copy, Dim
from convgrad.codegen.copies.interleave import emit_deinterleave, load_every
from convgrad.codegen.copies.paired_copies import PairedCopy
from convgrad.codegen.copies.turned_windows import TurnedWindows
from convgrad.codegen.copies.words import PAIR
from convgrad.codegen.ir import Builder
from convgrad.codegen.ir_module import Index, Value, index, vector_of
from convgrad.codegen.isa.base import first_lanes
from convgrad.plan.costs import MOST_SKIPPED
from convgrad.values import frozen, replace


@frozen(kw_only=True)
class PairedRuns:
    """Copies whose last axis becomes a run of bf16; `numbers` copies what does not come in long runs or in rows."""

    pairs: PairedCopy
    numbers: Copy

    def emit(self, b: Builder, src: Value, dst: Value, dims: Sequence[Dim]) -> None:
        """Steps are of numbers on either side."""
        *outer, run = dims
        rows = next((dim for dim in outer if dim.src == 1), None)
        if run.src == 1:
            self.numbers.nest(b, src, dst, outer, lambda s, d: self._plain(b, s, d, run.extent))
        elif 1 < run.src <= MOST_SKIPPED and rows is None:
            self.numbers.nest(b, src, dst, outer, lambda s, d: self._every(b, s, d, run))
        elif rows is not None:
            others = [dim for dim in outer if dim is not rows]
            squares = TurnedWindows(self.pairs, self.numbers)

            def turned(src: Value, dst: Value) -> None:
                self._turned(b, src, dst, rows, run)

            if squares.takes(rows, run):
                squares.emit(b, src, dst, self.numbers.in_order(self.numbers.merged(b, others)), rows, run, turned)
            else:
                self.numbers.nest(b, src, dst, others, turned)
        else:
            self.numbers.emit(b, src, dst, dims)

    def emit_planes(
        self, b: Builder, src: Value, dst: Value, dims: Sequence[Dim], inner: Dim, planes: int, pitch: int
    ) -> None:
        """As `Copy.emit_planes` does."""
        if inner.src == 1:
            self.numbers.nest(b, src, dst, dims, lambda s, d: self._dealt(b, s, d, planes, pitch, inner.extent))
            return

        def plane(r: Index, count: Index) -> None:
            source, target = self.pairs.src_at(b, src, b.mul(r, inner.src)), b.at(dst, b.mul(r, pitch), "i16")
            self.emit(b, source, target, [*dims, Dim(count, inner.src * planes, 1)])

        each_plane(b, inner.extent, planes, plane)

    def _every(self, b: Builder, src: Value, dst: Value, run: Dim) -> None:
        """A run of numbers that lie a few apart."""
        pairs, lanes = self.pairs, PAIR * self.pairs.isa.lanes("f32")
        whole = b.mul(b.floor_div(run.extent, lanes), lanes)

        def some(i: Index, count: Index | None) -> None:
            def load(q: Index, count: Value | None) -> Value:
                return pairs.load_numbers(b, pairs.src_at(b, src, b.add(b.mul(i, run.src), q)), lanes, count)

            many = lanes if count is None else count
            value = load_every(b, lanes, run.src, many, load)
            if many != lanes:  # others were read, too
                kept = first_lanes(b, lanes, index(many))
                value = b.select(kept, value, Value(value.type, "zeroinitializer"))
            pairs.note(b, value)
            pairs.isa.store_bits(b, value, b.at(dst, i, "i16"), None if count is None else index(count))

        b.loop(0, whole, lambda i, _: some(i, None), step=lanes, name="every")
        rest = b.sub(run.extent, whole)
        if rest != 0:
            with b.when(b.compare("sgt", rest, 0)):
                some(whole, rest)

    def _dealt(self, b: Builder, src: Value, dst: Value, planes: int, pitch: int, extent: Index) -> None:
        """A run whose numbers belong to planes in turn."""
        pairs, lanes = self.pairs, PAIR * self.pairs.isa.lanes("f32")

        def load(q: Index, count: Value | None) -> Value:
            value = pairs.load_numbers(b, pairs.src_at(b, src, q), lanes, count)
            pairs.note(b, value)
            return value

        def there(plane: Index, position: Index) -> Value:
            return b.at(dst, b.add(position, b.mul(plane, pitch)), "i16")

        def store(value: Value, plane: Index, position: Index, count: Value | None) -> None:
            pairs.isa.store_bits(b, value, there(plane, position), count)

        def scalar(q: Index, plane: Index, position: Index) -> None:
            self.numbers.scalar(b, pairs.src_at(b, src, q), there(plane, position))

        emit_deinterleave(b, pairs.isa, lanes, planes, extent, load, store, scalar)

    def _plain(self, b: Builder, src: Value, dst: Value, extent: Index) -> None:
        """A run that is one already."""
        isa, lanes = self.pairs.isa, PAIR * self.pairs.isa.lanes("f32")
        whole = b.mul(b.floor_div(extent, lanes), lanes)

        def some(i: Index, count: Index | None) -> None:
            value = self.pairs.load_numbers(b, self.pairs.src_at(b, src, i), lanes, count)
            self.pairs.note(b, value)
            isa.store_bits(b, value, b.at(dst, i, "i16"), None if count is None else index(count))

        b.loop(0, whole, lambda i, _: some(i, None), step=lanes, name="run")
        rest = b.sub(extent, whole)
        if rest != 0:
            with b.when(b.compare("sgt", rest, 0)):
                some(whole, rest)

    def _turned(self, b: Builder, src: Value, dst: Value, rows: Dim, run: Dim) -> None:
        """Rows across the run: squares of words, and at an odd end two elements of every row, one of them again."""
        copy, half = self.pairs.with_partner(run.src), b.floor_div(run.extent, PAIR)
        words = Dim(rows.extent, 1, rows.dst // PAIR)
        copy.emit(b, src, dst, [words, Dim(half, PAIR * run.src, 1)])
        with b.when(b.compare("ne", run.extent, b.mul(half, PAIR))):
            b.either(
                b.compare("sgt", run.extent, 1),
                lambda: self._last(b, copy, src, dst, rows, b.sub(run.extent, PAIR), run.src),
                lambda: self.numbers.emit(b, src, dst, [rows]),
            )

    def _last(
        self, b: Builder, copy: PairedCopy, src: Value, dst: Value, rows: Dim, place: Index, step: int
    ) -> None:  # fmt: skip
        """The words at a place of the run, by way of memory."""
        room, lanes = copy.room, copy.isa.lanes("f32")
        assert room is not None

        def several(row: Index, _: object) -> None:
            count = b.minimum(b.sub(rows.extent, row), lanes)
            words = copy.load_row(b, copy.src_at(b, src, b.add(b.mul(place, step), row)), 1, lanes, count)
            copy.note(b, b.cast("bitcast", words, vector_of(PAIR * lanes, "i16")))
            copy.isa.store(b, "f32", words, room)

            def one(i: Index, _: object) -> None:
                there = b.at(dst, b.add(b.mul(b.add(row, i), rows.dst), place), "i16")
                b.store(b.load("i32", b.at(room, i, "i32"), 4), there, PAIR)

            b.loop(0, count, one, name="word")

        b.loop(0, rows.extent, several, step=lanes, name="last")


def each_plane(b: Builder, extent: Index, planes: int, body: Callable[[Index, Index], None]) -> None:
    """`body(plane, elements)` for every plane of a run, whose elements are known where those of the run are."""
    least, more = b.floor_div(extent, planes), b.sub(extent, b.mul(b.floor_div(extent, planes), planes))
    if isinstance(more, Value):
        count = b.add(extent, planes - 1)
        b.loop(0, planes, lambda r, _: body(r, b.floor_div(b.sub(count, r), planes)), name="plane")
        return
    b.loop(0, more, lambda r, _: body(r, b.add(least, 1)), name="plane")
    b.loop(more, planes, lambda r, _: body(r, least), name="plane")


@frozen(kw_only=True)
class PairedLanes:
    """dst[Σ i · dst step + q div 2 · 2 · width + 2 · lane + q mod 2] = src[...] as `PairCopy` has it, of one piece."""

    copy: PairedCopy
    width: int

    def emit(self, b: Builder, src: Value, dst: Value, outer: Sequence[Dim], run: Dim, lanes: Dim) -> None:
        """Over the outer axes, elements q of a run, and lanes; the last of an odd run is paired with zero."""
        dims = [replace(dim, dst=dim.dst // PAIR) for dim in outer]
        half = b.floor_div(run.extent, PAIR)
        pairs = Dim(half, PAIR * run.src, self.width)
        self.copy.with_partner(run.src).emit(b, src, dst, [*dims, pairs, lanes])
        with b.when(b.compare("ne", run.extent, b.mul(half, PAIR))):
            last = b.mul(half, PAIR)
            here, there = self.copy.src_at(b, src, b.mul(last, run.src)), b.at(dst, b.mul(last, self.width), "i16")
            self.copy.with_partner(None).emit(b, here, there, [*dims, lanes])
