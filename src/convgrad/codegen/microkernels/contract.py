"""The register tile that every algorithm is made of."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from functools import partial
from itertools import pairwise

from convgrad.codegen.ir import Builder
from convgrad.codegen.ir_module import Index, Value
from convgrad.codegen.isa.base import BYTES, STORAGE, Isa
from convgrad.codegen.isa.halves import lower_half, with_lower_half
from convgrad.codegen.loops.ahead import Fetch, inside
from convgrad.codegen.microkernels.operands import Operands
from convgrad.codegen.microkernels.products import Products, Taps
from convgrad.codegen.microkernels.reduction import Groups, Masks, Reduction, both, in_own_block, joined, known
from convgrad.codegen.outputs.runs import Run, rounds_together
from convgrad.values import frozen, replace

Sums = dict[tuple[int, int], Value]  # of row and column
Add = Callable[[Builder, Value, Value, Value], Value]
Load = Callable[..., Value]  # as `Isa.load` is called
Read = Callable[[Builder, Value, int], Value]  # of where a step begins, and an offset of the tile and its tap

WORTH_ENDING = 16  # steps of a tile that asks for lines, from where on it is worth knowing that these are there


@frozen(kw_only=True)
class Tile:
    """C[r, v] += Σ A[rows[r] + Σ i·a_step + a] · B[columns[v] + Σ i·b_step + b]

    over the product of the reductions and over the taps (a, b), which are written out; what several of them read at the
    same place is read once.


    C        a register tile of rows × columns vectors; in memory C[r, v] is the vector at c_rows[r] + c_columns[v]
    A        numbers broadcast to all lanes (`a_vector` false), or vectors (`a_vector`), one per
             column: A[r, v] at rows[r] + v · lanes; with `a_shared` all columns meet A[r, 0]. With `groups`, a sum over
             the numbers of a group besides: vectors are put together in registers, lane by lane from its group, and B
             moves on by a row of C per number.
    B        vectors, any alignment
    Every offset is known at compile time and becomes part of the instruction. A reduction without trips leaves C as
    it was. rows · columns + columns + 1 registers, or one fewer where vectors of the last column of B stay in memory.
    """

    isa: Isa
    compute: str
    rows: tuple[int, ...]
    columns: tuple[int, ...]
    c_rows: tuple[int, ...]
    c_columns: tuple[int, ...]
    a_vector: bool = False
    a_shared: bool = False
    groups: Groups | None = None
    a_dtype: str = ""  # of storage, where an operand is read or written as it lies in the caller's memory
    b_dtype: str = ""
    c_dtype: str = ""
    unroll: int = 1  # steps of the innermost reduction that are written out together
    ahead: int = 0  # bytes by which B is fetched into L1 before it is read; 0: the processor finds out by itself
    b_aligned: bool = False  # B begins, and moves from step to step, by whole vectors; see `_slide`
    slid: frozenset[int] = frozenset()  # offsets, modulo a vector, at which vectors are made of two neighbours
    in_rounds: bool = False  # places that share reads take turns, so that sums wait for each other less
    past_caches: bool = False  # C goes to memory at once where it begins with a line, as all of its vectors then do
    may_stay: bool = False  # unless the caches hold it: `outputs.whereabouts`
    a_masks: Masks = ()  # a bit per lane, per row, where A is vectors: other lanes are not read, and are zero
    b_masks: Masks = ()  # likewise of B, per column
    a_read: Read | None = None  # how vectors of A are read, where that is no plain load; then there are no masks
    b_read: Read | None = None  # likewise of B, where lanes that masks do not hold are zero once they are read
    loads: Load | None = None  # what reads vectors of either, masked or not, if not `Isa.load`
    adds: Add | None = None  # what adds products to a sum, if no multiply-add
    halves: frozenset[int] = frozenset()  # columns of which the first half of the lanes is computed, read and written
    met: tuple[tuple[int, ...], ...] | None = None  # rows that take part in a sum, per tap; else all
    a_end: Value | None = None  # behind A, of tiles that fetch the rows of the next one where they follow on their own

    def emit(
        self, b: Builder, a: Value, x: Value, c: Value, reductions: Sequence[Reduction], first: list[Value] | None,
        taps: Taps = ((0, 0),), walks: Sequence[Fetch] = (),
    ) -> None:  # fmt: skip
        """Update the tile at c; with `first`, start from these (per row and column) instead of from memory.

        Lines of `walks` are asked for on the way.
        """
        self.ask(b, c)
        first = self.load(b, c) if first is None else first
        self.put(b, c, self.sum(b, a, x, first, reductions, taps, walks))

    def ask(self, b: Builder, c: Value) -> None:
        """For the lines of C, where they are not to go past the caches."""
        if self.may_stay:
            from convgrad.codegen.outputs.whereabouts import ask_for

            ask_for(b, self, c)

    def put(self, b: Builder, c: Value, tile: Sequence[Value]) -> None:
        """To c, past the caches if that is wanted and c begins with a line."""
        self.put_by(b, c, lambda: self.stream(b, c, tile), lambda: self.store(b, c, tile))

    def put_by(self, b: Builder, c: Value, stream: Callable[[], None], store: Callable[[], None]) -> None:
        """Likewise by what emits either."""
        if not self.past_caches:
            store()
            return
        far = self.isa.is_aligned(b, c)
        if self.may_stay:
            from convgrad.codegen.outputs.whereabouts import is_far

            far = b.both(far, is_far(b))
        b.either(far, stream, store)

    def sum(
        self, b: Builder, a: Value, x: Value, first: Sequence[Value], reductions: Sequence[Reduction],
        taps: Taps = ((0, 0),), walks: Sequence[Fetch] = (),
    ) -> list[Value]:  # fmt: skip
        """The tile, which starts from `first` and is not stored, per row and column."""
        places = [(r, v) for r in range(len(self.rows)) for v in range(len(self.columns))]
        tile = dict(zip(places, first, strict=True))
        if taps:
            for walk in walks:
                walk.begin(b)
            parts = [place for place in places if place[1] in self.halves]
            tile |= {place: lower_half(b, tile[place]) for place in parts}
            tile = self._reduce(b, a, x, tile, joined(reductions), taps, walks, 0)
            tile |= {place: with_lower_half(b, tile[place]) for place in parts}
        return [tile[place] for place in places]

    def load(self, b: Builder, c: Value) -> list[Value]:
        """The tile at c, to start from."""
        lanes, dtype = self.isa.lanes(self.compute), self.c_dtype or self.compute
        load = partial(self.isa.load, b, dtype)
        return [
            with_lower_half(b, load(place, lanes // 2)) if half else load(place, lanes)
            for place, half in self._at_c(b, c)
        ]

    def store(self, b: Builder, c: Value, tile: Sequence[Value]) -> None:
        """To c."""
        if rounds_together(self.c_dtype):
            from convgrad.codegen.outputs.results import store_runs

            store_runs(b, self.isa, self.c_dtype, self._runs(b, c, tile))
            return
        for value, (place, half) in zip(tile, self._at_c(b, c), strict=True):
            self.isa.store(b, self.c_dtype or self.compute, lower_half(b, value) if half else value, place)

    def _runs(self, b: Builder, c: Value, tile: Sequence[Value]) -> Iterator[Run]:
        """What lies side by side, row by row."""
        lanes, columns = self.isa.lanes(self.compute), self.c_columns
        starts = [v for v, column in enumerate(columns) if v == 0 or column != columns[v - 1] + lanes]
        for r, row in enumerate(self.c_rows):
            for start, stop in pairwise([*starts, len(columns)]):
                values = tile[r * len(columns) + start : r * len(columns) + stop]
                room = len(values) * lanes - lanes // 2 if stop - 1 in self.halves else None
                yield Run(values, b.at(c, row + columns[start], self._kind(self.c_dtype)), room)

    def stream(self, b: Builder, c: Value, tile: Sequence[Value]) -> None:
        """To c, past the caches: `Isa.stream`; two vectors at a time, if they are rounded to 16 bits."""
        if self.c_dtype and self.c_dtype != self.compute:
            from convgrad.codegen.outputs.results import stream_runs

            stream_runs(b, self.isa, self.c_dtype, self._runs(b, c, tile))
            return
        for value, (place, _) in zip(tile, self._at_c(b, c), strict=True):
            self.isa.stream(b, value, place)

    def _at_c(self, b: Builder, c: Value) -> Iterator[tuple[Value, bool]]:
        """Where each vector of the tile is in memory, right before it is needed, and whether it is a half."""
        for row in self.c_rows:
            for v, column in enumerate(self.c_columns):
                yield b.at(c, row + column, self._kind(self.c_dtype)), v in self.halves

    def _reduce(
        self, b: Builder, a: Value, x: Value, tile: Sums, reductions: list[Reduction], taps: Taps,
        walks: Sequence[Fetch], done: Index,
    ) -> Sums:  # fmt: skip
        if not (reductions and reductions[0].pace):
            for walk in walks:
                walk.go_on(b, done)
            walks = ()
        if not reductions:
            return self._rank_one(b, a, x, tile, taps)
        axis = reductions[0]
        if axis.parts:
            return self._in_parts(b, a, x, tile, reductions, taps, walks, done)
        if axis.segments:
            return self._in_segments(b, a, x, tile, reductions, taps, walks, done)
        if self.unroll > 1 and len(reductions) == 1 and isinstance(axis.b_step, int):
            return self._unrolled(b, a, x, tile, axis, taps)

        following = self._following(axis) if len(reductions) == 1 else 0
        size = following * BYTES[self.a_dtype or self.compute]
        known_to_be_there = None
        if self.a_end is not None and following >= WORTH_ENDING * len(self.rows):
            known_to_be_there = inside(b, b.beyond(a, size), size, self.a_end)
        if len(reductions) == 1 and not self.a_vector:  # how loops around came to them is half of LLVM's time
            a, x = b.hidden(a), b.hidden(x)

        def body(i: Index, now: Sums) -> Sums:
            if following:  # as many numbers at a step as the tile has rows: all of the next tile's
                done_rows = b.mul(i, len(self.rows))
                near = known_to_be_there and self.at_a(b, known_to_be_there, done_rows)
                b.prefetch(near or b.beyond(self.at_a(b, a, done_rows), size), keep=3)
            moved = b.mul(i, axis.b_step) if isinstance(axis.b_step, int) else b.lookup(axis.b_step, i)
            here, there = self.at_a(b, a, b.mul(i, axis.a_step)), self.at_b(b, x, moved)
            some = self._masked(b, *(of(b, i) if of else () for of in (axis.a_masks, axis.b_masks)))
            paced = b.add(done, b.mul(i, axis.pace))

            def rest(x: Value) -> Sums:
                return some._reduce(b, here, x, now, reductions[1:], taps, walks, paced)

            # a block before loops of products, which stays one with an instruction in it, is where masks are made ready
            return in_own_block(b, lambda: rest(b.hidden(there)), now) if axis.own_block else rest(there)

        return b.loop(axis.start, axis.stop, body, carried=tile, name="k")

    def _in_parts(
        self, b: Builder, a: Value, x: Value, tile: Sums, reductions: list[Reduction], taps: Taps,
        walks: Sequence[Fetch], done: Index,
    ) -> Sums:  # fmt: skip
        """A sum whose outermost axis has parts, each over the rest for its own rows."""
        columns = range(len(self.columns))
        for part in reductions[0].parts:
            rows, c_rows = (tuple(of[r] for r in part.rows) for of in (self.rows, self.c_rows))
            some = replace(self._masked(b, (), part.b_masks), rows=rows, c_rows=c_rows)
            sums = {(n, v): tile[r, v] for n, r in enumerate(part.rows) for v in columns}
            there, moved = self.at_a(b, a, part.a), [(a_tap, b_tap + part.b) for a_tap, b_tap in taps]
            sums = some._reduce(b, there, x, sums, reductions[1:], moved, walks, done)
            tile = tile | {(r, v): sums[n, v] for n, r in enumerate(part.rows) for v in columns}
        return tile

    def _in_segments(
        self, b: Builder, a: Value, x: Value, tile: Sums, reductions: list[Reduction], taps: Sequence[tuple[int, int]],
        walks: Sequence[Fetch], done: Index,
    ) -> Sums:  # fmt: skip
        """A sum whose outermost axis is cut, each piece for its own rows and columns."""
        axis, *inner = reductions
        for of in axis.segments:
            places = [((n, m), (r, v)) for n, r in enumerate(of.rows) for m, v in enumerate(of.columns)]
            some = replace(
                self, rows=tuple(self.rows[r] for r in of.rows), c_rows=tuple(self.c_rows[r] for r in of.rows),
                columns=tuple(self.columns[v] for v in of.columns),
                halves=frozenset(m for m, v in enumerate(of.columns) if v in self.halves),
                c_columns=tuple(self.c_columns[v] for v in of.columns),
            )  # fmt: skip
            piece = replace(axis, start=of.start, stop=of.stop, segments=())
            sums = {here: tile[there] for here, there in places}
            sums = some._reduce(b, a, x, sums, [piece, *inner], taps, walks, done)
            tile = tile | {there: sums[here] for here, there in places}
        return tile

    def _masked(self, b: Builder, a_masks: Masks, b_masks: Masks) -> Tile:
        """The tile that reads only those lanes that these masks hold, too."""
        if not (a_masks or b_masks):
            return self
        return replace(
            self, a_masks=both(b, self.a_masks, a_masks), b_masks=both(b, self.b_masks, b_masks)
        )  # fmt: skip

    def _following(self, axis: Reduction) -> int:
        """Numbers of A from this tile to the next, if both lie in one piece and are all read; else 0."""
        if self.a_end is None or not (known(axis) and axis.stop) or axis.a_step != 1:
            return 0
        assert isinstance(axis.stop, int)
        piece = range(0, len(self.rows) * axis.stop, axis.stop)
        return piece.stop if self.rows == tuple(piece) else 0

    def _unrolled(self, b: Builder, a: Value, x: Value, tile: Sums, axis: Reduction, taps: Taps) -> Sums:
        """The innermost reduction, some steps at a time, then what is left."""
        step = axis.b_step
        assert isinstance(step, int)
        many = [(u * axis.a_step + p, u * step + q) for u in range(self.unroll) for p, q in taps]
        whole = b.mul(b.floor_div(b.sub(axis.stop, axis.start), self.unroll), self.unroll)
        middle = b.maximum(b.add(axis.start, whole), axis.start)

        def body(i: Index, now: Sums, written: Taps) -> Sums:
            here, there = b.hidden(self.at_a(b, a, b.mul(i, axis.a_step))), b.hidden(self.at_b(b, x, b.mul(i, step)))
            return self._rank_one(b, here, there, now, written)

        several, one = (partial(body, written=written) for written in (many, taps))
        tile = b.loop(axis.start, middle, several, step=self.unroll, carried=tile, name="k")
        return b.loop(middle, axis.stop, one, carried=tile, name="rest")

    def _rank_one(self, b: Builder, a: Value, x: Value, tile: Sums, taps: Taps) -> Sums:
        if self.groups is None:
            return self._add_products(b, a, x, tile, taps, 0)
        step, lanes = len(self.columns) * self.isa.lanes(self.compute), self.isa.lanes(self.compute)
        products = self._products(taps)
        held = len({product[0] for product in products.all()}) * -(-self.groups.per_vector(lanes) // lanes)
        # LLVM would read vectors of groups once, for all of their numbers, and keep them in memory
        again = self.groups.numbers > 1 and held > products.registers
        for number in range(self.groups.numbers):
            of_groups = b.hidden(a) if again else a
            tile = self._add_products(b, of_groups, self.at_b(b, x, number * step), tile, taps, number)
        return tile

    def _add_products(self, b: Builder, a: Value, x: Value, tile: Sums, taps: Taps, number: int) -> Sums:
        """The products of all taps, with one number of every group."""
        products = self._products(taps)
        masked = products.all() if self.a_masks or self.b_masks else ()
        a_masks = {a_offset: self.a_masks[r] for a_offset, _, r, _ in masked if self.a_masks}
        b_masks = {b_offset: self.b_masks[v] for _, b_offset, _, v in masked if self.b_masks}
        as_they_lie = self.a_read is None and (self.groups is None or self.groups.numbers == 1)
        in_turn = products.fills_registers(a_vector=self.a_vector, as_they_lie=as_they_lie)
        in_turn = in_turn and (self.a_vector or self.b_read is None)
        operands = Operands(self, b, a, x, number, a_masks, b_masks, in_turn=in_turn)
        from_memory = len(self.columns) - 1 if self._is_crowded(taps) else None
        shared, add = products.shared(), self.adds or self.isa.multiply_add
        tile = dict(tile)
        for step in products.steps(shared):
            for a_offset, b_offset, r, v in step:
                factor = operands.of_a(a_offset)
                if v in self.halves:
                    factor = lower_half(b, factor)
                if v == from_memory:
                    tile[r, v] = self.isa.multiply_add_from(b, factor, operands.place_of_b(b_offset), tile[r, v])
                else:
                    of_b = operands.half_of_b if v in self.halves else operands.of_b
                    tile[r, v] = add(b, factor, of_b(b_offset), tile[r, v])
            if shared != 1:  # only what the shared operand meets again and again stays in registers
                operands.of_a.cache_clear()
            if shared != 0:
                operands.of_b.cache_clear()
                operands.half_of_b.cache_clear()
        return tile

    def _is_crowded(self, taps: Taps) -> bool:
        """Whether sums leave no register for the last of the vectors of B, which every row then meets in memory."""
        plain = not (self.a_vector or self.b_aligned or self.b_masks or self.slid) and self.b_read is self.adds is None
        stored = (self.b_dtype or self.compute) == self.compute and self.isa.multiplies_from_memory
        rows, columns = len(self.rows), len(self.columns)
        return plain and stored and len(taps) == 1 and (rows + 1) * columns == self.isa.registers

    @property
    def broadcasts_once(self) -> bool:
        """Whether LLVM is kept from broadcasting a number to halves of vectors once more: registers are left."""
        rows, columns = len(self.rows), len(self.columns)
        return 0 < len(self.halves) < columns and (rows + 1) * columns < self.isa.registers

    @property
    def _a_moves(self) -> bool:
        """Whether every column meets vectors of its own."""
        return self.a_vector and not self.a_shared

    def _kind(self, dtype: str) -> str:
        return STORAGE[dtype or self.compute]

    def at_a(self, b: Builder, base: Value, offset: Index) -> Value:
        """So many numbers of A from `base`."""
        return b.at(base, offset, self._kind(self.a_dtype))

    def at_b(self, b: Builder, base: Value, offset: Index) -> Value:
        """Likewise of B."""
        return b.at(base, offset, self._kind(self.b_dtype))

    def _products(self, taps: Taps) -> Products:
        lanes = self.isa.lanes(self.compute)
        return Products(
            rows=self.rows, columns=self.columns, taps=taps,
            a_column=(self.groups.per_vector(lanes) if self.groups else lanes) if self._a_moves else 0,
            by_column=self.a_shared and len(self.rows) < len(self.columns),  # the fewer vectors stay in registers
            registers=self.isa.registers - len(self.rows) * len(self.columns) - 2, in_rounds=self.in_rounds,
            met=self.met,
        )  # fmt: skip

    def zeros(self) -> list[Value]:
        """To start from."""
        zero = Value(self.isa.vector(self.compute), "zeroinitializer")
        return [zero] * (len(self.rows) * len(self.columns))
