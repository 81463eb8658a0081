"""Lowering of a MatrixWeightsPlan: those of a WeightsPlan with bf16 pieces in slabs and tiles as arithmetic."""

from __future__ import annotations

from collections.abc import Callable
from math import prod

from convgrad.codegen.copies.copying import Copy, Dim
from convgrad.codegen.copies.paired_copies import PairedCopy, paired_copy
from convgrad.codegen.copies.paired_windows import PairedLanes, PairedRuns
from convgrad.codegen.copies.pairs import PairCopy
from convgrad.codegen.copies.splitting import Pieces, Watch, room_for_squares
from convgrad.codegen.copies.words import moves_pairs
from convgrad.codegen.general.flat import FlatSums
from convgrad.codegen.ir import Builder
from convgrad.codegen.ir_module import Index, Value
from convgrad.codegen.isa.base import STORAGE
from convgrad.codegen.isa.matrix import UNITS
from convgrad.codegen.microkernels.matrix import MatrixTile
from convgrad.codegen.microkernels.reduction import Reduction
from convgrad.codegen.stages import Places
from convgrad.codegen.watch.verdict import Verdict
from convgrad.plan.by_matrix.matrix import COLUMNS, ROWS
from convgrad.plan.by_matrix.matrix_weights import MatrixWeightsPlan
from convgrad.values import replace

Run = tuple[Index, Index]  # from one to another


class MatrixSums(FlatSums):
    """The stages of a plan."""

    plan: MatrixWeightsPlan
    slab_kind = "i16"

    def __init__(self, plan: MatrixWeightsPlan):
        super().__init__(plan)
        tasks = prod(plan.grid)
        if plan.watch:
            self.verdict = Verdict(plan, self.shared_bytes, tasks, tasks, after=1, replaces=plan.own_sums)
        self.watches: tuple[Watch, Watch] | None = None  # of x and y
        self.room: Value | None = None

    def task(self, b: Builder, at: Places, task: Value) -> None:
        """With tiles."""
        unit = UNITS[self.plan.isa](self.plan.rows)
        unit.begin(b)
        self.watched_task(b, at, task)
        unit.end(b)

    def watched_task(self, b: Builder, at: Places, task: Value) -> None:
        """As for any WeightsPlan, watching both operands."""
        plan = self.plan
        self.room = room_for_squares(b, plan.lanes)
        watches = (Watch(b, plan.lanes, bf16=moves_pairs(plan)) for _ in "xy")
        self.watches = (next(watches), next(watches)) if self.verdict else None
        if not plan.fills_slabs:
            self.clear_slabs(b, at)
        super().task(b, at, task)
        if self.verdict and self.watches:
            self.verdict.note_first(b, at.shared, task, self.watches[0])
            self.verdict.note_second(b, at.shared, task, self.watches[1])

    # --- packing

    def _pieces(self, step: int, tensor: str) -> Pieces:
        watch = self.watches["xy".index(tensor)] if self.watches else None
        return Pieces(self.plan.pieces, step, self.plan.exact, watch, self.room)

    def row_copy(self) -> Copy | PairedRuns:
        """Into pieces."""
        numbers = replace(
            self._copy(), dst_dtype="bf16", pieces=self._pieces(self.plan.row_slab_piece, self.row_tensor)
        )
        return PairedRuns(pairs=self._paired(self.row_tensor), numbers=numbers) if moves_pairs(self.plan) else numbers

    def _pack_lanes(self, b: Builder, at: Places, slab: Value, starts: list[Index]) -> None:
        """Channels of y, two windows at a time."""
        plan = self.plan
        group, channel = self.tensor_strides["y"][1:3]
        self.clear_behind(b, starts, slab, -(-plan.lane_slab_size * 2 // 64) * 16)
        source, dims = self.windows_of_y(b, starts, b.mul(self.bundle, group), plan.lane_slab)
        pairs = self.pair_copy()

        def of_block(here: Index, there: Value, lanes: Dim) -> None:
            pairs.emit(b, b.at(at.of("y"), here, STORAGE[plan.problem.dtype]), there, dims[:-1], dims[-1], lanes)

        self.each_lane_block(b, source, channel, slab, of_block)

    def each_lane_block(
        self, b: Builder, source: Index, channel: int, slab: Value, pack: Callable[[Index, Value, Dim], None]
    ) -> None:  # fmt: skip
        """Let `pack` the channels of each one, from where they begin in the tensor to where they do in the slab."""
        plan = self.plan

        def of_block(lane_block: Index, _: object) -> None:
            count: Index = plan.width
            if plan.lane_count % plan.width:
                count = b.minimum(b.sub(plan.lane_count, b.mul(lane_block, plan.width)), plan.width)
            there = b.at(slab, b.mul(b.sub(lane_block, self.first_block), plan.lane_slab_block), "i16")
            pack(b.add(source, b.mul(lane_block, plan.width * channel)), there, Dim(count, channel, 1))

        b.loop(self.first_block, self.last_block, of_block, name="pack")

    def pair_copy(self) -> PairCopy | PairedLanes:
        """From the tensor of lanes to its slab."""
        plan = self.plan
        if moves_pairs(plan):
            return PairedLanes(copy=self._paired(self.lane_tensor), width=plan.width)
        pieces = self._pieces(plan.lane_piece, self.lane_tensor)
        return PairCopy(isa=self.isa, src_dtype=plan.problem.dtype, pieces=pieces, width=plan.width)

    def _paired(self, tensor: str) -> PairedCopy:
        watch = self.watches["xy".index(tensor)] if self.watches else None
        return paired_copy(self.isa, self.plan.problem.dtype, watch, self.room, ahead=self.plan.asks_ahead)

    # --- arithmetic

    def _sweep(self, b: Builder, rows: Value, lanes: Value, lane_block: Index, starts: list[Index]) -> None:
        """Every tap and block of tiles, for one lane block."""
        plan = self.plan
        strides, channel_step = plan.row_slab
        outer = len(plan.outer)
        vectors = b.at(lanes, b.mul(b.sub(lane_block, self.first_block), plan.lane_slab_block), "i16")
        counts = [
            b.minimum(b.sub(axis.windows, start), block)
            for axis, start, block in zip(plan.axes, starts, plan.block, strict=True)
        ]
        unit = plan.depth_unit
        windows = Reduction(0, plan.depth // unit, unit, unit * plan.width)

        def taps(n: int, shift: Index, tap: Index, reductions: list[Reduction], channels: Run) -> None:
            if n == len(plan.axes):
                row_tiles(shift, tap, [*reductions, windows], channels)
                return
            axis = plan.axes[n]

            def of_tap(r: Index, _: object) -> None:
                step = b.add(b.mul(tap, axis.taps), r)
                if n >= outer:
                    following = b.add(shift, self.tap_place(b, n, r))
                    taps(n + 1, following, step, reductions, channels)
                    return
                first, last = self.bounds(b, axis, starts[n], counts[n], r)
                following = b.add(shift, b.mul(r, axis.dilation * strides[n]))
                summed = Reduction(first, last, axis.stride * strides[n], plan.lane_slab[n])
                taps(n + 1, following, step, [*reductions, summed], channels)

            b.loop(0, axis.taps, of_tap, step=plan.tile_taps if n == len(plan.axes) - 1 else 1, name="tap")

        def row_tiles(shift: Index, tap: Index, reductions: list[Reduction], channels: Run) -> None:
            def of_row(row: Index, _: object) -> None:
                a = b.at(rows, b.add(shift, b.mul(row, channel_step)), "i16")
                self.add_products(b, a, vectors, (lane_block, tap, row), reductions)

            b.loop(*channels, of_row, step=plan.row_channels, name="row")

        self.by_rows(b, (lane_block, b.add(lane_block, 1)), lambda channels: taps(0, 0, 0, [], channels))

    def by_rows(self, b: Builder, lane_blocks: Run, sweep: Callable[[Run], None]) -> None:
        """All row channels of the task, or some after the other."""
        if self.plan.by_rows and self.own is not None:
            self.own.by_rows(b, lane_blocks, sweep)
        else:
            sweep((0, b.minimum(b.sub(self.plan.row_count, self.first_row), self.plan.share_rows)))

    def add_products(
        self, b: Builder, a: Value, x: Value, at: tuple[Index, Index, Index], reductions: list[Reduction], *,
        rows: int | None = None,
    ) -> None:  # fmt: skip
        """To the sums of one block of lanes, one tap and one block of tiles, or of some `rows` of it."""
        plan, rows = self.plan, rows or self.plan.row_channels
        of_row = plan.sum_steps[1] if self.own else plan.width
        tile = MatrixTile(
            unit=UNITS[plan.isa](plan.rows),
            products=plan.products,
            a_rows=range(0, rows * plan.row_step, ROWS * plan.row_step),
            a_step=plan.row_step,
            a_piece=plan.row_piece,
            b_columns=range(0, 2 * plan.width, 2 * COLUMNS),
            b_step=2 * plan.width,
            b_piece=plan.lane_piece,
            c_rows=range(0, rows * of_row, ROWS * of_row),
            c_step=of_row,
        )
        if self.own is None:
            tile.emit(b, a, x, self._place(b, *at), reductions, fresh=False)
            return
        place = self.own.place(b, *at)

        def store(target: Value, row_step: int | None) -> None:
            step = row_step or of_row
            tile.store(b, target, range(0, rows * step, ROWS * step), step)

        tile.begin(b, place, fresh=self.own.fresh(b))
        tile.sum(b, a, x, reductions)
        self.own.keep(b, place, store, *at)

    def _place(self, b: Builder, lane_block: Index, tap: Index, row: Index) -> Value:
        """Where the sums of a tile are that other tasks share."""
        plan = self.plan
        place = b.dot([(tap, plan.padded_rows * plan.width), (row, plan.width)])
        return b.at(self.sums_at(b, lane_block), place, self.kind)
