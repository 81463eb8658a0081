"""Lowering of a DotRowsPlan: outputs of some rows in registers, two neighbours of a row at a time."""

from __future__ import annotations

from collections.abc import Iterable
from math import prod

from convgrad.codegen.copies.splitting import Watch
from convgrad.codegen.copies.words import load_bf16
from convgrad.codegen.depthwise.plane_reads import Columns, WordReads
from convgrad.codegen.depthwise.plane_rows import PlaneRowOutputs
from convgrad.codegen.ir import Builder
from convgrad.codegen.ir_module import Index, Value, constant, vector_of
from convgrad.codegen.isa.base import shuffle
from convgrad.codegen.isa.dots import DOT_UNITS, LANES, PAIR
from convgrad.codegen.module import round64
from convgrad.codegen.outputs.results import store_ordinary, store_runs
from convgrad.codegen.outputs.runs import Run
from convgrad.codegen.stages import Places
from convgrad.codegen.watch.verdict import Verdict
from convgrad.plan.by_dots.dot_rows import DotRowsPlan
from convgrad.plan.strides import row_major

HELD = 8  # pairs of taps that stay in registers; more are operands in memory
WORD = 4  # bytes


class DotRowOutputs(PlaneRowOutputs):
    """The stage. Scratch memory of a task: a row of zeros, and pairs of taps of its groups."""

    plan: DotRowsPlan
    verdict: Verdict
    given: Watch
    taps: Watch

    def __init__(self, plan: DotRowsPlan):
        PlaneRowOutputs.__init__(self, plan)
        inner, words = plan.axes[-1], plan.words
        self.unit, self.column_offsets = DOT_UNITS[plan.isa](), words.met
        self.tap_steps = row_major(plan.pair_rows, 1)
        self.steps_of_taps, self.group_step = (0, *self.tap_steps), prod(plan.pair_rows)
        self.scratch_bytes = self.weights_start + round64(WORD * (plan.run * self.group_step + LANES))
        self.from_memory = self.group_step > HELD
        self.reads = WordReads(
            isa=self.isa, compute=plan.compute, dtype=plan.problem.dtype, step=inner.in_step, image=inner.in_extent,
            offsets=tuple(words.met),
        )  # fmt: skip
        self.reads_again = False
        self.looked_at = self._looked_at()
        together = len(self.row_offsets) == max(self.row_offsets) - min(self.row_offsets) + 1
        self.rows_looked_at = self.new_rows if together else range(min(self.row_offsets), max(self.row_offsets) + 1)
        self.verdict = Verdict(plan, self.shared_bytes, self.most_tasks, self.most_tasks)

    def task(self, b: Builder, at: Places, task: Value) -> None:
        """As of f32, watching what is read."""
        self.given, self.taps = (Watch(b, LANES, bf16=True) for _ in range(2))
        PlaneRowOutputs.task(self, b, at, task)
        self.verdict.note_first(b, at.shared, task, self.given)
        self.verdict.note_second(b, at.shared, task, self.taps)

    def _pack(self, b: Builder, source: Value, weights: Value, groups: Index) -> None:
        """Pairs of taps as words."""
        p = self.plan.problem
        if prod(p.taps) <= PAIR * LANES and tuple(p.w_strides[3:]) == row_major(p.taps, 1):

            def of_group(g: Index, _: object) -> None:
                there = b.at(source, b.mul(g, p.w_strides[0]), "i16")
                self._pack_at_once(b, there, b.at(weights, b.mul(g, self.group_step), "i32"))

            b.loop(0, groups, of_group, name="weights")
            return
        steps = [(p.w_strides[0], self.group_step), *zip(p.w_strides[3:-1], self.tap_steps[:-1], strict=True)]

        def nest(extents: list[Index], place: Index, packed: Index, n: int = 0) -> None:
            if not extents:
                self._pack_row(b, b.at(source, place, "i16"), b.at(weights, packed, "i32"))
                return

            def body(i: Index, _: object) -> None:
                source_step, target_step = steps[n]
                nest(extents[1:], b.add(place, b.mul(i, source_step)), b.add(packed, b.mul(i, target_step)), n + 1)

            b.loop(0, extents[0], body, name="taps")

        nest([groups, *p.taps[:-1]], 0, 0)
        self._look_at_weights(b, source, groups)

    def _pack_at_once(self, b: Builder, source: Value, target: Value) -> None:
        """All taps of a plane, which one vector holds; words beyond those that count are written, too."""
        p, numbers = self.plan.problem, PAIR * LANES
        taps = load_bf16(b, self.isa, source, numbers, prod(p.taps))
        self.taps.note_bf16(b, taps)
        places = [
            numbers if tap is None else row * p.taps[-1] + tap  # a zero, or one of them
            for row in range(prod(p.taps[:-1])) for pair in self.plan.words.pairs for tap in pair
        ]  # fmt: skip
        for first in range(0, len(places), numbers):
            some = places[first : first + numbers]
            words = shuffle(b, taps, constant(taps.type, 0), some + [numbers] * (numbers - len(some)))
            b.store(b.cast("bitcast", words, vector_of(LANES, "i32")), b.at(target, first // PAIR, "i32"), WORD)

    def _look_at_weights(self, b: Builder, source: Value, groups: Index) -> None:
        """As many at a time as lie side by side."""
        p = self.plan.problem
        extents, steps = [groups, *p.taps], [p.w_strides[0], *p.w_strides[3:]]
        run: Index = 1
        while extents and isinstance(run, int) and steps[-1] == run:
            run = b.mul(extents.pop(), steps.pop())

        def nest(extents: list[Index], place: Index, n: int = 0) -> None:
            if extents:
                b.loop(
                    0, extents[0], lambda i, _: nest(extents[1:], b.add(place, b.mul(i, steps[n])), n + 1), name="taps"
                )
                return
            b.loop(0, run, lambda i, _: vector(b.add(place, i), b.sub(run, i)), step=PAIR * LANES, name="weights")

        def vector(place: Index, left: Index) -> None:
            count = b.minimum(left, PAIR * LANES)
            self.taps.note_bf16(b, load_bf16(b, self.isa, b.at(source, place, "i16"), PAIR * LANES, count))

        nest(extents, 0)

    def _pack_row(self, b: Builder, source: Value, target: Value) -> None:
        step = self.plan.problem.w_strides[-1]

        def number(tap: int | None, shift: int) -> Value:
            if tap is None:
                return constant("i32", 0)
            return b.binary("shl", b.cast("zext", b.load("i16", b.at(source, tap * step, "i16"), PAIR), "i32"),
                            constant("i32", shift))  # fmt: skip

        for n, (low, high) in enumerate(self.plan.words.pairs):
            b.store(b.binary("or", number(low, 0), number(high, 16)), b.at(target, n, "i32"), WORD)

    def _bias(self, b: Builder, at: Places, group: Index) -> Value:
        """Watched, since sums begin with it."""
        bias = PlaneRowOutputs._bias(self, b, at, group)
        if self.plan.problem.bias:
            self.taps.note(b, bias)
        return bias

    # --- sums

    def _weight(self, b: Builder, address: Value) -> Value:
        return address if self.from_memory else self.unit.splat(b, address)

    def _multiply_add(self, b: Builder, x: Value, weight: Value, total: Value) -> Value:
        if self.from_memory:
            return self.unit.multiply_add_one(b, weight, x, total)
        return self.unit.multiply_add(b, x, weight, total)

    def _begin(self, b: Builder, base: Index, first: Index, i: Index, columns: Columns) -> None:
        """Rows that tiles share are looked at by the first one that meets them."""
        with b.when(self.begins):
            for offset in self.row_offsets:
                if offset not in self.rows_looked_at:
                    there = self._row_at(b, base, b.add(first, offset))
                    self._note(b, self._vectors(b, there, i, columns), columns)

    def _look(self, b: Builder, offset: int, vectors: dict[int, Value], columns: Columns) -> None:
        if offset in self.rows_looked_at:
            self._note(b, vectors, columns)

    def _note(self, b: Builder, vectors: dict[int, Value], columns: Columns) -> None:
        for base in self.looked_at[columns.first]:
            if base in vectors:
                self.given.note_bf16(b, b.cast("bitcast", vectors[base], vector_of(PAIR * LANES, "i16")))

    def _looked_at(self) -> dict[int, list[int]]:
        """By columns, which of the offsets are, such that nothing that a row reads is left out."""
        inner = self.plan.axes[-1]
        every = list(self.reads.columns(inner.count, min(phase.count for phase in inner.phases)))
        firsts = {c.first: range(c.first, c.first + c.many * LANES, LANES) for c in every}
        found, seen = {first: list[int]() for first in firsts}, set[int]()
        for base in self.reads.offsets:  # the words of one offset hold nearly all
            for first, vectors in firsts.items():
                there = {place for n in vectors for place in self.reads.places(base, n)}
                if there - seen:
                    found[first].append(base)
                    seen |= there
        return found

    # --- results

    def _write(self, b: Builder, runs: Iterable[Run]) -> None:
        """No sum is denormal or NaN, or all is written again."""
        p = self.plan.problem
        (store_ordinary if p.out_dtype == p.dtype else store_runs)(b, self.isa, p.out_dtype, runs)
