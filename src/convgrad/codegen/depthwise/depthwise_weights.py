"""Lowering of a DepthwiseWeightsPlan: sums of all taps for a vector of lanes, window by window as they lie."""

from __future__ import annotations

from collections.abc import Iterator

from convgrad.codegen.copies.zeroing import emit_zero
from convgrad.codegen.general.weights import SumsStage
from convgrad.codegen.ir import Builder
from convgrad.codegen.ir_module import Index, Value, index
from convgrad.codegen.isa.base import BYTES, STORAGE
from convgrad.codegen.module import round64
from convgrad.codegen.stages import Places
from convgrad.plan.costs import LINE
from convgrad.plan.depthwise.depthwise_weights import DepthwiseWeightsPlan, met_on
from convgrad.plan.window_axes import WindowAxis
from convgrad.values import frozen, replace

Sums = dict[tuple[int, int], Value]  # of row and column of taps


@frozen
class Spot:
    """Where a tile is: first window, how many rows and columns of them, whether x is there for all, first lane."""

    j: Index
    i: Index
    rows: int
    columns: int
    first: int  # column, of the first of all tiles that are alike
    whole: bool
    lane: Index
    tap: Index = 0  # row of them, that is the first


class DepthwiseSums(SumsStage):
    """The stages of a plan. Scratch memory of a task: zeros, behind what the second stage needs."""

    plan: DepthwiseWeightsPlan
    x: Value  # the planes that are multiplied
    y: Value
    first_tap: Index  # of the plane of taps that they meet
    half: int = 0  # of the lanes that are read at a time, which is summed

    @property
    def scratch_bytes(self) -> int:
        """Of any task."""
        return self.own_sums_start + round64(BYTES[self.plan.compute] * self.plan.zeros)

    def task(self, b: Builder, at: Places, task: Value) -> None:
        """All blocks of windows of one chunk."""
        self.zeros = b.at(at.scratch, self.own_sums_start, "i8")
        emit_zero(b, self.isa, self.plan.compute, self.zeros, self.plan.zeros)
        SumsStage.task(self, b, at, task)

    def _in_place(self, b: Builder, at: Places, starts: list[Index]) -> None:
        """All tiles of a block, which is of a plane of windows: planes of taps, rows, columns, groups."""
        plan, p, kind = self.plan, self.plan.problem, STORAGE[self.plan.problem.dtype]
        x, y = (b.at(at.of(name), b.mul(starts[0], p.strides[name][0]), kind) for name in ("x", "y"))
        outer = range(1, len(plan.axes) - 2)
        self.y = b.at(y, b.dot([(starts[n], p.y_strides[n + 2]) for n in outer]), kind)

        def planes(n: int, x: Value, tap: Index) -> None:
            """From axis n on, of which taps are met one after the other."""
            if n not in outer:
                self.x, self.first_tap = x, b.mul(tap, plan.plane_taps)
                self._plane(b, starts)
                return

            def of_tap(r: Index, _: object) -> None:
                place = b.dot([(starts[n], axis.stride), (r, axis.dilation)], -axis.low)
                planes(n + 1, b.at(x, b.mul(place, p.x_strides[n + 2]), kind), b.add(b.mul(tap, axis.taps), r))

            axis = plan.axes[n]
            b.loop(*self._taps_met(b, axis, starts[n]), of_tap, name="plane")

        planes(1, x, 0)

    def _taps_met(self, b: Builder, axis: WindowAxis, window: Index) -> tuple[Index, Index]:
        """The taps of a window from the first to the last that meets x."""
        if not axis.clipped:
            return 0, axis.taps
        place = b.sub(b.mul(window, axis.stride), axis.low)
        first = b.sub(0, b.floor_div(place, axis.dilation))
        last = b.add(b.floor_div(b.sub(axis.image - 1, place), axis.dilation), 1)
        return b.maximum(first, 0), b.minimum(last, axis.taps)

    def _plane(self, b: Builder, starts: list[Index]) -> None:
        """Of the rows of a block."""
        plan, row = self.plan, self.plan.axes[-2]
        rest = row.windows % plan.rows
        stop = b.minimum(b.add(starts[-2], plan.block[-2]), row.windows)
        whole = b.minimum(stop, row.windows - rest)
        b.loop(
            starts[-2], whole, lambda j, _: self._row_of_windows(b, starts, j, plan.rows), step=plan.rows, name="row"
        )
        if rest:
            b.loop(whole, stop, lambda j, _: self._row_of_windows(b, starts, j, rest), step=plan.rows, name="rest")

    def _row_of_windows(self, b: Builder, starts: list[Index], j: Index, rows: int) -> None:
        """Or what a block has of it."""
        plan = self.plan
        parts = plan.block[-1] < plan.axes[-1].windows
        for first, many, columns, whole in self._pieces():

            def tile(
                i: Index, _: object = None, first: int = first, columns: int = columns, whole: bool = whole
            ) -> None:
                b.loop(
                    0, plan.all_lanes,
                    lambda g, _: self._tile_of_taps(b, Spot(j, i, rows, columns, first, whole, g)),
                    step=plan.together * plan.lanes, name="lanes",
                )  # fmt: skip

            start, stop = first, first + many * plan.columns
            if parts:
                start = b.maximum(start, starts[-1])
                stop = b.minimum(stop, b.add(starts[-1], plan.block[-1]))
            b.loop(start, stop, tile, step=plan.columns, name="column")

    def _pieces(self) -> Iterator[tuple[int, int, int, bool]]:
        """Tiles of a row that are written out once: the first window, how many alike, columns, whether x is there."""
        plan, windows = self.plan, self.plan.axes[-1].windows
        tiles, first, last = plan.whole_tiles
        for n in (*range(first), *range(last, tiles)):
            yield n * plan.columns, 1, min(plan.columns, windows - n * plan.columns), False
        if last > first:
            yield first * plan.columns, last - first, plan.columns, True

    def _tile_of_taps(self, b: Builder, spot: Spot) -> None:
        """The sums of some rows of taps after the other."""
        plan, row = self.plan, self.plan.axes[-2]
        lane = b.add(spot.lane, self.half * plan.lanes)
        sums = b.at(self.sums_at(b, 0), b.add(lane, b.mul(self.first_tap, plan.width)), self.kind)
        if plan.looped:

            def of_row(r: Index, _: object) -> None:
                place = b.at(sums, b.mul(r, plan.axes[-1].taps * plan.width), self.kind)
                self._some_taps(b, replace(spot, tap=r), range(1), place)

            b.loop(*self._taps_met(b, row, spot.j), of_row, name="taps")
            return
        first = 0
        for tap_rows, many in plan.tap_pieces:
            for _ in range(many):
                self._some_taps(b, spot, range(first, first + tap_rows), sums)
                first += tap_rows

    def _some_taps(self, b: Builder, spot: Spot, rows: range, sums: Value) -> None:
        """Of some rows of taps, as many of a row after the other as registers hold."""
        plan = self.plan
        for columns in plan.column_pieces:
            places = {
                (r, c): b.at(sums, (r * plan.axes[-1].taps + c) * plan.width, self.kind) for r in rows for c in columns
            }
            now = {tap: self.isa.load(b, plan.compute, place, plan.lanes) for tap, place in places.items()}
            for tap, value in self._summed(b, spot, (rows, columns), now).items():
                self.isa.store(b, plan.compute, value, places[tap])

    def _summed(self, b: Builder, spot: Spot, taps: tuple[range, range], sums: Sums) -> Sums:
        """Element by element of x, column by column."""
        plan, p, kind = self.plan, self.plan.problem, STORAGE[self.plan.problem.dtype]
        (row, inner), sums = plan.axes[-2:], dict(sums)
        met_rows = met_on(row, spot.rows, taps[0])
        x_rows = {place: self._x_row(b, spot, place) for place in met_rows}
        corner = b.dot([(spot.j, p.y_strides[-2]), (spot.i, p.y_strides[-1]), (spot.lane, plan.lane_step("y"))])
        windows: dict[tuple[int, int], Value] = {}
        fetches = taps[0].start == 0 and taps[1].stop == inner.taps and not plan.looped  # once for all taps

        def window(m: int, n: int) -> Value:
            if (m, n) not in windows:
                there = b.at(self.y, b.add(corner, m * p.y_strides[-2] + n * p.y_strides[-1]), kind)
                self._fetch(b, "y", there, first=fetches)
                windows[m, n] = self._load(b, "y", there, spot)
            return windows[m, n]

        new = range(max(met_rows) + 1 - spot.rows * row.stride, max(met_rows) + 1)  # that no tile before this one met
        for column, at in met_on(inner, spot.columns, taps[1]).items():
            if not spot.whole and not 0 <= spot.first * inner.stride + column < inner.image:
                continue
            for place, met in met_rows.items():
                there = b.at(x_rows[place], (column + inner.low) * p.x_strides[-1], kind)
                fresh = column > inner.dilation * (inner.taps - 1) - inner.low - inner.stride
                self._fetch(b, "x", there, first=fetches and place in new and fresh)
                x = self._load(b, "x", there, spot)
                for n, c in at:
                    for m, r in met:
                        sums[r, c] = self.isa.multiply_add(b, x, window(m, n), sums[r, c])
        return sums

    def _x_row(self, b: Builder, spot: Spot, place: int) -> Value:
        """Where the first element of a row of x is, or would be, that a tile meets."""
        plan, p, (row, inner) = self.plan, self.plan.problem, self.plan.axes[-2:]
        at_row = b.add(b.dot([(spot.j, row.stride), (spot.tap, row.dilation)]), place)
        at_column = b.sub(b.mul(spot.i, inner.stride), inner.low)
        steps = [(at_row, p.x_strides[-2]), (at_column, p.x_strides[-1]), (spot.lane, plan.lane_step("x"))]
        there = b.beyond(self.x, b.mul(b.dot(steps), BYTES[p.dtype]))
        return b.select(b.compare("ult", at_row, row.image), there, self.zeros) if row.clipped else there

    def _load(self, b: Builder, name: str, address: Value, spot: Spot) -> Value:
        """A vector of lanes, or those that are left; or one number for all of them."""
        plan, dtype = self.plan, self.plan.problem.dtype
        if not plan.vectors_of(name):
            return self.isa.load_in_all(b, dtype, address, plan.lanes)
        return self.isa.load(b, dtype, address, plan.lanes, self._left(b, spot))

    def _left(self, b: Builder, spot: Spot) -> Value | None:
        """How many lanes there are, from that of a tile on: one number, and so one mask, for all that it loads."""
        plan = self.plan
        if plan.all_lanes % plan.lanes == 0:
            return None
        lane = index(spot.lane)
        return b.once(("left", lane.text), lambda: index(b.minimum(b.sub(plan.all_lanes, lane), plan.lanes)))

    def _fetch(self, b: Builder, name: str, address: Value, *, first: bool) -> None:
        """What lies some rows of tiles further on, into L2."""
        plan = self.plan
        if first and plan.asks_ahead and plan.vectors_of(name):
            ahead = plan.bytes_ahead(name)
            for line in range(0, max(LINE, plan.lanes * BYTES[plan.problem.dtype]), LINE):
                b.prefetch(b.beyond(address, ahead + line), keep=2)
