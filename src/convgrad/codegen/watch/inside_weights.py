"""Lowering of an InsidePlan that solves for W: for every weight the windows whose tap meets the image, no more."""

from __future__ import annotations

from convgrad.codegen.ir import Builder
from convgrad.codegen.ir_module import Index, Module, Value
from convgrad.codegen.module import KernelModule
from convgrad.codegen.stages import Places, emit_stage
from convgrad.codegen.watch.inside import Inside, each_result
from convgrad.plan.inside import InsidePlan
from convgrad.plan.window_axes import WindowAxis


def lower_inside_weights(plan: InsidePlan) -> KernelModule:
    """One stage."""
    module = Module()
    stage = emit_stage(module, "inside", plan.tasks, 0, lambda b, at, task: _InsideWeights(plan, b, at).emit(task))
    return KernelModule(ir=str(module), stages=(stage,), shared_bytes=plan.shared_bytes, scratch_bytes=0)


class _InsideWeights(Inside):
    """Vectors of weights along channels of either side or groups, or of one weight's products along windows."""

    def __init__(self, plan: InsidePlan, b: Builder, at: Places):
        super().__init__(plan, b, at)
        self.axes = plan.window_axes[1:]

    def emit(self, task: Value) -> None:
        """All results of a task."""
        each_result(self.plan, self.b, task, self._results)

    def _results(self, place: list[Index]) -> None:
        b, plan, p = self.b, self.plan, self.plan.problem
        count: Index = 1
        if not plan.sums_lanes:
            n = "gkc".index(plan.along)
            place[n] = b.mul(place[n], plan.lanes)
            count = b.minimum(b.sub(p.shapes["w"][n], place[n]), plan.lanes)
        group, k, c, *taps = place
        wanted = self.first_lanes(plan.lanes if plan.sums_lanes else count)
        x = b.dot([(group, p.x_strides[1]), (c, p.x_strides[2])])
        y = b.dot([(group, p.y_strides[1]), (k, p.y_strides[2])])

        def image(n: Index, now: dict[str, Value]) -> dict[str, Value]:
            starts = b.add(x, b.mul(n, p.x_strides[0])), b.add(y, b.mul(n, p.y_strides[0]))
            return {"total": self._over_windows(0, taps, *starts, wanted, now["total"])}

        total = b.loop(0, p.batch, image, carried={"total": self.zero}, name="image")["total"]
        before = None if plan.kept is None else b.dot(list(zip(place, plan.kept_strides, strict=True)))
        self.write(self.summed(total), b.dot(list(zip(place, p.w_strides, strict=True))), before, count, wanted)

    def _over_windows(self, n: int, taps: list[Index], x: Index, y: Index, mask: Value, total: Value) -> Value:
        """Windows of axis n and of those after it."""
        if n + 1 == len(self.axes):
            return self.unless_nan(total, mask, lambda: self._row(taps[n], x, y, mask, total))
        b, axis, p = self.b, self.axes[n], self.plan.problem
        low, high, shift = self._met(axis, taps[n])

        def window(w: Index, now: dict[str, Value]) -> dict[str, Value]:
            there = b.add(x, b.mul(b.add(b.mul(w, axis.stride), shift), p.x_strides[3 + n]))
            return {"total": self._over_windows(n + 1, taps, there, b.add(y, b.mul(w, p.y_strides[3 + n])), mask,
                                                now["total"])}  # fmt: skip

        return b.loop(low, high, window, carried={"total": total}, name="window")["total"]

    def _row(self, tap: Index, x: Index, y: Index, mask: Value, total: Value) -> Value:
        """Windows of the innermost axis, one by one or so many at a time as a vector has lanes."""
        b, axis, plan, p = self.b, self.axes[-1], self.plan, self.plan.problem
        low, high, shift = self._met(axis, tap)

        def windows(w: Index, now: dict[str, Value]) -> dict[str, Value]:
            lanes = self.first_lanes(b.minimum(b.sub(high, w), plan.lanes)) if plan.sums_lanes else mask
            of_x = self.numbers("x", b.add(x, b.mul(b.add(b.mul(w, axis.stride), shift), p.x_strides[-1])), lanes)
            of_y = self.numbers("y", b.add(y, b.mul(w, p.y_strides[-1])), lanes)
            return {"total": self.isa.multiply_add(b, of_x, of_y, now["total"])}

        step = plan.lanes if plan.sums_lanes else 1
        return b.loop(low, high, windows, step=step, carried={"total": total}, name="window")["total"]

    def _met(self, axis: WindowAxis, tap: Index) -> tuple[Index, Index, Index]:
        """Windows low <= p < high whose tap meets the image, and the element that tap of window 0 would meet."""
        b = self.b
        shift = b.sub(b.mul(tap, axis.dilation), axis.low)
        low = b.maximum(b.sub(0, b.floor_div(shift, axis.stride)), 0)
        last = b.add(b.floor_div(b.sub(axis.image - 1, shift), axis.stride), 1)
        return low, b.minimum(last, axis.windows), shift
