"""Lowering of an InPlaceWeightsPlan: a WindowLanesPlan that reads the tensors where they are."""

from __future__ import annotations

import sys
from collections.abc import Sequence

from convgrad.codegen.general.weights import SumsStage
from convgrad.codegen.ir import Builder
from convgrad.codegen.ir_module import Index, Value, index
from convgrad.codegen.isa.base import STORAGE
from convgrad.codegen.loops.ahead import Walk
from convgrad.codegen.microkernels.contract import Tile
from convgrad.codegen.microkernels.reduction import Masks, Reduction
from convgrad.codegen.stages import Places
from convgrad.plan.in_place.in_place_weights import InPlaceWeightsPlan
from convgrad.values import frozen


@frozen
class Windows:
    """What a tile sums: so many windows, where tables of masks have their first vector, and the tile's first tap."""

    many: Index
    place: Index
    tap: int


class InPlaceSums(SumsStage):
    """The stages of a plan."""

    plan: InPlaceWeightsPlan

    def _tile(self) -> Tile:
        return self._tile_of_taps(0)

    def _tile_of_taps(self, first: int) -> Tile:
        """Rows in the order (tap, channel), the taps of the innermost axis beginning with the first."""
        plan = self.plan
        inner, (_, channel) = len(plan.axes) - 1, plan.row_slab
        channels, taps, vectors = range(plan.row_channels), range(plan.tile_taps), range(plan.vectors)
        step = plan.sum_rows * plan.width  # of the sums, per tap
        return Tile(
            isa=self.isa, compute=plan.compute, a_vector=True, a_shared=True, a_dtype=self.slab_dtype,
            b_dtype=self.slab_dtype,
            rows=tuple(plan.shift(inner, first + t) + c * channel for t in taps for c in channels),
            c_rows=tuple(t * step + c * plan.width for t in taps for c in channels),
            columns=tuple(v * plan.lane_channel for v in vectors), c_columns=tuple(v * plan.lanes for v in vectors),
        )  # fmt: skip

    def _in_place(self, b: Builder, at: Places, starts: list[Index]) -> None:
        """All tiles of a block: for some channels of the column side all of the row side, which they read together."""
        plan = self.plan
        kind = STORAGE[self.slab_dtype]
        bases = [
            b.at(at.of(name), b.mul(self.bundle, self.tensor_strides[name][1]), kind)
            for name in (self.row_tensor, self.lane_tensor)
        ]

        def of_block(lane_block: Index, _: object) -> None:
            rows, _ = bases
            lanes = b.at(bases[1], b.mul(lane_block, plan.vectors * plan.lane_channel), kind)
            self._sweep(b, rows, lanes, lane_block, starts)

        b.loop(self.first_block, self.last_block, of_block, name="lanes")

    def _sweep(self, b: Builder, rows: Value, lanes: Value, lane_block: Index, starts: list[Index]) -> None:
        """Every row tile and tap, for one block of channels of the column side."""
        plan = self.plan
        outer, channel_step = len(plan.outer), plan.row_slab[1]
        sums = self.sums_at(b, lane_block) if self.own is None else self.own.sums

        def taps(n: int, row: Index, tap: Index, moved: tuple[Index, Index], met: Index) -> None:
            """`moved` are the offsets of both sides, `met` is 1 if the taps of outer axes meet the image, else 0."""
            if n == outer:
                flat(row, tap, moved, met)
                return
            axis = plan.axes[n]

            def of_tap(r: Index, _: object) -> None:
                start, step = starts[n], b.add(b.mul(tap, axis.taps), r)
                if axis.taps == 1 and not axis.clipped and not axis.low and axis.stride == 1:
                    x, inside = start, met
                else:
                    x = b.add(b.mul(start, axis.stride), b.sub(b.mul(r, axis.dilation), axis.low))
                    there = b.both(b.compare("sge", x, 0), b.compare("slt", x, axis.image))
                    inside = b.select(there, index(met), index(0))
                    x = b.select(there, index(x), index(0))
                places = (x, start) if plan.rows_shift else (start, x)
                here = b.add(moved[0], b.mul(places[0], plan.row_slab[0][n]))
                taps(n + 1, row, step, (here, b.add(moved[1], b.mul(places[1], plan.lane_slab[n]))), inside)

            b.loop(0, axis.taps, of_tap, name="tap")

        def flat(row: Index, tap: Index, moved: tuple[Index, Index], met: Index) -> None:
            axis, start = plan.axes[outer], starts[outer]
            if len(plan.flat) == 1:
                many = b.mul(b.minimum(b.sub(axis.windows, start), plan.block[outer]), met)
                inner_taps(row, tap, (b.add(moved[0], start), b.add(moved[1], start)), many, start)
                return

            def of_tap(r: Index, _: object) -> None:
                many, *places = self._rows_met(b, start, r)
                here = b.add(moved[0], places[0]), b.add(moved[1], places[1])
                inner_taps(row, b.add(b.mul(tap, axis.taps), r), here, b.mul(many, met), 0)

            b.loop(0, axis.taps, of_tap, name="tap")

        def inner_taps(row: Index, tap: Index, moved: tuple[Index, Index], many: Index, column: Index) -> None:
            """`many` windows, of which the first is in a column."""
            axis = plan.axes[-1]
            for first in range(0, axis.taps, plan.tile_taps):
                windows = Windows(many, b.floor_div(column, plan.window_lanes), first)
                one_tile(row, b.add(b.mul(tap, axis.taps), first), moved, windows)

        def one_tile(row: Index, tap: Index, moved: tuple[Index, Index], windows: Windows) -> None:
            a, x = (
                b.at(base, place, STORAGE[self.slab_dtype]) for base, place in zip((rows, lanes), moved, strict=True)
            )
            walks = self.ahead.walks(b, b.sub(lane_block, self.first_block), tap, row) if self.ahead else ()
            tile = self._tile_of_taps(windows.tap)
            if self.own is None:
                place = b.at(sums, b.dot([(tap, plan.sum_rows * plan.width), (row, plan.width)]), self.kind)
                tile.store(b, place, self._sum(b, tile, a, x, tile.load(b, place), windows, walks))
                return
            place = self.own.place(b, lane_block, tap, row)
            total = self._sum(b, tile, a, x, self.own.before(b, place), windows, walks)
            self.own.after(b, place, total, lane_block, tap, row)

        b.loop(
            0, plan.share_rows,
            lambda row, _: taps(0, row, 0, (b.mul(b.add(self.first_row, row), channel_step), 0), 1),
            step=plan.row_channels, name="row",
        )  # fmt: skip

    def _rows_met(self, b: Builder, start: Index, r: Index) -> tuple[Index, Index, Index]:
        """Windows of the rows of a block that meet the image at tap r, and where both sides have the first of them."""
        plan, axis = self.plan, self.plan.flat[0]
        shift = b.sub(b.mul(r, axis.dilation), axis.low)
        shift = shift if plan.rows_shift else b.sub(0, shift)
        stop = b.minimum(b.add(start, plan.block[len(plan.outer)]), axis.windows)
        low = b.maximum(start, b.sub(0, shift))
        high = b.minimum(stop, b.sub(axis.windows, shift))
        many = b.mul(b.maximum(b.sub(high, low), 0), plan.pitch)
        return many, b.mul(b.add(low, shift), plan.pitch), b.mul(low, plan.pitch)

    def _sum(
        self, b: Builder, tile: Tile, a: Value, x: Value, start: Sequence[Value], windows: Windows,
        walks: Sequence[Walk],
    ) -> list[Value]:  # fmt: skip
        """Vector by vector; of the last one those lanes that there are."""
        plan = self.plan
        whole = b.floor_div(windows.many, plan.window_lanes)
        rest = b.sub(windows.many, b.mul(whole, plan.window_lanes))
        inner = len(plan.axes) - 1
        kind = f"i{plan.window_lanes}"
        tables = [self._column_masks(b, plan.shift(inner, windows.tap + t)) for t in range(plan.tile_taps)]

        def columns(b: Builder, i: Index) -> Masks:
            place = b.add(windows.place, i)
            if self.only_axis and any(tables):
                place = self._place_in_tables(b, place)
            masks = [
                None if table is None else b.load(kind, b.at(table, place, kind), plan.window_lanes // 8)
                for table in tables
            ]
            return tuple(mask for mask in masks for _ in range(plan.row_channels))

        ends = b.emit("i64", f"shl i64 -1, {index(rest).text}")
        last = b.cast("trunc", b.binary("xor", ends, Value("i64", "-1")), kind)

        def last_columns(b: Builder, i: Index) -> Masks:
            return tuple(last if mask is None else b.binary("and", mask, last) for mask in columns(b, i))

        step = plan.window_lanes
        of_whole = Reduction(0, whole, step, step, 1, a_masks=columns)
        total = tile.sum(b, a, x, start, [of_whole], walks=walks)
        of_rest = Reduction(
            whole, b.add(whole, b.minimum(rest, 1)), step, step, a_masks=last_columns,
            b_masks=lambda b, i: (last,) * plan.vectors,
        )  # fmt: skip
        return tile.sum(b, a, x, total, [of_rest])

    @property
    def only_axis(self) -> bool:
        """Whether a row is all of a plane: then tables of masks hold its ends, and one vector of what is between."""
        return len(self.plan.flat) == 1

    @property
    def parts_of_axis(self) -> tuple[int, int, int]:
        """Of an only axis: vectors at its begin, of which taps may fall beside the image, between, and at its end."""
        plan, lanes, inner = self.plan, self.plan.window_lanes, len(self.plan.axes) - 1
        shifts = [plan.shift(inner, tap) for tap in range(plan.axes[-1].taps)]
        vectors = -(-plan.pitch // lanes)
        first = min(vectors, -(-max(0, -min(shifts)) // lanes))
        between = max(0, (plan.pitch - max(0, *shifts)) // lanes - first)
        return first, between, vectors - first - between

    def _place_in_tables(self, b: Builder, vector: Index) -> Index:
        """Of an only axis: where tables have the masks of a vector of windows."""
        first, between, _ = self.parts_of_axis
        return b.add(b.minimum(vector, first), b.maximum(b.sub(vector, first + max(0, between - 1)), 0))

    def _column_masks(self, b: Builder, shift: int) -> Value | None:
        """Lanes that are in the image after a shift: a table, by vectors of a block or of the only axis; None: all."""
        plan, lanes, table = self.plan, self.plan.window_lanes, bytearray()
        if shift == 0:
            return None
        if self.only_axis:
            first, between, last = self.parts_of_axis
            vectors = [*range(first + min(1, between)), *range(first + between, first + between + last)]
        else:
            vectors = range(-(-plan.pitch * plan.block[-2] // lanes))
        whole = ((1 << lanes) - 1).to_bytes(lanes // 8, sys.byteorder)
        for vector in vectors:
            begin = vector * lanes % plan.pitch
            if max(0, -shift) <= begin <= plan.pitch - lanes - max(0, shift):  # as nearly all are, of long rows
                table += whole
                continue
            columns = ((begin + lane) % plan.pitch + shift for lane in range(lanes))
            table += sum((0 <= at < plan.pitch) << lane for lane, at in enumerate(columns)).to_bytes(
                lanes // 8, sys.byteorder
            )
        return b.module.bytes(bytes(table))
