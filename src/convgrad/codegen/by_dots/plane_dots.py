"""Lowering of a PlaneDotsPlan: a PlaneRowWeightsPlan whose products are dot products of pairs of windows."""

from __future__ import annotations

from collections.abc import Sequence

from convgrad.codegen.by_dots.pair_reads import PairReads
from convgrad.codegen.depthwise.plane_reads import Columns
from convgrad.codegen.depthwise.plane_row_weights import PlaneRowSums
from convgrad.codegen.ir import Builder
from convgrad.codegen.ir_module import Index, Value
from convgrad.codegen.isa.dots import PAIR, WORDS
from convgrad.codegen.watch.pair_watch import WatchedPairs
from convgrad.plan.by_dots.plane_dots import PlaneDotsPlan


class PlaneDotSums(WatchedPairs, PlaneRowSums):
    """The stages."""

    plan: PlaneDotsPlan

    def __init__(self, plan: PlaneDotsPlan):
        super().__init__(plan)
        p, inner = plan.problem, plan.axes[-1]
        self.x_reads = PairReads(
            isa=self.isa, compute=plan.compute, dtype=p.dtype, step=PAIR * inner.stride, image=inner.image,
            offsets=plan.column_offsets, windows=inner.windows,
        )  # fmt: skip
        self.y_reads = PairReads(
            isa=self.isa, compute=plan.compute, dtype=p.dtype, step=PAIR, image=inner.windows, offsets=(0,),
            windows=inner.windows,
        )  # fmt: skip
        self.halves = range(1)

    def adds(self, b: Builder, x: Value, y: Value, total: Value) -> Value:
        """Both products of every pair."""
        return self.unit.multiply_add(b, b.cast("bitcast", x, WORDS), b.cast("bitcast", y, WORDS), total)

    def read_x(self, b: Builder, row: Value, i: Index, columns: Columns, taps: Sequence[int]) -> dict[int, Value]:
        """Look at what these rows of taps meet, unless others meet it, too."""
        runs = self.x_reads.runs(b, row, i, columns)
        if not self.plan.watched_rows.isdisjoint(taps):
            for base in self.plan.watched_bases.intersection(runs):
                for vector in runs[base]:
                    self.watch.note(b, "x", vector)
        return self.x_reads.picked(b, runs)

    def read_y(self, b: Builder, row: Value, i: Index, columns: Columns, first: int) -> dict[int, Value]:
        """Look at windows with the first of all tiles that meet them."""
        vectors = self.y_reads.vectors(b, row, i, columns)
        if first == 0:
            self.watch.note(b, "y", vectors[0])
        return vectors
