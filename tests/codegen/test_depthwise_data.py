"""Depthwise layers whose channels lie side by side, in tiles of several rows: random problems, exactly."""

from dataclasses import replace

import numpy as np
import pytest

from codegen.random_problems import check_plan, strides_in
from convgrad.plan.choose import choose, variants
from convgrad.plan.depthwise.depthwise_data import DepthwiseDataPlan
from convgrad.plan.machine import machine_for, why_not
from convgrad.problem.conv import ConvProblem, Unknown

MOST = {1: 60, 2: 14, 3: 6}  # windows per axis, by rank


def depthwise_problem(rng, unknown):
    """One channel per group, channels last, with gaps and strides at times."""
    rank = int(rng.choice([1, 2, 2, 3]))
    groups, batch = int(rng.choice([4, 8, 9, 16, 17, 21, 32, 33, 54])), int(rng.integers(1, 3))
    windows = rng.integers(1, MOST[rank], rank)
    taps = rng.integers(1, 6 if rank < 3 else 4, rank)
    dilation = rng.choice([1, 1, 2], rank)
    stride = rng.choice([1, 2, 3], rank) if rng.integers(2) else np.ones(rank, int)
    low = np.array([int(rng.integers(-1, d * (r - 1) + 2)) for r, d in zip(taps, dilation, strict=True)])
    high = np.array([int(rng.integers(-1, d * (r - 1) + 2)) for r, d in zip(taps, dilation, strict=True)])
    image = np.maximum(1, stride * (windows - 1) + dilation * (taps - 1) + 1 - low - high)
    x_extent, y_extent, taps, stride, dilation, low = (
        tuple(map(int, of)) for of in (image, windows, taps, stride, dilation, low)
    )
    shapes = {"x": (batch, groups, 1, *x_extent), "w": (groups, 1, 1, *taps), "y": (batch, groups, 1, *y_extent)}
    last = [0, *range(3, rank + 3), 1, 2]
    gaps = [1] * (rank + 3)
    gaps[int(rng.choice([0, *range(3, rank + 3)]))] = int(rng.choice([1, 1, 2]))
    strides = {name: strides_in(last, shape, gaps if name != "w" else None) for name, shape in shapes.items()}
    dtype = str(rng.choice(["f32", "f64", "bf16", "f16"]))
    return ConvProblem(
        unknown=unknown, batch=batch, groups=groups, x_channels=1, y_channels=1, x_extent=x_extent, y_extent=y_extent,
        taps=taps, stride=stride, dilation=dilation, pad_low=low,
        **{f"{name}_strides": of for name, of in strides.items()},
        dtype=dtype, out_dtype=dtype if dtype == "f64" else str(rng.choice([dtype, "f32"])),
        bias=bool(rng.integers(2)), bias_stride=int(rng.choice([1, 2, -1])),
    )  # fmt: skip


def depthwise_plan(problem, isa):
    """The plan, whether it is the fastest or not; None where it cannot be."""
    return next((plan for plan in variants(problem, machine_for(isa)) if isinstance(plan, DepthwiseDataPlan)), None)


def altered(plan, rng):
    """With other tiles and blocks, and groups divided among tasks."""
    rows = int(rng.integers(1, min(4, plan.rows.count) + 1))
    columns = int(rng.integers(1, min(9, plan.columns.count) + 1))
    block = rows * int(rng.integers(1, 4))
    return replace(
        plan, tile=(*plan.tile[:-2], rows, columns), block=(*plan.block[:-2], block, plan.block[-1]),
        blocks_per_task=int(rng.integers(1, plan.lane_blocks + 1)),
    )  # fmt: skip


@pytest.mark.parametrize("isa", ["avx512", "avx2", "portable"])
@pytest.mark.parametrize("unknown", [Unknown.X, Unknown.Y])
def test_depthwise_tiles_exactly(unknown, isa):
    """As planned, and in other tiles and blocks."""
    if why_not(isa) is not None:
        pytest.skip(f"no {isa} here: {why_not(isa)}")
    tried = 0
    for seed in (seed for seed in range(60) if isa == "avx512" or seed // 3 % 3 != (isa == "avx2")):
        rng = np.random.default_rng(seed)
        problem = depthwise_problem(rng, unknown)
        plan = depthwise_plan(problem, isa)
        if plan is None:
            continue
        plan = altered(plan, rng) if seed % 3 else plan
        plan.validate()
        try:
            check_plan(problem, plan, machine_for(isa), seed, low=bool(seed % 2))
        except AssertionError as error:
            raise AssertionError(f"seed {seed}: {problem}\n{plan}\n{error}") from None
        tried += 1
    assert tried > 20


def mobile(**changes):
    """A 3x3 of 144 channels on 56x56, channels last."""
    extent, last = (56, 56), [0, 3, 4, 1, 2]
    shapes = {"x": (1, 144, 1, *extent), "w": (144, 1, 1, 3, 3), "y": (1, 144, 1, *extent)}
    strides = {f"{name}_strides": strides_in(last, shape) for name, shape in shapes.items()}
    problem = ConvProblem(
        unknown=Unknown.Y, batch=1, groups=144, x_channels=1, y_channels=1, x_extent=extent, y_extent=extent,
        taps=(3, 3), stride=(1, 1), dilation=(1, 1), pad_low=(1, 1), **strides,
    )  # fmt: skip
    return replace(problem, **changes)


def test_chosen_where_channels_lie_side_by_side():
    """For either unknown; not where results are added to, or channels are planes."""

    def rows_together(problem):
        return isinstance(choose(problem, machine_for("avx512")), DepthwiseDataPlan)

    assert rows_together(mobile())
    assert rows_together(mobile(unknown=Unknown.X))
    phases = {"x_extent": (112, 112), "x_strides": strides_in([0, 3, 4, 1, 2], (1, 144, 1, 112, 112))}
    assert rows_together(mobile(unknown=Unknown.X, stride=(2, 2), **phases))
    assert rows_together(mobile(dtype="bf16", out_dtype="bf16"))
    assert not rows_together(mobile(accumulate=True))
    planes = {f"{name}_strides": strides_in(range(5), mobile().shapes[name]) for name in "xy"}
    assert not rows_together(mobile(**planes))
    assert not rows_together(mobile(groups=3))


def of_stride_2(dtype, groups=21, extent=64, taps=4):
    """Outputs of half the extent of the image."""
    last, x_extent = [0, 3, 4, 1, 2], (2 * extent,) * 2
    shapes = {"x": (1, groups, 1, *x_extent), "w": (groups, 1, 1, taps, taps), "y": (1, groups, 1, extent, extent)}
    strides = {f"{name}_strides": strides_in(last, shape) for name, shape in shapes.items()}
    return mobile(
        groups=groups, x_extent=x_extent, y_extent=(extent, extent), taps=(taps, taps), stride=(2, 2), dtype=dtype,
        out_dtype=dtype, **strides,
    )  # fmt: skip


@pytest.mark.parametrize("isa", ["avx512", "avx512_bf16", "avx2"])
def test_registers_hold_a_widened_row_beside_the_sums_of_rows_that_share_it(isa):
    machine = machine_for(isa)
    for taps in (3, 4, 5):
        for dtype in ("bf16", "f16"):
            plan = choose(of_stride_2(dtype, taps=taps), machine)
            assert isinstance(plan, DepthwiseDataPlan)
            shared = any(len(met) > 1 for _, met in plan.row_steps)
            assert not shared or plan.sums + len(plan.column_steps()) < machine.registers


def test_half_lines_from_far_away_are_worth_a_second_column():
    columns = {t: choose(of_stride_2(t, 96, 112, 3), machine_for("avx512")).tile[-1] for t in ("f32", "bf16", "f16")}
    assert columns["f32"] == 1 < columns["bf16"] == columns["f16"]
