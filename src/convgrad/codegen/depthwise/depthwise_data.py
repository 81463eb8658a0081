"""Lowering of a DepthwiseDataPlan: that of a DataPlan whose tiles are written out row by row of the input."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from math import prod

from convgrad.codegen.copies.panels import bias_at
from convgrad.codegen.general.data import DataStages
from convgrad.codegen.ir import Builder
from convgrad.codegen.ir_module import Index, Value
from convgrad.codegen.isa.base import STORAGE
from convgrad.codegen.loops.lanes import first_group
from convgrad.codegen.loops.sweep import Sweep
from convgrad.codegen.microkernels.contract import Tile
from convgrad.codegen.outputs.results import store_runs
from convgrad.codegen.outputs.runs import Run
from convgrad.codegen.stages import Places
from convgrad.plan.axes import Phase
from convgrad.plan.depthwise.depthwise_data import DepthwiseDataPlan
from convgrad.values import replace

Bounds = tuple[tuple[Index, Index], ...]  # per outer axis, taps that meet the image


Taps = dict[tuple[int, int], Value]  # by row and column
MANY = 8  # sums, between which and what LLVM reads ahead it would choose to spill
WAITING = 3  # registers for what is read, where those of all weights are held while rows are stored


class DepthwiseSweep(Sweep):
    """All tiles of a task, each for one block of groups after the other: what lies together is met together."""

    plan: DepthwiseDataPlan
    lanes: tuple[Index, Index]  # first block of groups, and the one behind the last
    begins: Value  # whether a tile is the first one of its rows
    origin: Index = 0  # of the image in what is read

    def _tile(self, shape: tuple[int, ...]) -> Tile:
        """How sums begin and are stored: outputs of all phases, row by row."""
        plan = self.plan
        *_, rows, columns = plan.result_strides[0]
        places = tuple(
            phase.first * rows[0] + m * rows[1] + other.first * columns[0] + n * columns[1]
            for m, phase in plan.outputs(-2)
            for n, other in plan.outputs(-1)
        )
        return Tile(
            isa=self.isa, compute=plan.compute, rows=places, columns=tuple(plan.all_vectors), c_rows=places,
            c_columns=tuple(plan.all_vectors),
            c_dtype=plan.problem.out_dtype, past_caches=plan.past_caches and self.isa.streams,
            may_stay=plan.may_stay and self.isa.streams,
        )  # fmt: skip

    def run(self) -> None:
        """Outputs of the outer axes one by one, tiles of rows, tiles of columns."""
        self._outer(0, self.origin, 0, 0, ())

    def _outer(self, n: int, given: Index, solved: Index, tap: int, bounds: Bounds) -> None:
        """Axis n, with where in the input tap 0 and in the output a tile begins, that tap, and taps in the image."""
        b, plan, axis = self.b, self.plan, self.plan.axes[n]
        if n == len(plan.axes) - 2:
            self._row_tiles(given, solved, tap, bounds)
            return
        start, (phase_step, step) = self.starts[n], plan.result_strides[0][n]
        for phase in axis.phases:

            def output(j: Index, _: object, phase: Phase = phase) -> None:
                at = b.add(start, j)
                row = b.add(b.mul(at, axis.in_step), phase.offset)
                there = b.add(given, b.mul(row, plan.slab_strides[0][n]))
                target = b.add(solved, b.add(b.mul(at, step), phase.first * phase_step))
                of_axis = self.taps.bounds(axis, 1, at, phase.taps, phase.offset)
                self._outer(n + 1, there, target, tap + phase.tap * self.taps.strides[n], (*bounds, of_axis))

            stop = b.minimum(b.sub(phase.count, start), plan.block[n])
            b.loop(0, stop, output, name="output")

    def _row_tiles(self, given: Index, solved: Index, tap: int, bounds: Bounds) -> None:
        """All tiles of a block of rows."""
        b, plan, axis, size = self.b, self.plan, self.plan.rows, self.plan.tile[-2]
        start = self.starts[-2]
        stop = b.minimum(b.sub(axis.count, start), plan.block[-2])
        weights = self.weights
        self.weights = b.at(weights, tap, self.kind)

        def tile(j: Index, _: object) -> None:
            self.begins = b.compare("eq", j, 0)
            at = b.minimum(b.add(start, j), axis.count - size)
            there = b.add(given, b.mul(at, axis.in_step * plan.slab_strides[0][-2]))
            target = b.add(solved, b.mul(at, plan.result_strides[0][-2][1]))
            self._rows(there, target, at, bounds)

        b.loop(0, stop, tile, step=size, name="tile")
        self.weights = weights

    def _rows(self, given: Index, solved: Index, row: Index, bounds: Bounds) -> None:
        """All tiles of some rows."""
        b, plan, axis = self.b, self.plan, self.plan.columns
        step, out_step = plan.slab_strides[0][-1], plan.result_strides[0][-1][1]
        for first, last in plan.bodies:

            def tile(j: Index, _: object, first: int = first) -> None:
                there = b.add(given, b.mul(j, axis.in_step * step))
                target = b.at(self.results, b.add(solved, b.mul(j, out_step)), STORAGE[plan.problem.out_dtype])
                self._lanes(there, target, row, bounds, first)

            b.loop(first, last + 1, tile, step=plan.tile[-1], name="columns")

    def _lanes(self, given: Index, target: Value, row: Index, bounds: Bounds, column: int) -> None:
        """A tile, for all blocks of groups."""
        b, plan = self.b, self.plan
        weights, bias = self.weights, self.bias
        first, last = self.lanes

        def block(n: Index, _: object) -> None:
            group = first_group(plan, b, 0, n)
            self.weights = b.at(weights, b.mul(n, plan.panel), self.kind)
            self.bias = None if bias is None else b.at(bias, b.mul(n, plan.width), self.kind)
            self._sum(b.add(given, group), b.at(target, group, STORAGE[plan.problem.out_dtype]), row, bounds, column)

        b.loop(first, last, block, name="lanes")
        self.weights, self.bias = weights, bias

    def _sum(self, given: Index, target: Value, row: Index, bounds: Bounds, column: int) -> None:
        """One tile, whose columns see what the one that begins with `column` sees of borders."""
        b, plan = self.b, self.plan
        slab = b.at(self.slab, given, STORAGE[plan.problem.dtype])
        weights = self.weights
        self.tile.ask(b, target)

        if self._crowded and not self.tile.past_caches and set(bounds) == {(0, 1)}:
            held = self._taps(weights, range(plan.kernel[0])) if self._taken <= self.isa.registers else {}
            done = self._row_by_row(b.hidden(slab), weights, held, row, self._start(self.tile), column)
            self._write(run for now in done for run in self._done(target, row, column, *now))
            return

        def taps(n: int, x: Value, w: Value, sums: list[Value]) -> list[Value]:
            if n == len(bounds):
                *_, (_, sums) = self._row_by_row(b.hidden(x), w, {}, row, sums, column)
                return sums
            axis = plan.axes[n]

            def tap(t: Index, now: list[Value]) -> list[Value]:
                there = b.at(x, b.mul(t, axis.offset_step * plan.slab_strides[0][n]), STORAGE[plan.problem.dtype])
                return taps(n + 1, there, b.at(w, b.mul(t, axis.tap_step * self.taps.strides[n]), self.kind), now)

            if bounds[n] == (0, 1):
                return tap(0, sums)
            places = dict(enumerate(sums))

            def body(t: Index, now: dict) -> dict:
                return dict(enumerate(tap(t, list(now.values()))))

            return list(b.loop(*bounds[n], body, carried=places, name="tap").values())

        self._put(target, taps(0, slab, weights, self._start(self.tile)), row, column)

    def _put(self, target: Value, sums: list[Value], row: Index, column: int) -> None:
        """All outputs that there are of a tile."""
        b, plan, always = self.b, self.plan, self.plan.always_stored
        every, columns = range(len(plan.outputs(-2))), len(plan.outputs(-1))

        def put(rows: Iterable[int]) -> None:
            self._store(target, sums, [m * columns + n for m in rows for n in plan.stored(column)])

        if len(always) == len(every):
            put(every)
        else:
            b.either(self._is_whole(row), lambda: put(every), lambda: put(always))

    def _store(self, target: Value, sums: list[Value], which: list[int]) -> None:
        """Some of them, all at once."""
        places = tuple(self.tile.c_rows[n] for n in which)
        replace(self.tile, rows=places, c_rows=places).put(self.b, target, [sums[n] for n in which])

    def _write(self, runs: Iterable[Run]) -> None:
        """Some of them, as they are done."""
        store_runs(self.b, self.isa, self.plan.problem.out_dtype, runs)

    def _is_whole(self, row: Index) -> Value:
        """Whether the tile that begins with a row has outputs of every phase in its last one."""
        least = min(phase.count for phase in self.plan.rows.phases)
        return self.b.compare("slt", self.b.add(row, self.plan.tile[-2] - 1), least)

    def _row_by_row(
        self, x: Value, w: Value, held: Taps, row: Index, sums: list[Value], column: int
    ) -> Iterator[tuple[list[int], list[Value]]]:  # fmt: skip
        """With each row of the input that is in the image: rows of the tile that meet no further one, and all sums."""
        b, plan, axis = self.b, self.plan, self.plan.rows
        last = {m: place for place, met in plan.row_steps for m, _ in met}
        if len(last) < len(plan.outputs(-2)):
            yield [m for m in range(len(plan.outputs(-2))) if m not in last], sums
        for place, met in plan.row_steps:
            if plan.sure(place):
                sums = self._row(x, w, held, place, met, sums, column)
            else:
                at = b.add(b.mul(row, axis.in_step), place)
                inside = b.both(b.compare("sge", at, 0), b.compare("slt", at, axis.in_extent))
                now = sums
                sums = b.one_of(inside, lambda: self._row(x, w, held, place, met, now, column), lambda: now)  # noqa: B023
            yield [m for m, of_row in last.items() if of_row == place], sums

    @property
    def _taken(self) -> int:
        """Registers of a tile that holds its weights and all sums."""
        return prod(self.plan.kernel) + self.plan.sums + WAITING

    @property
    def _crowded(self) -> bool:
        """Whether sums are stored row by row, as soon as they are done, for others to take their registers."""
        return self.plan.sums >= MANY or self._taken > self.isa.registers

    def _taps(self, w: Value, rows: Iterable[int]) -> Taps:
        """Weights of some rows of taps, of all groups of a vector."""
        b, plan = self.b, self.plan
        row_step, step = self.taps.strides[-2:]
        places = {(t, r): t * row_step + r * step for t in rows for r in range(plan.kernel[1])}
        return {
            tap: self.isa.load(b, plan.compute, b.at(w, at, self.kind), plan.lanes) for tap, at in places.items()
        }  # fmt: skip

    def _done(self, target: Value, row: Index, column: int, rows: list[int], sums: list[Value]) -> Iterator[Run]:
        """Rows of a tile at an address, as far as there are such outputs."""
        b, plan, kind = self.b, self.plan, STORAGE[self.plan.problem.out_dtype]
        for m in rows:
            wanted = None if m in plan.always_stored else self._is_whole(row)
            for which in (m * len(plan.outputs(-1)) + n for n in plan.stored(column)):
                yield Run([sums[which]], b.at(target, self.tile.c_rows[which], kind), wanted=wanted)

    def _row(
        self, x: Value, w: Value, held: Taps, place: int, met: tuple[tuple[int, int], ...], sums: list[Value],
        column: int,
    ) -> list[Value]:  # fmt: skip
        """A row of the input, for each row of the tile that meets it."""
        b, plan, p = self.b, self.plan, self.plan.problem
        *_, row_step, step = plan.slab_strides[0]
        columns, sums = len(plan.outputs(-1)), list(sums)
        reads = plan.column_steps(column)
        for m, t in met:
            taps = held or self._taps(w, (t,))
            for at, products in reads.items():
                address = b.at(x, place * row_step + at * step, STORAGE[p.dtype])
                read = self.isa.load(b, p.dtype, address, plan.lanes)
                for n, r in products:
                    which = m * columns + n
                    sums[which] = self.isa.multiply_add(b, read, taps[t, r], sums[which])
        return sums


class DepthwiseStages(DataStages):
    """The stages of a plan."""

    plan: DepthwiseDataPlan
    sweep = DepthwiseSweep

    def _task(self, b: Builder, at: Places, task: Value) -> None:
        plan, p = self.plan, self.plan.problem
        *blocks, _, share = b.split(task, plan.grid)
        starts = [b.mul(block, size) for block, size in zip(blocks, plan.block, strict=True)]
        first = b.mul(share, plan.blocks_per_task)
        lanes = first, b.minimum(b.add(first, plan.blocks_per_task), plan.lane_blocks)
        weights = b.at(at.shared, 0, self.kind)
        bias = bias_at(plan, b, at, 0, 0) if p.bias else None
        given = self._input(b, at, starts, lanes)
        sweep = self.sweep(plan, b, given, weights, at.of(self.output), bias, 1, starts, fresh=True)
        sweep.lanes = lanes
        self._prepare(sweep)
        sweep.run()

    def _input(self, b: Builder, at: Places, starts: list[Index], lanes: tuple[Index, Index]) -> Value:
        """What tiles read."""
        return at.of(self.input)

    def _prepare(self, sweep: DepthwiseSweep) -> None:
        """For what only some kinds of tiles need."""
