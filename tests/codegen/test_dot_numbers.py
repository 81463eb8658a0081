"""Numbers that dot products take differently are computed on vectors, bit by bit."""

from dataclasses import replace

import numpy as np
import pytest

from codegen.dense_problems import W, X, Y, problem_of
from codegen.dot_cases import (
    EMULATED,
    IDS,
    PLANS,
    SMALL,
    check_watched,
    in_bf16,
    needs_dots,
    plan_of,
)
from codegen.emitted import load_here
from codegen.matrix_checks import BF16_KINDS, check_kind, check_one_number, run
from codegen.random_problems import check_plan
from convgrad.codegen.lower import lower
from convgrad.plan.by_dots.dots import DotDataPlan
from convgrad.plan.choose import variants
from convgrad.plan.machine import machine_for

pytestmark = needs_dots


@pytest.mark.parametrize("kind", BF16_KINDS)
@pytest.mark.parametrize("problem", SMALL, ids=IDS)
def test_every_kind_of_data_is_multiplied_as_f32(problem, kind):
    check_kind(plan_of(problem), kind)


@pytest.mark.parametrize("side", [0, 1])
@pytest.mark.parametrize("value", [-np.inf, np.nan, 2.0**-133])
@pytest.mark.parametrize("problem", SMALL, ids=IDS)
def test_one_such_number_gives_the_bits_of_vectors(problem, value, side):
    check_one_number(plan_of(in_bf16(problem, "bf16")), side, value)


@pytest.mark.parametrize("odd", [False, True])
@pytest.mark.parametrize("layout", ["NCX", "NXC"])
@pytest.mark.parametrize("unknown", [X, W, Y])
def test_every_number_is_watched(unknown, layout, odd):
    """Wherever one is, and however it became one of a pair."""
    channels = (3, 5) if odd else (4, 6)
    problem = in_bf16(problem_of(unknown, (3, 5), (3, 5), (1, 3), channels=channels, low=(0, 1), layout=layout))
    check_watched(plan_of(problem))


def test_what_is_added_to_an_output_is_computed_on_vectors():
    for problem in SMALL:
        plans = list(variants(replace(problem, accumulate=True), machine_for(EMULATED)))
        assert not any(isinstance(plan, PLANS) for plan in plans)


@pytest.mark.parametrize("mode", ["bf16", "any", "strict", "tf32"])
@pytest.mark.parametrize("unknown", [X, W, Y])
def test_f32_is_rounded_to_pairs_where_that_is_allowed(unknown, mode):
    problem = problem_of(unknown, (9, 9), (9, 9), (3, 3), channels=(34, 17), low=1, fpmath_mode=mode)
    found = [plan for plan in variants(problem, machine_for(EMULATED)) if isinstance(plan, PLANS)]
    assert bool(found) == (mode in ("bf16", "any"))
    for plan in found:
        check_plan(problem, plan, machine_for(EMULATED))


def test_weights_that_are_packed_in_rows_are_watched():
    """Of a panel of whole vectors, three of them, and of the last one."""
    problem = in_bf16(problem_of(X, (1, 1), (1, 1), (1, 1), channels=(56, 6), batch=3), "bf16")
    packed = next(plan for plan in variants(problem, machine_for(EMULATED)) if type(plan) is DotDataPlan)
    plan = replace(packed, width=48, blocks_per_task=2, writes_in_place=False)
    plan = replace(plan, tile=(*plan.tile[:-1], 1), block=(*plan.block[:-1], 1))
    module = lower(plan)
    made = module, load_here(module, machine_for(EMULATED))
    ones = {name: np.ones(plan.problem.shapes[name]) for name in "wy"}
    assert not run(plan, ones, made=made)[1]
    for place in range(ones["w"].size):
        ones["w"].flat[place] = 2.0**-130
        assert run(plan, ones, made=made)[1], f"{place} of weights was not seen"
        ones["w"].flat[place] = 1
