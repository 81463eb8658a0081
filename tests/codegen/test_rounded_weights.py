"""Weights of 16 bits that register tiles are rounded to: each the nearest to its sum, of whole tiles or not."""

from dataclasses import replace
from math import prod

import numpy as np
import pytest

import convgrad.plan.general.weights
from codegen.buffers import StridedArray
from codegen.dense_problems import SAME, W, problem_of
from codegen.emitted import HOST_ISAS, each_isa, run_here
from codegen.random_problems import check_plan, in_turn, solve
from convgrad.codegen.isa import ISAS
from convgrad.codegen.lower import lower
from convgrad.dtypes import numpy_dtype
from convgrad.plan.by_dots.dots import DotWeightsPlan
from convgrad.plan.choose import choose, variants
from convgrad.plan.general.weights import WeightsPlan
from convgrad.plan.machine import LEVELS, machine_for

NXC = {"layout": "NXC", "batch": 3}
PROBLEMS = {
    "tiles that are not whole": problem_of(W, (7, 5), (7, 5), (3, 3), channels=(13, 37), **SAME, **NXC),
    "whole tiles": problem_of(W, (7, 5), (7, 5), (3, 3), channels=(48, 192), **SAME, **NXC),
    "one tap": problem_of(W, (7, 5), (7, 5), (1, 1), channels=(96, 192), **NXC),
    "several taps in a tile": problem_of(W, (33,), (33,), (5,), channels=(3, 128), low=2, **NXC),
}
TRIPLES = {isa: f"{level.arch}-unknown-linux-gnu" for isa, level in LEVELS.items()}
each_dtype = pytest.mark.parametrize("dtype", ["f16", "bf16"])


def check_rounded(problem, isa, low, blocks=0, **changes):
    """Each weight is the number nearest to a sum that takes more bits than it has, and nothing lies beside them."""
    machine = machine_for(isa)
    kinds = (WeightsPlan,) if changes else (WeightsPlan, DotWeightsPlan)
    plan = next(plan for plan in variants(problem, machine) if type(plan) in kinds and plan.lane_side == "y")
    plan = replace(plan, chunks=1, **changes)
    if blocks:  # of windows
        whole = [axis.windows for axis in plan.axes]
        n = next(n for n, windows in enumerate(whole) if windows > 1)
        plan = replace(plan, block=(*whole[:n], -(-whole[n] // blocks), *whole[n + 1 :]))
        assert prod(plan.block_grid) == blocks
    rng = np.random.default_rng(3)
    arrays = {
        name: StridedArray(shape, problem.strides[name], numpy_dtype(problem.dtype), low=low)
        for name, shape in problem.shapes.items()
    }
    given = {name: rng.integers(-60, 61, problem.shapes[name]).astype(float) for name in "xy"}
    for name, values in given.items():
        arrays[name].view[...] = values
    run_here(lower(plan), machine, [*(arrays[name] for name in "xwy"), None])
    exact = solve(problem, given["x"], None, given["y"])
    rounded = exact.astype(np.float32).astype(numpy_dtype(problem.dtype))
    assert (rounded.astype(float) != exact).any()
    np.testing.assert_array_equal(arrays["w"].view.astype(np.float32), rounded.astype(np.float32))
    assert arrays["w"].only_elements_changed()
    return plan


@each_isa
@each_dtype
@pytest.mark.parametrize("name", PROBLEMS)
def test_tiles_are_rounded_to_weights(name, dtype, isa):
    problem = replace(PROBLEMS[name], dtype=dtype, out_dtype=dtype)
    number = list(PROBLEMS).index(name) + HOST_ISAS.index(isa) + (dtype == "f16")
    for blocks in (1, in_turn(number, 2, 3)):
        plan = check_rounded(problem, isa, blocks == 2, blocks)
        assert plan.straight == plan.rounds


@each_isa
@each_dtype
@pytest.mark.parametrize("problem", PROBLEMS.values(), ids=PROBLEMS)
def test_rounded_tiles_go_past_the_caches_by_whole_vectors(problem, dtype, isa, monkeypatch):
    monkeypatch.setattr(convgrad.plan.general.weights, "PAST_CACHES_BYTES", 1)
    problem = replace(problem, dtype=dtype, out_dtype=dtype)
    for low in (False, True):
        plan = check_rounded(problem, isa, low)
    two = 2 * plan.lanes
    lines = plan.vectors % 2 == 0 and problem.y_channels % two == problem.y_channels * problem.x_channels % two == 0
    assert plan.past_caches == (plan.rounds and lines and isa == "avx512")
    assert ("!nontemporal" in lower(plan).ir) == (plan.past_caches and ISAS[isa].streams)


@each_isa
@each_dtype
@pytest.mark.parametrize("name", PROBLEMS)
def test_sides_in_place_are_widened_by_tiles(name, dtype, isa):
    """Also where planning would pack them, as on sets that have no instruction for it."""
    problem = replace(PROBLEMS[name], dtype=dtype, out_dtype=dtype)
    one_side = in_turn(list(PROBLEMS).index(name) + HOST_ISAS.index(isa), (True, False), (False, True))
    for rows, lanes in (one_side, (True, True)):
        plan = next(p for p in variants(problem, machine_for(isa)) if type(p) is WeightsPlan and p.lane_side == "y")
        rows, lanes = rows and plan.row_count >= plan.row_channels, lanes and plan.lane_count >= plan.width
        check_rounded(problem, isa, rows, 2, rows_in_place=rows, lanes_in_place=lanes)


@pytest.mark.parametrize("isa", HOST_ISAS)
@pytest.mark.parametrize("channels", [3, 5, 8])
def test_positions_of_few_rows_are_packed_as_they_lie(channels, isa):
    """One after the other, so that they are one run; nothing is between them for rows that the last tile lacks."""
    machine = machine_for(isa)
    layout = {"layout": "NXC", "dtype": "f16", "out_dtype": "f16"}
    problem = problem_of(W, (9, 13), (5, 7), (3, 3), channels=(channels, 37), stride=2, low=1, **layout)
    plan = next(p for p in variants(problem, machine) if type(p) is WeightsPlan and p.lane_side == "y")
    plan = replace(plan, rows_in_place=False, row_channels=2, x_pixel_major=True, rows_together=0, row_shares=1)
    if channels < plan.lanes:
        assert plan.row_slab[0][-1] == channels
    for low in (False, True):
        check_plan(problem, plan, machine, channels, low=low)


def test_lanes_that_few_tiles_meet_are_not_packed():
    """Of 16 bits, where each number is widened as often as it is met."""
    wide = {"channels": (1, 256), "stride": 5, "layout": "NXC", "dtype": "f16", "out_dtype": "f16"}
    problem = problem_of(W, (500,), (99,), (10,), **wide)
    for isa, in_place in (("avx512", True), ("avx2", True), ("portable", False), ("neon", False)):
        plan = choose(problem, machine_for(isa, triple=TRIPLES[isa]))
        assert (plan.rows_in_place, plan.lanes_in_place) == (False, in_place)
    many = replace(problem, x_channels=48, x_strides=(24000, 48, 1, 48), w_strides=(122880, 1, 256, 12288))
    assert not choose(many, machine_for("avx512", triple=TRIPLES["avx512"])).lanes_in_place
