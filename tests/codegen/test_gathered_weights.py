"""Weights gradients on tiles that gather what a tap meets: windows side by side, and no more steps than they need."""

from dataclasses import replace

import numpy as np
import pytest

from codegen.dense_problems import W, problem_of
from codegen.matrix_checks import (
    ISA,
    KEPT,
    WIDE,
    alterations_of,
    check_blocks,
    check_pieces,
    check_random,
    data,
    products_of,
    run,
)
from codegen.random_problems import check_plan
from convgrad.codegen.by_matrix.gathered_weights import row_vectors
from convgrad.plan.by_matrix.gathered_weights import GatheredWeightsPlan
from convgrad.plan.by_matrix.matrix_weights import MatrixWeightsPlan
from convgrad.plan.choose import choose, variants
from convgrad.plan.machine import machine_for, why_not

pytestmark = pytest.mark.skipif(why_not(ISA) is not None, reason=f"tiles cannot be emulated here: {why_not(ISA)}")
MACHINE = machine_for(ISA)
PROBLEMS = {name: problem for name, problem in WIDE.items() if problem.unknown is W} | {
    "rows of four": problem_of(W, (8, 8), (4, 4), (4, 4), channels=(40, 33), stride=2, low=1, batch=5),
    "odd rows": problem_of(W, (7, 7), (7, 7), (3, 3), channels=(33, 20), low=1, batch=3, layout="NXC"),
    "rows of more than a tile": problem_of(W, (3, 70), (3, 70), (1, 3), channels=(17, 17), low=(0, 1)),
    "rows that end with a step": problem_of(W, (16, 6), (16, 6), (3, 3), channels=(32, 20), low=1),
    "taps far beyond": problem_of(W, (13, 13), (13, 13), (3, 3), channels=(20, 18), dilation=9, low=9),
    "taps that never meet": problem_of(W, (5, 5), (5, 5), (3, 3), channels=(20, 18), dilation=6, low=6),
    "three channels": problem_of(W, (23, 23), (11, 11), (7, 7), channels=(3, 33), stride=2, low=2, batch=2),
    "a stride of eight": problem_of(W, (77,), (9,), (16,), channels=(20, 35), stride=8, low=4, batch=2),
    "three axes of short rows": problem_of(W, (7, 6, 5), (4, 3, 3), (3, 3, 3), channels=(17, 33), stride=2, low=1),
}


def plan_of(problem, machine=MACHINE):
    return next(plan for plan in variants(problem, machine) if type(plan) is GatheredWeightsPlan)


@pytest.mark.parametrize("dtype", ["f32", "bf16", "f16"])
@pytest.mark.parametrize("name", PROBLEMS)
def test_whole_numbers_are_exact(name, dtype):
    plan = plan_of(replace(PROBLEMS[name], dtype=dtype, out_dtype="f32"))
    check_blocks(plan, alterations_of(dtype, list(PROBLEMS).index(name)))


@pytest.mark.parametrize("dtype", ["f32", "f16"])
@pytest.mark.parametrize("name", ["odd rows", "rows of four", "rows that end with a step"])
def test_all_pieces_are_gathered(name, dtype):
    plan = plan_of(replace(PROBLEMS[name], dtype=dtype, out_dtype="f32"))
    check_pieces(replace(plan, block=(1, *(axis.windows for axis in plan.axes[1:]))))


@pytest.mark.parametrize("kind", KEPT)
def test_sums_become_weights(kind):
    sizes, strides, out_dtype = KEPT[kind]
    problem = problem_of(W, (12, 13), (12, 13), (3, 3), low=1, batch=2, bias_gradient="y", **sizes, **strides)
    problem = replace(problem, dtype="bf16" if out_dtype == "bf16" else "f32", out_dtype=out_dtype)
    for block, chunks in (((2, 12, 13), 1), ((1, 4, 13), 1), ((1, 4, 5), 3)):
        check_plan(problem, replace(plan_of(problem), block=block, chunks=chunks), MACHINE, low=True)


def test_rows_that_become_weights_together_end_with_those_that_are_summed_together():
    """Two tiles of rows at a time of three: squares of as many rows as the share has halves would reach beyond both."""
    problem = problem_of(W, (5, 9), (5, 9), (1, 7), channels=(192, 33), low=(0, 3), bias_gradient="y")
    problem = replace(problem, dtype="bf16", out_dtype="bf16")
    for kind in (GatheredWeightsPlan, MatrixWeightsPlan):
        plan = next(plan for plan in variants(problem, MACHINE) if type(plan) is kind)
        plan = replace(plan, row_shares=2, lane_shares=1, chunks=1)
        assert plan.by_rows
        assert not plan.taps_inside
        assert plan.share_rows % plan.rows_at_once > 0
        for low in (False, True):
            check_plan(problem, plan, MACHINE, low=low)


def test_random_problems():
    check_random(GatheredWeightsPlan, range(300, 420), least=20)


@pytest.mark.parametrize("dtype", ["f32", "bf16"])
@pytest.mark.parametrize("side", [0, 1])
def test_one_extreme_number_gives_the_bits_of_vectors(dtype, side):
    plan = plan_of(replace(PROBLEMS["odd rows"], dtype=dtype, out_dtype="f32"))
    given = data(plan.problem, np.random.default_rng(2), lambda rng, s: rng.standard_normal(s).round(2))
    assert not run(plan, given)[1]
    name = sorted(given)[side]
    given[name].flat[given[name].size // 2] = np.inf
    result, again = run(plan, given)
    assert again
    np.testing.assert_array_equal(result.view(np.uint32), run(plan.fallback, given)[0].view(np.uint32))


@pytest.mark.parametrize(
    ("name", "block", "gathered", "flat"),
    [
        ("rows of four", (5, 4, 4), 3, 5),  # 80 windows; five images of 4 rows of 6
        (
            "taps far beyond",
            (1, 13, 13),
            (2 + 6 + 3) / 3,
            13,
        ),  # 4, 13 and 4 rows of 14, the last within steps 3 to 5; 13 rows of 32
    ],
)
def test_sums_have_as_many_steps_as_windows_need(name, block, gathered, flat, monkeypatch):
    plan = replace(plan_of(PROBLEMS[name]), block=block)
    other = next(plan for plan in variants(PROBLEMS[name], MACHINE) if type(plan) is MatrixWeightsPlan)
    tiles = plan.row_tiles * plan.width // 16 * -(-plan.row_count // plan.row_channels) * plan.lane_blocks * plan.taps
    products = len(plan.products) * tiles
    assert products_of(plan, monkeypatch) == products * gathered
    assert products_of(replace(other, block=block), monkeypatch) == products * flat


LINES = [(0, 32), (32, 32)]


@pytest.mark.parametrize(
    ("windows", "vectors"),
    [(3, [(0, 4)]), (4, [(0, 4)]), (9, [(0, 16)]), (32, [(0, 32)]), (33, [(0, 32), (32, 4)]), (49, LINES)],
)  # fmt: skip
def test_rows_move_in_as_few_vectors_as_hold_them(windows, vectors):
    assert row_vectors(windows) == vectors


@pytest.mark.parametrize(
    ("problem", "gathers"),
    [
        (problem_of(W, (8, 8), (4, 4), (4, 4), channels=(512, 512), stride=2, low=1, batch=8), True),
        (problem_of(W, (33, 33), (33, 33), (3, 3), channels=(256, 256), dilation=12, low=12), True),
        (problem_of(W, (64, 64), (64, 64), (3, 3), channels=(128, 256), low=1), True),
        (problem_of(W, (64, 64), (64, 64), (3, 3), channels=(64, 64), low=1), False),
        (problem_of(W, (64, 64), (64, 64), (1, 1), channels=(64, 64)), False),
    ],
    ids=["small images", "taps far apart", "many channels", "few channels", "one tap"],
)
def test_what_taps_move_by_parts_of_lines_is_gathered_for_many_lanes(problem, gathers):
    assert isinstance(choose(replace(problem, dtype="bf16", out_dtype="bf16"), MACHINE), GatheredWeightsPlan) == gathers
