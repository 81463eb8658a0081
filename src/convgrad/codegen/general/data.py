"""Lowering of a DataPlan: one task per block of outputs, and weights packed before, or by the tasks that use them."""

from __future__ import annotations

from collections.abc import Callable
from math import prod
from typing import TYPE_CHECKING

from convgrad.codegen.copies.copying import Copy, Dim
from convgrad.codegen.copies.input_slab import InputSlab, channels_of
from convgrad.codegen.copies.panels import PANEL, Panels, bias_at
from convgrad.codegen.ir import Builder
from convgrad.codegen.ir_module import Index, Module, Value
from convgrad.codegen.isa import ISAS
from convgrad.codegen.isa.base import ARITHMETIC, BYTES, STORAGE
from convgrad.codegen.loops.data_ahead import DataAhead, Turn
from convgrad.codegen.loops.half_vectors import lane_columns
from convgrad.codegen.loops.lanes import first_group, lane_dims, lane_origin
from convgrad.codegen.loops.sweep import Beside, Sweep
from convgrad.codegen.module import Stage, round64
from convgrad.codegen.stages import Places, call_part, emit_stage
from convgrad.plan.general.data import DataPlan

if TYPE_CHECKING:
    from convgrad.codegen.watch.verdict import Verdict


class DataStages(InputSlab, Panels):
    """The stages of a plan.

    Scratch of a task that computes outputs holds the slab, the results and, if it packs weights, one panel of them, the
    bias of its lanes, and room to put weights in order.
    """

    sweep = Sweep
    verdict: Verdict | None = None
    beside: Beside | None = None  # of the task that is being written, if its slab is packed as it is multiplied

    def __init__(self, plan: DataPlan):
        self.plan, self.isa, self.kind = plan, ISAS[plan.isa], ARITHMETIC[plan.compute]
        self.tasks = prod(plan.grid)
        p = plan.problem
        self.input, self.output = p.given, p.solved
        self.in_strides, self.out_strides = p.strides[self.input], p.strides[self.output]
        self.ahead: DataAhead | None = None  # of the task that is being written

    @property
    def slab_bytes(self) -> int:
        """Of the packed input of a task."""
        return 0 if self.plan.reads_in_place else round64(self.plan.packed_bytes * self.plan.slab_size)

    @property
    def result_bytes(self) -> int:
        """Of the results of a task."""
        return 0 if self.plan.writes_in_place else round64(BYTES[self.plan.compute] * self.plan.result_size)

    @property
    def own_bytes(self) -> int:
        """Of the weights that a task packs for itself, and the bias."""
        plan = self.plan
        if not (plan.packs_weights or plan.reads_weights):
            return 0
        bias = round64(BYTES[plan.compute] * plan.width)
        return bias if plan.reads_weights else self.panel_bytes + bias + self.pack_bytes

    @property
    def main_bytes(self) -> int:
        """Scratch of a task that computes outputs."""
        return self.slab_bytes + self.result_bytes + self.own_bytes

    @property
    def packs_before(self) -> bool:
        """Whether a stage packs the weights for the tasks that compute outputs."""
        return not (self.plan.packs_weights or self.plan.reads_weights)

    @property
    def packing_tasks(self) -> int:
        """Of such a stage: panels of packed weights, or parts of them."""
        return self.plan.panels * self.plan.panel_parts

    @property
    def scratch_bytes(self) -> int:
        """Of any task."""
        return max(self.pack_bytes, self.main_bytes) if self.packs_before else self.main_bytes

    @property
    def shared_bytes(self) -> int:
        """Packed weights and bias."""
        plan = self.plan
        if not self.packs_before:
            return 0
        return round64(plan.packed_bytes * plan.weights_size) + round64(BYTES[plan.compute] * plan.bias_size)

    @property
    def most_tasks(self) -> int:
        """Of either stage."""
        return max(self.tasks, self.packing_tasks * self.packs_before)

    def emit(self, module: Module) -> tuple[Stage, ...]:
        """Weights and outputs, or outputs alone."""
        self.plan.validate()
        if self.plan.packs_weights:
            self.emit_panel(module)
        bodies = [("main", self.tasks, self.task, self.plan.tasks_alike, self._where_output_is)]
        if self.packs_before:
            bodies.insert(0, ("pack", self.packing_tasks, self.pack, True, None))
        return tuple(
            emit_stage(module, name, tasks, self.scratch_bytes, body, alike=alike, before=before)
            for name, tasks, body, alike, before in bodies
        )

    @property
    def _where_output_is(self) -> Callable[[Builder, dict[str, Value]], None] | None:
        """What finds out where the output is, if that decides how it is stored."""
        if not (self.plan.may_stay and self.isa.streams):
            return None
        from convgrad.codegen.outputs.whereabouts import look

        return lambda b, pointers: look(b, self.plan.problem, pointers[self.output])

    def task(self, b: Builder, at: Places, task: Value) -> None:
        """All of a task that computes outputs."""
        self._task(b, at, task)
        if self.plan.past_caches and self.isa.streams:
            self.isa.end_streams(b)

    def _task(self, b: Builder, at: Places, task: Value) -> None:
        plan = self.plan
        fetches = plan.fetches_slab or plan.fetches_weights or plan.fetches_raw_weights
        self.ahead = DataAhead(b, plan) if fetches else None
        *blocks, bundle, share = b.split(task, plan.grid)
        self.group = b.mul(bundle, plan.bundle)
        self.starts = [self._block_start(b, n, block) for n, block in enumerate(blocks)]
        slab = at.scratch
        results = b.at(at.scratch, self.slab_bytes, "i8")
        self.first = first = b.mul(share, plan.blocks_per_task)
        self.last = last = b.minimum(b.add(first, plan.blocks_per_task), plan.lane_blocks)
        self.slab_group = first_group(plan, b, self.group, first)
        if plan.writes_in_place:
            if not plan.reads_in_place:
                self._pack_slab(b, at, slab, 0)
            if self.ahead is not None:
                self.ahead.begin(b, at, task, 0)
            self._group_by_group(b, lambda block, _: self._in_place(b, at, block))
            return
        if plan.i_blocks == 1:
            self._pack_slab(b, at, slab, 0)
            if self.ahead is not None:
                self.ahead.begin(b, at, task, 0)

            def lane_block(block: Index, _: object) -> None:
                self._sweep(b, at, slab, results, block, 0, fresh=True)
                self._unpack(b, at, results, block)

            self._group_by_group(b, lane_block)
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

    def _group_by_group(self, b: Builder, lane_block: Callable[[Index, object], None]) -> None:
        """The lane blocks of all groups of a task."""
        plan, begin = self.plan, self.group

        def of_group(group: Index, _: object) -> None:
            self.group = group
            b.loop(self.first, self.last, lane_block, name="lanes")

        if plan.bundle == 1:
            of_group(begin, None)
        else:
            b.loop(begin, b.minimum(b.add(begin, plan.bundle), plan.group_blocks), of_group, name="group")

    def _block_start(self, b: Builder, n: int, block: Index) -> Index:
        """The first output of a block of axis n."""
        start, last = b.mul(block, self.plan.block[n]), self.plan.last_start(n)
        return start if last is None else b.minimum(start, last)

    def _in_place(self, b: Builder, at: Places, block: Index) -> None:
        """One block of lanes, straight to the output."""
        plan = self.plan
        solved = lane_origin(plan, b, self.group, block, *self.out_strides[1:3])
        p = plan.problem
        source, target = at.scratch, b.at(at.of(self.output), solved, STORAGE[p.out_dtype])
        if plan.reads_in_place:
            given = b.mul(first_group(plan, b, self.group, block), self.in_strides[1])
            source = b.at(at.of(self.input), given, STORAGE[p.dtype])
        self._sweep(b, at, source, target, block, 0, fresh=True)

    def _end(self, b: Builder, at: Places) -> Value | None:
        """Behind an input that tiles read in place, and ask for ahead."""
        p, extents = self.plan.problem, self.plan.problem.shapes[self.plan.problem.given]
        if self.plan.spread or not self.plan.reads_in_place:
            return None
        steps = (max(0, step) for step in p.strides[p.given])
        last = sum((extent - 1) * step for extent, step in zip(extents, steps, strict=True))
        return b.at(at.of(self.input), last + 1, STORAGE[p.dtype])

    def _of_block(self, b: Builder, results: Value, first: Index, block: Index) -> Value:
        return b.at(results, b.mul(b.sub(block, first), self.plan.result_block), self.kind)

    def _sweep(
        self, b: Builder, at: Places, slab: Value, results: Value, block: Index, i_block: Index,
        fresh: bool | Value,
    ) -> None:  # fmt: skip
        """Every register tile of every phase, for one block of lanes and one block of input channels."""
        plan = self.plan
        if plan.packs_weights:
            call_part(b, PANEL, at, self.group, block, i_block)
            weights, bias = self._own_panel(b, at), self._own_bias(b, at)
        elif plan.reads_weights:
            weights, bias = self._unpacked(b, at, self.group, block, i_block), self._own_bias(b, at)
        else:
            which = b.add(b.mul(b.add(b.mul(self.group, plan.lane_blocks), block), plan.i_blocks), i_block)
            weights = b.at(at.shared, b.mul(which, plan.panel_step), self.packed_kind)
            bias = bias_at(plan, b, at, self.group, block)
        bias = bias if plan.problem.bias else None
        if plan.slab_groups > 1 and not plan.reads_in_place:
            before = b.sub(first_group(plan, b, self.group, block), self.slab_group)
            slab = b.at(slab, b.mul(before, plan.in_channels), self.packed_kind)
        channels = channels_of(plan, b, i_block)
        walks = None
        if self.ahead is not None:
            walks = self.ahead.walks(b, at, Turn(self.slab_group, self.group, self.first, self.last, block, i_block))

        def sweep(*, last: bool) -> None:
            self.sweep(
                plan, b, slab, weights, results, bias, channels, self.starts, fresh=fresh, walks=walks, last=last,
                room=self._tile_room(b, at), beside=self.beside, end=self._end(b, at),
            ).run()  # fmt: skip

        alike = plan.last_vectors is None and not lane_columns(plan, last=True)[1]
        if plan.lane_blocks == 1 or alike:
            sweep(last=plan.lane_blocks == 1)
        else:
            b.either(b.compare("slt", block, plan.lane_blocks - 1), lambda: sweep(last=False), lambda: sweep(last=True))

    def _tile_room(self, b: Builder, at: Places) -> Value | None:
        """Where tiles go that vectors then move to the output."""
        return None

    def _unpack(self, b: Builder, at: Places, results: Value, block: Index) -> None:
        plan, dims, target = self.plan, [], 0
        for n, stride in enumerate((self.out_strides[0], *self.out_strides[3:])):
            origin, extent, step, of_output = self._results(b, n)
            dims.append(Dim(extent, step, stride * of_output))
            target = b.add(target, b.mul(origin, stride))
        inner = dims.pop() if plan.pixels and plan.axes[-1].out_step > 1 else None
        self._write(b, at, results, target, dims, block, inner)

    def _write(
        self, b: Builder, at: Places, results: Value, target: Index, dims: list[Dim], block: Index,
        inner: Dim | None = None,
    ) -> None:  # fmt: skip
        """Results of a block of lanes, from some output on; an `inner` axis has its phases one after the other."""
        plan, p = self.plan, self.plan.problem
        steps = self.out_strides[1], self.out_strides[2]
        target = b.add(target, lane_origin(plan, b, self.group, block, *steps))
        channel_step = plan.result_strides[1]
        dims = [*dims, *(Dim(n, src * channel_step, dst) for n, src, dst in lane_dims(plan, block, b, *steps))]
        copy = Copy(
            isa=self.isa, compute=plan.compute, src_dtype=plan.compute, dst_dtype=p.out_dtype,
            accumulate=p.accumulate, past_caches=plan.past_caches, ordinary=plan.ordinary_sums,
            of_results=True,
        )  # fmt: skip
        output = b.at(at.of(self.output), target, STORAGE[p.out_dtype])
        if inner is not None:
            copy.emit_phases(b, results, output, dims, inner, plan.axes[-1].out_step, plan.block[-1])
        else:
            copy.emit(b, results, output, dims)

    def _results(self, b: Builder, n: int) -> tuple[Index, Index, int, int]:
        """Of axis n: the first output of the block, how many there are, and their steps as results and as outputs."""
        axis, (phase_step, j_step) = self.plan.axes[n], self.plan.result_strides[0][n]
        origin = b.mul(self.starts[n], axis.out_step)
        extent = b.minimum(b.sub(axis.out_extent, origin), self.plan.result_extent[n])
        return origin, extent, j_step if axis.out_step == 1 else phase_step, 1
