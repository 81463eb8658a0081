"""Lowering of a WeightsPlan: sum outer products chunk by chunk, then add the chunks and write the weights."""

from __future__ import annotations

from collections.abc import Callable
from math import prod
from typing import TYPE_CHECKING

from convgrad.codegen.copies.window_slabs import WindowSlabs
from convgrad.codegen.copies.zeroing import emit_zero
from convgrad.codegen.ir import Builder
from convgrad.codegen.ir_module import Index, Module, Value
from convgrad.codegen.isa import ISAS
from convgrad.codegen.isa.base import ARITHMETIC, BYTES, STORAGE
from convgrad.codegen.loops.half_vectors import of_taps, weights_columns
from convgrad.codegen.loops.weights_ahead import WeightsAhead
from convgrad.codegen.loops.window_sweep import WindowSweep
from convgrad.codegen.microkernels.contract import Tile
from convgrad.codegen.module import Stage, round64
from convgrad.codegen.outputs.finish import chunk_numbers, finish, first_group
from convgrad.codegen.stages import Places, emit_stage
from convgrad.plan.general.weights import WeightsPlan
from convgrad.plan.window_axes import WindowAxis
from convgrad.values import replace

if TYPE_CHECKING:
    from convgrad.codegen.outputs.bias import BiasShare
    from convgrad.codegen.outputs.own_sums import OwnSums
    from convgrad.codegen.watch.verdict import Verdict


class SumsStage(WindowSlabs):
    """The stages of a plan: sums of chunks of windows, and the weights that they make, in one stage or two."""

    verdict: Verdict | None = None

    def __init__(self, plan: WeightsPlan):
        self.plan, self.isa, self.kind = plan, ISAS[plan.isa], ARITHMETIC[plan.compute]
        p = plan.problem
        self.lane_tensor, self.row_tensor = ("y", "x") if plan.rows_shift else ("x", "y")
        self.tensor_strides = p.strides
        self.blocks = prod(plan.block_grid)
        self.slab_dtype = plan.problem.dtype if plan.direct else plan.compute
        self.row_dtype = plan.problem.dtype if plan.rows_in_place else self.slab_dtype
        self.lane_dtype = plan.problem.dtype if plan.lanes_in_place else self.slab_dtype
        self.tile = self._tile()
        self.ahead: WeightsAhead | None = None  # of the task that is being written
        self.own: OwnSums | None = None  # likewise
        self.only: tuple[Index, int] | None = None  # the first row, and how many, if rows are packed as they are met
        self.fresh: bool | Value = False  # whether no block of the chunk was summed before

    @property
    def row_slab_bytes(self) -> int:
        """Of the packed row side."""
        return round64(self.plan.packed_bytes * self.plan.row_slab_size)

    @property
    def slab_bytes(self) -> int:
        """Of all that a task packs."""
        plan = self.plan
        return 0 if plan.direct else self.row_slab_bytes + round64(plan.packed_bytes * plan.lane_slab_size)

    @property
    def own_sums_start(self) -> int:
        """Behind the slabs, which make room for sums on their way to the weights if they are all there."""
        return self.slab_bytes if self.plan.by_rows else max(self.slab_bytes, self._staged_bytes)

    @property
    def _staged_bytes(self) -> int:
        """Of sums on their way to the weights."""
        return round64(self.plan.staged_bytes)

    @property
    def own_sum_bytes(self) -> int:
        """Of the sums of a group that a task keeps to itself."""
        return round64(BYTES[self.plan.compute] * self.plan.own_sum_size) if self.plan.own_sums else 0

    @property
    def scratch_bytes(self) -> int:
        """Of any task."""
        kept = self.plan.at_once * self.own_sum_bytes
        return self.own_sums_start + kept + (self._staged_bytes if self.plan.by_rows else 0)

    @property
    def finish_tasks(self) -> int:
        """Of the second stage, the last of them for the bias gradient."""
        return (0 if self.plan.own_sums else prod(self.plan.finish_grid)) + bool(self.plan.problem.bias_gradient)

    @property
    def shared_bytes(self) -> int:
        """Sums of all chunks."""
        plan, size = self.plan, BYTES[self.plan.compute]
        return (round64(size * plan.shared_sums) + size * plan.bias_size) * plan.chunks

    @property
    def most_tasks(self) -> int:
        """Of either stage."""
        return max(prod(self.plan.grid), self.finish_tasks)

    def emit(self, module: Module) -> tuple[Stage, ...]:
        """Sums, then weights, unless tasks make them of their own sums."""
        plan = self.plan
        plan.validate()
        scratch, tasks = self.scratch_bytes, self.finish_tasks
        last = finish
        if plan.problem.bias_gradient:
            from convgrad.codegen.outputs.bias import finish_with_bias

            last = finish_with_bias

        def write(b: Builder, at: Places, task: Value) -> None:
            last(plan, b, at, task)

        stages = (emit_stage(module, "sums", prod(plan.grid), scratch, self.task, alike=plan.tasks_alike),)
        if tasks or not plan.own_sums:
            stages += (emit_stage(module, "finish", tasks, scratch, write, alike=True),)
        return stages

    def _tile(self) -> Tile:
        """Of a block of lanes that is not the last of several."""
        return self.part_tile(last=self.plan.lane_blocks == 1, rows=self.plan.row_channels)

    def part_tile(self, *, last: bool, rows: int) -> Tile:
        """Rows, of so many channels, and columns in the order (tap, channel or vector); `last`, of the last lanes."""
        plan = self.plan
        reach = plan.axes[-1].dilation
        row_axes, row_channel = plan.row_slab
        of_tap, of_row = plan.sum_steps
        channels, taps, still = range(rows), range(plan.tile_taps), range(1)
        row_taps, column_taps = (taps, still) if plan.rows_shift else (still, taps)
        vectors = weights_columns(plan, last=last)
        columns, halves = of_taps(vectors, len(column_taps), reach * plan.lane_slab[-1])
        tile = Tile(
            isa=self.isa, compute=plan.compute, a_vector=plan.spread, unroll=plan.unroll,
            a_dtype=self.row_dtype, b_dtype=self.lane_dtype,
            rows=tuple(t * reach * row_axes[-1] + c * row_channel for t in row_taps for c in channels),
            c_rows=tuple(t * of_tap + c * of_row for t in row_taps for c in channels),
            columns=columns, c_columns=of_taps(vectors, len(column_taps), of_tap)[0], halves=halves,
        )  # fmt: skip
        if not (self.lane_dtype == "bf16" and plan.may_end_early):
            return tile
        from convgrad.codegen.microkernels.words import in_words

        return in_words(tile)

    def task(self, b: Builder, at: Places, task: Value) -> None:
        """All blocks of windows of one chunk."""
        plan = self.plan
        chunk, groups, lane_share, row_share = b.split(task, plan.grid)
        self.bundle = self.first_bundle = b.mul(groups, plan.at_once)
        self.first_block = b.mul(lane_share, plan.share_blocks)
        self.last_block = b.minimum(b.add(self.first_block, plan.share_blocks), plan.lane_blocks)
        self.first_row = b.mul(row_share, plan.share_rows)
        self.sums = b.at(at.shared, b.mul(chunk, chunk_numbers(plan)), self.kind)
        self.own = self._own_sums(b, at)
        if self.own is None:
            self._group_by_group(b, at, lambda: self._clear(b))
        self.ahead = self._ahead() if plan.fetches_ahead else None
        bias = self._bias_share(b, at, chunk, lane_share, row_share) if plan.problem.bias_gradient else None
        if bias:
            bias.clear(b)
        lanes = b.at(at.scratch, self.row_slab_bytes, "i8")
        first = b.floor_div(b.mul(chunk, self.blocks), plan.chunks)
        last = b.floor_div(b.mul(b.add(chunk, 1), self.blocks), plan.chunks)

        def block(number: Index, _: object) -> None:
            places = b.split(number, plan.block_grid)
            starts = [b.mul(place, size) for place, size in zip(places, plan.block, strict=True)]
            self.fresh = plan.chunks == self.blocks or b.compare("eq", number, first)
            if bias:
                bias.add_block(b, starts)
            self._group_by_group(b, at, lambda: self._block(b, at, lanes, number, starts))

        b.loop(first, last, block, name="block")
        if self.own is not None:
            self._group_by_group(b, at, lambda: self.own and self.own.finish(b))

    def _group_by_group(self, b: Builder, at: Places, body: Callable[[], None]) -> None:
        """What is done for each group of a task, with its own sums."""
        plan, first = self.plan, self.first_bundle
        if plan.at_once == 1:
            body()
            return

        def of_group(group: Index, _: object) -> None:
            self.bundle = group
            self.own = self._own_sums(b, at)
            body()

        b.loop(first, b.minimum(b.add(first, plan.at_once), plan.bundles), of_group, name="group")

    def _block(self, b: Builder, at: Places, lanes: Value, number: Index, starts: list[Index]) -> None:
        """A block of windows of a group."""
        plan = self.plan
        if self.own is not None:
            self.own.number = number
        if not (plan.direct or plan.rows_in_place or plan.rows_as_met):
            self._pack_rows(b, at, starts)
        if not (plan.direct or plan.lanes_in_place):
            self._pack_lanes(b, at, lanes, starts)
        if self.ahead is not None:
            self.ahead.begin(b, at, b.minimum(b.add(number, 1), self.blocks - 1), number)
        if plan.direct:
            self._in_place(b, at, starts)
            return
        rows = self._rows_of_task(b, at) if plan.rows_in_place else at.scratch
        if plan.rows_as_met:
            self._multiply_as_met(b, at, lanes, starts)
        else:
            self._multiply(b, at, rows, lanes, starts)

    def _multiply_as_met(self, b: Builder, at: Places, lanes: Value, starts: list[Index]) -> None:
        """A block of windows, tile by tile of the rows, which are packed for that."""
        plan = self.plan
        count = b.minimum(b.sub(plan.row_count, self.first_row), plan.share_rows)
        whole = b.mul(b.floor_div(count, plan.row_channels), plan.row_channels) if plan.rest_rows else count

        def of_tile(row: Index, rows: int) -> None:
            self.only = row, rows
            self.pack_tile_rows(b, at, starts, row, rows)
            self._multiply(b, at, at.scratch, lanes, starts)

        b.loop(0, whole, lambda row, _: of_tile(row, plan.row_channels), step=plan.row_channels, name="rows")
        if plan.rest_rows:
            with b.when(b.compare("slt", whole, count)):
                of_tile(whole, plan.rest_rows)

    def _multiply(self, b: Builder, at: Places, rows: Value, lanes: Value, starts: list[Index]) -> None:
        """A block of windows, for all lane blocks of the task."""

        def of_lanes(lane_block: Index, _: object) -> None:
            of_block = self._lanes_of_block(b, at, lane_block) if self.plan.lanes_in_place else lanes
            self._sweep(b, rows, of_block, lane_block, starts)

        b.loop(self.first_block, self.last_block, of_lanes, name="lanes")

    def _ahead(self) -> WeightsAhead:
        """What its tiles fetch."""
        return WeightsAhead(self.plan, self.bundle, self.first_row, self.first_block)

    def _own_sums(self, b: Builder, at: Places) -> OwnSums | None:
        """Where a task has its sums to itself."""
        if not self.plan.own_sums:
            return None
        from convgrad.codegen.outputs.own_sums import OwnSums

        sums = b.at(at.scratch, self.own_sums_start, "i8")
        if self.plan.at_once > 1:
            sums = b.at(sums, b.mul(b.sub(self.bundle, self.first_bundle), self.own_sum_bytes), "i8")
        if self.plan.by_rows:
            at = replace(at, scratch=b.at(sums, self.own_sum_bytes, "i8"))
        return OwnSums(self.plan, self.tile, at, sums, self.bundle, self.first_row, self.first_block, self.last_block)

    def _bias_share(self, b: Builder, at: Places, chunk: Index, lane_share: Index, row_share: Index) -> BiasShare:
        """The channels that this task packs, where it is the one to sum them."""
        from convgrad.codegen.outputs.bias import BiasShare

        plan = self.plan
        if plan.problem.bias_gradient == self.row_tensor:
            count = b.minimum(b.sub(plan.row_count, self.first_row), plan.share_rows)
            first, others = self.first_row, lane_share
        else:
            first, others = b.mul(self.first_block, plan.block_channels), row_share
            rest = b.maximum(b.sub(plan.lane_count, first), 0)  # a share of the lanes may be empty
            count = b.minimum(rest, plan.share_blocks * plan.block_channels)
        target = b.at(at.shared, b.dot([(chunk, plan.bias_size)], plan.chunks * chunk_numbers(plan)), self.kind)
        source = at.of(plan.problem.bias_gradient)
        return BiasShare(plan, source, target, self.bundle, first, count, None if others == 0 else others)

    def _in_place(self, b: Builder, at: Places, starts: list[Index]) -> None:
        plan = self.plan
        first = first_group(plan, b, self.bundle)
        rows, lanes = (
            b.at(at.of(tensor), b.mul(first, self.tensor_strides[tensor][1]), STORAGE[plan.problem.dtype])
            for tensor in (self.row_tensor, self.lane_tensor)
        )
        self._sweep(b, rows, lanes, self.first_block, starts)

    def sums_at(self, b: Builder, lane_block: Index) -> Value:
        """Tap 0 and the first row of this task, of a lane block."""
        plan = self.plan
        which = b.add(b.mul(self.bundle, plan.lane_blocks), lane_block)
        return b.at(self.sums, b.dot([(which, plan.sum_block), (self.first_row, plan.width)]), self.kind)

    def _clear(self, b: Builder) -> None:
        plan = self.plan

        def of_block(lane_block: Index, _: object) -> None:
            base = self.sums_at(b, lane_block)

            def of_tap(tap: Index, _: object) -> None:
                target = b.at(base, b.mul(tap, plan.sum_rows * plan.width), self.kind)
                emit_zero(b, self.isa, plan.compute, target, plan.share_rows * plan.width)

            b.loop(0, plan.taps, of_tap, name="tap")

        b.loop(self.first_block, self.last_block, of_block, name="clear")

    def _sweep(self, b: Builder, rows: Value, lanes: Value, lane_block: Index, starts: list[Index]) -> None:
        """Every tap and row tile, for one lane block; on the way, lines are fetched of the block that follows."""
        last = self.plan.lane_blocks - 1

        def sweep(*, last: bool) -> None:
            WindowSweep(self, b, rows, lanes, lane_block, starts, last=last).run()

        if last == 0 or weights_columns(self.plan, last=True) == weights_columns(self.plan, last=False):
            sweep(last=last == 0)
        else:
            b.either(b.compare("slt", lane_block, last), lambda: sweep(last=False), lambda: sweep(last=True))

    def bounds(self, b: Builder, axis: WindowAxis, start: Index, count: Index, r: Index) -> tuple[Index, Index]:
        """Windows of the block whose tap r meets x."""
        if not axis.clipped:
            return 0, count
        reached = b.sub(b.add(b.mul(start, axis.stride), b.mul(r, axis.dilation)), axis.low)
        first = b.sub(0, b.floor_div(reached, axis.stride))
        last = b.add(b.floor_div(b.sub(axis.image - 1, reached), axis.stride), 1)
        return b.maximum(first, 0), b.minimum(last, count)
