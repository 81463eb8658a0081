"""Lowering of a DotRunPlan: that of a DotDataPlan whose slab is as dense as the image, and whose weights are runs."""

from __future__ import annotations

from convgrad.codegen.by_dots.dot_data import DotStages, DotSweep
from convgrad.codegen.by_matrix.runs import RunStages, strides_of_taps
from convgrad.codegen.ir import Builder
from convgrad.codegen.ir_module import Index
from convgrad.codegen.microkernels.dots import DotTile, Steps
from convgrad.codegen.microkernels.reduction import Reduction
from convgrad.plan.by_dots.dots import PAIR
from convgrad.plan.by_matrix.runs import DotRunPlan
from convgrad.values import replace


class DotRunSweep(DotSweep):
    """The loops of a Sweep, with the taps of the innermost axis as a part of each sum over channels."""

    plan: DotRunPlan

    def __init__(self, plan: DotRunPlan, *others, **more):
        super().__init__(plan, *others, **more)
        self.taps.strides = strides_of_taps(plan)

    def _dots(self) -> DotTile:
        return replace(super()._dots(), b_step=PAIR * self.plan.width, in_place=True)

    def _columns(self) -> list[int]:
        """All lanes of a pair, then those of the next."""
        return [PAIR * lane for lane in self.vectors]

    def _steps(self) -> list[Steps]:
        """One."""
        return [Steps(Reduction(0, 1, 0, 0), self.plan.run_pairs)]


class DotRunStages(RunStages, DotStages):
    """Both stages of a DotRunPlan."""

    plan: DotRunPlan  # pyright: ignore
    sweep = DotRunSweep
    weights_piece = 0

    def pair_place(self, b: Builder, outer: Index, k: Index, lane: int) -> Index:
        """Of pair k of a run, at an outer tap, from a lane on: pairs in turn."""
        there = b.add(b.mul(outer, self.plan.run_pairs), k)
        return b.add(b.mul(there, PAIR * self.plan.width), PAIR * lane)
