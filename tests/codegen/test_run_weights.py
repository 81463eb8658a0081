"""W of channels that would leave lanes empty: vectors along runs of taps and channels, exactly, at every border."""

from dataclasses import replace

import numpy as np
import pytest

from codegen.dense_problems import W, problem_of
from codegen.guard_cases import Case
from codegen.random_problems import altered, check_plan, in_turn
from convgrad.codegen.lower import lower
from convgrad.plan.choose import choose, variants
from convgrad.plan.few_channels.run_weights import RunWeightsPlan, even_pieces
from convgrad.plan.machine import available_isas, machine_for

needs_avx512 = pytest.mark.skipif("avx512" not in available_isas(), reason="this CPU has no avx512")
AXES = {  # extents of x and y, taps, stride, dilation, low pad
    "as large": ((9, 11), (9, 11), (3, 3), 1, 1, 1),
    "pads on every side": ((11, 17), (6, 9), (5, 5), 2, 1, 2),
    "pads at the end alone": ((9, 8), (9, 8), (3, 4), 1, 1, 0),
    "no pads": ((13, 26), (3, 8), (7, 5), 3, 1, 0),
    "cropped": ((12, 15), (4, 5), (4, 5), 2, 1, (-1, -2)),
    "gaps between windows": ((12, 30), (4, 6), (2, 2), (3, 5), 1, 0),
    "windows beside the image": ((4, 5), (9, 11), (4, 6), 3, 1, (9, 14)),
    "a row of windows": ((6, 9), (1, 2), (6, 6), 3, 1, 0),
    "a window": ((6, 6), (1, 1), (7, 7), 5, 1, 1),
    "a row": ((200,), (66,), (9,), 3, 1, 3),
    "three axes": ((7, 6, 11), (4, 3, 6), (3, 2, 4), 2, 1, 1),
    "an outer axis with gaps": ((40, 21), (4, 10), (2, 6), (9, 2), (7, 1), (5, 2)),
}
CHANNELS = ((19, 21), (21, 3), (37, 41), (9, 18), (5, 7), (18, 1))  # of x and of y
FIELDS = (
    {},
    {"bias_gradient": "x"},
    {"dtype": "bf16", "out_dtype": "f32", "bias_gradient": "y"},
    {"accumulate": True},
    {"dtype": "f16", "out_dtype": "f16"},
    {"groups": 3},
)


def plan_of(problem, isa="avx512"):
    """The plan; None if there is none."""
    return next((plan for plan in variants(problem, machine_for(isa)) if isinstance(plan, RunWeightsPlan)), None)


@needs_avx512
@pytest.mark.parametrize("layout", ["NCX", "NXC"])
@pytest.mark.parametrize("name", AXES)
def test_every_border(name, layout):
    """In 16 bits, with sums of either side, of groups, in other tiles, blocks and chunks."""
    x, y, taps, stride, dilation, low = AXES[name]
    rng, machine, tried = np.random.default_rng(len(name)), machine_for("avx512"), 0
    order = list(AXES).index(name) + (layout == "NXC")
    for seed, (channels, fields) in enumerate(zip(CHANNELS, FIELDS, strict=True)):
        fields = fields | {"stride": stride, "dilation": dilation, "low": low, "layout": layout}
        problem = problem_of(W, x, y, taps, channels=channels, batch=2, **fields)
        plan = plan_of(problem)
        if plan is None:
            continue
        check_plan(problem, in_turn(seed + order, plan, altered(plan, rng)), machine, seed, low=bool(seed % 2))
        tried += 1
    assert tried >= 3


@pytest.mark.parametrize("layout", ["NCX", "NXC"])
@pytest.mark.parametrize("isa", ["avx512", "avx2", "portable"])
def test_one_channel_whose_taps_no_rows_divide(isa, layout):
    """On vectors of any length, with borders on either side, outer taps, and more of y than a tile has."""
    if isa not in available_isas():
        pytest.skip(f"this CPU has no {isa}")
    machine, rng = machine_for(isa), np.random.default_rng(3)
    cases = (
        ((211,), (211,), (37,), 18, {"low": 18}),
        ((300,), (90,), (37,), 5, {"stride": 3, "low": 3, "bias_gradient": "y"}),
        ((4, 61), (4, 61), (3, 41), 41, {"low": (1, 20)}),
        ((120,), (40,), (101,), 7, {"stride": 3, "low": 50, "accumulate": True}),
        ((97,), (97,), (67,), 19, {"low": 33, "dtype": "f16", "out_dtype": "f16"}),
    )
    for number, (x, y, taps, channels, fields) in enumerate(cases):
        problem = problem_of(W, x, y, taps, channels=(1, channels), batch=2, layout=layout, **fields)
        plan = plan_of(problem, isa)
        check_plan(problem, in_turn(number, plan, altered(plan, rng)), machine, number, low=bool(number % 2))


def test_one_channel_in_runs_is_preferred_where_numbers_of_x_would_be_alone():
    """Not where rows divide its taps, or where there is another channel."""

    def kind(taps, isa, **more):
        problem = problem_of(W, (4000,), (4001 - taps,), (taps,), **({"channels": (1, 64)} | more))
        return type(choose(problem, machine_for(isa)))

    for isa in ("avx512", "avx2"):
        assert kind(37, isa) is RunWeightsPlan
        assert kind(36, isa) is not RunWeightsPlan
        assert kind(37, isa, channels=(2, 64)) is not RunWeightsPlan
        assert kind(37, isa, groups=2) is not RunWeightsPlan
    divided = problem_of(W, (4000,), (3965,), (36,), channels=(1, 64))
    assert plan_of(divided, "avx2") is None
    few = problem_of(W, (4000,), (3994,), (7,), channels=(1, 5))  # that a run of seven taps fills vectors better than
    assert plan_of(few, "avx2") is None
    assert plan_of(few, "avx512") is not None


@needs_avx512
def test_blocks_of_parts_of_rows():
    """Each of which has zeros of its own beside x."""
    problem = problem_of(W, (5, 29), (5, 29), (3, 5), channels=(21, 19), low=(1, 2), layout="NXC")
    plan = plan_of(problem)
    for columns in (1, 2, 7, 28):
        for rows in (1, 3):
            check_plan(problem, replace(plan, block=(1, rows, columns), chunks=2), machine_for("avx512"))


@needs_avx512
@pytest.mark.parametrize("layout", ["NCX", "NXC"])
def test_numbers_beside_a_run_do_not_reach_its_sums(layout):
    """Those that the last vector reads, infinite; and windows that are, which meet zeros beside the image."""
    problem = problem_of(W, (4, 9), (2, 5), (3, 3), channels=(21, 17), stride=2, low=1, layout=layout)
    plan = plan_of(problem)
    assert plan.run % plan.lanes
    case = Case(problem, plan, machine_for("avx512"))
    assert case.with_infinities({"x": 1, "y": 3}) > 3


def test_the_next_block_is_asked_for_where_tensors_are_large():
    """Not what L2 keeps anyway; in either layout, and nothing else changes."""
    for layout in ("NCX", "NXC"):
        small, large = (
            plan_of(problem_of(W, (n, n), (n // 2, n // 2), (3, 3), channels=(21, 19), stride=2, layout=layout))
            for n in (40, 240)
        )
        assert "prefetch" not in lower(small).ir
        assert "prefetch" in lower(large).ir
        if "avx512" in available_isas():
            check_plan(large.problem, large, machine_for("avx512"))


def test_dot_products_are_preferred_to_runs_that_seem_alike():
    """What is predicted of them is cautious."""
    plans = {}
    for dtype in ("f32", "bf16"):
        problem = problem_of(W, (14, 14), (7, 7), (5, 5), channels=(17, 17), stride=2, low=2, batch=2)
        machine = machine_for("avx512_bf16", triple="x86_64-unknown-linux-gnu")
        plans[dtype] = choose(replace(problem, dtype=dtype, out_dtype=dtype), machine)
    assert isinstance(plans["f32"], RunWeightsPlan)
    assert not isinstance(plans["bf16"], RunWeightsPlan)


def test_pieces_are_as_even_as_can_be():
    """Each number is in one of them, and none is larger than wanted."""
    for total in range(40):
        for most in range(1, 12):
            pieces = even_pieces(total, most)
            sizes = [size for _, many, size in pieces for _ in range(many)]
            firsts = [first + n * size for first, many, size in pieces for n in range(many)]
            assert sum(sizes) == total
            assert firsts == [sum(sizes[:n]) for n in range(len(sizes))]
            assert len(sizes) == -(-total // most)
            assert not sizes or max(sizes) - min(sizes) <= 1


def test_what_it_is_for():
    """Taps that follow each other and fill vectors which channels of neither side fill."""

    def chosen(channels=(21, 21), taps=(3, 3), isa="avx512", **more):
        problem = problem_of(W, (41, 41), (20, 20), taps, channels=channels, stride=2, batch=2, **more)
        return isinstance(choose(problem, machine_for(isa)), RunWeightsPlan)

    for layout in ("NCX", "NXC"):
        assert chosen(layout=layout)
        assert chosen((19, 37), (5, 5), layout=layout)
        assert not chosen((16, 21), layout=layout)
        assert not chosen((21, 32), layout=layout)  # whose vectors are full without
    assert chosen((6, 6), (5, 5), groups=8)
    assert not chosen((8, 8), groups=8)  # of which a vector holds two, and a row of taps fills three quarters
    assert not chosen(taps=(3, 1))
    assert not chosen(dilation=2)
    assert not chosen(isa="avx2")
