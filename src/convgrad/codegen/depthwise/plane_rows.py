"""Lowering of a PlaneRowsPlan: outputs of some rows in registers, which read the rows of a plane where they lie."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from itertools import chain, product

from convgrad.codegen.copies.copying import Dim
from convgrad.codegen.copies.zeroing import emit_zero
from convgrad.codegen.depthwise.plane_data import PlaneOutputs
from convgrad.codegen.depthwise.plane_reads import Columns, RowReads, ask_for
from convgrad.codegen.ir import Builder
from convgrad.codegen.ir_module import Index, Value
from convgrad.codegen.isa.base import BYTES, STORAGE
from convgrad.codegen.module import round64
from convgrad.codegen.outputs.results import store_exactly, store_runs
from convgrad.codegen.outputs.runs import Run
from convgrad.codegen.stages import Places
from convgrad.plan.axes import Phase
from convgrad.plan.depthwise.plane_rows import BEFORE_ZEROS, PlaneRowsPlan
from convgrad.values import replace

HELD = 12  # weights that stay in registers; more are operands in memory
MANY = 16  # sums of numbers that are not rounded, of which some are stored while others are summed
Row = tuple[int, int]  # phase and output of the rows
Sums = dict[tuple[int, int, int, int], Value]  # of vector, phase and output of the rows, phase of the columns
Span = tuple[Index, Columns]  # the output that a vector of a tile begins with, and what kind it is of


class PlaneRowOutputs(PlaneOutputs):
    """The stage. Scratch memory of a task: a row of zeros, and weights of its groups."""

    plan: PlaneRowsPlan
    planes = 1  # at a time
    zeros: Value  # a row of them
    weights: Value  # of the plane, as are
    bias: Value
    source: Value
    target: Value
    begins: Value  # whether a tile is the first one of its block

    def __init__(self, plan: PlaneRowsPlan):
        PlaneOutputs.__init__(self, plan)
        p, inner, size = plan.problem, plan.axes[-1], BYTES[plan.compute]
        self.weights_start = round64(plan.slab_bytes)
        self.scratch_bytes = self.weights_start + round64(size * plan.run * plan.taps)
        self.row_offsets, self.column_offsets = plan.row_offsets, plan.column_offsets
        self.last = self._last()
        beyond = max(self.row_offsets, default=0) + 1
        self.new_rows = range(beyond - plan.rows * plan.axes[-2].in_step, beyond)  # that no tile before this one met
        self.reads = RowReads(
            isa=self.isa, compute=plan.compute, dtype=p.dtype, step=inner.in_step, image=inner.in_extent,
            offsets=tuple(self.column_offsets), slides=plan.masks, ends_early=not plan.masks,
        )  # fmt: skip
        alone, halves = len(plan.axes[-2].phases) == 1, self.reads.halves
        # next to integers that round all sums spill, and many take long to be stored; else it gains nothing
        self.early = (
            not plan.masks
            or (halves and alone and not self.isa.bfloat)
            or (plan.sums > MANY and p.out_dtype == plan.compute)
        )
        pairs = halves and len(inner.phases) > 1  # of which each weight meets two: no operand in memory
        picked = inner.in_step > 1 and not halves  # next to which LLVM reads rows ahead, and spills
        self.reads_again = picked or plan.vectors > 1 or (plan.taps > HELD and not pairs)
        strides = p.strides[p.given]
        self.in_strides = (strides[0], *strides[3:])
        self.steps_of_taps = (0, *self.tap_steps)  # of the batch axis, too
        self.group_step = plan.taps  # of the weights of a plane

    def _last(self) -> dict[Row, int | None]:
        """The last row of the input that each row of outputs of a tile meets, in this order; None: no row at all."""
        rows = {(f, r): None for f in range(len(self.plan.axes[-2].phases)) for r in range(self.plan.rows)}
        return rows | {(f, r): offset for offset, outputs in self.row_offsets.items() for f, r, _ in outputs}

    def task(self, b: Builder, at: Places, task: Value) -> None:
        """One block of outputs, plane by plane."""
        plan, p = self.plan, self.plan.problem
        *blocks, run = b.split(task, plan.grid)
        self.starts = [b.mul(block, size) for block, size in zip(blocks, plan.block, strict=True)]
        first_group, groups = self._groups(b, run)
        self.zeros = b.at(at.scratch, BEFORE_ZEROS, "i8")
        emit_zero(b, self.isa, plan.compute, self.zeros, plan.axes[-1].in_extent)
        weights = b.at(at.scratch, self.weights_start, "i8")
        self._pack(b, b.at(at.w, b.mul(first_group, p.w_strides[0]), STORAGE[p.dtype]), weights, groups)

        def plane(g: Index, _: object) -> None:
            if self.planes > 1:  # the last of them begin early
                g = b.minimum(g, b.sub(groups, self.planes))
            self.weights = self._weights_of(b, weights, g)
            group = b.add(first_group, g)
            self.bias = self._bias(b, at, group)
            of_group = [b.mul(group, p.strides[name][1]) for name in (p.given, p.solved)]
            self.source = b.at(at.of(p.given), of_group[0], STORAGE[p.dtype])
            self.target = b.at(at.of(p.solved), of_group[1], STORAGE[p.out_dtype])
            for phases in plan.outer_phases:
                self._outer(b, phases, [], 0)

        b.loop(0, groups, plane, step=self.planes, name="group")

    def _groups(self, b: Builder, run: Index) -> tuple[Index, Index]:
        """The first one of a task, and how many it has."""
        count, size = self.plan.problem.groups, self.plan.run
        first = b.mul(run, size)
        return first, size if count % size == 0 else b.minimum(b.sub(count, first), size)

    def _weights_of(self, b: Builder, weights: Value, g: Index) -> Value:
        """Those of the planes from the g-th of a task on."""
        return b.at(weights, b.mul(g, self.group_step), self.kind)

    def _pack(self, b: Builder, source: Value, weights: Value, groups: Index) -> None:
        """Weights of some groups, converted."""
        p = self.plan.problem
        taps = [Dim(*steps) for steps in zip(p.taps, p.w_strides[3:], self.tap_steps, strict=True)]
        self.copy.emit(b, source, weights, [Dim(groups, p.w_strides[0], self.group_step), *taps])

    def _outer(self, b: Builder, phases: tuple[Phase, ...], reads: list[Index], written: Index) -> None:
        """Outputs of the axes around a row: where each finds the first that it reads, and where its results go."""
        plan, n = self.plan, len(reads)
        if n == len(phases):
            self._rows(b, phases, reads, written)
            return
        axis, phase = plan.axes[n], phases[n]

        def output(j: Index, _: object) -> None:
            j = b.add(self.starts[n], j)
            out = b.add(b.mul(j, axis.out_step), phase.first)
            self._outer(b, phases, [*reads, b.mul(j, axis.in_step)], b.add(written, b.mul(out, self.out_strides[n])))

        count = b.minimum(b.sub(phase.count, self.starts[n]), plan.block[n])
        b.loop(0, count, output, name="outputs")

    def _rows(self, b: Builder, phases: tuple[Phase, ...], reads: list[Index], written: Index) -> None:
        """All tiles of a block of a plane."""
        plan, axis = self.plan, self.plan.axes[-2]
        start = self.starts[-2]
        stop = b.minimum(axis.count, b.add(start, plan.block[-2]))

        def row(j: Index, _: object) -> None:
            self.begins = b.compare("eq", j, start)
            if axis.count % plan.rows:  # the last tile begins early, and repeats some outputs
                j = b.minimum(j, axis.count - plan.rows)
            for first, last, kinds in self._tiles_of_row():

                def tile(i: Index, _: object = None, kinds: Sequence[Columns] = kinds, first: int = first) -> None:
                    spans = [(b.add(i, columns.first - first), columns) for columns in kinds]
                    sums = self._start(len(spans))
                    if reads[1:]:
                        sums, of = self._deep(b, phases, reads, 0, self.weights, j, spans, sums), [list(self.last)]
                    else:
                        of = self._row_by_row(b, b.mul(reads[0], self.in_strides[0]), self.weights, j, spans, sums)
                    done = of if self.early else list(of)
                    self._write(b, self._runs(b, j, spans, sums, done, written))

                b.loop(first, last, tile, step=len(kinds) * plan.lanes, name="column")

        b.loop(start, stop, row, step=plan.rows, name="row")

    def _tiles_of_row(self) -> Iterator[tuple[int, int, Sequence[Columns]]]:
        """From which output to which there are tiles of the same vectors, at most so many."""
        plan, inner = self.plan, self.plan.axes[-1]
        most, alone = plan.vectors, list[Columns]()
        for columns in self.reads.columns(inner.count, min(phase.count for phase in inner.phases)):
            tiles = columns.many // most
            if tiles:
                each = [replace(columns, first=columns.first + v * plan.lanes) for v in range(most)]
                yield columns.first, columns.first + tiles * most * plan.lanes, each
            rest = range(tiles * most, columns.many)
            alone += [replace(columns, first=columns.first + v * plan.lanes, many=1) for v in rest]
        for n in range(0, len(alone), most):
            yield alone[n].first, alone[n].first + 1, alone[n : n + most]

    # --- sums

    def _start(self, vectors: int) -> Sums:
        row, inner = self.plan.axes[-2:]
        places = product(range(vectors), range(len(row.phases)), range(self.plan.rows), range(len(inner.phases)))
        return dict.fromkeys(places, self.bias)

    def _deep(
        self, b: Builder, phases: tuple[Phase, ...], reads: list[Index], base: Index, weights: Value, j: Index,
        spans: Sequence[Span], sums: Sums,
    ) -> Sums:  # fmt: skip
        """Over the taps of the axes around a row, those that meet the image."""
        plan, n = self.plan, len(phases) - len(reads)
        if not reads:
            sums = dict(sums)
            for _ in self._row_by_row(b, base, weights, j, spans, sums):
                pass
            return sums
        axis, phase, (first, *others) = plan.axes[n], phases[n], reads

        def further(t: Index, place: Index, now: Sums) -> Sums:
            tap = b.mul(b.add(b.mul(t, axis.tap_step), phase.tap), self.steps_of_taps[n])
            there, of_tap = b.add(base, b.mul(place, self.in_strides[n])), b.at(weights, tap, self.kind)
            return self._deep(b, phases, others, there, of_tap, j, spans, now)

        def tap(t: Index, now: Sums) -> Sums:
            place = b.add(first, b.add(b.mul(t, axis.offset_step), phase.offset))
            if not axis.clipped:
                return further(t, place, now)
            inside = b.compare("ult", place, axis.in_extent)
            then = b.one_of(inside, lambda: list(further(t, place, now).values()), lambda: list(now.values()))
            return dict(zip(now, then, strict=True))

        return b.loop(0, phase.taps, tap, carried=sums, name="tap")

    def _row_by_row(
        self, b: Builder, base: Index, weights: Value, j: Index, spans: Sequence[Span], sums: Sums
    ) -> Iterator[list[Row]]:  # fmt: skip
        """Add to sums row by row of the input, each vector for all outputs that meet it; which of them are done."""
        plan, (row, _) = self.plan, self.plan.axes[-2:]
        first = b.mul(j, row.in_step)
        step = self.steps_of_taps[-2]
        numbers: dict[int, Value] = {}
        yield [output for output, last in self.last.items() if last is None]

        def weight(here: Value, tap: int) -> Value:
            if tap not in numbers:
                numbers[tap] = self._weight(b, b.at(here, tap, self.kind))
            return numbers[tap]

        for i, columns in spans:
            self._begin(b, base, first, i, columns)
        for offset, outputs in self.row_offsets.items():
            there = self._row_at(b, base, b.add(first, offset))
            here = weights
            if self.reads_again:  # else LLVM keeps them all, and makes room by spilling
                here, _ = b.hidden(weights), numbers.clear()
            if plan.problem.given in plan.fetches and offset in self.new_rows:
                for i, _ in spans:
                    self._fetch(b, plan.problem.given, there, i, plan.axes[-1].in_step)
            every = []
            for i, columns in spans:
                vectors = self._vectors(b, there, i, columns)
                self._look(b, offset, vectors, columns)
                every.append(vectors)
            for at, met in self.column_offsets.items():
                inside = [v for v, vectors in enumerate(every) if at in vectors]
                for f, r, tap_row in outputs if inside else ():
                    for c, tap in met:
                        number = weight(here, tap_row * step + tap)
                        for v in inside:
                            total = sums[v, f, r, c]
                            sums[v, f, r, c] = self._multiply_add(b, every[v][at], number, total)
            yield [output for output, last in self.last.items() if last == offset]

    def _weight(self, b: Builder, address: Value) -> Value:
        """Of a tap, in all lanes."""
        return self.isa.splat(b, b.load(self.kind, address, BYTES[self.plan.compute]), self.plan.lanes)

    def _multiply_add(self, b: Builder, x: Value, weight: Value, total: Value) -> Value:
        return self.isa.multiply_add(b, x, weight, total)

    def _row_at(self, b: Builder, base: Index, place: Index) -> Value:
        """A row of the input, or one of zeros beside the image."""
        row = self.plan.axes[-2]
        there = b.at(self.source, b.add(base, b.mul(place, self.in_strides[-2])), STORAGE[self.plan.problem.dtype])
        if row.clipped or any(phase.count < row.count for phase in row.phases):
            there = b.select(b.compare("ult", place, row.in_extent), there, self.zeros)
        return there

    def _vectors(self, b: Builder, row: Value, i: Index, columns: Columns) -> dict[int, Value]:
        """Of a row of the input, by offset."""
        return self.reads.vectors(b, row, i, columns)

    def _begin(self, b: Builder, base: Index, first: Index, i: Index, columns: Columns) -> None:
        """Before a tile is summed over the rows that it meets from `first` on."""

    def _look(self, b: Builder, offset: int, vectors: dict[int, Value], columns: Columns) -> None:
        """At vectors of a row of the input."""

    def _fetch(self, b: Builder, name: str, row: Value, i: Index, vectors: int) -> None:
        """Of a row of a tensor what lies by outputs i on some tiles further on, into L2."""
        size = vectors * BYTES[self.plan.problem.dtype]
        ask_for(b, row, self.plan.bytes_ahead(name), b.mul(i, size), size * self.plan.lanes)

    # --- results

    def _write(self, b: Builder, runs: Iterable[Run]) -> None:
        """Round and store: two phases of rows in part are a word, which integers make as fast."""
        in_turn = len(self.plan.axes[-1].phases) > 1 and not self.reads.halves
        (store_exactly if in_turn else store_runs)(b, self.isa, self.plan.problem.out_dtype, runs)

    def _runs(
        self, b: Builder, j: Index, spans: Sequence[Span], sums: Sums, done: Iterable[list[Row]], written: Index
    ) -> Iterator[Run]:
        """Rows of all phases, from output j and those of the spans on, as they are done."""
        plan, (row, inner) = self.plan, self.plan.axes[-2:]
        width = len(inner.phases)
        starts = [b.mul(i, width) for i, _ in spans]
        kind = STORAGE[plan.problem.out_dtype]
        for f, r in chain.from_iterable(done):
            phase = row.phases[f]
            out = b.add(b.mul(b.add(j, r), row.out_step), phase.first)
            there = b.add(written, b.mul(out, self.out_strides[-2]))
            for v, (i, columns) in enumerate(spans):
                if plan.problem.solved in plan.fetches:
                    self._fetch(b, plan.problem.solved, b.at(self.target, there, kind), i, width)
                wanted = None if phase.count == row.count else b.compare("slt", b.add(j, r), phase.count)
                address = b.at(self.target, b.add(there, starts[v]), kind)
                left = None if columns.whole else inner.out_extent - columns.first * width
                yield Run([sums[v, f, r, c] for c in range(width)], address, left, width > 1, wanted)
