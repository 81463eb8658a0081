"""Lowering of a DotWeightsPlan: that of a MatrixWeightsPlan with register tiles of dot products."""

from __future__ import annotations

from convgrad.codegen.by_matrix.matrix_weights import MatrixSums
from convgrad.codegen.ir import Builder
from convgrad.codegen.ir_module import Index, Value
from convgrad.codegen.isa.dots import DOT_UNITS
from convgrad.codegen.loops.half_vectors import weights_columns
from convgrad.codegen.loops.weights_ahead import MOST_LINES, WeightsAhead
from convgrad.codegen.microkernels.dots import DotTile, Steps, columns_of
from convgrad.codegen.microkernels.reduction import Reduction
from convgrad.codegen.stages import Places
from convgrad.plan.by_dots.dots import LANES, PAIR, DotWeightsPlan
from convgrad.problem.conv import Ints
from convgrad.values import replace


class DotSums(MatrixSums):
    """The stages of a plan."""

    plan: DotWeightsPlan

    def task(self, b: Builder, at: Places, task: Value) -> None:
        """Nothing has to be begun."""
        self.watched_task(b, at, task)

    def add_products(
        self, b: Builder, a: Value, x: Value, at: tuple[Index, Index, Index], reductions: list[Reduction]
    ) -> None:
        """To the sums of one block of lanes, one tap and one register tile."""
        plan = self.plan
        _, halves = weights_columns(plan, last=plan.lane_blocks == 1)
        dots = DotTile(
            unit=DOT_UNITS[plan.isa](), rows=plan.row_places,
            columns=columns_of(plan.width, PAIR * LANES), b_step=PAIR * plan.width, halves=halves,
        )  # fmt: skip
        *outer, windows = _paced(reductions, (*plan.outer_block, plan.steps_of_row))
        steps = [Steps(windows, plan.depth_unit // PAIR)]
        lane_block, tap, row = at
        walks = self.ahead.walks(b, b.sub(lane_block, self.first_block), tap, row) if self.ahead else ()
        if self.own is None:
            place = self._place(b, *at)
            self.tile.store(b, place, dots.sum(b, a, x, self.tile.load(b, place), outer, steps, walks))
            return
        place = self.own.place(b, *at)
        self.own.after(b, place, dots.sum(b, a, x, self.own.before(b, place), outer, steps, walks), *at)

    def _ahead(self) -> WeightsAhead:
        """Some lines in a step, which is of several windows."""
        return WeightsAhead(self.plan, self.bundle, self.first_row, self.first_block, MOST_LINES)


def _paced(reductions: list[Reduction], counts: Ints) -> list[Reduction]:
    """With steps that are counted through all axes, of so many each."""
    paced, pace = [], 1
    for axis, count in zip(reversed(reductions), reversed(counts), strict=True):
        paced.insert(0, replace(axis, pace=pace))
        pace *= count
    return paced
