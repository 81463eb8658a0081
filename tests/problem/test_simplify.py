"""Exact rewrites read and write the same memory, and say the same sum."""

import itertools
from dataclasses import replace

import numpy as np
import pytest

from codegen.dense_problems import problem_of as dense_problem
from convgrad.plan.order import channels_in_turn
from convgrad.problem.conv import ConvProblem, Unknown
from convgrad.problem.simplify import MOST_PHASES, simplify


def problem_of(unknown="y", n=2, c=3, x=(8,), y=(8,), r=(1,), s=(1,), d=(1,), lo=(0,), layout="nxc"):
    shapes = {"x": (n, 1, c, *x), "w": (1, 4, c, *r), "y": (n, 1, 4, *y)}
    return ConvProblem(
        unknown=Unknown(unknown), batch=n, groups=1, x_channels=c, y_channels=4, x_extent=x, y_extent=y, taps=r,
        stride=s, dilation=d, pad_low=lo,
        **{f"{name}_strides": strides(shape, layout) for name, shape in shapes.items()},
    )  # fmt: skip


def strides(shape, layout):
    rank = len(shape) - 3
    order = range(len(shape)) if layout == "ncx" else (0, *range(3, 3 + rank), 1, 2)
    found, step = [0] * len(shape), 1
    for axis in reversed(list(order)):
        found[axis], step = step, step * shape[axis]
    return tuple(found)


def terms(problem):
    """Every product of the form, as the places in memory of its three factors."""
    found = []
    p = problem
    spatial = itertools.product(
        *(itertools.product(range(y), range(r)) for y, r in zip(p.y_extent, p.taps, strict=True))
    )
    for pairs in spatial:
        reached = [s * q + d * r - lo for (q, r), s, d, lo in zip(pairs, p.stride, p.dilation, p.pad_low, strict=True)]
        if any(not 0 <= i < extent for i, extent in zip(reached, p.x_extent, strict=True)):
            continue
        for n, k, c in itertools.product(range(p.batch), range(p.y_channels), range(p.x_channels)):
            at = [
                (n, 0, c, *reached),
                (0, k, c, *(r for _, r in pairs)),
                (n, 0, k, *(q for q, _ in pairs)),
            ]
            steps = (p.x_strides, p.w_strides, p.y_strides)
            found.append(tuple(int(np.dot(index, step)) for index, step in zip(at, steps, strict=True)))
    return sorted(found)


CASES = {
    "1x1": problem_of(x=(4, 5), y=(4, 5), r=(1, 1), s=(1, 1), d=(1, 1), lo=(0, 0)),
    "1x1, channels first": problem_of(x=(4, 5), y=(4, 5), r=(1, 1), s=(1, 1), d=(1, 1), lo=(0, 0), layout="ncx"),
    "1x1, stride 2": problem_of(x=(7, 8), y=(4, 4), r=(1, 1), s=(2, 2), d=(1, 1), lo=(0, 0)),
    "1x1, stride and pads": problem_of(x=(7,), y=(6,), s=(2,), lo=(4,)),
    "1x1, stride and odd pads": problem_of(x=(7,), y=(5,), s=(2,), lo=(1,)),
    "windows far apart": problem_of(x=(40,), y=(4,), r=(3,), s=(11,), d=(2,)),
    "windows that reach beyond": problem_of(x=(40,), y=(4,), r=(3,), s=(11,), d=(2,), lo=(1,)),
    "stride and dilation": problem_of(x=(9, 8), y=(4, 5), r=(3, 2), s=(2, 2), d=(2, 4), lo=(2, 4)),
    "stride and dilation, odd pads": problem_of(x=(9, 8), y=(4, 3), r=(3, 2), s=(2, 3), d=(2, 3), lo=(1, 1)),
    "stride and dilation, channels first": problem_of(
        x=(9, 8), y=(4, 5), r=(3, 2), s=(2, 2), d=(2, 2), lo=(2, 4), layout="ncx"
    ),
    "stride and dilation, few elements": problem_of(x=(2,), y=(2,), r=(2,), s=(6,), d=(4,), lo=(5,), layout="ncx"),
    "stride and dilation have a part in common": problem_of(x=(40,), y=(5,), r=(3,), s=(6,), d=(4,), lo=(3,)),
    "a row within an image": problem_of(x=(4, 6), y=(4, 4), r=(1, 3), s=(1, 1), d=(1, 1), lo=(0, 0)),
    "phases": problem_of(c=1, x=(20,), y=(3,), r=(10,), s=(5,), layout="ncx"),
    "phases, pads": problem_of(c=1, x=(5, 9), y=(3, 5), r=(4, 6), s=(2, 3), d=(1, 1), lo=(1, 3)),
    "phases, windows beyond the image": problem_of(c=1, x=(8,), y=(9,), r=(4,), s=(2,), lo=(4,), layout="ncx"),
    "phases, elements beyond the windows": problem_of(c=1, x=(16,), y=(2,), r=(2,), s=(2,)),
    "merged, one window": problem_of(x=(5,), y=(1,), r=(5,), lo=(0,), layout="ncx"),
    "merged, side by side": problem_of(c=1, x=(12,), y=(4,), r=(3,), s=(3,)),
    "merged, side by side, channels last": replace(
        problem_of(c=2, x=(12,), y=(4,), r=(3,), s=(3,)), w_strides=(24, 1, 4, 8)
    ),
    "merged, all columns": problem_of(c=1, x=(7, 6), y=(5, 1), r=(3, 6), s=(1, 4), d=(1, 1), lo=(1, 0), layout="ncx"),
    "merged, the whole image": problem_of(x=(3, 2), y=(1, 1), r=(3, 2), s=(1, 1), d=(1, 1), lo=(0, 0), layout="ncx"),
    "merged, the whole image of a line": problem_of(
        c=2, x=(2, 3, 2), y=(1, 1, 1), r=(2, 3, 2), s=(1, 1, 1), d=(1, 1, 1), lo=(0, 0, 0), layout="ncx"
    ),
    "one element": problem_of(x=(1, 1), y=(1, 1), r=(1, 1), s=(1, 1), d=(1, 1), lo=(0, 0)),
}


@pytest.mark.parametrize("unknown", "xwy")
@pytest.mark.parametrize("problem", CASES.values(), ids=CASES)
def test_the_terms_stay_where_they_are(problem, unknown):
    problem = replace(problem, unknown=Unknown(unknown))
    simple = simplify(problem)
    simple.validate()

    assert terms(simple) == terms(problem) != []


def elements(problem, name):
    """Where in memory each element of a tensor is, as often as it is counted."""
    reached = itertools.product(*map(range, problem.shapes[name]))
    return sorted(int(np.dot(index, problem.strides[name])) for index in reached)


@pytest.mark.parametrize("of", "xy")
@pytest.mark.parametrize("problem", CASES.values(), ids=CASES)
def test_what_is_summed_per_channel_keeps_every_element_once(problem, of):
    """Those of x that no window meets, too."""
    problem = replace(problem, unknown=Unknown.W, bias_gradient=of)
    simple = simplify(problem)

    assert terms(simple) == terms(problem)
    assert elements(simple, of) == elements(problem, of)


@pytest.mark.parametrize("problem", CASES.values(), ids=CASES)
def test_no_element_of_an_unknown_image_is_lost(problem):
    """Elements that no window meets are zeros to be written."""
    problem = replace(problem, unknown=Unknown.X)
    simple = simplify(problem)

    assert np.prod(simple.shapes["x"]) == np.prod(problem.shapes["x"])


def test_what_becomes_of_the_named_problems():
    flat = simplify(CASES["1x1"])
    assert (flat.batch, flat.x_extent, flat.stride) == (1, (40,), (1,))
    assert simplify(CASES["1x1, channels first"]).x_extent == (20,)
    assert simplify(CASES["1x1, stride 2"]).stride == (1, 1)
    apart = simplify(CASES["windows far apart"])
    assert (apart.x_extent, apart.y_extent, apart.taps) == ((4, 5), (4, 1), (1, 3))
    assert simplify(CASES["windows that reach beyond"]) == CASES["windows that reach beyond"]
    both = simplify(CASES["stride and dilation"])
    assert (both.x_extent, both.stride, both.dilation, both.pad_low) == ((5, 4), (1, 1), (1, 2), (1, 2))
    odd = simplify(CASES["stride and dilation, odd pads"])
    assert (odd.x_extent, odd.stride, odd.dilation, odd.pad_low) == ((9, 3, 2), (2, 1, 1), (2, 1, 1), (1, -2, 1))
    rows = CASES["stride and dilation, channels first"]
    assert (simplify(rows).stride, simplify(rows).dilation) == ((1, 2), (1, 2))


@pytest.mark.parametrize("name", [name for name in CASES if name.startswith("phases")])
def test_phases_of_a_stride_become_channels(name):
    problem = replace(CASES[name], unknown=Unknown.X)
    stride, step = problem.stride[-1], problem.x_strides[-1]
    simple = simplify(problem)

    assert (simple.x_channels, simple.stride[-1]) == (stride, 1)
    assert simple.taps[-1] * stride == problem.taps[-1]
    assert (simple.x_strides[2], simple.x_strides[-1]) == (step, stride * step)
    assert elements(simple, "x") == elements(problem, "x")
    assert simplify(replace(problem, bias=True, bias_stride=3)).bias_stride == 0  # there is one number


@pytest.mark.parametrize("unknown", "xw")
@pytest.mark.parametrize("name", [name for name in CASES if name.startswith("merged")])
def test_taps_of_windows_side_by_side_become_channels(name, unknown):
    problem = replace(CASES[name], unknown=Unknown(unknown))
    simple = simplify(problem)

    assert simple.merged_taps > 1
    assert simple.x_channels == simple.merged_taps * problem.x_channels
    assert np.prod(simple.taps) * simple.merged_taps == np.prod(problem.taps)
    assert elements(simple, "x") == elements(problem, "x")
    assert channels_in_turn(simple) == channels_in_turn(problem)
    if unknown == "w":  # sums per channel of y are what they were
        asked = replace(problem, bias_gradient="y", bias_stride=3)
        assert (simplify(asked).merged_taps, simplify(asked).bias_stride) == (simple.merged_taps, 3)
    assert simplify(replace(problem, unknown=Unknown.Y)).merged_taps == 1  # it would be another order of a sum


SIDE_BY_SIDE = problem_of(c=1, x=(12,), y=(4,), r=(3,), s=(3,))
APART = {
    "elements left over": replace(SIDE_BY_SIDE, x_extent=(13,)),
    "pads": replace(SIDE_BY_SIDE, pad_low=(1,)),
    "windows that overlap": replace(SIDE_BY_SIDE, stride=(2,), x_extent=(9,)),
    "dilated": problem_of(c=1, x=(5,), y=(1,), r=(3,), d=(2,)),
    "channels and taps that do not follow each other": problem_of(c=2, x=(12,), y=(4,), r=(3,), s=(3,)),
    "sums per channel": replace(SIDE_BY_SIDE, unknown=Unknown.W, bias_gradient="x"),
    "a bias per channel": replace(
        problem_of(x=(5,), y=(1,), r=(5,), layout="ncx"), unknown=Unknown.X, bias=True
    ),
}  # fmt: skip


@pytest.mark.parametrize("problem", APART.values(), ids=APART)
def test_other_taps_stay_taps(problem):
    unknown = problem.unknown if problem.unknown is not Unknown.Y else Unknown.X
    assert simplify(replace(problem, unknown=unknown)).merged_taps == 1


def test_groups_keep_their_taps_where_they_fill_vectors():
    problem = replace(SIDE_BY_SIDE, unknown=Unknown.X, groups=32, x_strides=(384, 1, 1, 32), y_strides=(512, 4, 1, 128))
    assert simplify(problem).merged_taps == 1


@pytest.mark.parametrize(
    ("unknown", "groups", "channels", "merged"),
    [("w", 4, 2, True), ("w", 8, 2, False), ("w", 8, 4, False),
     ("x", 4, 2, True), ("x", 8, 2, False), ("x", 8, 4, True), ("x", 16, 4, False)],
)  # fmt: skip
def test_half_of_a_vector_of_groups_keeps_its_taps(unknown, groups, channels, merged):
    """Eight filters of electrodes: taps fill an axis; of many sums of an image it takes a whole vector of groups."""
    sizes = {"channels": (1, channels), "groups": groups, "batch": 2}
    problem = dense_problem(Unknown(unknown), (22, 50), (1, 50), (22, 1), **sizes, layout="NXC")
    assert simplify(problem).merged_taps == (22 if merged else 1)


UNFIT = {
    "elements left over": problem_of(c=1, x=(21,), y=(3,), r=(10,), s=(5,)),
    "taps left over": problem_of(c=1, x=(20,), y=(3,), r=(9,), s=(5,)),
    "windows between phases": problem_of(c=1, x=(20,), y=(4,), r=(10,), s=(5,), lo=(2,)),
    "taps between phases": problem_of(c=1, x=(20,), y=(3,), r=(4,), s=(2,), d=(2,)),
    "several channels": problem_of(c=2, x=(20,), y=(3,), r=(10,), s=(5,)),
    "few products": replace(problem_of(c=1, x=(20,), y=(3,), r=(10,), s=(5,)), y_channels=3),
}


@pytest.mark.parametrize("problem", UNFIT.values(), ids=UNFIT)
def test_phases_that_no_channel_holds_stay_phases(problem):
    problem = replace(problem, unknown=Unknown.X)

    assert simplify(problem) == problem


@pytest.mark.parametrize("channels", [4, 5, 16, 17, 96, 512])
@pytest.mark.parametrize("stride", range(2, MOST_PHASES + 1))
def test_sums_have_their_order_whether_or_not_phases_become_channels(stride, channels):
    """Parts of an image need not fit."""
    problem = problem_of("x", c=1, x=(4 * stride,), y=(3,), r=(2 * stride,), s=(stride,))
    problem = replace(problem, y_channels=channels)
    simple = simplify(problem)

    assert simple.x_channels == stride
    assert channels_in_turn(simple) == channels_in_turn(problem)


@pytest.mark.parametrize("unknown", "xw")
@pytest.mark.parametrize("name", ["merged, the whole image", "merged, the whole image of a line"])
def test_windows_that_are_whole_images_leave_one_tap_and_one_axis_of_images(name, unknown):
    problem = replace(CASES[name], unknown=Unknown(unknown))
    simple = simplify(problem)

    assert (simple.batch, simple.x_extent, simple.y_extent, simple.taps) == (1, (2,), (2,), (1,))
    assert simple.x_channels == np.prod(problem.shapes["x"][2:])
    assert simplify(CASES[name]).taps == CASES[name].taps, "the order of sums over taps would be another one"
    whole = simplify(replace(CASES[name], bias=True, bias_stride=3), whole=True)
    assert (whole.taps, whole.bias_stride) == ((1,), 3)
    assert terms(whole) == terms(problem)
