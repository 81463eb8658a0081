"""Weights gradients on tiles whose taps shift pairs of windows of x: nothing is copied for a tap."""

from dataclasses import replace

import numpy as np
import pytest

from codegen.dense_problems import W, problem_of
from codegen.matrix_checks import (
    KEPT,
    WIDE,
    alterations_of,
    check_blocks,
    check_pieces,
    check_random,
    data,
    needs_tiles,
    products_of,
    run,
)
from codegen.random_problems import check_plan, strides_in
from convgrad.plan.by_matrix.shifted_pairs import ShiftedPairsPlan, shifts_pairs
from convgrad.plan.choose import choose, variants
from convgrad.plan.machine import machine_for

pytestmark = needs_tiles
MACHINE = machine_for("amx_emulated")
PROBLEMS = {name: p for name, p in WIDE.items() if p.unknown is W and shifts_pairs(p, pieces=3)} | {
    "odd rows": problem_of(W, (7, 7), (7, 7), (3, 3), channels=(33, 20), low=1, batch=3, layout="NXC"),
    "an even pad": problem_of(W, (9, 11), (9, 11), (5, 5), channels=(20, 33), low=2, batch=2),
    "no pad": problem_of(W, (9, 12), (7, 10), (3, 3), channels=(18, 35)),
    "a pad of three": problem_of(W, (6, 13), (6, 13), (1, 7), channels=(20, 20), low=(0, 3), batch=2, layout="NXC"),
    "more than the kernel reaches": problem_of(W, (5, 8), (5, 8), (3, 3), channels=(17, 20), low=(4, 5)),
    "strides": problem_of(W, (13, 21), (6, 10), (3, 4), channels=(33, 17), stride=2, low=1, layout="NXC"),
    "uneven strides": problem_of(W, (14, 26), (5, 9), (3, 5), channels=(18, 40), stride=3, low=(1, 4), layout="NXC"),
    "strides of rows": problem_of(W, (15, 11), (7, 11), (3, 3), channels=(20, 18), stride=(2, 1), low=1),
    "dilation": problem_of(W, (9, 15), (9, 15), (3, 3), channels=(20, 18), dilation=3, low=3),
    "a row": problem_of(W, (75,), (75,), (4,), channels=(20, 30), low=1, batch=3),
    "rows of windows side by side": problem_of(W, (12, 14), (6, 7), (2, 2), channels=(20, 33), stride=2, layout="NXC"),
}


def plan_of(problem):
    return next(plan for plan in variants(problem, MACHINE) if type(plan) is ShiftedPairsPlan)


@pytest.mark.parametrize("dtype", ["f32", "f16"])
@pytest.mark.parametrize("name", PROBLEMS)
def test_whole_numbers_are_exact(name, dtype):
    plan = plan_of(replace(PROBLEMS[name], dtype=dtype, out_dtype="f32"))
    check_blocks(plan, alterations_of(dtype, list(PROBLEMS).index(name)))


@pytest.mark.parametrize("dtype", ["f32", "f16"])
@pytest.mark.parametrize("name", ["odd rows", "strides", "a row"])
def test_all_pieces_are_shifted(name, dtype):
    plan = plan_of(replace(PROBLEMS[name], dtype=dtype, out_dtype="f32"))
    check_pieces(plan)
    check_pieces(replace(plan, block=(*[1] * (len(plan.block) - 1), 4), chunks=1))


@pytest.mark.parametrize("kind", KEPT)
@pytest.mark.parametrize("innermost", ["channels of y", "channels of x"])
def test_sums_become_weights(kind, innermost):
    sizes, strides, out_dtype = KEPT[kind]
    problem = problem_of(W, (12, 13), (12, 13), (3, 3), low=1, batch=2, bias_gradient="y", **sizes, **strides)
    dtype = "f16" if out_dtype == "bf16" else "f32"
    problem = replace(problem, dtype=dtype, out_dtype=dtype)
    if innermost == "channels of x":
        problem = replace(problem, w_strides=strides_in((0, 1, 3, 4, 2), problem.shapes["w"]))
    for block, chunks in (((2, 12, 13), 1), ((1, 4, 13), 1), ((1, 4, 6), 3)):
        plan = replace(plan_of(problem), block=block, chunks=chunks)
        assert plan.straight == (innermost == "channels of x" and chunks == 1 and dtype == "f32")
        check_plan(problem, plan, MACHINE, low=True)


@pytest.mark.parametrize("layout", ["NCX", "NXC"])
@pytest.mark.parametrize("side", ["x", "y"])
def test_either_side_has_a_bias_gradient(side, layout):
    problem = problem_of(W, (12, 13), (10, 11), (3, 3), channels=(37, 49), batch=2, layout=layout, bias_gradient=side)
    plan = plan_of(problem)
    for block, chunks, lane_shares, row_shares in (((2, 10, 11), 1, 1, 1), ((1, 5, 4), 2, 2, 1), ((1, 5, 4), 1, 1, 2)):
        shared = replace(plan, block=block, chunks=chunks, lane_shares=lane_shares, row_shares=row_shares)
        check_plan(problem, shared, MACHINE, low=True)


def test_random_problems():
    check_random(ShiftedPairsPlan, range(300, 480), least=15)


@pytest.mark.parametrize("dtype", ["f32", "f16"])
@pytest.mark.parametrize("side", [0, 1])
@pytest.mark.parametrize("layout", ["NCX", "NXC"])
def test_one_extreme_number_gives_the_bits_of_vectors(dtype, side, layout):
    problem = problem_of(W, (7, 7), (7, 7), (3, 3), channels=(33, 20), low=1, batch=3, layout=layout)
    plan = plan_of(replace(problem, dtype=dtype, out_dtype="f32"))
    given = data(plan.problem, np.random.default_rng(2), lambda rng, s: rng.standard_normal(s).round(2))
    assert not run(plan, given)[1]
    name = sorted(given)[side]
    given[name].flat[given[name].size // 2] = np.inf
    result, again = run(plan, given)
    assert again
    np.testing.assert_array_equal(result.view(np.uint32), run(plan.fallback, given)[0].view(np.uint32))


def test_products_that_are_too_small_are_left_to_vectors():
    """Neither side is by itself: that takes what is noted of x and of y."""
    plan = plan_of(PROBLEMS["odd rows"])
    assert not run(plan, data(plan.problem, np.random.default_rng(4), lambda rng, s: rng.uniform(1, 2, s) * 2.0**-40))[
        1
    ]
    assert run(plan, data(plan.problem, np.random.default_rng(4), lambda rng, s: rng.uniform(1, 2, s) * 2.0**-60))[1]


def test_blocks_begin_with_pairs():
    plan = plan_of(PROBLEMS["odd rows"])
    replace(plan, block=(1, 3, 4)).validate()
    replace(plan, block=(1, 3, 7)).validate()
    with pytest.raises(AssertionError):
        replace(plan, block=(1, 3, 3)).validate()


def test_sums_have_as_many_steps_as_windows_and_what_is_between_rows_need(monkeypatch):
    problem = PROBLEMS["odd rows"]  # six rows of ten and one of seven, of an image: three steps of 32
    plan = replace(plan_of(problem), block=(3, 7, 7))
    tiles = 2 * 4 * 9  # channels of y, of x in two blocks of two, and taps
    assert plan.plane_extent[-1] == 10
    assert products_of(plan, monkeypatch) == len(plan.products) * tiles * 3 * 3


@pytest.mark.parametrize(
    ("dilation", "stride", "odd"), [(1, 1, True), (2, 1, False), (3, 1, True), (2, 2, True), (4, 2, False)]
)
def test_pairs_begin_with_odd_windows_only_where_taps_ask_for_that(dilation, stride, odd):
    windows = (9 - 1) // stride + 1
    problem = problem_of(
        W, (9, 9), (windows, windows), (3, 3), channels=(20, 20), stride=stride, dilation=dilation, low=dilation,
        layout="NXC",
    )  # fmt: skip
    plan = plan_of(problem)
    assert plan.odd_taps == odd
    assert plan.lane_slab_size == (2 if odd else 1) * plan.pieces * plan.share_blocks * plan.lane_slab_block


def test_nothing_is_paired_where_that_gains_nothing():
    strided = problem_of(W, (8, 64), (8, 32), (3, 4), channels=(64, 64), stride=(1, 2), low=1)
    one_tap = problem_of(W, (8, 64), (8, 64), (1, 1), channels=(64, 64), layout="NXC")
    one_piece = replace(PROBLEMS["odd rows"], dtype="bf16")
    for problem in (strided, one_tap, one_piece):
        assert not any(isinstance(plan, ShiftedPairsPlan) for plan in variants(problem, MACHINE))


@pytest.mark.parametrize(
    ("problem", "shifts"),
    [
        (problem_of(W, (56, 56), (56, 56), (3, 3), channels=(64, 64), low=1, batch=8), True),
        (problem_of(W, (128, 128), (128, 128), (3, 3), channels=(64, 64), low=1, batch=2), True),
        (problem_of(W, (28, 28), (28, 28), (5, 5), channels=(192, 32), low=2, batch=16, layout="NXC"), True),
        (problem_of(W, (14, 14), (14, 14), (3, 3), channels=(256, 256), low=1), False),
        (problem_of(W, (8, 8), (4, 4), (4, 4), channels=(512, 512), stride=2, low=1, batch=8, layout="NXC"), False),
        (problem_of(W, (33, 33), (33, 33), (3, 3), channels=(256, 256), dilation=12, low=12, layout="NXC"), False),
    ],
    ids=["few channels", "long rows", "many taps", "many weights", "short rows", "taps far apart"],
)
def test_pairs_are_shifted_where_copies_for_taps_take_more_than_zeros_between_rows(problem, shifts):
    assert isinstance(choose(problem, MACHINE), ShiftedPairsPlan) == shifts
