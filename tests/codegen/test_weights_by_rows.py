"""Weights of several taps, which a task writes while the sums of a few rows are near."""

from dataclasses import replace
from math import prod

import pytest

import convgrad.plan.general.weights
from codegen.dense_problems import SAME, W, problem_of
from codegen.emitted import HOST_ISAS, each_isa
from codegen.random_problems import check_plan, in_turn
from convgrad.codegen.lower import lower
from convgrad.codegen.outputs import own_sums
from convgrad.plan.choose import choose, variants
from convgrad.plan.general.weights import WeightsPlan
from convgrad.plan.machine import machine_for

PROBLEMS = {
    "nine taps": problem_of(W, (7, 9), (7, 9), (3, 3), channels=(70, 40), batch=2, **SAME),
    "nine taps, weights that are transposed": problem_of(
        W, (7, 9), (7, 9), (3, 3), channels=(40, 70), batch=2, layout="NXC", weights="NCX", **SAME
    ),
    "lanes in place that begin early": problem_of(
        W, (12, 7), (12, 7), (3, 3), channels=(48, 70), layout="NXC", weights="NCX", **SAME
    ),
    "ten taps": problem_of(W, (31,), (22,), (10,), channels=(48, 96), batch=2),
    "eleven taps, and sums of windows": problem_of(W, (31,), (21,), (11,), channels=(37, 33), bias_gradient="y"),
    "more taps than are staged, added to": problem_of(
        W, (9, 9, 9), (3, 3, 3), (7, 7, 7), channels=(20, 36), accumulate=True
    ),
    "groups": problem_of(W, (9, 9), (4, 4), (3, 3), channels=(33, 20), groups=3, stride=2, batch=3),
}
each_problem = pytest.mark.parametrize("problem", PROBLEMS.values(), ids=PROBLEMS)


def _plans(problem, isa):
    """Those of one chunk that write weights so, of one block of windows and of several."""
    for plan in variants(problem, machine_for(isa)):
        if type(plan) is not WeightsPlan or plan.lane_side not in "xy":
            continue
        plan = replace(plan, chunks=1)
        if plan.by_rows:
            whole = tuple(axis.windows for axis in plan.axes)
            n = next(n for n, windows in enumerate(whole) if windows > 1)
            in_place = plan.lane_count >= plan.width and plan.problem.strides[plan.lane_side][2] == 1
            yield replace(plan, block=whole, lanes_in_place=in_place, lane_shares=1)
            yield replace(plan, block=(*whole[:n], -(-whole[n] // 2), *whole[n + 1 :]))


@each_isa
@each_problem
@pytest.mark.parametrize("numbers", [1, 4096, 10**6], ids=["tile by tile", "some rows", "all rows"])
def test_weights_are_exact_however_many_rows_are_near(problem, numbers, isa, monkeypatch):
    monkeypatch.setattr(convgrad.plan.general.weights, "NEAR_NUMBERS", numbers)
    number = list(PROBLEMS.values()).index(problem) + HOST_ISAS.index(isa)
    problem = replace(problem, **in_turn(number, {}, {"dtype": "f16", "out_dtype": "f16"}, {"dtype": "bf16"}))
    plans = [*_plans(problem, isa)]
    assert {prod(plan.block_grid) for plan in plans} >= {1, 2}
    for plan in plans:
        assert (plan.rows_at_once == plan.row_channels) or numbers > 1
        check_plan(problem, plan, machine_for(isa))


def test_sums_of_one_block_are_no_more_than_those_rows():
    plan = choose(problem_of(W, (7, 7), (7, 7), (3, 3), channels=(512, 512), **SAME), machine_for("avx512"))
    assert plan.by_rows
    assert prod(plan.block_grid) == 1
    assert plan.own_sum_size <= convgrad.plan.general.weights.NEAR_NUMBERS < plan.taps * plan.share_rows * plan.width


def test_rows_that_lie_side_by_side_are_written_all_at_once():
    """A few of them would be parts of squares."""
    problem = problem_of(W, (7, 7), (7, 7), (3, 3), channels=(96, 80), layout="NXC", **SAME)
    turned = replace(problem, w_strides=(0, 96, 1, *problem.w_strides[3:]))
    plans = [plan for plan in variants(turned, machine_for("avx512")) if type(plan) is WeightsPlan]
    assert any(plan.lane_side == "y" and not plan.straight for plan in plans)
    assert not any(plan.by_rows for plan in plans)


@each_problem
def test_rows_that_are_written_in_the_place_of_the_first_are_seen(problem, monkeypatch):
    write = own_sums.write_rows

    def of_the_first(plan, b, at, sums, bundle, block, first, rows, **others):
        write(plan, b, at, sums, bundle, block, 0, rows, **others)

    monkeypatch.setattr(convgrad.plan.general.weights, "NEAR_NUMBERS", 1)
    monkeypatch.setattr(own_sums, "write_rows", of_the_first)
    for plan in _plans(problem, HOST_ISAS[0]):
        with pytest.raises(AssertionError):
            check_plan(problem, plan, machine_for(HOST_ISAS[0]))


def test_runs_of_lanes_and_their_taps_go_past_the_caches(monkeypatch):
    def streams(channels, windows):
        problem = problem_of(W, (windows + 8,), (windows,), (9,), channels=channels)
        plan = next(plan for plan in _plans(problem, "avx512") if plan.lane_side == "x")
        return "!nontemporal" in lower(plan).ir

    assert not streams((64, 64), 100)
    monkeypatch.setattr(convgrad.plan.general.weights, "PAST_CACHES_BYTES", 1)
    assert streams((64, 64), 100)
    assert not streams((63, 64), 100)  # runs that do not begin with lines
    assert not streams((64, 64), 30)  # tiles that are too short for memory to keep up
