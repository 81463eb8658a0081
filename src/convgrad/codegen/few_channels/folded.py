"""Lowering of a FoldedPlan: that of a DataPlan whose output channels are channels and phases of X."""

from __future__ import annotations

from collections.abc import Sequence

from convgrad.codegen.copies.copying import Copy, Dim
from convgrad.codegen.general.data import DataStages
from convgrad.codegen.ir import Builder
from convgrad.codegen.ir_module import Index, Value
from convgrad.codegen.isa.base import STORAGE
from convgrad.codegen.stages import Places
from convgrad.plan.few_channels.folded import FoldedPlan
from convgrad.plan.strides import row_major


class FoldedStages(DataStages):
    """The stages of a plan."""

    plan: FoldedPlan

    def _pack(
        self, b: Builder, at: Places, which: tuple[Index, Index, Index], target: Value, bias: Value | None
    ) -> None:
        """Phase by phase of those that have the same taps."""
        plan, p, (group, block, i_block) = self.plan, self.plan.unfolded, which
        s, per_block = plan.phases, plan.width // plan.phases
        in_step, out_step = p.w_strides[1:3]
        count = b.minimum(b.sub(plan.in_channels, b.mul(i_block, plan.i_block)), plan.i_block)
        origin = b.dot([(group, p.w_strides[0]), (block, per_block * out_step), (i_block, plan.i_block * in_step)])
        run = plan.i_block // plan.runs
        tap_steps = row_major((*p.taps[:-1], plan.problem.taps[-1]), run * plan.width)
        for first, many, taps in self._alike():
            tap = s * taps.start + plan.lead + first
            source = b.at(at.w, b.add(origin, tap * p.w_strides[-1]), STORAGE[p.dtype])
            there = b.at(target, taps.start * tap_steps[-1] + first, self.packed_kind)
            dims = [
                Dim(per_block, out_step, s), Dim(many, p.w_strides[-1], 1),
                Dim(len(taps), s * p.w_strides[-1], tap_steps[-1]),
                *(Dim(n, src, dst) for n, src, dst in zip(p.taps[:-1], p.w_strides[3:-1], tap_steps, strict=False)),
            ]  # fmt: skip
            if plan.runs > 1:
                panel = plan.panel // plan.runs
                channels = [Dim(b.floor_div(count, run), run * in_step, panel), Dim(run, in_step, plan.width)]
            else:
                channels = [Dim(count, in_step, plan.width)]
            self.copy_weights(b, source, there, dims, channels)
        if bias is not None:
            copy = Copy(isa=self.isa, compute=plan.compute, src_dtype=p.dtype, dst_dtype=plan.compute)
            with b.when(b.compare("eq", i_block, 0)):
                first = b.add(b.mul(group, p.x_channels), b.mul(block, per_block))
                source = b.at(at.bias, b.mul(first, p.bias_stride), STORAGE[p.dtype])
                copy.emit(b, source, bias, [Dim(per_block, p.bias_stride, s), Dim(s, 0, 1)])

    def copy_weights(
        self, b: Builder, source: Value, target: Value, dims: Sequence[Dim], channels: Sequence[Dim]
    ) -> None:  # fmt: skip
        """Those of some taps and lanes, of all channels of the input."""
        copy = Copy(
            isa=self.isa, compute=self.plan.compute, src_dtype=self.plan.problem.dtype, dst_dtype=self.plan.compute
        )  # fmt: skip
        copy.emit(b, source, target, [*dims, *channels])

    def _alike(self) -> list[tuple[int, int, range]]:
        """Phases next to each other that have the same taps: the first, how many, and their taps."""
        plan = self.plan
        found: list[tuple[int, int, range]] = []
        for phase in range(plan.phases):
            had = [t for t in range(plan.problem.taps[-1]) if plan.has(phase, t)]
            taps = range(had[0], had[-1] + 1)
            if found and found[-1][2] == taps:
                first, many, _ = found.pop()
                found.append((first, many + 1, taps))
            else:
                found.append((phase, 1, taps))
        return found

    def _unpack(self, b: Builder, at: Places, results: Value, block: Index) -> None:
        """Channels, and the phases of each in turn."""
        plan, p = self.plan, self.plan.unfolded
        dims, target = [], 0
        axis_steps, channel_step = plan.result_strides
        *outer, inner = zip(
            plan.axes, self.starts, plan.result_extent, (p.x_strides[0], *p.x_strides[3:]), axis_steps, strict=True
        )
        for axis, start, extent, stride, (phase_step, j_step) in outer:
            origin = b.mul(start, axis.out_step)
            step = j_step if axis.out_step == 1 else phase_step
            dims.append(Dim(b.minimum(b.sub(axis.out_extent, origin), extent), step, stride))
            target = b.add(target, b.mul(origin, stride))
        _, start, extent, stride, _ = inner
        first = b.mul(start, plan.phases)
        run = b.minimum(b.sub(p.x_extent[-1], first), plan.phases * extent)
        per_block = plan.width // plan.phases
        here = [(first, stride), (self.group, p.x_strides[1]), (block, per_block * p.x_strides[2])]
        target = b.add(target, b.dot(here))
        dims.append(Dim(per_block, plan.phases * channel_step, p.x_strides[2]))
        copy = Copy(
            isa=self.isa, compute=plan.compute, src_dtype=plan.compute, dst_dtype=p.out_dtype, accumulate=p.accumulate
        )
        output = b.at(at.of(self.output), target, STORAGE[p.out_dtype])
        copy.emit_phases(b, results, output, dims, Dim(run, 1, stride), plan.phases, channel_step)
