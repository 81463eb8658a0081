"""Copies of bf16 two by two: the pairs that dot products and matrix units take are moved as words of 32 bits.

Partners lie side by side in the source, which then holds words already, or somewhere apart, as two rows of numbers that
are put together as they are read. From there on a word is moved, and squares of words are turned, as f32 are: half as
many as there are numbers, and nothing is converted. Of f32, which a mode allows to be rounded, words are made as they
are read: an instruction rounds two vectors, where the processor has it.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from convgrad.codegen.copies.asking import L2
from convgrad.codegen.copies.contiguous import ContiguousRuns
from convgrad.codegen.copies.copying import Copy, few, nearly_contiguous
from convgrad.codegen.copies.interleave import load_every
from convgrad.codegen.copies.interleaved_copies import InterleavedCopy
from convgrad.codegen.copies.paired_squares import PairedSquares
from convgrad.codegen.copies.splitting import LeastWatch, Watch
from convgrad.codegen.copies.squares import Dim, Squares
from convgrad.codegen.copies.turned_squares import TurnedSquares
from convgrad.codegen.copies.words import PAIR, concatenated, load_bf16, rounded_pair, words_of_f32
from convgrad.codegen.ir import Builder
from convgrad.codegen.ir_module import Index, Value, constant, index, vector_of
from convgrad.codegen.isa.base import BYTES, STORAGE, Isa, shuffle
from convgrad.values import frozen, replace

LEAST_RUN = 4  # words, of which several runs are worth putting together
MOST_APART = 8  # numbers from a word to the next, up to which all that lies between is loaded and dropped
MOST_UNKNOWN = 4  # likewise of two rows, where it is not known how many words there are


@frozen(kw_only=True)
class PairedCopy(Copy):
    """A copy of words to dst, each made of a number of src and its partner, `partner` numbers further.

    Steps are of numbers in src, and of words in dst; an axis of pairs goes on by two partners. A number without a
    partner (None) is paired with zero. `room` is memory for a square of words.
    """

    partner: int | None
    watch: Watch | LeastWatch | None
    room: Value | None
    alone: bool = False  # partners, next to zeros
    ahead: int = 0  # partners further on whose lines are asked for as rows are read

    @property
    def own_squares(self) -> bool:
        """Yes: what is watched is known in the function of the task alone."""
        return True

    @property
    def converts(self) -> bool:
        """Yes: it takes two to make a word."""
        return True

    @property
    def square_room(self) -> Value | None:
        """Memory for one."""
        return self.room

    @property
    def step(self) -> int:
        """From a word to the next that one load brings."""
        return PAIR if self.partner == 1 else 1

    @property
    def _in_rows(self) -> bool:
        """Whether words are put together of two vectors of numbers that are as they were."""
        return self.partner != 1 and self.src_dtype == "bf16"

    def src_run(self, b: Builder, base: Value, q: Index) -> Value:
        """The address of word q of a run."""
        return self.src_at(b, base, b.mul(q, self.step))

    def with_partner(self, partner: int | None) -> PairedCopy:
        """The same of numbers whose partners are elsewhere."""
        return replace(self, partner=partner)

    def emit(self, b: Builder, src: Value, dst: Value, dims: Sequence[Dim]) -> None:
        """dst[Σ i · dst step] = the pair at src[Σ i · src step], over the box."""
        dims = self.merged(b, dims)
        step = self.step
        along_dst = next((d for d in dims if d.dst == 1), None)
        along_src = next((d for d in dims if d.src == step), None)
        inner: list[Dim] = []
        body: Any = self.scalar
        if along_dst is not None and along_dst is along_src:
            inner, body = [along_dst], self._rows if self._in_rows else ContiguousRuns(self).every
            beside = self._beside(dims, along_dst)
            if beside is not None:
                inner, body = [along_dst, beside], self._several
        elif along_dst is not None and along_src is not None and few(along_src.extent):
            inner, body = [along_dst, along_src], TurnedSquares(self).emit
            if along_dst.src == step * along_src.extent:
                body = InterleavedCopy(self).deinterleave_axes
            elif step < along_dst.src <= MOST_APART:
                inner, body = [along_dst], ContiguousRuns(self).every
        elif along_dst is not None and along_src is not None:
            inner, body = [along_dst, along_src], self._squares_of(along_dst, along_src).emit
        elif along_dst is not None and step < along_dst.src <= MOST_APART:
            inner, body = [along_dst], ContiguousRuns(self).every
        elif along_dst is not None and (near := self._near(dims, along_dst)):
            inner, body = [along_dst, near], TurnedSquares(self).emit
        outer = [d for d in dims if all(d is not other for other in inner)]
        self.nest(b, src, dst, self.in_order(outer), lambda s, d: body(b, s, d, *inner))

    def _near(self, dims: Sequence[Dim], along_dst: Dim) -> Dim | None:
        """An axis of which vectors of two rows hold several words, whose numbers others lie between."""
        known = [d for d in dims if isinstance(d.extent, int) or d.src <= MOST_UNKNOWN]
        return None if self.partner == 1 else nearly_contiguous(known, along_dst)

    def emit_odd(self, b: Builder, src: Value, dst: Value, dims: Sequence[Dim], count: int, step: int) -> None:
        """Words of an odd number of channels, `step` apart, at every position; the last one is with zero."""
        if self.partner != 1:
            if self._odd_squares(b, src, dst, dims, count, step):
                return
            self.emit(b, src, dst, [*dims, Dim(count // PAIR, PAIR * step, 1)])
            alone = self.src_at(b, src, (count - 1) * step), self.dst_at(b, dst, count // PAIR)
            self.with_partner(None).emit(b, *alone, dims)
            return
        numbers = PAIR * self.isa.lanes(self.compute)

        def position(src: Value, dst: Value) -> None:
            for start in range(0, count, numbers):
                some = min(count - start, numbers)
                words = self.load_numbers(b, self.src_at(b, src, start), numbers, None if some == numbers else some)
                self.note(b, words)
                room = None if some == numbers else index(some + some % PAIR)
                self.isa.store_bits(b, words, self.dst_at(b, dst, start // PAIR), room)

        self.nest(b, src, dst, self.in_order(self.merged(b, dims)), position)

    def _odd_squares(self, b: Builder, src: Value, dst: Value, dims: Sequence[Dim], count: int, step: int) -> bool:
        """By squares, the last of which has the number without a partner, too; returns whether they do."""
        dims, words, lanes = self.merged(b, dims), -(-count // PAIR), self.isa.lanes(self.compute)
        along = next((d for d in dims if d.src == 1), None)
        if along is None or not isinstance(self._squares_of(Dim(words, PAIR * step, 1), along), PairedSquares):
            return False
        outer = self.in_order([d for d in dims if d is not along])
        first = 0 if words <= lanes else words // 2  # of the words; a square each
        for squares, start, some in (
            (PairedSquares(self), 0, first),
            (PairedSquares(self, odd=True), first, words - first),
        ):
            if some:
                across = Dim(some, PAIR * step, 1)
                there = self.src_at(b, src, start * PAIR * step), self.dst_at(b, dst, start)
                self.nest(
                    b, *there, outer, lambda s, d, squares=squares, across=across: squares.emit(b, s, d, across, along)
                )
        return True

    def _squares_of(self, across: Dim, along: Dim) -> Squares:
        """Of whole lines of numbers, where rows are as long and it is known how many there are."""
        short = isinstance(along.extent, int) and along.extent <= self.isa.lanes(self.compute)
        lines = self._in_rows and self.isa.masks and isinstance(across.extent, int) and not short
        return PairedSquares(self) if lines else TurnedSquares(self)

    def _beside(self, dims: Sequence[Dim], run: Dim) -> Dim | None:
        """The axis of runs side by side in dst, several of which are a vector."""
        lanes = self.isa.lanes(self.compute)
        if not isinstance(run.extent, int) or self.partner != 1:
            return None
        if not LEAST_RUN <= run.extent < lanes or lanes % run.extent:
            return None
        return next((dim for dim in dims if dim.dst == run.extent), None)

    def _several(self, b: Builder, src: Value, dst: Value, run: Dim, beside: Dim) -> None:
        """Short runs, as many at a time as fill a vector; what is left one by one."""
        assert isinstance(run.extent, int)
        lanes, numbers = self.isa.lanes(self.compute), PAIR * run.extent
        many = lanes // run.extent
        whole = b.mul(b.floor_div(beside.extent, many), many)

        def vector(i: Index, _: object) -> None:
            places = (self.src_at(b, src, b.mul(b.add(i, n), beside.src)) for n in range(many))
            parts = [self.load_numbers(b, place, numbers) for place in places]
            while len(parts) > 1:
                parts = [concatenated(b, *parts[n : n + 2]) for n in range(0, len(parts), 2)]
            words = b.cast("bitcast", parts[0], vector_of(lanes, "float"))
            self.store(b, words, self.dst_at(b, dst, b.mul(i, run.extent)))

        def one(i: Index, _: object) -> None:
            ContiguousRuns(self).every(
                b, self.src_at(b, src, b.mul(i, beside.src)), self.dst_at(b, dst, b.mul(i, run.extent)), run
            )

        b.loop(0, whole, vector, step=many, name="runs")
        b.loop(whole, beside.extent, one, name="run")

    def emit_planes(
        self, b: Builder, src: Value, dst: Value, dims: Sequence[Dim], inner: Dim, planes: int, pitch: int
    ) -> None:
        """As any copy does, two planes of rows at once."""
        if inner.src == 1 and self._in_rows and planes == PAIR:
            self.nest(b, src, dst, dims, lambda s, d: self._rows(b, s, d, inner, planes, pitch))
        else:
            Copy.emit_planes(self, b, src, dst, dims, inner, planes, pitch)

    def _rows(self, b: Builder, src: Value, dst: Value, run: Dim, planes: int = 1, pitch: int = 0) -> None:
        """A row of numbers and that of their partners, by whole vectors; of two planes, words of even places in one."""
        words = self.isa.lanes(self.compute)
        length = PAIR * words
        whole = b.mul(b.floor_div(run.extent, length), length)

        def vectors(q: Index, rest: Index | None = None) -> None:
            even, odd = self.parts(b, src, lambda place: self.row(b, place, q, rest))
            for part in range(PAIR):
                places = range(part, length, PAIR) if planes > 1 else range(part * words, (part + 1) * words)
                there = b.add(b.floor_div(q, PAIR), part * pitch) if planes > 1 else b.add(q, part * words)
                count = None
                if rest is not None and planes > 1:
                    count = index(b.mul(b.floor_div(b.add(rest, 1 - part), PAIR), PAIR))
                elif rest is not None:
                    count = index(b.mul(b.minimum(b.maximum(b.sub(rest, part * words), 0), words), PAIR))
                both = shuffle(b, even, odd, [place + row * length for place in places for row in range(PAIR)])
                self.isa.store_bits(b, both, self.dst_at(b, dst, there), count)

        def last() -> None:
            if planes == 1:  # some words twice cost less than a mask
                b.either(
                    b.compare("sge", run.extent, length),
                    lambda: vectors(b.sub(run.extent, length)), lambda: vectors(whole, rest),
                )  # fmt: skip
            else:
                vectors(whole, rest)

        b.loop(0, whole, lambda q, _: vectors(q), step=length, name="rows")
        rest = b.sub(run.extent, whole)
        if rest != 0:
            with b.when(b.compare("sgt", rest, 0)):
                last()

    def parts(self, b: Builder, src: Value, load: Callable[[Value], Value]) -> tuple[Value, Value]:
        """Numbers and their partners; zeros for those that are wanting."""
        zeros = Value(vector_of(PAIR * self.isa.lanes(self.compute), "i16"), "zeroinitializer")
        even = zeros if self.alone else load(src)
        return even, zeros if self.partner is None else load(self.src_at(b, src, self.partner))

    def row(self, b: Builder, src: Value, q: Index, count: Index | None) -> Value:
        """A vector of numbers, which are looked at."""
        place = self.src_at(b, src, q)
        if self.ahead and self.partner not in (None, 1):
            b.prefetch(b.beyond(place, self.ahead * self.partner * BYTES[self.src_dtype]), L2)
        numbers = self.load_numbers(b, place, PAIR * self.isa.lanes(self.compute), count)
        self.note(b, numbers)
        return numbers

    def load_row(self, b: Builder, src: Value, step: int, lanes: int, count: Index | None = None) -> Value:
        """Words, or the first `count`; from one to the next they are as far apart as loads bring them, or `step`."""
        if step not in (1, self.step):
            words = self._together(b, lambda place: self._apart(b, self.src_at(b, src, place), step, lanes, count))
        elif self.partner == 1:
            words = self.load_numbers(b, src, PAIR * lanes, None if count is None else b.mul(count, PAIR))
        else:
            words = self._together(b, lambda place: self._stored(b, self.src_at(b, src, place), lanes, count))
        return b.cast("bitcast", words, vector_of(lanes, "float"))

    def _apart(self, b: Builder, src: Value, step: int, lanes: int, count: Index | None) -> Value:
        """Numbers that lie `step` apart, or the first `count`."""

        def load(q: Index, count: Value | None) -> Value:
            return self._stored(b, self.src_at(b, src, q), lanes, count)

        return load_every(b, lanes, step, lanes if count is None else count, load)

    def scalar(self, b: Builder, src: Value, dst: Value) -> None:
        """One word."""
        if self.partner is None and self.src_dtype == "bf16" and isinstance(self.watch, Watch | None):
            bits = b.cast("zext", b.load("i16", src, PAIR), "i32")
            if self.watch is not None:
                self.watch.note(b, b.cast("bitcast", b.binary("shl", bits, constant("i32", 16)), "float"))
            b.store(bits, dst, PAIR)
            return
        kind, size = STORAGE[self.src_dtype], BYTES[self.src_dtype]
        word = self._together(b, lambda place: b.load(kind, self.src_at(b, src, place), size))
        words = vector_of(self.isa.lanes("f32"), "i32")
        one = b.emit(words, f"insertelement {words} zeroinitializer, {word}, i64 0")
        self.store(b, b.cast("bitcast", one, vector_of(self.isa.lanes("f32"), "float")), dst, index(1))

    def store(self, b: Builder, value: Value, dst: Value, count: Value | None = None) -> None:
        """Words, which may lie at any address of a bf16."""
        lanes = PAIR * self.isa.lanes("f32")
        numbers = b.cast("bitcast", value, vector_of(lanes, "i16"))
        self.note(b, numbers)
        self.isa.store_bits(b, numbers, dst, None if count is None else index(b.mul(count, PAIR)))

    def load_numbers(self, b: Builder, address: Value, lanes: int, count: Index | None = None) -> Value:
        """Numbers of src as bf16, at least a pair; zeros beyond the first `count`."""
        if self.src_dtype == "bf16":
            return load_bf16(b, self.isa, address, lanes, count)
        low, high = (self._half(b, address, n * lanes // 2, lanes // 2, count) for n in range(2))
        return rounded_pair(b, self.isa, low, high)

    def _half(self, b: Builder, address: Value, start: int, lanes: int, count: Index | None) -> Value:
        """From a place on."""
        if count is not None:
            count = b.minimum(b.maximum(b.sub(count, start), 0), lanes)
        count = None if count == lanes else count
        return self._stored(b, b.at(address, start, STORAGE[self.src_dtype]), lanes, count)

    def _stored(self, b: Builder, address: Value, lanes: int, count: Index | None) -> Value:
        """Numbers as they are stored."""
        if self.src_dtype == "bf16":
            return load_bf16(b, self.isa, address, lanes, count)
        return self.isa.load(b, self.src_dtype, address, lanes, None if count is None else index(count))

    def _together(self, b: Builder, load: Callable[[int], Value]) -> Value:
        """Words whose lower halves are the even numbers, of numbers as they are stored."""
        even = None if self.alone else load(0)
        odd = None if self.partner is None else load(self.partner)
        one = even or odd
        assert one is not None, "one of a word is a number"
        if self.src_dtype != "bf16":
            zeros = Value(one.type, "zeroinitializer")
            return words_of_f32(b, self.isa, even or zeros, odd or zeros)
        kind = one.type.replace("i16", "i32")
        halves = [b.cast("zext", even, kind)] if even else []
        if odd:
            halves.append(b.binary("shl", b.cast("zext", odd, kind), constant(kind, 16)))
        return halves[0] if len(halves) == 1 else b.binary("or", *halves)

    def note(self, b: Builder, numbers: Value) -> None:
        """Look at what is moved."""
        if self.watch is not None:
            self.watch.note_bf16(b, numbers)


def paired_copy(
    isa: Isa, dtype: str, watch: Watch | LeastWatch | None, room: Value | None, partner: int = 1, ahead: int = 0
) -> PairedCopy:  # fmt: skip
    """Of bf16 or f32 so far apart."""
    return PairedCopy(
        isa=isa, compute="f32", src_dtype=dtype, dst_dtype="f32", partner=partner, watch=watch, room=room, ahead=ahead
    )  # fmt: skip
