"""Lowering of a PlaneDotsPlan: a PlaneRowWeightsPlan whose products are dot products of pairs of windows."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from convgrad.codegen.interleave import pick
from convgrad.codegen.ir import Builder
from convgrad.codegen.ir_module import Index, Module, Value, vector_of
from convgrad.codegen.isa.base import STORAGE
from convgrad.codegen.isa.dots import DOT_UNITS, PAIR, WORDS
from convgrad.codegen.module import KernelModule
from convgrad.codegen.pair_watch import PairWatch
from convgrad.codegen.plane_reads import Columns, RowReads
from convgrad.codegen.plane_row_weights import PlaneRowSums
from convgrad.codegen.plane_weights import PlaneSums, plane_kernel
from convgrad.codegen.stages import Places
from convgrad.plan.plane_dots import PlaneDotsPlan
from convgrad.plan.plane_rows import PlaneRowWeightsPlan


def lower_plane_dots(plan: PlaneDotsPlan) -> KernelModule:
    """Sums as of f32, a verdict on what they met, and the kernel that takes over where it is bad."""
    module, sums = Module(), PlaneDotSums(plan)
    kernel = plane_kernel(module, sums)
    rows = isinstance(plan.fallback, PlaneRowWeightsPlan)
    assert plan.fallback is not None
    return sums.watch.complete(module, kernel, (PlaneRowSums if rows else PlaneSums)(plan.fallback))


@dataclass(frozen=True, slots=True, kw_only=True)
class PairReads(RowReads):
    """Numbers of bf16 as they are stored, two windows for each lane of a sum, `step` numbers of the row apart.

    What no window meets is zero, so that nothing but what was looked at meets the zeros of the other side.
    """

    windows: int  # of a row

    @property
    def stride(self) -> int:
        """From one window to the next."""
        return self.step // PAIR

    @property
    def bases(self) -> list[int]:
        """Of whole windows."""
        return sorted({offset // self.stride * self.stride for offset in self.offsets})

    def vectors(self, b: Builder, row: Value, first: Index, columns: Columns) -> dict[int, Value]:
        """By offset, of the vector that begins with pair `first`; those that are nothing but zeros are left out."""
        return self.picked(b, self.runs(b, row, first, columns))

    def runs(self, b: Builder, row: Value, first: Index, columns: Columns) -> dict[int, list[Value]]:
        """By base, what is read of the row."""
        start, kind = b.at(row, b.mul(first, self.step), STORAGE[self.dtype]), STORAGE[self.dtype]
        many, found = PAIR * self.lanes, {}
        for base in self.bases:
            read = [None] * self.stride if columns.whole else self._masks_of(base, columns)
            if any(mask is None or mask for mask in read):
                found[base] = [self._pairs(b, b.at(start, base + n * many, kind), mask) for n, mask in enumerate(read)]
        return found

    def picked(self, b: Builder, runs: dict[int, list[Value]]) -> dict[int, Value]:
        """By offset, what of these is met."""
        found = {}
        for offset in self.offsets:
            base = offset // self.stride * self.stride
            if base in runs:
                wanted = [lane * self.stride + offset - base for lane in range(PAIR * self.lanes)]
                found[offset] = runs[base][0] if self.stride == 1 else pick(b, runs[base], wanted)
        return found

    def _masks_of(self, base: int, columns: Columns) -> list[int | None]:
        """Numbers, a bit each, that are read of every vector of a run."""
        many, start = PAIR * self.lanes, self.step * columns.first + base
        windows = min(PAIR * columns.lanes, self.windows - PAIR * columns.first)
        wanted = [place // self.stride < windows and 0 <= start + place < self.image
                  for place in range(self.stride * many)]  # fmt: skip
        runs = (wanted[at : at + many] for at in range(0, len(wanted), many))
        return [None if all(run) else sum(want << lane for lane, want in enumerate(run)) for run in runs]

    def _pairs(self, b: Builder, address: Value, mask: int | None) -> Value:
        many = PAIR * self.lanes
        if mask == 0:
            return Value(vector_of(many, STORAGE[self.dtype]), "zeroinitializer")
        some = None if mask is None else Value(f"i{many}", str(mask))
        return self.isa.load_bits(b, self.dtype, address, many, mask=some)


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
