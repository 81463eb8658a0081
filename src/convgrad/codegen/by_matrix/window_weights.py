"""Lowering of a WindowWeightsPlan: that of a GatheredWeightsPlan with numbers of windows for channels of a tap."""

from __future__ import annotations

from convgrad.codegen.by_matrix.gathered_weights import GatheredSums
from convgrad.codegen.ir import Builder
from convgrad.codegen.ir_module import Index, Value
from convgrad.codegen.microkernels.reduction import Reduction
from convgrad.codegen.stages import Places
from convgrad.plan.by_matrix.matrix import DEPTH, ROWS
from convgrad.plan.by_matrix.window_weights import ROWS_TOGETHER, WindowWeightsPlan


class WindowSums(GatheredSums):
    """The stages of a plan."""

    plan: WindowWeightsPlan

    def _multiply(self, b: Builder, at: Places, rows: Value, lanes: Value, starts: list[Index]) -> None:
        """Some numbers after the other: gather, then multiply with all lanes; the last may be half as many."""
        plan = self.plan
        gathered = b.at(at.scratch, self.gathered_start, "i8")
        table = b.module.table(plan.places)
        windows = Reduction(0, plan.depth // DEPTH, DEPTH, DEPTH * plan.width)

        def numbers(first: Index, many: int) -> None:
            def row(n: Index, _: object) -> None:
                here = b.at(rows, b.lookup(table, b.add(first, n)), "i16")
                self._gather_row(b, here, b.at(gathered, b.mul(n, plan.row_step), "i16"))

            b.loop(0, many, row, name="number")

            def of_lanes(lane_block: Index, _: object) -> None:
                there = b.at(lanes, b.mul(b.sub(lane_block, self.first_block), plan.lane_slab_block), "i16")
                self.add_products(b, gathered, there, (lane_block, 0, first), [windows], rows=many)

            b.loop(self.first_block, self.last_block, of_lanes, name="lanes")

        rest = plan.window_numbers % ROWS_TOGETHER
        whole = plan.row_blocks - (0 < rest <= ROWS)
        b.loop(0, whole, lambda n, _: numbers(b.mul(n, ROWS_TOGETHER), ROWS_TOGETHER), name="numbers")
        if whole < plan.row_blocks:
            numbers(whole * ROWS_TOGETHER, ROWS)
