"""Lowering of a DotRunPlan: that of a DotDataPlan whose slab is as dense as the image, and whose weights are runs."""

from __future__ import annotations

from dataclasses import replace

from convgrad.codegen.copying import Copy, Dim
from convgrad.codegen.dot_data import DotStages, DotSweep
from convgrad.codegen.ir import Builder
from convgrad.codegen.ir_module import Index, Value
from convgrad.codegen.lanes import whole_lanes
from convgrad.codegen.matrix_data import lower_with_fallback
from convgrad.codegen.microkernels.dots import DotTile, Steps
from convgrad.codegen.microkernels.reduction import Reduction
from convgrad.codegen.module import KernelModule
from convgrad.codegen.packing import pack_weights_panel
from convgrad.codegen.paired_copies import moves_pairs, paired_copy
from convgrad.codegen.paired_windows import PairedRuns
from convgrad.codegen.pairs import store_pairs
from convgrad.codegen.splitting import Pieces
from convgrad.codegen.stages import Places
from convgrad.codegen.zeroing import Range, emit_zero
from convgrad.plan.dots import LANES, PAIR, DotRunPlan


def lower_dot_runs(plan: DotRunPlan) -> KernelModule:
    """As `lower_dot_data` does."""
    return lower_with_fallback(plan, DotRunStages(plan))


class DotRunSweep(DotSweep):
    """The loops of a Sweep, with the taps of the innermost axis as a part of each sum over channels."""

    plan: DotRunPlan

    def __init__(self, plan: DotRunPlan, *others, **more):
        super().__init__(plan, *others, **more)
        steps, step = [0], PAIR * plan.run_pairs * plan.width
        for taps in reversed(plan.problem.taps[:-1]):
            steps.insert(0, step)
            step *= taps
        self.taps.strides = [0, *steps]

    def _dots(self) -> DotTile:
        columns = range(0, PAIR * self.plan.width, PAIR * LANES)
        return replace(super()._dots(), columns=columns, b_step=PAIR * self.plan.width, in_place=True)

    def _steps(self) -> list[Steps]:
        """One."""
        return [Steps(Reduction(0, 1, 0, 0), self.plan.run_pairs)]


class DotRunStages(DotStages):
    """Both stages of a DotRunPlan."""

    plan: DotRunPlan
    sweep = DotRunSweep

    @property
    def _pairs(self) -> bool:
        """No: a pair may be of two taps."""
        return False

    @property
    def pack_bytes(self) -> int:
        """Scratch to pack a panel: one of f32, and room to stage it."""
        return 2 * self._f32_panel

    def begin_slab(self, b: Builder, slab: Value, channels: Index) -> None:
        """Zeros everywhere: a slab of few channels is small."""
        emit_zero(b, self.isa, "f32", slab, self.plan.slab_size // PAIR)

    def clear_slab(self, b: Builder, slab: Value, ranges: list[Range], channels: Index) -> None:
        """It is."""

    def copy_slab(self, b: Builder, copy: Copy, tensor: Value, packed: Value, dims: list[Dim], channels: Index) -> None:
        """Rows as they are where channels lie together in the image, too."""
        plan, step = self.plan, self.in_strides[2]
        pieces = Pieces(1, 0, plan.exact, self.watch, self.room)
        numbers = replace(copy, dst_dtype="bf16", pieces=pieces)
        *outer, inner = dims
        if moves_pairs(plan) and inner.src == plan.in_channels and 1 in (plan.in_channels, step):
            rows = PairedRuns(pairs=paired_copy(self.isa, self.watch, self.room), numbers=numbers)
            rows.emit(b, tensor, packed, [*outer, Dim(b.mul(inner.extent, plan.in_channels), 1, 1)])
        else:
            numbers.emit(b, tensor, packed, [*dims, Dim(plan.in_channels, step, 1)])

    def pack_panel(
        self, b: Builder, at: Places, source: Value, target: Value, *,
        lanes: list[tuple[Index, int, int]], channels: tuple[Index, int, int],
    ) -> None:  # fmt: skip
        """The weights as f32 in scratch, tap by tap, channel by channel, and from there two by two."""
        plan, p = self.plan, self.plan.problem
        copy = Copy(isa=self.isa, compute="f32", src_dtype=p.dtype, dst_dtype="f32")
        pack_weights_panel(
            b, copy, source, at.scratch, b.at(at.scratch, self._f32_panel, "i8"), lanes=lanes, channels=channels,
            taps=list(zip(p.taps, p.w_strides[3:], strict=True)), width=plan.width, whole=whole_lanes(plan),
        )  # fmt: skip
        pieces = Pieces(1, 0, plan.exact, self.watch)
        zero = Value(self.isa.vector("f32"), "zeroinitializer")

        def load(row: Index, lane: int) -> Value:
            place = b.at(at.scratch, b.add(b.mul(row, plan.width), lane), "float")
            return self.isa.load(b, "f32", place, LANES)

        def pair(outer: Index, k: Index, both: bool) -> None:
            row = b.add(b.mul(outer, plan.run), b.mul(k, PAIR))
            there = b.add(b.mul(outer, plan.run_pairs), k)
            for lane in range(0, plan.width, LANES):
                place = b.at(target, b.add(b.mul(there, PAIR * plan.width), PAIR * lane), "i16")
                store_pairs(b, pieces, load(row, lane), load(b.add(row, 1), lane) if both else zero, place)

        def of_tap(outer: Index, _: object) -> None:
            whole = plan.run // PAIR
            b.loop(0, whole, lambda k, _: pair(outer, k, True), name="pair")
            if plan.run % PAIR:
                pair(outer, whole, False)

        b.loop(0, plan.taps // plan.inner_taps, of_tap, name="tap")
