"""Weights gradients of planes that are alike, read as they lie in memory: random problems, exactly."""

from dataclasses import replace

import numpy as np
import pytest

from codegen.dense_problems import problem_of
from codegen.random_problems import check_plan, strides_in
from codegen.test_flat_data import ISA, alike_problem, apart, needs_masks, resnext
from convgrad.codegen.lower import lower
from convgrad.plan.choose import choose
from convgrad.plan.in_place.choose_in_place_weights import in_place_candidates
from convgrad.plan.in_place.in_place_weights import InPlaceWeightsPlan
from convgrad.plan.in_place.row_weights import RowWeightsPlan
from convgrad.plan.machine import machine_for
from convgrad.problem.conv import ConvProblem, Unknown


def divisor(rng, n, most):
    """Of n, at most so much."""
    return int(rng.choice([d for d in range(1, min(n, most) + 1) if n % d == 0]))


def altered(plan, rng):
    """With the other side moving, and other tiles, blocks, shares and chunks."""
    if not isinstance(plan, RowWeightsPlan):
        plan = replace(plan, lane_side=str(rng.choice(["x", "y"])))
    block = list(plan.block)
    if len(plan.flat) == 1:
        block[-1] = int(rng.integers(1, 5)) * plan.lanes
    else:
        block[-2] = int(rng.integers(1, plan.axes[-2].windows + 1))
    row_channels = divisor(rng, plan.row_count, 4)
    plan = replace(
        plan, block=tuple(block), row_channels=row_channels, vectors=divisor(rng, plan.lane_count, 4),
        tile_taps=divisor(rng, plan.axes[-1].taps, 5),
    )  # fmt: skip
    row_shares = divisor(rng, plan.row_count // row_channels, 3)
    lane_shares, chunks = int(rng.integers(1, plan.lane_blocks + 1)), int(rng.integers(1, 4))
    return replace(plan, row_shares=row_shares, lane_shares=lane_shares, chunks=chunks)


@needs_masks
@pytest.mark.parametrize("bias_gradient", ["", "x", "y"])
def test_in_place_weights_exactly(bias_gradient):
    """As planned, and otherwise; what is beside an image is neither read nor multiplied."""
    tried, moving = 0, set()
    machine, first = machine_for(ISA), 10 * ["", "x", "y"].index(bias_gradient)
    for seed in range(first, first + 40):
        rng = np.random.default_rng(seed)
        problem = replace(
            alike_problem(rng, Unknown.W), bias=False, bias_gradient=bias_gradient, accumulate=bool(rng.integers(2))
        )
        found = next(in_place_candidates(problem, machine), None)
        if found is None:
            continue
        plan = altered(found[1], rng) if seed % 3 else found[1]
        plan.validate()
        try:
            check_plan(problem, plan, machine, seed, low=bool(seed % 2))
        except AssertionError as error:
            raise AssertionError(f"seed {seed}: {problem}\n{plan}\n{error}") from None
        tried += 1
        moving.add(plan.lane_side)
    assert tried > 35
    assert moving == {"x", "y"}


@needs_masks
@pytest.mark.parametrize("bias_gradient", ["", "x", "y"])
def test_rows_in_place_exactly(bias_gradient):
    """Windows apart from each other, or of other extents than the image."""
    tried = 0
    machine, first = machine_for(ISA), 10 * ["", "x", "y"].index(bias_gradient)
    for seed in range(first, first + 56):
        rng = np.random.default_rng(seed)
        problem = apart(alike_problem(rng, Unknown.W), rng)
        problem = replace(problem, bias=False, bias_gradient=bias_gradient, accumulate=bool(rng.integers(2)))
        found = next(in_place_candidates(problem, machine), None)
        if found is None or not isinstance(found[1], RowWeightsPlan):
            continue
        plan = altered(found[1], rng) if seed % 3 else found[1]
        plan.validate()
        try:
            check_plan(problem, plan, machine, seed, low=bool(seed % 2))
        except AssertionError as error:
            raise AssertionError(f"seed {seed}: {problem}\n{plan}\n{error}") from None
        tried += 1
    assert tried > 35


def test_rows_chosen_where_few_channels_meet_few():
    """With strides; eight channels of a group if caches hold them, and many are left to others."""

    def by_rows(problem):
        return isinstance(choose(replace(problem, unknown=Unknown.W), machine_for(ISA)), RowWeightsPlan)

    def strided(channels, windows=28, batch=1):
        shape = (batch, 32, channels, windows, windows)
        strides = strides_in(range(5), shape)
        return resnext(channels, batch=batch, stride=(2, 2), y_extent=(windows, windows), y_strides=strides)

    assert by_rows(strided(4))
    assert by_rows(strided(8))
    assert not by_rows(strided(8, batch=4))
    assert not by_rows(strided(32))


def test_chosen_where_few_channels_meet_few():
    """Not with many channels, nor where planes are not alike."""

    def in_place(problem, isa=ISA):
        return isinstance(choose(replace(problem, unknown=Unknown.W), machine_for(isa)), InPlaceWeightsPlan)

    assert in_place(resnext(4))
    assert in_place(resnext(8))
    assert not in_place(resnext(32))
    assert in_place(resnext(4, dtype="bf16", out_dtype="bf16"))
    assert not in_place(resnext(4), "avx2")
    gaps = resnext(4)
    assert not in_place(replace(gaps, x_strides=(*gaps.x_strides[:3], 64, 1)))
    assert not in_place(resnext(4, pad_low=(0, 0), y_extent=(54, 54)))


@needs_masks
def test_channels_that_windows_reach_into():
    """Rows of two elements, of which every channel begins where the one before ends; taps reach four to either side."""
    problem = ConvProblem(
        unknown=Unknown.W, batch=1, groups=1, x_channels=4, y_channels=3, x_extent=(9, 2), y_extent=(12, 4),
        taps=(1, 3), stride=(1, 1), dilation=(2, 2), pad_low=(2, 4), x_strides=(72, 72, 2, 8, 1),
        w_strides=(36, 12, 3, 3, 1), y_strides=(144, 144, 48, 4, 1),
    )  # fmt: skip
    machine = machine_for(ISA)
    for strides in ((72, 72, 2, 8, 1), (720, 720, 18, 72, 1), (72, 72, 18, 2, 1)):  # the last two: far from each other
        one = replace(problem, x_strides=strides)
        _, plan = next(in_place_candidates(one, machine))
        check_plan(one, plan, machine, 1)


@needs_masks
@pytest.mark.parametrize(("taps", "dilation"), [(5, 4), (9, 2)])
def test_taps_that_read_parts_of_the_same_vector(taps, dilation):
    """The last tap begins where the second vector of the first one does, which a row ends."""
    problem = problem_of(Unknown.W, (5, 37), (5, 21), (1, taps), channels=(2, 2), dilation=(1, dilation))
    _, plan = next(in_place_candidates(problem, machine_for(ISA)))
    assert isinstance(plan, RowWeightsPlan)
    for tile_taps in (plan.tile_taps, taps):
        check_plan(problem, replace(plan, tile_taps=tile_taps), machine_for(ISA), 1)


@needs_masks
@pytest.mark.parametrize("dtype", ["f32", "bf16"])
def test_windows_behind_the_image_meet_nothing(dtype):
    """On an outer axis of one tap, without pads before it."""
    problem = problem_of(
        Unknown.W, (1, 6, 16), (3, 6, 16), (1, 2, 1), channels=(3, 4), dilation=(1, 2, 3), low=(0, 1, 0), dtype=dtype,
        out_dtype="f32",
    )  # fmt: skip
    _, plan = next(in_place_candidates(problem, machine_for(ISA)))
    assert plan.axes[1].clipped
    check_plan(problem, plan, machine_for(ISA), 1)


@needs_masks
@pytest.mark.parametrize("dtype", ["f32", "bf16"])
@pytest.mark.parametrize("side", ["x", "y"])
@pytest.mark.parametrize(
    ("windows", "taps", "dilation", "low"),
    [(500, 3, 1, 1), (487, 5, 9, 18), (130, 7, 16, 64), (97, 2, 40, 0), (97, 2, 40, 40), (33, 9, 8, 32), (99, 1, 1, 0)],
)
def test_ends_of_an_only_axis(windows, taps, dilation, low, side, dtype):
    """Taps fall beside its first vectors, its last, both or all of a short one, in one block and in several."""
    problem = problem_of(
        Unknown.W, (windows,), (windows,), (taps,), channels=(2, 3), batch=2, dilation=dilation, low=low, dtype=dtype,
        out_dtype="f32",
    )  # fmt: skip
    machine = machine_for(ISA)
    for _, found in in_place_candidates(problem, machine):
        for vectors in (1, 3, -(-windows // found.window_lanes)):
            plan = replace(found, lane_side=side, row_channels=1, vectors=1, block=(1, vectors * found.window_lanes))
            plan.validate()
            check_plan(problem, plan, machine, windows)


@needs_masks
def test_masks_of_an_only_axis_take_no_more_room_the_longer_it_is():
    """In the text of a kernel."""

    def size(windows):
        problem = problem_of(Unknown.W, (windows,), (windows,), (7,), channels=(2, 1), low=3)
        _, plan = next(in_place_candidates(problem, machine_for(ISA)))
        return len(lower(replace(plan, block=(1, 1024))).ir)

    assert size(100_000_000) - size(1_000_000) < 500
