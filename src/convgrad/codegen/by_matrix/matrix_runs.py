"""Lowering of a MatrixRunPlan: that of a MatrixDataPlan whose slab is as dense as the image, of weights in runs."""

from __future__ import annotations

from convgrad.codegen.by_matrix.matrix_data import MatrixSweep
from convgrad.codegen.by_matrix.runs import RunStages, strides_of_taps
from convgrad.codegen.copies.words import PAIR
from convgrad.codegen.copies.zeroing import emit_zero
from convgrad.codegen.ir import Builder
from convgrad.codegen.ir_module import Index, Value
from convgrad.codegen.isa.matrix import TILE_NUMBERS
from convgrad.codegen.microkernels.reduction import Reduction
from convgrad.codegen.stages import Places
from convgrad.plan.by_matrix.matrix import COLUMNS, DEPTH
from convgrad.plan.by_matrix.runs import MatrixRunPlan

PAIRS = DEPTH // PAIR  # of a tile


class MatrixRunSweep(MatrixSweep):
    """The loops of a Sweep, with the taps of the innermost axis as a part of each sum over channels."""

    plan: MatrixRunPlan

    def __init__(self, plan: MatrixRunPlan, *others, **more):
        super().__init__(plan, *others, **more)
        self.taps.strides = strides_of_taps(plan)

    def _depth(self) -> Reduction:
        """Tiles of a run."""
        plan = self.plan
        return Reduction(0, plan.run_blocks, DEPTH, plan.pieces * plan.width * DEPTH)


class MatrixRunStages(RunStages):
    """Both stages of a MatrixRunPlan."""

    plan: MatrixRunPlan  # pyright: ignore
    sweep = MatrixRunSweep

    @property
    def weights_piece(self) -> int:  # pyright: ignore
        """All tiles of lanes."""
        return self.plan.lane_tiles * TILE_NUMBERS

    def pack_panel(
        self, b: Builder, at: Places, source: Value, target: Value, *,
        lanes: list[tuple[Index, int, int]], channels: tuple[Index, int, int],
    ) -> None:  # fmt: skip
        """Zeros where tiles reach beyond a run."""
        if self.plan.run % DEPTH:
            emit_zero(b, self.isa, "f32", target, self.plan.panel // PAIR)
        super().pack_panel(b, at, source, target, lanes=lanes, channels=channels)

    def pair_place(self, b: Builder, outer: Index, k: Index, lane: int) -> Index:
        """Of pair k of a run, at an outer tap, from a lane on: a row of a tile."""
        plan, block = self.plan, b.floor_div(k, PAIRS)
        row = b.mul(b.sub(k, b.mul(block, PAIRS)), DEPTH)
        tiles = b.add(b.mul(outer, plan.run_blocks), block)
        return b.add(b.add(b.mul(tiles, plan.pieces * plan.width * DEPTH), row), lane // COLUMNS * TILE_NUMBERS)
