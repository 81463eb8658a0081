"""X and Y of few channels of a group by dot products of pairs: exactly, at every border, of any groups; and watched."""

from dataclasses import replace

import numpy as np
import pytest

from codegen.dot_cases import EMULATED, HERE, REAL, check_watched
from codegen.matrix_checks import BF16_KINDS, check_kind, data, run
from codegen.random_problems import altered, check_plan, in_turn
from codegen.test_group_weights import AXES
from codegen.test_turned_data import problem_of
from convgrad.codegen.by_dots import turned_dots
from convgrad.codegen.lower import lower
from convgrad.plan.by_dots.turned_dots import TurnedDotPlan
from convgrad.plan.choose import choose, variants
from convgrad.plan.machine import machine_for, why_not
from convgrad.problem.conv import Unknown
from convgrad.runtime import jit

GROUPS = ((8, 4), (6, 8), (19, 2), (5, 8), (17, 4))  # and channels of each
X, Y = Unknown.X, Unknown.Y
pytestmark = pytest.mark.skipif(not HERE, reason=f"dot products cannot be emulated here: {why_not(EMULATED)}")


def bf16_of(*arguments, **more):
    return problem_of(*arguments, **({"dtype": "bf16", "out_dtype": "bf16"} | more))


def plan_of(problem, isa=EMULATED):
    """The plan; None if there is none."""
    return next((plan for plan in variants(problem, machine_for(isa)) if isinstance(plan, TurnedDotPlan)), None)


@pytest.mark.parametrize("isa", HERE)
@pytest.mark.parametrize("unknown", [X, Y])
@pytest.mark.parametrize("name", AXES)
def test_every_border(name, unknown, isa):
    """Of whole vectors of groups and others, channels last and first, with a bias, in other blocks."""
    rng, order = np.random.default_rng(len(name)), list(AXES).index(name) + (unknown is Y)
    for seed, (groups, channels) in enumerate(GROUPS):
        fields = ({}, {"bias": True}, {"out_dtype": "f32", "bias": True}, {"out_dtype": "f32"})[seed % 4]
        problem = bf16_of(AXES[name], unknown, groups, channels, first=(seed + len(name)) % 2 > 0, **fields)
        plan = plan_of(problem, isa)
        tile = (int(rng.integers(1, 3)), *plan.tile[1:-1], int(rng.integers(1, min(3, plan.axes[-1].count) + 1)))
        other = altered(replace(plan, tile=tile, block=tile, writes_in_place=False), rng)
        other = replace(other, unroll=int(rng.integers(3)) % len(plan.axes))
        if isa == HERE[-1]:
            check_plan(problem, in_turn(seed + order, plan, other), machine_for(isa), seed, low=bool(seed % 2))
        elif (seed + order) % 3 == 0:
            check_plan(problem, other, machine_for(isa), seed)


@pytest.mark.parametrize("unknown", [X, Y])
def test_groups_may_lie_apart(unknown):
    """Channels outside of groups, or other numbers between them."""
    problem = bf16_of(AXES["as large"], unknown, 5, 8)
    n, g, c, *space = problem.x_strides
    double = tuple(2 * step for step in problem.x_strides)
    for steps in ((n, 1, 5, *space), double, (2 * n, g + 8, c, *(2 * step for step in space))):
        apart = replace(problem, x_strides=steps, y_strides=steps)
        check_plan(apart, plan_of(apart), machine_for(EMULATED))


def test_what_it_is_for():
    """Whole pairs, as many channels on either side, no more than make a vector of several groups."""
    for channels, found in ((1, False), (2, True), (4, True), (6, False), (8, True), (16, False)):
        assert (plan_of(bf16_of(AXES["as large"], Y, 16, channels)) is not None) == found
    assert plan_of(bf16_of(AXES["as large"], Y, 3, 8)) is None
    assert plan_of(bf16_of(AXES["as large"], Y, 6, 8, accumulate=True)) is None
    assert plan_of(problem_of(AXES["as large"], Y, 6, 8)) is None
    large = ((28, 28), (28, 28), (3, 3), (1, 1), (1, 1), (1, 1))
    for unknown in (X, Y):
        assert isinstance(choose(bf16_of(large, unknown, 32, 8), machine_for(EMULATED)), TurnedDotPlan)


@pytest.mark.skipif(REAL not in HERE, reason="the processor has no such instruction")
def test_the_instruction_is_used():
    text = jit.assembly(lower(plan_of(bf16_of(AXES["as large"], Y, 8, 8), REAL)).ir, machine_for(REAL))
    assert "vdpbf16ps" in text
    assert "vcvtne2ps2bf16" in text


# --- numbers that dot products take differently

SMALL = [bf16_of(AXES["as large"], unknown, 9, 4, out_dtype="f32") for unknown in (X, Y)]


@pytest.mark.parametrize("kind", BF16_KINDS)
@pytest.mark.parametrize("problem", SMALL, ids=["x", "y"])
def test_every_kind_of_data_is_multiplied_as_f32(problem, kind):
    check_kind(plan_of(problem), kind)


@pytest.mark.parametrize("first", [False, True])
@pytest.mark.parametrize("unknown", [X, Y])
def test_every_number_is_watched(unknown, first):
    axes = ((2, 5), (2, 5), (1, 3), (1, 1), (1, 1), (0, 1))
    problem = bf16_of(axes, unknown, 9, 4, batch=1, first=first, out_dtype="f32")
    check_watched(plan_of(problem))


@pytest.mark.parametrize("unknown", [X, Y])
def test_bits_are_those_of_other_blocks(unknown):
    """Sums are rounded, so that any other order shows."""
    problem = bf16_of(AXES["as large"], unknown, 5, 8, out_dtype="f32")
    plan, given = plan_of(problem), data(problem, np.random.default_rng(3), lambda rng, s: rng.standard_normal(s))
    other = replace(altered(replace(plan, tile=(*plan.tile[:-1], 1)), np.random.default_rng(5)), unroll=0)
    (whole, _), (blocks, _) = run(plan, given), run(other, given)
    np.testing.assert_array_equal(whole, blocks)


BROKEN = {
    "weights are not exchanged": ("exchanged", lambda b, vectors: vectors),
    "sums are not turned": ("turned", lambda b, parts: parts[0]),
}


@pytest.mark.parametrize("defect", BROKEN)
def test_kernels_that_are_broken_are_found_out(defect, monkeypatch):
    problem = bf16_of(AXES["as large"], Y, 5, 8)
    monkeypatch.setattr(turned_dots, *BROKEN[defect])
    with pytest.raises(AssertionError):
        check_plan(problem, plan_of(problem), machine_for(EMULATED))
