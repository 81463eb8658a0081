"""Lowering of a PatchDataPlan: that of a DataPlan whose lanes lie in X as patches have them."""

from __future__ import annotations

from convgrad.codegen.general.data import DataStages
from convgrad.codegen.ir import Builder
from convgrad.codegen.ir_module import Index
from convgrad.codegen.isa.base import STORAGE
from convgrad.codegen.loops.sweep import Sweep
from convgrad.codegen.microkernels.contract import Tile
from convgrad.codegen.stages import Places
from convgrad.plan.few_channels.patch_data import PatchDataPlan
from convgrad.values import replace


class PatchSweep(Sweep):
    """All tiles of a task, for one block of lanes."""

    plan: PatchDataPlan

    def _tile(self, shape: tuple[int, ...]) -> Tile:
        return replace(Sweep._tile(self, shape), c_columns=self.plan.columns)


class PatchStages(DataStages):
    """The stages of a plan."""

    plan: PatchDataPlan
    sweep = PatchSweep

    def _in_place(self, b: Builder, at: Places, block: Index) -> None:
        """One block of lanes, straight to where its first one lies."""
        plan, p = self.plan, self.plan.patches
        indices = b.split(b.mul(block, plan.width), [extent for extent, _ in plan.places])
        steps = [(i, step) for i, (_, step) in zip(indices, plan.places, strict=True)]
        place = b.dot([(self.group, p.x_strides[1]), *steps])
        self._sweep(b, at, at.scratch, b.at(at.of(self.output), place, STORAGE[p.out_dtype]), block, 0, fresh=True)
