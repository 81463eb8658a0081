"""Lowering of a PlaneDotsPlan: a PlaneRowWeightsPlan whose products are dot products of pairs of windows."""

from __future__ import annotations

from collections.abc import Sequence

from convgrad.codegen.ir import Builder
from convgrad.codegen.ir_module import Index, Module, Value
from convgrad.codegen.isa.dots import DOT_UNITS, PAIR, WORDS
from convgrad.codegen.module import KernelModule
from convgrad.codegen.pair_reads import PairReads
from convgrad.codegen.pair_watch import PairWatch
from convgrad.codegen.plane_reads import Columns
from convgrad.codegen.plane_row_weights import PlaneRowSums
from convgrad.codegen.plane_weights import PlaneSums, plane_kernel
from convgrad.codegen.stages import Places
from convgrad.plan.plane_dots import PlaneDotsPlan
from convgrad.plan.plane_rows import PlaneRowWeightsPlan


def lower_plane_dots(plan: PlaneDotsPlan) -> KernelModule:
    """Sums as of f32, a verdict on what they met, and the kernel that takes over where it is bad."""
    module, sums = Module(), PlaneDotSums(plan)
    kernel = plane_kernel(module, sums)
    instead = plan.fallback
    assert instead is not None
    in_rows = isinstance(instead, PlaneRowWeightsPlan)
    return sums.watch.complete(module, kernel, PlaneRowSums(instead) if in_rows else PlaneSums(instead))


class PlaneDotSums(PlaneRowSums):
    """The stages."""

    plan: PlaneDotsPlan

    def __init__(self, plan: PlaneDotsPlan):
        PlaneRowSums.__init__(self, plan)
        self.unit = DOT_UNITS[plan.isa]()
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
        self.watch = PairWatch(plan, self.shared_bytes)

    def task(self, b: Builder, at: Places, task: Value) -> None:
        """Watching both operands."""
        self.watch.begin(b)
        PlaneRowSums.task(self, b, at, task)
        self.watch.end(b, at.shared, task)

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
