"""Lowering of a DepthwiseDataPlan: that of a DataPlan whose tiles are written out row by row of the input."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from math import prod

from convgrad.codegen.data import DataStages, emit_data
from convgrad.codegen.ir import Builder
from convgrad.codegen.ir_module import Index, Module, Value
from convgrad.codegen.isa.base import STORAGE
from convgrad.codegen.microkernels.contract import Tile
from convgrad.codegen.module import KernelModule
from convgrad.codegen.panels import bias_at
from convgrad.codegen.results import Run, store_runs
from convgrad.codegen.stages import Places
from convgrad.codegen.sweep import Sweep
from convgrad.plan.depthwise_data import DepthwiseDataPlan

Bounds = tuple[tuple[Index, Index], ...]  # per outer axis, taps that meet the image


def lower_depthwise_data(plan: DepthwiseDataPlan) -> KernelModule:
    """Two stages, weights and outputs; or one."""
    module = Module()
    stages, shared, scratch = emit_data(module, DepthwiseStages(plan))
    return KernelModule(ir=str(module), stages=stages, shared_bytes=shared, scratch_bytes=scratch)


Taps = dict[tuple[int, int], Value]  # by row and column
MANY = 8  # sums, between which and what LLVM reads ahead it would choose to spill
WAITING = 3  # registers for what is read, where those of all weights are held while rows are stored


class DepthwiseSweep(Sweep):
    """All tiles of a task, each for one block of groups after the other: what lies together is met together."""

    plan: DepthwiseDataPlan
    lanes: tuple[Index, Index]  # first block of groups, and the one behind the last
    begins: Value  # whether a tile is the first one of its rows

    def _tile(self, shape: tuple[int, ...]) -> Tile:
        """How sums begin and are stored."""
        plan = self.plan
        *_, (_, row_step), (_, column_step) = plan.result_strides[0]
        *_, rows, columns = shape
        places = tuple(m * row_step + n * column_step for m in range(rows) for n in range(columns))
        return Tile(
            isa=self.isa, compute=plan.compute, rows=places, columns=(0,), c_rows=places, c_columns=(0,),
            c_dtype=plan.problem.out_dtype, past_caches=plan.past_caches and self.isa.streams,
        )  # fmt: skip

    def run(self) -> None:
        """Outputs of the outer axes one by one, tiles of rows, tiles of columns."""
        self._outer(0, 0, 0, ())

    def _outer(self, n: int, given: Index, solved: Index, bounds: Bounds) -> None:
        """Axis n, with where in the input tap 0 and in the output a tile begins, and taps that meet the image."""
        b, plan, axis = self.b, self.plan, self.plan.axes[n]
        (phase,) = axis.phases
        last = n == len(plan.axes) - 2
        size = plan.tile[n]
        start = self.starts[n]
        stop = b.minimum(b.sub(axis.count, start), plan.block[n])

        def tile(j: Index, _: object) -> None:
            self.begins = b.compare("eq", j, 0)
            at = b.minimum(b.add(start, j), axis.count - size)
            row = b.add(b.mul(at, axis.in_step), phase.offset)
            there = b.add(given, b.mul(row, plan.slab_strides[0][n]))
            target = b.add(solved, b.mul(at, plan.result_strides[0][n][1]))
            if last:
                self._rows(there, target, row, bounds)
            else:
                of_axis = self.taps.bounds(axis, 1, at, phase.taps, phase.offset)
                self._outer(n + 1, there, target, (*bounds, of_axis))

        b.loop(0, stop, tile, step=size, name="tile")

    def _rows(self, given: Index, solved: Index, row: Index, bounds: Bounds) -> None:
        """All tiles of some rows."""
        b, plan, axis = self.b, self.plan, self.plan.columns
        (phase,) = axis.phases
        step, out_step = plan.slab_strides[0][-1], plan.result_strides[0][-1][1]
        for first, last in plan.bodies:

            def tile(j: Index, _: object, first: int = first) -> None:
                there = b.add(given, b.mul(b.add(b.mul(j, axis.in_step), phase.offset), step))
                target = b.at(self.results, b.add(solved, b.mul(j, out_step)), STORAGE[plan.problem.out_dtype])
                self._lanes(there, target, row, bounds, first)

            b.loop(first, last + 1, tile, step=plan.tile[-1], name="columns")

    def _lanes(self, given: Index, target: Value, row: Index, bounds: Bounds, column: int) -> None:
        """A tile, for all blocks of groups."""
        b, plan = self.b, self.plan
        weights, bias = self.weights, self.bias
        first, last = self.lanes

        def block(n: Index, _: object) -> None:
            group = b.minimum(b.mul(n, plan.lanes), plan.problem.groups - plan.lanes)
            self.weights = b.at(weights, b.mul(n, plan.panel), self.kind)
            self.bias = None if bias is None else b.at(bias, b.mul(n, plan.width), self.kind)
            self._sum(b.add(given, group), b.at(target, group, STORAGE[plan.problem.out_dtype]), row, bounds, column)

        b.loop(first, last, block, name="lanes")
        self.weights, self.bias = weights, bias

    def _sum(self, given: Index, target: Value, row: Index, bounds: Bounds, column: int) -> None:
        """One tile, whose columns see what the one that begins with `column` sees of borders."""
        b, plan = self.b, self.plan
        slab = b.at(self.slab, given, STORAGE[plan.problem.dtype])
        first_tap = sum(axis.phases[0].tap * step for axis, step in zip(plan.axes, self.taps.strides, strict=True))
        weights = b.at(self.weights, first_tap, self.kind)

        if self._crowded and not self.tile.past_caches and set(bounds) == {(0, 1)}:
            held = self._taps(weights, range(plan.rows.taps)) if self._taken <= self.isa.registers else {}
            done = self._row_by_row(b.hidden(slab), weights, held, row, self._start(self.tile), column)
            self._write(run for now in done for run in self._done(target, *now))
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

        sums = taps(0, slab, weights, self._start(self.tile))
        if self.tile.past_caches:
            b.either(
                self.isa.is_aligned(b, target),
                lambda: self.tile.stream(b, target, sums), lambda: self.tile.store(b, target, sums),
            )  # fmt: skip
        else:
            self._store(target, sums)

    def _store(self, target: Value, sums: list[Value]) -> None:
        self.tile.store(self.b, target, sums)

    def _write(self, runs: Iterable[Run]) -> None:
        store_runs(self.b, self.isa, self.plan.problem.out_dtype, runs)

    def _row_by_row(
        self, x: Value, w: Value, held: Taps, row: Index, sums: list[Value], column: int
    ) -> Iterator[tuple[list[int], list[Value]]]:  # fmt: skip
        """With each row of the input that is in the image: rows of the tile that meet no further one, and all sums."""
        b, plan, axis = self.b, self.plan, self.plan.rows
        last = {m: place for place, met in plan.row_steps for m, _ in met}
        for place, met in plan.row_steps:
            if plan.sure(place):
                sums = self._row(x, w, held, place, met, sums, column)
            else:
                at = b.add(row, place)
                inside = b.both(b.compare("sge", at, 0), b.compare("slt", at, axis.in_extent))
                now = sums
                sums = b.one_of(inside, lambda: self._row(x, w, held, place, met, now, column), lambda: now)  # noqa: B023
            yield [m for m, of_row in last.items() if of_row == place], sums

    @property
    def _taken(self) -> int:
        """Registers of a tile that holds its weights and all sums."""
        return self.plan.rows.taps * self.plan.columns.taps + prod(self.plan.tile) + WAITING

    @property
    def _crowded(self) -> bool:
        """Whether sums are stored row by row, as soon as they are done, for others to take their registers."""
        return prod(self.plan.tile) >= MANY or self._taken > self.isa.registers

    def _taps(self, w: Value, rows: Iterable[int]) -> Taps:
        """Weights of some rows of taps, of all groups of a vector."""
        b, plan, axis = self.b, self.plan, self.plan.columns
        row_step, step = plan.rows.tap_step * self.taps.strides[-2], axis.tap_step * self.taps.strides[-1]
        places = {(t, r): t * row_step + r * step for t in rows for r in range(axis.phases[0].taps)}
        return {
            tap: self.isa.load(b, plan.compute, b.at(w, at, self.kind), plan.lanes) for tap, at in places.items()
        }  # fmt: skip

    def _done(self, target: Value, rows: list[int], sums: list[Value]) -> Iterator[Run]:
        """Rows of a tile at an address."""
        columns, kind = self.plan.tile[-1], STORAGE[self.plan.problem.out_dtype]
        for which in (m * columns + n for m in rows for n in range(columns)):
            yield Run([sums[which]], self.b.at(target, self.tile.c_rows[which], kind))

    def _row(
        self, x: Value, w: Value, held: Taps, place: int, met: tuple[tuple[int, int], ...], sums: list[Value],
        column: int,
    ) -> list[Value]:  # fmt: skip
        """A row of the input, for each row of the tile that meets it."""
        b, plan, p, axis = self.b, self.plan, self.plan.problem, self.plan.columns
        (phase,) = axis.phases
        *_, row_step, step = plan.slab_strides[0]
        columns, sums = plan.tile[-1], list(sums)
        for m, t in met:
            taps = held or self._taps(w, (t,))
            reads: dict[int, list[tuple[int, int]]] = {}
            for r in range(phase.taps):
                for n in range(columns):
                    if plan.has(column + n, r):
                        reads.setdefault(n * axis.in_step + r * axis.offset_step, []).append((n, r))
            for at in sorted(reads, reverse=axis.offset_step < 0):
                address = b.at(x, place * row_step + at * step, STORAGE[p.dtype])
                read = self.isa.load(b, p.dtype, address, plan.lanes)
                for n, r in reads[at]:
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
        sweep = self.sweep(plan, b, at.of(self.input), weights, at.of(self.output), bias, 1, starts, fresh=True)
        sweep.lanes = lanes
        self._prepare(sweep)
        sweep.run()

    def _prepare(self, sweep: DepthwiseSweep) -> None:
        """For what only some kinds of tiles need."""
