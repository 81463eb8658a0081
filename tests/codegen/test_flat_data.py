"""Planes of input and output that are alike, read and written as they lie in memory: random problems, exactly."""

from dataclasses import replace

import numpy as np
import pytest

from codegen.dense_problems import problem_of
from codegen.guard_cases import Case
from codegen.random_problems import check_plan, strides_in
from convgrad.plan.choose import choose, variants
from convgrad.plan.general.data import DataPlan
from convgrad.plan.in_place.choose_flat_data import flat_data_candidates
from convgrad.plan.in_place.flat_data import FlatDataPlan
from convgrad.plan.machine import machine_for, why_not
from convgrad.problem.conv import ConvProblem, Unknown

ISA = "avx512"  # the only one with masks
needs_masks = pytest.mark.skipif(why_not(ISA) is not None, reason=f"no {ISA} here: {why_not(ISA)}")
EXTENTS = {1: (16, 150), 2: (4, 24), 3: (4, 8)}


def alike_problem(rng, unknown):
    """Stride 1 and windows as many as elements, dense, channels first; taps may reach far beside the image."""
    rank = int(rng.choice([1, 2, 2, 2, 3]))
    groups, batch = int(rng.choice([1, 2, 3])), int(rng.integers(1, 3))
    c, k = (int(n) for n in rng.choice([1, 2, 3, 4, 5, 8, 11], 2))
    extent = tuple(int(n) for n in rng.integers(*EXTENTS[rank], rank))
    taps = tuple(int(n) for n in rng.integers(1, 6 if rank < 3 else 4, rank))
    dilation = tuple(int(n) for n in rng.choice([1, 1, 2, 3], rank))
    low = tuple(int(rng.integers(-1, d * (r - 1) + 2)) for r, d in zip(taps, dilation, strict=True))
    shapes = {"x": (batch, groups, c, *extent), "w": (groups, k, c, *taps), "y": (batch, groups, k, *extent)}
    dtype = str(rng.choice(["f32", "f64", "bf16", "f16"]))
    out_dtype = str(rng.choice([dtype, "f32"])) if dtype != "f64" else dtype
    return ConvProblem(
        unknown=unknown, batch=batch, groups=groups, x_channels=c, y_channels=k, x_extent=extent, y_extent=extent,
        taps=taps, stride=(1,) * rank, dilation=dilation, pad_low=low,
        **{f"{name}_strides": strides_in(range(len(shape)), shape) for name, shape in shapes.items()},
        dtype=dtype, out_dtype=out_dtype, bias=bool(rng.integers(2)), bias_stride=int(rng.choice([1, 2, -1])),
    )  # fmt: skip


def apart(problem, rng):
    """The same with windows a stride apart, as many as there may be, or some fewer."""
    stride = tuple(int(n) for n in rng.integers(1, 5, problem.rank))
    axes = zip(problem.x_extent, problem.taps, problem.dilation, stride, problem.pad_low, strict=True)
    windows = tuple(max(1, (x + low - d * (r - 1) - 1) // s + 1 - int(rng.integers(-1, 3))) for x, r, d, s, low in axes)
    shape = (problem.batch, problem.groups, problem.y_channels, *windows)
    y_strides = strides_in(range(len(shape)), shape)
    return replace(problem, stride=stride, y_extent=windows, y_strides=y_strides)


def flat_plan(problem):
    """The plan, whether it is the fastest or not; None where it cannot be."""
    machine = machine_for(ISA)
    for plan in variants(problem, machine):
        if isinstance(plan, DataPlan) and plan.pixels and type(plan) is DataPlan:
            found = next(flat_data_candidates(plan, float("inf"), machine), None)
            return None if found is None else found[1]
        if isinstance(plan, FlatDataPlan):
            return plan
    return None


def altered(plan, rng):
    """With other tiles and blocks."""
    rows = int(rng.integers(1, plan.rows.count + 1))
    width = int(rng.integers(1, plan.out_channels + 1))
    return replace(
        plan, block=(*plan.block[: plan.outer], rows, *plan.block[plan.outer + 1 :]), width=width,
        vectors=int(rng.integers(1, plan.positions // plan.lanes + 1)) if plan.positions < 100 else plan.vectors,
        packs_weights=bool(rng.integers(2)), blocks_per_task=int(rng.integers(1, -(-plan.out_channels // width) + 1)),
    )  # fmt: skip


@needs_masks
@pytest.mark.parametrize("unknown", [Unknown.X, Unknown.Y])
def test_flat_planes_exactly(unknown):
    """As planned, and in other tiles and blocks; what is beside an image is neither read nor multiplied."""
    tried = 0
    for seed in range(60):
        rng = np.random.default_rng(seed)
        problem = alike_problem(rng, unknown)
        plan = flat_plan(problem)
        if plan is None:
            continue
        plan = altered(plan, rng) if seed % 3 else plan
        plan.validate()
        try:
            check_plan(problem, plan, machine_for(ISA), seed, low=bool(seed % 2))
        except AssertionError as error:
            raise AssertionError(f"seed {seed}: {problem}\n{plan}\n{error}") from None
        tried += 1
    assert tried > 35


@needs_masks
@pytest.mark.parametrize("unknown", [Unknown.X, Unknown.Y])
def test_pairs_of_bf16_exactly(unknown):
    """Tiles inside of planes read words of two numbers: rows of any length, in columns of even and odd places."""
    tried, machine = 0, machine_for(ISA)
    for seed, (extent, taps, low) in enumerate(
        [
            ((20, 48), (3, 3), (1, 1)), ((19, 33), (3, 3), (0, 2)), ((13, 57), (5, 4), (2, 3)),
            ((9, 130), (1, 5), (0, 4)), ((64,), (3,), (1,)), ((301,), (6,), (2,)),
            ((5, 8, 24), (2, 3, 3), (1, 1, 0)), ((40, 7), (3, 7), (1, 3)),
        ]
    ):  # fmt: skip
        for c, k, bias in ((4, 4, False), (3, 5, True), (8, 1, False)):
            problem = problem_of(
                unknown, extent, extent, taps, channels=(c, k), groups=2, batch=2, low=low, bias=bias, dtype="bf16",
                out_dtype="bf16",
            )  # fmt: skip
            plan = flat_plan(problem)
            for vectors in (2, 4):
                one = replace(plan, vectors=vectors)
                if vectors * one.lanes <= one.positions and one.inside[0] <= one.inside[1]:
                    check_plan(problem, one, machine, seed, low=bool(seed % 2))
                    tried += 1
    assert tried > 30


@needs_masks
def test_pairs_beside_the_image_are_zero():
    """Infinite numbers of the next row are not multiplied."""
    problem = resnext(4, batch=1, groups=1, dtype="bf16", out_dtype="bf16")
    assert Case(problem, flat_plan(problem), machine_for(ISA)).with_infinities({"x": 911, "w": 17}) > 3


def resnext(channels, **changes):
    """32 groups, 3x3, rows of 56."""
    sizes = {"channels": (channels, channels), "groups": 32, "batch": 4}
    problem = problem_of(Unknown.Y, (56, 56), (56, 56), (3, 3), **sizes, low=1)
    return replace(problem, **changes)


def test_chosen_where_few_channels_meet_few():
    """Not with many channels, nor where planes are not alike."""

    def flat(problem, isa=ISA):
        return isinstance(choose(problem, machine_for(isa)), FlatDataPlan)

    assert flat(resnext(4))
    assert flat(resnext(8))
    assert flat(replace(resnext(8), unknown=Unknown.X))
    assert not flat(resnext(32))
    assert flat(resnext(8, dtype="bf16", out_dtype="bf16"))
    assert not flat(resnext(8, accumulate=True))
    assert not flat(resnext(8), "avx2")
    gaps = resnext(8)
    assert not flat(replace(gaps, x_strides=(*gaps.x_strides[:3], 64, 1)))
    assert not flat(resnext(8, pad_low=(0, 0), y_extent=(54, 54)))
