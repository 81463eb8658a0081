"""Vectors of few channels: taps of a row that share what they read, and the order of sums that this needs."""

from dataclasses import replace

import numpy as np
import pytest

from codegen.buffers import StridedArray
from codegen.emitted import run_here
from codegen.random_problems import check, check_plan, random_problem, strides_in
from convgrad.codegen.lower import lower
from convgrad.plan.choose import choose, variants
from convgrad.plan.in_place.flat_data import FlatDataPlan
from convgrad.plan.machine import machine_for, why_not
from convgrad.plan.order import taps_inside
from convgrad.problem.conv import ConvProblem, Unknown

ISA = "avx512"
needs_it = pytest.mark.skipif(why_not(ISA) is not None, reason=f"this CPU has no {ISA}")
LANES, REGISTERS = 16, 32


def square(unknown, x_channels, y_channels, extent=12, taps=3, channels_last=True, **more):
    """A convolution of images, padded so that windows are as many as pixels."""
    shapes = {
        "x": (2, 1, x_channels, extent, extent), "w": (1, y_channels, x_channels, taps, taps),
        "y": (2, 1, y_channels, extent, extent),
    }  # fmt: skip
    order = [0, 3, 4, 1, 2] if channels_last else range(5)
    strides = {f"{name}_strides": strides_in(order, shape) for name, shape in shapes.items()}
    return ConvProblem(
        unknown=unknown, batch=2, groups=1, x_channels=x_channels, y_channels=y_channels, x_extent=(extent, extent),
        y_extent=(extent, extent), taps=(taps, taps),
        **({"stride": (1, 1), "dilation": (1, 1), "pad_low": (taps // 2, taps // 2)} | strides | more),
    )  # fmt: skip


@needs_it
def test_exactly():
    """As planned, with other variants, and with other blocks."""
    tried, shifted = 0, 0
    for seed in range(1800):
        rng = np.random.default_rng(seed)
        problem = random_problem(rng)
        lanes = LANES // 2 if problem.dtype == "f64" else LANES
        if problem.unknown is Unknown.W or not taps_inside(problem, lanes, REGISTERS):
            continue
        plan = check(problem, ISA, variant=seed % 2, seed=seed, low=bool(seed % 3), alter=seed if seed % 4 else None)
        tried += 1
        shifted += problem.stride[-1] > 1
        assert plan.spread or plan.unroll == 1
    assert tried > 60
    assert shifted > 20


@needs_it
@pytest.mark.parametrize("unknown", [Unknown.X, Unknown.Y])
@pytest.mark.parametrize("channels", [(16, 12), (30, 70), (70, 30)])
def test_vectors_of_any_kind_sum_in_the_same_order(unknown, channels, rng):
    """Sums are rounded, so that any other order shows."""
    problem, machine = square(unknown, *channels, channels_last=False), machine_for(ISA)
    arrays = [StridedArray(problem.shapes[name], problem.strides[name], np.float32) for name in "xwy"]
    for array in arrays:
        array.view[...] = rng.standard_normal(array.view.shape)
    solved, results = arrays["xwy".index(unknown.value)].view, []
    for plan in variants(problem, machine):
        solved[...] = np.nan
        run_here(lower(plan), machine, [*arrays, None])
        results.append(solved.copy())
    assert len(results) > 1
    for other in results[1:]:
        np.testing.assert_array_equal(other, results[0])


def in_tiles(problem, tile):
    """The plan of a problem with tiles of so many neighbours of a row, of two rows."""
    plan = choose(problem, machine_for(ISA))
    return replace(plan, tile=(1, 2, tile), block=(1, 2 * (problem.y_extent[0] // 2), tile))


@needs_it
@pytest.mark.parametrize("unknown", [Unknown.X, Unknown.Y])
@pytest.mark.parametrize("channels_last", [False, True])
@pytest.mark.parametrize(
    ("extent", "taps", "tile"), [(4, 7, 4), (8, 5, 8), (10, 7, 5), (10, 7, 4), (8, 5, 3), (40, 3, 14)]
)
def test_rows_of_a_few_tiles_exactly(unknown, channels_last, extent, taps, tile):
    """Each knows what it misses, wherever blocks begin; the last one may begin early."""
    channels = (64, 16) if unknown is Unknown.Y else (16, 64)
    for more in ({}, {"dilation": (1, 2), "pad_low": (taps // 2, taps - 1)}):
        problem = square(unknown, *channels, extent=extent, taps=taps, channels_last=channels_last, **more)
        plan = in_tiles(problem, tile)
        long = replace(plan, block=(1, extent, -(-extent // tile) * tile))
        for one in (plan, long):
            for in_place in {False, plan.writes_in_place}:
                check_plan(problem, replace(one, writes_in_place=in_place, i_block=64), machine_for(ISA))


@pytest.mark.parametrize(("extent", "taps", "tile"), [(4, 7, 4), (8, 5, 8), (10, 7, 5), (40, 3, 14)])
def test_products_with_padding_are_left_out_where_rows_are_short(extent, taps, tile):
    """Of a row of one tile, or a few of which each is written out; else all tiles are alike and multiply zeros."""
    plan = in_tiles(square(Unknown.Y, 64, 16, extent=extent, taps=taps), tile)
    pairs = sum(0 <= m + t - taps // 2 < extent for m in range(extent) for t in range(taps))
    written = lower(plan).ir.count("call <16 x float> @llvm.fma.v16f32(")
    assert written == 2 * (tile * taps if extent == 40 else pairs)


def test_where_one_or_two_vectors_hold_all_channels():
    """Of the side that is solved for, and nearly fill them; those of the other side are to be more than a few."""

    def inside(problem):
        return taps_inside(problem, LANES, REGISTERS)

    for many in (9, 16, 26, 32):
        assert inside(square(Unknown.Y, 64, many))
        assert inside(square(Unknown.X, many, 64))
    for many in (1, 8, 17, 25, 33, 64):
        assert not inside(square(Unknown.Y, 64, many))
    assert not inside(square(Unknown.Y, 4, 16))
    assert not inside(square(Unknown.Y, 64, 16, taps=1))
    assert not inside(square(Unknown.Y, 64, 16, taps=9))
    assert not inside(square(Unknown.Y, 64, 16, dilation=(3, 3)))
    assert not inside(square(Unknown.X, 16, 64, stride=(5, 5)))


@pytest.mark.parametrize("channels_last", [False, True])
def test_chosen_whatever_the_layout(channels_last):
    """Vectors lie along channels, and no plan is chosen whose order is another."""
    for channels in ((16, 16), (64, 16), (32, 32)):
        problem = square(Unknown.Y, *channels, extent=56, channels_last=channels_last)
        plan = choose(problem, machine_for(ISA))
        assert not plan.pixels
        assert plan.unroll == 1
        assert not isinstance(plan, FlatDataPlan)
        others = choose(problem, machine_for("avx2"))
        assert others.unroll == 0
