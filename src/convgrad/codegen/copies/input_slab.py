"""What a task of the data operations packs of the input: a slab, zeros around it where tiles reach beyond."""

from __future__ import annotations

from itertools import count

from convgrad.codegen.copies.copying import Copy, Dim
from convgrad.codegen.copies.zeroing import Range, emit_zero_outside
from convgrad.codegen.ir import Builder
from convgrad.codegen.ir_module import Index, Value
from convgrad.codegen.isa.base import STORAGE, Isa
from convgrad.codegen.stages import Places
from convgrad.plan.general.data import DataPlan


def channels_of(plan: DataPlan, b: Builder, i_block: Index) -> Index:
    """So many input channels are in a block of them."""
    if plan.in_channels == plan.i_blocks * plan.i_block:
        return plan.i_block
    return b.minimum(b.sub(plan.in_channels, b.mul(i_block, plan.i_block)), plan.i_block)


class InputSlab:
    """Packing of the input, for the stages of a plan; those say which block and group a task has."""

    plan: DataPlan
    isa: Isa
    kind: str
    input: str
    in_strides: tuple[int, ...]
    starts: list[Index]
    slab_group: Index

    @property
    def packed_kind(self) -> str:
        """LLVM's type of a packed number."""
        return self.kind

    def _pack_slab(self, b: Builder, at: Places, slab: Value, i_block: Index) -> None:
        """The part of the input that the block reads, zeros where a register tile reaches beyond it."""
        plan = self.plan

        def band(*taps: Index) -> None:
            if len(taps) == len(plan.axes):
                self._pack_band(b, at, slab, i_block, taps)
            elif plan.banded(len(taps)):
                b.loop(0, plan.axes[len(taps)].taps, lambda tap, _: band(*taps, tap), name="band")
            else:
                band(*taps, 0)

        self.begin_slab(b, slab, channels_of(plan, b, i_block))
        band()

    def _pack_band(self, b: Builder, at: Places, slab: Value, i_block: Index, taps: tuple[Index, ...]) -> None:
        """What one tap reads on axes that have a band for each, and all taps on others."""
        plan, p = self.plan, self.plan.problem
        strides, _ = plan.slab_strides
        group_step, channel_stride = self.in_strides[1], self.in_strides[2]
        dims, source, band, target = [], 0, 0, 0
        ranges: list[Range] = []
        for n, axis, start, first, extent, stride, slab_stride in zip(
            count(), plan.axes, self.starts, plan.slab_start, plan.slab_extent,
            (self.in_strides[0], *self.in_strides[3:]), strides, strict=False,
        ):  # fmt: skip
            origin = b.add(b.mul(start, axis.in_step), first)
            if plan.banded(n):
                origin, extent = b.add(origin, b.mul(taps[n], axis.offset_step)), plan.band(n)
                band = b.add(band, b.mul(taps[n], extent * slab_stride))
            clipped = first < 0 or plan.banded(n)
            low = b.minimum(b.maximum(b.sub(0, origin), 0), extent) if clipped else 0
            high = b.maximum(b.minimum(b.sub(axis.in_extent, origin), extent), low)
            dims.append(Dim(b.sub(high, low), stride, slab_stride))
            source = b.add(source, b.mul(b.add(origin, low), stride))
            planes = plan.planes if axis is plan.axes[-1] else 1
            target = b.add(target, b.mul(b.floor_div(low, planes), slab_stride))
            ranges.append(Range(low, high, extent if plan.padded(n) else None, slab_stride))
        source = b.add(source, b.mul(i_block, plan.i_block * channel_stride))
        source = b.add(source, b.mul(self.slab_group, group_step))
        channels = channels_of(plan, b, i_block)
        packed = b.at(slab, band, self.packed_kind)
        self.clear_slab(b, packed, ranges, channels)
        copy = Copy(isa=self.isa, compute=plan.compute, src_dtype=p.dtype, dst_dtype=plan.compute)
        tensor, packed = b.at(at.of(self.input), source, STORAGE[p.dtype]), b.at(packed, target, self.packed_kind)
        self.copy_slab(b, copy, tensor, packed, dims, channels)

    def begin_slab(self, b: Builder, slab: Value, channels: Index) -> None:
        """What is done to the whole slab before any band of it is packed."""

    def clear_slab(self, b: Builder, slab: Value, ranges: list[Range], channels: Index) -> None:
        """Zeros around the numbers of the input, in one band."""
        plan = self.plan
        if plan.pixel_major:
            emit_zero_outside(b, self.isa, plan.compute, slab, ranges)
        else:
            if plan.planes > 1:  # the last numbers of some planes are overwritten
                *ranges, inner = ranges
                low, high = (b.floor_div(end, plan.planes) for end in (inner.low, inner.high))
                extent = None if inner.extent is None else -(-plan.slab_extent[-1] // plan.planes)
                ranges += [Range(0, plan.planes, None, plan.plane_pitch), Range(low, high, extent, 1)]
            all_channels = Range(0, channels, None, plan.slab_strides[1])
            emit_zero_outside(b, self.isa, plan.compute, slab, [all_channels, *ranges])

    def copy_slab(self, b: Builder, copy: Copy, tensor: Value, packed: Value, dims: list[Dim], channels: Index) -> None:
        """Numbers of the input, `dims` being their places, of all lanes or of so many input channels."""
        plan, group_step, channel_stride = self.plan, *self.in_strides[1:3]
        dims = [*dims, Dim(channels, channel_stride, plan.slab_strides[1])]
        if plan.slab_groups > 1:
            groups: Index = plan.slab_groups
            if plan.problem.groups % groups:
                groups = b.minimum(b.sub(plan.problem.groups, self.slab_group), groups)
            if group_step == plan.in_channels * channel_stride:
                dims[-1] = Dim(b.mul(groups, plan.in_channels), channel_stride, 1)
            else:
                dims.append(Dim(groups, group_step, plan.in_channels))
        if plan.planes == 1:
            copy.emit(b, tensor, packed, dims)
        else:
            inner = dims.pop(len(plan.axes) - 1)
            copy.emit_planes(b, tensor, packed, dims, inner, plan.planes, plan.plane_pitch)
