"""Weights gradients of few channels on tiles whose rows are numbers of a window: all taps share blocks of tiles."""

from dataclasses import replace

import numpy as np
import pytest

from codegen.dense_problems import W, problem_of
from codegen.matrix_checks import BF16_KINDS, ISA, check_blocks, check_kind, check_pieces, data, products_of, run
from codegen.random_problems import altered, check_plan, random_problem
from convgrad.plan.by_matrix.window_weights import WindowWeightsPlan
from convgrad.plan.choose import choose, variants
from convgrad.plan.machine import machine_for, why_not

pytestmark = pytest.mark.skipif(why_not(ISA) is not None, reason=f"tiles cannot be emulated here: {why_not(ISA)}")
MACHINE = machine_for(ISA)
PROBLEMS = {
    "a first layer": problem_of(W, (23, 23), (11, 11), (7, 7), channels=(3, 33), stride=2, low=2, batch=2),
    "channels last": problem_of(W, (23, 21), (11, 10), (7, 5), channels=(3, 40), stride=2, low=2, layout="NXC"),
    "patches": problem_of(W, (32, 24), (4, 3), (8, 8), channels=(3, 20), stride=8, batch=3),
    "one channel": problem_of(W, (200,), (39,), (10,), channels=(1, 50), stride=5, batch=2),
    "half a block of tiles": problem_of(W, (9, 11), (9, 11), (3, 3), channels=(5, 20), low=1),
    "no more than a block": problem_of(W, (9, 11), (9, 11), (2, 4), channels=(4, 20), low=(0, 1)),
    "sixteen channels": problem_of(W, (7, 9), (7, 9), (3, 3), channels=(16, 33), low=1, batch=2, layout="NXC"),
    "groups": problem_of(W, (9, 11), (9, 11), (3, 3), channels=(6, 18), groups=3, low=1),
    "three axes": problem_of(W, (5, 6, 9), (5, 6, 9), (3, 3, 3), channels=(2, 18), low=1, batch=2),
    "taps far apart": problem_of(W, (13, 13), (13, 13), (3, 3), channels=(4, 18), dilation=(9, 2), low=(9, 2)),
    "the bias gradient": problem_of(W, (9, 9), (9, 9), (3, 3), channels=(3, 40), low=1, bias_gradient="y"),
}


def plan_of(problem):
    return next(plan for plan in variants(problem, MACHINE) if isinstance(plan, WindowWeightsPlan))


@pytest.mark.parametrize("dtype", ["bf16", "f16"])
@pytest.mark.parametrize("name", PROBLEMS)
def test_whole_numbers_are_exact(name, dtype):
    out_dtype = "f32" if list(PROBLEMS).index(name) % 2 else dtype
    check_blocks(plan_of(replace(PROBLEMS[name], dtype=dtype, out_dtype=out_dtype)), (0, 1, 2, 3))


@pytest.mark.parametrize("name", ["a first layer", "half a block of tiles", "one channel"])
def test_all_pieces_are_gathered(name):
    check_pieces(plan_of(replace(PROBLEMS[name], dtype="f16", out_dtype="f32")))


@pytest.mark.parametrize("kind", BF16_KINDS)
def test_numbers_of_every_kind_are_multiplied_as_f32(kind):
    check_kind(plan_of(replace(PROBLEMS["a first layer"], dtype="bf16", out_dtype="f32")), kind)


@pytest.mark.parametrize("side", [0, 1])
@pytest.mark.parametrize("value", [np.inf, np.nan, 2.0**-131])
def test_one_extreme_number_gives_the_bits_of_vectors(side, value):
    plan = plan_of(replace(PROBLEMS["a first layer"], dtype="bf16", out_dtype="f32"))
    given = data(plan.problem, np.random.default_rng(2), lambda rng, s: rng.standard_normal(s).round(2))
    assert not run(plan, given)[1]
    name = sorted(given)[side]
    given[name].flat[given[name].size // 2] = value
    result, again = run(plan, given)
    assert again
    np.testing.assert_array_equal(result.view(np.uint32), run(plan.fallback, given)[0].view(np.uint32))


def test_several_shares_of_lanes_leave_each_other_alone():
    """Rows that fill up tiles lie behind the sums of a block of lanes, not in those of the next."""
    problem = problem_of(W, (9, 11), (9, 11), (3, 3), channels=(3, 120), low=1, batch=2, dtype="bf16")
    plan = plan_of(problem)
    assert plan.lane_blocks == 4
    for shares, chunks in ((1, 1), (4, 1), (2, 2)):
        changed = replace(plan, lane_shares=shares, chunks=chunks, block=(1, 4, 11))
        for low in (False, True):
            check_plan(problem, changed, MACHINE, low=low)


def test_random_problems():
    found = 0
    for seed in range(500, 1400):
        problem = random_problem(np.random.default_rng(seed))
        if problem.unknown is not W or problem.dtype == "f64":
            continue
        for plan in variants(replace(problem, dtype="bf16", out_dtype=("bf16", "f32")[seed % 2]), MACHINE):
            if isinstance(plan, WindowWeightsPlan):
                changed = plan if seed % 3 == 0 else altered(plan, np.random.default_rng(seed))
                check_plan(plan.problem, changed, MACHINE, seed, low=bool(seed % 2))
                found += 1
    assert found > 20


def test_a_window_takes_as_few_products_as_its_numbers_fill(monkeypatch):
    """147 numbers of a 7x7 on three channels are five blocks of two tiles, 2 x 11 rows of 12 windows nine steps."""
    plan = plan_of(replace(PROBLEMS["a first layer"], dtype="bf16", out_dtype="f32"))
    plan = replace(plan, block=(2, 11, 11), chunks=1)
    assert (plan.window_numbers, plan.row_blocks, plan.depth) == (147, 5, 9 * 32)
    assert products_of(plan, monkeypatch) == 5 * 2 * 9 * plan.lane_blocks * plan.width // 16


def test_half_a_block_of_tiles_is_not_multiplied_in_vain(monkeypatch):
    plan = plan_of(replace(PROBLEMS["half a block of tiles"], dtype="bf16", out_dtype="f32"))
    plan = replace(plan, block=(1, 9, 11), chunks=1)
    assert plan.window_numbers == 32 + 13
    steps = plan.depth // 32
    assert products_of(plan, monkeypatch) == (2 + 1) * steps * plan.lane_blocks * plan.width // 16


def test_chosen_for_first_layers():
    layer = problem_of(W, (224, 224), (112, 112), (7, 7), channels=(3, 64), stride=2, low=3, dtype="bf16")
    assert isinstance(choose(replace(layer, out_dtype="bf16"), MACHINE), WindowWeightsPlan)
    assert not any(isinstance(plan, WindowWeightsPlan) for plan in variants(replace(layer, dtype="f32"), MACHINE))
    one_tap = problem_of(W, (56, 56), (56, 56), (1, 1), channels=(3, 64), dtype="bf16")
    assert not any(isinstance(plan, WindowWeightsPlan) for plan in variants(one_tap, MACHINE))
    many = problem_of(W, (56, 56), (56, 56), (3, 3), channels=(17, 64), low=1, dtype="bf16")
    assert not any(isinstance(plan, WindowWeightsPlan) for plan in variants(many, MACHINE))


@pytest.mark.parametrize("layout", ["NCX", "NXC"])
def test_few_numbers_of_a_window_are_for_vectors_where_channels_of_y_lie_together(layout):
    layer = problem_of(W, (16000,), (3199,), (10,), channels=(1, 512), stride=5, dtype="bf16",
                       layout=layout)  # fmt: skip
    chosen = choose(replace(layer, out_dtype="bf16"), MACHINE)
    assert isinstance(chosen, WindowWeightsPlan) == (layout == "NCX")
