"""Copies a block of one plane into its slab."""

from __future__ import annotations

from collections.abc import Sequence

from convgrad.codegen.copies.copying import Copy, Dim
from convgrad.codegen.ir import Builder
from convgrad.codegen.ir_module import Index, Value
from convgrad.plan.depthwise.plane_slab import PlaneSlab
from convgrad.values import frozen


@frozen
class PlaneBox:
    """What a slab holds of a tensor for the block that begins at `starts`: axes, and where both begin.

    `edges` are the extents that may be less than a slab has room for.
    """

    slab: PlaneSlab
    dims: tuple[Dim, ...]
    source: Index
    target: Index
    edges: tuple[tuple[Index, int], ...]

    def copy(self, b: Builder, copy: Copy, tensor: Value, packed: Value) -> None:
        """From `source` in a plane to `target` in the slab."""
        *outer, inner = self.dims
        if self.slab.steps[-1] == 1:
            copy.emit(b, tensor, packed, self.dims)
        else:
            copy.emit_planes(b, tensor, packed, outer, inner, self.slab.steps[-1], self.slab.pitch)


def plane_box(b: Builder, slab: PlaneSlab, starts: Sequence[Index], strides: Sequence[int]) -> PlaneBox:
    """Of a block of a tensor with such strides."""
    dims, edges = [], []
    source: Index = 0
    target: Index = 0
    outer = zip(slab.steps, slab.firsts, slab.images, starts, strides, slab.extent, slab.strides, strict=False)
    for step, offset, image, start, stride, extent, slab_stride in outer:
        origin = b.add(b.mul(start, step), offset)
        low = b.minimum(b.maximum(b.sub(0, origin), 0), extent)
        high = b.maximum(b.minimum(b.sub(image, origin), extent), low)
        dims.append(Dim(b.sub(high, low), stride, slab_stride))
        edges.append((b.sub(high, low), extent))
        source = b.add(source, b.mul(b.add(origin, low), stride))
        target = b.add(target, b.mul(low, slab_stride))
    step, image = slab.steps[-1], slab.images[-1]
    begin = b.sub(starts[-1], slab.margin)
    first = b.maximum(begin, 0)
    last = b.minimum(b.mul(b.add(begin, slab.columns), step), image)
    count = b.maximum(b.sub(last, b.mul(first, step)), 0)
    dims.append(Dim(count, strides[-1], 1))
    edges.append((count, slab.columns * step))
    source = b.add(source, b.mul(first, step * strides[-1]))
    return PlaneBox(slab, tuple(dims), source, b.add(target, b.sub(first, begin)), tuple(edges))
