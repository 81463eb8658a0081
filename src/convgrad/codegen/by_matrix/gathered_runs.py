"""Lowering of a GatheredRunPlan: windows put together number by number, and one sum over each."""

from __future__ import annotations

from itertools import product

from convgrad.codegen.by_matrix.across_rows import first_place
from convgrad.codegen.by_matrix.runs import RunStages
from convgrad.codegen.by_matrix.tile_by_tile import TileByTileStages
from convgrad.codegen.copies.words import PAIR
from convgrad.codegen.copies.zeroing import emit_zero
from convgrad.codegen.ir import Builder
from convgrad.codegen.ir_module import Index, Value
from convgrad.codegen.isa.matrix import TILE_NUMBERS
from convgrad.codegen.stages import Places
from convgrad.plan.by_matrix.gathered_runs import MOST_WRITTEN_OUT, GatheredRunPlan
from convgrad.plan.by_matrix.matrix import COLUMNS, DEPTH
from convgrad.problem.conv import Ints

PAIRS = DEPTH // PAIR  # of a tile


class GatheredRunStages(TileByTileStages, RunStages):
    """Both stages of a GatheredRunPlan."""

    plan: GatheredRunPlan  # pyright: ignore

    # --- weights

    @property
    def weights_piece(self) -> int:  # pyright: ignore
        """All tiles of lanes."""
        return self.plan.lane_tiles * TILE_NUMBERS

    def pack_panel(
        self, b: Builder, at: Places, source: Value, target: Value, *,
        lanes: list[tuple[Index, int, int]], channels: tuple[Index, int, int],
    ) -> None:  # fmt: skip
        """Zeros where tiles reach beyond a window."""
        if self.plan.run % DEPTH:
            emit_zero(b, self.isa, "f32", target, self.plan.panel // PAIR)
        super().pack_panel(b, at, source, target, lanes=lanes, channels=channels)

    def pair_place(self, b: Builder, outer: Index, k: Index, lane: int) -> Index:
        """Of pair k of a window, from a lane on: a row of a tile."""
        plan, block = self.plan, b.floor_div(k, PAIRS)
        row = b.mul(b.sub(k, b.mul(block, PAIRS)), DEPTH)
        return b.add(b.add(b.mul(block, plan.pieces * plan.width * DEPTH), row), lane // COLUMNS * TILE_NUMBERS)

    # --- windows

    @property
    def steps(self) -> int:
        """Tiles of a window."""
        return self.plan.run_blocks

    def pack_input(self, b: Builder, at: Places) -> Value:
        """A slab, from the first window on."""
        self._pack_slab(b, at, at.scratch, 0)
        return b.at(at.scratch, first_place(self.plan, tuple(axis.phases[0] for axis in self.plan.axes)), "i16")

    def places(self) -> Ints:
        """In the slab."""
        axes, strides = self.plan.axes, self.plan.slab_strides[0]
        return tuple(axis.in_step * step for axis, step in zip(axes, strides, strict=True))

    def gather(self, b: Builder, here: Value, rows: Value) -> None:
        """Piece by piece, in the order of memory: what a part has beyond its row is overwritten by the next."""
        plan = self.plan
        for piece in range(plan.pieces):
            src, dst = b.at(here, piece * plan.piece_step, "i16"), b.at(rows, piece * plan.window_pitch, "i16")
            if not plan.fills_windows:
                zeros = Value(f"<{DEPTH} x i16>", "zeroinitializer")
                b.store(zeros, b.at(dst, (plan.run_blocks - 1) * DEPTH, "i16"), 2)
            self._move_rows(b, src, dst)

    def _move_rows(self, b: Builder, src: Value, dst: Value) -> None:
        """All rows of a window, of one piece; the outermost ones in a loop where they are many."""
        plan, strides = self.plan, self.plan.slab_strides[0]
        steps = [axis.offset_step * step for axis, step in zip(plan.axes, strides, strict=True)]
        outermost, *outer = range(1, len(plan.axes) - 1) or [0]
        in_each = plan.rows_of_window // plan.axes[outermost].taps

        def rows(r: Index, _: object) -> None:
            here = b.at(src, b.mul(r, steps[outermost]), "i16")
            there = b.at(dst, b.mul(r, in_each * plan.row_run), "i16")
            for row, taps in enumerate(product(*(range(plan.axes[n].taps) for n in outer))):
                place = sum(tap * steps[n] for tap, n in zip(taps, outer, strict=True))
                for start, size in plan.parts:
                    value = b.load(f"<{size} x i16>", b.at(here, place + start, "i16"), 2)
                    b.store(value, b.at(there, row * plan.row_run + start, "i16"), 2)

        if plan.moves <= MOST_WRITTEN_OUT:
            for r in range(plan.axes[outermost].taps):
                rows(r, None)
        else:
            b.loop(0, plan.axes[outermost].taps, rows, name="row")
