"""Kernels of vectors with a verdict of their own: whether zeros around an image have met numbers that are not finite.

If so, an `InsidePlan` computes the call again. Its kernel is a `Fallback`, compiled when data first need it, or at once
where it continues from weights that were copied before they were added to.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING

from convgrad.codegen.copies.copying import Copy, Dim
from convgrad.codegen.ir import Builder
from convgrad.codegen.ir_module import Module, Value, joined
from convgrad.codegen.isa import ISAS
from convgrad.codegen.isa.base import STORAGE
from convgrad.codegen.module import CALL_FIELDS, VERDICT, Fallback, KernelModule, Stage, round64
from convgrad.codegen.stages import Places, emit_stage
from convgrad.codegen.watch.scan import any_nan, any_not_finite
from convgrad.plan.guard import Box, Guard, guard_of
from convgrad.plan.inside import InsidePlan, inside_plan, kept_bytes
from convgrad.problem.conv import ConvProblem, Unknown
from convgrad.values import replace

if TYPE_CHECKING:
    from convgrad.plan.choose import Plan


def guarded(plan: Plan, module: KernelModule) -> KernelModule:
    """The kernel of a plan for vectors, with what takes over where it would not give what the definition does."""
    guard = guard_of(plan)
    if guard is None:
        return module
    p, isa = plan.asked, plan.isa
    kept = round64(module.shared_bytes) if guard.keeps_weights else None
    inside = inside_plan(p, isa, plan.lanes, module.most_tasks, kept)
    more, stages = Module("guard."), module.stages
    if guard.keeps_weights:
        stages = (_emit_keep(more, inside), *stages)
    _emit_verdict(more, guard, p, isa)
    fallback = Fallback(
        after=0 if guard.before else len(stages), replaces=not guard.before, most_tasks=inside.tasks,
        shared_bytes=inside.shared_bytes, scratch_bytes=0,
        weights=(module.weights[0] + kept_bytes(p) if guard.keeps_weights else 0, 0),
        lower=partial(lower_inside, inside), at_once=guard.keeps_weights,
    )  # fmt: skip
    return replace(module, ir=joined(module.ir, more), stages=stages, fallback=fallback)


def shared_with_guard(plan: Plan, shared_bytes: int) -> int:
    """Shared memory of such a kernel, its fallback included."""
    guard = guard_of(plan)
    return round64(shared_bytes) + kept_bytes(plan.asked) if guard and guard.keeps_weights else shared_bytes


def lower_inside(plan: InsidePlan) -> KernelModule:
    """The module of such a plan."""
    if plan.problem.unknown is Unknown.W:
        from convgrad.codegen.watch.inside_weights import lower_inside_weights  # here, since hardly a call needs them

        return lower_inside_weights(plan)
    from convgrad.codegen.watch.inside_data import lower_inside_data

    return lower_inside_data(plan)


def _emit_keep(module: Module, plan: InsidePlan) -> Stage:
    """A stage that copies the weights, some rows of them per task."""
    p = plan.problem
    (groups, rows, *extents), (group, row, *steps) = p.shapes["w"], p.w_strides
    to_group, to_row, *to_others = plan.kept_strides
    total = groups * rows
    tasks = min(plan.tasks, total)
    share = -(-total // tasks)
    copy = Copy(isa=ISAS[plan.isa], compute=plan.compute, src_dtype=p.out_dtype, dst_dtype=p.out_dtype)

    def body(b: Builder, at: Places, task: Value) -> None:
        first = b.mul(task, share)

        def one(u: Value, _: object) -> None:
            g, k = b.split(u, (groups, rows))
            source = b.at(at.w, b.dot([(g, group), (k, row)]), STORAGE[p.out_dtype])
            target = b.at(
                b.at(at.shared, plan.kept or 0, "i8"), b.dot([(g, to_group), (k, to_row)]), STORAGE[p.out_dtype]
            )
            copy.emit(b, source, target, [Dim(*dim) for dim in zip(extents, steps, to_others, strict=True)])

        b.loop(first, b.minimum(b.add(first, share), total), one, name="row")

    return emit_stage(module, "keep", tasks, 0, body)


def _emit_verdict(module: Module, guard: Guard, p: ConvProblem, isa: str) -> None:
    """The function that a kernel with a fallback exports."""
    b = Builder(module, VERDICT, [("ptr", "call"), ("ptr", "answer")], exported=True)
    call, answer = b.arguments

    def found(what: Callable[..., Value], boxes: tuple[Box, ...]) -> Value:
        """Of boxes of whichever tensors."""
        result = Value("i1", "false")
        boxes = tuple(box for box in boxes if box.size)
        for name in sorted({box.tensor for box in boxes}):
            base = b.load("ptr", b.at(call, CALL_FIELDS.index(name), "i64"), 8)
            dtype = p.dtype_of(name)
            mine = what(b, ISAS[isa], dtype, base, [box for box in boxes if box.tensor == name])
            result = mine if result.text == "false" else b.binary("or", result, mine)
        return result

    if guard.before:
        bad = found(any_not_finite, guard.before)
    else:
        bad = found(any_nan, guard.after)
        if guard.if_also:
            no = Value("i1", "false")
            (bad,) = b.one_of(bad, lambda: [found(any_not_finite, guard.if_also)], lambda: [no])
    b.store(b.cast("zext", bad, "i64"), answer, 8)
    b.finish()
