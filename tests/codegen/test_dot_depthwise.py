"""One channel to one, channels last, by dot products: exactly, at every border, and every number is watched."""

from dataclasses import replace

import numpy as np
import pytest

from codegen.dot_cases import EMULATED, HERE, REAL, needs_dots
from codegen.emitted import load_here
from codegen.matrix_checks import check_one_number, run
from codegen.random_problems import check_plan, strides_in
from convgrad.codegen.lower import lower
from convgrad.plan.by_dots.dot_depthwise import DotDepthwisePlan
from convgrad.plan.choose import choose, variants
from convgrad.plan.machine import machine_for
from convgrad.problem.conv import ConvProblem, Unknown

pytestmark = needs_dots
X, Y = Unknown.X, Unknown.Y
both = pytest.mark.parametrize("unknown", [X, Y])
AXES = {  # extents of x and y, taps, stride, dilation, low pad; tile
    "three taps": ((9, 20), (9, 20), (3, 3), (1, 1), (1, 1), (1, 1), (7, 1)),
    "seven, tiles that begin early": ((10, 17), (10, 17), (7, 7), (1, 1), (1, 1), (3, 3), (4, 3)),
    "no pads": ((9, 24), (5, 20), (5, 5), (1, 1), (1, 1), (0, 0), (2, 4)),
    "an even number of taps, wide pads": ((7, 13), (8, 16), (2, 6), (1, 1), (1, 1), (1, 4), (3, 2)),
    "gaps between rows": ((11, 15), (11, 15), (3, 5), (1, 1), (3, 1), (3, 2), (2, 3)),
    "stride": ((11, 23), (6, 12), (3, 3), (2, 2), (1, 1), (1, 1), (1, 2)),
    "more taps, odd extents": ((12, 20), (6, 10), (5, 5), (2, 2), (1, 1), (2, 2), (2, 1)),
    "rows that nothing meets": ((11, 22), (4, 10), (2, 5), (3, 2), (1, 1), (0, 1), (1, 2)),
    "gaps between taps": ((7, 19), (7, 19), (3, 5), (1, 1), (1, 3), (1, 6), (2, 4)),
    "three axes": ((3, 6, 12), (3, 6, 12), (3, 3, 5), (1, 1, 1), (1, 1, 1), (1, 1, 2), (2, 4)),
    "a row": ((31,), (15,), (4,), (2,), (1,), (1,), (2, 2)),
}


def problem_of(unknown, name, *, batch=2, groups=37, **more):
    """Dense, with channels last."""
    x, y, taps, stride, dilation, low, _ = AXES[name]
    shapes = {"x": (batch, groups, 1, *x), "w": (groups, 1, 1, *taps), "y": (batch, groups, 1, *y)}
    orders = {"x": (0, *range(3, 3 + len(x)), 1, 2), "w": (*range(3, 3 + len(x)), 0, 1, 2)}
    orders["y"] = orders["x"]
    dense = {f"{one}_strides": strides_in(orders[one], shape) for one, shape in shapes.items()}
    return ConvProblem(
        unknown=unknown, batch=batch, groups=groups, x_channels=1, y_channels=1, x_extent=x, y_extent=y, taps=taps,
        stride=stride, dilation=dilation, pad_low=low, **dense,
        **{"dtype": "bf16", "out_dtype": "bf16"} | more,
    )  # fmt: skip


def plan_of(problem, name="", isa=EMULATED):
    """The plan, in the tile of a case; None if there is none."""
    plan = next((plan for plan in variants(problem, machine_for(isa)) if isinstance(plan, DotDepthwisePlan)), None)
    if plan is None or not name:
        return plan
    tile = (*plan.tile[:-2], *AXES[name][-1])
    rows = min(2 * tile[-2], -(-plan.rows.count // tile[-2]) * tile[-2])
    return replace(plan, tile=tile, block=(*plan.block[:-2], rows, plan.block[-1]))


@both
@pytest.mark.parametrize("name", AXES)
def test_every_border(unknown, name):
    """As planned, and in other tiles with a bias, next to either guard page, weights in any order."""
    problem = problem_of(unknown, name)
    check_plan(problem, plan_of(problem, isa=HERE[-1]), machine_for(HERE[-1]))
    apart = strides_in(range(len(problem.shapes["w"])), problem.shapes["w"])
    problem = problem_of(unknown, name, bias=True, out_dtype="f32", groups=21)
    check_plan(problem, plan_of(problem, name, HERE[-1]), machine_for(HERE[-1]), 1, low=True)
    problem = replace(problem_of(unknown, name), w_strides=apart)
    check_plan(problem, plan_of(problem, name, HERE[-1]), machine_for(HERE[-1]), 2, low=True)


@pytest.mark.parametrize("side", [0, 1])
def test_one_such_number_gives_the_bits_of_vectors(side):
    check_one_number(plan_of(problem_of(Y, "three taps", groups=32)), side, 2.0**-133)


@both
@pytest.mark.parametrize("name", ["no pads", "gaps between rows", "stride", "gaps between taps"])
def test_every_number_is_watched(unknown, name):
    """Whichever tile meets it, wherever in a row it is: one channel of each place."""
    plan = plan_of(problem_of(unknown, name, batch=1, groups=19), name)
    module = lower(plan)
    made = module, load_here(module, machine_for(EMULATED))
    ones = {n: np.ones(shape) for n, shape in plan.problem.shapes.items() if n != unknown.value}
    assert not run(plan, ones, made=made)[1]
    for n, values in ones.items():
        for count, place in enumerate(np.ndindex(values.shape[3:])):
            spoilt = values.copy()
            spoilt[(*(0,) * (n != "w"), count % 19, *(0,) * (2 if n == "w" else 1), *place)] = np.inf
            assert run(plan, ones | {n: spoilt}, made=made)[1], f"infinity at {place} of {n} was not seen"


@both
def test_where_it_is_chosen(unknown):
    """For rows of several taps, of more groups than a vector of sums has lanes."""
    machine = machine_for(REAL, triple="x86_64-unknown-linux-gnu")
    assert isinstance(choose(problem_of(unknown, "three taps"), machine), DotDepthwisePlan)
    assert plan_of(problem_of(unknown, "three taps", accumulate=True)) is None
    assert plan_of(problem_of(unknown, "three taps", groups=16)) is None
    assert plan_of(problem_of(unknown, "three taps", dtype="f16", out_dtype="f16")) is None
    assert plan_of(problem_of(unknown, "three taps"), isa="avx512") is None
