"""Copies between a tensor in the caller's strides and a packed buffer, either way, converting as they go.

Which axis is contiguous where decides how: the same axis on both sides is copied by vectors, two different axes are
transposed in registers, and anything else goes number by number. Nothing outside the box is read or written.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

from convgrad.codegen.interleave import MOST_PLANES, emit_deinterleave, emit_interleave
from convgrad.codegen.ir import Builder, Index, Value, index
from convgrad.codegen.isa.base import STORAGE, Isa
from convgrad.codegen.splitting import Pieces


@dataclass(frozen=True, slots=True)
class Dim:
    """One axis of the box: how many elements, and the step between them on each side, in elements."""

    extent: Index
    src: int
    dst: int


@dataclass(frozen=True, slots=True)
class Square:
    """As many rows and columns as a vector has lanes, or fewer; `across` is contiguous in dst, `along` in src."""

    src: Value
    dst: Value
    across: Dim
    along: Dim
    rows: Index
    columns: Index

    def full(self, lanes: int) -> bool | None:
        """Whether nothing is missing; None if that is not known before the kernel runs."""
        if self.rows == lanes and self.columns == lanes:
            return True
        known = (extent for extent in (self.rows, self.columns) if isinstance(extent, int))
        return False if any(extent < lanes for extent in known) else None


@dataclass(frozen=True, slots=True, kw_only=True)
class Copy:
    """The two sides of a copy. `accumulate` adds to what dst holds, before the one rounding.

    With `pieces`, dst holds bf16 and gets the pieces of every number.
    """

    isa: Isa
    compute: str
    src_dtype: str
    dst_dtype: str
    accumulate: bool = False
    pieces: Pieces | None = None
    source_order: bool = False  # visit src from one end to the other, rather than dst

    def emit(self, b: Builder, src: Value, dst: Value, dims: Sequence[Dim]) -> None:
        """dst[Σ i · dst step] = src[Σ i · src step] over the box."""
        dims = _merged(dims)
        along_dst = next((d for d in dims if d.dst == 1), None)
        along_src = next((d for d in dims if d.src == 1), None)
        if along_dst is not None and along_dst is along_src:
            inner, body = [along_dst], self._vectors
        elif along_dst is not None and along_dst.src == 0 and not self.accumulate:
            inner, body = [along_dst], self._fill
        elif along_dst is not None and along_src is not None:
            inner, body = [along_dst, along_src], self._transposed
            if _few(along_dst.extent) and along_src.dst == along_dst.extent:
                body = self._interleaved
            elif _few(along_src.extent) and along_dst.src == along_src.extent:
                body = self._deinterleaved
        else:
            inner, body = [], self._scalar
        outer = [d for d in dims if all(d is not other for other in inner)]
        outer.sort(key=lambda d: -abs(d.src if self.source_order else d.dst))
        self.nest(b, src, dst, outer, lambda s, d: body(b, s, d, *inner))

    def emit_planes(
        self, b: Builder, src: Value, dst: Value, dims: Sequence[Dim], inner: Dim, planes: int, pitch: int
    ) -> None:
        """Like `emit`, with element q of the inner axis at (q mod planes) · pitch + q div planes in dst."""
        if inner.src == 1:
            self.nest(b, src, dst, dims, lambda s, d: self.deinterleave(b, s, d, planes, pitch, inner.extent))
            return

        def plane(r: Index, _: object) -> None:
            count = b.floor_div(b.add(b.sub(inner.extent, r), planes - 1), planes)
            source, target = self._src(b, src, b.mul(r, inner.src)), self._dst(b, dst, b.mul(r, pitch))
            self.emit(b, source, target, [*dims, Dim(count, inner.src * planes, 1)])

        b.loop(0, planes, plane, name="plane")

    def emit_phases(
        self, b: Builder, src: Value, dst: Value, dims: Sequence[Dim], inner: Dim, planes: int, pitch: int
    ) -> None:
        """Like `emit`, with element q of the inner axis at (q mod planes) · pitch + q div planes in src."""
        if inner.dst == 1 and planes <= MOST_PLANES:
            self.nest(b, src, dst, dims, lambda s, d: self.interleave(b, s, d, planes, pitch, inner.extent))
            return

        def plane(r: Index, _: object) -> None:
            count = b.floor_div(b.add(b.sub(inner.extent, r), planes - 1), planes)
            source, target = self._src(b, src, b.mul(r, pitch)), self._dst(b, dst, b.mul(r, inner.dst))
            self.emit(b, source, target, [*dims, Dim(count, 1, inner.dst * planes)])

        b.loop(0, planes, plane, name="plane")

    # --- loops

    def nest(
        self, b: Builder, src: Value, dst: Value, dims: Sequence[Dim], body: Callable[[Value, Value], None]
    ) -> None:
        """`body(src, dst)` at every position of the axes, the first outermost."""
        if not dims:
            body(src, dst)
            return
        dim = dims[0]

        def step(i: Index, _: object) -> None:
            self.nest(b, self._src(b, src, b.mul(i, dim.src)), self._dst(b, dst, b.mul(i, dim.dst)), dims[1:], body)

        b.loop(0, dim.extent, step, name="copy")

    def _src(self, b: Builder, base: Value, offset: Index) -> Value:
        return b.at(base, offset, STORAGE[self.src_dtype])

    def _dst(self, b: Builder, base: Value, offset: Index) -> Value:
        return b.at(base, offset, STORAGE[self.dst_dtype])

    def interleave(self, b: Builder, src: Value, dst: Value, planes: int, plane_step: int, run: Index) -> None:
        """dst[q] = src[(q mod planes) · plane_step + q div planes] for q < run."""

        def load(plane: int, position: Index, count: Value | None) -> Value:
            address = self._src(b, src, b.add(position, plane * plane_step))
            return self.isa.load(b, self.src_dtype, address, lanes, count)

        def scalar(q: Index, plane: Index, position: Index) -> None:
            address = self._src(b, src, b.add(position, b.mul(plane, plane_step)))
            self._scalar(b, address, self._dst(b, dst, q))

        def store(value: Value, q: Index, count: Value | None) -> None:
            self._store(b, value, self._dst(b, dst, q), count)

        lanes = self.isa.lanes(self.compute)
        emit_interleave(b, self.isa, lanes, planes, run, load, store, scalar)

    def deinterleave(self, b: Builder, src: Value, dst: Value, planes: int, plane_step: int, run: Index) -> None:
        """dst[(q mod planes) · plane_step + q div planes] = src[q] for q < run."""

        def load(q: Index, count: Value | None) -> Value:
            return self.isa.load(b, self.src_dtype, self._src(b, src, q), lanes, count)

        def scalar(q: Index, plane: Index, position: Index) -> None:
            self._scalar(b, self._src(b, src, q), target(plane, position))

        def target(plane: Index, position: Index) -> Value:
            return self._dst(b, dst, b.add(position, b.mul(plane, plane_step)))

        def store(value: Value, plane: Index, position: Index, count: Value | None) -> None:
            self._store(b, value, target(plane, position), count)

        lanes = self.isa.lanes(self.compute)
        emit_deinterleave(b, self.isa, lanes, planes, run, load, store, scalar)

    # --- one innermost piece

    def _interleaved(self, b: Builder, src: Value, dst: Value, across: Dim, along: Dim) -> None:
        assert isinstance(across.extent, int)
        self.interleave(b, src, dst, across.extent, across.src, b.mul(along.extent, across.extent))

    def _deinterleaved(self, b: Builder, src: Value, dst: Value, across: Dim, along: Dim) -> None:
        assert isinstance(along.extent, int)
        self.deinterleave(b, src, dst, along.extent, along.dst, b.mul(across.extent, along.extent))

    def _scalar(self, b: Builder, src: Value, dst: Value) -> None:
        self._store(b, self.isa.load(b, self.src_dtype, src), dst)

    def _store(self, b: Builder, value: Value, dst: Value, count: Value | None = None) -> None:
        if self.pieces is not None:
            self.pieces.store(b, self.isa, value, dst, count)
            return
        if self.accumulate:
            lanes = int(value.type[1:].split()[0]) if value.type.startswith("<") else 1
            value = b.binary("fadd", self.isa.load(b, self.dst_dtype, dst, lanes, count), value)
        self.isa.store(b, self.dst_dtype, value, dst, count)

    def _fill(self, b: Builder, src: Value, dst: Value, dim: Dim) -> None:
        """One number, many times; not even read where there is nothing to fill."""
        lanes = self.isa.lanes(self.compute)
        with b.when(b.compare("sgt", dim.extent, 0)):
            one = self.isa.load(b, self.src_dtype, src)
            every = self.isa.splat(b, one, lanes)
            whole = b.mul(b.floor_div(dim.extent, lanes), lanes)
            b.loop(0, whole, lambda i, _: self._store(b, every, self._dst(b, dst, i)), step=lanes, name="fill")
            b.loop(whole, dim.extent, lambda i, _: self._store(b, one, self._dst(b, dst, i)), name="fill")

    def _vectors(self, b: Builder, src: Value, dst: Value, dim: Dim) -> None:
        lanes = self.isa.lanes(self.compute)
        whole = b.mul(b.floor_div(dim.extent, lanes), lanes)

        def vector(i: Index, count: Value | None = None) -> None:
            value = self.isa.load(b, self.src_dtype, self._src(b, src, i), lanes, count)
            self._store(b, value, self._dst(b, dst, i), count)

        b.loop(0, whole, lambda i, _: vector(i), step=lanes, name="vector")
        rest = b.sub(dim.extent, whole)
        if rest == 0:
            return
        if isinstance(dim.extent, int) and dim.extent >= lanes and not self.accumulate:
            vector(dim.extent - lanes)  # some numbers twice cost less than a mask
            return
        if not self.isa.masks:
            b.loop(whole, dim.extent, lambda i, _: self._scalar(b, self._src(b, src, i), self._dst(b, dst, i)))
        elif isinstance(rest, int):
            vector(whole, index(rest))
        else:
            with b.when(b.compare("sgt", rest, 0)):
                vector(whole, rest)

    def _transposed(self, b: Builder, src: Value, dst: Value, across: Dim, along: Dim) -> None:
        """`across` is contiguous in dst, `along` in src."""
        lanes = self.isa.lanes(self.compute)

        def tiles(i: Index, _: object) -> None:
            i, rows = self._square(b, i, across.extent)
            b.loop(0, along.extent, lambda j, _: tile(i, j, rows), step=lanes, name="along")

        def tile(i: Index, j: Index, rows: Index) -> None:
            j, columns = self._square(b, j, along.extent)
            source = b.hidden(self._src(b, src, b.dot([(i, across.src), (j, along.src)])))
            target = b.hidden(self._dst(b, dst, b.dot([(i, across.dst), (j, along.dst)])))
            square = Square(source, target, across, along, rows, columns)
            if self.isa.masks or square.full(lanes) is True:
                self._turn(b, square)
            else:
                self._turn_or_move(b, square)

        b.loop(0, across.extent, tiles, step=lanes, name="across")

    def _square(self, b: Builder, start: Index, extent: Index) -> tuple[Index, Index]:
        """Where the square at `start` begins on an axis, and how much of the axis it holds.

        The last one begins early where the axis is long enough: some numbers twice cost less than a part of a square.
        """
        lanes = self.isa.lanes(self.compute)
        known = isinstance(extent, int)
        if known and (extent <= lanes or extent % lanes == 0):
            return start, min(extent, lanes)
        if self.accumulate:
            return start, b.minimum(b.sub(extent, start), lanes)
        early = b.minimum(start, b.sub(extent, lanes))
        if known:
            return early, lanes
        start = b.select(b.compare("sge", extent, lanes), index(early), index(start))
        return start, b.minimum(b.sub(extent, start), lanes)

    def _turn(self, b: Builder, square: Square) -> None:
        """Transpose a square, of which there may be only a part; the shuffles are written down once."""
        lanes = self.isa.lanes(self.compute)
        full = square.full(lanes)
        if isinstance(full, bool):
            rows = self._whole_rows(b, square) if full else self._part_rows(b, square)
            self._store_turned(b, square, self.isa.transpose(b, rows), full)
            return
        whole = b.compare("eq", b.add(square.rows, square.columns), 2 * lanes)
        rows = b.one_of(whole, lambda: self._whole_rows(b, square), lambda: self._part_rows(b, square))
        values = self.isa.transpose(b, rows)
        b.either(
            whole,
            lambda: self._store_turned(b, square, values, True),
            lambda: self._store_turned(b, square, values, False),
        )

    def _turn_or_move(self, b: Builder, square: Square) -> None:
        """Without masks, a part of a square goes number by number."""
        lanes = self.isa.lanes(self.compute)

        def move() -> None:
            box = [
                replace(square.across, extent=square.rows),
                replace(square.along, extent=square.columns),
            ]
            self.nest(b, square.src, square.dst, box, lambda s, d: self._scalar(b, s, d))

        def turn() -> None:
            self._store_turned(b, square, self.isa.transpose(b, self._whole_rows(b, square)), True)

        if square.full(lanes) is False:
            move()
            return
        b.either(b.compare("eq", b.add(square.rows, square.columns), 2 * lanes), turn, move)

    def _whole_rows(self, b: Builder, square: Square) -> list[Value]:
        lanes, step = self.isa.lanes(self.compute), square.across.src
        return [self.isa.load(b, self.src_dtype, self._src(b, square.src, i * step), lanes) for i in range(lanes)]

    def _part_rows(self, b: Builder, square: Square) -> list[Value]:
        lanes, rows = self.isa.lanes(self.compute), square.rows
        known = rows if isinstance(rows, int) else lanes
        values = []
        for i in range(known):  # past the last: read it again
            address = self._src(b, square.src, b.mul(b.minimum(i, b.sub(rows, 1)), square.across.src))
            values.append(self.isa.load(b, self.src_dtype, address, lanes, index(square.columns)))
        return values + [Value(self.isa.vector(self.compute), "zeroinitializer")] * (lanes - known)

    def _store_turned(self, b: Builder, square: Square, values: list[Value], full: bool) -> None:
        lanes, step = len(values), square.along.dst
        rows, columns = (None, lanes) if full else (index(square.rows), square.columns)
        if self.pieces is not None and self.pieces.room is not None:
            self._store_rows(b, values, square.dst, square.along, rows, columns, self.pieces.room)
            return
        for j, value in enumerate(values):
            if isinstance(columns, int):
                if j < columns:
                    self._store(b, value, self._dst(b, square.dst, j * step), rows)
            else:
                with b.when(b.compare("sgt", columns, j)):
                    self._store(b, value, self._dst(b, square.dst, j * step), rows)

    def _store_rows(
        self, b: Builder, values: list[Value], dst: Value, along: Dim, rows: Value | None, columns: Index,
        room: Value,
    ) -> None:  # fmt: skip
        """Vectors by way of memory, so that the many instructions of a split are written down once."""
        lanes = len(values)
        for j, value in enumerate(values):
            self.isa.store(b, self.compute, value, b.at(room, j * lanes, STORAGE[self.compute]))

        def one(j: Index, _: object) -> None:
            value = self.isa.load(b, self.compute, b.at(room, b.mul(j, lanes), STORAGE[self.compute]), lanes)
            self._store(b, value, self._dst(b, dst, b.mul(j, along.dst)), rows)

        b.loop(0, columns, one, name="row")


def _few(extent: Index) -> bool:
    return isinstance(extent, int) and 1 < extent <= 8


def _merged(dims: Sequence[Dim]) -> list[Dim]:
    """The same box with fewer axes: single elements dropped, axes that continue each other joined."""
    kept = [d for d in dims if d.extent != 1]
    joined = True
    while joined:
        joined = False
        for outer in kept:
            for inner in kept:
                steps = (inner.src * inner.extent, inner.dst * inner.extent) if isinstance(inner.extent, int) else None
                if outer is not inner and isinstance(outer.extent, int) and steps == (outer.src, outer.dst):
                    kept = [d for d in kept if d is not outer and d is not inner]
                    kept.append(Dim(outer.extent * inner.extent, inner.src, inner.dst))
                    joined = True
                    break
            if joined:
                break
    return kept


def emit_zero(b: Builder, isa: Isa, compute: str, dst: Value, count: Index) -> None:
    """Zeros in `count` numbers of a buffer."""
    kind, lanes = STORAGE[compute], isa.lanes(compute)
    zeros, zero = Value(isa.vector(compute), "zeroinitializer"), Value(kind, "0.0")
    whole = b.mul(b.floor_div(count, lanes), lanes)

    def clear(value: Value) -> Callable[[Index, object], None]:
        return lambda i, _: isa.store(b, compute, value, b.at(dst, i, kind))

    b.loop(0, whole, clear(zeros), step=lanes, name="zero")
    b.loop(whole, count, clear(zero), name="zero")


@dataclass(frozen=True, slots=True)
class Range:
    """Positions low <= i < high of a packed axis that hold numbers; others are to be zero, if anybody reads them."""

    low: Index
    high: Index
    extent: Index | None  # None: nobody reads beyond the numbers
    step: int

    @property
    def full(self) -> bool:
        """Whether nothing is to be zero."""
        return self.extent is None or (self.low == 0 and self.high == self.extent)


def emit_zero_outside(b: Builder, isa: Isa, compute: str, dst: Value, axes: Sequence[Range]) -> None:
    """Zeros at all positions of a packed box that lie outside the range of some axis; the last axis is contiguous."""
    if all(axis.full for axis in axes):
        return
    axis, *inner = axes

    def at(i: Index) -> Value:
        return b.at(dst, b.mul(i, axis.step), STORAGE[compute])

    for first, last in ((0, axis.low), (axis.high, axis.extent)) if axis.extent is not None else ():
        if inner:
            b.loop(first, last, lambda i, _: emit_zero(b, isa, compute, at(i), axis.step), name="outside")
        else:
            emit_zero(b, isa, compute, at(first), b.mul(b.sub(last, first), axis.step))
    if inner:
        b.loop(axis.low, axis.high, lambda i, _: emit_zero_outside(b, isa, compute, at(i), inner), name="inside")
