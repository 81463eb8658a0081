"""Lowering of a PlaneDataPlan: rows of outputs in registers, over a slab of one plane."""

from __future__ import annotations

from collections.abc import Iterator
from math import prod
from typing import TYPE_CHECKING

from convgrad.codegen.copies.copying import Copy, Dim
from convgrad.codegen.copies.interleave import gathered
from convgrad.codegen.copies.zeroing import emit_zero
from convgrad.codegen.depthwise.plane_slab import plane_box
from convgrad.codegen.ir import Builder
from convgrad.codegen.ir_module import Index, Module, Value
from convgrad.codegen.isa import ISAS
from convgrad.codegen.isa.base import ARITHMETIC, BYTES, STORAGE
from convgrad.codegen.microkernels.contract import Tile
from convgrad.codegen.module import Stage, round64
from convgrad.codegen.outputs.results import store_runs
from convgrad.codegen.outputs.runs import Run
from convgrad.codegen.stages import Places, emit_stage
from convgrad.plan.axes import Phase
from convgrad.plan.depthwise.plane_costs import tap_pieces
from convgrad.plan.depthwise.plane_data import PlaneDataPlan
from convgrad.plan.strides import row_major

if TYPE_CHECKING:
    from convgrad.codegen.watch.verdict import Verdict

Sums = dict[int, Value]  # of (row, vector), flat


class PlaneOutputs:
    """The stage: tasks convert the weights of their groups themselves.

    Scratch memory of a task: the slab, weights of its groups, and a buffer of one tile.
    """

    shared_bytes = 0
    verdict: Verdict | None = None

    def __init__(self, plan: PlaneDataPlan):
        self.plan, self.isa, self.kind = plan, ISAS[plan.isa], ARITHMETIC[plan.compute]
        size, p = BYTES[plan.compute], plan.problem
        self.weights_start = round64(size * plan.slab.size)
        self.tile_start = self.weights_start + round64(size * plan.run * plan.taps)
        self.scratch_bytes = self.tile_start + (0 if plan.direct else round64(size * plan.tile_size))
        self.copy = Copy(
            isa=self.isa, compute=plan.compute, src_dtype=p.dtype, dst_dtype=plan.compute, source_order=True
        )
        self.write = Copy(
            isa=self.isa, compute=plan.compute, src_dtype=plan.compute, dst_dtype=p.out_dtype, accumulate=p.accumulate
        )
        strides = p.strides[p.solved]
        self.out_strides = (strides[0], *strides[3:])
        self.tap_steps = row_major(p.taps, 1)

    @property
    def most_tasks(self) -> int:
        """Of the one stage."""
        return prod(self.plan.grid)

    def emit(self, module: Module) -> tuple[Stage, ...]:
        """It alone."""
        self.plan.validate()
        return (emit_stage(module, "main", self.most_tasks, self.scratch_bytes, self.task),)

    def task(self, b: Builder, at: Places, task: Value) -> None:
        """One block of outputs, plane by plane."""
        plan, p = self.plan, self.plan.problem
        *blocks, run = b.split(task, plan.grid)
        self.starts = [b.mul(block, size) for block, size in zip(blocks, plan.block, strict=True)]
        first_group = b.mul(run, plan.run)
        groups = plan.run if p.groups % plan.run == 0 else b.minimum(b.sub(p.groups, first_group), plan.run)
        emit_zero(b, self.isa, plan.compute, at.scratch, plan.slab.size)
        weights = b.at(at.scratch, self.weights_start, "i8")
        taps = [Dim(*steps) for steps in zip(p.taps, p.w_strides[3:], self.tap_steps, strict=True)]
        source = b.at(at.w, b.mul(first_group, p.w_strides[0]), STORAGE[p.dtype])
        self.copy.emit(b, source, weights, [Dim(groups, p.w_strides[0], plan.taps), *taps])
        strides = p.strides[p.given]
        box = plane_box(b, plan.slab, self.starts, (strides[0], *strides[3:]))
        packed = b.at(at.scratch, box.target, self.kind)

        def plane(g: Index, _: object) -> None:
            group = b.add(first_group, g)
            place = b.add(box.source, b.mul(group, strides[1]))
            box.copy(b, self.copy, b.at(at.of(p.given), place, STORAGE[p.dtype]), packed)
            here = b.at(weights, b.mul(g, plan.taps), self.kind)
            for phases in plan.outer_phases:
                self._sweep(b, at, group, phases, here)

        b.loop(0, groups, plane, name="group")

    # --- tiles

    def _sweep(self, b: Builder, at: Places, group: Index, phases: tuple[Phase, ...], weights: Value) -> None:
        """All tiles of a plane, of a phase of the outer axes."""
        plan, p = self.plan, self.plan.problem
        bias = self._bias(b, at, group)
        output = b.at(at.of(p.solved), b.mul(group, p.strides[p.solved][1]), STORAGE[p.out_dtype])
        counts = [
            b.minimum(b.sub(phase.count, start), block)
            for phase, start, block in zip(phases, self.starts[:-1], plan.block[:-1], strict=True)
        ]
        inner = b.minimum(b.sub(plan.axes[-1].count, self.starts[-1]), plan.block[-1])
        slab = plan.slab.strides

        def nest(n: int, read: Index, written: Index) -> None:
            """Outputs of axis n and further inside; offsets in the slab and in the output."""
            axis = plan.axes[n]

            def place(j: Index) -> tuple[Index, Index]:
                out = b.add(b.mul(b.add(self.starts[n], j), axis.out_step), phases[n].first)
                return (
                    b.add(read, b.mul(j, axis.in_step * slab[n])),
                    b.add(written, b.mul(out, self.out_strides[n])),
                )

            if n < len(plan.axes) - 2:
                b.loop(0, counts[n], lambda j, _: nest(n + 1, *place(j)), name="outputs")
                return

            def row(j: Index, _: object) -> None:
                read, written = place(j)
                count = counts[n]
                even = isinstance(count, int) and count % plan.rows == 0
                rest = plan.rows if even else b.minimum(b.sub(count, j), plan.rows)

                def column(i: Index, _: object) -> None:
                    sums = [
                        self._tile(b, b.at(at.scratch, b.add(read, i), self.kind), weights, (*phases, phase), bias)
                        for phase in plan.axes[-1].phases
                    ]
                    self._store(b, at, output, written, rest, i, sums)

                b.loop(0, inner, column, step=plan.width, name="column")

            b.loop(0, counts[n], row, step=plan.rows, name="row")

        nest(0, 0, 0)

    def _bias(self, b: Builder, at: Places, group: Index) -> Value:
        plan, p = self.plan, self.plan.problem
        if not p.bias:
            return Value(self.isa.vector(plan.compute), "zeroinitializer")
        number = self.isa.load(b, p.dtype, b.at(at.bias, b.mul(group, p.bias_stride), STORAGE[p.dtype]))
        return self.isa.splat(b, number, plan.lanes)

    def _tile(self, b: Builder, slab: Value, weights: Value, phases: tuple[Phase, ...], bias: Value) -> list[Value]:
        """The sums of a register tile, by row and vector, of one phase of every axis."""
        plan = self.plan
        axes, strides = plan.axes[1:], plan.slab.strides
        taps = [plan.offsets(axis, phase) for axis, phase in zip(axes, phases[1:], strict=True)]
        sums = [bias] * (plan.rows * plan.vectors)
        if not all(taps):
            return sums
        step = plan.axes[-2].in_step * strides[-1]
        tile = Tile(
            isa=self.isa, compute=plan.compute, rows=(0,), c_rows=(0,), slid=frozenset(plan.slid), in_rounds=True,
            columns=tuple(r * step + v * plan.lanes for r in range(plan.rows) for v in range(plan.vectors)),
            c_columns=(0,) * (plan.rows * plan.vectors),
        )  # fmt: skip
        columns = [(plan.slab.place(offset), tap) for offset, tap in taps[-1]]

        def written(rows: range) -> list[tuple[int, int]]:
            """Places of the weights and the slab, from those of the first of these rows of taps on."""
            if len(axes) == 1:
                return [(tap, place) for place, tap in columns]
            first, first_tap = taps[-2][rows[0]]
            return [
                (
                    (taps[-2][r][1] - first_tap) * self.tap_steps[-2] + tap,
                    (taps[-2][r][0] - first) * strides[-1] + place,
                )
                for r in rows
                for place, tap in columns
            ]

        def nest(n: int, w: Value, x: Value, now: Sums) -> Sums:
            """Taps of axis n and further inside."""
            axis, found = plan.axes[n], taps[n - 1]

            def at_tap(t: Index) -> tuple[Value, Value]:
                offset, tap = found[0]
                there = b.add(b.mul(t, axis.offset_step), offset - plan.slab.firsts[n])
                which = b.add(b.mul(t, axis.tap_step), tap)
                return (
                    b.at(w, b.mul(which, self.tap_steps[n - 1]), self.kind),
                    b.at(x, b.mul(there, strides[n]), self.kind),
                )

            if n < len(plan.axes) - 2:
                return b.loop(0, len(found), lambda t, now: nest(n + 1, *at_tap(t), now), carried=now, name="tap")
            first = 0
            for many, times in tap_pieces(len(found), plan.tap_rows):

                def piece(t: Index, now: Sums, many: int = many) -> Sums:
                    return dict(enumerate(tile.sum(b, *at_tap(t), list(now.values()), [], written(range(many)))))

                last = first + many * times
                now = b.loop(first, last, piece, step=many, carried=now, name="taps")
                first = last
            return now

        start = dict(enumerate(sums))
        if len(axes) == 1:
            return tile.sum(b, weights, slab, sums, [], written(range(1)))
        return list(nest(1, weights, slab, start).values())

    # --- results

    def _store(
        self, b: Builder, at: Places, output: Value, written: Index, rows: Index, i: Index, sums: list[list[Value]]
    ) -> None:
        """Of `rows` rows, from output i of every phase of the block on."""
        plan, p = self.plan, self.plan.problem
        axis, step = plan.axes[-1], self.out_strides[-1]
        start = b.mul(b.add(self.starts[-1], i), axis.out_step)
        target = b.at(output, b.add(written, b.mul(start, step)), STORAGE[p.out_dtype])
        row_step = plan.axes[-2].out_step * self.out_strides[-2]
        width = plan.width * axis.out_step
        count = width if axis.out_extent % width == 0 else b.minimum(b.sub(axis.out_extent, start), width)
        rows_of_phases = [[of_phase[r * plan.vectors :][: plan.vectors] for of_phase in sums] for r in range(plan.rows)]

        def by_buffer() -> None:
            buffer = b.at(at.scratch, self.tile_start, "i8")
            vectors = [value for row in rows_of_phases for every in zip(*row, strict=True)
                       for value in gathered(b, self.isa, [*every])]  # fmt: skip
            for place, value in enumerate(vectors):
                self.isa.store(b, plan.compute, value, b.at(buffer, place * plan.lanes, self.kind))
            dims = [Dim(rows, width, row_step), Dim(count, 1, step)]
            self.write.emit(b, buffer, target, dims)

        def runs(rows: Index = rows, count: Index = count) -> Iterator[Run]:
            for r, phases in enumerate(rows_of_phases):
                if isinstance(rows, int) and r >= rows:
                    return
                wanted = None if r == 0 or isinstance(rows, int) else b.compare("sgt", rows, r)
                address = b.at(target, r * row_step, STORAGE[p.out_dtype])
                if len(phases) == 1:
                    yield Run(phases[0], address, count, wanted=wanted)
                    continue
                for v, pair in enumerate(zip(*phases, strict=True)):
                    first = 2 * v * plan.lanes
                    place = b.at(address, first, STORAGE[p.out_dtype])
                    yield Run(pair, place, b.sub(count, first), in_turn=True, wanted=wanted)

        if plan.direct:
            store_runs(b, self.isa, p.out_dtype, runs())
            return
        if not plan.direct_if_whole:
            by_buffer()
            return
        missing = b.sub((plan.rows + 1) * width, b.add(b.mul(rows, width), count))
        if missing == 0:
            store_runs(b, self.isa, p.out_dtype, runs(plan.rows, width))
        elif isinstance(missing, int):
            by_buffer()
        else:
            whole = b.compare("eq", missing, 0)
            b.either(whole, lambda: store_runs(b, self.isa, p.out_dtype, runs(plan.rows, width)), by_buffer)
