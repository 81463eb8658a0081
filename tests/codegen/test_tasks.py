"""Tasks of a stage are independent: last one first, they give the same bits."""

import re
from dataclasses import replace
from math import prod

import numpy as np
import pytest

from codegen.buffers import StridedArray
from codegen.emitted import HOST_ISAS, each_isa, load_here, outer_isas, run_here
from codegen.kinds_of_plans import KINDS
from codegen.random_problems import in_turn, random_problem, rebuilding
from convgrad.codegen.lower import lower
from convgrad.codegen.module import CALL_FIELDS
from convgrad.dtypes import numpy_dtype
from convgrad.plan.choose import variants
from convgrad.plan.general.data import DataPlan
from convgrad.plan.machine import machine_for

PROBLEMS = [problem for problem, _ in KINDS.values()]
CLAIMED = re.compile(r"call void @(\w+)\.task\(i64 (%\w+), ")


def either_way(module):
    """The same kernel, whose stages take their last task first where the number behind the record of a call is one."""
    tasks = {stage.symbol: stage.tasks for stage in module.stages}

    def reversed_call(match):
        symbol, number = match.groups()
        return f"""%asked = getelementptr i64, ptr %call, i64 {len(CALL_FIELDS)}
  %way = load i64, ptr %asked
  %is_back = icmp eq i64 %way, 1
  %back = sub i64 {tasks[symbol] - 1}, {number}
  %which = select i1 %is_back, i64 %back, i64 {number}
  call void @{symbol}.task(i64 %which, """

    ir, changed = CLAIMED.subn(reversed_call, module.ir)
    assert changed == len(module.stages)
    return replace(module, ir=ir)


def solved_either_way(problem, plan, machine):
    """The bits of the results by the same code, whose tasks are taken in order, and last one first."""
    module = either_way(lower(plan))
    loaded = load_here(module, machine)
    return [solved(problem, module, machine, loaded=loaded, beyond=(way,)) for way in (0, 1)]


def solved(problem, module, machine, **how):
    """The bits of the results, of inputs with fractions, so that any other order of a sum shows."""
    rng, unknown = np.random.default_rng(7), problem.unknown.value
    arrays = {}
    for name, shape in problem.shapes.items():
        dtype = numpy_dtype(problem.out_dtype if name == unknown else problem.dtype)
        arrays[name] = StridedArray(shape, problem.strides[name], dtype)
        if name != unknown or problem.accumulate:
            arrays[name].view[...] = rng.standard_normal(shape).astype(dtype)
    results, bias = [arrays[unknown]], None
    if problem.bias_length:
        dtype = numpy_dtype(problem.out_dtype if problem.bias_gradient else problem.dtype)
        bias = StridedArray((problem.bias_length,), (problem.bias_stride,), dtype)
        if problem.bias or problem.accumulate:
            bias.view[...] = rng.standard_normal(problem.bias_length).astype(dtype)
        results += [bias] if problem.bias_gradient else []
    run_here(module, machine, [*(arrays[name] for name in "xwy"), bias], **how)
    return np.concatenate([result.buffer.bytes for result in results])


def some_plans(problem, isa, turn):
    """The first one, and every other one of the others: what divides tasks is the same on every instruction set."""
    first, *others = variants(problem, machine_for(isa))
    return [first, *others[turn % 2 :: 2]]


@outer_isas
@pytest.mark.parametrize(("number", "problem"), list(enumerate(PROBLEMS)), ids=KINDS)
def test_the_order_of_tasks_does_not_matter(number, problem, isa):
    machine = machine_for(isa)
    for plan in some_plans(problem, isa, number + HOST_ISAS.index(isa)):
        np.testing.assert_array_equal(*solved_either_way(problem, plan, machine), err_msg=str(plan))


@each_isa
def test_the_order_of_tasks_does_not_matter_for_random_problems(isa):
    machine = machine_for(isa)
    for seed in range(7000, 7040):
        problem = random_problem(np.random.default_rng(seed))
        plan = next(iter(variants(problem, machine)))
        np.testing.assert_array_equal(
            *solved_either_way(problem, plan, machine), err_msg=f"{isa}: {rebuilding(problem)}"
        )


@outer_isas
@pytest.mark.parametrize(("number", "problem"), list(enumerate(PROBLEMS)), ids=KINDS)
def test_who_packs_the_weights_does_not_matter(number, problem, isa):
    """A stage of their own or the tasks that multiply them, in every kind of plan that leaves the choice."""
    turn = number + (isa == HOST_ISAS[-1])
    dtype = in_turn(turn, problem.dtype, "bf16")
    asked = replace(problem, dtype=dtype, out_dtype=in_turn(turn, problem.out_dtype, "f32"))
    machine = machine_for(isa)
    for plan in some_plans(asked, isa, turn // 2):
        if not isinstance(plan, DataPlan) or not plan.may_pack_weights:
            continue
        modules = [lower(replace(plan, packs_weights=packs, reads_weights=False)) for packs in (False, True)]
        assert [[stage.symbol for stage in module.stages] for module in modules] == [["pack", "main"], ["main"]]
        watched = plan.ON_UNITS  # two numbers of every panel and every task
        panels = plan.group_blocks * plan.lane_blocks * plan.i_blocks
        assert modules[1].shared_bytes == (-(-8 * (panels + prod(plan.grid)) // 64) * 64 if watched else 0)
        first, own = (solved(asked, module, machine) for module in modules)
        np.testing.assert_array_equal(first, own, err_msg=str(plan))


def test_backwards_is_another_order():
    """So the tests above compare something: a kernel whose first task is its last one all over is found out."""
    problem, machine = KINDS["tasks pack weights for others"][0], machine_for("portable")
    module = either_way(lower(next(iter(variants(problem, machine)))))
    assert [stage.symbol for stage in module.stages] == ["pack", "main"]
    broken, changed = re.subn(r"%back = sub i64 (\d+), %\w+", r"%back = add i64 \1, 0", module.ir)
    assert changed == 2
    assert min(stage.tasks for stage in module.stages) > 1
    forwards, back = (solved(problem, replace(module, ir=broken), machine, beyond=(way,)) for way in (0, 1))
    assert not np.array_equal(forwards, back)
    np.testing.assert_array_equal(forwards, solved(problem, module, machine, beyond=(1,)))
