"""Lowering of a DotDepthwisePlan: tiles of a DepthwiseDataPlan whose rows are read two neighbours at a time."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any

from convgrad.codegen.by_dots.depthwise_dots import UNIT, channels_of
from convgrad.codegen.copies.splitting import Watch
from convgrad.codegen.depthwise.depthwise_data import DepthwiseStages, DepthwiseSweep, Taps
from convgrad.codegen.general.watched import WatchedStages
from convgrad.codegen.ir import Builder
from convgrad.codegen.ir_module import Index, Value, constant, index, lanes_of, vector_of
from convgrad.codegen.isa.base import STORAGE, shuffle
from convgrad.codegen.isa.dots import DOT_UNITS, LANES, PAIR, WORDS
from convgrad.codegen.microkernels.contract import Tile
from convgrad.codegen.outputs.results import store_ordinary, store_runs
from convgrad.codegen.outputs.runs import Run
from convgrad.codegen.stages import Places
from convgrad.plan.by_dots.dot_depthwise import WAITING, DotDepthwisePlan
from convgrad.plan.strides import row_major
from convgrad.values import replace


class DotDepthwiseSweep(DepthwiseSweep):
    """All tiles of a task. An output has two sums, of which either is that of every other four groups."""

    plan: DotDepthwisePlan
    watch: Watch

    def __init__(self, plan: DotDepthwisePlan, *more: Any, **others: Any):
        DepthwiseSweep.__init__(self, plan, *more, **others)
        outer, pairs = plan.problem.taps[:-1], len(plan.pairs)
        self.taps.strides = [0, *row_major((*outer, pairs), plan.width)[:-1], 0]  # pairs are of taps from the first on
        self.room = plan.lane_groups if plan.lane_groups < plan.width else None

    def _start(self, tile: Tile) -> list[Value]:
        first = DepthwiseSweep._start(self, tile)
        if self.bias is None:
            return first
        low, high = first[:PAIR]
        return [shuffle(self.b, low, high, channels_of(half)) for half in range(PAIR)] * len(tile.rows)

    def _row_by_row(
        self, x: Value, w: Value, held: Taps, row: Index, sums: list[Value], column: int
    ) -> Iterator[tuple[list[int], list[Value]]]:  # fmt: skip
        """Rows that tiles share are looked at by the first one that meets them."""
        b, plan, extent = self.b, self.plan, self.plan.rows.in_extent
        with b.when(self.begins):
            for place, _ in plan.row_steps:
                if place not in plan.new_rows:
                    at = b.add(b.mul(row, plan.rows.in_step), place)
                    inside = b.both(b.compare("sge", at, 0), b.compare("slt", at, extent))
                    with b.when(inside):
                        self._look(self._numbers(x, place, column), column)
        yield from DepthwiseSweep._row_by_row(self, x, w, held, row, sums, column)

    def _look(self, numbers: dict[int, Value], column: int) -> None:
        """At numbers of a row that the tile before has not read."""
        for at, value in numbers.items():
            if column == self.plan.bodies[0][0] or at in self.plan.new_columns:
                self.watch.note_bf16(self.b, value)

    def _numbers(self, x: Value, place: int, column: int) -> dict[int, Value]:
        """Those of a row that there are, by column."""
        b, plan, dtype = self.b, self.plan, self.plan.problem.dtype
        *_, row_step, step = plan.slab_strides[0]
        count = None if self.room is None else index(self.room)
        places = {at: b.at(x, place * row_step + at * step, STORAGE[dtype]) for at in plan.column_steps(column)}
        return {at: self.isa.load_bits(b, dtype, there, plan.width, count) for at, there in places.items()}

    def _row(
        self, x: Value, w: Value, held: Taps, place: int, met: tuple[tuple[int, int], ...], sums: list[Value],
        column: int,
    ) -> list[Value]:  # fmt: skip
        """A row of the input, for each row of the tile that meets it."""
        b, plan, unit = self.b, self.plan, DOT_UNITS[self.plan.isa]()
        columns, sums = len(plan.outputs(-1)), list(sums)
        numbers = self._numbers(x, place, column)
        words = {base: self._words(numbers, base) for base in plan.met}
        for m, t in met:
            taps = held or self._taps(w, (t,))
            for base, of_word in plan.met.items():
                for half, word in enumerate(words[base]):
                    for n, pair in of_word:
                        which = (m * columns + n) * PAIR + half
                        sums[which] = unit.multiply_add(b, word, taps[t, pair * PAIR + half], sums[which])
        if place in plan.new_rows:
            self._look(numbers, column)
        return sums

    def _words(self, numbers: dict[int, Value], base: int) -> list[Value]:
        """Two neighbours of a row, group by group, as two vectors; zeros beside the image."""
        b, found = self.b, [numbers.get(at) for at in (base, base + self.plan.partner)]
        if not any(found):
            return []
        zeros = Value(vector_of(self.plan.width, "i16"), "zeroinitializer")
        return paired(b, *(value or zeros for value in found))

    def _store(self, target: Value, sums: list[Value], which: list[int]) -> None:
        if self.tile.past_caches:
            places = tuple(self.tile.c_rows[n] for n in which)
            tile = replace(self.tile, rows=places, c_rows=places)
            tile.put(self.b, target, [vector for n in which for vector in self._in_order(sums, n)])
            return
        self._write(self._run(target, sums, n) for n in which)

    def _in_order(self, sums: list[Value], which: int) -> list[Value]:
        """An output, group after group."""
        found = {c: half * LANES + n for half in range(PAIR) for n, c in enumerate(channels_of(half))}
        first, second = sums[PAIR * which : PAIR * (which + 1)]
        return [shuffle(self.b, first, second, [found[start + n] for n in range(LANES)]) for start in (0, LANES)]

    def _run(self, target: Value, sums: list[Value], which: int) -> Run:
        """An output."""
        address = self.b.at(target, self.tile.c_rows[which], STORAGE[self.plan.problem.out_dtype])
        return Run(sums[PAIR * which : PAIR * (which + 1)], address, self.room, in_turn=True, numbers=UNIT // PAIR)

    def _done(self, target: Value, row: Index, column: int, rows: list[int], sums: list[Value]) -> Iterator[Run]:
        columns = len(self.plan.outputs(-1))
        for m in rows:
            wanted = None if m in self.plan.always_stored else self._is_whole(row)
            for n in self.plan.stored(column):
                yield replace(self._run(target, sums, m * columns + n), wanted=wanted)

    def _write(self, runs: Iterable[Run]) -> None:
        """No sum is denormal or NaN, or all is written again."""
        p = self.plan.problem
        (store_ordinary if p.out_dtype == p.dtype else store_runs)(self.b, self.isa, p.out_dtype, runs)

    @property
    def _taken(self) -> int:
        plan = self.plan
        return plan.kernel[0] * plan.row_weights + plan.sums + WAITING

    def _taps(self, w: Value, rows: Iterable[int]) -> Taps:
        """Pairs of some rows of taps, both vectors of each."""
        b, plan = self.b, self.plan
        row_step = self.taps.strides[-2]
        unit = DOT_UNITS[plan.isa]()
        return {
            (t, n): unit.load(b, b.at(w, t * row_step + n * LANES, "i32"))
            for t in rows for n in range(plan.row_weights)
        }  # fmt: skip


class DotDepthwiseStages(DepthwiseStages, WatchedStages):
    """The stages of a plan."""

    plan: DotDepthwisePlan
    sweep = DotDepthwiseSweep

    def task(self, b: Builder, at: Places, task: Value) -> None:
        """Nothing has to be begun."""
        self.watched_task(b, at, task)

    def _prepare(self, sweep: DotDepthwiseSweep) -> None:
        assert self.watch is not None
        sweep.watch = self.watch

    @property
    def packed_kind(self) -> str:
        """A word."""
        return "i32"

    @property
    def pack_bytes(self) -> int:
        """Nothing is staged."""
        return 0

    def pack_panel(
        self, b: Builder, at: Places, source: Value, target: Value, *,
        lanes: list[tuple[Index, int, int]], channels: tuple[Index, int, int],
    ) -> None:  # fmt: skip
        """Pairs of taps, of all groups of a vector."""
        plan, p, numbers = self.plan, self.plan.problem, vector_of(self.plan.width, "i16")
        (groups, _, group_step), step = lanes[0], p.w_strides[-1]
        strides = row_major((*p.taps[:-1], len(plan.pairs)), plan.width)
        assert isinstance(groups, int)

        def number(row: Value, tap: int | None) -> Value:
            if tap is None:
                return constant(numbers, 0)
            if group_step == 1:
                count = index(groups) if groups < plan.width else None
                return self.isa.load_bits(b, p.dtype, b.at(row, tap * step, "i16"), plan.width, count)
            bits = constant(numbers, 0)
            for lane in range(groups):
                one = b.load("i16", b.at(row, tap * step + lane * group_step, "i16"), PAIR)
                bits = b.emit(bits.type, f"insertelement {bits}, {one}, i64 {lane}")
            return bits

        def nest(n: int, row: Value, packed: Value) -> None:
            if n == len(p.taps) - 1:
                for place, pair in enumerate(plan.pairs):
                    both = [number(row, tap) for tap in pair]
                    if self.watch is not None:
                        for bits in both:
                            self.watch.note_bf16(b, bits)
                    for half, word in enumerate(paired(b, *both)):
                        b.store(word, b.at(packed, (place * PAIR + half) * LANES, "i32"), 4)
                return
            b.loop(
                0, p.taps[n],
                lambda t, _: nest(
                    n + 1, b.at(row, b.mul(t, p.w_strides[3 + n]), "i16"), b.at(packed, b.mul(t, strides[n]), "i32")
                ),
                name="taps",
            )  # fmt: skip

        nest(0, source, target)


def paired(b: Builder, first: Value, second: Value) -> list[Value]:
    """Numbers of 32 groups at two places, group by group, as the two vectors of words that unpacking makes of them."""
    lanes = lanes_of(first)
    orders = ([lane + of * lanes for lane in channels_of(half) for of in range(PAIR)] for half in range(PAIR))
    return [b.cast("bitcast", shuffle(b, first, second, order), WORDS) for order in orders]
