"""Problems by dot products of bf16 pairs, and plans of them, for the tests of instructions, plans and numbers."""

from dataclasses import replace

import ml_dtypes
import numpy as np
import pytest

from codegen.dense_problems import W, X, Y, problem_of
from codegen.emitted import load_here
from codegen.matrix_checks import WIDE, asked, run
from convgrad.codegen.lower import lower
from convgrad.plan.by_dots.dots import DotDataPlan, DotWeightsPlan
from convgrad.plan.choose import variants
from convgrad.plan.general.data_in_place import writes_in_place
from convgrad.plan.machine import machine_for, why_not

EMULATED, REAL = "avx512_bf16_emulated", "avx512_bf16"
HERE = [isa for isa in (EMULATED, REAL) if why_not(isa) is None]
needs_dots = pytest.mark.skipif(not HERE, reason=f"dot products cannot be emulated here: {why_not(EMULATED)}")
each = pytest.mark.parametrize("isa", HERE)
PLANS = DotDataPlan, DotWeightsPlan
BF16 = ml_dtypes.bfloat16


def plan_of(problem, isa=EMULATED):
    return next(plan for plan in variants(problem, machine_for(isa)) if isinstance(plan, PLANS))


def shaped(plan, rows, width, blocks=1):
    """With tiles of so many outputs of the innermost axis, and channels, in place where that can be."""
    outer = [1] * (len(plan.axes) - 1)
    fields = {"tile": (*outer, rows), "block": (*outer, rows * blocks), "width": width, "blocks_per_task": 1}
    plan = replace(plan, writes_in_place=False, **fields)
    return replace(plan, writes_in_place=writes_in_place(plan))


def in_bf16(problem, out_dtype="f32"):
    return replace(problem, dtype="bf16", out_dtype=out_dtype)


PACKED = {  # by how numbers become pairs
    f"{name}, {layout}": problem_of(unknown, layout=layout, **sizes)
    for layout in ("NCX", "NXC")
    for name, unknown, sizes in (
        ("rows of odd length", W, {"image": (7, 7), "windows": (7, 7), "taps": (3, 3), "channels": (34, 40), "low": 1}),
        ("one column", W, {"image": (9, 1), "windows": (9, 1), "taps": (3, 1), "channels": (34, 40), "low": (1, 0)}),
        ("planes", W, {"image": (90,), "windows": (11,), "taps": (16,), "channels": (20, 33), "stride": 8, "low": 4}),
        ("odd channels", Y, {"image": (9, 9), "windows": (9, 9), "taps": (3, 3), "channels": (35, 40), "low": 1}),
        ("a few channels", Y, {"image": (9, 9), "windows": (9, 9), "taps": (3, 3), "channels": (6, 10), "low": 1}),
        ("an even number of taps", Y, {"image": (9, 9), "windows": (9, 8), "taps": (3, 2), "channels": (70, 49)}),
        ("one tap", Y, {"image": (9, 20), "windows": (9, 20), "taps": (1, 1), "channels": (66, 49)}),
        ("many channels", X, {"image": (4, 5), "windows": (4, 5), "taps": (3, 3), "channels": (33, 600), "low": 1}),
        ("strides", X, {"image": (13, 19), "windows": (7, 10), "taps": (3, 3), "channels": (33, 48), "stride": 2}),
        (
            "groups of half a vector",
            Y,
            {"image": (5, 9), "windows": (5, 9), "taps": (3, 3), "channels": (16, 20), "low": 1, "groups": 3},
        ),
        (
            "groups of a quarter",
            X,
            {"image": (5, 11), "windows": (5, 11), "taps": (3, 2), "channels": (20, 8), "low": (1, 0), "groups": 2},
        ),
        ("long rows", Y, {"image": (3, 75), "windows": (3, 75), "taps": (1, 3), "channels": (36, 20), "low": (0, 1)}),
    )
}

RUNS = {  # of taps and a few channels
    f"{c} channels, taps {k}, stride {s}, {layout}": problem_of(
        Y, (17, 41), tuple((n + 2 * low - k) // s + 1 for n in (17, 41)), (k, k), channels=(c, 40), stride=s, low=low,
        layout=layout, batch=2, bias=True,
    )
    for layout, c, k, s, low in (
        ("NCX", 3, 3, 2, 1), ("NXC", 3, 3, 2, 1), ("NCX", 1, 5, 3, 2), ("NXC", 1, 2, 1, 0), ("NCX", 4, 4, 4, 0),
        ("NXC", 3, 7, 2, 3), ("NCX", 2, 3, 1, 1), ("NXC", 8, 3, 1, 1), ("NCX", 7, 2, 1, 1),
    )
}  # fmt: skip

EVERY = {name: in_bf16(problem) for name, problem in (WIDE | PACKED).items()}


def of_lines(layout="NXC", channels=64):
    """A problem whose results are whole lines, more than caches should hold."""
    return in_bf16(problem_of(Y, (160, 160), (160, 160), (1, 1), channels=(2, channels), layout=layout), "bf16")


ROWS = {  # of windows
    f"{windows}, taps {taps}, stride {stride}, dilation {dilation}, {layout}": problem_of(
        W, tuple((n - 1) * stride + dilation * (k - 1) + 1 - 2 * low for n, k in zip(windows, taps, strict=True)),
        windows, taps, channels=(19, 21), stride=stride, dilation=dilation, low=low, layout=layout, batch=3,
    )
    for layout in ("NCX", "NXC")
    for windows, taps, stride, dilation, low in (
        ((5, 7), (3, 3), 1, 1, 1), ((4, 10), (3, 2), 1, 1, 0), ((6, 9), (3, 4), 2, 1, 1), ((7, 6), (3, 3), 1, 2, 2),
        ((9, 1), (3, 1), 1, 1, 0), ((3, 4, 5), (2, 3, 3), 1, 1, 1),
    )
}  # fmt: skip

FEW = {  # channels of x: taps are rows of a tile, in planes of a stride
    f"{c} channels, taps {taps}, stride {stride}, dilation {dilation}, {layout}": problem_of(
        W, tuple((n - 1) * stride + dilation * (k - 1) + 1 - 2 * low for n, k in zip(windows, taps, strict=True)),
        windows, taps, channels=(c, 37), stride=stride, dilation=dilation, low=low, layout=layout, batch=2,
    )
    for layout in ("NCX", "NXC")
    for c, windows, taps, stride, dilation, low in (
        (1, (5, 7), (3, 3), 1, 1, 1), (1, (6, 6), (9, 9), 3, 1, 4), (3, (4, 5), (16, 16), 16, 1, 1),
        (2, (5, 9), (4, 6), 4, 1, 1), (2, (6, 5), (3, 6), 3, 2, 2), (1, (41,), (10,), 5, 1, 0),
        (1, (23,), (8,), 6, 3, 5), (1, (3, 4, 5), (2, 3, 3), 2, 1, 1),
    )
}  # fmt: skip

SMALL = [in_bf16(problem_of(u, (6, 18), (6, 18), (3, 3), channels=(34, 20), low=1)) for u in (X, W, Y)]
IDS = ["x", "w", "y"]


def check_watched(plan):
    """The fallback takes over wherever one number is infinite."""
    module = lower(plan)
    made = module, load_here(module, machine_for(EMULATED))
    problem = asked(plan)
    ones = {name: np.ones(shape) for name, shape in problem.shapes.items() if name != problem.unknown.value}
    for name, values in ones.items():
        for place in range(values.size):
            given = {n: v.copy() for n, v in ones.items()}
            given[name].flat[place] = np.inf
            _, again = run(plan, given, made=made)
            assert again, f"infinity at {np.unravel_index(place, values.shape)} of {name} was not seen"
