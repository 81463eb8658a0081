"""Lowering of a DepthwiseDataPlan: that of a DataPlan whose tiles are written out row by row of the input."""

from __future__ import annotations

from convgrad.codegen.data import DataStages, emit_data
from convgrad.codegen.ir import Builder
from convgrad.codegen.ir_module import Index, Module, Value
from convgrad.codegen.isa.base import STORAGE
from convgrad.codegen.microkernels.contract import Tile
from convgrad.codegen.module import KernelModule
from convgrad.codegen.panels import bias_at
from convgrad.codegen.stages import Places
from convgrad.codegen.sweep import Sweep
from convgrad.plan.depthwise_data import DepthwiseDataPlan

Bounds = tuple[tuple[Index, Index], ...]  # per outer axis, taps that meet the image


def lower_depthwise_data(plan: DepthwiseDataPlan) -> KernelModule:
    """Two stages, weights and outputs; or one."""
    module = Module()
    stages, shared, scratch = emit_data(module, DepthwiseStages(plan))
    return KernelModule(ir=str(module), stages=stages, shared_bytes=shared, scratch_bytes=scratch)


class DepthwiseSweep(Sweep):
    """All tiles of a task, each for one block of groups after the other: what lies together is met together."""

    plan: DepthwiseDataPlan
    lanes: tuple[Index, Index]  # first block of groups, and the one behind the last

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

        def taps(n: int, x: Value, w: Value, sums: list[Value]) -> list[Value]:
            if n == len(bounds):
                return self._row_taps(b.hidden(x), w, row, sums, column)
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
            self.tile.store(b, target, sums)

    def _row_taps(self, x: Value, w: Value, row: Index, sums: list[Value], column: int) -> list[Value]:
        """What the rows of the input add, each if it is in the image."""
        b, plan, axis = self.b, self.plan, self.plan.rows
        for place, met in plan.row_steps:
            if plan.sure(place):
                sums = self._row(x, w, place, met, sums, column)
                continue
            at = b.add(row, place)
            inside = b.both(b.compare("sge", at, 0), b.compare("slt", at, axis.in_extent))
            now = sums
            sums = b.one_of(inside, lambda: self._row(x, w, place, met, now, column), lambda: now)  # noqa: B023
        return sums

    def _row(
        self, x: Value, w: Value, place: int, met: tuple[tuple[int, int], ...], sums: list[Value], column: int
    ) -> list[Value]:
        """A row of the input, for each row of the tile that meets it."""
        b, plan, p, axis = self.b, self.plan, self.plan.problem, self.plan.columns
        (phase,) = axis.phases
        *_, row_step, step = plan.slab_strides[0]
        columns, sums = plan.tile[-1], list(sums)
        for m, t in met:
            row_tap = t * plan.rows.tap_step * self.taps.strides[-2]
            places = [row_tap + r * axis.tap_step * self.taps.strides[-1] for r in range(phase.taps)]
            taps = [self.isa.load(b, plan.compute, b.at(w, at, self.kind), plan.lanes) for at in places]
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
                    sums[which] = self.isa.multiply_add(b, read, taps[r], sums[which])
        return sums


class DepthwiseStages(DataStages):
    """The stages of a plan."""

    plan: DepthwiseDataPlan

    def _task(self, b: Builder, at: Places, task: Value) -> None:
        plan, p = self.plan, self.plan.problem
        *blocks, _, share = b.split(task, plan.grid)
        starts = [b.mul(block, size) for block, size in zip(blocks, plan.block, strict=True)]
        first = b.mul(share, plan.blocks_per_task)
        lanes = first, b.minimum(b.add(first, plan.blocks_per_task), plan.lane_blocks)
        weights = b.at(at.shared, 0, self.kind)
        bias = bias_at(plan, b, at, 0, 0) if p.bias else None
        sweep = DepthwiseSweep(plan, b, at.of(self.input), weights, at.of(self.output), bias, 1, starts, fresh=True)
        sweep.lanes = lanes
        sweep.run()
