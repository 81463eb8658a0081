"""Numbers two by two, each with one half a block of channels away, as the pieces that a matrix unit multiplies.

In which order channels are summed is free, as long as both operands have the same. Partners that are half a block
apart are two vectors of a tensor: their pieces go side by side without a shuffle, and fill a cache line at once.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from convgrad.codegen.copies.copying import Copy, nearly_contiguous
from convgrad.codegen.copies.pairs import words_of
from convgrad.codegen.copies.squares import Dim
from convgrad.codegen.ir import Builder
from convgrad.codegen.ir_module import Index, Value, index
from convgrad.codegen.isa.base import STORAGE
from convgrad.plan.by_matrix.matrix import COLUMNS
from convgrad.values import frozen, replace

Two = tuple[Index, Index]
Also = Callable[[Index, Value], None]  # what is done besides with a pair, or a lane of a square, and its address


@frozen(kw_only=True)
class HalvesCopy:
    """dst[Σ outer i · dst step + run i · dst step + 2 · lane + half] = src[likewise + half · apart + lane · lane_step].

    copy    of which `pieces` get what becomes of every number, with room for two squares
    lanes   that there are of either half, at most `room`; the others are zero
    room    lanes of an element in dst, at most 16
    runs    elements of the run that there are of either half: not more of the second one
    """

    copy: Copy
    lanes: Two
    lane_step: int
    apart: int
    room: int = COLUMNS

    def emit(
        self, b: Builder, src: Value, dst: Value, outer: Sequence[Dim], run: Dim, runs: Two, also: Also | None = None
    ) -> None:
        """All pairs, with zeros for numbers that there are not: but where nothing lies together these are left out.

        `also` is done with each pair where lanes lie side by side, and with each lane of a square.
        """
        if self.lane_step == 1:
            body = self._along_lanes
        elif run.src == 1 or nearly_contiguous([run], None):
            body = self._in_squares
        else:
            self._one_by_one(b, src, dst, outer, run, runs)
            return
        self.copy.nest(b, src, dst, outer, lambda s, d: body(b, s, d, run, runs, also))

    def _along_lanes(
        self, b: Builder, src: Value, dst: Value, run: Dim, runs: Two, also: Also | None
    ) -> None:  # fmt: skip
        copy = self.copy

        def two(i: Index, both: bool) -> None:
            here = copy.src_at(b, src, b.mul(i, run.src))
            if also is not None:
                also(i, here)
            values = [self._row(b, copy.src_at(b, here, half * self.apart), 1, self.lanes[half]) for half in (0, both)]
            self.store(b, values[0], values[1] if both else None, copy.dst_at(b, dst, b.mul(i, run.dst)))

        b.loop(0, runs[1], lambda i, _: two(i, True), name="pair")
        b.loop(runs[1], runs[0], lambda i, _: two(i, False), name="alone")

    def _in_squares(
        self, b: Builder, src: Value, dst: Value, run: Dim, runs: Two, also: Also | None
    ) -> None:  # fmt: skip
        """Sixteen elements of the run at a time."""
        copy, room = self.copy, self._squares

        def square(i: Index, half: int, count: Index) -> None:
            source = copy.src_at(b, src, b.add(b.mul(i, run.src), half * self.apart))
            there = b.at(room, half * COLUMNS * COLUMNS, "float")
            for j, column in enumerate(copy.isa.transpose(b, self._rows(b, source, run.src, half, count))):
                copy.isa.store(b, "f32", column, b.at(there, j * COLUMNS, "float"))

        def both(i: Index, _: object) -> None:
            counts = [b.minimum(b.maximum(b.sub(extent, i), 0), COLUMNS) for extent in runs]
            halves = [half for half in (0, 1) if counts[half] != 0 and self.lanes[half] != 0]
            for half in halves:
                square(i, half, counts[half])

            def two(j: Index, _: object) -> None:
                if also is not None:
                    also(j, copy.src_at(b, src, b.add(b.mul(i, run.src), b.mul(j, self.lane_step))))
                values = [copy.isa.load(b, "f32", self._column(b, half, j), COLUMNS) for half in halves]
                place = copy.dst_at(b, dst, b.mul(b.add(i, j), run.dst))
                self.store(b, values[0], values[1] if len(values) > 1 else None, place)

            b.loop(0, counts[0], two, name="pair")

        b.loop(0, runs[0], both, step=COLUMNS, name="square")

    def _rows(self, b: Builder, source: Value, step: int, half: int, count: Index) -> list[Value]:
        """A vector of the run for every lane, zeros for lanes that there are not."""
        copy, lanes, zero = self.copy, self.lanes[half], Value(self.copy.isa.vector("f32"), "zeroinitializer")
        some = None if count == COLUMNS else count

        def row(lane: Index) -> Value:
            return copy.load_row(b, copy.src_at(b, source, b.mul(lane, self.lane_step)), step, COLUMNS, some)

        if isinstance(lanes, int):
            return [row(lane) if lane < lanes else zero for lane in range(COLUMNS)]
        last = b.sub(lanes, 1)
        rows = [row(b.minimum(lane, last)) for lane in range(COLUMNS)]
        return [b.select(b.compare("slt", lane, lanes), value, zero) for lane, value in enumerate(rows)]

    def _one_by_one(self, b: Builder, src: Value, dst: Value, outer: Sequence[Dim], run: Dim, runs: Two) -> None:
        for half, (lanes, extent) in enumerate(zip(self.lanes, runs, strict=True)):
            source = self.copy.src_at(b, src, half * self.apart)
            self.copy.emit(
                b, source, self.copy.dst_at(b, dst, half),
                [*outer, replace(run, extent=extent), Dim(lanes, self.lane_step, 2)],
            )  # fmt: skip

    # --- one vector

    def _row(self, b: Builder, source: Value, step: int, lanes: Index) -> Value:
        return self.copy.load_row(b, source, step, COLUMNS, None if lanes == COLUMNS else lanes)

    def store(self, b: Builder, first: Value, second: Value | None, place: Value) -> None:
        """Two vectors, or one and zeros."""
        pieces = self.copy.pieces
        assert pieces is not None
        zero = Value(first.type, "zeroinitializer")
        some = None if self.room == COLUMNS else index(self.room)
        for number, words in enumerate(words_of(b, pieces, first, zero if second is None else second)):
            there = b.at(place, number * pieces.step, "i16")
            self.copy.isa.store(b, "f32", b.cast("bitcast", words, first.type), there, some)

    @property
    def _squares(self) -> Value:
        pieces = self.copy.pieces
        assert pieces is not None
        assert pieces.room is not None
        return pieces.room

    def _column(self, b: Builder, half: int, j: Index) -> Value:
        return b.at(self._squares, b.mul(b.add(j, half * COLUMNS), COLUMNS), STORAGE["f32"])
