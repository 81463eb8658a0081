"""Whole kernels of every instruction set, each forced, on whole numbers: a result is right or wrong."""

import re
from dataclasses import replace

import numpy as np
import pytest

from codegen.dense_problems import EDGES, SAME, W, X, Y, problem_of
from codegen.emitted import HOST_ISAS, each_isa
from codegen.kinds_of_plans import KINDS, kinds
from codegen.random_problems import check, check_plan, in_turn, random_problem
from convgrad.codegen.lower import lower
from convgrad.plan.by_matrix.across_rows import AcrossRowsPlan
from convgrad.plan.choose import choose, variants
from convgrad.plan.general.data import DataPlan
from convgrad.plan.in_place.flat_data import FlatDataPlan
from convgrad.plan.in_place.row_data import RowDataPlan
from convgrad.plan.machine import machine_for

ROUNDS, EACH = 8, 15  # of random problems


# --- named problems


@each_isa
@pytest.mark.parametrize("problem", EDGES.values(), ids=EDGES)
def test_edges_are_solved_by_every_layout_of_vectors(problem, isa):
    for variant in (0, in_turn(list(EDGES.values()).index(problem) + HOST_ISAS.index(isa), 1, 2)):
        check(problem, isa, variant=variant, low=bool(variant % 2))


def test_tiles_of_parts_of_rows_leave_out_taps_that_whole_rows_meet():
    """Of a row of 65, taps 24 to either side meet 41: 12 of 15 vectors, but 5 of 6 pieces of 48 outputs."""
    plan = choose(EDGES["parts of several rows"], machine_for("avx512"))
    assert plan.tile[-1] == 16
    assert plan.tile[-2] > 1


def test_the_last_block_of_lanes_computes_what_no_other_does():
    """Written in place it begins early, and its last vectors are new; else its first ones."""
    names = [name for name in EDGES if name.startswith("fewer vectors")]
    plans = {name: choose(EDGES[name], machine_for("avx512")) for name in names}
    assert len({plan.writes_in_place for plan in plans.values()}) == 2
    for name, plan in plans.items():
        rest = plan.out_channels % plan.width
        assert 0 < rest < plan.width
        assert len(plan.last_vectors) == -(-rest // plan.lanes) < plan.width // plan.lanes, name
        assert (plan.last_vectors[0] > 0) == plan.writes_in_place
    whole = problem_of(Y, (5, 14), (5, 14), (3, 3), channels=(20, 128), layout="NXC", **SAME)
    assert choose(whole, machine_for("avx512")).last_vectors is None


@pytest.mark.parametrize("unknown", [X, Y])
@each_isa
def test_blocks_of_channels_have_one_sweep_of_code_between_them(unknown, isa):
    problem = problem_of(unknown, (9, 33), (9, 33), (3, 3), channels=(128, 128), low=1, layout="NXC")
    plan = next(plan for plan in variants(problem, machine_for(isa)) if not plan.ON_UNITS)
    plan = replace(plan, writes_in_place=False, pixel_major=True, i_block=128)
    blocks = replace(plan, i_block=plan.channel_unit)
    assert (plan.i_blocks, blocks.i_blocks) == (1, 128 // plan.channel_unit)
    products = [len(re.findall(r"@llvm\.fma\.|= fmul ", lower(each).ir)) for each in (plan, blocks)]
    assert 0 < products[0] == products[1]


APART = {  # taps farther apart than the outputs of small blocks, at borders
    "both axes": dict(image=(23, 30), windows=(23, 30), dilation=(9, 13), low=(9, 13)),
    "rows, beyond both ends": dict(image=(31, 9), windows=(41, 9), dilation=(17, 1), low=(22, 1)),
    "every other row": dict(image=(43, 17), windows=(12, 17), dilation=(16, 1), low=(6, 1), stride=(2, 1)),
    "one axis": dict(image=(290,), windows=(290,), dilation=140, low=140),
}


@each_isa
@pytest.mark.parametrize("unknown", [X, Y], ids=["x", "y"])
@pytest.mark.parametrize("layout", ["NCX", "NXC"])
@pytest.mark.parametrize("sizes", APART.values(), ids=APART)
def test_taps_far_apart_read_bands(sizes, layout, unknown, isa):
    """In blocks of one tile, as for larger problems."""
    problem = problem_of(unknown, **sizes, taps=(3,) * len(sizes["image"]), channels=(9, 18), layout=layout)
    for plan in variants(problem, machine_for(isa)):
        if isinstance(plan, FlatDataPlan | RowDataPlan | AcrossRowsPlan):
            continue
        small = replace(plan, block=plan.tile, reads_in_place=False, writes_in_place=False)
        assert small.has_bands or max(len(axis.phases) for axis in plan.axes) > 1 or plan.tile[-1] > 16
        check_plan(problem, small, machine_for(isa))


GROUPED = {  # lanes of several groups, each of which meets the numbers of its own
    "halves of a vector": dict(channels=(8, 8), groups=7),
    "quarters of a vector": dict(channels=(4, 4), groups=32),
    "quarters of a vector, in phases": dict(channels=(4, 4), groups=9, stride=2),
    "lanes left over": dict(channels=(3, 3), groups=11),
    "more numbers than lanes": dict(channels=(7, 2), groups=21),
    "more lanes than numbers": dict(channels=(2, 5), groups=21),
    "one number for many lanes": dict(channels=(1, 4), groups=40),
}  # fmt: skip


@each_isa
@pytest.mark.parametrize("layout", ["NCX", "NXC"])
@pytest.mark.parametrize("unknown", [X, Y], ids=["x", "y"])
@pytest.mark.parametrize("sizes", GROUPED.values(), ids=GROUPED)
def test_groups_side_by_side_meet_their_own_numbers(sizes, unknown, layout, isa):
    windows = (9, 17) if sizes.get("stride", 1) == 1 else (5, 9)
    problem = problem_of(unknown, (9, 17), windows, (3, 3), **sizes, low=1, layout=layout, bias=True)
    turn = list(GROUPED.values()).index(sizes) + HOST_ISAS.index(isa) + (unknown is Y)
    for number, dtype in enumerate(("f32", in_turn(turn, "f64", "bf16")) if layout == "NXC" else ("f32",)):
        asked = replace(problem, dtype=dtype, out_dtype=dtype)
        found = [
            n for n, plan in enumerate(variants(asked, machine_for(isa))) if isinstance(plan, DataPlan) and plan.spread
        ]
        for variant in found:
            check(asked, isa, variant=variant, low=bool(number % 2), alter=number * (1 + turn % 2) or None)
        assert found or sizes["channels"][unknown is Y] > machine_for(isa).lanes_f32 // (2 if dtype == "f64" else 1)


SUMMED = {  # of x and of y, in every kind of plan; see KINDS
    "in place": problem_of(W, (9, 25), (9, 25), (3, 3), channels=(1, 1), groups=70, layout="NXC", low=1),
    "across groups": problem_of(W, (9, 13), (9, 13), (3, 3), channels=(2, 4), groups=19, layout="NXC", low=1),
    "across groups, channels first": problem_of(W, (9, 13), (9, 13), (3, 3), channels=(2, 4), groups=19, low=1),
    "depthwise, channels first": problem_of(W, (9, 37), (9, 37), (3, 3), channels=(1, 1), groups=19, low=1),
    "a few groups": problem_of(W, (9, 13), (4, 6), (3, 3), channels=(17, 21), groups=3, stride=2, low=1),
    "rows": problem_of(W, (9, 9), (9, 9), (3, 3), channels=(5, 133), batch=2, low=1),
    "shares": problem_of(W, (16, 16), (16, 16), (1, 1), channels=(300, 700), layout="NXC"),
    "several chunks and blocks": problem_of(
        W, (60, 70), (30, 23), (3, 3), channels=(4, 17), stride=(2, 3), low=1, batch=6
    ),
    "beside a stride without meaning": problem_of(W, (2, 29, 31), (2, 10, 3), (1, 1, 2), stride=(1, 3, 14)),
}


@each_isa
@pytest.mark.parametrize("of", ["x", "y"])
@pytest.mark.parametrize("problem", SUMMED.values(), ids=SUMMED)
def test_sums_per_channel_come_with_weights_gradients(problem, of, isa):
    """In every type, from every strides: those of the layout, and with a gap between elements, read one by one."""
    spread = {f"{name}_strides": tuple(2 * step for step in problem.strides[name]) for name in "xy"}
    number = list(SUMMED.values()).index(problem) + (of == "y")
    asked = replace(problem, bias_gradient=of)
    for variant in (0, in_turn(number, 1, 2)):
        check(asked, isa, variant=variant, low=bool(variant % 2), alter=variant or None)
    number += HOST_ISAS.index(isa)
    dtype = in_turn(number, "bf16", "f16", "f64")
    check(replace(asked, dtype=dtype, out_dtype=dtype, accumulate=dtype != "f16"), isa)
    if number % 2:
        check(replace(asked, **spread, bias_stride=-3), isa)


# --- every kind of plan


@pytest.mark.parametrize(("problem", "expected"), KINDS.values(), ids=KINDS)
def test_a_named_problem_still_gets_its_kind_of_plan(problem, expected):
    found = kinds(choose(problem, machine_for("avx512", triple="x86_64-unknown-linux-gnu")))
    assert expected <= found


@each_isa
@pytest.mark.parametrize("problem", [problem for problem, _ in KINDS.values()], ids=KINDS)
def test_every_kind_of_plan_is_exact(problem, isa):
    check(problem, isa)


@each_isa
def test_named_problems_hold_in_the_other_types(isa):
    for number, (problem, _) in list(enumerate(KINDS.values()))[HOST_ISAS.index(isa) % 2 :: 2]:
        dtype = ("bf16", "f16", "f64")[number % 3]
        check(replace(problem, dtype=dtype, out_dtype=dtype), isa, low=bool(number % 2))


# --- random problems


@each_isa
@pytest.mark.parametrize("chunk", range(ROUNDS))
def test_random_problems_are_exact(chunk, isa):
    """By the plan that is chosen, and by one of the others with blocks as for a larger problem."""
    for seed in range(chunk * EACH, (chunk + 1) * EACH):
        problem = random_problem(np.random.default_rng(seed))
        if (seed + HOST_ISAS.index(isa)) % 2:
            check(problem, isa, seed=seed, low=bool(seed % 3))
        else:
            check(problem, isa, seed=seed, low=bool(seed % 3), variant=seed % 5, alter=seed)
