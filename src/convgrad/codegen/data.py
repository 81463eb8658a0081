"""Lowering of a DataPlan: pack the weights once, then one task per block of outputs."""

from __future__ import annotations

from functools import reduce

from convgrad.codegen.copying import Copy, Dim, emit_zero
from convgrad.codegen.ir import Builder, Index, Module, Value, index
from convgrad.codegen.isa import ISAS
from convgrad.codegen.isa.base import ARITHMETIC, BYTES, STORAGE
from convgrad.codegen.microkernels.contract import Reduction, Tile
from convgrad.codegen.module import KernelModule
from convgrad.codegen.packing import can_spread_by_vectors, pack_weights_panel, spread_groups
from convgrad.codegen.stages import Places, emit_stage
from convgrad.plan.axes import GatherAxis, Phase
from convgrad.plan.data import DataPlan


def lower_data(plan: DataPlan) -> KernelModule:
    """Two stages: weights, then outputs."""
    plan.validate()
    module = Module()
    size = BYTES[plan.compute]
    staging = round64(size * plan.panel)
    scratch = max(staging, round64(size * plan.slab_size) + round64(size * plan.result_size))
    main = _Main(plan)
    panels = plan.group_blocks * plan.lane_blocks * plan.i_blocks
    stages = [
        emit_stage(module, "pack", panels, scratch, lambda b, at, task: _pack(plan, b, at, task)),
        emit_stage(module, "main", main.tasks, scratch, main.task),
    ]
    shared = round64(size * plan.weights_size) + round64(size * plan.bias_size)
    return KernelModule(ir=str(module), stages=tuple(stages), shared_bytes=shared, scratch_bytes=scratch)


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


def _lane_dims(plan: DataPlan, bundle: Index, block: Index, b: Builder, group_step: int, channel_step: int) -> list:
    """The lanes of a block that hold a channel, as (extent, packed step, step in a tensor)."""
    if plan.spread:
        groups = b.minimum(b.sub(plan.problem.groups, b.mul(bundle, plan.lane_groups)), plan.lane_groups)
        return [(groups, plan.out_channels, group_step), (plan.out_channels, 1, channel_step)]
    channels = b.minimum(b.sub(plan.out_channels, b.mul(block, plan.width)), plan.width)
    return [(channels, 1, channel_step)]


def _lane_origin(plan: DataPlan, b: Builder, bundle: Index, block: Index, group_step: int, channel_step: int) -> Index:
    """Where the first lane of a block lies in a tensor."""
    return b.dot([(bundle, plan.lane_groups * group_step), (block, plan.width * channel_step)])


def _pack(plan: DataPlan, b: Builder, at: Places, task: Value) -> None:
    """One panel of weights, and with the first panel of a lane block its bias."""
    isa, p = ISAS[plan.isa], plan.problem
    bundle, block, i_block = b.split(task, (plan.group_blocks, plan.lane_blocks, plan.i_blocks))
    group_step, out_step, in_step, _, _ = _channel_strides(plan)
    target = b.at(at.shared, b.mul(task, plan.panel), ARITHMETIC[plan.compute])
    origin = b.add(
        _lane_origin(plan, b, bundle, block, group_step, out_step), b.mul(i_block, plan.i_block * in_step)
    )
    source = b.at(at.w, origin, STORAGE[p.dtype])
    channels = b.minimum(b.sub(plan.in_channels, b.mul(i_block, plan.i_block)), plan.i_block)
    pack_weights_panel(
        b, Copy(isa=isa, compute=plan.compute, src_dtype=p.dtype, dst_dtype=plan.compute),
        source, target, at.scratch,
        lanes=_lane_dims(plan, bundle, block, b, group_step, out_step),
        channels=(channels, plan.i_block, in_step),
        taps=list(zip(p.taps, p.w_strides[3:], strict=True)),
        width=plan.width,
        whole=_whole_lanes(plan),
    )  # fmt: skip
    if p.bias:
        with b.when(b.compare("eq", i_block, 0)):
            _pack_bias(plan, b, at, bundle, block)


def _whole_lanes(plan: DataPlan) -> bool:
    """Whether every lane of every block holds a channel."""
    if plan.spread:
        return plan.lane_groups * plan.out_channels == plan.width and plan.problem.groups % plan.lane_groups == 0
    return plan.out_channels % plan.width == 0


def _pack_bias(plan: DataPlan, b: Builder, at: Places, bundle: Index, block: Index) -> None:
    isa, p = ISAS[plan.isa], plan.problem
    target = _bias_at(plan, b, at, bundle, block)
    steps = (plan.out_channels * p.bias_stride, p.bias_stride)
    emit_zero(b, isa, plan.compute, target, plan.width)
    copy = Copy(isa=isa, compute=plan.compute, src_dtype=p.dtype, dst_dtype=plan.compute)
    source = b.at(at.bias, _lane_origin(plan, b, bundle, block, *steps), STORAGE[p.dtype])
    copy.emit(b, source, target, [Dim(n, src, dst) for n, dst, src in _lane_dims(plan, bundle, block, b, *steps)])


def _bias_at(plan: DataPlan, b: Builder, at: Places, bundle: Index, block: Index) -> Value:
    start = round64(BYTES[plan.compute] * plan.weights_size) // BYTES[plan.compute]
    which = b.add(b.mul(bundle, plan.lane_blocks), block)
    return b.at(at.shared, b.add(start, b.mul(which, plan.width)), ARITHMETIC[plan.compute])


class _Main:
    """The second stage."""

    def __init__(self, plan: DataPlan):
        self.plan, self.isa, self.kind = plan, ISAS[plan.isa], ARITHMETIC[plan.compute]
        self.tasks = 1
        for extent in plan.grid:
            self.tasks *= extent
        p = plan.problem
        self.input, self.output = ("x", "y") if plan.solves_y else ("y", "x")
        self.in_strides, self.out_strides = p.strides[self.input], p.strides[self.output]

    def task(self, b: Builder, at: Places, task: Value) -> None:
        """All of a task."""
        plan = self.plan
        bundle, *blocks, share = b.split(task, plan.grid)
        self.bundle = bundle
        self.starts = [b.mul(block, size) for block, size in zip(blocks, plan.block, strict=True)]
        slab = at.scratch
        results = b.at(at.scratch, round64(BYTES[plan.compute] * plan.slab_size), "i8")
        first = b.mul(share, plan.blocks_per_task)
        last = b.minimum(b.add(first, plan.blocks_per_task), plan.lane_blocks)
        if plan.i_blocks == 1:
            self._pack_slab(b, at, slab, 0)

            def lane_block(block: Index, _: object) -> None:
                self._sweep(b, at, slab, results, block, 0, fresh=True)
                self._unpack(b, at, results, block)

            b.loop(first, last, lane_block, name="lanes")
            return

        def add_channels(i: Index, *, fresh: bool) -> None:
            self._pack_slab(b, at, slab, i)
            b.loop(
                first, last,
                lambda block, _: self._sweep(b, at, slab, self._of_block(b, results, first, block), block, i, fresh),
                name="lanes",
            )  # fmt: skip

        add_channels(0, fresh=True)
        b.loop(1, plan.i_blocks, lambda i, _: add_channels(i, fresh=False), name="i")
        b.loop(
            first, last,
            lambda block, _: self._unpack(b, at, self._of_block(b, results, first, block), block), name="lanes",
        )  # fmt: skip

    def _of_block(self, b: Builder, results: Value, first: Index, block: Index) -> Value:
        return b.at(results, b.mul(b.sub(block, first), self.plan.result_block), self.kind)

    def _pack_slab(self, b: Builder, at: Places, slab: Value, i_block: Index) -> None:
        """The part of the input that the block reads, zeros where a register tile reaches beyond it."""
        plan, p = self.plan, self.plan.problem
        strides, channel_step = plan.slab_strides
        group_step, channel_stride = self.in_strides[1], self.in_strides[2]
        dims, source, target = [], 0, 0
        partial: list[Value] = []
        for axis, start, first, extent, stride, slab_stride, tile in zip(
            plan.axes, self.starts, plan.slab_start, plan.slab_extent, (self.in_strides[0], *self.in_strides[3:]),
            strides, plan.tile, strict=True,
        ):  # fmt: skip
            origin = b.add(b.mul(start, axis.in_step), first)
            low = b.maximum(b.sub(0, origin), 0) if first < 0 else 0
            high = b.minimum(b.sub(axis.in_extent, origin), extent)
            dims.append(Dim(b.sub(high, low), stride, slab_stride))
            source = b.add(source, b.mul(b.add(origin, low), stride))
            planes = plan.planes if axis is plan.axes[-1] else 1
            target = b.add(target, b.mul(b.floor_div(low, planes), slab_stride))
            if axis.clipped and tile > 1:
                partial.append(index(b.compare("ne", dims[-1].extent, extent)))
        source = b.add(source, b.mul(i_block, plan.i_block * channel_stride))
        source = b.add(source, b.mul(self.bundle, plan.lane_groups * group_step))
        if partial:
            with b.when(reduce(lambda x, y: b.binary("or", x, y), partial)):
                emit_zero(b, self.isa, plan.compute, slab, plan.slab_size)
        copy = Copy(isa=self.isa, compute=plan.compute, src_dtype=p.dtype, dst_dtype=plan.compute)
        tensor, packed = b.at(at.of(self.input), source, STORAGE[p.dtype]), b.at(slab, target, self.kind)
        lanes = _lane_dims(plan, self.bundle, 0, b, group_step, 0) if plan.spread else []
        if plan.spread and can_spread_by_vectors(copy, plan.in_channels, plan.out_channels, channel_stride, group_step):
            spread_groups(
                b, copy, tensor, packed, dims, groups=lanes[0][0], channels=plan.in_channels,
                lanes_per_group=plan.out_channels, width=plan.width,
            )  # fmt: skip
            return
        channels = b.minimum(b.sub(plan.in_channels, b.mul(i_block, plan.i_block)), plan.i_block)
        dims.append(Dim(channels, channel_stride, channel_step))
        dims += [Dim(n, src, dst) for n, dst, src in lanes]
        if plan.planes == 1:
            copy.emit(b, tensor, packed, dims)
        else:
            inner = dims.pop(len(plan.axes) - 1)
            copy.emit_planes(b, tensor, packed, dims, inner, plan.planes, plan.plane_pitch)

    def _sweep(
        self, b: Builder, at: Places, slab: Value, results: Value, block: Index, i_block: Index, fresh: bool
    ) -> None:
        """Every register tile of every phase, for one block of lanes and one block of input channels."""
        plan = self.plan
        which = b.add(b.mul(b.add(b.mul(self.bundle, plan.lane_blocks), block), plan.i_blocks), i_block)
        weights = b.at(at.shared, b.mul(which, plan.panel), self.kind)
        bias = _bias_at(plan, b, at, self.bundle, block) if plan.problem.bias else None
        channels = b.minimum(b.sub(plan.in_channels, b.mul(i_block, plan.i_block)), plan.i_block)
        _Sweep(plan, b, slab, weights, results, bias if fresh else None, channels, self.starts, fresh).axis(0)

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
        target = b.add(target, _lane_origin(plan, b, self.bundle, block, *steps))
        dims += [
            Dim(n, src * channel_step, dst) for n, src, dst in _lane_dims(plan, self.bundle, block, b, *steps)
        ]
        copy = Copy(
            isa=self.isa, compute=plan.compute, src_dtype=plan.compute, dst_dtype=p.out_dtype, accumulate=p.accumulate
        )
        output = b.at(at.of(self.output), target, STORAGE[p.out_dtype])
        if plan.pixels and plan.axes[-1].out_step > 1:
            inner = dims.pop(len(plan.axes) - 1)
            copy.emit_phases(b, results, output, dims, inner, plan.axes[-1].out_step, plan.block[-1])
        else:
            copy.emit(b, results, output, dims)


class _Sweep:
    """The loops over phases and tiles, axis by axis, outermost first."""

    def __init__(
        self, plan: DataPlan, b: Builder, slab: Value, weights: Value, results: Value, bias: Value | None,
        channels: Index, starts: list[Index], fresh: bool,
    ):  # fmt: skip
        self.plan, self.b, self.isa, self.kind = plan, b, ISAS[plan.isa], ARITHMETIC[plan.compute]
        self.slab, self.weights, self.results, self.bias = slab, weights, results, bias
        self.channels, self.starts, self.fresh = channels, starts, fresh
        self.tap_strides = _tap_strides(plan)
        self.tile = self._tile()

    def _tile(self) -> Tile:
        """Outputs of the tile, in row-major order of the axes, against output channels."""
        plan = self.plan
        inputs, results = [0], [0]
        axis_steps, channel_step = plan.result_strides
        for axis, tile, slab, (_, result) in zip(plan.axes, plan.tile, plan.slab_strides[0], axis_steps, strict=True):
            step, each = axis.in_step * slab, range(tile)
            if plan.pixels and axis is plan.axes[-1]:
                step, each = slab, range(0, tile, plan.lanes)
            inputs = [place + m * step for place in inputs for m in each]
            results = [place + m * result for place in results for m in each]
        if plan.pixels:
            rows, c_rows = range(plan.width), range(0, plan.width * channel_step, channel_step)
            columns, c_columns = inputs, results
        else:
            rows, c_rows = inputs, results
            columns = c_columns = range(0, plan.width, plan.lanes)
        return Tile(
            isa=self.isa, compute=plan.compute, rows=tuple(rows), columns=tuple(columns), c_rows=tuple(c_rows),
            c_columns=tuple(c_columns), a_vector=plan.spread,
        )  # fmt: skip

    def axis(
        self, n: int, slab: Index = 0, weights: Index = 0, result: Index = 0, sums: tuple[Reduction, ...] = ()
    ) -> None:
        """Loop over the phases and tiles of axis n and all inner axes."""
        if n == len(self.plan.axes):
            self._tile_at(slab, weights, result, sums)
            return
        b, plan, axis = self.b, self.plan, self.plan.axes[n]
        table = b.module.table([v for f in axis.phases for v in (f.first, f.count, f.taps, f.offset, f.tap)])

        def phase(number: Index, _: object) -> None:
            known = axis.phases[number] if isinstance(number, int) else None
            first, count, taps, offset, tap = (
                (known.first, known.count, known.taps, known.offset, known.tap)
                if isinstance(known, Phase)
                else (b.lookup(table, b.add(b.mul(number, 5), field)) for field in range(5))
            )
            if axis.even:
                taps = axis.taps
            stop = b.minimum(b.sub(count, self.starts[n]), plan.block[n])

            def tiles(j: Index, _: object) -> None:
                bounds = self._bounds(axis, n, b.add(self.starts[n], j), taps, offset)
                step, tap_step = plan.slab_strides[0][n], self.tap_strides[n]
                phase_step, j_step = plan.result_strides[0][n]
                offset_step: int | Value = axis.offset_step * step
                here = b.mul(b.sub(b.add(b.mul(j, axis.in_step), offset), plan.slab_start[n]), step)
                if plan.planes > 1 and axis is plan.axes[-1]:
                    here, offset_step = j, self._plane_offsets(axis)
                self.axis(
                    n + 1,
                    b.add(slab, here),
                    b.add(weights, b.mul(tap, tap_step)),
                    b.add(result, b.add(b.mul(first, phase_step), b.mul(j, j_step))),
                    sums if bounds == (0, 1) and plan.planes == 1
                    else (*sums, self._reduction(*bounds, offset_step, axis.tap_step * tap_step)),
                )  # fmt: skip

            b.loop(0, stop, tiles, step=plan.tile[n], name="tile")

        b.loop(0, len(axis.phases), phase, name="phase")

    def _reduction(self, start: Index, stop: Index, slab_step: int | Value, weights_step: int) -> Reduction:
        """One axis of the sum; which operand is which depends on what vectors run along."""
        if self.plan.pixels:
            return Reduction(start, stop, weights_step, slab_step)
        assert isinstance(slab_step, int)
        return Reduction(start, stop, slab_step, weights_step)

    def _plane_offsets(self, axis: GatherAxis) -> Value:
        """Where tap t finds its first input, for the one phase of an axis in planes."""
        plan, offset = self.plan, axis.phases[0].offset - self.plan.slab_start[-1]
        places = (offset + t * axis.offset_step for t in range(max(1, axis.taps)))
        return self.b.module.table([at % plan.planes * plan.plane_pitch + at // plan.planes for at in places])

    def _bounds(self, axis: GatherAxis, n: int, j: Index, taps: Index, offset: Index) -> tuple[Index, Index]:
        """Taps t of which some output of the tile meets the input: 0 <= in_step·(j + m) + offset + t·step < extent."""
        b, step = self.b, axis.offset_step
        if not axis.clipped or axis.taps == 0:
            return 0, taps
        low = b.add(b.mul(j, axis.in_step), offset)  # what tap 0 of the tile's first output reads
        high = b.add(low, axis.in_step * (self.plan.tile[n] - 1))
        if step > 0:
            start = b.sub(0, b.floor_div(high, step))  # ceil(-high / step)
            stop = b.add(b.floor_div(b.sub(axis.in_extent - 1, low), step), 1)
        else:
            start = b.sub(0, b.floor_div(b.sub(axis.in_extent - 1, low), -step))
            stop = b.add(b.floor_div(high, -step), 1)
        return b.maximum(start, 0), b.minimum(stop, taps)

    def _tile_at(self, slab: Index, weights: Index, result: Index, sums: tuple[Reduction, ...]) -> None:
        b, plan = self.b, self.plan
        channel = self._reduction(0, self.channels, plan.slab_strides[1], plan.width)
        operands = [b.at(self.slab, slab, self.kind), b.at(self.weights, weights, self.kind)]
        if plan.pixels:
            operands.reverse()
        self.tile.emit(
            b,
            *operands,
            b.at(self.results, result, self.kind),
            [*sums, channel],
            self._start() if self.fresh else None,
        )

    def _start(self) -> list[Value]:
        if self.bias is None:
            return self.tile.zeros()
        b, plan = self.b, self.plan
        if plan.pixels:
            numbers = [self.isa.load(b, plan.compute, b.at(self.bias, m, self.kind)) for m in range(plan.width)]
            splats = [self.isa.splat(b, number, plan.lanes) for number in numbers]
            return [splat for splat in splats for _ in self.tile.columns]
        vectors = [
            self.isa.load(b, plan.compute, b.at(self.bias, v, self.kind), plan.lanes)
            for v in range(0, plan.width, plan.lanes)
        ]
        return vectors * len(self.tile.rows)


def _tap_strides(plan: DataPlan) -> list[int]:
    """Steps of the packed weights per tap of each axis, the batch included."""
    step, strides = plan.i_block * plan.width, []
    for taps in reversed(plan.problem.taps):
        strides.insert(0, step)
        step *= taps
    return [0, *strides]
