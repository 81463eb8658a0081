"""One channel to one, with vectors along the windows or the outputs of a row: random problems, exactly."""

from dataclasses import replace

import numpy as np
import pytest

from codegen.dense_problems import problem_of
from codegen.random_problems import _axis, check, strides_for, strides_in
from convgrad.dtypes import COMPUTE
from convgrad.plan.choose import choose, variants
from convgrad.plan.depthwise.plane_data import PlaneDataPlan
from convgrad.plan.depthwise.plane_weights import PlaneWeightsPlan
from convgrad.plan.machine import machine_for
from convgrad.problem.conv import ConvProblem, Unknown

ISAS = "avx512", "avx2", "portable"


def plane_problem(rng, unknown):
    """Depthwise, most often dense with channels first; small enough for the oracle."""

    def pick(*choices):
        return choices[rng.integers(len(choices))]

    rank = pick(1, 2, 2, 2, 3)
    groups, batch = pick(1, 2, 3, 7, 20), pick(1, 1, 2, 3)
    axes = [_axis(rng, {1: 200, 2: 40, 3: 9}[rank]) for _ in range(rank)]
    if rng.integers(2):  # larger kernels, stride 1
        taps = [int(rng.integers(1, 8 if rank < 3 else 4)) for _ in range(rank)]
        if rank == 1 and rng.integers(2):
            taps = [int(rng.integers(25, 70))]
        axes = [_stretched(axis, many) for axis, many in zip(axes, taps, strict=True)]
    x_extent, y_extent, taps, stride, dilation, low = zip(*axes, strict=True)
    shapes = {"x": (batch, groups, 1, *x_extent), "w": (groups, 1, 1, *taps), "y": (batch, groups, 1, *y_extent)}
    dense = {name: strides_in(range(len(shape)), shape) for name, shape in shapes.items()}
    if rng.integers(4) == 0:
        free = pick("w", "x", "y")
        dense[free] = strides_for(rng, free, shapes[free], free == unknown.value)
    dtype = pick("f32", "f32", "f32", "bf16", "f16", "f64")
    problem = ConvProblem(
        unknown=unknown, batch=batch, groups=groups, x_channels=1, y_channels=1, x_extent=x_extent, y_extent=y_extent,
        taps=taps, stride=stride, dilation=dilation, pad_low=low,
        x_strides=dense["x"], w_strides=dense["w"], y_strides=dense["y"],
        dtype=dtype, out_dtype=pick(dtype, dtype, "f32") if COMPUTE[dtype] == "f32" else dtype,
        bias=unknown is not Unknown.W and pick(False, False, True), bias_stride=pick(1, 1, 2, -1),
        accumulate=pick(False, False, True),
    )  # fmt: skip
    return replace(problem, bias_gradient=pick("", "x", "y")) if unknown is Unknown.W else problem


def _stretched(axis, taps):
    """An axis of the same windows with other taps, dense."""
    _, windows, _, _, _, _ = axis
    low = taps // 2
    return windows + (taps - 1) % 2, windows, taps, 1, 1, low


def plane_variant(problem, isa):
    """Which variant has vectors along windows, over slabs; None if there is none."""
    plans = variants(problem, machine_for(isa))
    return next((n for n, plan in enumerate(plans) if type(plan) in (PlaneDataPlan, PlaneWeightsPlan)), None)


@pytest.mark.parametrize("unknown", Unknown)
@pytest.mark.parametrize("isa", ISAS)
def test_planes_exactly(isa, unknown):
    """Of one channel each, in blocks as planned and in others."""
    tried = 0
    for seed in range(30):
        problem = plane_problem(np.random.default_rng(seed), unknown)
        variant = plane_variant(problem, isa)
        if variant is not None:
            check(problem, isa, variant=variant, seed=seed, low=bool(seed % 2), alter=seed if seed % 3 else None)
            tried += 1
    assert tried > 10


@pytest.mark.parametrize("stride", [1, 2])
@pytest.mark.parametrize("dtype", ["f16", "bf16"])
@pytest.mark.parametrize("isa", ["avx2", "portable"])
def test_whole_tiles_of_16_bits_are_written_from_registers(isa, dtype, stride):
    """And parts of tiles by way of memory: rows that fill tiles, and longer ones."""
    for columns in (64, 70):
        x, y = (stride * 12, stride * columns), (12, columns)
        sizes = {"channels": (1, 1), "groups": 3, "batch": 2, "stride": stride, "low": 1}
        problem = problem_of(Unknown.X, x, y, (3, 3), **sizes, dtype=dtype, out_dtype=dtype)
        variant = plane_variant(problem, isa)
        plan = list(variants(problem, machine_for(isa)))[variant]
        assert plan.direct_if_whole
        assert not plan.direct
        check(problem, isa, variant=variant, low=True)


@pytest.mark.parametrize("dtype", ["f32", "f16", "bf16"])
def test_weights_of_strides_are_summed_along_rows_in_all_types(dtype):
    """Short vectors take rows of 16 bits apart in little more time than those of f32."""
    problem = problem_of(
        Unknown.W, (28, 28), (14, 14), (3, 3), groups=384, channels=(1, 1), stride=2, low=1, dtype=dtype
    )
    assert isinstance(choose(problem, machine_for("avx2")), PlaneWeightsPlan)
