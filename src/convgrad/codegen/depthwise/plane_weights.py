"""Lowering of a PlaneWeightsPlan: sums of windows, a vector for every tap, whose lanes are added at the end."""

from __future__ import annotations

from collections.abc import Sequence
from math import prod
from typing import TYPE_CHECKING

from convgrad.codegen.copies.copying import Copy, Dim
from convgrad.codegen.copies.zeroing import emit_zero
from convgrad.codegen.depthwise.plane_slab import PlaneBox, plane_box
from convgrad.codegen.ir import Builder
from convgrad.codegen.ir_module import Index, Module, Value, index
from convgrad.codegen.isa import ISAS
from convgrad.codegen.isa.base import ARITHMETIC, BYTES, STORAGE
from convgrad.codegen.loops.ahead import Walk
from convgrad.codegen.microkernels.contract import Tile
from convgrad.codegen.microkernels.reduction import Reduction
from convgrad.codegen.module import Stage, round64
from convgrad.codegen.outputs.bias import BiasShare, finish_bias
from convgrad.codegen.outputs.sums import pairwise
from convgrad.codegen.stages import Places, emit_stage
from convgrad.plan.costs import LINE
from convgrad.plan.depthwise.plane_weights import PlaneWeightsPlan
from convgrad.plan.strides import row_major
from convgrad.values import replace

if TYPE_CHECKING:
    from convgrad.codegen.watch.verdict import Verdict


class PlaneSums:
    """The stages.

    Scratch memory of a task: the slabs of x and y, its sums by vectors, and their lanes added up.
    """

    verdict: Verdict | None = None

    def __init__(self, plan: PlaneWeightsPlan):
        self.plan, self.isa, self.kind = plan, ISAS[plan.isa], ARITHMETIC[plan.compute]
        size = BYTES[plan.compute]
        self.y_start = round64(size * plan.x_slab.size)
        self.sums_start = self._slabs_end()
        self.totals_start = self.sums_start + round64(size * plan.run_sums * plan.lanes)
        self.scratch_bytes = self.totals_start + round64(size * plan.run_sums)
        p = plan.problem
        self.copy = Copy(
            isa=self.isa, compute=plan.compute, src_dtype=p.dtype, dst_dtype=plan.compute, source_order=True
        )
        self.write = Copy(
            isa=self.isa, compute=plan.compute, src_dtype=plan.compute, dst_dtype=p.out_dtype, accumulate=p.accumulate
        )

    @property
    def finish_tasks(self) -> int:
        """Of the second stage, if there is one."""
        return (self.plan.chunks > 1) + bool(self.plan.problem.bias_gradient)

    @property
    def shared_bytes(self) -> int:
        """Sums of all chunks, and of a bias gradient."""
        plan = self.plan
        return BYTES[plan.compute] * (plan.shared_sums + plan.chunks * plan.bias_size)

    @property
    def most_tasks(self) -> int:
        """Of either stage."""
        return max(prod(self.plan.grid), self.finish_tasks)

    def emit(self, module: Module) -> tuple[Stage, ...]:
        """Sums, and a second stage where there are chunks to be added or a bias gradient to be written."""
        self.plan.validate()
        stages = (emit_stage(module, "sums", prod(self.plan.grid), self.scratch_bytes, self.task),)
        if self.finish_tasks:
            stages += (emit_stage(module, "finish", self.finish_tasks, self.scratch_bytes, self.finish),)
        return stages

    def _slabs_end(self) -> int:
        """Bytes that a task packs into."""
        return self.y_start + round64(BYTES[self.plan.compute] * self.plan.y_slab_size)

    # --- tasks

    def task(self, b: Builder, at: Places, task: Value) -> None:
        """All blocks of windows of one chunk, of a run of groups."""
        plan, p = self.plan, self.plan.problem
        chunk, run = b.split(task, plan.grid)
        first_group = b.mul(run, plan.run)
        groups = plan.run if p.groups % plan.run == 0 else b.minimum(b.sub(p.groups, first_group), plan.run)
        sums, blocks = b.at(at.scratch, self.sums_start, "i8"), prod(plan.block_grid)
        emit_zero(b, self.isa, plan.compute, sums, plan.run_sums * plan.lanes)
        self._clear_slabs(b, at)
        bias_sums = b.at(at.shared, b.dot([(chunk, plan.bias_size)], plan.shared_sums), self.kind)
        if p.bias_gradient:
            emit_zero(b, self.isa, plan.compute, b.at(bias_sums, first_group, self.kind), groups)

        def block(number: Index, _: object) -> None:
            places = b.split(number, plan.block_grid)
            starts = [b.mul(place, size) for place, size in zip(places, plan.block, strict=True)]

            def plane(g: Index, _: object) -> None:
                group = b.add(first_group, g)
                if p.bias_gradient:
                    BiasShare(plan, at.of(p.bias_gradient), bias_sums, group, 0, 1, None).add_block(b, starts)
                self._plane(b, at, group, starts, b.at(sums, b.mul(g, plan.taps * plan.lanes), self.kind))

            b.loop(0, groups, plane, name="group")

        first = b.floor_div(b.mul(chunk, blocks), plan.chunks)
        last = b.floor_div(b.mul(b.add(chunk, 1), blocks), plan.chunks)
        b.loop(first, last, block, name="block")
        totals = b.at(at.scratch, self.totals_start, "i8")
        self._add_lanes(b, sums, totals)
        if plan.chunks > 1:
            place = b.dot([(chunk, plan.chunk_sums), (first_group, plan.taps)])
            keep = replace(self.write, dst_dtype=plan.compute, accumulate=False)
            keep.emit(b, totals, b.at(at.shared, place, self.kind), [Dim(b.mul(groups, plan.taps), 1, 1)])
        else:
            self._write(b, at, totals, first_group, groups)

    def finish(self, b: Builder, at: Places, task: Value) -> None:
        """The first task adds chunks, the last one writes the bias gradient; there may be only one of them."""
        plan = self.plan
        bias_sums = b.at(at.shared, plan.shared_sums, self.kind)
        if plan.chunks == 1:
            finish_bias(plan, b, bias_sums, at.bias)
        elif not plan.problem.bias_gradient:
            self._add_chunks(b, at)
        else:
            b.either(
                b.compare("eq", task, 0),
                lambda: self._add_chunks(b, at),
                lambda: finish_bias(plan, b, bias_sums, at.bias),
            )

    # --- slabs

    def _clear_slabs(self, b: Builder, at: Places) -> None:
        size = self.sums_start // BYTES[self.plan.compute]
        emit_zero(b, self.isa, self.plan.compute, at.scratch, size)

    def _pack(
        self, b: Builder, at: Places, group: Index, x: PlaneBox, y: list[Dim], starts: list[Index]
    ) -> list[Value]:
        """The block of a plane, of x and y; where the next plane has it."""
        p, y_slab = self.plan.problem, b.at(at.scratch, self.y_start, "i8")
        y_source = b.dot(list(zip(starts, (p.y_strides[0], *p.y_strides[3:]), strict=True)))
        sources = [
            b.at(at.of(name), b.add(place, b.mul(group, p.strides[name][1])), STORAGE[p.dtype])
            for name, place in (("x", x.source), ("y", y_source))
        ]
        x.copy(b, self.copy, sources[0], b.at(at.scratch, x.target, self.kind))
        self.copy.emit(b, sources[1], y_slab, y)
        steps = (p.strides[name][1] * BYTES[p.dtype] for name in "xy")
        return [b.beyond(source, step) for source, step in zip(sources, steps, strict=True)]

    # --- sums

    def _plane(self, b: Builder, at: Places, group: Index, starts: list[Index], sums: Value) -> None:
        """What a block of a plane adds to the sums of its group."""
        plan = self.plan
        p, y_strides = plan.problem, (plan.problem.y_strides[0], *plan.problem.y_strides[3:])
        x = plane_box(b, plan.x_slab, starts, (p.x_strides[0], *p.x_strides[3:]))
        counts = [
            b.minimum(b.sub(axis.windows, start), block)
            for axis, start, block in zip(plan.axes, starts, plan.block, strict=True)
        ]
        y = [Dim(count, *steps) for count, *steps in zip(counts, y_strides, plan.y_slab, strict=True)]
        if prod(plan.block_grid[1:]) > 1:
            for count, extent in (*x.edges, *zip(counts, plan.block, strict=True)):
                if not isinstance(count, int):
                    with b.when(b.compare("ne", count, extent)):
                        self._clear_slabs(b, at)
        following = self._pack(b, at, group, x, y, starts)
        y_slab, x_strides = b.at(at.scratch, self.y_start, "i8"), plan.x_slab.strides
        row_count = b.floor_div(b.add(counts[-2], plan.rows - 1), plan.rows)
        vectors = b.floor_div(b.add(counts[-1], plan.lanes - 1), plan.lanes)
        steps = [(counts[n], plan.axes[n].stride * x_strides[n], plan.y_slab[n]) for n in range(1, len(plan.axes) - 2)]
        row_steps = plan.rows * plan.axes[-2].stride * x_strides[-1], plan.rows * plan.y_slab[-2]
        steps += [(row_count, *row_steps), (vectors, plan.lanes, plan.lanes)]
        most = (*plan.block[1:-2], plan.block[-2] // plan.rows, plan.block[-1] // plan.lanes)
        paces = row_major(most, 1) if plan.fetches_ahead else (0,) * len(most)
        reductions = [Reduction(0, *step, pace=pace) for step, pace in zip(steps, paces, strict=True)]
        written = [
            (j * plan.axes[-2].stride * x_strides[-1], j * plan.y_slab[-2]) for j in range(plan.rows)
        ]  # fmt: skip

        def nest(n: int, x: Value, tap: Index) -> None:
            """Taps of axes n and further inside."""
            axis = plan.axes[n]
            if n < len(plan.axes) - 2:
                step = axis.dilation * x_strides[n]
                b.loop(0, axis.taps, lambda r, _: nest(n + 1, b.at(x, b.mul(r, step), self.kind),
                                                      b.add(b.mul(tap, axis.taps), r)), name="tap")  # fmt: skip
                return
            first = 0
            for tap_rows, many in plan.tap_pieces:
                last = first + tap_rows * many
                b.loop(first, last, lambda r, _, rows=tap_rows: row(x, tap, r, rows), step=tap_rows, name="tap")
                first = last

        def row(x: Value, tap: Index, first: Index, tap_rows: int) -> None:
            axis, inner = plan.axes[-2], plan.axes[-1].taps
            step = axis.dilation * x_strides[-1]
            here = b.at(x, b.mul(first, step), self.kind)
            number = b.add(b.mul(tap, axis.taps), first)
            for left in range(0, inner, plan.tap_columns):
                columns = range(left, min(inner, left + plan.tap_columns))
                tile = self._tile(tap_rows, columns)
                c = b.at(sums, b.mul(b.add(b.mul(number, inner), left), plan.lanes), self.kind)
                walks = self._walks(b, following, number, prod(most)) if left == 0 and plan.fetches_ahead else ()
                tile.emit(b, here, y_slab, c, reductions, None, written, walks)

        nest(1 if len(plan.axes) > 2 else 0, at.scratch, 0)

    def _tile(self, tap_rows: int, columns: range) -> Tile:
        """Of some taps."""
        plan = self.plan
        step = plan.axes[-2].dilation * plan.x_slab.strides[-1]
        rows = tuple(r * step + plan.place(tap) for r in range(tap_rows) for tap in columns)
        return Tile(
            isa=self.isa, compute=plan.compute, a_vector=True, rows=rows, columns=(0,),
            c_rows=tuple(i * plan.lanes for i in range(len(rows))), c_columns=(0,), slid=frozenset(plan.slid),
        )  # fmt: skip

    def _walks(self, b: Builder, following: Sequence[Value], tap: Index, steps: int) -> list[Walk]:
        """The lines of the next plane that the tile fetches whose first tap is row number `tap` of all taps."""
        plan = self.plan
        rows = prod(axis.taps for axis in plan.axes[:-1])
        walks = []
        for source, lines in zip(following, plan.plane_lines, strict=True):
            each = -(-lines * plan.tap_rows // (rows * steps))
            start = b.mul(tap, -(-lines // rows) * LINE)
            walks.append(Walk(b.beyond(source, start), index(LINE), 0, each, 0))
        return walks

    def _add_lanes(self, b: Builder, sums: Value, totals: Value) -> None:
        """Of all vectors of a task, a square at a time."""
        plan, lanes = self.plan, self.plan.lanes

        def square(i: Index, _: object) -> None:
            parts = self.isa.load_transposed(b, plan.compute, b.at(sums, b.mul(i, lanes), self.kind), lanes)
            self.isa.store(b, plan.compute, pairwise(b, parts), b.at(totals, i, self.kind))

        b.loop(0, plan.run_sums, square, step=lanes, name="lanes")

    # --- weights

    def _add_chunks(self, b: Builder, at: Places) -> None:
        """Pairwise, and written."""
        plan = self.plan

        def add(i: Index, lanes: int) -> None:
            parts = [
                self.isa.load(b, plan.compute, b.at(at.shared, b.add(i, chunk * plan.chunk_sums), self.kind), lanes)
                for chunk in range(plan.chunks)
            ]
            self.isa.store(b, plan.compute, pairwise(b, parts), b.at(at.shared, i, self.kind))

        count = plan.problem.groups * plan.taps
        whole = count // plan.lanes * plan.lanes
        b.loop(0, whole, lambda i, _: add(i, plan.lanes), step=plan.lanes, name="add")
        b.loop(whole, count, lambda i, _: add(i, 1), name="add")
        self._write(b, at, at.shared, 0, plan.problem.groups)

    def _write(self, b: Builder, at: Places, totals: Value, first_group: Index, groups: Index) -> None:
        """Numbers in the order (group, taps) as weights."""
        p = self.plan.problem
        target = b.at(at.w, b.mul(first_group, p.w_strides[0]), STORAGE[p.out_dtype])
        taps = [
            Dim(extent, step, stride)
            for extent, step, stride in zip(p.taps, row_major(p.taps, 1), p.w_strides[3:], strict=True)
        ]
        self.write.emit(b, totals, target, [Dim(groups, self.plan.taps, p.w_strides[0]), *taps])
