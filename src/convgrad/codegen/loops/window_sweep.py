"""The loops of a WeightsPlan over taps and register tiles, for one block of lanes and one block of windows."""

from __future__ import annotations

from typing import TYPE_CHECKING

from convgrad.codegen.ir import Builder
from convgrad.codegen.ir_module import Index, Value
from convgrad.codegen.isa.base import STORAGE
from convgrad.codegen.loops.ahead import Walk
from convgrad.codegen.loops.weights_ahead import NextRows
from convgrad.codegen.microkernels.contract import Tile
from convgrad.codegen.microkernels.reduction import Reduction, Segment
from convgrad.plan.strides import row_major
from convgrad.values import replace

if TYPE_CHECKING:
    from convgrad.codegen.general.weights import SumsStage

Shift = tuple[Index, Index]  # of the rows and of the lanes, from where their slabs begin


class WindowSweep:
    """Emits axis after axis, outermost first: taps are loops around the tiles, windows are what a tile sums."""

    def __init__(
        self, stage: SumsStage, b: Builder, rows: Value, lanes: Value, lane_block: Index, starts: list[Index], *,
        last: bool = True,
    ):  # fmt: skip
        plan = stage.plan
        self.stage, self.plan, self.b, self.last = stage, plan, b, last
        self.tile, self.own = stage.tile, stage.own
        self.first_row: Index = 0  # of those of the task that the tile goes through
        self.last_row = b.minimum(b.sub(plan.row_count, stage.first_row), plan.share_rows)
        self.rows, self.lanes, self.lane_block, self.starts = rows, lanes, lane_block, starts
        if not (plan.direct or plan.lanes_in_place):
            self.lanes = b.at(lanes, b.mul(b.sub(lane_block, stage.first_block), plan.lane_slab_block), stage.kind)
        self.sums = stage.sums_at(b, lane_block) if self.own is None else self.own.sums
        self.counts = [stage.windows(b, n, start) for n, start in enumerate(starts)]
        self.paces = row_major(plan.block, 1)

    def run(self) -> None:
        """All tiles: those of so many row channels, then the last one of the rest; or only that which is packed."""
        b, plan = self.b, self.plan
        if self.stage.only:
            self.first_row, rows = self.stage.only
            self.last_row = b.add(self.first_row, 1)
            self._with_tile(rows)
            self._taps(0, (0, 0), 0, [])
            return
        if self.own is not None and plan.by_rows:
            self.own.by_rows(b, (self.lane_block, b.add(self.lane_block, 1)), self._rows_of)
        else:
            self._rows_of((0, self.last_row))

    def _rows_of(self, rows: tuple[Index, Index]) -> None:
        """Those from one to another, whole tiles of them but for the last."""
        b, plan = self.b, self.plan
        (first, count), rest = rows, plan.rest_rows
        self.first_row, self.last_row = first, count
        if rest:
            whole = b.mul(b.floor_div(b.sub(count, first), plan.row_channels), plan.row_channels)
            self.last_row = b.add(first, whole)
        self._with_tile(plan.row_channels)
        self._taps(0, (0, 0), 0, [])
        if rest:
            with b.when(b.compare("slt", self.last_row, count)):
                self.first_row, self.last_row = self.last_row, count
                self._with_tile(rest)
                self._taps(0, (0, 0), 0, [])

    def _with_tile(self, rows: int) -> None:
        """Of so many row channels."""
        if self.plan.may_end_early:
            self.tile = self.stage.part_tile(last=self.last, rows=rows)
            self.own = self.stage.own and self.stage.own.of_tile(self.tile, last=self.last, rows=rows)

    def _taps(self, n: int, shift: Shift, tap: Index, sums: list[Reduction]) -> None:
        """The taps of axis n, and of all axes inside it."""
        b, plan = self.b, self.plan
        if n == len(plan.axes):
            self._row_tiles(shift, tap, sums, self.tile)
            return
        axis = plan.axes[n]
        together = plan.tile_taps if n == len(plan.axes) - 1 else 1

        def of_tap(r: Index, _: object) -> None:
            moved, place = self._moved(n, r, shift), b.add(b.mul(tap, axis.taps), r)
            if together == 1:
                bounds = self.stage.bounds(b, axis, self.starts[n], self.counts[n], r)
                self._taps(n + 1, moved, place, [*sums, self._summed(n, *bounds)])
            elif not plan.direct:
                pieces = self.segments(r) if plan.in_segments else ()
                self._taps(n + 1, moved, place, [*sums, replace(self._summed(n, 0, self.counts[n]), segments=pieces)])
            else:
                self._row_tiles(moved, place, [*sums, self._summed(n, *axis.inside)], self.tile)
                b.loop(0, axis.taps, lambda t, _: self._borders(t, shift, tap, sums), name="border")

        b.loop(0, axis.taps, of_tap, step=together, name="tap")

    def _moved(self, n: int, r: Index, shift: Shift) -> Shift:
        """At tap r and the first window of the block."""
        b, plan = self.b, self.plan
        axis, (a, x), start = plan.axes[n], shift, self.starts[n]
        row_step, lane_step = plan.row_slab[0][n], plan.lane_slab[n]
        x_step, y_step = (row_step, lane_step) if plan.rows_shift else (lane_step, row_step)
        place = b.mul(b.sub(b.mul(r, plan.tap_step(n)), axis.low + plan.x_start[n]), x_step)
        other: Index = 0
        if plan.direct or plan.x_in_place:
            place = b.add(place, b.mul(start, axis.stride * x_step))
        if plan.direct or plan.y_in_place:
            other = b.mul(start, y_step)
        return (b.add(a, place), b.add(x, other)) if plan.rows_shift else (b.add(a, other), b.add(x, place))

    def _summed(self, n: int, first: Index, last: Index) -> Reduction:
        """Over windows of the block."""
        plan = self.plan
        row_step, lane_step = (plan.axes[n].stride, 1) if plan.rows_shift else (1, plan.axes[n].stride)
        return Reduction(first, last, row_step * plan.row_slab[0][n], lane_step * plan.lane_slab[n], self.paces[n])

    def segments(self, r: Index) -> tuple[Segment, ...]:
        """Windows of a row that the same taps of a tile meet x in, from the first to the last; r is its first tap."""
        b, plan, tile = self.b, self.plan, self.tile
        axis, taps, count = plan.axes[-1], plan.tile_taps, self.counts[-1]
        bounds = [self.stage.bounds(b, axis, self.starts[-1], count, b.add(r, t)) for t in range(taps)]
        first = [b.minimum(low, count) for low, _ in bounds]
        last = [b.maximum(high, 0) for _, high in bounds]
        rows, columns = range(len(tile.rows)), range(len(tile.columns))

        def segment(low: Index, high: Index, start: int, stop: int) -> Segment:
            of, others = (rows, columns) if plan.rows_shift else (columns, rows)
            met = of[len(of) // taps * start : len(of) // taps * stop]
            return Segment(low, high, *((met, others) if plan.rows_shift else (others, met)))

        below = [segment(first[t], first[t - 1], t, taps) for t in range(taps - 1, 0, -1)]
        above = [segment(last[t], last[t - 1], 0, t) for t in range(taps - 1, 0, -1)]
        return (*below, segment(first[0], last[-1], 0, taps), *above)

    def _borders(self, t: Index, shift: Shift, tap: Index, sums: list[Reduction]) -> None:
        """The windows, at either end, that only some taps of the innermost axis meet x in."""
        b, n = self.b, len(self.plan.axes) - 1
        axis, tile = self.plan.axes[n], self.tile
        single = replace(tile, rows=tile.rows[:1], c_rows=tile.c_rows[:1], unroll=1)
        low, high = axis.inside
        first, last = self.stage.bounds(b, axis, self.starts[n], self.counts[n], t)
        place = b.add(b.mul(tap, axis.taps), t)
        for start, stop in ((first, b.minimum(last, low)), (b.maximum(first, high), last)):
            self._row_tiles(self._moved(n, t, shift), place, [*sums, self._summed(n, start, stop)], single)

    # --- register tiles

    def _row_tiles(self, shift: Shift, tap: Index, sums: list[Reduction], tile: Tile) -> None:
        """Tile after tile along the row channels of the task."""
        b, plan, stage = self.b, self.plan, self.stage

        def of_row(row: Index, _: object) -> None:
            a = self._rows_at(shift, row)
            x = b.at(self.lanes, shift[1], STORAGE[stage.lane_dtype])
            walks = self._walks(shift, tap, row)
            if self.own is None:
                place = b.dot([(tap, plan.sum_rows * plan.width), (row, plan.width)])
                tile.emit(b, a, x, b.at(self.sums, place, stage.kind), sums, None, walks=walks)
                return
            place = self.own.place(b, self.lane_block, tap, row)
            total = tile.sum(b, a, x, self.own.before(b, place), sums, walks=walks)
            self.own.after(b, place, total, self.lane_block, tap, row)

        b.loop(self.first_row, self.last_row, of_row, step=plan.row_channels, name="row")

    def _walks(self, shift: Shift, tap: Index, row: Index) -> list[Walk]:
        """What a tile fetches on its way."""
        b, plan, stage = self.b, self.plan, self.stage
        if plan.rows_in_place and NextRows.wanted(plan):
            most = b.sub(b.minimum(b.sub(plan.row_count, stage.first_row), plan.share_rows), plan.row_channels)
            following = b.minimum(b.add(row, plan.row_channels), b.maximum(most, 0))
            return [NextRows.of(plan, self._rows_at(shift, following))]
        return list(stage.ahead.walks(b, b.sub(self.lane_block, stage.first_block), tap, row)) if stage.ahead else []

    def _rows_at(self, shift: Shift, row: Index) -> Value:
        """What a tile reads that begins with a row channel."""
        return self.b.at(self.rows, self.b.add(shift[0], self.row_at(row)), STORAGE[self.stage.row_dtype])

    def row_at(self, row: Index) -> Index:
        """Where the slab of the row side has a channel."""
        b, plan, channel_step = self.b, self.plan, self.plan.row_slab[1]
        if plan.rows_as_met:
            return 0
        if plan.row_run == plan.share_rows:
            return b.mul(row, channel_step)
        run = b.floor_div(row, plan.row_run)
        return b.dot([(run, plan.row_step - plan.row_run * channel_step), (row, channel_step)])
