"""Lowering of a RowWeightsPlan: an InPlaceWeightsPlan whose steps are whole rows of windows."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from convgrad.codegen.ahead import Walk
from convgrad.codegen.in_place_weights import InPlaceSums, Windows
from convgrad.codegen.interleave import pick
from convgrad.codegen.ir import Builder
from convgrad.codegen.ir_module import Index, Module, Value
from convgrad.codegen.isa.base import STORAGE, Isa
from convgrad.codegen.microkernels.contract import Reduction, Tile
from convgrad.codegen.module import KernelModule
from convgrad.codegen.weights import emit_weights
from convgrad.dtypes import COMPUTE
from convgrad.plan.row_weights import RowWeightsPlan


def lower_row_weights(plan: RowWeightsPlan) -> KernelModule:
    """Sums of vectors, whose lanes are added on the way to the weights."""
    module = Module()
    stages, shared, scratch = emit_weights(module, RowSums(plan))
    return KernelModule(ir=str(module), stages=stages, shared_bytes=shared, scratch_bytes=scratch)


class RowSums(InPlaceSums):
    """The first stage."""

    plan: RowWeightsPlan

    def _tile_of_taps(self, first: int) -> Tile:
        """That reads some of what lies between the first element that windows meet and the last."""
        plan, axis = self.plan, self.plan.axes[-1]
        tile = InPlaceSums._tile_of_taps(self, first)
        channel, inner = plan.row_slab[1], len(plan.axes) - 1
        places = {}  # offset from where a row begins: the first element, and windows that are left
        for i in range(0, plan.pitch, plan.lanes):
            for t in range(plan.tile_taps):
                element = plan.shift(inner, first + t) + axis.stride * i
                for c in range(plan.row_channels):
                    places[element + c * channel] = element, plan.pitch - i
        assert len(places) == plan.vectors_of_row * plan.tile_taps * plan.row_channels
        ends = {v * plan.lane_channel + i: plan.pitch - i for v in range(plan.vectors)
                for i in range(0, plan.pitch, plan.lanes)}  # fmt: skip

        def of_x(b: Builder, address: Value, offset: int) -> Value:
            element, windows = places[offset]
            return read_every(b, self.isa, self.slab_dtype, address, axis.stride, element, axis.image, windows)

        def of_y(b: Builder, address: Value, offset: int) -> Value:
            return read_every(b, self.isa, self.slab_dtype, address, 1, 0, ends[offset], plan.lanes)

        return replace(tile, a_read=of_x, b_read=of_y)

    def _rows_met(self, b: Builder, start: Index, r: Index) -> tuple[Index, Index, Index]:
        """Rows of a block that meet the image at tap r, and where both sides have the first of them."""
        plan, axis, n = self.plan, self.plan.flat[0], len(self.plan.outer)
        count = b.minimum(b.sub(axis.windows, start), plan.block[n])
        low, high = self._bounds(b, axis, start, count, r)
        first = b.add(start, low)
        of_x = b.add(b.mul(first, axis.stride), b.sub(b.mul(r, axis.dilation), axis.low))
        places = b.mul(of_x, plan.row_slab[0][n]), b.mul(first, plan.lane_slab[n])
        return b.maximum(b.sub(high, low), 0), *places

    def _sum(
        self, b: Builder, tile: Tile, a: Value, x: Value, start: Sequence[Value], windows: Windows,
        walks: Sequence[Walk],
    ) -> list[Value]:  # fmt: skip
        """Row by row."""
        plan, n = self.plan, len(self.plan.outer)
        steps = plan.flat[0].stride * plan.row_slab[0][n], plan.lane_slab[n]
        stride = plan.axes[-1].stride
        written = [(stride * i, i) for i in range(0, plan.pitch, plan.lanes)]
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
