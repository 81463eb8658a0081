"""Stages of plans whose taps of the innermost axis and few channels are one run: a dense slab, and weights in pairs."""

from __future__ import annotations

from convgrad.codegen.by_matrix.matrix_data import MatrixStages
from convgrad.codegen.copies.copying import Copy, Dim
from convgrad.codegen.copies.packing import pack_weights_panel
from convgrad.codegen.copies.paired_copies import paired_copy
from convgrad.codegen.copies.paired_windows import PairedRuns
from convgrad.codegen.copies.pairs import store_pairs
from convgrad.codegen.copies.splitting import Pieces
from convgrad.codegen.copies.words import PAIR, moves_pairs
from convgrad.codegen.copies.zeroing import Range, emit_zero
from convgrad.codegen.ir import Builder
from convgrad.codegen.ir_module import Index, Value
from convgrad.codegen.loops.lanes import whole_lanes
from convgrad.codegen.stages import Places
from convgrad.plan.by_matrix.gathered_runs import GatheredRunPlan
from convgrad.plan.by_matrix.matrix import COLUMNS
from convgrad.plan.by_matrix.runs import DotRunPlan
from convgrad.values import replace


def strides_of_taps(plan: DotRunPlan) -> list[int]:
    """Of a panel per axis: those of the innermost one are in a run."""
    steps, step = [0], plan.panel // (plan.taps // plan.inner_taps)
    for taps in reversed(plan.problem.taps[:-1]):
        steps.insert(0, step)
        step *= taps
    return [0, *steps]


class RunStages(MatrixStages):
    """Both stages; a subclass says where a panel has each pair."""

    plan: DotRunPlan | GatheredRunPlan  # pyright: ignore
    weights_piece: int  # from piece to piece of a panel

    def pair_place(self, b: Builder, outer: Index, k: Index, lane: int) -> Index:
        """Of pair k of a run, at an outer tap, from a lane on."""
        raise NotImplementedError

    def begin_slab(self, b: Builder, slab: Value, channels: Index) -> None:
        """Zeros everywhere: a slab of few channels is small."""
        emit_zero(b, self.isa, "f32", slab, self.plan.slab_size // PAIR)

    def clear_slab(self, b: Builder, slab: Value, ranges: list[Range], channels: Index) -> None:
        """It is."""

    def copy_slab(self, b: Builder, copy: Copy, tensor: Value, packed: Value, dims: list[Dim], channels: Index) -> None:
        """Rows as they are where channels lie together in the image, too."""
        plan, step = self.plan, self.in_strides[2]
        pieces = Pieces(plan.pieces, plan.piece_step, plan.exact, self.watch, self.room)
        numbers = replace(copy, dst_dtype="bf16", pieces=pieces)
        *outer, inner = dims
        if moves_pairs(plan) and inner.src == plan.in_channels and 1 in (plan.in_channels, step):
            rows = PairedRuns(pairs=paired_copy(self.isa, plan.problem.dtype, self.watch, self.room), numbers=numbers)
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
        pieces = Pieces(plan.pieces, self.weights_piece, plan.exact, self.watch)
        zero = Value(self.isa.vector("f32"), "zeroinitializer")

        def load(row: Index, lane: int) -> Value:
            place = b.at(at.scratch, b.add(b.mul(row, plan.width), lane), "float")
            return self.isa.load(b, "f32", place, COLUMNS)

        def pair(outer: Index, k: Index, both: bool) -> None:
            row = b.add(b.mul(outer, plan.run), b.mul(k, PAIR))
            for lane in range(0, plan.width, COLUMNS):
                place = b.at(target, self.pair_place(b, outer, k, lane), "i16")
                store_pairs(b, pieces, load(row, lane), load(b.add(row, 1), lane) if both else zero, place)

        def of_tap(outer: Index, _: object) -> None:
            whole = plan.run // PAIR
            b.loop(0, whole, lambda k, _: pair(outer, k, True), name="pair")
            if plan.run % PAIR:
                pair(outer, whole, False)

        b.loop(0, plan.taps // plan.inner_taps, of_tap, name="tap")
