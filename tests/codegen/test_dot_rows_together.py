"""Rows of several planes in a vector, by dot products: exactly, at every border, and every number is watched."""

from dataclasses import replace

import numpy as np
import pytest

from codegen.dot_cases import EMULATED, HERE, REAL, check_watched, needs_dots
from codegen.matrix_checks import check_one_number, run
from codegen.random_problems import check_plan
from codegen.test_dot_rows import bf16, both, plan_of
from convgrad.plan.by_dots.dot_rows import DotRowsTogetherPlan
from convgrad.plan.choose import choose
from convgrad.plan.depthwise.choose_plane_rows import shared
from convgrad.plan.kinds import as_kind
from convgrad.plan.machine import machine_for
from convgrad.problem.conv import Unknown

pytestmark = needs_dots
Y = Unknown.Y
AXES = {  # extents of x and y, taps, stride, dilation, low pad
    "zeros behind rows": ((9, 14), (9, 14), (3, 3), (1, 1), (1, 1), (1, 1)),
    "parts without room": ((6, 16), (6, 16), (3, 3), (1, 1), (1, 1), (1, 1)),
    "an odd row, pads of two": ((7, 7), (7, 7), (5, 5), (1, 1), (1, 1), (2, 2)),
    "quarters without room": ((5, 8), (5, 8), (2, 3), (1, 1), (3, 1), (1, 1)),
    "no pads": ((9, 9), (7, 8), (3, 2), (1, 1), (1, 1), (0, 0)),
    "stride 2": ((15, 13), (8, 7), (3, 3), (2, 2), (1, 1), (1, 1)),
    "stride 2, many taps": ((14, 28), (7, 14), (5, 5), (2, 2), (1, 1), (2, 2)),
    "stride 2 of columns": ((4, 14), (4, 7), (3, 4), (1, 2), (1, 1), (1, 1)),
    "rows of two": ((3, 2), (3, 2), (1, 3), (1, 1), (1, 1), (0, 1)),
    "one output": ((4, 2), (4, 1), (3, 3), (1, 2), (1, 1), (1, 1)),
    "three axes": ((3, 4, 7), (3, 4, 7), (3, 3, 3), (1, 1, 1), (1, 1, 1), (1, 1, 1)),
}

NONE = {("stride 2, many taps", Unknown.Y), ("one output", Unknown.X)}  # rows too long, and a phase without outputs


def together(problem, planes, isa=EMULATED, **changes):
    """The plan of rows of one plane at a time, made one of so many; None if they do not fit."""
    plan = plan_of(problem, isa)
    if plan is None:
        return None
    longest = max(plan.axes[-1].count, -(-plan.axes[-1].in_extent // 2))
    if planes * longest > plan.lanes:
        return None
    plan = as_kind(DotRowsTogetherPlan, plan, planes=planes)
    return replace(plan, **{"run": max(planes, shared(plan).run)} | changes)


@both
@pytest.mark.parametrize("name", AXES)
def test_every_border(unknown, name):
    """Of groups that are no multiple, with tasks that share some, and a bias, next to either guard page."""
    tried = 0
    for seed, planes in enumerate((2, 4)):
        problem = bf16(unknown, AXES[name], groups=7, bias=bool(seed))
        for isa in HERE if name == "stride 2" else HERE[-1:]:
            plan = together(problem, planes, isa, run=planes + 1)
            if plan is not None:
                check_plan(problem, plan, machine_for(isa), seed, low=bool(seed))
                tried += 1
    assert tried or (name, unknown) in NONE


@both
@pytest.mark.parametrize("side", [0, 1])
def test_one_such_number_gives_the_bits_of_vectors(unknown, side):
    for value in (np.nan, 2.0**-133):
        check_one_number(together(bf16(unknown, AXES["parts without room"]), 2), side, value)


@both
@pytest.mark.parametrize("name", ["parts without room", "stride 2"])
def test_every_number_is_watched(unknown, name):
    """Of every plane, whichever tile meets it, and wherever in a row it is."""
    problem = bf16(unknown, AXES[name], batch=1, groups=3)
    plan = together(problem, 2)
    check_watched(replace(plan, rows=2, block=(1, 4, plan.block[-1])))


def test_a_bias_is_watched():
    problem = bf16(Y, AXES["zeros behind rows"], bias=True, bias_stride=0, groups=2)
    plan = together(problem, 2)
    given = {name: np.ones(problem.shapes[name]) for name in "xw"}
    assert [run(plan, given, bias=value)[1] for value in (1.0, 0.0, 2.0**-130)] == [False, False, True]


@both
def test_where_it_is_chosen(unknown):
    """As many planes as rows leave room for, if there are so many."""
    machine = machine_for(REAL, triple="x86_64-unknown-linux-gnu")
    for size, groups, planes in ((14, 32, 2), (7, 32, 4), (7, 3, 2), (28, 32, 1), (14, 1, 1)):
        axes = ((size, size), (size, size), (3, 3), (1, 1), (1, 1), (1, 1))
        plan = choose(bf16(unknown, axes, groups=groups), machine)
        assert getattr(plan, "together", 1) == planes
    assert getattr(choose(bf16(unknown, axes, groups=32, out_dtype="f32"), machine), "together", 1) == 1
