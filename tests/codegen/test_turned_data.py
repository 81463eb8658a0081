"""X and Y of groups of as many channels on either side: what lanes sum is turned within groups at the very end."""

from dataclasses import replace

import numpy as np
import pytest

from codegen.dense_problems import on_axes
from codegen.emitted import kernel_here
from codegen.random_problems import altered, check_plan, in_turn
from codegen.test_group_weights import AXES
from convgrad.codegen.lower import lower
from convgrad.plan.choose import variants
from convgrad.plan.groups.turned_data import TurnedDataPlan, can_turn, worth_turning
from convgrad.plan.machine import available_isas, machine_for
from convgrad.problem.conv import Unknown

ISAS = [isa for isa in ("avx512", "avx2", "portable") if isa in available_isas()]
GROUPS = ((4, 4), (3, 8), (9, 2), (5, 8), (17, 4))  # and channels of each


def problem_of(axes, unknown, groups, channels, *, batch=2, first=False, **more):
    """Dense, with channels last, or first."""
    sizes = {"channels": (channels, channels), "groups": groups, "batch": batch}
    return on_axes(unknown, axes, **sizes, layout="NCX" if first else "NXC", weights="NCX", **more)


def plan_of(problem, isa):
    """The plan; None if there is none."""
    return next((plan for plan in variants(problem, machine_for(isa)) if isinstance(plan, TurnedDataPlan)), None)


@pytest.mark.parametrize("isa", ISAS)
@pytest.mark.parametrize("unknown", [Unknown.X, Unknown.Y])
@pytest.mark.parametrize("name", AXES)
def test_every_border(name, unknown, isa):
    """Of whole vectors of groups and others, channels last and first, in 16 bits, with a bias, in other blocks."""
    rng, order = np.random.default_rng(len(name)), list(AXES).index(name) + ISAS.index(isa)
    for seed, (groups, channels) in enumerate(GROUPS):
        fields = ({}, {"bias": True}, {"dtype": "bf16", "out_dtype": "f32", "bias": True}, {"accumulate": True},
                  {"dtype": "f16", "out_dtype": "f16"})[seed % 5]  # fmt: skip
        problem = problem_of(AXES[name], unknown, groups, channels, first=(seed + len(name)) % 2 > 0, **fields)
        plan, lanes = plan_of(problem, isa), machine_for(isa).lanes_f32
        assert (plan is None) == (not can_turn(channels, channels, lanes) or not worth_turning(problem))
        if plan is None:
            continue
        tile = (int(rng.integers(1, 3)), *plan.tile[1:-1], int(rng.integers(1, min(3, plan.axes[-1].count) + 1)))
        other = altered(replace(plan, tile=tile, block=tile, writes_in_place=False), rng)
        other = replace(other, unroll=int(rng.integers(3)) % len(plan.axes))
        if isa != "avx512" and (seed + order) % 3 == 0:
            continue
        check_plan(problem, in_turn(seed // 2 + order, plan, other), machine_for(isa), seed, low=bool(seed % 2))


@pytest.mark.parametrize("unknown", [Unknown.X, Unknown.Y])
def test_bits_are_those_of_other_blocks_and_images_alone(unknown):
    """Sums are rounded, so that any other order shows."""
    machine, rng = machine_for("avx512"), np.random.default_rng(5)
    problem = problem_of(AXES["as large"], unknown, 5, 8, batch=2)
    plan = plan_of(problem, "avx512")
    other = replace(altered(replace(plan, tile=(*plan.tile[:-1], 1)), rng), unroll=0)
    given, weights = rng.standard_normal((2, 6, 9, 40), np.float32), rng.standard_normal((5, 8, 8, 3, 3), np.float32)
    whole, blocks = (_solved(problem, one, machine, given, weights) for one in (plan, other))
    np.testing.assert_array_equal(whole, blocks)
    alone = problem_of(AXES["as large"], unknown, 5, 8, batch=1)
    np.testing.assert_array_equal(whole[1:], _solved(alone, plan_of(alone, "avx512"), machine, given[1:], weights))


def _solved(problem, plan, machine, given, weights):
    result = np.zeros_like(given)
    sides = (result, weights, given) if problem.unknown is Unknown.X else (given, weights, result)
    kernel = kernel_here(problem, lower(plan), machine)
    kernel(*(side.ctypes.data for side in sides), 0)
    assert result.any()
    return result


def test_what_it_is_for():
    """Taps of several rows, or strides: those of one row share what is picked."""
    row, strided = (((40,), (40 // s,), (5,), (s,), (1,), (2,)) for s in (1, 2))
    assert worth_turning(problem_of(AXES["as large"], Unknown.Y, 4, 8))
    assert worth_turning(problem_of(strided, Unknown.Y, 4, 4))
    assert not worth_turning(problem_of(strided, Unknown.X, 4, 4))
    assert not worth_turning(problem_of(row, Unknown.Y, 4, 4))
    assert not worth_turning(problem_of(AXES["a tap"], Unknown.Y, 4, 4))
