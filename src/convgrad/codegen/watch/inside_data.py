"""Lowering of an InsidePlan that solves for X or Y: for every result the taps that meet the input, no more."""

from __future__ import annotations

from collections.abc import Callable

from convgrad.codegen.ir import Builder
from convgrad.codegen.ir_module import Index, Module, Value, constant, index, vector_of
from convgrad.codegen.module import KernelModule
from convgrad.codegen.stages import Places, emit_stage
from convgrad.codegen.watch.inside import Inside, each_result
from convgrad.plan.axes import GatherAxis, Phase
from convgrad.plan.inside import InsidePlan
from convgrad.problem.conv import Unknown
from convgrad.values import frozen


def lower_inside_data(plan: InsidePlan) -> KernelModule:
    """One stage."""
    module = Module()
    stage = emit_stage(module, "inside", plan.tasks, 0, lambda b, at, task: _InsideData(plan, b, at).emit(task))
    return KernelModule(ir=str(module), stages=(stage,), shared_bytes=plan.shared_bytes, scratch_bytes=0)


@frozen
class _Spot:
    """An output of one axis: its phase, as numbers known then or now, and the element that tap 0 of it would meet."""

    axis: GatherAxis
    first: Index
    count: Index
    taps: Index
    tap: Index
    output: Index  # j
    start: Index

    def met(self, b: Builder) -> tuple[Index, Index]:
        """Taps low <= t < high that meet the input."""
        step, last = abs(self.axis.offset_step), self.axis.in_extent - 1
        before, beyond = self.start, b.sub(last, self.start)
        if self.axis.offset_step < 0:
            before, beyond = beyond, before
        low = b.maximum(b.sub(0, b.floor_div(before, step)), 0)
        return low, b.minimum(b.add(b.floor_div(beyond, step), 1), self.taps)


class _InsideData(Inside):
    """Vectors of results along outputs, channels or groups, or of one result's products along input channels."""

    def __init__(self, plan: InsidePlan, b: Builder, at: Places):
        super().__init__(plan, b, at)
        p = plan.problem
        self.solves_y = p.unknown is Unknown.Y
        self.given, self.solved = ("x", "y") if self.solves_y else ("y", "x")
        self.axes = plan.data_axes[1:]
        self.along_outputs = plan.along in "pq"
        self.in_channels = p.x_channels if self.solves_y else p.y_channels

    def emit(self, task: Value) -> None:
        """All results of a task."""
        each_result(self.plan, self.b, task, self._results)

    def _results(self, place: list[Index]) -> None:
        b, plan, lanes = self.b, self.plan, self.plan.lanes
        n, group, channel, *others = place
        p = plan.problem
        count: Index = 1 if plan.sums_lanes else lanes
        if plan.along == "g":
            group, count = self._block(group, p.groups)
        elif plan.along in "ck" and not plan.sums_lanes:
            channel, count = self._block(channel, p.shapes[self.solved][2])
        pairs = zip(others[::2], others[1::2], strict=True)
        spots = [self._spot(axis, *pair) for axis, pair in zip(self.axes, pairs, strict=True)]
        if self.along_outputs:
            spots[-1] = self._spot(self.axes[-1], others[-2], b.mul(others[-1], lanes))
            count = b.minimum(b.sub(spots[-1].count, spots[-1].output), lanes)
        self._when_there(spots, lambda: self._sum(n, group, channel, spots, count))

    def _block(self, block: Index, extent: int) -> tuple[Index, Index]:
        first = self.b.mul(block, self.plan.lanes)
        return first, self.b.minimum(self.b.sub(extent, first), self.plan.lanes)

    def _spot(self, axis: GatherAxis, phase: Index, output: Index) -> _Spot:
        b = self.b

        def of_phase(what: Callable[[Phase], int]) -> Index:
            values = [what(one) for one in axis.phases]
            return values[0] if len(set(values)) == 1 else b.lookup(b.module.table(values), phase)

        start = b.add(b.mul(output, axis.in_step), of_phase(lambda one: one.offset))
        return _Spot(axis, of_phase(lambda one: one.first), of_phase(lambda one: one.count),
                     of_phase(lambda one: one.taps), of_phase(lambda one: one.tap), output, start)  # fmt: skip

    def _when_there(self, spots: list[_Spot], body: Callable[[], None]) -> None:
        """Phases may be shorter than the longest."""
        blocks = [*(False for _ in spots[1:]), self.along_outputs]
        short = [spot for spot, many in zip(spots, blocks, strict=True) if many or spot.count != spot.axis.count]
        if not short:
            body()
            return
        inside = [self.b.compare("slt", spot.output, spot.count) for spot in short]
        there = inside[0]
        for one in inside[1:]:
            there = self.b.both(there, one)
        with self.b.when(there):
            body()

    def _sum(self, n: Index, group: Index, channel: Index, spots: list[_Spot], count: Index) -> None:
        b, p = self.b, self.plan.problem
        given, solved, w = p.strides[self.given], p.strides[self.solved], p.w_strides
        out, into = (w[1], w[2]) if self.solves_y else (w[2], w[1])
        wanted = self.first_lanes(self.plan.lanes if self.plan.sums_lanes else count)
        source = b.dot([(n, given[0]), (group, given[1])])
        weights = b.dot([(group, w[0]), (channel, out)])
        steps = given[2], into
        total = self._over_taps(spots, list(zip(given[3:], w[3:], strict=True)), source, weights, steps, wanted,
                                self.zero)  # fmt: skip
        total = self.summed(total)
        number = b.dot([(group, p.shapes[self.solved][2]), (channel, 1)])
        total = self.add_bias(total, number, wanted)
        outputs = [b.add(spot.first, b.mul(spot.output, spot.axis.out_step)) for spot in spots]
        offset = b.dot([(n, solved[0]), (group, solved[1]), (channel, solved[2]),
                        *zip(outputs, solved[3:], strict=True)])  # fmt: skip
        self.write(total, offset, None, count, wanted)

    def _over_taps(
        self, spots: list[_Spot], steps: list[tuple[int, int]], source: Index, weights: Index,
        channel: tuple[int, int], mask: Value, total: Value,
    ) -> Value:  # fmt: skip
        """Taps of the first axis, then of the others; then channels."""
        b = self.b
        if not spots:
            return self.unless_nan(total, mask, lambda: self._over_channels(source, weights, channel, mask, total))
        spot, (step, w_step) = spots[0], steps[0]
        along = self.along_outputs and len(spots) == 1
        low, high = (0, spot.taps) if along else spot.met(b)

        def tap(t: Index, now: dict[str, Value]) -> dict[str, Value]:
            element = b.add(spot.start, b.mul(t, spot.axis.offset_step))
            there = b.add(source, b.mul(element, step))
            weight = b.add(weights, b.mul(b.add(spot.tap, b.mul(t, spot.axis.tap_step)), w_step))
            lanes = b.binary("and", mask, self._on_image(spot.axis, element)) if along else mask
            return {"total": self._over_taps(spots[1:], steps[1:], there, weight, channel, lanes, now["total"])}

        return b.loop(low, high, tap, carried={"total": total}, name="tap")["total"]

    def _on_image(self, axis: GatherAxis, element: Index) -> Value:
        """Lanes whose element, the first one's and further steps, the input has."""
        b, lanes = self.b, self.plan.lanes
        type_ = vector_of(lanes, "i64")
        places = "<" + ", ".join(f"i64 {lane * axis.in_step}" for lane in range(lanes)) + ">"
        elements = b.binary("add", self.isa.splat(b, index(element), lanes), Value(type_, places))
        return b.emit(vector_of(lanes, "i1"), f"icmp ult {elements}, {constant(type_, axis.in_extent).text}")

    def _over_channels(
        self, source: Index, weights: Index, steps: tuple[int, int], mask: Value, total: Value
    ) -> Value:  # fmt: skip
        b, plan = self.b, self.plan

        def channel(i: Index, now: dict[str, Value]) -> dict[str, Value]:
            lanes = mask
            if plan.sums_lanes:
                lanes = self.first_lanes(b.minimum(b.sub(self.in_channels, i), plan.lanes))
            numbers = self.numbers(self.given, b.add(source, b.mul(i, steps[0])), lanes)
            of_weights = self.numbers("w", b.add(weights, b.mul(i, steps[1])), lanes)
            added = self.isa.multiply_add(b, numbers, of_weights, now["total"])
            if self.along_outputs:  # an infinite weight and no number are no product
                added = b.select(mask, added, now["total"])
            return {"total": added}

        step = plan.lanes if plan.sums_lanes else 1
        return b.loop(0, self.in_channels, channel, step=step, carried={"total": total}, name="channel")["total"]
