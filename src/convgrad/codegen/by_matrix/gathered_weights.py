"""Lowering of a GatheredWeightsPlan: that of a MatrixWeightsPlan with a copy of what each tap meets as operand A."""

from __future__ import annotations

from convgrad.codegen.by_matrix.matrix_weights import MatrixSums, Run
from convgrad.codegen.ir import Builder
from convgrad.codegen.ir_module import Index, Value
from convgrad.codegen.microkernels.reduction import Reduction
from convgrad.codegen.module import round64
from convgrad.codegen.stages import Places
from convgrad.plan.by_matrix.gathered_weights import GatheredWeightsPlan
from convgrad.plan.by_matrix.matrix import DEPTH

MOST_MOVES = 16  # of vectors, that are written out


class GatheredSums(MatrixSums):
    """The stages of a plan."""

    plan: GatheredWeightsPlan

    @property
    def gathered_start(self) -> int:
        """Behind the slabs."""
        return super().slab_bytes

    @property
    def slab_bytes(self) -> int:
        """Of the slabs, and of what a tap meets."""
        return self.gathered_start + round64(2 * self.plan.gathered_size)

    def _multiply(self, b: Builder, at: Places, rows: Value, lanes: Value, starts: list[Index]) -> None:
        """Tap by tap: gather, then multiply with all lanes."""
        plan = self.plan
        gathered = b.at(at.scratch, self.gathered_start, "i8")
        whole = 0, plan.depth // DEPTH

        def taps(n: int, shift: Index, tap: Index, steps: Run, channels: Run) -> None:
            if n == len(plan.axes):
                self._row_tiles(b, b.at(rows, shift, "i16"), lanes, gathered, tap, steps, channels)
                return
            axis = plan.axes[n]

            def of_tap(r: Index, _: object) -> None:
                moved = b.add(shift, self._moved(b, n, r))
                met = self._steps(b, n, starts[n], r) if n == plan.longest else steps
                taps(n + 1, moved, b.add(b.mul(tap, axis.taps), r), met, channels)

            b.loop(0, axis.taps, of_tap, name="tap")

        self.by_rows(b, (self.first_block, self.last_block), lambda channels: taps(0, 0, 0, whole, channels))

    def _moved(self, b: Builder, n: int, r: Index) -> Index:
        """How far tap r of an axis moves windows in the slab of x."""
        if n >= len(self.plan.outer):
            return self.tap_place(b, n, r)
        return b.mul(r, self.plan.axes[n].dilation * self.plan.row_slab[0][n])

    def _steps(self, b: Builder, n: int, start: Index, r: Index) -> tuple[Index, Index]:
        """Of the sum, those that hold windows whose tap r meets x on axis n, the outermost of several windows."""
        plan, axis, step = self.plan, self.plan.axes[n], self.plan.window_strides[n]
        first, last = self.bounds(b, axis, start, b.minimum(b.sub(axis.windows, start), plan.block[n]), r)
        return b.floor_div(b.mul(first, step), DEPTH), b.floor_div(b.add(b.mul(last, step), DEPTH - 1), DEPTH)

    def _row_tiles(
        self, b: Builder, rows: Value, lanes: Value, gathered: Value, tap: Index, steps: Run, channels: Run
    ) -> None:
        """Channels of the task: for one tap, whose windows meet x from `rows` on."""
        plan, (_, channel_step) = self.plan, self.plan.row_slab
        windows = Reduction(*steps, DEPTH, DEPTH * plan.width)

        def of_row(row: Index, _: object) -> None:
            self._gather(b, b.at(rows, b.mul(row, channel_step), "i16"), gathered)

            def of_lanes(lane_block: Index, _: object) -> None:
                there = b.at(lanes, b.mul(b.sub(lane_block, self.first_block), plan.lane_slab_block), "i16")
                self.add_products(b, gathered, there, (lane_block, tap, row), [windows])

            b.loop(self.first_block, self.last_block, of_lanes, name="lanes")

        b.loop(*channels, of_row, step=plan.row_channels, name="row")

    def _gather(self, b: Builder, src: Value, dst: Value) -> None:
        """Every channel of a block of tiles."""
        plan, (_, channel_step) = self.plan, self.plan.row_slab

        def channel(c: Index, _: object) -> None:
            here, there = b.at(src, b.mul(c, channel_step), "i16"), b.at(dst, b.mul(c, plan.row_step), "i16")
            self._gather_row(b, here, there)

        b.loop(0, plan.row_channels, channel, name="channel")

    def _gather_row(self, b: Builder, src: Value, dst: Value) -> None:
        """Of one channel at a tap, row of windows by row: what is copied beyond a row is written over next.

        What is copied beyond the last row meets windows of y that are zero.
        """
        plan, (strides, _) = self.plan, self.plan.row_slab
        axes = [
            (size, strides[n] * (plan.axes[n].stride if n < len(plan.outer) else 1), plan.window_strides[n])
            for n, size in enumerate(plan.block[:-1])
            if size > 1
        ]
        vectors = row_vectors(plan.block[-1])
        rows = axes.pop() if axes and axes[-1][0] * len(vectors) <= MOST_MOVES else (1, 0, 0)

        def copy(n: int, src: Value, dst: Value) -> None:
            if n < len(axes):
                size, of_src, of_dst = axes[n]

                def of_axis(i: Index, _: object) -> None:
                    copy(n + 1, b.at(src, b.mul(i, of_src), "i16"), b.at(dst, b.mul(i, of_dst), "i16"))

                b.loop(0, size, of_axis, name="gather")
                return
            for row in range(rows[0]):
                for start, numbers in vectors:
                    value = b.load(f"<{numbers} x i16>", b.at(src, row * rows[1] + start, "i16"), 2)
                    b.store(value, b.at(dst, row * rows[2] + start, "i16"), 2)

        for piece in range(plan.pieces):
            copy(0, b.at(src, piece * plan.row_slab_piece, "i16"), b.at(dst, piece * plan.row_piece, "i16"))


def row_vectors(windows: int) -> list[tuple[int, int]]:
    """Where vectors of bf16 begin in a row, and how long they are: the last as short as holds the rest."""
    whole, rest = divmod(windows, DEPTH)
    last = next((size for size in (4, 8, 16, DEPTH) if size >= rest), DEPTH)
    return [(n * DEPTH, DEPTH) for n in range(whole)] + [(whole * DEPTH, last)] * (rest > 0)
