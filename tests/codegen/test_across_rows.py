"""Data on tiles that go on across rows of the image: numbered through in the slab, or gathered for each tap."""

from dataclasses import replace

import numpy as np
import pytest

from codegen.dense_problems import SAME, X, Y, problem_of
from codegen.matrix_checks import ISA, alterations_of, check_blocks, check_one_number, check_pieces, products_of
from codegen.random_problems import altered, check_plan, random_problem
from convgrad.plan.by_matrix.across_rows import AcrossRowsPlan, GatheredDataPlan
from convgrad.plan.by_matrix.choose_across_rows import across_rows_candidates
from convgrad.plan.by_matrix.choose_matrix import matrix_data_candidates
from convgrad.plan.by_matrix.matrix import MatrixDataPlan
from convgrad.plan.choose import choose, variants
from convgrad.plan.machine import machine_for, why_not

pytestmark = pytest.mark.skipif(why_not(ISA) is not None, reason=f"tiles cannot be emulated here: {why_not(ISA)}")
MACHINE = machine_for(ISA)
TWO = {"stride": 2, "layout": "NXC"}
PROBLEMS = {
    "small images": problem_of(Y, (7, 7), (7, 7), (3, 3), channels=(40, 33), batch=3, **SAME),
    "small images, image side": problem_of(X, (7, 7), (7, 7), (3, 3), channels=(33, 40), batch=2, low=1),
    "odd rows": problem_of(Y, (9, 17), (9, 17), (1, 7), channels=(70, 53), low=(0, 3), layout="NXC"),
    "no more outputs than a tile": problem_of(Y, (5, 4), (4, 4), (2, 1), channels=(33, 17), layout="NXC"),
    "taps far apart": problem_of(Y, (13, 11), (13, 11), (3, 3), channels=(20, 18), dilation=4, low=4),
    "taps that never meet": problem_of(Y, (5, 5), (5, 5), (3, 3), channels=(20, 18), dilation=6, low=6),
    "strides": problem_of(Y, (21, 19), (11, 10), (3, 3), channels=(33, 17), stride=2, low=1, batch=2, layout="NXC"),
    "strides of one axis": problem_of(Y, (9, 21), (9, 7), (3, 5), channels=(17, 40), stride=(1, 3), low=1),
    "one axis": problem_of(Y, (19,), (19,), (3,), channels=(40, 20), low=1, batch=5),
    "three axes": problem_of(Y, (4, 5, 6), (4, 5, 6), (3, 3, 3), channels=(34, 19), batch=2, low=1),
    "three axes, image side": problem_of(X, (4, 5, 6), (4, 5, 6), (2, 3, 3), channels=(19, 34), low=1),
    "groups and bias": problem_of(
        Y, (6, 9), (6, 9), (3, 3), channels=(16, 33), groups=3, bias=True, layout="NXC", low=1
    ),
}


def plans_of(problem):
    """Of both kinds, where there are both."""
    return [plan for plan in variants(problem, MACHINE) if type(plan) in (AcrossRowsPlan, GatheredDataPlan)]


@pytest.mark.parametrize("dtype", ["f32", "bf16", "f16"])
@pytest.mark.parametrize("name", PROBLEMS)
def test_whole_numbers_are_exact(name, dtype):
    problem = replace(PROBLEMS[name], dtype=dtype, out_dtype=dtype if list(PROBLEMS).index(name) % 2 else "f32")
    plans = plans_of(problem)
    kinds = {type(plan) for plan in plans}
    strides, phases = max(problem.stride) > 1, problem.unknown is X
    assert kinds == (
        {AcrossRowsPlan, GatheredDataPlan} - ({GatheredDataPlan if phases else AcrossRowsPlan} if strides else set())
    )
    for plan in plans:
        check_blocks(plan, alterations_of(dtype, list(PROBLEMS).index(name)))


@pytest.mark.parametrize("dtype", ["f32", "f16"])
@pytest.mark.parametrize("name", ["small images", "strides", "three axes, image side"])
def test_all_pieces_are_multiplied(name, dtype):
    for plan in plans_of(replace(PROBLEMS[name], dtype=dtype, out_dtype="f32")):
        check_pieces(replace(plan, i_block=plan.channel_unit))


@pytest.mark.parametrize("packs_weights", [False, True])
def test_every_share_of_channels_and_lanes(packs_weights):
    problem = problem_of(Y, (9, 17), (9, 17), (1, 7), channels=(70, 83), low=(0, 3), layout="NXC", batch=2, bias=True)
    for plan in plans_of(problem):
        assert plan.lane_blocks == 3
        for i_block, lanes in ((32, 1), (64, 2), (96, 3)):
            changed = replace(plan, i_block=i_block, blocks_per_task=lanes, packs_weights=packs_weights)
            check_plan(problem, changed, MACHINE, low=i_block == 64)


@pytest.mark.parametrize("side", [0, 1])
@pytest.mark.parametrize("value", [np.inf, 2.0**-120])
def test_one_extreme_number_gives_the_bits_of_vectors(side, value):
    for name in ("small images", "strides"):
        for plan in plans_of(PROBLEMS[name]):
            check_one_number(plan, side, value)


def test_random_problems():
    found = 0
    for seed in range(500, 640):
        for plan in plans_of(random_problem(np.random.default_rng(seed))):
            changed = plan if seed % 3 == 0 else altered(plan, np.random.default_rng(seed))
            check_plan(plan.problem, changed, MACHINE, seed, low=bool(seed % 2))
            found += 1
    assert found > 20


@pytest.mark.parametrize(
    ("problem", "dtype", "kind"),
    [
        (problem_of(Y, (17, 17), (17, 17), (1, 7), channels=(192, 192), low=(0, 3), batch=8), "bf16", AcrossRowsPlan),
        (problem_of(X, (56, 56), (56, 56), (3, 3), channels=(64, 64), low=1, batch=4), "f32", AcrossRowsPlan),
        (problem_of(X, (16, 16), (8, 8), (4, 4), channels=(256, 512), low=1, batch=8, **TWO), "bf16", AcrossRowsPlan),
        (problem_of(Y, (64, 64), (64, 64), (3, 3), channels=(64, 64), low=1), "f32", MatrixDataPlan),
        (problem_of(Y, (33, 33), (33, 33), (3, 3), channels=(128, 128), low=12, dilation=12), "bf16", MatrixDataPlan),
        (problem_of(Y, (16, 16), (8, 8), (4, 4), channels=(256, 512), low=1, batch=8, **TWO), "bf16", GatheredDataPlan),
    ],
    ids=["17 outputs", "56 outputs", "phases", "whole tiles", "taps far apart", "strides"],
)
def test_rows_that_fill_no_tiles_go_on_in_the_next(problem, dtype, kind):
    assert type(choose(replace(problem, dtype=dtype, out_dtype=dtype), MACHINE)) is kind


def test_whole_rows_have_nothing_to_gain():
    problem = problem_of(Y, (8, 16), (8, 16), (3, 3), channels=(64, 64), low=1)
    plan = next(plan for _, plan in matrix_data_candidates(problem, MACHINE) if type(plan) is MatrixDataPlan)
    assert not list(across_rows_candidates(plan, 0.0))


def test_tiles_are_as_few_as_their_rows_allow(monkeypatch):
    """61 positions of a 7x7 in rows of 9 are four tiles, 49 outputs that are gathered as well; row by row, seven."""
    problem = problem_of(Y, (7, 7), (7, 7), (3, 3), channels=(32, 16), low=1)
    for plan in plans_of(problem):
        plan = replace(plan, block=(1, 7, 7), blocks_per_task=1)
        assert products_of(plan, monkeypatch) == 4 * 9 * len(plan.products)
