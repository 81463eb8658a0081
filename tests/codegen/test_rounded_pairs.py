"""f32 that a mode allows to be rounded, as pairs of bf16: whole numbers exactly, and others as if rounded before."""

from dataclasses import replace

import ml_dtypes
import numpy as np
import pytest

from codegen.dense_problems import W, X, Y, problem_of
from codegen.dot_cases import EMULATED, HERE, PACKED, RUNS, each, needs_dots
from codegen.matrix_checks import WIDE, run
from codegen.random_problems import check_plan, random_problem, solve
from convgrad.plan.by_dots.dots import DotDataPlan, DotWeightsPlan
from convgrad.plan.by_dots.far_pairs import FarPairsPlan
from convgrad.plan.by_dots.paired_outputs import PairedFoldedPlan, PairedOutputsPlan
from convgrad.plan.by_dots.turned_dots import TurnedDotPlan
from convgrad.plan.by_matrix.runs import DotRunPlan
from convgrad.plan.choose import choose, variants
from convgrad.plan.machine import machine_for

pytestmark = needs_dots
KINDS = DotDataPlan, DotWeightsPlan, PairedOutputsPlan, PairedFoldedPlan, DotRunPlan, TurnedDotPlan, FarPairsPlan
ROWS, PATCHES, GROUPS = (
    {"image": (6, 27), "windows": (6, 27), "taps": (3, 3), "low": 1},
    {"image": (9, 40), "windows": (5, 20), "taps": (3, 3), "stride": 2, "low": 1},
    {"image": (6, 9), "windows": (6, 9), "taps": (3, 3), "low": 1},
)
PHASES = {"image": (4, 81), "windows": (4, 27), "taps": (1, 5), "stride": (1, 3), "low": (0, 1)}
FEW = {  # that are solved for, or in a group
    f"{name}, {layout}": problem_of(unknown, layout=layout, channels=channels, **axes, **more)
    for layout in ("NCX", "NXC")
    for name, unknown, channels, axes, more in (
        ("three solved for", X, (3, 18), PATCHES, {}),
        ("one of odd ones", Y, (17, 1), ROWS, {}),
        ("phases at once", X, (1, 20), PHASES, {}),
        ("groups of four", Y, (4, 4), GROUPS, {"groups": 19}),
        ("groups of eight", X, (8, 8), GROUPS, {"groups": 5}),
    )
}
EVERY = {name: replace(problem, fpmath_mode="any") for name, problem in (WIDE | PACKED | RUNS | FEW).items()}


def plans_of(problem, isa):
    return [plan for plan in variants(problem, machine_for(isa)) if isinstance(plan, KINDS)]


@pytest.mark.parametrize("problem", EVERY.values(), ids=EVERY)
def test_whole_numbers_are_exact(problem):
    """In memory that ends where numbers end, on the processor; what no processor here has is emulated."""
    isa = HERE[-1]
    found = plans_of(problem, isa)
    assert found
    for plan in found:
        check_plan(problem, plan, machine_for(isa), low=True)


def test_every_kind_of_plan_is_met():
    met = {type(plan) for problem in EVERY.values() for plan in plans_of(problem, EMULATED)}
    assert met == set(KINDS)


def test_random_problems_exactly():
    """Of strides of any kind, borders and accumulation."""
    met, rng = set(), np.random.default_rng(8)
    while len(met) < 24:
        problem = replace(random_problem(rng), dtype="f32", out_dtype="f32", fpmath_mode="bf16")
        for plan in plans_of(problem, HERE[-1]):
            check_plan(problem, plan, machine_for(HERE[-1]), len(met))
            met.add(problem)


@each
@pytest.mark.parametrize("layout", ["NCX", "NXC"])
@pytest.mark.parametrize("unknown", [X, W, Y])
def test_numbers_are_rounded_to_nearest_even(unknown, layout, isa):
    """Sums of whole numbers of twelve bits: those that lie between two of eight become one of them."""
    some = ((3, 34), (34, 17), (34, 34))
    for channels in some if isa == HERE[-1] else some["xwy".index(unknown.value) :][:1]:
        problem = problem_of(unknown, (7, 9), (7, 9), (3, 3), channels=channels, low=1, layout=layout)
        problem = replace(problem, fpmath_mode="bf16")
        rng = np.random.default_rng(1)
        given = {name: rng.integers(-4095, 4096, problem.shapes[name]).astype(float) for name in "xwy"}
        del given[unknown.value]
        other = min(given)  # products fit f32 where one of them is small
        given[other] = np.sign(given[other])
        bf16 = {name: value.astype(ml_dtypes.bfloat16).astype(float) for name, value in given.items()}
        assert any((bf16[name] != given[name]).any() for name in given)
        wanted = solve(problem, **({"x": None, "w": None, "y": None} | bf16))
        for plan in plans_of(problem, isa):
            np.testing.assert_array_equal(run(plan, given)[0], wanted, err_msg=str(plan))


@each
def test_infinities_and_nan_stay_what_they_are(isa):
    problem = replace(problem_of(Y, (4, 4), (4, 4), (1, 1), channels=(34, 16)), fpmath_mode="any")
    (plan,) = (plan for plan in plans_of(problem, isa) if type(plan) is DotDataPlan)
    given = {name: np.ones(plan.problem.shapes[name]) for name in "xw"}
    full_nan = np.array(0x7FFFFFFF, np.uint32).view(np.float32)  # which becomes zero where something is added
    for value, there in ((np.inf, np.inf), (-np.inf, -np.inf), (np.nan, np.nan), (full_nan, np.nan), (3.4e38, np.inf)):
        given["x"][0, 0, 5, 11] = value
        result = run(plan, given)[0].reshape(16, 16)
        np.testing.assert_array_equal(result[:, 11], np.full(16, there))
        assert np.count_nonzero(result == 34) == 16 * 15


def test_rounding_is_chosen_where_it_is_faster():
    """Few weights that meet many numbers, but not many weights that each meet few."""
    dense = problem_of(Y, (28, 28), (28, 28), (3, 3), channels=(64, 64), low=1)
    lone = problem_of(Y, (4, 4), (1, 1), (4, 4), channels=(1024, 100), batch=4)
    for problem, rounds in ((dense, True), (lone, False)):
        plan = choose(replace(problem, fpmath_mode="any"), machine_for(EMULATED))
        assert isinstance(plan, KINDS) == rounds
