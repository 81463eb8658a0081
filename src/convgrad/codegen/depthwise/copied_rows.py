"""Lowering of a CopiedRowsPlan: that of a DepthwiseDataPlan which reads what a task has copied."""

from __future__ import annotations

from convgrad.codegen.copies.copying import Copy, Dim
from convgrad.codegen.depthwise.depthwise_data import DepthwiseStages, DepthwiseSweep
from convgrad.codegen.ir import Builder
from convgrad.codegen.ir_module import Index, Value
from convgrad.codegen.isa.base import STORAGE
from convgrad.codegen.loops.lanes import first_group
from convgrad.codegen.module import round64
from convgrad.codegen.stages import Places
from convgrad.dtypes import SIZES
from convgrad.plan.depthwise.copied_rows import CopiedRowsPlan


class CopiedRowsStages(DepthwiseStages):
    """The stages of a plan. Scratch of a task is the copy."""

    plan: CopiedRowsPlan

    @property
    def slab_bytes(self) -> int:
        """Of the copy."""
        return round64(SIZES[self.plan.problem.dtype] * self.plan.copied_size)

    def _input(self, b: Builder, at: Places, starts: list[Index], lanes: tuple[Index, Index]) -> Value:
        """Rows that all tiles of the task meet, as far as the image has them, of its channels."""
        plan, p = self.plan, self.plan.problem
        low, high, group = self._copied(b, starts, lanes)
        (image, row, column), (_, row_pitch, pitch) = (self.in_strides[0], *self.in_strides[3:]), plan.slab_strides[0]
        channels = b.minimum(b.sub(p.groups, group), plan.blocks_per_task * plan.width)
        source = b.dot([(starts[0], image), (low, row)], group)
        copy = Copy(isa=self.isa, compute=plan.compute, src_dtype=p.dtype, dst_dtype=p.dtype)
        dims = [Dim(b.sub(high, low), row, row_pitch), Dim(plan.columns.in_extent, column, pitch), Dim(channels, 1, 1)]
        copy.emit(b, b.at(at.of(self.input), source, STORAGE[p.dtype]), at.scratch, dims)
        return at.scratch

    def _prepare(self, sweep: DepthwiseSweep) -> None:
        """Tiles find the first row, and the first channel, where the copy begins."""
        low, _, group = self._copied(sweep.b, list(sweep.starts), sweep.lanes)
        sweep.origin = sweep.b.sub(0, sweep.b.dot([(low, self.plan.slab_strides[0][-2])], group))

    def _copied(self, b: Builder, starts: list[Index], lanes: tuple[Index, Index]) -> tuple[Index, Index, Index]:
        """The first row, that behind the last, and the first group."""
        plan, axis, size = self.plan, self.plan.rows, self.plan.tile[-2]
        first, last = plan.met_rows
        start = b.minimum(starts[-2], axis.count - size)
        end = b.sub(b.minimum(b.add(starts[-2], plan.block[-2]), axis.count), size)
        low = b.minimum(b.maximum(b.add(b.mul(start, axis.in_step), first), 0), axis.in_extent)
        high = b.minimum(b.add(b.mul(end, axis.in_step), last + 1), axis.in_extent)
        return low, b.maximum(high, low), first_group(plan, b, 0, lanes[0])
