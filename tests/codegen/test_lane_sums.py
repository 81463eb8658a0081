"""X and Y of few channels, channels last: sums are vectors along channels of the input, added up at the end."""

from dataclasses import replace

import numpy as np
import pytest

from codegen.dense_problems import on_axes
from codegen.emitted import kernel_here
from codegen.random_problems import check_plan, in_turn, strides_in
from codegen.test_group_weights import AXES
from convgrad.codegen.lower import lower
from convgrad.plan.along import Along, adds_lanes, lanes_sum
from convgrad.plan.choose import choose, variants
from convgrad.plan.few_channels.lane_sums import LaneSumsPlan
from convgrad.plan.machine import available_isas, machine_for
from convgrad.problem.conv import Unknown

ISAS = [isa for isa in ("avx512", "avx2", "portable") if isa in available_isas()]
WIDE = {  # extents of x and y, taps, strides, dilations, pads
    "a row of many tiles": ((70,), (70,), (5,), (1,), (1,), (2,)),
    "pads of several tiles": ((70,), (70,), (3,), (1,), (29,), (29,)),
    "a long kernel": ((60,), (60,), (41,), (1,), (1,), (20,)),
    "windows apart": ((5, 66), (5, 6), (1, 3), (1, 11), (1, 1), (0, 0)),
    "outputs beside the image": ((3, 5), (9, 21), (3, 3), (1, 1), (1, 1), (4, 9)),
}
CHANNELS = (  # given and solved for
    (64, 1), (48, 2), (16, 3), (33, 2), (80, 4), (64, 5), (128, 7), (29, 3), (17, 1), (64, 12), (96, 9), (45, 11),
    (32, 10), (128, 21), (64, 6), (96, 15), (192, 18), (29, 12), (512, 16),
)  # fmt: skip


def problem_of(axes, unknown, given, solved, *, batch=2, **more):
    """Dense, with channels last."""
    channels = (given, solved) if unknown is Unknown.Y else (solved, given)
    return on_axes(unknown, axes, channels=channels, batch=batch, layout="NXC", weights="NCX", **more)


def plan_of(problem, isa):
    """The plan; None if there is none."""
    return next((plan for plan in variants(problem, machine_for(isa)) if type(plan) is LaneSumsPlan), None)


@pytest.mark.parametrize("isa", ISAS)
@pytest.mark.parametrize("unknown", [Unknown.X, Unknown.Y])
@pytest.mark.parametrize("name", [*AXES, *WIDE])
def test_every_border(name, unknown, isa):
    """Of whole vectors of channels and others, with a bias, of 16 bits, in tiles and blocks of other sizes."""
    rng, machine, found, axes = np.random.default_rng(len(name)), machine_for(isa), 0, (AXES | WIDE)[name]
    order = [*AXES, *WIDE].index(name) + (unknown is Unknown.Y)
    for seed, (given, solved) in list(enumerate(CHANNELS))[len(name) % 2 :: 1 if isa == "avx512" else 2]:
        dtype = ("f32", "f16", "bf16")[(seed + len(name) // 2) % 3 if isa != "portable" else 0]
        problem = problem_of(axes, unknown, given, solved, bias=seed % 3 == 1, dtype=dtype, out_dtype=dtype)
        plan = plan_of(problem, isa)
        if lanes_sum(problem, machine.lanes_f32, machine.registers) is not Along.CHANNELS:
            assert plan is None
            continue
        assert type(choose(problem, machine)) is LaneSumsPlan
        found += 1
        tile = (*plan.tile[:-1], int(rng.integers(1, plan.tile[-1] + 1)))
        most = [-(-axis.count // size) for axis, size in zip(plan.axes, tile, strict=True)]
        block = tuple(int(rng.integers(1, m + 1)) * t for m, t in zip(most, tile, strict=True))
        at_once = int(rng.integers(0, min(solved, machine.lanes_f32 + 1)))
        other = replace(plan, tile=tile, block=block, unroll=seed % 2, at_once=at_once)
        check_plan(problem, in_turn(seed // 2 + order, plan, other), machine, seed, low=bool(seed % 2))
    assert found or (unknown is Unknown.X and (axes[3][-1] > 1 or axes[2][-1] > 16))


def test_inputs_beyond_l2_are_asked_for_ahead():
    """In every step of a tile, and exact nevertheless."""
    for unknown in (Unknown.X, Unknown.Y):
        for channels in ((512, 3), (16, 1)):
            extents = (40, 2**18 // 40 // channels[0])
            axes = (extents, extents, (3, 3), (1, 1), (1, 1), (1, 1))
            problem = problem_of(axes, unknown, *channels)
            plan = plan_of(problem, "avx512")
            assert plan.fetches_rows
            assert "llvm.prefetch" in lower(plan).ir
            assert "llvm.prefetch" not in lower(plan_of(replace(problem, batch=1), "avx512")).ir
            if "avx512" in ISAS:
                check_plan(problem, plan, machine_for("avx512"))


@pytest.mark.skipif("avx512" not in ISAS, reason="this CPU has no avx512")
@pytest.mark.parametrize("taps", [3, 15, 41])
def test_bits_are_those_of_other_tiles_and_images_alone(taps):
    """Sums are rounded, so that any other order shows; tiles at a border go one by one if they are many."""
    machine, rng = machine_for("avx512"), np.random.default_rng(5)
    axes = ((90,), (90,), (taps,), (1,), (1,), (taps // 2,))
    solved = 13 if taps == 3 else 3
    given, weights = rng.standard_normal((2, 90, 80), np.float32), rng.standard_normal((solved, 80, taps), np.float32)
    problem = problem_of(axes, Unknown.Y, 80, solved)
    plan = plan_of(problem, "avx512")
    whole = _solved(problem, plan, machine, given, weights)
    for size, at_once in ((1, 0), (2, 2), (4, 1), (3, solved - 1)):
        other = replace(plan, tile=(1, size), block=(1, 7 * size), at_once=at_once)
        np.testing.assert_array_equal(whole, _solved(problem, other, machine, given, weights))
    alone = problem_of(axes, Unknown.Y, 80, solved, batch=1)
    np.testing.assert_array_equal(whole[1:], _solved(alone, plan_of(alone, "avx512"), machine, given[1:], weights))


def _solved(problem, plan, machine, given, weights):
    result = np.zeros((problem.batch, *problem.y_extent, problem.y_channels), np.float32)
    kernel = kernel_here(problem, lower(plan), machine)
    kernel(*(side.ctypes.data for side in (given, weights, result)), 0)
    assert result.any()
    return result


def test_what_it_is_for():
    """Few channels made of many, side by side; whatever extents and batch are."""
    square = ((40, 40), (40, 40), (3, 3), (1, 1), (1, 1), (1, 1))

    def adds(axes=square, unknown=Unknown.Y, channels=(64, 3), **more):
        return adds_lanes(problem_of(axes, unknown, *channels, **more), 16, 32)

    assert adds()
    assert adds(unknown=Unknown.X)
    assert adds(channels=(64, 7))
    assert [n for n in range(8, 70) if adds(channels=(64, n))] == [*range(8, 16), *range(17, 27)], "in lots"
    assert adds(channels=(128, 14)) > adds(channels=(512, 14)), "as many weights stay in no L1"
    one = ((40, 40), (40, 40), (1, 1), (1, 1), (1, 1), (0, 0))
    assert [n for n in range(8, 70) if adds(axes=one, channels=(256, n))] == [
        *range(8, 16),
        *range(17, 26),
        *range(33, 38),
        49,
    ]
    assert not adds(channels=(17, 3))
    assert not adds(channels=(8, 1))
    assert not adds(channels=(16, 1), axes=((40,), (40,), (1,), (1,), (1,), (0,)))
    assert not adds(axes=one, channels=(256, 16))
    assert adds(axes=one, channels=(256, 16), dtype="f16", out_dtype="f16"), "widened for one vector"
    assert not adds(accumulate=True)
    assert not adds(dtype="bf16")
    assert all(adds(dtype=dtype, out_dtype=dtype) for dtype in ("bf16", "f16"))
    assert not adds(dtype="f64", out_dtype="f64")
    strided = ((40, 40), (20, 20), (3, 3), (2, 2), (1, 1), (1, 1))
    assert adds(axes=strided)
    assert not adds(axes=strided, unknown=Unknown.X)
    assert adds(axes=WIDE["a long kernel"])
    assert not adds(axes=WIDE["a long kernel"], unknown=Unknown.X)
    half = problem_of(square, Unknown.Y, 64, 3, dtype="f16", out_dtype="f16")
    assert adds_lanes(half, 8, 16)
    assert not adds_lanes(half, 4, 16), "portable code would widen it number by number, again and again"
    problem = problem_of(square, Unknown.Y, 64, 3)
    first = strides_in(range(5), problem.shapes["x"])
    assert not adds_lanes(replace(problem, x_strides=first), 16, 32)


@pytest.mark.parametrize(
    ("isa", "most"),
    [("avx512", [*range(1, 16)]), ("avx512_bf16_emulated", [1, 2]), ("amx_emulated", [])],
)
def test_units_are_left_what_they_are_faster_at(isa, most):
    """Of bf16, whatever the extents of an image; f32 falls to pieces on them."""
    for size in (5, 64):
        axes = ((size, size), (size, size), (3, 3), (1, 1), (1, 1), (1, 1))
        problems = (problem_of(axes, Unknown.Y, 64, n, dtype="bf16", out_dtype="bf16") for n in range(1, 17))
        plans = [choose(problem, machine_for(isa)) for problem in problems]
        assert [p.problem.y_channels for p in plans if type(p) is LaneSumsPlan] == most
