"""Lowering of a RowWeightsPlan: an InPlaceWeightsPlan whose steps are whole rows of windows."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from convgrad.codegen.copies.interleave import pick
from convgrad.codegen.in_place.in_place_weights import InPlaceSums, Windows
from convgrad.codegen.ir import Builder
from convgrad.codegen.ir_module import Index, Value
from convgrad.codegen.isa.base import STORAGE, Isa
from convgrad.codegen.loops.ahead import Fetch
from convgrad.codegen.microkernels.contract import Tile
from convgrad.codegen.microkernels.reduction import Reduction
from convgrad.dtypes import COMPUTE
from convgrad.plan.in_place.row_weights import RowWeightsPlan


class RowSums(InPlaceSums):
    """The stages of a plan."""

    plan: RowWeightsPlan

    def _tile_of_taps(self, first: int) -> Tile:
        """That reads some of what lies between the first element that windows meet and the last.

        Its offsets are numbers of what a row has to read, as two taps may read different parts of the same vector.
        """
        plan, axis = self.plan, self.plan.axes[-1]
        tile = InPlaceSums._tile_of_taps(self, first)
        inner, windows = len(plan.axes) - 1, range(0, plan.pitch, plan.window_lanes)
        rows = [
            (c * plan.row_slab[1], plan.shift(inner, first + t))
            for t in range(plan.tile_taps)
            for c in range(plan.row_channels)
        ]
        of_rows = [(channel, shift, i) for channel, shift in rows for i in windows]
        of_lanes = [(v * plan.lane_channel, i) for v in range(plan.vectors) for i in windows]

        def of_x(b: Builder, row: Value, number: int) -> Value:
            channel, shift, i = of_rows[number]
            return self.met(b, self._at(b, row, channel), i, axis.stride, shift, axis.image)

        def of_y(b: Builder, row: Value, number: int) -> Value:
            channel, i = of_lanes[number]
            return self.met(b, self._at(b, row, channel), i, 1, 0, plan.pitch)

        return replace(
            tile, a_read=of_x, b_read=of_y, rows=tuple(range(0, len(of_rows), len(windows))),
            columns=tuple(range(0, len(of_lanes), len(windows))),
        )  # fmt: skip

    def met(self, b: Builder, row: Value, i: int, step: int, shift: int, extent: int) -> Value:
        """What the vector of windows that begins with the ith meets of a row, or zeros beside it and them."""
        element = shift + step * i
        address = self._at(b, row, element)
        return read_every(b, self.isa, self.slab_dtype, address, step, element, extent, self.plan.pitch - i)

    def _at(self, b: Builder, row: Value, place: int) -> Value:
        return b.at(row, place, STORAGE[self.slab_dtype])

    def _rows_met(self, b: Builder, start: Index, r: Index) -> tuple[Index, Index, Index]:
        """Rows of a block that meet the image at tap r, and where both sides have the first of them."""
        plan, axis, n = self.plan, self.plan.flat[0], len(self.plan.outer)
        count = b.minimum(b.sub(axis.windows, start), plan.block[n])
        low, high = self.bounds(b, axis, start, count, r)
        first = b.add(start, low)
        of_x = b.add(b.mul(first, axis.stride), b.sub(b.mul(r, axis.dilation), axis.low))
        places = b.mul(of_x, plan.row_slab[0][n]), b.mul(first, plan.lane_slab[n])
        return b.maximum(b.sub(high, low), 0), *places

    def _sum(
        self, b: Builder, tile: Tile, a: Value, x: Value, start: Sequence[Value], windows: Windows,
        walks: Sequence[Fetch],
    ) -> list[Value]:  # fmt: skip
        """Row by row."""
        plan, n = self.plan, len(self.plan.outer)
        steps = plan.flat[0].stride * plan.row_slab[0][n], plan.lane_slab[n]
        written = [(n, n) for n in range(plan.vectors_of_row)]
        return tile.sum(b, a, x, start, [Reduction(0, windows.many, *steps, 1)], written, walks)


def read_every(
    b: Builder, isa: Isa, dtype: str, address: Value, step: int, first: int, extent: int, many: int
) -> Value:
    """Every so manieth number of a row, from a place on; zeros for those that the row does not have.

    The first is element `first` of a row of `extent`, at `address`; lanes from `many` on are zero, too.
    """
    compute = COMPUTE[dtype]
    lanes = isa.lanes(compute)
    many = min(many, lanes)
    parts = []
    for start in range(0, step * (many - 1) + 1, lanes):
        places = range(first + start, first + start + lanes)
        held = [0 <= at < extent and (at - first) // step < many for at in places]
        bits = sum(yes << lane for lane, yes in enumerate(held))
        if not bits:
            parts.append(Value(isa.vector(compute), "zeroinitializer"))
            continue
        mask = None if all(held) else Value(f"i{lanes}", str(bits))
        parts.append(isa.load(b, dtype, b.at(address, start, STORAGE[dtype]), lanes, mask=mask))
    if step == 1:
        return parts[0]
    parts += [Value(isa.vector(compute), "zeroinitializer")] * (step - len(parts))
    return pick(b, parts, range(0, step * lanes, step))
