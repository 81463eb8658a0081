"""One number of 16 bits behind whole vectors: LLVM takes two where it finds out that a mask holds in one lane."""

from dataclasses import replace

import pytest

from codegen.dense_problems import W, X, Y, problem_of
from codegen.matrix_checks import asked
from codegen.random_problems import check_plan
from convgrad.plan.choose import variants
from convgrad.plan.general.weights import WeightsPlan
from convgrad.plan.machine import machine_for, why_not

LEVELS = ["avx512", "avx512_bf16_emulated", "amx_emulated"]


def plans_of(problem, isa):
    """All of a problem; those of weights with sums that tasks share, too, of which a stage makes weights."""
    for plan in variants(problem, machine_for(isa)):
        yield plan
        if isinstance(plan, WeightsPlan) and plan.chunks == 1 and plan.block[0] == problem.batch == 2:
            yield replace(plan, block=(1, *plan.block[1:]), chunks=2)


@pytest.mark.parametrize("isa", LEVELS)
@pytest.mark.parametrize("dtype", ["bf16", "f16"])
@pytest.mark.parametrize(("unknown", "channels"), [(W, (16, 33)), (W, (5, 17)), (Y, (16, 33)), (X, (33, 16))])
def test_nothing_is_read_or_written_behind_it(isa, dtype, unknown, channels):
    if why_not(isa):
        pytest.skip(f"{isa}: {why_not(isa)}")
    problem = problem_of(unknown, (7, 9), (7, 9), (3, 3), channels=channels, low=1, batch=2, layout="NXC")
    for plan in plans_of(replace(problem, dtype=dtype, out_dtype=dtype), isa):
        check_plan(asked(plan), plan, machine_for(isa))
