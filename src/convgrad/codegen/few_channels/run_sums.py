"""Lowering of a RunSumsPlan: that of a LaneSumsPlan with a slab, whose taps of a row are lanes as well."""

from __future__ import annotations

from convgrad.codegen.copies.copying import Copy, Dim
from convgrad.codegen.copies.panels import bias_at, pack_bias
from convgrad.codegen.copies.zeroing import emit_zero
from convgrad.codegen.few_channels.lane_sums import LaneSumsStages, LaneSumsSweep
from convgrad.codegen.ir import Builder
from convgrad.codegen.ir_module import Index, Value
from convgrad.codegen.isa.base import STORAGE
from convgrad.codegen.loops.lanes import weights_steps
from convgrad.codegen.loops.tap_sums import Spot
from convgrad.codegen.stages import Places
from convgrad.plan.axes import GatherAxis, Phase
from convgrad.plan.few_channels.run_sums import RunSumsPlan


class RunSumsSweep(LaneSumsSweep):
    """All tiles of a task, for one block of channels."""

    plan: RunSumsPlan

    def run(self) -> None:
        """All tiles."""
        self.taps.strides = [0, *self.plan.tap_steps]
        super().run()

    def _known_phase(self, n: int, axis: GatherAxis, phase: Phase, spot: Spot) -> None:
        """Tiles of a row; what lies beside it is zero."""
        b = self.b

        def tile(j: Index, _: object) -> None:
            at = self._moved(n, spot, j, phase.first, phase.offset, phase.tap)
            self._emit_tile(self.taps.where_met(n, axis, phase, (self.starts[n], j), at))

        b.loop(0, self._stop(n, phase.count), tile, step=self.plan.tile[n], name="tile")


class RunSumsStages(LaneSumsStages):
    """The stages of a plan."""

    plan: RunSumsPlan
    sweep = RunSumsSweep

    @property
    def shares(self) -> int:
        """Of the channels of a group, as many as a vector has lanes, whose weights are turned together."""
        return -(-self.plan.out_channels // self.plan.lanes)

    @property
    def packing_tasks(self) -> int:
        """Such shares, each of which is a task."""
        return self.plan.problem.groups * self.shares

    def pack(self, b: Builder, at: Places, task: Value) -> None:
        """The weights of a share, with zeros where runs do not fill vectors; with the first one of a group its bias."""
        plan, p = self.plan, self.plan.problem
        group, share = b.split(task, (p.groups, self.shares))
        group_step, out_step, in_step = weights_steps(plan)
        first = b.mul(share, plan.lanes)
        count = b.minimum(b.sub(plan.out_channels, first), plan.lanes)
        origin = b.dot([(group, group_step), (first, out_step)])
        packed = b.add(b.mul(b.mul(group, plan.lane_blocks), plan.panel_step), b.mul(first, plan.pitch))
        source, target = b.at(at.w, origin, STORAGE[p.dtype]), b.at(at.shared, packed, self.kind)
        *outer, inner = [Dim(n, src, dst) for n, src, dst in zip(p.taps, p.w_strides[3:], plan.tap_steps, strict=True)]
        copy = Copy(isa=self.isa, compute=plan.compute, src_dtype=p.dtype, dst_dtype=plan.compute)

        def at_tap(source: Value, target: Value) -> None:
            emit_zero(b, self.isa, plan.compute, target, b.mul(count, plan.pitch))
            copy.emit(b, source, target, [inner, Dim(count, out_step, plan.pitch), Dim(plan.in_channels, in_step, 1)])

        copy.nest(b, source, target, outer, at_tap)
        if p.bias:
            with b.when(b.compare("eq", share, 0)):
                b.loop(
                    0, plan.lane_blocks,
                    lambda block, _: pack_bias(plan, b, at, group, block, bias_at(plan, b, at, group, block)),
                    name="bias",
                )  # fmt: skip
