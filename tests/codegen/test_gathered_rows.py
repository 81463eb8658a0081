"""Tiles of outputs one after the other, of lines of channels that are copied from the tensor as they are needed."""

from dataclasses import replace

import numpy as np
import pytest

from codegen.dense_problems import W, X, Y, problem_of
from codegen.matrix_checks import BF16_KINDS, ISA, check_blocks, check_kind, check_one_number, products_of
from codegen.random_problems import altered, check_plan, random_problem
from convgrad.plan.by_matrix import choose_tile_by_tile
from convgrad.plan.by_matrix.gathered_rows import GatheredRowsPlan
from convgrad.plan.by_matrix.matrix import MatrixDataPlan
from convgrad.plan.choose import choose, variants
from convgrad.plan.machine import machine_for, why_not
from convgrad.plan.order import in_runs

pytestmark = pytest.mark.skipif(why_not(ISA) is not None, reason=f"tiles cannot be emulated here: {why_not(ISA)}")
MACHINE = machine_for(ISA)
LAST = {"layout": "NXC", "dtype": "bf16"}
PROBLEMS = {
    "one tap": problem_of(Y, (9, 7), (9, 7), (1, 1), channels=(70, 53), batch=2, **LAST),
    "one tap, image side": problem_of(X, (9, 7), (9, 7), (1, 1), channels=(53, 70), batch=2, bias=False, **LAST),
    "one tap with strides": problem_of(Y, (11, 9), (6, 5), (1, 1), channels=(32, 33), stride=2, **LAST),
    "windows beside each other": problem_of(Y, (8, 12), (4, 6), (2, 2), channels=(40, 17), stride=2, bias=True, **LAST),
    "phases": problem_of(X, (8, 12), (4, 6), (2, 2), channels=(20, 40), stride=2, batch=2, **LAST),
    "phases of one axis": problem_of(X, (30,), (10,), (3,), channels=(33, 64), stride=3, batch=3, **LAST),
    "windows that overlap": problem_of(Y, (9, 10), (7, 6), (3, 5), channels=(33, 20), **LAST),
    "gaps between windows": problem_of(Y, (5, 14), (5, 3), (1, 2), channels=(64, 31), stride=(1, 6), **LAST),
    "three axes": problem_of(Y, (4, 6, 8), (2, 3, 4), (2, 2, 2), channels=(48, 16), stride=2, **LAST),
    "groups": problem_of(Y, (6, 9), (6, 9), (1, 1), channels=(20, 33), groups=3, bias=True, **LAST),
    "one channel": problem_of(Y, (6, 9), (6, 9), (1, 1), channels=(1, 5), **LAST),
}


@pytest.fixture(autouse=True)
def _however_few_outputs(monkeypatch):
    monkeypatch.setattr(choose_tile_by_tile, "FEWEST_OUTPUTS", 1)


def plans_of(problem):
    return [plan for plan in variants(problem, MACHINE) if isinstance(plan, GatheredRowsPlan)]


@pytest.mark.parametrize("out_dtype", ["f32", "bf16"])
@pytest.mark.parametrize("name", PROBLEMS)
def test_whole_numbers_are_exact(name, out_dtype):
    (plan,) = plans_of(replace(PROBLEMS[name], out_dtype=out_dtype))
    check_blocks(plan, (0, 1, 2))


@pytest.mark.parametrize("name", ["one tap", "windows beside each other", "phases"])
def test_results_whose_channels_are_planes(name):
    """Of which only those are written together that lie equally far apart."""
    last = PROBLEMS[name]
    first = problem_of(
        last.unknown, last.x_extent, last.y_extent, last.taps, channels=(last.x_channels, last.y_channels),
        stride=last.stride, batch=last.batch, dtype="bf16",
    )  # fmt: skip
    strides = {f"{last.solved}_strides": getattr(first, f"{last.solved}_strides")}
    plans = plans_of(replace(last, out_dtype="bf16", **strides))
    assert plans
    for plan in plans:
        check_blocks(plan, (0, 1))


@pytest.mark.parametrize("kind", BF16_KINDS)
def test_numbers_of_every_kind_are_multiplied_as_f32(kind):
    (plan,) = plans_of(replace(PROBLEMS["windows beside each other"], bias=False, out_dtype="f32"))
    check_kind(plan, kind)


@pytest.mark.parametrize("side", [0, 1])
@pytest.mark.parametrize("value", [np.inf, np.nan, 2.0**-131])
@pytest.mark.parametrize("name", ["one tap", "phases"])
def test_one_extreme_number_gives_the_bits_of_vectors(name, side, value):
    (plan,) = plans_of(replace(PROBLEMS[name], out_dtype="f32"))
    check_one_number(plan, side, value)


def test_random_problems():
    found = 0
    for seed in range(3000, 4600):
        problem = random_problem(np.random.default_rng(seed))
        if problem.unknown is W or problem.accumulate:
            continue
        for plan in plans_of(replace(problem, dtype="bf16", out_dtype=("bf16", "f32")[seed % 2])):
            changed = plan if seed % 3 == 0 else altered(plan, np.random.default_rng(seed))
            check_plan(plan.problem, changed, MACHINE, seed, low=bool(seed % 2))
            found += 1
    assert found > 15


def test_padding_and_other_types_are_left_to_slabs():
    padded = problem_of(Y, (9, 9), (9, 9), (3, 3), channels=(64, 64), low=1, **LAST)
    planes = problem_of(Y, (9, 9), (9, 9), (1, 1), channels=(64, 64), dtype="bf16")
    assert not plans_of(padded)
    assert not plans_of(planes)
    assert not plans_of(replace(PROBLEMS["one tap"], dtype="f32"))
    assert not plans_of(replace(PROBLEMS["one tap"], dtype="f16"))


def test_chosen_for_one_tap_and_windows_that_do_not_overlap():
    for problem in (
        problem_of(Y, (56, 56), (56, 56), (1, 1), channels=(256, 64), batch=4, **LAST),
        problem_of(X, (56, 56), (28, 28), (2, 2), channels=(256, 512), stride=2, **LAST),
    ):
        assert type(choose(replace(problem, out_dtype="bf16"), MACHINE)) is GatheredRowsPlan


def test_windows_that_overlap_are_left_to_slabs_where_memory_has_them():
    """Numbers come once for every window then."""
    large, small = (
        problem_of(Y, (2 * n + 1, 2 * n + 1), (n, n), (3, 3), channels=(64, 128), stride=2, **LAST) for n in (128, 24)
    )
    assert type(choose(replace(large, out_dtype="bf16"), MACHINE)) is MatrixDataPlan
    apart = problem_of(Y, (256, 256), (128, 128), (2, 2), channels=(64, 128), stride=2, **LAST)
    assert type(choose(replace(apart, out_dtype="bf16"), MACHINE)) is GatheredRowsPlan
    again = {problem.x_extent: plans_of(problem)[0].moves_again for problem in (large, small, apart)}
    assert [bool(moves) for moves in again.values()] == [True, False, False]


def test_the_order_of_sums_is_that_of_other_tiles():
    problem = replace(PROBLEMS["windows beside each other"], out_dtype="bf16")
    (plan,) = plans_of(problem)
    assert plan.order_kind == MatrixDataPlan.KIND
    assert plan.i_block == 64
    assert [again.block for again in plans_of(replace(problem, order=plan.order))] == [plan.block]
    assert not plans_of(replace(problem, order=in_runs(MatrixDataPlan.KIND, 32)))


def test_no_product_is_for_nothing(monkeypatch):
    problem = problem_of(Y, (8, 12), (4, 6), (2, 2), channels=(64, 32), stride=2, **LAST)
    (plan,) = plans_of(replace(problem, out_dtype="bf16"))
    plan = replace(plan, block=(1, 4, 6), blocks_per_task=1)
    assert products_of(plan, monkeypatch) == 2 * 2 * 4 * 2


def test_few_outputs_are_left_to_those_who_pack_weights_for_themselves(monkeypatch):
    monkeypatch.setattr(choose_tile_by_tile, "FEWEST_OUTPUTS", 65)
    assert not plans_of(problem_of(Y, (8, 8), (8, 8), (1, 1), channels=(64, 64), **LAST))
    monkeypatch.setattr(choose_tile_by_tile, "FEWEST_OUTPUTS", 64)
    assert plans_of(problem_of(Y, (8, 8), (8, 8), (1, 1), channels=(64, 64), **LAST))
