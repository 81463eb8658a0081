"""Lowering of a PhaseLanesPlan: that of a DataPlan whose output channels are channels and phases of X."""

from __future__ import annotations

from convgrad.codegen.copies.copying import Copy, Dim
from convgrad.codegen.copies.panels import bias_at
from convgrad.codegen.copies.zeroing import emit_zero
from convgrad.codegen.general.data import DataStages
from convgrad.codegen.ir import Builder
from convgrad.codegen.ir_module import Index, Value
from convgrad.codegen.isa.base import STORAGE
from convgrad.codegen.loops.sweep import Sweep
from convgrad.codegen.microkernels.contract import Tile
from convgrad.codegen.stages import Places
from convgrad.plan.few_channels.phase_lanes import PhaseLanesPlan
from convgrad.plan.strides import row_major
from convgrad.values import replace


class PhaseLanesSweep(Sweep):
    """All tiles of a task, for one block of lanes."""

    plan: PhaseLanesPlan

    def _tile(self, shape: tuple[int, ...]) -> Tile:
        """The last vector of all channels begins early in the results; its weights are packed alike."""
        plan, tile = self.plan, Sweep._tile(self, shape)
        if not self.last:
            return tile
        *columns, _ = self.vectors
        begin = plan.out_channels - plan.lanes - (plan.lane_blocks - 1) * plan.width
        return replace(tile, c_columns=(*columns, begin))


class PhaseLanesStages(DataStages):
    """The stages of a plan."""

    plan: PhaseLanesPlan
    sweep = PhaseLanesSweep

    @property
    def packing_tasks(self) -> int:
        """Runs of channels of the input, each of which is a task."""
        return self.plan.runs

    @property
    def pack_bytes(self) -> int:
        """None: weights are copied at once."""
        return 0

    def pack(self, b: Builder, at: Places, task: Value) -> None:
        """The weights of a run; with the first one the bias."""
        plan, p, size = self.plan, self.plan.unfolded, self.plan.row_width
        unit, s = plan.i_block // plan.runs, plan.phases
        panel = plan.weights_size // plan.runs
        source = b.at(at.w, b.mul(task, unit * p.w_strides[1]), STORAGE[p.dtype])
        target = b.at(at.shared, b.mul(task, panel), self.packed_kind)
        emit_zero(b, self.isa, plan.compute, target, panel)
        steps = row_major(plan.problem.taps, unit * size)
        outer = [Dim(n, src, dst) for n, src, dst in zip(p.taps[:-1], p.w_strides[3:-1], steps, strict=False)]
        copy = Copy(isa=self.isa, compute=plan.compute, src_dtype=p.dtype, dst_dtype=plan.compute)
        whole, rest = divmod(p.taps[-1], s)
        for first, count, phases in ((0, whole, s), (whole, 1, rest)):
            if count * phases:
                dims = [
                    *outer, Dim(count, s * p.w_strides[-1], steps[-1]), Dim(phases, p.w_strides[-1], p.x_channels),
                    Dim(p.x_channels, p.w_strides[2], 1), Dim(unit, p.w_strides[1], size),
                ]  # fmt: skip
                here = b.at(source, first * s * p.w_strides[-1], STORAGE[p.dtype])
                copy.emit(b, here, b.at(target, first * steps[-1], self.packed_kind), dims)
        self._repeat(b, target, plan.taps * unit)
        if p.bias:
            with b.when(b.compare("eq", task, 0)):
                bias = bias_at(plan, b, at, 0, 0)
                emit_zero(b, self.isa, plan.compute, bias, plan.bias_size)
                dims = [Dim(s, 0, p.x_channels), Dim(p.x_channels, p.bias_stride, 1)]
                copy.emit(b, b.at(at.bias, 0, STORAGE[p.dtype]), bias, dims)
                self._repeat(b, bias, 1)

    def _repeat(self, b: Builder, rows: Value, count: int) -> None:
        """The last vector of rows of lanes, so that it holds the last channels that there are."""
        plan = self.plan
        if plan.out_channels % plan.lanes:

            def row(i: Index, _: object) -> None:
                here = b.at(rows, b.mul(i, plan.row_width), self.packed_kind)
                last = self.isa.load(b, plan.compute, b.at(here, plan.out_channels - plan.lanes, self.kind), plan.lanes)
                self.isa.store(b, plan.compute, last, b.at(here, plan.row_width - plan.lanes, self.kind))

            b.loop(0, count, row, name="repeat")

    def _sweep(
        self, b: Builder, at: Places, slab: Value, results: Value, block: Index, i_block: Index,
        fresh: bool | Value,
    ) -> None:  # fmt: skip
        """Results of all blocks lie side by side."""
        results = b.at(results, b.mul(block, self.plan.width), self.kind)
        super()._sweep(b, at, slab, results, block, i_block, fresh)

    def _unpack(self, b: Builder, at: Places, results: Value, block: Index) -> None:
        """When all blocks are there: rows of x, of which groups of phases may begin before it and end behind it."""
        with b.when(b.compare("eq", block, self.plan.lane_blocks - 1)):
            self._unpack_all(b, at, results)

    def _unpack_all(self, b: Builder, at: Places, results: Value) -> None:
        plan, p = self.plan, self.plan.unfolded
        dims, source, target = [], 0, 0
        axis_steps, _ = plan.result_strides
        strides = (p.x_strides[0], *p.x_strides[3:])
        for axis, start, extent, stride, (phase_step, j_step) in zip(
            plan.axes[:-1], self.starts, plan.result_extent, strides, axis_steps, strict=False
        ):
            origin = b.mul(start, axis.out_step)
            step = j_step if axis.out_step == 1 else phase_step
            dims.append(Dim(b.minimum(b.sub(axis.out_extent, origin), extent), step, stride))
            target = b.add(target, b.mul(origin, stride))
        first = b.sub(b.mul(self.starts[-1], plan.phases), plan.lead)
        low = b.maximum(first, 0)
        high = b.minimum(b.add(first, plan.phases * plan.block[-1]), p.x_extent[-1])
        source = b.mul(b.sub(low, first), p.x_channels)
        target = b.add(target, b.mul(low, strides[-1]))
        dims += [Dim(b.sub(high, low), p.x_channels, strides[-1]), Dim(p.x_channels, 1, p.x_strides[2])]
        copy = Copy(
            isa=self.isa, compute=plan.compute, src_dtype=plan.compute, dst_dtype=p.out_dtype, accumulate=p.accumulate
        )
        output = b.at(at.of(self.output), target, STORAGE[p.out_dtype])
        copy.emit(b, b.at(results, source, self.kind), output, dims)
