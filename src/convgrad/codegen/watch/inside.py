"""What kernels of an `InsidePlan` share: vectors of numbers that lie any step apart, and how sums become results."""

from __future__ import annotations

from collections.abc import Callable
from math import prod

from convgrad.codegen.ir import Builder
from convgrad.codegen.ir_module import Index, Value
from convgrad.codegen.isa import ISAS
from convgrad.codegen.isa.base import BYTES, STORAGE, first_lanes
from convgrad.codegen.outputs.sums import across
from convgrad.codegen.stages import Places
from convgrad.plan.inside import InsidePlan


class Inside:
    """The numbers of one task."""

    def __init__(self, plan: InsidePlan, b: Builder, at: Places):
        self.plan, self.b, self.at = plan, b, at
        self.isa = ISAS[plan.isa]
        self.room = b.emit("ptr", f"alloca [{8 * plan.lanes} x i8], align 64")  # of results on their way
        self.zero = Value(self.isa.vector(plan.compute), "zeroinitializer")

    def first_lanes(self, count: Index) -> Value:
        """The mask of so many; LLVM does not learn how many, since under a mask of one it may read two of 16 bits."""
        return first_lanes(self.b, self.plan.lanes, self.b.unknown(count))

    def numbers(self, name: str, offset: Index, mask: Value, step: int | None = None, address: Value | None = None,
                dtype: str = "") -> Value:  # fmt: skip
        """A vector of a tensor, in the arithmetic type, or of what lies at an address; one number for all if step 0."""
        b, plan, dtype = self.b, self.plan, dtype or self.plan.problem.dtype
        step = plan.step(name) if step is None else step
        place = b.beyond(self.at.of(name) if address is None else address, b.mul(offset, BYTES[dtype]))
        if step == 0:
            every = self.isa.splat(b, self.isa.load(b, dtype, place), plan.lanes)
            return b.select(mask, every, self.zero) if plan.sums_lanes else every
        return self.isa.load_apart(b, dtype, place, step, plan.lanes, mask)

    def unless_nan(self, total: Value, wanted: Value, more: Callable[[], Value]) -> Value:
        """`more()`, unless the sum is NaN already, in all wanted lanes: it will not become anything else."""
        b, lanes = self.b, self.plan.lanes
        nan = b.compare_floats("uno", total, total)
        nan = b.binary("and", nan, wanted)
        if self.plan.sums_lanes:  # one is enough
            settled = b.emit("i1", f"icmp ne {b.cast('bitcast', nan, f'i{lanes}')}, 0")
        else:
            missing = b.cast("bitcast", b.binary("xor", nan, wanted), f"i{lanes}")
            settled = b.emit("i1", f"icmp eq {missing}, 0")
        (total,) = b.one_of(settled, lambda: [total], lambda: [more()])
        return total

    def add_bias(self, total: Value, channel: Index, mask: Value) -> Value:
        """Of a channel of all groups, or of those that the lanes are."""
        p, plan = self.plan.problem, self.plan
        if not p.bias:
            return total
        channels = p.shapes[p.solved][2]
        of_lanes = {"g": channels, "c": 1, "k": 1}.get(plan.along, 0) * p.bias_stride
        return self._added(total, "bias", self.b.mul(channel, p.bias_stride), of_lanes, mask, p.dtype)

    def write(self, total: Value, offset: Index, before: Index | None, count: Index, mask: Value) -> None:
        """Round and store a vector of results, or one; `before` is where an old result is, if that has moved."""
        b, plan, p = self.b, self.plan, self.plan.problem
        name, step = p.solved, plan.step(p.solved)
        if p.accumulate:
            if before is None:
                total = self._added(total, name, offset, step, mask, p.out_dtype)
            else:
                old = b.beyond(self.at.shared, plan.kept or 0)
                lane = plan.kept_strides["gkc".index(plan.along)] if plan.along in "gkc" else 0
                total = self._added(total, name, before, lane, mask, p.out_dtype, old)
        target = b.at(self.at.of(name), offset, STORAGE[p.out_dtype])
        if plan.sums_lanes:
            self.isa.store(b, p.out_dtype, total, target)
            return
        self.isa.store(b, p.out_dtype, total, self.room)
        kind, size = STORAGE[p.out_dtype], BYTES[p.out_dtype]

        def one(lane: Index, _: object) -> None:
            b.store(b.load(kind, b.at(self.room, lane, kind), size), b.at(target, b.mul(lane, step), kind), size)

        b.loop(0, count, one, name="lane")

    def summed(self, total: Value) -> Value:
        """The lanes as one, if they are parts of one sum."""
        return across(self.b, total) if self.plan.sums_lanes else total

    def _added(
        self, total: Value, name: str, offset: Index, step: int, mask: Value, dtype: str, address: Value | None = None
    ) -> Value:
        if self.plan.sums_lanes:
            base = self.at.of(name) if address is None else address
            one = self.isa.load(self.b, dtype, self.b.at(base, offset, STORAGE[dtype]))
        else:
            one = self.numbers(name, offset, mask, step, address, dtype)
        return self.b.binary("fadd", total, one)


def each_result(plan: InsidePlan, b: Builder, task: Value, body: Callable[[list[Index]], None]) -> None:
    """`body(indices)` for what one task computes of the plan's grid."""
    total = prod(plan.grid)
    share = -(-total // plan.tasks)
    first = b.mul(task, share)
    b.loop(first, b.minimum(b.add(first, share), total), lambda u, _: body(b.split(u, plan.grid)), name="result")
