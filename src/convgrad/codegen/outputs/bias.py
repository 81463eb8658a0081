"""The bias gradient beside a weights gradient: sums per channel of a tensor that the weights plan reads anyway."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from math import prod
from typing import TYPE_CHECKING

from convgrad.codegen.copies.copying import Copy, Dim
from convgrad.codegen.copies.zeroing import emit_zero
from convgrad.codegen.ir import Builder
from convgrad.codegen.ir_module import Index, Value, index
from convgrad.codegen.isa import ISAS
from convgrad.codegen.isa.base import ARITHMETIC, STORAGE
from convgrad.codegen.outputs.finish import chunk_numbers, finish
from convgrad.codegen.outputs.sums import ChannelSums, pairwise
from convgrad.codegen.stages import Places
from convgrad.plan.general.weights import WeightsPlan
from convgrad.plan.window_axes import WindowAxis
from convgrad.values import frozen

if TYPE_CHECKING:
    from convgrad.plan.depthwise.plane_weights import PlaneWeightsPlan


@frozen
class BiasShare:
    """What one task of the first stage sums: its channels, over the elements that belong to its blocks.

    Each block sums its elements right where they lie, while they are in the cache because it packs them, too. Every
    element belongs to one block; a window's taps may overlap and leave gaps, its share of x does neither.
    """

    plan: WeightsPlan | PlaneWeightsPlan
    source: Value  # the tensor
    target: Value  # sums of this chunk, of all channels of all groups
    bundle: Index
    first: Index  # channel of the group, or of each group of the bundle
    count: Index
    others: Index | None  # tasks with the same channels: the one that has 0 here sums them; None if there is one

    def clear(self, b: Builder) -> None:
        """Begin with zeros."""
        isa, compute = ISAS[self.plan.isa], self.plan.compute
        with self._when_mine(b):
            self._each_run(b, lambda at, _, count, step: emit_zero(b, isa, compute, self._target(b, at), count))

    def add_block(self, b: Builder, starts: list[Index]) -> None:
        """Add what belongs to the block of windows that begins there."""
        plan = self.plan
        sums = ChannelSums(isa=ISAS[plan.isa], compute=plan.compute, dtype=plan.problem.dtype)
        with self._when_mine(b):
            origin, box = self._box(b, starts)

            def run(at: Index, place: Index, count: Index, step: int) -> None:
                source = b.at(self.source, b.add(origin, place), STORAGE[plan.problem.dtype])
                sums.emit(b, source, self._target(b, at), box, count, step)

            self._each_run(b, run)

    @contextmanager
    def _when_mine(self, b: Builder) -> Iterator[None]:
        if self.others is None:
            yield
            return
        with b.when(b.compare("eq", self.others, 0)):
            yield

    def _target(self, b: Builder, channel: Index) -> Value:
        return b.at(self.target, channel, ARITHMETIC[self.plan.compute])

    def _each_run(self, b: Builder, body: Callable[[Index, Index, Index, int], None]) -> None:
        """`body(number, place, count, step)` for channels that lie evenly: of a group, or of a bundle of groups."""
        plan, p = self.plan, self.plan.problem
        group, channel = p.strides[p.bias_gradient][1:3]
        channels = p.shapes[p.bias_gradient][2]
        first_group = b.mul(self.bundle, plan.lane_groups)
        number = b.dot([(first_group, channels), (self.first, 1)])
        place = b.dot([(first_group, group), (self.first, channel)])
        groups = 1 if plan.lane_groups == 1 else b.minimum(b.sub(p.groups, first_group), plan.lane_groups)
        if groups == 1:
            body(number, place, self.count, channel)
        elif channels == 1:
            body(number, place, groups, group)
        elif group == channels * channel:
            body(number, place, b.mul(groups, channels), channel)
        else:
            b.loop(0, groups, lambda g, _: body(b.add(number, b.mul(g, channels)), b.add(place, b.mul(g, group)),
                                                self.count, channel), name="group")  # fmt: skip

    def _box(self, b: Builder, starts: list[Index]) -> tuple[Index, list[tuple[Index, int]]]:
        """Where the elements of a block begin, and extent and step of every axis but the channels."""
        p = self.plan.problem
        strides = p.strides[p.bias_gradient]
        origin: Index = 0
        box = []
        for n, (start, step) in enumerate(zip(starts, (strides[0], *strides[3:]), strict=True)):
            axis, first, stop = self.windows(b, n, start)
            first, last = (self._x_share if p.bias_gradient == "x" else self._y_share)(b, axis, first, stop)
            origin = b.add(origin, b.mul(first, step))
            box.append((b.sub(last, first), step))
        return origin, box

    def windows(self, b: Builder, n: int, start: Index) -> tuple[WindowAxis, Index, Index]:
        """Of the block that begins with a window of axis n, or beyond: the axis, the first, and that of the next."""
        return self.plan.axes[n], start, b.add(start, self.plan.block[n])

    @staticmethod
    def _y_share(b: Builder, axis: WindowAxis, start: Index, stop: Index) -> tuple[Index, Index]:
        """The windows of the block."""
        return start, b.minimum(stop, axis.windows)

    @staticmethod
    def _x_share(b: Builder, axis: WindowAxis, start: Index, stop: Index) -> tuple[Index, Index]:
        """From where tap 0 of the first window is to where that of the next block is; all that is left at the ends."""

        def edge(window: Index) -> Index:
            place = b.minimum(b.maximum(b.sub(b.mul(window, axis.stride), axis.low), 0), axis.image)
            if isinstance(window, int):
                return 0 if window <= 0 else place if window < axis.windows else axis.image
            if axis.low < 0:
                place = b.select(b.compare("sgt", window, 0), index(place), index(0))
            return b.select(b.compare("slt", window, axis.windows), index(place), index(axis.image))

        return edge(start), edge(stop)


def finish_with_bias(plan: WeightsPlan, b: Builder, at: Places, task: Value) -> None:
    """The last task is the bias gradient, or the only one."""
    sums = b.at(at.shared, plan.chunks * chunk_numbers(plan), ARITHMETIC[plan.compute])
    if plan.own_sums:
        finish_bias(plan, b, sums, at.bias)
        return
    b.either(
        b.compare("slt", task, prod(plan.finish_grid)),
        lambda: finish(plan, b, at, task),
        lambda: finish_bias(plan, b, sums, at.bias),
    )


def finish_bias(plan: WeightsPlan | PlaneWeightsPlan, b: Builder, sums: Value, target: Value) -> None:
    """Add the chunks pairwise and write the gradient; `sums` are those of the first chunk."""
    isa, p, kind = ISAS[plan.isa], plan.problem, ARITHMETIC[plan.compute]

    def add(i: Index, lanes: int) -> None:
        parts = [
            isa.load(b, plan.compute, b.at(sums, b.add(i, chunk * plan.bias_size), kind), lanes)
            for chunk in range(plan.chunks)
        ]
        isa.store(b, plan.compute, pairwise(b, parts), b.at(sums, i, kind))

    whole = p.bias_length // plan.lanes * plan.lanes
    if plan.chunks > 1:
        b.loop(0, whole, lambda i, _: add(i, plan.lanes), step=plan.lanes, name="add")
        b.loop(whole, p.bias_length, lambda i, _: add(i, 1), name="add")
    copy = Copy(isa=isa, compute=plan.compute, src_dtype=plan.compute, dst_dtype=p.out_dtype, accumulate=p.accumulate)
    copy.emit(b, sums, target, [Dim(p.bias_length, 1, p.bias_stride)])
