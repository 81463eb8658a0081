"""Lowering of a GatheredRunPlan: windows put together number by number, and one sum over each."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import product

from convgrad.codegen.by_matrix.across_rows import first_place
from convgrad.codegen.by_matrix.matrix_data import MatrixSweep
from convgrad.codegen.by_matrix.matrix_runs import MatrixRunStages
from convgrad.codegen.copies.copying import Dim
from convgrad.codegen.copies.panels import bias_at
from convgrad.codegen.ir import Builder
from convgrad.codegen.ir_module import Index, Value
from convgrad.codegen.loops.tap_sums import Spot
from convgrad.codegen.microkernels.reduction import Reduction
from convgrad.codegen.module import round64
from convgrad.codegen.stages import Places
from convgrad.plan.by_matrix.across_rows import PER_TILE
from convgrad.plan.by_matrix.gathered_runs import MOST_WRITTEN_OUT, GatheredRunPlan
from convgrad.plan.by_matrix.matrix import DEPTH


class GatheredRunSweep(MatrixSweep):
    """One block of tiles, of outputs whose windows were put together."""

    plan: GatheredRunPlan  # pyright: ignore
    row_tiles = PER_TILE  # of the block that is being written

    def run_tiles(self, row_tiles: int) -> None:
        """Two tiles, or one that is left."""
        self.row_tiles = row_tiles
        self._emit_tile(Spot())

    def _depth(self) -> Reduction:
        """Tiles of a window."""
        plan = self.plan
        return Reduction(0, plan.run_blocks, DEPTH, plan.pieces * plan.width * DEPTH)

    def _rows(self) -> tuple[Sequence[int], int, int]:
        plan = self.plan
        tile = plan.rows * plan.output_pitch
        return range(0, self.row_tiles * tile, tile), plan.output_pitch, plan.window_pitch

    def _sums(self) -> tuple[Sequence[int], int]:
        plan = self.plan
        tile = plan.rows * plan.width
        return range(0, self.row_tiles * tile, tile), plan.width


class GatheredRunStages(MatrixRunStages):
    """Both stages of a GatheredRunPlan."""

    plan: GatheredRunPlan  # pyright: ignore
    sweep = GatheredRunSweep

    @property
    def gathered_start(self) -> int:
        """Behind the slab."""
        return super().slab_bytes

    @property
    def slab_bytes(self) -> int:
        """Of the slab, and of the windows of a block of tiles."""
        return self.gathered_start + round64(self.plan.packed_bytes * self.plan.gathered_size)

    def _task(self, b: Builder, at: Places, task: Value) -> None:
        """Block of tiles by block of tiles, each with all lanes."""
        plan = self.plan
        *blocks, self.group, share = b.split(task, plan.grid)
        self.starts = [self._block_start(b, n, block) for n, block in enumerate(blocks)]
        self.slab_group = self.group
        first = b.mul(share, plan.blocks_per_task)
        last = b.minimum(b.add(first, plan.blocks_per_task), plan.lane_blocks)
        slab, windows = at.scratch, b.at(at.scratch, self.gathered_start, "i8")
        results = b.at(at.scratch, self.slab_bytes, "i8")
        self._pack_slab(b, at, slab, 0)
        outputs: Index = 1
        for axis, start, size in zip(plan.axes, self.starts, plan.block, strict=True):
            outputs = b.mul(outputs, b.minimum(b.sub(axis.count, start), size))
        table = self._table(b)

        def tiles(t: Index, _: object) -> None:
            before = b.mul(t, plan.together)
            left = b.minimum(b.sub(outputs, before), plan.together)
            self._gather(b, slab, windows, table, before)

            def lanes(block: Index, _: object) -> None:
                self._multiply(b, at, windows, results, block, left)
                self._write_numbered(b, at, results, before, left, block)

            b.loop(first, last, lanes, name="lanes")

        b.loop(0, b.floor_div(b.add(outputs, plan.together - 1), plan.together), tiles, name="tiles")

    def _multiply(self, b: Builder, at: Places, windows: Value, results: Value, block: Index, left: Index) -> None:
        """Windows by a block of lanes."""
        plan = self.plan
        panel = b.mul(b.add(b.mul(self.group, plan.lane_blocks), block), plan.panel_step)
        weights = b.at(at.shared, panel, self.packed_kind)
        bias = bias_at(plan, b, at, self.group, block) if plan.problem.bias else None
        sweep = self.sweep(plan, b, windows, weights, results, bias, plan.in_channels, self.starts, fresh=True)
        if not isinstance(left, Value):
            sweep.run_tiles(-(-left // plan.rows))
            return
        b.either(
            b.compare("sgt", left, plan.rows), lambda: sweep.run_tiles(PER_TILE), lambda: sweep.run_tiles(1)
        )  # fmt: skip

    def _write_numbered(
        self, b: Builder, at: Places, results: Value, before: Index, count: Index, block: Index
    ) -> None:  # fmt: skip
        """Some outputs of the block, which lie equally far apart."""
        plan, step = self.plan, self.plan.output_step
        assert step is not None
        target = b.mul(before, step)
        for start, stride in zip(self.starts, (self.out_strides[0], *self.out_strides[3:]), strict=True):
            target = b.add(target, b.mul(start, stride))
        self._write(b, at, results, target, [Dim(count, plan.width, step)], block)

    def _table(self, b: Builder) -> Value:
        """Where windows begin in the slab; those beyond the block are some others."""
        plan = self.plan
        places = [sum(steps) for steps in product(*(self._places(n, size) for n, size in enumerate(plan.block)))]
        return b.module.table([*places, *[0] * (plan.blocks_of_tiles * plan.together - plan.outputs)])

    def _gather(self, b: Builder, slab: Value, windows: Value, table: Value, before: Index) -> None:
        """Window by window."""
        plan = self.plan
        first = b.at(slab, first_place(plan, tuple(axis.phases[0] for axis in plan.axes)), "i16")

        def window(o: Index, _: object) -> None:
            here = b.at(first, b.lookup(table, b.add(before, o)), "i16")
            there = b.at(windows, b.mul(o, plan.output_pitch), "i16")
            for piece in range(plan.pieces):  # in the order of memory: what is beyond a row is overwritten by the next
                src, dst = b.at(here, piece * plan.piece_step, "i16"), b.at(there, piece * plan.window_pitch, "i16")
                if not plan.fills_windows:
                    zeros = Value(f"<{DEPTH} x i16>", "zeroinitializer")
                    b.store(zeros, b.at(dst, (plan.run_blocks - 1) * DEPTH, "i16"), 2)
                self._move_rows(b, src, dst)

        b.loop(0, plan.together, window, name="window")

    def _places(self, n: int, outputs: int) -> list[int]:
        """Where the slab has what tap 0 of each output of axis n meets."""
        step = self.plan.axes[n].in_step * self.plan.slab_strides[0][n]
        return [j * step for j in range(outputs)]

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
