"""One channel to one by dot products of neighbours in a row: exactly, at every border, and every number is watched."""

from dataclasses import replace

import numpy as np
import pytest

from codegen.dot_cases import EMULATED, HERE, REAL, check_watched, needs_dots
from codegen.matrix_checks import BF16_KINDS, check_kind, check_one_number, run
from codegen.random_problems import altered, check_plan
from codegen.test_plane_rows import AXES, problem_of, random_arrays, result_of
from convgrad.plan.by_dots.dot_rows import DotRowsPlan
from convgrad.plan.choose import choose, variants
from convgrad.plan.machine import machine_for
from convgrad.problem.conv import Unknown

pytestmark = needs_dots
X, Y = Unknown.X, Unknown.Y
both = pytest.mark.parametrize("unknown", [X, Y])
MORE = {
    "an even number of taps": ((9, 41), (10, 42), (2, 4), (1, 1), (1, 1), (1, 2)),
    "stride 2, an even number of taps": ((16, 66), (8, 33), (4, 4), (2, 2), (1, 1), (1, 1)),
    "stride 2, a large kernel": ((15, 45), (8, 23), (7, 7), (2, 2), (1, 1), (3, 3)),
    "stride 2 of columns, dilation of rows": ((12, 67), (12, 34), (3, 3), (1, 2), (2, 1), (2, 1)),
    "rows longer than they are read": ((7, 80), (7, 33), (3, 2), (1, 2), (1, 1), (1, 0)),
    "no row meets anything": ((1, 423), (2, 216), (3, 7), (4, 2), (1, 1), (3, 7)),
    "whole vectors to the end": ((6, 66), (6, 64), (3, 3), (1, 1), (1, 1), (1, 0)),
}
EVERY = AXES | MORE
NONE = {"stride 3", "stride 4 of columns", "dilation", "no tap meets anything", "no row meets anything"}
NONE |= {("three axes, stride 2", X), ("stride 2, a phase without taps", Y)}


def plan_of(problem, isa=EMULATED):
    """The plan; None if there is none."""
    return next((plan for plan in variants(problem, machine_for(isa)) if isinstance(plan, DotRowsPlan)), None)


def bf16(unknown, axes, **more):
    return problem_of(unknown, axes, **{"dtype": "bf16", "out_dtype": "bf16"} | more)


@both
@pytest.mark.parametrize("name", EVERY)
def test_every_border(unknown, name):
    """As planned and in other blocks, with a bias, next to either guard page; some by emulation: the same bits."""
    for seed, fields in enumerate([{}, {"out_dtype": "f32", "bias": True}]):
        problem = bf16(unknown, EVERY[name], **fields)
        plan = plan_of(problem, HERE[-1])
        assert (plan is None) == bool({name, (name, unknown)} & NONE)
        if plan is None:
            return
        some = altered(plan, np.random.default_rng(seed)) if seed else plan
        check_plan(problem, some, machine_for(HERE[-1]), seed, low=bool(seed % 2))
    if REAL in HERE and name in MORE:
        problem = bf16(unknown, EVERY[name], out_dtype="f32")  # of which no bit is rounded off
        given, solved = random_arrays(problem), unknown.value
        results = []
        for isa in HERE:
            zeros = np.zeros(problem.shapes[solved], np.float32)
            results.append(result_of(plan_of(problem, isa), problem, given | {solved: zeros}, isa, 3000))
        np.testing.assert_array_equal(*results)


@pytest.mark.parametrize("kind", BF16_KINDS)
def test_every_kind_of_data_is_multiplied_as_f32(kind):
    check_kind(plan_of(bf16(Y, AXES["no pads"], out_dtype="f32", groups=1)), kind)


@both
@pytest.mark.parametrize("side", [0, 1])
def test_one_such_number_gives_the_bits_of_vectors(unknown, side):
    for value in (np.nan, 2.0**-133):
        check_one_number(plan_of(bf16(unknown, MORE["an even number of taps"])), side, value)


@both
@pytest.mark.parametrize("axes", [
    ((5, 32), (5, 32), (3, 3), (1, 1), (1, 1), (1, 1)),
    ((7, 70), (3, 34), (3, 3), (2, 2), (1, 1), (0, 0)),
    ((7, 20), (5, 20), (2, 3), (1, 1), (3, 1), (0, 1)),
])  # fmt: skip
def test_every_number_is_watched(unknown, axes):
    """Whichever tile meets it, and wherever in a row it is."""
    plan = plan_of(bf16(unknown, axes, batch=1, groups=1))
    rows = 1 if axes[4][0] > 1 else 2
    check_watched(replace(plan, rows=rows, block=(1, 4, plan.block[-1])))


def test_a_bias_is_watched():
    problem = bf16(Y, AXES["one vector"], bias=True, groups=1)
    plan = plan_of(problem)
    given = {name: np.ones(problem.shapes[name]) for name in "xw"}
    assert [run(plan, given, bias=value)[1] for value in (1.0, 0.0, 2.0**-130)] == [False, False, True]


@both
def test_where_it_is_chosen(unknown):
    """Where lanes are full, and neither sums nor numbers that are not bf16 nor neighbours are in the way."""
    axes = {n: ((n, n), (n, n), (3, 3), (1, 1), (1, 1), (1, 1)) for n in (14, 56)}
    single = bf16(unknown, axes[14], groups=1)  # whose rows fill half of a vector
    machine = machine_for(REAL, triple="x86_64-unknown-linux-gnu")
    assert isinstance(choose(bf16(unknown, axes[56], groups=32), machine), DotRowsPlan)
    assert not isinstance(choose(single, machine), DotRowsPlan)
    for more in ({"dtype": "f16"}, {"accumulate": True}, {"dtype": "f32", "fpmath_mode": "bf16", "out_dtype": "f32"}):
        assert plan_of(bf16(unknown, axes[56], **more)) is None
    assert plan_of(bf16(unknown, axes[56]), "avx512") is None
