"""Planes times weights, as both planes lie in memory: random problems, exactly."""

from dataclasses import replace

import numpy as np
import pytest

from codegen.dense_problems import problem_of
from codegen.random_problems import check_plan
from codegen.test_flat_data import ISA, altered, needs_masks
from convgrad.plan.choose import choose, variants
from convgrad.plan.general.data import DataPlan
from convgrad.plan.in_place.choose_pointwise import pointwise_candidates
from convgrad.plan.in_place.pointwise import PointwisePlan
from convgrad.plan.machine import machine_for
from convgrad.problem.conv import Unknown
from convgrad.problem.simplify import simplify


def one_tap(rng, unknown):
    """Dense channels first, of any rank."""
    extent = {1: (int(rng.integers(16, 200)),), 2: (5, int(rng.integers(4, 40))), 3: (3, 4, 9)}[int(rng.integers(1, 4))]
    dtype = str(rng.choice(["f32", "f64", "bf16", "f16"]))
    return problem_of(
        unknown, extent, extent, (1,) * len(extent), channels=tuple(int(n) for n in rng.integers(1, 40, 2)),
        groups=int(rng.integers(1, 3)), batch=int(rng.integers(1, 4)), bias=bool(rng.integers(2)), dtype=dtype,
        out_dtype=str(rng.choice([dtype, "f32"])) if dtype != "f64" else dtype,
    )  # fmt: skip


def pointwise(problem):
    """The plan, whether it is the fastest or not; None where it cannot be."""
    machine = machine_for(ISA)
    for plan in variants(problem, machine):
        if isinstance(plan, PointwisePlan):
            return plan
        if type(plan) is DataPlan and plan.pixels:
            return next((found for _, found in pointwise_candidates(plan, float("inf"), machine)), None)
    return None


@needs_masks
@pytest.mark.parametrize("unknown", [Unknown.X, Unknown.Y])
def test_whole_numbers_are_exact(unknown):
    """As planned, and in other tiles and blocks, the last of which begins early."""
    tried = 0
    for seed in range(30):
        rng = np.random.default_rng(seed)
        problem = one_tap(rng, unknown)
        plan = pointwise(problem)
        if plan is None:
            continue
        plan = altered(plan, rng) if seed % 3 else plan
        plan.validate()
        check_plan(simplify(problem), plan, machine_for(ISA), seed, low=bool(seed % 2))
        tried += 1
    assert tried > 20


@needs_masks
def test_chosen_where_planes_have_no_gaps():
    """Not with strides, taps, or gaps, nor for inputs of which each line comes from memory."""

    def chosen(problem, isa=ISA):
        return isinstance(choose(problem, machine_for(isa)), PointwisePlan)

    layer = problem_of(Unknown.Y, (28, 28), (28, 28), (1, 1), channels=(512, 128), groups=1, batch=1)
    assert chosen(layer)
    assert chosen(replace(layer, unknown=Unknown.X))
    assert not chosen(layer, "avx2")
    assert not chosen(replace(layer, accumulate=True))
    assert not chosen(replace(layer, x_strides=(*layer.x_strides[:3], 29, 1)))
    assert not chosen(problem_of(Unknown.Y, (28, 28), (28, 28), (1, 1), channels=(512, 128), groups=1, batch=16))
    assert not chosen(
        problem_of(Unknown.Y, (28, 28), (14, 14), (1, 1), channels=(512, 128), groups=1, batch=1, stride=2)
    )
