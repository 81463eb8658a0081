"""Channels that do not fill the vectors of the only block of lanes: the last begins early, in arrays as they lie."""

from dataclasses import replace

import pytest

from codegen.dense_problems import X, Y, problem_of
from codegen.random_problems import check_plan
from convgrad.codegen.loops.half_vectors import lane_columns
from convgrad.plan.choose import variants
from convgrad.plan.general.data import DataPlan
from convgrad.plan.machine import machine_for, why_not

LEVELS = {"portable": (5, 6, 9, 11), "avx2": (9, 12, 13, 20, 22), "avx512": (17, 20, 24, 26, 31, 40, 42, 53)}


def early_plan(problem, isa):
    """The best plan along channels that writes in place, of one block of lanes that is wider than the channels."""
    for plan in variants(problem, machine_for(isa)):
        if type(plan) is DataPlan and not (plan.pixels or plan.spread) and plan.lane_blocks == 1:
            return plan
    raise AssertionError("no plan of one block of lanes")


def layer(unknown, channels, taps, given=9, **others):
    """A layer that keeps the extent, whose result has so many channels."""
    sides = (given, channels) if unknown is Y else (channels, given)
    return problem_of(unknown, (6, 7), (6, 7), (taps, taps), channels=sides, low=taps // 2, layout="NXC", **others)


@pytest.mark.parametrize(("isa", "channels"), [(isa, n) for isa, several in LEVELS.items() for n in several])
@pytest.mark.parametrize("unknown", [X, Y], ids=["x", "y"])
@pytest.mark.parametrize("taps", [1, 3])
def test_nothing_beside_the_channels_is_read_or_written(isa, unknown, channels, taps):
    if why_not(isa):
        pytest.skip(f"{isa}: {why_not(isa)}")
    problem = layer(unknown, channels, taps, bias=taps == 1)
    plan = early_plan(problem, isa)
    assert plan.width > channels
    assert plan.writes_in_place
    assert plan.reads_in_place or taps > 1
    for low in (False, True):
        check_plan(problem, plan, machine_for(isa), low=low)


@pytest.mark.parametrize(
    ("channels", "places", "halves"), [(20, (0, 12), {1}), (26, (0, 10), set()), (40, (0, 16, 32), {2})]
)
def test_the_last_vector_begins_early_or_is_half_of_one(channels, places, halves):
    if why_not("avx512"):
        pytest.skip(f"avx512: {why_not('avx512')}")
    plan = early_plan(layer(Y, channels, 3), "avx512")
    assert plan.width > channels
    assert lane_columns(plan, last=True) == (places, frozenset(halves))


@pytest.mark.parametrize("problem", [
    layer(Y, 24, 3, accumulate=True), layer(X, 24, 3, groups=3), layer(Y, 20, 1, dtype="f64", out_dtype="f64"),
    layer(Y, 24, 1, dtype="bf16", out_dtype="bf16"), layer(X, 40, 3, dtype="f16", out_dtype="f16"),
], ids=["added to", "groups", "f64", "bf16", "f16"])  # fmt: skip
def test_others_are_exact_too(problem):
    if why_not("avx512"):
        pytest.skip(f"avx512: {why_not('avx512')}")
    plan = early_plan(problem, "avx512")
    check_plan(problem, plan, machine_for("avx512"))
    check_plan(problem, replace(plan, blocks_per_task=1), machine_for("avx512"), low=True)


@pytest.mark.parametrize(("isa", "channels"), [(isa, n) for isa, several in LEVELS.items() for n in several])
@pytest.mark.parametrize("taps", [1, 3])
def test_so_it_does_in_weights_that_are_read_as_they_lie(isa, channels, taps):
    if why_not(isa):
        pytest.skip(f"{isa}: {why_not(isa)}")
    problem = layer(Y, channels, taps, given=70)
    plan = early_plan(problem, isa)
    assert plan.may_read_weights
    plan = replace(plan, reads_weights=True, packs_weights=False)
    parts = replace(plan, reads_in_place=False, writes_in_place=False, i_block=plan.packable(35))
    assert parts.i_blocks > 1
    for one in (plan, parts):
        for low in (False, True):
            check_plan(problem, one, machine_for(isa), low=low)
