"""Plans by dot products of pairs of bf16, and how numbers become pairs, exactly."""

from dataclasses import replace
from math import prod

import numpy as np
import pytest

from codegen.dense_problems import W, X, Y, problem_of
from codegen.dot_cases import (
    EMULATED,
    EVERY,
    FEW,
    HERE,
    PLANS,
    REAL,
    ROWS,
    RUNS,
    each,
    in_bf16,
    needs_dots,
    of_lines,
    plan_of,
    shaped,
)
from codegen.matrix_checks import check_own_weights
from codegen.random_problems import check, check_plan, in_turn, random_problem
from convgrad.codegen.lower import lower
from convgrad.plan.by_dots.dots import DotDataPlan, DotWeightsPlan, depth_of, taps_together
from convgrad.plan.by_dots.far_pairs import FarPairsPlan
from convgrad.plan.by_matrix.runs import DotRunPlan
from convgrad.plan.choose import choose, variants
from convgrad.plan.machine import machine_for
from convgrad.plan.window_axes import WindowAxis
from convgrad.runtime import jit

pytestmark = needs_dots


@each
@pytest.mark.parametrize("problem", RUNS.values(), ids=RUNS)
def test_taps_and_few_channels_are_one_run(problem, isa):
    problem = in_bf16(problem, "bf16")
    plan = next(plan for plan in variants(problem, machine_for(isa)) if isinstance(plan, DotRunPlan))
    check_plan(problem, plan, machine_for(isa), low=isa == REAL)


def test_what_an_odd_run_reads_at_the_end_of_a_slab_is_zero():
    problem = in_bf16(problem_of(Y, (3, 3), (1, 1), (3, 3), channels=(3, 16)))
    plan = next(plan for plan in variants(problem, machine_for(EMULATED)) if isinstance(plan, DotRunPlan))
    assert plan.run % 2
    check_plan(problem, plan, machine_for(EMULATED))  # in memory that holds NaN at first
    check_plan(problem, replace(plan, packs_weights=not plan.packs_weights), machine_for(EMULATED))


@each
@pytest.mark.parametrize(("number", "problem"), list(enumerate(EVERY.values())), ids=EVERY)
def test_whole_numbers_are_exact(number, problem, isa):
    variant = [isinstance(plan, PLANS) for plan in variants(problem, machine_for(isa))].index(True)
    if isa == HERE[number % len(HERE)]:
        check(problem, isa, variant=variant)
    if isa == HERE[-1]:
        check(problem, isa, variant=variant, low=True, alter=1)
        check_plan(in_bf16(problem, "bf16"), plan_of(in_bf16(problem, "bf16"), isa), machine_for(isa))


@pytest.mark.parametrize("layout", ["NCX", "NXC"])
def test_results_in_bf16_are_written_in_place_where_channels_lie_together(layout):
    problem = in_bf16(problem_of(Y, (9, 26), (9, 26), (3, 3), channels=(32, 64), low=1, layout=layout), "bf16")
    plan = plan_of(problem)
    assert plan.writes_in_place == (layout == "NXC")
    check_plan(problem, plan, machine_for(EMULATED))


def test_blocks_of_channels_waste_next_to_none():
    for channels in range(1, 400):
        depth = depth_of(channels)
        assert depth % 2 == 0
        assert depth <= 48
        filled = -(-channels // depth) * depth
        assert filled - channels <= 1 + channels / 20, channels
    assert [depth_of(channels) for channels in (1, 3, 16, 24, 40, 64, 80, 512)] == [2, 4, 16, 24, 40, 32, 40, 32]


@each
@pytest.mark.parametrize("layout", ["NCX", "NXC"])
@pytest.mark.parametrize("channels", [2, 9, 16, 24, 40, 52, 67, 100])
def test_slabs_hold_as_many_channels_as_there_are(channels, layout, isa):
    problem = in_bf16(problem_of(Y, (5, 7), (5, 7), (3, 3), channels=(channels, 20), low=1, layout=layout), "bf16")
    plan = next(plan for plan in variants(problem, machine_for(isa)) if type(plan) is DotDataPlan)
    assert plan.slab_size < prod(plan.slab_extent) * (channels + 4)
    check_plan(problem, plan, machine_for(isa))


@pytest.mark.parametrize("vectors", [1, 2, 3, 4])
@each
def test_tiles_of_any_width_are_rounded_in_place(vectors, isa):
    problem = in_bf16(problem_of(Y, (4, 9), (4, 9), (3, 3), channels=(6, 70), low=1, layout="NXC", bias=True), "bf16")
    for plan in variants(problem, machine_for(isa)):
        if isinstance(plan, DotDataPlan):
            plan = shaped(plan, 3, 16 * vectors)
            assert plan.writes_in_place
            check_plan(problem, plan, machine_for(isa))


def test_whole_lines_of_results_go_past_the_caches():
    plan = shaped(plan_of(of_lines(), REAL), 4, 32, 64)
    assert plan.past_caches
    text = jit.assembly(lower(plan).ir, machine_for(REAL))
    assert "vmovnt" in text
    assert text.index("vmovnt") < text.index("sfence")
    for other in (plan_of(of_lines("NCX")), plan_of(of_lines(channels=72))):
        assert not shaped(other, 4, 32, 64).past_caches
    assert not shaped(plan, 4, 16, 64).past_caches


@each
@pytest.mark.parametrize("low", [False, True])
def test_lines_are_the_same_wherever_they_lie(low, isa):
    problem = of_lines()
    plan = shaped(plan_of(problem, isa), 4, 32, 64)
    assert plan.past_caches
    check_plan(problem, plan, machine_for(isa), low=low)


@pytest.mark.parametrize("channels", [8, 64])
def test_the_slab_that_follows_is_asked_for(channels, monkeypatch):
    """Of one run of taps and channels, too; not with channels first."""
    problems = [
        in_bf16(problem_of(Y, (270, 270), (270, 270), (3, 3), channels=(channels, 3), low=1, layout=layout), "bf16")
        for layout in ("NXC", "NCX")
    ]
    plan, first = (plan_of(problem, HERE[-1]) for problem in problems)
    assert plan.fetches_slab
    assert not first.fetches_slab
    asked = lower(plan).ir.count("@llvm.prefetch")
    check_plan(problems[0], plan, machine_for(HERE[-1]))
    monkeypatch.setattr(DotDataPlan, "fetches_slab", False)
    assert lower(plan).ir.count("@llvm.prefetch") < asked


@pytest.mark.parametrize("layout", ["NXC", "NCX"])
@pytest.mark.parametrize("taps", [1, 3])
def test_the_windows_that_follow_are_asked_for(taps, layout, monkeypatch):
    """In rows numbered through, and in sums of their own, whose first row some taps do not meet."""
    problem = problem_of(
        W, (80, 141), (80, 141), (taps, taps), channels=(50, 61), low=taps // 2, layout=layout
    )  # fmt: skip
    plan = plan_of(in_bf16(problem), HERE[-1])
    assert plan.fetches_ahead == (layout == "NXC")
    monkeypatch.setattr(DotWeightsPlan, "fetches_ahead", False)
    plain = lower(plan).ir.count("@llvm.prefetch")
    monkeypatch.setattr(DotWeightsPlan, "fetches_ahead", True)
    assert lower(plan).ir.count("@llvm.prefetch") > plain
    for apart, block in ((False, (1, 600)),) if taps == 1 else ((False, (1, 9, 141)), (True, (1, 9, 141))):
        check_plan(plan.problem, replace(plan, rows_apart=apart, block=block), machine_for(HERE[-1]))


@each
@pytest.mark.parametrize("asked", ROWS.values(), ids=ROWS)
def test_rows_of_windows_may_be_sums_of_their_own(asked, isa):
    problem = in_bf16(asked, "bf16")
    plan = replace(plan_of(problem, isa), rows_apart=True)
    every = tuple(axis.windows for axis in plan.axes)
    assert plan.depth == -(-plan.block[-1] // 2) * 2
    blocks = (every, (1, *every[1:]), (1,) * len(every), (1, *[2] * (len(every) - 2), every[-1]), plan.block)
    order = list(ROWS.values()).index(asked) + (isa == REAL)
    for number, block in enumerate(dict.fromkeys(blocks if isa == HERE[-1] else blocks[1:3])):
        check_plan(problem, replace(plan, block=block), machine_for(isa))
        if (number + order) % 2:
            check_plan(problem, replace(plan, block=block, rows_apart=False), machine_for(isa))


@each
@pytest.mark.parametrize("asked", FEW.values(), ids=FEW)
def test_taps_of_few_channels_are_rows_of_a_tile(asked, isa):
    order = list(FEW.values()).index(asked)
    for dtype in ("bf16", "f32") if isa == HERE[-1] else (in_turn(order, "bf16", "f32"),):
        problem = in_bf16(asked, dtype)
        plan = plan_of(problem, isa)
        assert plan.tile_taps > 1 or problem.x_channels > 2
        check_plan(problem, plan, machine_for(isa), low=isa == REAL)
        every = tuple(axis.windows for axis in plan.axes)
        for taps in taps_together(plan.axes[-1]):
            if taps * problem.x_channels <= 30:
                tiles = replace(plan, vectors=1, row_channels=problem.x_channels, tile_taps=taps)
                tiles = replace(tiles, rows_apart=bool(taps % 2) and problem.rank > 1, block=every, chunks=1)
                check_plan(problem, tiles, machine_for(isa))


@pytest.mark.parametrize(
    "axis", [(9, 3, 1, 4), (16, 16, 1, 0), (6, 4, 1, 1), (6, 3, 2, 2), (8, 6, 3, 5), (12, 8, 2, 3)]
)
def test_taps_lie_alike_in_all_tiles_of_so_many(axis):
    taps, stride, dilation, low = axis
    windows = WindowAxis(windows=9, image=64, taps=taps, stride=stride, dilation=dilation, low=low)
    places = [divmod(-low % stride + r * dilation, stride) for r in range(taps)]  # in a plane, and which

    def alike(count):
        tiles = [places[first : first + count] for first in range(0, taps, count)]
        return len({tuple((p - tile[0][0], q - tile[0][1]) for p, q in tile) for tile in tiles}) == 1

    assert taps_together(windows) == [n for n in range(1, taps + 1) if taps % n == 0 and alike(n)]


def test_short_rows_are_summed_apart():
    problem = in_bf16(problem_of(W, (7, 7), (7, 7), (3, 3), channels=(64, 64), low=1, batch=8), "bf16")
    plans = variants(problem, machine_for(REAL))
    assert next(plan for plan in plans if isinstance(plan, DotWeightsPlan)).rows_apart


@each
@pytest.mark.parametrize("part", range(3))
def test_random_problems_by_dot_products(part, isa):
    found, seed = 0, 1000 * part + (500 if isa == REAL else 0)
    while found < 12:
        problem = in_bf16(random_problem(np.random.default_rng(seed)), ("f32", "bf16")[seed % 2])
        for plan in variants(problem, machine_for(isa)):
            if isinstance(plan, PLANS):
                check_plan(problem, plan, machine_for(isa), seed=seed, low=bool(seed % 3))
                found += 1
        seed += 1


@pytest.mark.parametrize("layout", ["NCX", "NXC"])
@pytest.mark.parametrize("unknown", [X, Y])
def test_tasks_may_pack_their_own_weights_and_watch_them(unknown, layout):
    check_own_weights(plan_of, "bf16", unknown, layout)


@pytest.mark.parametrize("chunks", [1, 2])
def test_a_task_may_keep_its_sums(chunks):
    problem = in_bf16(problem_of(W, (12, 13), (12, 13), (3, 3), channels=(34, 40), low=1, batch=2), "bf16")
    plan = replace(plan_of(problem), block=(1, 12, 13), chunks=chunks)
    assert plan.own_sums == (chunks == 1)
    check_plan(problem, plan, machine_for(EMULATED))


def test_dense_layers_are_planned_on_it():
    for unknown in (X, W, Y):
        problem = in_bf16(problem_of(unknown, (28, 28), (28, 28), (3, 3), channels=(64, 64), low=1), "bf16")
        by_dots = (*PLANS, FarPairsPlan)
        assert isinstance(choose(problem, machine_for(REAL)), by_dots)
        assert not isinstance(choose(replace(problem, dtype="f32", out_dtype="f32"), machine_for(REAL)), by_dots)
