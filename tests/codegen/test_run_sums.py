"""Y of channels that would leave lanes empty: sums are vectors along runs of taps and channels, added up at the end."""

from dataclasses import replace

import numpy as np
import pytest

from codegen.dense_problems import X, Y, problem_of
from codegen.emitted import kernel_here
from codegen.guard_cases import Case
from codegen.random_problems import check_plan, in_turn
from convgrad.codegen.lower import lower
from convgrad.plan.along import adds_runs
from convgrad.plan.choose import choose, variants
from convgrad.plan.few_channels.run_sums import RunSumsPlan
from convgrad.plan.machine import available_isas, machine_for

needs_avx512 = pytest.mark.skipif("avx512" not in available_isas(), reason="this CPU has no avx512")
AXES = {  # extents of x and y, taps, stride, low pad
    "windows that share two taps": ((19, 23), (9, 11), (4, 4), 2, 1),
    "pads on every side": ((11, 17), (6, 9), (5, 5), 2, 2),
    "no pads": ((13, 26), (3, 8), (7, 5), 3, 0),
    "cropped": ((12, 15), (4, 5), (4, 5), 2, (-1, -2)),
    "stride and kernel alike": ((12, 30), (3, 6), (4, 5), (4, 5), 0),
    "windows beside the image": ((4, 5), (9, 11), (4, 6), 3, (9, 14)),
    "taps that no window meets": ((3, 4), (2, 2), (5, 8), 3, (3, 5)),
    "a window": ((6, 6), (1, 1), (6, 6), 5, 0),
    "a row": ((200,), (66,), (9,), 3, 3),
    "three axes": ((7, 6, 11), (4, 3, 6), (3, 2, 4), 2, 1),
    "an outer axis with gaps": ((40, 21), (4, 10), (2, 6), (9, 2), (0, 2)),
}
CHANNELS = ((21, 21), (16, 17), (19, 33), (9, 10), (23, 18))  # given and solved for


def plan_of(problem, isa="avx512"):
    """The plan; None if there is none."""
    return next((plan for plan in variants(problem, machine_for(isa)) if isinstance(plan, RunSumsPlan)), None)


@needs_avx512
@pytest.mark.parametrize("layout", ["NCX", "NXC"])
@pytest.mark.parametrize("name", AXES)
def test_every_border(name, layout):
    """With a bias, with sums, in tiles of other shapes, of which the last one may have fewer channels."""
    x, y, taps, stride, low = AXES[name]
    rng, machine, found = np.random.default_rng(len(name)), machine_for("avx512"), 0
    order = list(AXES).index(name) + (layout == "NXC")
    for seed, channels in enumerate(CHANNELS):
        dtype = ("f32", "f16", "f32", "bf16", "f16")[seed]
        more = {"dtype": dtype, "out_dtype": dtype} | ({}, {"bias": True}, {"accumulate": True})[seed % 3]
        problem = problem_of(Y, x, y, taps, channels=channels, stride=stride, low=low, layout=layout, batch=2, **more)
        plan = plan_of(problem)
        assert (plan is not None) == adds_runs(problem, 16)
        if plan is None:
            continue
        found += 1
        assert choose(problem, machine) == plan
        tile = (*plan.tile[:-1], int(rng.integers(1, 5)))
        most = [-(-axis.count // size) for axis, size in zip(plan.axes, tile, strict=True)]
        block = tuple(int(rng.integers(1, m + 1)) * t for m, t in zip(most, tile, strict=True))
        width = int(rng.integers(1, 6))
        other = replace(plan, tile=tile, block=block, width=width, blocks_per_task=int(rng.integers(1, 4)))
        check_plan(problem, in_turn(seed + order, plan, other), machine, seed, low=bool(seed % 2))
    assert found > 0 or (layout, len(taps)) == ("NCX", 1)


def _solved(problem, plan, given, weights):
    result = np.zeros((problem.batch, *problem.y_extent, problem.y_channels), np.float32)
    kernel = kernel_here(problem, lower(plan), machine_for("avx512"))
    kernel(*(side.ctypes.data for side in (given, weights, result)), 0)
    assert result.any()
    return result


@needs_avx512
def test_bits_are_those_of_other_tiles_of_images_alone_and_of_parts():
    """Sums are rounded, so that any other order shows; some taps meet nothing of a part."""
    rng, axes = np.random.default_rng(5), ((40, 44), (19, 21), (6, 7), 2)
    given, weights = rng.standard_normal((2, 40, 44, 20), np.float32), rng.standard_normal((18, 20, 6, 7), np.float32)
    weights = np.ascontiguousarray(np.moveaxis(weights, (0, 1), (3, 2)))

    def problem(x, y, low, batch=2):
        return problem_of(Y, x, y, axes[2], channels=(20, 18), stride=2, low=low, layout="NXC", batch=batch)

    first = problem(*axes[:2], (1, 2))
    plan = plan_of(first)
    whole = _solved(first, plan, given, weights)
    for rows, width in ((1, 1), (2, 7), (5, 5)):
        other = replace(plan, tile=(1, 1, rows), block=(1, 3, 2 * rows), width=width)
        np.testing.assert_array_equal(whole, _solved(first, other, given, weights))
    alone = problem(*axes[:2], (1, 2), batch=1)
    np.testing.assert_array_equal(whole[1:], _solved(alone, plan_of(alone), given[1:], weights))
    corner = problem((3, 4), (2, 2), (1, 2), batch=1)  # of which windows need more than there is
    part = np.ascontiguousarray(given[:1, :3, :4])
    larger = problem((12, 16), (2, 2), (1, 2), batch=1)
    padded = np.zeros((1, 12, 16, 20), np.float32)
    padded[:, :3, :4] = part
    np.testing.assert_array_equal(
        _solved(corner, plan_of(corner), part, weights), _solved(larger, plan_of(larger), padded, weights)
    )


@needs_avx512
@pytest.mark.parametrize("layout", ["NCX", "NXC"])
def test_numbers_beside_a_run_do_not_reach_its_sum(layout):
    """Those that the last vector would read, infinite; and infinite weights, which meet zeros beside the image."""
    problem = problem_of(Y, (4, 9), (2, 5), (3, 3), channels=(21, 17), stride=2, low=1, layout=layout)
    plan = plan_of(problem)
    assert plan.run % plan.lanes
    case = Case(problem, plan, machine_for("avx512"))
    assert case.with_infinities({"x": 1, "w": 301}) > 3


def test_16_bits_where_no_unit_has_them():
    for dtype, isa, wanted in (
        ("f16", "avx512", True), ("bf16", "avx512", True), ("f16", "avx512_bf16_emulated", True),
        ("bf16", "avx512_bf16_emulated", False), ("f16", "amx_emulated", False), ("bf16", "amx_emulated", False),
        ("f32", "amx_emulated", True), ("f16", "avx2", False),
    ):  # fmt: skip
        problem = problem_of(Y, (40, 40), (17, 17), (8, 8), channels=(21, 21), stride=2, dtype=dtype, out_dtype=dtype)
        assert (plan_of(problem, isa) is not None) == wanted, (dtype, isa)


def test_what_it_is_for():
    """Channels that fill vectors badly, of windows that are apart by strides; whatever extents and batch are."""

    def adds(channels=(21, 21), taps=(8, 8), stride=3, unknown=Y, lanes=16, **more):
        return adds_runs(problem_of(unknown, (40, 40), (20, 20), taps, channels=channels, stride=stride, **more), lanes)

    assert adds()
    assert adds(layout="NXC")
    assert adds(channels=(20, 9))
    assert adds(channels=(32, 33))
    assert adds(stride=15)
    assert not adds(channels=(20, 8))
    assert not adds(channels=(21, 28))
    assert not adds(channels=(16, 16))
    assert not adds(channels=(257, 17))
    assert not adds(unknown=X)
    assert not adds(stride=1)
    assert not adds(stride=16)
    assert not adds(taps=(8, 1))
    assert not adds(taps=(1, 8), channels=(32, 17))
    assert adds(taps=(1, 8), channels=(32, 17), layout="NXC")
    assert not adds(lanes=8)
    assert not adds(dtype="bf16")
    assert not adds(groups=2)
    assert not adds(dilation=2)
