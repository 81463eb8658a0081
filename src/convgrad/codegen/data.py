"""Lowering of a DataPlan: pack the weights once, then one task per block of outputs."""

from __future__ import annotations

from itertools import count
from math import prod

from convgrad.codegen.copying import Copy, Dim
from convgrad.codegen.data_ahead import DataAhead, Turn
from convgrad.codegen.ir import Builder, Index, Module, Value
from convgrad.codegen.isa import ISAS
from convgrad.codegen.isa.base import ARITHMETIC, BYTES, STORAGE
from convgrad.codegen.module import KernelModule, Stage
from convgrad.codegen.packing import pack_weights_panel
from convgrad.codegen.stages import Condition, Places, emit_stage
from convgrad.codegen.sweep import Sweep
from convgrad.codegen.zeroing import Range, emit_zero, emit_zero_outside
from convgrad.plan.data import DataPlan


def lower_data(plan: DataPlan) -> KernelModule:
    """Two stages: weights, then outputs."""
    module = Module()
    stages, shared, scratch = emit_data(module, DataStages(plan))
    return KernelModule(ir=str(module), stages=stages, shared_bytes=shared, scratch_bytes=scratch)


def emit_data(
    module: Module, main: DataStages, prefix: str = "", start: int = 0, only_if: Condition | None = None
) -> tuple[tuple[Stage, ...], int, int]:
    """The stages of a plan whose shared memory begins at `start`; all bytes of shared memory, and of scratch."""
    plan = main.plan
    plan.validate()
    scratch = max(main.pack_bytes, main.main_bytes)
    panels = plan.group_blocks * plan.lane_blocks * plan.i_blocks
    stages = (
        emit_stage(module, f"{prefix}pack", panels, scratch, main.pack, start=start, only_if=only_if),
        emit_stage(module, f"{prefix}main", main.tasks, scratch, main.task, start=start, only_if=only_if),
    )
    return stages, start + main.shared_bytes, scratch


def round64(count: int) -> int:
    """Bytes up to whole cache lines."""
    return -(-count // 64) * 64


def _channel_strides(plan: DataPlan) -> tuple[int, int, int, int, int]:
    """Steps of w per group, output and input channel; of the output and the input tensor per channel."""
    p = plan.problem
    group, k, c = p.w_strides[:3]
    if plan.solves_y:
        return group, k, c, p.y_strides[2], p.x_strides[2]
    return group, c, k, p.x_strides[2], p.y_strides[2]


def _lane_dims(plan: DataPlan, block: Index, b: Builder, group_step: int, channel_step: int) -> list:
    """The lanes of a block that hold a channel, as (extent, packed step, step in a tensor)."""
    if plan.spread:
        rest = b.sub(plan.problem.groups, b.mul(block, plan.lane_groups))
        whole = plan.writes_in_place or plan.problem.groups % plan.lane_groups == 0
        groups = plan.lane_groups if whole else b.minimum(rest, plan.lane_groups)
        return [(groups, plan.out_channels, group_step), (plan.out_channels, 1, channel_step)]
    rest = b.sub(plan.out_channels, b.mul(block, plan.width))
    return [(plan.width if plan.writes_in_place else b.minimum(rest, plan.width), 1, channel_step)]


def _first_group(plan: DataPlan, b: Builder, group: Index, block: Index) -> Index:
    """Of a block of lanes. Written in place, the last block begins early and repeats some groups."""
    if not plan.spread:
        return group
    first = b.mul(block, plan.lane_groups)
    return b.minimum(first, plan.problem.groups - plan.lane_groups) if plan.writes_in_place else first


def _lane_origin(plan: DataPlan, b: Builder, group: Index, block: Index, group_step: int, channel_step: int) -> Index:
    """Where the first lane of a block lies in a tensor."""
    first = b.mul(block, 0 if plan.spread else plan.width)
    if plan.writes_in_place and not plan.spread:
        first = b.minimum(first, plan.out_channels - plan.width)
    return b.dot([(_first_group(plan, b, group, block), group_step), (first, channel_step)])


def _whole_lanes(plan: DataPlan) -> bool:
    """Whether every lane of every block holds a channel."""
    if plan.writes_in_place:
        return True
    if plan.spread:
        return plan.lane_groups * plan.out_channels == plan.width and plan.problem.groups % plan.lane_groups == 0
    return plan.out_channels % plan.width == 0


def _channels(plan: DataPlan, b: Builder, i_block: Index) -> Index:
    """So many input channels are in a block of them."""
    if plan.in_channels == plan.i_blocks * plan.i_block:
        return plan.i_block
    return b.minimum(b.sub(plan.in_channels, b.mul(i_block, plan.i_block)), plan.i_block)


def _pack_bias(plan: DataPlan, b: Builder, at: Places, group: Index, block: Index) -> None:
    isa, p = ISAS[plan.isa], plan.problem
    target = bias_at(plan, b, at, group, block)
    steps = (plan.out_channels * p.bias_stride, p.bias_stride)
    emit_zero(b, isa, plan.compute, target, plan.width)
    copy = Copy(isa=isa, compute=plan.compute, src_dtype=p.dtype, dst_dtype=plan.compute)
    source = b.at(at.bias, _lane_origin(plan, b, group, block, *steps), STORAGE[p.dtype])
    copy.emit(b, source, target, [Dim(n, src, dst) for n, dst, src in _lane_dims(plan, block, b, *steps)])


def bias_at(plan: DataPlan, b: Builder, at: Places, group: Index, block: Index) -> Value:
    """The packed bias of a block of lanes."""
    which = b.add(b.mul(group, plan.lane_blocks), block)
    packed = b.at(at.shared, round64(plan.packed_bytes * plan.weights_size), "i8")
    return b.at(packed, b.mul(which, plan.width), ARITHMETIC[plan.compute])


class DataStages:
    """Both stages of a plan."""

    sweep = Sweep

    def __init__(self, plan: DataPlan):
        self.plan, self.isa, self.kind = plan, ISAS[plan.isa], ARITHMETIC[plan.compute]
        self.tasks = prod(plan.grid)
        p = plan.problem
        self.input, self.output = ("x", "y") if plan.solves_y else ("y", "x")
        self.in_strides, self.out_strides = p.strides[self.input], p.strides[self.output]
        self.ahead: DataAhead | None = None  # of the task that is being written

    @property
    def slab_bytes(self) -> int:
        """Of the packed input of a task."""
        return 0 if self.plan.reads_in_place else round64(self.plan.packed_bytes * self.plan.slab_size)

    @property
    def main_bytes(self) -> int:
        """Scratch of a task of the second stage."""
        plan = self.plan
        return self.slab_bytes + (0 if plan.writes_in_place else round64(BYTES[plan.compute] * plan.result_size))

    @property
    def pack_bytes(self) -> int:
        """Scratch of a task of the first stage."""
        return round64(self.plan.packed_bytes * self.plan.panel)

    @property
    def shared_bytes(self) -> int:
        """Packed weights and bias."""
        plan = self.plan
        return round64(plan.packed_bytes * plan.weights_size) + round64(BYTES[plan.compute] * plan.bias_size)

    def pack(self, b: Builder, at: Places, task: Value) -> None:
        """One panel of weights, and with the first panel of a lane block its bias."""
        plan, p = self.plan, self.plan.problem
        group, block, i_block = b.split(task, (plan.group_blocks, plan.lane_blocks, plan.i_blocks))
        group_step, out_step, in_step, _, _ = _channel_strides(plan)
        origin = _lane_origin(plan, b, group, block, group_step, out_step)
        source = b.at(at.w, b.add(origin, b.mul(i_block, plan.i_block * in_step)), STORAGE[p.dtype])
        channels = b.minimum(b.sub(plan.in_channels, b.mul(i_block, plan.i_block)), plan.i_block)
        target = b.at(at.shared, b.mul(task, plan.panel), self.packed_kind)
        lanes = _lane_dims(plan, block, b, group_step, out_step)
        if plan.runs == 1:
            self.pack_panel(b, at, task, source, target, lanes=lanes, channels=(channels, plan.i_block, in_step))
        else:
            unit, panel = plan.channel_unit, plan.panel // plan.runs

            def run(n: Index, _: object) -> None:
                origin = b.at(source, b.mul(n, unit * in_step), STORAGE[p.dtype])
                there = b.at(target, b.mul(n, panel), self.packed_kind)
                self.pack_panel(b, at, task, origin, there, lanes=lanes, channels=(unit, unit, in_step))

            b.loop(0, b.floor_div(channels, unit), run, name="run")
        if p.bias:
            with b.when(b.compare("eq", i_block, 0)):
                _pack_bias(plan, b, at, group, block)

    @property
    def packed_kind(self) -> str:
        """LLVM's type of a packed number."""
        return self.kind

    def pack_panel(
        self, b: Builder, at: Places, task: Value, source: Value, target: Value, *,
        lanes: list[tuple[Index, int, int]], channels: tuple[Index, int, int],
    ) -> None:  # fmt: skip
        """The weights at `source` in the order of the microkernel."""
        plan, p = self.plan, self.plan.problem
        copy = Copy(isa=self.isa, compute=plan.compute, src_dtype=p.dtype, dst_dtype=plan.compute)
        pack_weights_panel(
            b, copy, source, target, at.scratch, lanes=lanes, channels=channels,
            taps=list(zip(p.taps, p.w_strides[3:], strict=True)), width=plan.width, whole=_whole_lanes(plan),
        )  # fmt: skip

    def task(self, b: Builder, at: Places, task: Value) -> None:
        """All of a task of the second stage."""
        plan = self.plan
        self.ahead = DataAhead(b, plan) if plan.fetches_slab or plan.fetches_weights else None
        *blocks, self.group, share = b.split(task, plan.grid)
        self.starts = [b.mul(block, size) for block, size in zip(blocks, plan.block, strict=True)]
        slab = at.scratch
        results = b.at(at.scratch, self.slab_bytes, "i8")
        self.first = first = b.mul(share, plan.blocks_per_task)
        self.last = last = b.minimum(b.add(first, plan.blocks_per_task), plan.lane_blocks)
        self.slab_group = _first_group(plan, b, self.group, first)
        if plan.writes_in_place:
            if not plan.reads_in_place:
                self._pack_slab(b, at, slab, 0)
            if self.ahead is not None:
                self.ahead.begin(b, at, task, 0)
            b.loop(first, last, lambda block, _: self._in_place(b, at, block), name="lanes")
            return
        if plan.i_blocks == 1:
            self._pack_slab(b, at, slab, 0)
            if self.ahead is not None:
                self.ahead.begin(b, at, task, 0)

            def lane_block(block: Index, _: object) -> None:
                self._sweep(b, at, slab, results, block, 0, fresh=True)
                self._unpack(b, at, results, block)

            b.loop(first, last, lane_block, name="lanes")
            return

        def add_channels(i: Index, _: object) -> None:
            fresh = b.compare("eq", i, 0)
            self._pack_slab(b, at, slab, i)
            if self.ahead is not None:
                self.ahead.begin(b, at, task, i)
            b.loop(
                first, last,
                lambda block, _: self._sweep(b, at, slab, self._of_block(b, results, first, block), block, i, fresh),
                name="lanes",
            )  # fmt: skip

        b.loop(0, plan.i_blocks, add_channels, name="i")
        b.loop(
            first, last,
            lambda block, _: self._unpack(b, at, self._of_block(b, results, first, block), block), name="lanes",
        )  # fmt: skip

    def _in_place(self, b: Builder, at: Places, block: Index) -> None:
        """One block of lanes, straight to the output."""
        plan = self.plan
        solved = _lane_origin(plan, b, self.group, block, *self.out_strides[1:3])
        p = plan.problem
        source, target = at.scratch, b.at(at.of(self.output), solved, STORAGE[p.out_dtype])
        if plan.reads_in_place:
            given = b.mul(_first_group(plan, b, self.group, block), self.in_strides[1])
            source = b.at(at.of(self.input), given, STORAGE[p.dtype])
        self._sweep(b, at, source, target, block, 0, fresh=True)

    def _of_block(self, b: Builder, results: Value, first: Index, block: Index) -> Value:
        return b.at(results, b.mul(b.sub(block, first), self.plan.result_block), self.kind)

    def _pack_slab(self, b: Builder, at: Places, slab: Value, i_block: Index) -> None:
        """The part of the input that the block reads, zeros where a register tile reaches beyond it."""
        plan, p = self.plan, self.plan.problem
        strides, _ = plan.slab_strides
        group_step, channel_stride = self.in_strides[1], self.in_strides[2]
        dims, source, target = [], 0, 0
        ranges: list[Range] = []
        for n, axis, start, first, extent, stride, slab_stride in zip(
            count(), plan.axes, self.starts, plan.slab_start, plan.slab_extent,
            (self.in_strides[0], *self.in_strides[3:]), strides, strict=False,
        ):  # fmt: skip
            origin = b.add(b.mul(start, axis.in_step), first)
            low = b.minimum(b.maximum(b.sub(0, origin), 0), extent) if first < 0 else 0
            high = b.maximum(b.minimum(b.sub(axis.in_extent, origin), extent), low)
            dims.append(Dim(b.sub(high, low), stride, slab_stride))
            source = b.add(source, b.mul(b.add(origin, low), stride))
            planes = plan.planes if axis is plan.axes[-1] else 1
            target = b.add(target, b.mul(b.floor_div(low, planes), slab_stride))
            ranges.append(Range(low, high, extent if plan.padded(n) else None, slab_stride))
        source = b.add(source, b.mul(i_block, plan.i_block * channel_stride))
        source = b.add(source, b.mul(self.slab_group, group_step))
        channels = _channels(plan, b, i_block)
        self.clear_slab(b, slab, ranges, channels)
        copy = Copy(isa=self.isa, compute=plan.compute, src_dtype=p.dtype, dst_dtype=plan.compute)
        tensor, packed = b.at(at.of(self.input), source, STORAGE[p.dtype]), b.at(slab, target, self.packed_kind)
        self.copy_slab(b, copy, tensor, packed, dims, channels)

    def clear_slab(self, b: Builder, slab: Value, ranges: list[Range], channels: Index) -> None:
        """Zeros around the numbers of the input."""
        plan = self.plan
        if plan.planes > 1 and any(plan.padded(n) for n in range(len(plan.axes))):
            emit_zero(b, self.isa, plan.compute, slab, plan.slab_size)
        elif plan.pixel_major:
            emit_zero_outside(b, self.isa, plan.compute, slab, ranges)
        else:
            all_channels = Range(0, channels, None, plan.slab_strides[1])
            emit_zero_outside(b, self.isa, plan.compute, slab, [all_channels, *ranges])

    def copy_slab(self, b: Builder, copy: Copy, tensor: Value, packed: Value, dims: list[Dim], channels: Index) -> None:
        """Numbers of the input, `dims` being their places, of all lanes or of so many input channels."""
        plan, group_step, channel_stride = self.plan, *self.in_strides[1:3]
        dims = [*dims, Dim(channels, channel_stride, plan.slab_strides[1])]
        if plan.spread:
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

    def _sweep(
        self, b: Builder, at: Places, slab: Value, results: Value, block: Index, i_block: Index,
        fresh: bool | Value,
    ) -> None:  # fmt: skip
        """Every register tile of every phase, for one block of lanes and one block of input channels."""
        plan = self.plan
        which = b.add(b.mul(b.add(b.mul(self.group, plan.lane_blocks), block), plan.i_blocks), i_block)
        weights = b.at(at.shared, b.mul(which, plan.panel), self.packed_kind)
        bias = bias_at(plan, b, at, self.group, block) if plan.problem.bias else None
        if plan.spread and not plan.reads_in_place:
            before = b.sub(_first_group(plan, b, self.group, block), self.slab_group)
            slab = b.at(slab, b.mul(before, plan.in_channels), self.packed_kind)
        channels = _channels(plan, b, i_block)
        walks = None
        if self.ahead is not None:
            walks = self.ahead.walks(b, at, Turn(self.group, self.first, self.last, block, i_block))
        self.sweep(plan, b, slab, weights, results, bias, channels, self.starts, fresh=fresh, walks=walks).run()

    def _unpack(self, b: Builder, at: Places, results: Value, block: Index) -> None:
        plan, p = self.plan, self.plan.problem
        dims, target = [], 0
        axis_steps, channel_step = plan.result_strides
        for axis, start, extent, stride, (phase_step, j_step) in zip(
            plan.axes, self.starts, plan.result_extent, (self.out_strides[0], *self.out_strides[3:]), axis_steps,
            strict=True,
        ):  # fmt: skip
            origin = b.mul(start, axis.out_step)
            step = j_step if axis.out_step == 1 else phase_step
            dims.append(Dim(b.minimum(b.sub(axis.out_extent, origin), extent), step, stride))
            target = b.add(target, b.mul(origin, stride))
        steps = self.out_strides[1], self.out_strides[2]
        target = b.add(target, _lane_origin(plan, b, self.group, block, *steps))
        dims += [Dim(n, src * channel_step, dst) for n, src, dst in _lane_dims(plan, block, b, *steps)]
        copy = Copy(
            isa=self.isa, compute=plan.compute, src_dtype=plan.compute, dst_dtype=p.out_dtype, accumulate=p.accumulate
        )
        output = b.at(at.of(self.output), target, STORAGE[p.out_dtype])
        if plan.pixels and plan.axes[-1].out_step > 1:
            inner = dims.pop(len(plan.axes) - 1)
            copy.emit_phases(b, results, output, dims, inner, plan.axes[-1].out_step, plan.block[-1])
        else:
            copy.emit(b, results, output, dims)
