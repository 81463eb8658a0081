"""Lowering of a DotDepthwisePlan: tiles of a DepthwiseDataPlan whose rows are read two neighbours at a time."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from math import prod
from typing import Any

from convgrad.codegen.depthwise_data import DepthwiseStages, DepthwiseSweep, Taps
from convgrad.codegen.ir import Builder
from convgrad.codegen.ir_module import Index, Value, constant, vector_of
from convgrad.codegen.isa.base import STORAGE, shuffle
from convgrad.codegen.isa.dots import DOT_UNITS, LANES, PAIR, WORDS
from convgrad.codegen.results import Run, store_ordinary, store_runs
from convgrad.codegen.splitting import Watch
from convgrad.codegen.stages import Places
from convgrad.codegen.watched import WatchedStages
from convgrad.plan.dot_depthwise import DotDepthwisePlan
from convgrad.plan.strides import row_major

WAITING = 3  # registers for what is read


class DotDepthwiseSweep(DepthwiseSweep):
    """All tiles of a task."""

    plan: DotDepthwisePlan
    watch: Watch

    def __init__(self, plan: DotDepthwisePlan, *more: Any, **others: Any):
        DepthwiseSweep.__init__(self, plan, *more, **others)
        outer, pairs = plan.problem.taps[:-1], len(plan.pairs)
        self.taps.strides = [0, *row_major((*outer, pairs), LANES)[:-1], 0]  # pairs are of taps counted from the first

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
                        self._look(x, place, column)
        yield from DepthwiseSweep._row_by_row(self, x, w, held, row, sums, column)

    def _look(self, x: Value, place: int, column: int) -> None:
        """At numbers of a row that the tile before has not read."""
        plan, numbers = self.plan, vector_of(PAIR * LANES, "i16")
        for base in plan.met if column == plan.bodies[0][0] else plan.new_words:
            word = self._word(x, place, base, column)
            if word is not None:
                self.watch.note_bf16(self.b, self.b.cast("bitcast", word, numbers))

    def _row(
        self, x: Value, w: Value, held: Taps, place: int, met: tuple[tuple[int, int], ...], sums: list[Value],
        column: int,
    ) -> list[Value]:  # fmt: skip
        """A row of the input, for each row of the tile that meets it."""
        b, plan, unit = self.b, self.plan, DOT_UNITS[self.plan.isa]()
        columns, sums = plan.tile[-1], list(sums)
        words = {base: self._word(x, place, base, column) for base in plan.met}
        for m, t in met:
            taps = held or self._taps(w, (t,))
            for base, of_word in plan.met.items():
                word = words[base]
                for n, pair in of_word if word is not None else ():
                    which = m * columns + n
                    sums[which] = unit.multiply_add(b, word, taps[t, pair], sums[which])
        if place in plan.new_rows:
            self._look(x, place, column)
        return sums

    def _word(self, x: Value, place: int, base: int, column: int) -> Value | None:
        """Two neighbours of a row, channel by channel; zeros beside the image."""
        b, plan, axis = self.b, self.plan, self.plan.columns
        *_, row_step, step = plan.slab_strides[0]
        first = axis.in_step * column + axis.phases[0].offset
        kind, found, (low, high) = vector_of(LANES, "i16"), [], plan.places
        for at in (base, base + 1):
            there = low <= at <= high and 0 <= first + at < axis.in_extent
            address = b.at(x, place * row_step + (axis.phases[0].offset + at) * step, "i16")
            found.append(b.load(kind, address, PAIR) if there else Value(kind, "zeroinitializer"))
        if all(value.text == "zeroinitializer" for value in found):
            return None
        both = shuffle(b, found[0], found[1], [lane + of * LANES for lane in range(LANES) for of in range(PAIR)])
        return b.cast("bitcast", both, WORDS)

    def _store(self, target: Value, sums: list[Value], which: list[int]) -> None:
        if self.tile.past_caches:
            DepthwiseSweep._store(self, target, sums, which)
            return
        kind = STORAGE[self.plan.problem.out_dtype]
        self._write(Run([sums[n]], self.b.at(target, self.tile.c_rows[n], kind)) for n in which)

    def _write(self, runs: Iterable[Run]) -> None:
        """No sum is denormal or NaN, or all is written again."""
        p = self.plan.problem
        (store_ordinary if p.out_dtype == p.dtype else store_runs)(self.b, self.isa, p.out_dtype, runs)

    @property
    def _taken(self) -> int:
        plan = self.plan
        return plan.rows.taps * len(plan.pairs) + prod(plan.tile) + WAITING

    def _taps(self, w: Value, rows: Iterable[int]) -> Taps:
        b, plan = self.b, self.plan
        row_step = self.taps.strides[-2]
        unit = DOT_UNITS[plan.isa]()
        return {
            (t, pair): unit.load(b, b.at(w, t * row_step + pair * LANES, "i32"))
            for t in rows for pair in range(len(plan.pairs))
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
        plan, p = self.plan, self.plan.problem
        group_step, step = lanes[0][2], p.w_strides[-1]
        strides = row_major((*p.taps[:-1], len(plan.pairs)), LANES)

        def number(row: Value, tap: int | None) -> Value:
            if tap is None:
                return constant(WORDS, 0)
            if group_step == 1:
                bits = b.load(vector_of(LANES, "i16"), b.at(row, tap * step, "i16"), PAIR)
                return b.cast("zext", bits, WORDS)
            bits = constant(vector_of(LANES, "i16"), 0)
            for lane in range(LANES):
                one = b.load("i16", b.at(row, tap * step + lane * group_step, "i16"), PAIR)
                bits = b.emit(bits.type, f"insertelement {bits}, {one}, i64 {lane}")
            return b.cast("zext", bits, WORDS)

        def nest(n: int, row: Value, packed: Value) -> None:
            if n == len(p.taps) - 1:
                for place, (low, high) in enumerate(plan.pairs):
                    word = b.binary("or", number(row, low), b.binary("shl", number(row, high), constant(WORDS, 16)))
                    if self.watch is not None:
                        self.watch.note_bf16(b, b.cast("bitcast", word, vector_of(PAIR * LANES, "i16")))
                    b.store(word, b.at(packed, place * LANES, "i32"), 4)
                return
            b.loop(
                0, p.taps[n],
                lambda t, _: nest(
                    n + 1, b.at(row, b.mul(t, p.w_strides[3 + n]), "i16"), b.at(packed, b.mul(t, strides[n]), "i32")
                ),
                name="taps",
            )  # fmt: skip

        nest(0, source, target)
