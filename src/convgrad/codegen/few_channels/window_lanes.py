"""Lowering of a WindowLanesPlan: a WeightsPlan with planes of x and y as slabs, and vectors of both as operands."""

from __future__ import annotations

from convgrad.codegen.copies.copying import Copy, Dim
from convgrad.codegen.general.flat import FlatSums
from convgrad.codegen.ir import Builder
from convgrad.codegen.ir_module import Index, Value
from convgrad.codegen.isa.base import ARITHMETIC, STORAGE
from convgrad.codegen.microkernels.contract import Tile
from convgrad.codegen.microkernels.reduction import Reduction
from convgrad.codegen.stages import Places
from convgrad.plan.few_channels.window_lanes import WindowLanesPlan
from convgrad.plan.strides import row_major


class WindowLanesSums(FlatSums):
    """The stages of a plan."""

    plan: WindowLanesPlan

    def __init__(self, plan: WindowLanesPlan):
        self.slab_kind = ARITHMETIC[plan.compute]
        super().__init__(plan)

    def _tile(self) -> Tile:
        return self._tile_of_taps(0)

    def _tile_of_taps(self, first: int) -> Tile:
        """Rows in the order (tap, channel of x), the taps of the innermost axis beginning with the first."""
        plan = self.plan
        inner, (_, row_channel) = len(plan.axes) - 1, plan.row_slab
        channels, taps, vectors = range(plan.row_channels), range(plan.tile_taps), range(plan.vectors)
        step = plan.sum_rows * plan.width  # of the sums, per tap
        return Tile(
            isa=self.isa, compute=plan.compute, a_vector=True, a_shared=True, unroll=plan.unroll,
            rows=tuple(plan.tap_place(inner, first + t) + c * row_channel for t in taps for c in channels),
            c_rows=tuple(t * step + c * plan.width for t in taps for c in channels),
            columns=tuple(v * plan.lane_channel for v in vectors), c_columns=tuple(v * plan.lanes for v in vectors),
        )  # fmt: skip

    def task(self, b: Builder, at: Places, task: Value) -> None:
        """As for any WeightsPlan, with zeros between numbers."""
        self.clear_slabs(b, at)
        super().task(b, at, task)

    # --- packing

    def row_copy(self) -> Copy:
        """By vectors."""
        return self._copy()

    def _pack_lanes(self, b: Builder, at: Places, slab: Value, starts: list[Index]) -> None:
        """Channels of y, with room behind every row."""
        plan = self.plan
        group, channel = self.tensor_strides["y"][1:3]
        self.clear_behind(b, starts, slab, plan.lane_slab_size * plan.packed_bytes // 4)
        first = b.mul(self.first_block, plan.vectors)
        source = b.dot([(self.bundle, group), (first, channel)])
        source, windows = self.windows_of_y(b, starts, source, plan.lane_slab)
        share = b.minimum(b.sub(plan.lane_count, first), plan.share_blocks * plan.vectors)
        channels = Dim(b.maximum(share, 0), channel, plan.lane_channel)
        self._copy().emit(b, b.at(at.of("y"), source, STORAGE[plan.problem.dtype]), slab, [channels, *windows])

    # --- arithmetic

    def _sweep(self, b: Builder, rows: Value, lanes: Value, lane_block: Index, starts: list[Index]) -> None:
        """Every row tile and tap, for one block of channels of y: what a tile reads stays in L1 from tap to tap."""
        plan = self.plan
        strides, channel_step = plan.row_slab
        outer, inner = len(plan.outer), len(plan.axes) - 1
        sums = self.sums_at(b, lane_block) if self.own is None else self.own.sums
        vectors = b.at(lanes, b.mul(b.sub(lane_block, self.first_block), plan.lane_slab_block), self.kind)
        counts = [
            b.minimum(b.sub(axis.windows, start), block)
            for axis, start, block in zip(plan.axes, starts, plan.block, strict=True)
        ]
        paces = row_major(plan.outer_block, plan.depth // plan.lanes)
        windows = Reduction(0, plan.depth // plan.lanes, plan.lanes, plan.lanes, 1)

        def taps(n: int, row: Index, shift: Index, tap: Index, reductions: list[Reduction]) -> None:
            axis = plan.axes[n]
            if n == inner:
                for first in range(0, axis.taps, plan.tile_taps):
                    place = b.add(b.mul(tap, axis.taps), first)
                    one_tile(row, shift, place, [*reductions, windows], self._tile_of_taps(first))
                return

            def of_tap(r: Index, _: object) -> None:
                step = b.add(b.mul(tap, axis.taps), r)
                if n >= outer:
                    following = b.add(shift, self.tap_place(b, n, r))
                    taps(n + 1, row, following, step, reductions)
                    return
                first, last = self.bounds(b, axis, starts[n], counts[n], r)
                following = b.add(shift, b.mul(r, axis.dilation * strides[n]))
                summed = Reduction(first, last, axis.stride * strides[n], plan.lane_slab[n], paces[n])
                taps(n + 1, row, following, step, [*reductions, summed])

            b.loop(0, axis.taps, of_tap, name="tap")

        def one_tile(row: Index, shift: Index, tap: Index, reductions: list[Reduction], tile: Tile) -> None:
            a = b.at(rows, shift, self.kind)
            walks = self.ahead.walks(b, b.sub(lane_block, self.first_block), tap, row) if self.ahead else ()
            if self.own is None:
                place = b.dot([(tap, plan.sum_rows * plan.width), (row, plan.width)])
                tile.emit(b, a, vectors, b.at(sums, place, self.kind), reductions, None, walks=walks)
                return
            place = self.own.place(b, lane_block, tap, row)
            total = tile.sum(b, a, vectors, self.own.before(b, place), reductions, walks=walks)
            self.own.after(b, place, total, lane_block, tap, row)

        rest = b.sub(plan.row_count, self.first_row)
        b.loop(
            0, b.minimum(rest, plan.share_rows), lambda row, _: taps(0, row, b.mul(row, channel_step), 0, []),
            step=plan.row_channels, name="row",
        )  # fmt: skip
