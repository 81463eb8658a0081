"""Weights gradients by dot products of windows side by side, or far apart: exactly, and nothing beside them."""

from dataclasses import replace
from itertools import product

import numpy as np
import pytest

from codegen.dense_problems import W, problem_of
from codegen.dot_cases import EMULATED, HERE, check_watched, needs_dots
from codegen.emitted import load_here
from codegen.matrix_checks import BF16_KINDS, check_kind, check_one_number, data, run
from codegen.random_problems import altered, check_plan
from codegen.test_plane_rows import AXES
from codegen.test_plane_rows import problem_of as plane_problem
from convgrad.codegen.lower import lower
from convgrad.plan.by_dots.depthwise_dots import DepthwiseDotsPlan
from convgrad.plan.by_dots.far_pairs import FarPairsPlan, folded, folds
from convgrad.plan.by_dots.group_dots import GroupDotsPlan
from convgrad.plan.by_dots.in_place_dots import InPlaceDotsPlan, RowDotsPlan
from convgrad.plan.by_dots.plane_dots import PlaneDotsPlan
from convgrad.plan.choose import variants
from convgrad.plan.machine import machine_for
from convgrad.plan.window_axes import window_axes

pytestmark = needs_dots
PLANES = AXES | {
    "rows of odd length": ((9, 37), (9, 37), (3, 3), (1, 1), (1, 1), (1, 1)),
    "rows of odd length, no pads": ((13, 45), (11, 43), (3, 3), (1, 1), (1, 1), (0, 0)),
    "gaps between windows": ((40, 120), (10, 30), (2, 3), (4, 4), (1, 1), (0, 1)),
    "rows of taps in pieces": ((12, 30), (12, 30), (9, 9), (1, 1), (1, 1), (4, 4)),
}
IN_PLACE = {  # extents, taps, channels, dilation, low pad
    "planes": ((11, 14), (3, 3), (4, 4), 1, 1),
    "odd planes": ((7, 9), (3, 3), (2, 5), 1, 1),
    "even taps": ((9, 33), (2, 4), (3, 2), 1, (1, 2)),
    "dilation": ((12, 17), (3, 3), (3, 8), 2, 2),
    "one axis": ((331,), (5,), (4, 4), 1, 2),
    "three axes": ((4, 6, 10), (3, 3, 3), (2, 2), 1, 1),
    "one image row": ((1, 40), (1, 3), (2, 3), 1, (0, 1)),
}

IN_ROWS = {  # extents of x and y, taps, channels, stride, dilation, low pad
    "stride 2": ((14, 22), (7, 11), (3, 3), (4, 4), 2, 1, 1),
    "stride 2, long rows": ((9, 93), (5, 47), (3, 3), (2, 3), 2, 1, 1),
    "stride 3, without pads": ((13, 16), (4, 5), (2, 2), (3, 2), 3, 1, 0),
    "without pads, beyond windows": ((12, 41), (9, 37), (3, 3), (2, 4), 1, 1, 0),
    "dilation": ((15, 20), (7, 9), (3, 2), (2, 2), 2, 2, 1),
    "three axes": ((5, 8, 10), (3, 4, 5), (3, 3, 3), (2, 2), 2, 1, 1),
}

SIDE_BY_SIDE = {  # groups, extents of x and y, taps, dilation, low pad
    "channels of two vectors": (32, (9, 11), (9, 11), (5, 5), 1, 2),
    "channels that are left over": (41, (7, 12), (7, 12), (5, 5), 1, 2),
    "fewer than a vector": (5, (9, 17), (9, 17), (7, 7), 1, 3),
    "one vector, rows of odd length": (16, (8, 9), (8, 9), (4, 5), 1, 1),
    "without pads": (33, (10, 19), (6, 15), (5, 5), 1, 0),
    "dilated taps": (32, (14, 16), (14, 16), (5, 4), 2, 3),
    "planes of volumes": (40, (3, 7, 8), (3, 7, 8), (3, 5, 5), 1, (1, 2, 2)),
}

ACROSS_GROUPS = {  # batch, groups, channels, extents of x and y, taps, stride, dilation, low pad, layout
    "groups of 4": (2, 9, (4, 4), (9, 7), (9, 7), (3, 3), 1, 1, 1, "NXC"),
    "an odd batch": (3, 8, (4, 4), (5, 6), (5, 6), (3, 3), 1, 1, 1, "NXC"),
    "an odd batch, channels first": (5, 5, (8, 8), (5, 9), (3, 5), (3, 3), 2, 1, 1, "NCX"),
    "channels that fill no vector": (2, 7, (3, 5), (8, 8), (8, 8), (3, 3), 1, 1, 1, "NXC"),
    "volumes with strides": (4, 4, (8, 4), (4, 5, 7), (2, 3, 4), (3, 3, 3), 2, 1, 1, "NXC"),
    "a long row of taps": (2, 4, (8, 8), (90,), (45,), (21,), 2, 2, 10, "NXC"),
}


FAR_APART = {  # batch, channels, extents of x and y, taps, stride, dilation, low pad, layout
    "two images": (2, (18, 33), (7, 9), (7, 9), (3, 3), 1, 1, 1, "NXC"),
    "an odd batch": (5, (20, 17), (9, 7), (5, 4), (3, 3), 2, 1, 1, "NCX"),
    "halves of a plane": (1, (33, 40), (11, 6), (11, 6), (3, 3), 1, 1, 1, "NXC"),
    "halves of a plane, gaps": (1, (17, 21), (16, 17), (5, 6), (2, 2), (3, 3), 1, 0, "NCX"),
    "neighbours in a dilated plane": (1, (20, 36), (9, 10), (9, 10), (3, 3), 1, 4, 4, "NXC"),
    "wide pads": (1, (18, 20), (5, 7), (13, 15), (3, 3), 1, 2, 6, "NCX"),
    "a row": (1, (24, 19), (61,), (61,), (5,), 1, 1, 2, "NCX"),
    "lanes along x": (3, (19, 5), (8, 13), (4, 7), (5, 5), 2, 1, 2, "NCX"),
    "windows without taps inside": (4, (16, 33), (3, 3), (3, 3), (5, 5), 1, 1, 2, "NXC"),
    "three axes": (1, (17, 16), (5, 4, 6), (5, 4, 6), (3, 3, 1), 1, 1, (1, 1, 0), "NXC"),
}


def in_place_problem(extent, taps, channels, dilation, low, **more):
    sizes = {"channels": channels, "groups": 3, "batch": 2, "dilation": dilation, "low": low}
    return problem_of(W, extent, extent, taps, **sizes, **more)


def row_problem(x, y, taps, channels, stride, dilation, low, **more):
    sizes = {"channels": channels, "groups": 3, "batch": 2, "stride": stride, "dilation": dilation, "low": low}
    return problem_of(W, x, y, taps, **sizes, **more)


def side_by_side(groups, x, y, taps, dilation, low, **more):
    sizes = {"channels": (1, 1), "groups": groups, "batch": 2, "dilation": dilation, "low": low, "layout": "NXC"}
    return problem_of(W, x, y, taps, **sizes, **more)


def across_groups(batch, groups, channels, x, y, taps, stride, dilation, low, layout, **more):
    sizes = {"batch": batch, "groups": groups, "channels": channels, "stride": stride, "dilation": dilation, "low": low}
    return problem_of(W, x, y, taps, **sizes, layout=layout, **more)


def far_apart(batch, channels, x, y, taps, stride, dilation, low, layout, **more):
    sizes = {"batch": batch, "channels": channels, "stride": stride, "dilation": dilation, "low": low}
    return problem_of(W, x, y, taps, **sizes, layout=layout, **more)


KINDS = [PlaneDotsPlan, InPlaceDotsPlan, RowDotsPlan, DepthwiseDotsPlan, GroupDotsPlan, FarPairsPlan]
ALTERED = (*KINDS[:3], FarPairsPlan)  # whose blocks may be any
BF16 = {"dtype": "bf16", "out_dtype": "f32"}


def problems(kind, **more):
    more = BF16 | more
    if kind is PlaneDotsPlan:
        return {name: plane_problem(W, axes, **more) for name, axes in PLANES.items()}
    if kind is DepthwiseDotsPlan:
        return {name: side_by_side(*sizes, **more) for name, sizes in SIDE_BY_SIDE.items()}
    if kind is GroupDotsPlan:
        more.pop("bias_gradient", None)
        return {name: across_groups(*sizes, **more) for name, sizes in ACROSS_GROUPS.items()}
    if kind is FarPairsPlan:
        return {name: far_apart(*sizes, **more) for name, sizes in FAR_APART.items()}
    if kind is RowDotsPlan:
        return {name: row_problem(*sizes, **more) for name, sizes in IN_ROWS.items()}
    return {name: in_place_problem(*sizes, **more) for name, sizes in IN_PLACE.items()}


def plan_of(problem, kind, isa=None):
    return next((plan for plan in variants(problem, machine_for(isa or HERE[-1])) if isinstance(plan, kind)), None)


MORE = [{"out_dtype": "f32"}, {"out_dtype": "bf16", "bias_gradient": "y"}, {"bias_gradient": "x"}]


@pytest.mark.parametrize("kind", KINDS)
def test_exact_at_either_guard_page(kind):
    """As planned or in other blocks, with either type of weights and sums of either tensor."""
    tried = 0
    for seed, name in enumerate(problems(kind)):
        problem = problems(kind, **MORE[seed % len(MORE)])[name]
        plan = plan_of(problem, kind)
        if plan is not None:
            some = altered(plan, np.random.default_rng(seed)) if seed % 2 and kind in ALTERED else plan
            if kind is GroupDotsPlan:
                some = replace(plan, block=(1, *plan.block[1:]))  # of several blocks, the last may hold half a pair
            check_plan(problem, some, machine_for(HERE[-1]), seed, low=bool(seed // 2 % 2))
            tried += 1
    assert tried == len(problems(kind))


@pytest.mark.skipif(len(HERE) < 2, reason="no dot products here")
@pytest.mark.parametrize("kind", KINDS)
def test_emulated_dot_products_give_the_same_bits(kind):
    for problem in list(problems(kind).values())[3::6]:
        plans = [plan_of(problem, kind, isa) for isa in HERE]
        given = data(problem, np.random.default_rng(1), lambda rng, s: rng.standard_normal(s))
        one, other = (run(plan, given) for plan in plans)
        assert one[0].tobytes() == other[0].tobytes()
        assert not one[1]


SMALL = {
    PlaneDotsPlan: plane_problem(W, ((3, 7), (3, 7), (3, 3), (1, 1), (1, 1), (1, 1)), groups=1, batch=1, **BF16),
    InPlaceDotsPlan: problem_of(W, (2, 3, 5), (2, 3, 5), (3, 1, 3), channels=(2, 1), low=(1, 0, 1), **BF16),
    RowDotsPlan: problem_of(W, (2, 4, 8), (2, 2, 4), (3, 3, 3), channels=(1, 2), stride=(1, 2, 2), low=1, **BF16),
    DepthwiseDotsPlan: side_by_side(4, (2, 2), (2, 2), (5, 4), 1, 2, **BF16),
    GroupDotsPlan: across_groups(3, 2, (2, 2), (2, 3), (2, 3), (3, 3), 1, 1, 1, "NXC", **BF16),
    FarPairsPlan: far_apart(1, (9, 10), (3, 3), (3, 3), (3, 2), 1, 1, (1, 0), "NXC", **BF16),
}
STRIDED = plane_problem(W, ((5, 10), (3, 5), (3, 3), (2, 2), (1, 1), (1, 1)), groups=1, batch=1, **BF16)
VALID = problem_of(W, (4, 4, 6), (2, 2, 4), (3, 3, 3), channels=(1, 2), **BF16)


@pytest.mark.parametrize("kind", KINDS)
def test_numbers_that_dot_products_take_differently_are_computed_on_vectors(kind):
    plan = plan_of(SMALL[kind], kind, EMULATED)
    check_watched(plan)
    for data_kind in BF16_KINDS:
        check_kind(plan, data_kind)
    for side, value in product((0, 1), (-np.inf, np.nan, 2.0**-133)):
        check_one_number(plan, side, value)


@pytest.mark.parametrize(
    "problem",
    [*SMALL.values(), STRIDED, VALID],
    ids=["plane", "in place", "rows", "side by side", "groups", "far apart", "strided plane", "no pads"],
)
def test_every_denormal_is_seen(problem):
    """Wherever a window meets one; dot products take it for zero."""
    plan = next(plan_of(problem, kind, EMULATED) for kind in KINDS if plan_of(problem, kind, EMULATED))
    module = lower(plan)
    made = module, load_here(module, machine_for(EMULATED))
    ones = data(plan.problem, None, lambda _, shape: np.ones(shape))
    for name, values in ones.items():
        for place in range(values.size):
            given = {n: v.copy() for n, v in ones.items()}
            given[name].flat[place] = -(2.0**-133)
            assert run(plan, given, made=made)[1], f"not seen at {np.unravel_index(place, values.shape)} of {name}"


@pytest.mark.parametrize("layout", ["NCX", "NXC"])
def test_any_axis_may_be_folded_either_way(layout):
    """Its first half with its second, and neighbours, whatever lies beside x, and with sums of either tensor."""
    tried = 0
    for seed, (low, dilation) in enumerate(product((0, 4), (1, 2))):
        sizes = (3, (18, 20), (9, 11), (9, 10), (3, 3), 1, dilation, (1, low), layout)
        plan = plan_of(far_apart(*sizes, bias_gradient="xy"[seed % 2], **BF16), FarPairsPlan)
        axes = window_axes(plan.problem)
        for fold in folds(plan.problem):
            some = altered(replace(plan, fold=fold, axes=folded(axes, fold)), np.random.default_rng(seed))
            check_plan(plan.problem, some, machine_for(HERE[-1]), seed, low=bool(seed % 2))
            tried += 1
    assert tried >= 20


def test_what_is_added_to_is_computed_on_vectors():
    for kind in KINDS:
        assert plan_of(replace(SMALL[kind], accumulate=True), kind) is None
