"""W of a few channels per group, vectors of x that hold whole groups: exactly, at every border, of any groups."""

from dataclasses import replace
from math import prod

import numpy as np
import pytest

from codegen.dense_problems import on_axes
from codegen.random_problems import check_plan, in_turn
from convgrad.codegen.lower import lower
from convgrad.plan.choose import choose, variants
from convgrad.plan.groups.group_weights import GroupWeightsPlan
from convgrad.plan.machine import available_isas, machine_for
from convgrad.problem.conv import Unknown

ISAS = [isa for isa in ("avx512", "avx2", "portable") if isa in available_isas()]
AXES = {  # extents of x and y, taps, stride, dilation, low pad
    "as large": ((6, 9), (6, 9), (3, 3), (1, 1), (1, 1), (1, 1)),
    "no pads": ((8, 7), (6, 5), (3, 3), (1, 1), (1, 1), (0, 0)),
    "stride 2": ((9, 12), (5, 6), (3, 3), (2, 2), (1, 1), (1, 1)),
    "stride 3": ((13, 10), (4, 3), (2, 4), (3, 3), (1, 1), (0, 0)),
    "cropped": ((9, 9), (4, 5), (3, 3), (1, 1), (1, 1), (-2, -1)),
    "dilation": ((7, 9), (7, 9), (3, 3), (1, 1), (2, 3), (2, 3)),
    "many taps": ((6, 9), (6, 9), (5, 5), (1, 1), (1, 1), (2, 2)),
    "a tap": ((5, 9), (5, 9), (1, 1), (1, 1), (1, 1), (0, 0)),
    "windows beside the image": ((4, 5), (9, 10), (2, 3), (1, 1), (1, 1), (3, 5)),
    "a row": ((40,), (20,), (5,), (2,), (1,), (2,)),
    "three axes": ((3, 5, 6), (3, 5, 6), (3, 3, 3), (1, 1, 1), (1, 1, 1), (1, 1, 1)),
}
GROUPS = (
    (4, 4, 4),
    (3, 4, 4),
    (9, 2, 2),
    (4, 8, 8),
    (7, 4, 8),
    (5, 8, 3),
    (17, 2, 1),
    (6, 4, 3),
    (7, 5, 5),
    (16, 3, 3),
    (5, 6, 4),
    (9, 7, 14),
    (4, 9, 5),
    (3, 12, 12),
    (16, 1, 2),
    (5, 1, 2),
    (9, 1, 3),
    (16, 1, 1),
)  # x, y of a group


def problem_of(axes, groups, c, k, *, batch=2, first=False, **more):
    """Dense, with channels last, or first."""
    sizes = {"channels": (c, k), "groups": groups, "batch": batch}
    return on_axes(Unknown.W, axes, **sizes, layout="NCX" if first else "NXC", weights="NCX", **more)


def plan_of(problem, isa):
    """The plan; None if there is none."""
    return next((plan for plan in variants(problem, machine_for(isa)) if isinstance(plan, GroupWeightsPlan)), None)


def altered(plan, rng):
    """With other tiles, blocks, bundles and chunks."""
    block = tuple(int(rng.integers(1, axis.windows + 1)) for axis in plan.axes)
    vectors = int(rng.integers(1, -(-plan.problem.groups // plan.vector_groups) + 1))
    plan = replace(
        plan, block=block, vectors=vectors, lane_groups=vectors * plan.vector_groups,
        taps_together=int(rng.integers(1, min(plan.taps, 9) + 1)), tile_rows=int(rng.integers(1, plan.row_count + 1)),
    )  # fmt: skip
    return replace(plan, chunks=int(rng.integers(1, min(8, prod(plan.block_grid)) + 1)))


@pytest.mark.parametrize("isa", ISAS)
@pytest.mark.parametrize("name", AXES)
def test_every_border(name, isa):
    """Of whole vectors of groups and others, channels last and first, in 16 bits, with sums, in other tiles."""
    rng, tried, order = np.random.default_rng(len(name)), 0, list(AXES).index(name)
    for seed, (groups, c, k) in enumerate(GROUPS):
        fields = ({}, {"bias_gradient": "x"}, {"dtype": "bf16", "out_dtype": "f32", "bias_gradient": "y"},
                  {"accumulate": True}, {"dtype": "f16", "out_dtype": "f16"})[seed % 5]  # fmt: skip
        first = (seed + len(name)) % 2 > 0
        problem = problem_of(AXES[name], groups, c, k, first=first, **fields)
        plan = plan_of(problem, isa)
        lanes = machine_for(isa).lanes_f32
        apart = lanes % c > 0 and (isa != "avx512" or first or 2 * c > lanes)
        assert (plan is None) == (c >= lanes or apart or k > 2 * c or (c == 1 and (k == 1 or first)))
        if plan is None:
            continue
        other, number = altered(plan, rng), tried + order
        tried += 1
        if isa == "avx512" or number % 2:
            one = in_turn(number, plan, other) if isa == "avx512" else other
            check_plan(problem, one, machine_for(isa), seed, low=bool(seed % 2))
    assert tried


@pytest.mark.parametrize("isa", ISAS)
def test_numbers_of_two_words(isa):
    """Vectors of half as many lanes."""
    problem = problem_of(AXES["stride 2"], 5, 2, 2, dtype="f64", out_dtype="f64")
    plan = plan_of(problem, isa)
    assert (plan is None) == (machine_for(isa).lanes_f32 == 4)  # two lanes, which are one group
    if plan is not None:
        check_plan(problem, plan, machine_for(isa))


def test_what_it_is_for():
    """Four to eight channels of many groups with channels last, and large strided ones with channels first."""
    machine = machine_for("avx512")
    same, strided = (((56, 56), (n, n), (3, 3), (s, s), (1, 1), (1, 1)) for n, s in ((56, 1), (28, 2)))
    for c in (4, 8):
        assert isinstance(choose(problem_of(same, 32, c, c), machine), GroupWeightsPlan)
        assert isinstance(choose(problem_of(strided, 32, c, c), machine), GroupWeightsPlan)
    assert isinstance(choose(problem_of(strided, 32, 8, 8, first=True, batch=4), machine), GroupWeightsPlan)
    assert not isinstance(choose(problem_of(strided, 32, 8, 8, first=True), machine), GroupWeightsPlan)  # rows in place
    small = ((14, 14), (7, 7), (3, 3), (2, 2), (1, 1), (1, 1))
    assert isinstance(choose(problem_of(small, 46, 8, 8, first=True, batch=4), machine), GroupWeightsPlan)
    assert not isinstance(choose(problem_of(same, 32, 4, 4, first=True), machine), GroupWeightsPlan)  # planes in place


def test_tiles_cover_every_tap_and_channel_once():
    """Whatever their size is."""
    plan = plan_of(problem_of(AXES["many taps"], 4, 8, 8), "avx512")
    for taps in (1, 2, 7, 25):
        for rows in (1, 3, 8):
            tiles = replace(plan, taps_together=taps, tile_rows=rows).tiles
            met = [(tap, row) for of_taps, of_rows in tiles for tap in of_taps for row in of_rows]
            assert sorted(met) == [(tap, row) for tap in range(25) for row in range(8)]


def test_the_next_block_is_asked_for_where_it_is_large_and_in_long_runs():
    """Not what L2 keeps anyway, nor channels of one group that lie far from those of the next."""
    axes = ((56, 56), (56, 56), (3, 3), (1, 1), (1, 1), (1, 1))
    small, large = (plan_of(problem_of(axes, groups, 4, 4), "avx512") for groups in (4, 64))
    assert "prefetch" not in lower(small).ir
    assert "prefetch" in lower(large).ir
    steps = large.problem.x_strides
    apart = replace(large.problem, x_strides=(steps[0] * 2, 2 * steps[1], 1, 2 * steps[3], 2 * steps[4]))
    assert not replace(large, problem=apart).fetches_ahead
