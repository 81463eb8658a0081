"""Slabs whose positions are packed beside the products of the tiles before: of several pieces, channels together."""

from dataclasses import replace
from itertools import product
from math import prod
from operator import mul

import numpy as np
import pytest

from codegen.dense_problems import X, Y, problem_of
from codegen.emitted import load_here
from codegen.matrix_checks import ISA, check_blocks, data, run
from codegen.random_problems import check_plan
from convgrad.codegen.by_matrix import slab_beside
from convgrad.codegen.by_matrix.slab_beside import SlabBeside
from convgrad.codegen.lower import lower
from convgrad.plan.by_matrix import matrix as matrix_plan
from convgrad.plan.by_matrix.across_rows import AcrossRowsPlan
from convgrad.plan.by_matrix.matrix import MatrixDataPlan
from convgrad.plan.choose import variants
from convgrad.plan.machine import machine_for, why_not
from convgrad.plan.strides import row_major

pytestmark = pytest.mark.skipif(why_not(ISA) is not None, reason=f"tiles cannot be emulated here: {why_not(ISA)}")
MACHINE = machine_for(ISA)
LAST = {"layout": "NXC"}
PROBLEMS = {
    "one tap": problem_of(Y, (9, 23), (9, 23), (1, 1), channels=(64, 40), batch=2, **LAST),
    "borders": problem_of(Y, (11, 19), (11, 19), (3, 3), channels=(64, 70), low=1, bias=True, **LAST),
    "strides": problem_of(Y, (23, 37), (11, 18), (3, 4), channels=(32, 40), stride=2, low=1, batch=2, **LAST),
    "phases": problem_of(X, (21, 36), (11, 18), (3, 3), channels=(40, 64), stride=(2, 2), low=1, **LAST),
    "phases of rows alone": problem_of(X, (20, 17), (10, 17), (4, 3), channels=(40, 32), stride=(2, 1), low=1, **LAST),
    "dilation": problem_of(Y, (15, 21), (15, 21), (3, 3), channels=(96, 33), dilation=3, low=3, **LAST),
    "windows beside the image": problem_of(Y, (6, 7), (10, 11), (2, 2), channels=(32, 33), low=(2, 3), **LAST),
    "groups": problem_of(Y, (9, 20), (9, 20), (3, 3), channels=(32, 40), groups=3, low=1, **LAST),
    "rows shorter than a run": problem_of(Y, (30, 1), (30, 1), (3, 1), channels=(64, 40), low=(1, 0), batch=3, **LAST),
    "a volume": problem_of(Y, (4, 5, 18), (4, 5, 18), (3, 3, 3), channels=(32, 33), low=1, batch=2, **LAST),
    "f16": problem_of(Y, (11, 19), (11, 19), (3, 3), channels=(64, 70), low=1, dtype="f16", out_dtype="f16", **LAST),
}


def plans_of(problem):
    """Those of kinds that may pack beside products."""
    return (plan for plan in variants(problem, MACHINE) if type(plan) in (MatrixDataPlan, AcrossRowsPlan))


def whole(plan):
    """With all outputs in a block, so that tiles follow one another."""
    tiles = zip(plan.axes, plan.tile, strict=True)
    plan = replace(plan, block=tuple(-(-axis.count // size) * size for axis, size in tiles), writes_in_place=False)
    return replace(plan, packs_weights=False, blocks_per_task=1)


def test_both_kinds_are_met():
    assert {type(plan) for problem in PROBLEMS.values() for plan in plans_of(problem)} == {
        MatrixDataPlan,
        AcrossRowsPlan,
    }


@pytest.mark.parametrize("name", PROBLEMS)
def test_results_are_exact(name):
    plans = list(plans_of(PROBLEMS[name]))
    assert plans
    for plan in plans:
        assert plan.packs_beside
        check_blocks(plan, (0, 1))
        check_plan(plan.problem, plan, MACHINE, low=True)
        check_plan(plan.problem, whole(plan), MACHINE)
        check_plan(plan.problem, replace(whole(plan), blocks_per_task=plan.lane_blocks), MACHINE)


@pytest.mark.parametrize("name", PROBLEMS)
def test_bits_are_those_of_a_slab_that_is_packed_before(name, monkeypatch):
    rng = np.random.default_rng(3)
    for plan in map(whole, plans_of(replace(PROBLEMS[name], bias=False))):
        given = data(plan.problem, rng, lambda rng, s: rng.standard_normal(s))
        beside = run(plan, given)
        with monkeypatch.context() as patched:
            patched.setattr(type(plan), "packs_beside", False)
            before = run(plan, given)
        assert beside[1] is before[1] is False
        np.testing.assert_array_equal(beside[0], before[0])


@pytest.mark.parametrize("name", ["one tap", "borders", "strides", "dilation", "a volume"])
def test_what_tiles_meet_is_there_in_time(name, monkeypatch):
    """With what is missing packed for the first tile alone."""
    missing = SlabBeside.up_to

    def of_first(self, b, place):
        with b.when(b.compare("eq", b.load("i64", self._done, 8), 0)):
            missing(self, b, place)

    for plan in map(whole, plans_of(PROBLEMS[name])):
        each = sum(plan.beside_products)
        assert plan.runs_beside <= each * plan.first_steps < plan.runs_beside + plan.first_steps
        assert max(plan.beside_products) - min(plan.beside_products) <= 1
        if isinstance(plan, AcrossRowsPlan) and plan.planes_of_outputs > 1:
            continue  # nothing is packed beside the tile that is left of a plane
        with monkeypatch.context() as patched:
            patched.setattr(SlabBeside, "up_to", of_first)
            check_plan(plan.problem, plan, MACHINE)


@pytest.mark.parametrize("name", PROBLEMS)
def test_a_tile_meets_so_many_positions(name):
    for plan in plans_of(PROBLEMS[name]):
        places = row_major(plan.slab_extent, 1)
        reach = [range(0, axis.taps * axis.offset_step or 1, axis.offset_step) for axis in plan.axes]
        taps = [sum(map(mul, tap, places)) for tap in product(*reach)]
        of_tile = [range(0, size * axis.in_step, axis.in_step) for size, axis in zip(plan.tile, plan.axes, strict=True)]
        outputs = [sum(map(mul, at, places)) for at in product(*of_tile)]
        if isinstance(plan, AcrossRowsPlan):
            outputs = range(plan.together)
        assert plan.places_of_tile == max(0, *taps) + max(outputs) + 1


def test_later_phases_of_rows_meet_what_is_there():
    for plan in map(whole, plans_of(PROBLEMS["phases of rows alone"])):
        _, rows, columns = plan.axes
        taps = rows.phases[0].taps * columns.phases[0].taps
        tiles = plan.blocks_of_tiles if isinstance(plan, AcrossRowsPlan) else prod(plan.block) // prod(plan.tile)
        assert len(rows.phases) == 2
        assert plan.first_steps == tiles * taps * plan.deep_blocks


@pytest.mark.parametrize("value", [np.inf, 2.0**-140])
@pytest.mark.parametrize("name", ["one tap", "borders", "phases"])
def test_every_position_is_looked_at(name, value):
    """Those that are packed beside products, too."""
    problem = replace(PROBLEMS[name], bias=False)
    plan = whole(next(plans_of(problem)))
    given = data(plan.problem, np.random.default_rng(2), lambda rng, s: rng.standard_normal(s))
    made = lower(plan)
    made = made, load_here(made, MACHINE)
    assert not run(plan, given, made=made)[1]
    tensor = plan.problem.given
    numbers = given[tensor].size
    for place in range(0, numbers, max(1, numbers // 97)):
        extreme = given[tensor].copy()
        extreme.flat[place] = value
        assert run(plan, given | {tensor: extreme}, made=made)[1]


def test_positions_are_asked_for_where_the_input_is_far(monkeypatch):
    plan = whole(next(plans_of(PROBLEMS["borders"])))
    assert "i32 0, i32 2, i32 1)" not in lower(plan).ir
    monkeypatch.setattr(slab_beside, "KEPT_BYTES", 0)
    assert "i32 0, i32 2, i32 1)" in lower(plan).ir
    check_plan(plan.problem, plan, MACHINE)


def test_others_are_packed_before():
    """Of one piece, of channels that are no whole lines or lie apart, and of bands."""
    shape = (9, 23), (9, 23), (3, 3)
    others = {
        "bf16": problem_of(Y, *shape, channels=(64, 40), low=1, dtype="bf16", out_dtype="bf16", **LAST),
        "lines": problem_of(Y, *shape, channels=(65, 40), low=1, **LAST),
        "apart": problem_of(Y, *shape, channels=(64, 40), low=1),
    }
    for problem in others.values():
        plans = list(plans_of(problem))
        assert plans
        assert not any(plan.packs_beside for plan in plans)
    apart = problem_of(Y, (4000,), (1400,), (2,), channels=(64, 40), dilation=2600, **LAST)
    assert {plan.has_bands: plan.packs_beside for plan in plans_of(apart)} == {True: False, False: True}
    plan = next(plans_of(PROBLEMS["borders"]))
    assert plan.packs_beside
    assert not replace(plan, i_block=96).packs_beside


def test_too_many_positions_are_packed_before(monkeypatch):
    plan = next(plans_of(PROBLEMS["borders"]))
    monkeypatch.setattr(matrix_plan, "MOST_PLACES", 10)
    assert not plan.packs_beside
