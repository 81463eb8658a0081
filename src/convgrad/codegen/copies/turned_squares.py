"""Squares turned in registers: what is loaded as rows is stored as columns.

A module holds the many instructions of one once for every way to load and store it: a function, which the copies of a
kernel share.
"""

from __future__ import annotations

from convgrad.codegen.copies.squares import Square, Squares
from convgrad.codegen.ir import Builder
from convgrad.codegen.ir_module import Index, Value, index
from convgrad.codegen.isa.base import STORAGE
from convgrad.codegen.outputs.runs import Run
from convgrad.values import frozen, replace


@frozen
class TurnedSquares(Squares):
    """How `copy` moves what is contiguous, or nearly so, along one axis in src and along another in dst."""

    def _one(self, b: Builder, square: Square) -> None:
        """Here, where its extents or what becomes of its numbers are its own; else in the function of such squares."""
        own = self.copy.own_squares
        if own or (isinstance(square.rows, int) and isinstance(square.columns, int)):
            if square.full(self.lanes) and not own:
                b.call_void(
                    self._function(b, square.skip, True), square.src, square.dst, square.src_step, square.dst_step
                )
                return
            self._turn(b, square, self.copy.square_room)
            return
        steps = square.src_step, square.dst_step
        extents = square.rows, square.columns
        few = tuple(n if isinstance(n, int) and n < self.lanes else None for n in extents)
        b.call_void(self._function(b, square.skip, False, few), square.src, square.dst, *steps, *extents)

    def _function(self, b: Builder, skip: int, full: bool, few: tuple[int | None, ...] = (None, None)) -> str:
        """The name of the function of squares, of full ones only or of any, which is written if there is none yet.

        There is one of its own for `few` rows, or columns, fewer than lanes, that are known.
        """
        copy, lanes = self.copy, self.lanes
        how = "added" if copy.accumulate else "streamed" if copy.streams else "stored"
        how += ".ordinary" if copy.ordinary else ""
        name = f"turn.{copy.compute}.{copy.src_dtype}.{copy.dst_dtype}.{how}.{'full' if full else 'any'}"
        name += f".{skip}" if skip > 1 else ""
        name += "".join(f".{side}.{n}" for side, n in zip(("rows", "columns"), few, strict=True) if n)
        if name not in b.module.notes:
            b.module.notes.add(name)
            names = ["src.step", "dst.step", *(() if full else ("rows", "columns"))]
            inner = Builder(
                b.module, name, [("ptr", "src"), ("ptr", "dst"), *(("i64", n) for n in names)], inline=False
            )
            src, dst, src_step, dst_step, *extents = inner.arguments
            rows, columns = (n or extent for n, extent in zip(few, extents or (lanes, lanes), strict=True))
            room = None
            if not full and copy.isa.masks:
                room = inner.emit("ptr", f"alloca [{lanes * lanes} x {STORAGE[copy.compute]}], align 64")
            self._turn(inner, Square(src, dst, src_step, dst_step, rows, columns, skip), room)
            inner.finish()
        return name

    def _turn(self, b: Builder, square: Square, room: Value | None) -> None:
        """Transpose a square, of which there may be only a part; the shuffles are written down once.

        `room` is memory for all of its numbers.
        """
        isa, full = self.copy.isa, square.full(self.lanes)
        if full:
            self._store_whole(b, square, self._whole(b, square), room)
        elif not isa.masks:
            self._turn_or_move(b, square, full)
        elif full is False and (other := self._other_side(square)):
            b.either(
                b.compare("eq", getattr(square, other), self.lanes),  # as most are: then nothing goes by way of memory
                lambda: self._turn_part(b, replace(square, **{other: self.lanes}), None),
                lambda: self._turn_part(b, square, room),
            )
        elif full is False:
            self._turn_part(b, square, room)
        else:
            whole = self._is_whole(b, square)
            values = self._whole_or_part(b, square, whole, room)
            b.either(
                whole,
                lambda: self._store_whole(b, square, values, room),
                lambda: self._store_part(b, square, values, room),
            )

    def _other_side(self, square: Square) -> str:
        """Which side is as long as only the kernel knows, where few of the other are known; none of its own squares."""
        if self.copy.own_squares:
            return ""
        return next((side for side in ("rows", "columns") if isinstance(getattr(square, side), Value)), "")

    def _turn_part(self, b: Builder, square: Square, room: Value | None) -> None:
        self._store_part(b, square, self.copy.isa.transpose(b, self._part_rows(b, square, room)), room)

    def _whole(self, b: Builder, square: Square) -> list[Value]:
        copy = self.copy
        if not copy.converts and square.skip == 1:
            return copy.isa.load_transposed(b, copy.compute, square.src, square.src_step)
        return copy.isa.transpose(b, self._whole_rows(b, square))

    def _whole_or_part(self, b: Builder, square: Square, whole: Value, room: Value | None) -> list[Value]:
        """The columns of a square; a part of one is made whole first."""
        copy, lanes = self.copy, self.lanes
        if copy.converts or not copy.isa.assembly or square.skip > 1:
            rows = b.one_of(whole, lambda: self._whole_rows(b, square), lambda: self._part_rows(b, square, room))
            return copy.isa.transpose(b, rows)

        def filled() -> list[Value]:
            self._fill_room(b, square, room)
            return [self._in_room(b, room, 0), index(lanes)]

        src, step = b.one_of(whole, lambda: [square.src, index(square.src_step)], filled)
        return copy.isa.load_transposed(b, copy.compute, src, step)

    def _turn_or_move(self, b: Builder, square: Square, full: bool | None) -> None:
        """Without masks, a part of a square that is not known goes number by number."""
        copy, lanes = self.copy, self.lanes

        def move_row(i: Index, _: object) -> None:
            src, dst = copy.src_at(b, square.src, b.mul(i, square.src_step)), copy.dst_at(b, square.dst, i)

            def move(j: Index, _: object) -> None:
                copy.scalar(
                    b, copy.src_at(b, src, b.mul(j, square.skip)), copy.dst_at(b, dst, b.mul(j, square.dst_step))
                )

            b.loop(0, square.columns, move, name="column")

        def move_all() -> None:
            b.loop(0, square.rows, move_row, name="row")

        def turn() -> None:
            self._store_whole(b, square, self._whole(b, square), None)

        def turn_few() -> None:
            self._turn_part(b, replace(square, **{other: lanes} if other else {}), None)

        other = self._other_side(square)
        if full is False and self._turns_few(square):
            if other:
                b.either(b.compare("eq", getattr(square, other), lanes), turn_few, move_all)
            else:
                turn_few()
        elif full is False:
            move_all()
        else:
            b.either(self._is_whole(b, square), turn, move_all)

    def _turns_few(self, square: Square) -> bool:
        """Whether known numbers of rows and columns, at least half of a vector, are turned without masks."""
        known = [n for n in (square.rows, square.columns) if isinstance(n, int)]
        return not self.copy.accumulate and self.copy.pieces is None and all(2 * n >= self.lanes > 2 for n in known)

    def _is_whole(self, b: Builder, square: Square) -> Value:
        return b.compare("eq", b.add(square.rows, square.columns), 2 * self.lanes)

    def _lines(self, b: Builder, base: Value, step: Index, kind: str) -> list[Value]:
        """Addresses `step` numbers apart; four at a time from one, as far as an instruction reaches with two steps."""
        if isinstance(step, int):
            return [b.at(base, i * step, kind) for i in range(self.lanes)]
        several = [b.mul(i, step) for i in range(5)]
        lines = [base]
        while len(lines) < self.lanes:
            lines += [b.at(lines[-1], several[i], kind) for i in (1, 2, 3)]
            lines.append(b.at(lines[-4], several[4], kind))
        return lines[: self.lanes]

    def _whole_rows(self, b: Builder, square: Square) -> list[Value]:
        copy = self.copy
        addresses = self._lines(b, square.src, square.src_step, STORAGE[copy.src_dtype])
        return [copy.load_row(b, address, square.skip, self.lanes) for address in addresses]

    def _part_rows(self, b: Builder, square: Square, room: Value | None) -> list[Value]:
        """What is missing is zero, or the last row again."""
        copy, lanes, rows = self.copy, self.lanes, square.rows

        def load(i: Index) -> Value:
            address = copy.src_at(b, square.src, b.mul(i, square.src_step))
            return copy.load_row(b, address, square.skip, lanes, square.columns)

        if isinstance(rows, int):
            zero = Value(copy.isa.vector(copy.compute), "zeroinitializer")
            return [load(i) for i in range(rows)] + [zero] * (lanes - rows)
        self._fill_room(b, square, room)
        return [copy.isa.load(b, copy.compute, self._in_room(b, room, i), lanes) for i in range(lanes)]

    def _fill_room(self, b: Builder, square: Square, room: Value | None) -> None:
        """Rows, the last one again and again where there are no more."""
        copy, lanes, last = self.copy, self.lanes, b.sub(square.rows, 1)

        def one(i: Index, _: object) -> None:
            address = copy.src_at(b, square.src, b.mul(b.minimum(i, last), square.src_step))
            row = copy.load_row(b, address, square.skip, lanes, square.columns)
            copy.isa.store(b, copy.compute, row, self._in_room(b, room, i))

        b.loop(0, lanes, one, name="row")

    def _store_whole(self, b: Builder, square: Square, values: list[Value], room: Value | None) -> None:
        if self.copy.pieces is not None:
            self._store_from_room(b, square, values, None, self.lanes, room)
            return
        copy, lines = self.copy, self._lines(b, square.dst, square.dst_step, STORAGE[self.copy.dst_dtype])

        def store() -> None:
            if copy.stores_together:
                copy.store_runs(b, (Run([value], line) for value, line in zip(values, lines, strict=True)))
                return
            for value, line in zip(values, lines, strict=True):
                copy.store(b, value, line)

        def stream() -> None:
            for value, line in zip(values, lines, strict=True):
                copy.isa.stream(b, value, line)

        if copy.streams:
            following = copy.dst_at(b, square.dst, square.dst_step)
            b.either(copy.isa.is_aligned(b, square.dst, following), stream, store)
        else:
            store()

    def _store_part(self, b: Builder, square: Square, values: list[Value], room: Value | None) -> None:
        rows, columns = index(square.rows), square.columns
        if room is not None:
            self._store_from_room(b, square, values, rows, columns, room)
            return
        assert isinstance(columns, int)
        for j, value in enumerate(values[:columns]):
            line = self.copy.dst_at(b, square.dst, b.mul(j, square.dst_step))
            if isinstance(square.rows, int) and not self.copy.isa.masks:
                self.copy.store_few(b, value, line, square.rows)
            else:
                self.copy.store(b, value, line, rows)

    def _store_from_room(
        self, b: Builder, square: Square, values: list[Value], rows: Value | None, columns: Index, room: Value | None,
    ) -> None:  # fmt: skip
        """Vectors by way of memory, so that what it takes to store one is written down once."""
        copy, lanes = self.copy, self.lanes
        for j, value in enumerate(values):
            copy.isa.store(b, copy.compute, value, self._in_room(b, room, j))

        def one(j: Index, _: object) -> None:
            value = copy.isa.load(b, copy.compute, self._in_room(b, room, j), lanes)
            copy.store(b, value, copy.dst_at(b, square.dst, b.mul(j, square.dst_step)), rows)

        b.loop(0, columns, one, name="column")
