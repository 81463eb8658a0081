"""Processors that load, or multiply, one vector a cycle have plans of their own, and the bits of all others."""

import numpy as np
import pytest

from codegen.buffers import StridedArray
from codegen.dense_problems import problem_of
from codegen.emitted import run_here
from codegen.random_problems import check_plan
from convgrad.codegen.lower import lower
from convgrad.plan.choose import choose
from convgrad.plan.machine import available_isas, machine_for
from convgrad.problem.conv import Unknown

DENSE = dict(image=(9, 14), windows=(9, 14), taps=(3, 3), low=1)
PROBLEMS = {
    "rows of 28": problem_of(Unknown.Y, (4, 28), (4, 28), (3, 3), channels=(20, 64), low=1, layout="NXC"),
    "rows of 14, channels first": problem_of(Unknown.Y, **DENSE, channels=(20, 64)),
    "rows of 16 in eights": problem_of(Unknown.X, (8, 16), (8, 16), (3, 3), channels=(256, 20), low=1, layout="NXC"),
    "phases": problem_of(Unknown.X, (8, 56), (4, 28), (4, 4), channels=(64, 20), stride=2, low=1, layout="NXC"),
    "phases as lanes": problem_of(
        Unknown.X, (24, 272), (3, 34), (16, 16), channels=(21, 21), stride=8, low=4, layout="NXC"
    ),
}
EVERY, ALONE = machine_for("avx512"), machine_for("avx512", loads_alone=True)


pytestmark = pytest.mark.skipif("avx512" not in available_isas(), reason="this CPU has no avx512")


def bits(problem, plan):
    """What a kernel makes of random numbers whose sums are rounded."""
    rng = np.random.default_rng(7)
    arrays = {name: StridedArray(shape, problem.strides[name], np.float32) for name, shape in problem.shapes.items()}
    for name, array in arrays.items():
        if name != problem.unknown.value:
            array.view[...] = rng.standard_normal(array.view.shape, dtype=np.float32)
    run_here(lower(plan), EVERY, [*(arrays[name] for name in "xwy"), None])
    return arrays[problem.unknown.value].view.view(np.uint32).copy()


@pytest.mark.parametrize("name", PROBLEMS)
def test_tiles_differ_and_bits_do_not(name):
    problem = PROBLEMS[name]
    plans = [choose(problem, machine) for machine in (EVERY, ALONE)]
    assert (plans[0].tile, plans[0].width) != (plans[1].tile, plans[1].width)
    np.testing.assert_array_equal(*(bits(problem, plan) for plan in plans))
    check_plan(problem, plans[1], ALONE)


def test_rows_of_a_tile_leave_room_for_what_they_meet():
    for problem in PROBLEMS.values():
        plan = choose(problem, ALONE)
        columns = plan.width // plan.lanes
        assert (np.prod(plan.tile) + 1) * columns < EVERY.registers, "the last vector of weights would be loaded again"


FEW = {
    "of two channels": problem_of(Unknown.Y, (64, 64), (64, 64), (5, 5), channels=(2, 16), low=2, layout="NXC"),
    "of an image": problem_of(Unknown.X, (30, 34), (30, 34), (5, 5), channels=(16, 3), low=2, layout="NXC"),
    "in rows of 7": problem_of(Unknown.Y, (7, 7), (7, 7), (3, 3), channels=(96, 8), low=1, batch=2),
}
ROWS = {
    "plain": problem_of(Unknown.Y, (14, 14), (14, 14), (4, 4), channels=(96, 8), low=1),
    "of an image": problem_of(Unknown.X, (20, 20), (20, 20), (5, 5), channels=(3, 32), low=2),
    "in phases": problem_of(Unknown.X, (99, 99), (33, 33), (5, 5), channels=(1, 64), low=1, stride=3),
}


def planned_for_one(problem):
    """What is planned where two vectors are multiplied a cycle, and where one is, which has the same bits."""
    one = machine_for("avx512", multiplies_alone=True)
    plans = choose(problem, EVERY), choose(problem, one)
    np.testing.assert_array_equal(*(bits(problem, plan) for plan in plans))
    check_plan(problem, plans[1], one)
    return plans


@pytest.mark.parametrize("name", FEW)
def test_few_channels_lie_along_vectors_where_their_products_hide(name):
    assert [plan.pixels for plan in planned_for_one(FEW[name])] == [True, False]


@pytest.mark.parametrize("name", ROWS)
def test_rows_are_read_where_they_lie_where_products_hide_that(name):
    assert [plan.reads_in_place for plan in planned_for_one(ROWS[name])] == [False, True]


def test_few_pairs_lie_likewise():
    problem = problem_of(
        Unknown.Y, (64, 64), (32, 32), (3, 3), channels=(8, 6), low=1, stride=2, layout="NXC", dtype="bf16",
        out_dtype="bf16",
    )  # fmt: skip
    plans = [choose(problem, machine_for("avx512_bf16", multiplies_alone=alone)) for alone in (False, True)]
    assert [(plan.ON_UNITS, plan.pixels) for plan in plans] == [(True, True), (True, False)]


def test_numbers_that_are_converted_are_copied_nevertheless():
    problem = problem_of(
        Unknown.Y, (14, 14), (14, 14), (4, 4), channels=(96, 8), low=1, dtype="f16", out_dtype="f16"
    )  # fmt: skip
    assert choose(problem, machine_for("avx512", multiplies_alone=True)).kind == choose(problem, EVERY).kind


def test_rows_that_fill_vectors_are_not_compared_by_that():
    one = machine_for("avx512", multiplies_alone=True)
    problem = problem_of(Unknown.Y, (16, 16), (16, 16), (3, 3), channels=(8, 16), low=1)
    assert choose(problem, one) == choose(problem, EVERY)
