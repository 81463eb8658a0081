"""X of channels that would leave lanes empty: phases of the innermost stride fill vectors beside the channels."""

from dataclasses import replace

import numpy as np
import pytest

from codegen.dense_problems import X, problem_of
from codegen.emitted import kernel_here
from codegen.guard_cases import Case
from codegen.random_problems import check_plan, in_turn
from convgrad.codegen.lower import lower
from convgrad.plan.choose import choose, variants
from convgrad.plan.few_channels.phase_lanes import PhaseLanesPlan
from convgrad.plan.machine import available_isas, machine_for

LEVELS = ("avx512", "avx2", "portable")
ISAS = [isa for isa in LEVELS if isa in available_isas()]
AXES = {  # extents of x and y, taps, stride, low pad
    "groups that begin before x": ((18, 21), (9, 11), (4, 4), 2, 1),
    "fewer taps of some phases": ((11, 17), (6, 9), (5, 5), 2, 2),
    "no pads": ((13, 26), (3, 8), (7, 5), 3, 0),
    "cropped": ((12, 15), (4, 5), (4, 5), 2, (-1, -2)),
    "windows side by side": ((12, 30), (3, 6), (4, 5), (4, 5), 0),
    "windows that reach beyond": ((4, 5), (9, 11), (4, 6), 3, (9, 14)),
    "elements that no window meets": ((30, 40), (3, 4), (3, 5), (2, 4), 0),
    "less than a group": ((3, 2), (2, 2), (5, 8), 3, (3, 5)),
    "a row": ((200,), (66,), (9,), 3, 3),
    "three axes": ((7, 6, 11), (4, 3, 6), (3, 2, 4), 2, 1),
}
CHANNELS = ((21, 37), (17, 16), (9, 64), (24, 5), (35, 40))  # solved for and given


def plan_of(problem, isa="avx512"):
    """The plan; None if there is none."""
    return next((plan for plan in variants(problem, machine_for(isa)) if isinstance(plan, PhaseLanesPlan)), None)


@pytest.mark.parametrize("isa", ISAS)
@pytest.mark.parametrize("layout", ["NCX", "NXC"])
@pytest.mark.parametrize("name", AXES)
def test_every_border(name, layout, isa):
    """With a bias, with sums, of 16 bits, in tiles of other shapes and blocks of other sizes."""
    x, y, taps, stride, low = AXES[name]
    rng, machine, found = np.random.default_rng(len(name)), machine_for(isa), 0
    order = list(AXES).index(name) + (layout == "NXC") + LEVELS.index(isa)
    for seed, channels in enumerate(CHANNELS):
        if isa != "avx512" and (seed + order) % 3 == 0:
            continue
        more = ({}, {"bias": True}, {"accumulate": True})[seed % 3]
        dtype = ("f32", "f16", "bf16")[(seed + order) % 3]
        problem = problem_of(
            X, x, y, taps, channels=channels, stride=stride, low=low, layout=layout, batch=2, dtype=dtype,
            out_dtype=dtype, **more,
        )  # fmt: skip
        plan = plan_of(problem, isa)
        if plan is None:
            continue
        found += 1
        tile = (*(1 for _ in plan.tile[1:]), int(rng.integers(1, 5)))
        most = [-(-axis.count // size) for axis, size in zip(plan.axes, tile, strict=True)]
        block = tuple(int(rng.integers(1, m + 1)) * t for m, t in zip(most, tile, strict=True))
        other = replace(plan, tile=tile, block=block, width=int(rng.integers(1, 5)) * plan.lanes)
        one = in_turn(seed + order, plan, replace(other, blocks_per_task=other.lane_blocks))
        check_plan(problem, one, machine, seed, low=bool(seed % 2))
    assert found


@pytest.mark.parametrize("isa", ISAS)
def test_bits_are_those_of_phases_one_by_one(isa):
    """Sums are rounded, so that any other order shows."""
    rng, machine, tried = np.random.default_rng(5), machine_for(isa), 0
    for channels, taps, stride in (((21, 80), (4, 6), 3), ((20, 32), (5, 5), 2), ((35, 96), (3, 3), 2)):
        problem = problem_of(X, (24, 31), (9, 16), taps, channels=channels, stride=stride, low=1, layout="NXC")
        given = {name: rng.standard_normal(problem.shapes[name][1:], np.float32) for name in "wy"}
        results = []
        for plan in variants(problem, machine):
            result = np.zeros(problem.shapes["x"], np.float32)
            kernel = kernel_here(problem, lower(plan), machine)
            kernel(result.ctypes.data, given["w"].ctypes.data, given["y"].ctypes.data, 0)
            assert result.any()
            results.append(result)
            tried += isinstance(plan, PhaseLanesPlan)
        for other in results[1:]:
            np.testing.assert_array_equal(results[0], other)
    assert tried > 1


@pytest.mark.skipif("avx512" not in ISAS, reason="this CPU has no avx512")
@pytest.mark.parametrize("taps", [(3, 4), (3, 5)])
def test_infinite_numbers_meet_no_weights_that_there_are_not(taps):
    """Of lanes whose phase lacks the last tap, and beside the image."""
    problem = problem_of(X, (4, 9), (2, 5), taps, channels=(21, 6), stride=2, low=1, layout="NXC")
    plan = plan_of(problem)
    case = Case(problem, plan, machine_for("avx512"))
    assert case.with_infinities({"y": 1, "w": 97}) > 3


def test_what_it_is_for():
    """Channels that fill vectors badly, and phases of them well."""

    def phases(channels=(21, 64), taps=(4, 4), stride=2, unknown=X, **more):
        problem = problem_of(
            unknown, (60, 60), (30, 30), taps, channels=channels, stride=stride, low=1, layout="NXC", **more
        )
        return type(choose(problem, machine_for("avx512"))) is PhaseLanesPlan

    assert phases()
    assert phases(taps=(9, 9), stride=3)
    assert not phases(channels=(32, 64))
    assert not phases(channels=(5, 64))
    assert not phases(stride=1)
    assert phases(dtype="bf16", out_dtype="bf16")
    assert phases(dtype="f16", out_dtype="f16")
    assert not phases(groups=2)
