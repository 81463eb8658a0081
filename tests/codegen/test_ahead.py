"""Lines that are fetched ahead: which they are, and that asking for them changes no result."""

import re
from dataclasses import replace
from itertools import product
from math import prod

import numpy as np
import pytest

from codegen.dense_problems import W, Y, problem_of
from codegen.dot_cases import EMULATED, in_bf16, needs_dots
from codegen.emitted import HOST_ISAS, each_isa
from codegen.random_problems import altered, check, check_plan, in_turn, random_problem
from convgrad.codegen.loops import ahead
from convgrad.codegen.loops.ahead import AT_ONCE, LINE, Ahead, Lines, lines_of
from convgrad.codegen.loops.data_ahead import raw_lines
from convgrad.codegen.loops.tap_sums import walks_along_channels
from convgrad.codegen.lower import lower
from convgrad.plan.by_dots import dots_in_place
from convgrad.plan.by_dots.dots import DotWeightsPlan
from convgrad.plan.by_dots.dots_in_place import DotsInPlacePlan
from convgrad.plan.choose import choose, variants
from convgrad.plan.few_channels import run_weights
from convgrad.plan.general import data, weights
from convgrad.plan.general.data import DataPlan
from convgrad.plan.general.weights import WeightsPlan
from convgrad.plan.machine import machine_for

INTO_L2 = re.compile(r"llvm.prefetch.p0\(ptr %\w+, i32 0, i32 2")
BOXES = {
    "channels innermost": [(2, 56 * 256), (56, 256), (64, 4)],
    "some of the channels": [(2, 56 * 2048), (56, 2048), (64, 4)],
    "part of a row": [(3, 4096), (20, 64), (16, 4)],
    "planes": [(64, 16384), (2, 224), (56, 4)],
    "one number": [(1, 4)],
    "one number again and again": [(8, 0), (256, 0)],
    "a row again and again": [(8, 0), (256, 4)],
}


def starts_of(ahead, box):
    """The first bytes of the lines that all tiles fetch of one box, as `Ahead.walk` numbers its pieces."""
    lines = ahead.lines
    walks = range(-(-box.walk[0] // lines))
    for places in product(*(range(extent) for extent, _ in box.others), walks):
        steps = [*(step for _, step in box.others), lines * box.walk[1]]
        for line in range(lines):
            yield sum(place * step for place, step in zip(places, steps, strict=True)) + line * box.walk[1]


@pytest.mark.parametrize("axes", BOXES.values(), ids=BOXES)
@pytest.mark.parametrize(("steps", "tiles"), [(128, 40), (112, 96), (56, 10_000), (8, 3000)])
def test_every_line_of_a_box_is_fetched(axes, steps, tiles):
    box = lines_of(axes)
    ahead = Ahead((box,), steps, tiles)
    numbers = {
        sum(i * step for i, (_, step) in zip(where, axes, strict=True))
        for where in product(*(range(extent) for extent, _ in axes))
    }
    fetched = {start // LINE for start in starts_of(ahead, box)}
    assert {number // LINE for number in numbers} <= fetched
    assert len(fetched) <= 1.5 * len({number // LINE for number in numbers}) + max(AT_ONCE, steps)


def test_tiles_that_have_little_to_fetch_ask_before_they_begin():
    assert Ahead((lines_of([(100, 64)]),), 128, 50).at_once == 2
    assert Ahead((lines_of([(1000, 64)]),), 128, 50).at_once == 0
    assert Ahead((lines_of([(1000, 64)]),), 128, 50).shift == 2  # 32 lines of 50 tiles, not 16


def test_short_runs_of_many_positions_are_fetched_along_the_positions():
    axes = [(64, 2048), (288, 4)]  # 18 lines of each position, which a tile of 64 steps asks for in one of 64 pieces
    box = lines_of(axes)
    ahead = Ahead((box,), 64, 24)
    assert box.pieces(64) == 64
    (turned,) = ahead.complete().boxes
    assert turned.pieces(64) == 18
    expected = {place * 2048 + line * LINE for place in range(64) for line in range(18)}
    assert set(starts_of(ahead.complete(), turned)) == expected
    assert replace(ahead, tiles=64).complete().boxes == (box,), "as it lies, where there is time"


def test_what_tiles_have_no_time_for_is_left_out_and_nothing_beyond_a_run_is_fetched():
    """Runs of 16 lines of every second position: a tile has time for one of them, and 80 are more than there are."""
    box = lines_of([(16, 262144), (5, 2048), (512, 2)])
    assert box == Lines((16, LINE), ((5, 2048), (16, 262144)))
    for most in (1, 12):
        ahead = Ahead((box,), 512, 64, most).complete()
        assert (ahead.lines, ahead.each, ahead.at_once) == (16, 1, 0)
    assert Ahead((Lines((4, LINE), box.others),), 512, 64, 12).at_once == 4


@each_isa
@pytest.mark.parametrize("channels", [16, 64])
def test_what_is_read_in_place_for_several_taps_is_fetched_ahead(monkeypatch, isa, channels):
    problem = problem_of(Y, (14, 13), (13, 12), (2, 2), channels=(40, channels), batch=3, layout="NXC")
    plan = choose(problem, machine_for(isa))
    assert type(plan) is DataPlan
    assert plan.reads_in_place
    assert not INTO_L2.search(lower(plan).ir), "all of this problem stays near"
    monkeypatch.setattr(data, "IN_PLACE_BYTES", 0)
    assert INTO_L2.search(lower(plan).ir)
    check(problem, isa)
    check(problem, isa, alter=1)


@each_isa
@pytest.mark.parametrize("taps", [1, 3])
def test_fetching_ahead_changes_no_sum(monkeypatch, isa, taps):
    """With few lines per tile and with many."""
    problem = problem_of(W, (40, 50), (40, 50), (taps, taps), channels=(35, 70), batch=2, layout="NXC", low=taps // 2)
    assert not INTO_L2.search(lower(choose(problem, machine_for(isa))).ir), "all of this problem stays in L2"
    for plans in (weights, run_weights):
        monkeypatch.setattr(plans, "KEPT_BYTES", 0)
    assert INTO_L2.search(lower(choose(problem, machine_for(isa))).ir)
    check(problem, isa)
    check(problem, isa, alter=1)


@each_isa
@pytest.mark.parametrize("dtype", ["f16", "bf16"])
@pytest.mark.parametrize("layout", ["NXC", "NCX"])
def test_windows_of_16_bits_are_fetched_in_either_layout(monkeypatch, isa, dtype, layout):
    """From smaller tensors on, with channels last."""
    problem = problem_of(
        W, (40, 50), (40, 50), (3, 3), channels=(35, 70), batch=2, layout=layout, low=1, dtype=dtype, out_dtype=dtype
    )
    plans = [plan for plan in variants(problem, machine_for(isa)) if type(plan) in (WeightsPlan, DotWeightsPlan)]
    assert not any(INTO_L2.search(lower(plan).ir) for plan in plans), "all of this problem stays in L2"
    monkeypatch.setattr(weights, "NEAR_BYTES" if layout == "NXC" else "KEPT_BYTES", 0)
    for number, plan in enumerate(plans, HOST_ISAS.index(isa) + (dtype == "f16")):
        assert bool(INTO_L2.search(lower(plan).ir)) == (prod(plan.block_grid) > 1 and not plan.spread)
        check_plan(problem, in_turn(number, plan, altered(plan, np.random.default_rng(1))), machine_for(isa))
    assert any(INTO_L2.search(lower(plan).ir) for plan in plans)


@each_isa
@pytest.mark.parametrize(("extent", "taps", "channels"), [((30, 40), (3, 3), (70, 90)), ((300,), (4,), (33, 20))])
@pytest.mark.parametrize("layout", ["NXC", "NCX"])
def test_fetching_the_next_slab_and_weights_changes_no_output(monkeypatch, isa, extent, taps, channels, layout):
    """Of this task and of the next, with an outer tap to count by and without; weights alone with channels first."""
    problem = problem_of(Y, extent, extent, taps, channels=channels, batch=2, layout=layout, low=1)

    def ir():  # of vectors: tiles fetch nothing
        return lower(next(plan for plan in variants(problem, machine_for(isa)) if not plan.ON_UNITS)).ir

    assert not INTO_L2.search(ir()), "all of this problem stays in L2"
    monkeypatch.setattr(data, "KEPT_BYTES", 0)
    assert INTO_L2.search(ir())
    check(problem, isa)
    check(problem, isa, alter=1)


@each_isa
@pytest.mark.parametrize("layout", ["NXC", "NCX"])
def test_weights_that_tasks_pack_are_fetched_as_they_lie(monkeypatch, isa, layout):
    problem = problem_of(Y, (6, 7), (6, 7), (3, 3), channels=(70, 90), batch=2, layout=layout, low=1)
    plan = next(plan for plan in variants(problem, machine_for(isa)) if type(plan) is DataPlan and not plan.pixels)
    plan = replace(plan, packs_weights=True, reads_weights=False)
    assert not INTO_L2.search(lower(plan).ir), "all of this problem stays in L2"
    monkeypatch.setattr(DataPlan, "fetches_slab", False)
    monkeypatch.setattr(data, "KEPT_BYTES", 0)
    assert INTO_L2.search(lower(plan).ir)
    check_plan(problem, plan, machine_for(isa))
    check_plan(problem, altered(plan, np.random.default_rng(1)), machine_for(isa))


@each_isa
@pytest.mark.parametrize("layout", ["NXC", "NCX"])
def test_every_line_of_the_weights_of_a_sweep_is_fetched(isa, layout):
    problem = problem_of(Y, (6, 7), (6, 7), (3, 3), channels=(64, 208), batch=2, layout=layout, low=1)
    plan = next(plan for plan in variants(problem, machine_for(isa)) if type(plan) is DataPlan and not plan.pixels)
    box, (_, k, c, *taps) = raw_lines(plan), problem.w_strides
    axes = zip((plan.width, plan.i_block, *problem.taps), (k, c, *taps), strict=True)
    places = {4 * sum(at) for at in product(*(range(0, n * step, step) for n, step in axes))}
    fetched = {start // LINE for start in starts_of(Ahead((box,), 8, 3000), box)}
    assert {place // LINE for place in places} <= fetched


@each_isa
@pytest.mark.parametrize("dtype", ["f16", "bf16"])
@pytest.mark.parametrize("channels", [(70, 90), (256, 64)])
def test_tiles_of_one_tap_fetch_along_channels(monkeypatch, isa, dtype, channels):
    """Of 16 bits: a few lines of each tile would leave most of the next slab to be waited for."""
    problem = problem_of(
        Y, (30, 40), (30, 40), (1, 1), channels=channels, batch=2, layout="NXC", dtype=dtype, out_dtype=dtype
    )
    monkeypatch.setattr(data, "KEPT_BYTES", 0)
    monkeypatch.setattr(ahead, "AT_ONCE", 0)
    plan = next(plan for plan in variants(problem, machine_for(isa)) if type(plan) is DataPlan and not plan.pixels)
    assert walks_along_channels(plan)
    assert not walks_along_channels(replace(plan, problem=replace(problem, dtype="f32", out_dtype="f32")))
    in_sums = re.split(r"\nk\.body\d+:", lower(plan).ir)[1:]  # what follows the head of a loop over channels
    assert any(INTO_L2.search(loop.split("br i1")[0]) for loop in in_sums)
    check_plan(problem, plan, machine_for(isa))
    check_plan(problem, altered(plan, np.random.default_rng(1)), machine_for(isa))


@pytest.mark.parametrize("seed", [*range(14), 17, 42])  # the last two: windows that meet no output
def test_random_problems_fetch_ahead(monkeypatch, seed):
    """Strides of zero, axes without taps, empty borders: whatever there is to fetch, or not."""
    monkeypatch.setattr(data, "KEPT_BYTES", -1)
    monkeypatch.setattr(weights, "KEPT_BYTES", -1)
    monkeypatch.setattr(weights, "NEAR_BYTES", -1)
    problem = random_problem(np.random.default_rng(seed))
    for isa in HOST_ISAS:
        check(problem, isa, variant=seed % 3, seed=seed, alter=seed if seed % 2 else None)
        check(replace(problem, dtype="bf16", out_dtype="f32"), isa, variant=seed % 3, seed=seed)


@needs_dots
@pytest.mark.parametrize("batch", [1, 3])
def test_words_in_place_are_fetched_for_the_next_look(monkeypatch, batch):
    """Few channels as they lie, of positions that the next task begins with."""
    problem = in_bf16(problem_of(Y, (20, 90), (20, 90), (1, 1), channels=(24, 144), batch=batch, layout="NXC"), "bf16")
    found = (plan for plan in variants(problem, machine_for(EMULATED)) if isinstance(plan, DotsInPlacePlan))
    plan = next(found)
    assert not INTO_L2.search(lower(plan).ir), "all of this problem stays near"
    monkeypatch.setattr(dots_in_place, "KEPT_BYTES", 0)
    assert INTO_L2.search(lower(plan).ir)
    check_plan(problem, plan, machine_for(EMULATED))
