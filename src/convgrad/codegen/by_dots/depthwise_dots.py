"""Lowering of a DepthwiseDotsPlan: a DepthwiseWeightsPlan whose products are dot products of pairs of windows."""

from __future__ import annotations

from functools import cache

from convgrad.codegen.depthwise.depthwise_weights import DepthwiseSums, Spot, Sums
from convgrad.codegen.ir import Builder
from convgrad.codegen.ir_module import Value, index, vector_of
from convgrad.codegen.isa.base import STORAGE, shuffle
from convgrad.codegen.isa.dots import LANES, PAIR, WORDS
from convgrad.codegen.stages import Places
from convgrad.codegen.watch.pair_watch import WatchedPairs
from convgrad.plan.by_dots.depthwise_dots import DepthwiseDotsPlan, pairs_met_on
from convgrad.plan.by_dots.plane_dots import enough
from convgrad.plan.depthwise.depthwise_weights import met_on

UNIT = 8  # numbers within which instructions interleave


def channels_of(half: int) -> list[int]:
    """Those of 32 that a vector of interleaved pairs holds."""
    return [start + n for start in range(half * UNIT // 2, PAIR * LANES, UNIT) for n in range(UNIT // 2)]


class DepthwiseDotSums(WatchedPairs, DepthwiseSums):
    """The stages of a plan. Sums are in the order of instructions, and of channels at the end of a task."""

    plan: DepthwiseDotsPlan

    def __init__(self, plan: DepthwiseDotsPlan):
        super().__init__(plan)
        row, inner = plan.axes[-2:]
        self.watched = tuple(
            enough([axis.dilation * r - axis.low for r in range(axis.taps)], axis, 1) for axis in (row, inner)
        )

    def task(self, b: Builder, at: Places, task: Value) -> None:
        """Watching both operands."""
        super().task(b, at, task)
        self._put_in_order(b)

    def _put_in_order(self, b: Builder) -> None:
        """Sums of 32 channels after the other."""
        plan = self.plan
        of = [(half, n) for half in range(PAIR) for n in range(LANES)]
        found = {c: half * LANES + n for half, n in of for c in [channels_of(half)[n]]}

        def some(i: Value, _: object) -> None:
            place = b.at(self.sums_at(b, 0), i, self.kind)
            places = [b.at(place, half * LANES, self.kind) for half in range(PAIR)]
            one, other = (self.isa.load(b, plan.compute, where, LANES) for where in places)
            for half, where in enumerate(places):
                wanted = [found[half * LANES + n] for n in range(LANES)]
                self.isa.store(b, plan.compute, shuffle(b, one, other, wanted), where)

        b.loop(0, plan.taps * plan.width, some, step=PAIR * LANES, name="order")

    def _tile_of_taps(self, b: Builder, spot: Spot) -> None:
        """For each half of the channels of a vector."""
        for self.half in range(PAIR):
            DepthwiseSums._tile_of_taps(self, b, spot)

    def _summed(self, b: Builder, spot: Spot, taps: tuple[range, range], sums: Sums) -> Sums:
        """Pair of columns by pair of columns of x."""
        plan, p, kind = self.plan, self.plan.problem, STORAGE[self.plan.problem.dtype]
        (row, inner), sums = plan.axes[-2:], dict(sums)
        met_rows, met_columns = met_on(row, spot.rows, taps[0]), met_on(inner, spot.columns, range(inner.taps))
        x_rows = {place: b.hidden(self._x_row(b, spot, place)) for place in met_rows}
        corner = b.dot([(spot.j, p.y_strides[-2]), (spot.i, p.y_strides[-1]), (spot.lane, plan.lane_step("y"))])
        y = b.hidden(b.at(self.y, corner, kind))
        zeros = Value(vector_of(PAIR * LANES, kind), "zeroinitializer")
        first, looks = taps[0].start == 0 and self.half == 0, self.half == 0
        new = range(max(met_rows) + 1 - spot.rows * row.stride, max(met_rows) + 1)  # that no tile before this one met

        @cache
        def windows(m: int, n: int) -> Value:
            there = b.at(y, m * p.y_strides[-2] + n * p.y_strides[-1], kind)
            self._fetch(b, "y", there, first=first)
            value = self._numbers(b, there, spot)
            if first:
                self.watch.note(b, "y", value)
            return value

        @cache
        def window(m: int, n: int) -> Value:
            return self._paired(b, windows(m, n), windows(m, n + 1) if n + 1 < spot.columns else zeros)

        @cache
        def element(place: int, column: int) -> Value | None:
            beside = not spot.whole and not 0 <= spot.first * inner.stride + column < inner.image
            if beside or column not in met_columns:  # which nothing but zeros meets
                return None
            there = b.at(x_rows[place], (column + inner.low) * p.x_strides[-1], kind)
            fresh = column > inner.dilation * (inner.taps - 1) - inner.low - inner.stride
            self._fetch(b, "x", there, first=first and place in new and fresh)
            value = self._numbers(b, there, spot)
            of_rows, of_columns = ({r for _, r in met} for met in (met_rows[place], met_columns[column]))
            if looks and self.watched[0] & of_rows and self.watched[1] & of_columns:
                self.watch.note(b, "x", value)
            return value

        for column, at in pairs_met_on(inner, spot.columns).items():
            for place, met in met_rows.items():
                both = [element(place, column + step) for step in (0, inner.stride)]
                if both == [None, None]:
                    continue
                x = self._paired(b, *(zeros if one is None else one for one in both))
                for n, c in at:
                    for m, r in met:
                        sums[r, c] = self.unit.multiply_add(b, x, window(m, n), sums[r, c])
        return sums

    def _paired(self, b: Builder, first: Value, second: Value) -> Value:
        """Numbers of half of the channels, of one column and of another, side by side."""
        wanted = [place for c in channels_of(self.half) for place in (c, PAIR * LANES + c)]
        return b.cast("bitcast", shuffle(b, first, second, wanted), WORDS)

    def _numbers(self, b: Builder, address: Value, spot: Spot) -> Value:
        """Of 32 channels, or those that are left."""
        plan, many, left = self.plan, PAIR * LANES, None
        if plan.all_lanes % many:
            left = index(b.minimum(b.sub(plan.all_lanes, spot.lane), many))
        return self.isa.load_bits(b, plan.problem.dtype, address, many, left)
