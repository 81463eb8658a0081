"""Few channels on tiles: windows are put together number by number, and rows of a tile are 32 numbers of one."""

from dataclasses import replace

import ml_dtypes
import numpy as np
import pytest

from codegen.dense_problems import X, Y, problem_of
from codegen.matrix_checks import (
    BF16_KINDS,
    ISA,
    alterations_of,
    check_blocks,
    check_kind,
    check_pieces,
    data,
    products_of,
    run,
)
from codegen.random_problems import altered, check_plan, random_problem
from convgrad.plan.by_matrix.gathered_runs import GatheredRunPlan
from convgrad.plan.by_matrix.matrix import DEPTH
from convgrad.plan.choose import choose, variants
from convgrad.plan.machine import machine_for, why_not

pytestmark = pytest.mark.skipif(why_not(ISA) is not None, reason=f"tiles cannot be emulated here: {why_not(ISA)}")
MACHINE = machine_for(ISA)
PROBLEMS = {
    "a first layer": problem_of(Y, (23, 23), (11, 11), (7, 7), channels=(3, 33), stride=2, low=2),
    "channels last, bias": problem_of(
        Y, (23, 23), (11, 11), (7, 7), channels=(3, 33), stride=2, low=2, layout="NXC", bias=True
    ),
    "patches": problem_of(Y, (48, 32), (3, 2), (16, 16), channels=(3, 40), stride=16, layout="NXC"),
    "one channel": problem_of(Y, (200,), (39,), (10,), channels=(1, 20), stride=5),
    "rows of 32": problem_of(Y, (9, 20), (9, 17), (3, 4), channels=(8, 17), low=(1, 0), batch=2),
    "an odd window": problem_of(Y, (9, 20), (9, 20), (3, 3), channels=(5, 20), low=1),
    "groups": problem_of(Y, (9, 20), (9, 20), (3, 5), channels=(4, 17), low=(1, 2), groups=2),
    "three axes": problem_of(Y, (5, 6, 9), (5, 6, 9), (3, 3, 3), channels=(2, 18), low=1),
    "sixteen channels": problem_of(Y, (9, 13), (5, 7), (3, 3), channels=(16, 40), stride=2, low=1, layout="NXC"),
    "dilation of rows": problem_of(Y, (13, 9), (13, 9), (3, 3), channels=(3, 16), dilation=(4, 1), low=(4, 1)),
    "parts that end with windows": problem_of(Y, (6, 9), (4, 7), (3, 3), channels=(16, 16), layout="NXC"),
}
TF32 = {"dtype": "f32", "fpmath_mode": "tf32"}


def asked(name, dtype):
    """A problem with results of f32; f32 of two pieces."""
    return replace(PROBLEMS[name], out_dtype="f32", **(TF32 if dtype == "f32" else {"dtype": dtype}))


def plan_of(problem):
    return next(plan for plan in variants(problem, MACHINE) if isinstance(plan, GatheredRunPlan))


@pytest.mark.parametrize("dtype", ["f32", "bf16", "f16"])
@pytest.mark.parametrize("name", PROBLEMS)
def test_whole_numbers_are_exact(name, dtype):
    check_blocks(plan_of(asked(name, dtype)), alterations_of(dtype, list(PROBLEMS).index(name)))


@pytest.mark.parametrize("name", ["a first layer", "one channel", "an odd window", "patches"])
def test_all_pieces_are_multiplied(name):
    check_pieces(plan_of(asked(name, "f16")))


@pytest.mark.parametrize("kind", BF16_KINDS)
def test_bf16_of_every_kind_is_multiplied_as_f32(kind):
    check_kind(plan_of(asked("a first layer", "bf16")), kind)


@pytest.mark.parametrize("dtype", ["f32", "bf16"])
@pytest.mark.parametrize("side", ["x", "w"])
@pytest.mark.parametrize("value", [np.inf, np.nan, 2.0**-131])
def test_one_extreme_number_gives_the_bits_of_vectors(dtype, side, value):
    plan = plan_of(asked("an odd window", dtype))
    given = data(
        plan.problem, np.random.default_rng(2), lambda rng, s: rng.standard_normal(s).astype(ml_dtypes.bfloat16)
    )
    given[side].flat[-1] = value
    result, again = run(plan, given)
    assert again
    np.testing.assert_array_equal(result.view(np.uint32), run(plan.fallback, given)[0].view(np.uint32))


def test_random_problems():
    found = 0
    for seed in range(1300):
        for plan in variants(random_problem(np.random.default_rng(seed)), MACHINE):
            if isinstance(plan, GatheredRunPlan):
                changed = plan if seed % 3 == 0 else altered(plan, np.random.default_rng(seed))
                check_plan(plan.problem, changed, MACHINE, seed, low=bool(seed % 2))
                found += 1
    assert found > 30


@pytest.mark.parametrize("mode", ["bf16", "any"])
def test_numbers_beyond_a_window_are_not_multiplied_where_nobody_looks_for_infinity(mode):
    problem = replace(PROBLEMS["a first layer"], fpmath_mode=mode)
    assert not any(isinstance(plan, GatheredRunPlan) for plan in variants(problem, MACHINE))


def test_a_window_takes_as_few_products_as_its_numbers_fill(monkeypatch):
    """147 numbers of a 7x7 on three channels are five tiles; 16 outputs are one tile of rows."""
    plan = plan_of(asked("a first layer", "bf16"))
    assert (plan.run, plan.run_blocks) == (147, 5)
    plan = replace(plan, block=(1, 1, 11), blocks_per_task=plan.lane_blocks)
    assert products_of(plan, monkeypatch) == 11 * 5 * (2 + 2)


def test_rows_of_a_tile_lie_in_different_sets_of_a_cache():
    for name in PROBLEMS:
        plan = plan_of(asked(name, "bf16"))
        assert plan.window_pitch >= plan.run
        assert plan.window_pitch // DEPTH % 2 == 1


def test_chosen_for_few_channels():
    layer = problem_of(Y, (224, 224), (112, 112), (7, 7), channels=(3, 64), stride=2, low=3, dtype="bf16")
    layer = replace(layer, out_dtype="bf16")
    plan = choose(layer, MACHINE)
    assert isinstance(plan, GatheredRunPlan)
    assert "of whole windows" in str(plan)
    assert not isinstance(choose(replace(layer, unknown=X), MACHINE), GatheredRunPlan)
    wide = problem_of(Y, (56, 56), (56, 56), (3, 3), channels=(64, 64), low=1, dtype="bf16")
    assert not isinstance(choose(wide, MACHINE), GatheredRunPlan)


def test_not_for_three_pieces_nor_for_many_channels():
    many = problem_of(Y, (9, 13), (9, 13), (3, 3), channels=(17, 40), low=1, dtype="bf16")
    for problem in (PROBLEMS["a first layer"], replace(PROBLEMS["sixteen channels"], dtype="f32"), many):
        assert not any(isinstance(plan, GatheredRunPlan) for plan in variants(problem, MACHINE))
