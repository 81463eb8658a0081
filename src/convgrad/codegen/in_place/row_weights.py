"""Lowering of a RowWeightsPlan: an InPlaceWeightsPlan whose steps are whole rows of windows."""

from __future__ import annotations

from collections.abc import Sequence

from convgrad.codegen.copies.interleave import dealt_order, pick
from convgrad.codegen.copies.words import PAIR
from convgrad.codegen.in_place.in_place_weights import InPlaceSums, Windows
from convgrad.codegen.ir import Builder
from convgrad.codegen.ir_module import Index, Value
from convgrad.codegen.isa.base import STORAGE, Isa
from convgrad.codegen.loops.ahead import Fetch
from convgrad.codegen.microkernels.contract import Tile
from convgrad.codegen.microkernels.reduction import Reduction
from convgrad.dtypes import COMPUTE
from convgrad.plan.in_place.row_weights import RowWeightsPlan
from convgrad.values import replace


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
        strided = StridedRow(self.isa, self.slab_dtype, axis.stride, axis.image)

        def of_x(b: Builder, row: Value, number: int) -> Value:
            channel, shift, i = of_rows[number]
            if plan.picks_once:
                return strided.met(b, self._at(b, row, channel), (row.text, channel), i, shift, plan.pitch - i)
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


class StridedRow:
    """What vectors of windows meet of rows, of which each phase of the stride is picked once for all taps.

    Taps that meet the same phase meet it some lanes further on: vectors are slid out of two neighbours.
    """

    def __init__(self, isa: Isa, dtype: str, stride: int, image: int):
        self.isa, self.dtype, self.stride, self.image = isa, dtype, stride, image
        self.lanes = isa.lanes(COMPUTE[dtype])
        self.picked: dict[tuple[object, int, int], Value | None] = {}

    def met(self, b: Builder, row: Value, name: object, i: int, shift: int, many: int) -> Value:
        """By windows from the ith on, of which there are so many: element `shift` of the first one's, and so on."""
        ahead, phase = divmod(shift, self.stride)
        turn = (i + ahead) % self.lanes
        first = i + ahead - turn
        one = self._phase(b, row, name, phase, first)
        other = self._phase(b, row, name, phase, first + self.lanes) if turn else None
        zeros = Value(self.isa.vector(COMPUTE[self.dtype]), "zeroinitializer")
        if one is None and other is None:
            return zeros
        vector = self.isa.slide(b, one or zeros, other or zeros, turn) if turn else one
        assert vector is not None
        there = (self.stride * (i + lane) + shift for lane in range(many, self.lanes))
        if not any(0 <= at < self.image for at in there):
            return vector
        held = ", ".join(f"i1 {int(lane < many)}" for lane in range(self.lanes))
        return b.emit(vector.type, f"select <{self.lanes} x i1> <{held}>, {vector}, {zeros}")

    def _phase(self, b: Builder, row: Value, name: object, phase: int, first: int) -> Value | None:
        """Elements of a phase side by side, from its first one on; None: there are none."""
        key = name, phase, first
        if key not in self.picked:
            places = (phase + self.stride * (first + lane) for lane in range(self.lanes))
            held = any(0 <= at < self.image for at in places)
            self.picked[key] = self._pick(b, row, phase, first) if held else None
        return self.picked[key]

    def _pick(self, b: Builder, row: Value, phase: int, first: int) -> Value:
        """Out of as many vectors as the stride is long, which all phases share."""
        lanes, stride, kind = self.lanes, self.stride, STORAGE[self.dtype]
        zeros, start = Value(self.isa.vector(COMPUTE[self.dtype]), "zeroinitializer"), stride * first
        parts = []
        for at in range(start, start + stride * lanes, lanes):
            bits = sum((0 <= at + lane < self.image) << lane for lane in range(lanes))
            mask = None if bits == (1 << lanes) - 1 else Value(f"i{lanes}", str(bits))
            parts.append(self.isa.load(b, self.dtype, b.at(row, at, kind), lanes, mask=mask) if bits else zeros)
        if stride == 2 and COMPUTE[self.dtype] == "f32":  # beside multiply-adds there is more room for these two
            order = dealt_order(lanes)
            dealt = pick(b, parts, [phase + stride * lane for lane in order])
            return self.isa.pick(b, dealt, [order.index(lane) for lane in range(lanes)])
        return pick(b, parts, range(phase, stride * lanes, stride))


def read_every(
    b: Builder, isa: Isa, dtype: str, address: Value, step: int, first: int, extent: int, many: int,
    order: Sequence[int] | None = None,
) -> Value:  # fmt: skip
    """Every so manieth number of a row, from a place on; zeros for those that the row does not have.

    The first is element `first` of a row of `extent`, at `address`; lanes from `many` on are zero, too. They come in an
    `order`, if one is given.
    """
    compute = COMPUTE[dtype]
    lanes = isa.lanes(compute)
    many = min(many, lanes)
    in_pairs = step == PAIR and dtype != compute and isa.masks and isa.lanes("f32") == lanes
    parts, size = [], PAIR * lanes if in_pairs else lanes
    for start in range(0, step * (many - 1) + 1, size):
        places = range(first + start, first + start + size)
        held = [0 <= at < extent and (at - first) // step < many for at in places]
        bits = sum(yes << lane for lane, yes in enumerate(held))
        if not bits:
            parts.append(Value(isa.vector(compute), "zeroinitializer"))
            continue
        mask, place = None if all(held) else Value(f"i{size}", str(bits)), b.at(address, start, STORAGE[dtype])
        if in_pairs:
            return isa.load_firsts(b, dtype, place, lanes, mask)
        parts.append(isa.load(b, dtype, place, lanes, mask=mask))
    if step == 1:
        return parts[0]
    parts += [Value(isa.vector(compute), "zeroinitializer")] * (step - len(parts))
    return pick(b, parts, [step * lane for lane in order or range(lanes)])
