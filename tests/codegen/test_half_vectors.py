"""Last vectors of channels and rows of which half is wanted: that half alone is computed, to the same bits."""

import re
from dataclasses import replace

import numpy as np
import pytest

from codegen.buffers import StridedArray
from codegen.dense_problems import W, X, Y, problem_of
from codegen.emitted import HOST_ISAS, run_here
from codegen.random_problems import check_plan
from convgrad.codegen import isa as instruction_sets
from convgrad.codegen.loops.half_vectors import lane_columns, row_columns, weights_columns
from convgrad.codegen.lower import lower
from convgrad.dtypes import numpy_dtype
from convgrad.plan.by_dots.dots import DotDataPlan, DotWeightsPlan
from convgrad.plan.by_matrix.runs import DotRunPlan
from convgrad.plan.choose import variants
from convgrad.plan.general.data import DataPlan
from convgrad.plan.general.weights import WeightsPlan
from convgrad.plan.machine import machine_for

pytestmark = pytest.mark.skipif("avx512" not in HOST_ISAS, reason="the processor has no AVX-512")
BF16 = {"dtype": "bf16", "out_dtype": "bf16"}
F16 = {"dtype": "f16", "out_dtype": "f16"}
F64 = {"dtype": "f64", "out_dtype": "f64"}


def image(unknown, channels, extent, taps=3, **others):
    """A 3x3 layer, or another one, that keeps the extent."""
    return problem_of(unknown, (extent, extent), (extent, extent), (taps, taps), channels=channels,
                      **{"low": taps // 2, **others})  # fmt: skip


CHANNELS = {  # vectors along channels, of data plans
    "one block, copied": image(Y, (20, 24), 10, layout="NCX"),
    "one block, copied, with bias": image(Y, (20, 24), 10, layout="NCX", bias=True),
    "one block, in place": image(Y, (20, 24), 10, layout="NXC"),
    "one block, in place, with bias": image(Y, (20, 40), 10, layout="NXC", bias=True),
    "the last of several, copied": image(X, (72, 9), 7, layout="NCX"),
    "the last of several, in place": image(Y, (20, 72), 12, layout="NXC"),
    "as many vectors as before, in place": image(Y, (20, 120), 14, layout="NXC"),
    "one wanted lane, in place": image(Y, (20, 81), 12, layout="NXC", bias=True),
    "in place, f64": image(Y, (20, 36), 12, layout="NXC", **F64),
    "sums that are fetched again": image(Y, (700, 40), 9, layout="NXC", accumulate=True),
    "strides": problem_of(X, (19, 19), (9, 9), (3, 3), channels=(40, 20), stride=2, layout="NXC", low=0),
    "from bf16 to bf16": image(Y, (20, 40), 12, layout="NCX", **BF16),
    "in place, f16": image(Y, (20, 72), 12, layout="NXC", bias=True, **F16),
    "in place, bf16": image(Y, (20, 72), 12, layout="NXC", bias=True, **BF16),
    "one block, in place, bf16": image(X, (40, 20), 12, layout="NXC", **BF16),
}
ROWS = {  # vectors along outputs
    "in place": image(Y, (9, 20), 40, layout="NCX"),
    "in place, with bias": image(Y, (9, 20), 40, layout="NCX", bias=True),
    "copied": image(Y, (9, 20), 40, layout="NCX", accumulate=True),
    "f64": image(Y, (9, 20), 20, layout="NCX", **F64),
    "in place, f16": image(Y, (9, 20), 40, layout="NCX", **F16),
    "in place, bf16": image(Y, (9, 20), 40, layout="NCX", **BF16),
}
WEIGHTS = {
    "lanes of y": image(W, (37, 53), 12, layout="NXC"),
    "lanes of y, added to what is there": image(W, (37, 53), 12, layout="NCX", accumulate=True),
    "lanes of x": image(W, (40, 26), 12, layout="NXC"),
    "f64": image(W, (37, 20), 12, layout="NXC", **F64),
    "f16": image(W, (37, 53), 12, layout="NXC", **F16),
}
LAST_LANES = {  # of several blocks, which are fewer: a problem, and what its plan is to be
    "packed": (image(W, (13, 88), 12, layout="NCX"), dict(lane_side="y", vectors=4, tile_taps=1, row_channels=6)),
    "in place": (image(W, (13, 76), 12, 1, layout="NXC"), dict(lane_side="y", vectors=3, row_channels=6, chunks=1,
                                                               rows_in_place=True, lanes_in_place=True)),
    "whole vectors in place": (image(W, (13, 96), 12, layout="NXC"), dict(lane_side="y", vectors=4, tile_taps=3,
                               row_channels=2, chunks=2, rows_in_place=False, lanes_in_place=True)),
    "half of a vector more, in place": (image(W, (13, 40), 9, layout="NXC"), dict(lane_side="y", vectors=2, chunks=1,
                                                                  tile_taps=1, row_channels=5, rows_in_place=False,
                                                                  lanes_in_place=True)),
    "columns of taps": (image(W, (72, 13), 12, layout="NXC"), dict(lane_side="x", vectors=2, tile_taps=3, chunks=1,
                                            row_channels=3, rows_in_place=False, lanes_in_place=True, lane_shares=2)),
    "of a task of its own, added": (image(W, (9, 72), 12, layout="NXC", accumulate=True),
                                    dict(lane_side="y", vectors=4, tile_taps=1, row_channels=5, lane_shares=2)),
    "f64": (image(W, (37, 20), 12, layout="NXC", **F64), dict(lane_side="y", vectors=2, tile_taps=1, row_channels=5)),
    "in place, from f16 to f16": (image(W, (13, 72), 12, 1, layout="NXC", **F16), dict(lane_side="y", vectors=3,
                                  row_channels=6, chunks=1, rows_in_place=False, lanes_in_place=True)),
    "from bf16 to bf16": (image(W, (13, 40), 12, layout="NXC", **BF16), dict(lane_side="y", vectors=2, chunks=1,
                                                            tile_taps=1, row_channels=5, rows_in_place=False,
                                                            lanes_in_place=True)),
}  # fmt: skip
LAST_ROWS = {  # of which there are fewer than in other tiles: a problem, and what its plan is to be
    "packed, of several tasks": (image(W, (13, 20), 9, layout="NCX"), dict(lane_side="y", vectors=2, row_channels=5,
                                                           tile_taps=1, row_shares=2, chunks=2, rows_in_place=False)),
    "in place, weights at once": (image(W, (13, 20), 9, layout="NXC"), dict(lane_side="y", vectors=1, row_channels=4,
                                                         tile_taps=3, row_shares=2, chunks=1, rows_in_place=True)),
    "below columns of taps": (image(W, (20, 13), 9, layout="NCX", accumulate=True),
                              dict(lane_side="x", vectors=1, row_channels=3, tile_taps=3, rows_in_place=True)),
}  # fmt: skip


def wanted_plan(problem, kind, isa="avx512", **fields):
    """The best plan of exactly that kind."""
    for plan in variants(problem, machine_for(isa)):
        if type(plan) is kind and all(getattr(plan, name) == value for name, value in fields.items()):
            return plan
    raise AssertionError(f"no {kind.__name__} with {fields}")


def checked(plan):
    """Exact, at either guard page."""
    for low in (False, True):
        check_plan(plan.problem, plan, machine_for(plan.isa), low=low)


def weights_halves(plan):
    """Of the last block of lanes, which is the only one."""
    assert plan.lane_blocks == 1
    return weights_columns(plan, last=True)[1]


def sums_of_halves(plan):
    """Multiply-adds of half a vector that its code has."""
    return len(re.findall(rf"call <{plan.lanes // 2} x \w+> @llvm.fma", lower(plan).ir))


@pytest.mark.parametrize("problem", CHANNELS.values(), ids=CHANNELS)
def test_channels(problem):
    plan = wanted_plan(problem, DataPlan, pixels=False, spread=False)
    _, halves = lane_columns(plan, last=True)
    assert len(halves) == 1
    assert plan.lane_blocks == 1 or lane_columns(plan, last=False) == (tuple(plan.all_vectors), frozenset())
    assert sums_of_halves(plan) > 0
    checked(plan)


@pytest.mark.parametrize("problem", ROWS.values(), ids=ROWS)
def test_rows(problem):
    plan = wanted_plan(problem, DataPlan, pixels=True)
    places = list(range(0, plan.tile[-1], plan.lanes))
    assert plan.writes_in_place != problem.accumulate
    assert row_columns(plan, places)[1]
    assert sums_of_halves(plan) > 0
    checked(plan)


@pytest.mark.parametrize("problem", WEIGHTS.values(), ids=WEIGHTS)
def test_weights(problem):
    plan = wanted_plan(problem, WeightsPlan, spread=False, lane_blocks=1)
    assert weights_halves(plan)
    assert sums_of_halves(plan) > 0
    checked(plan)


@pytest.mark.parametrize("name", LAST_LANES)
def test_last_lanes_of_weights(name):
    problem, fields = LAST_LANES[name]
    plan = replace(wanted_plan(problem, WeightsPlan, spread=False), **{"row_shares": 1, **fields})
    assert plan.lane_blocks > 1
    every, last = (weights_columns(plan, last=last) for last in (False, True))
    assert last != every
    unit = plan.lanes // (1 if problem.out_dtype == "bf16" else 2)  # which is stored by whole vectors
    wanted = -(-(plan.lane_count % plan.width) // unit) * unit
    assert len(last[0]) * plan.lanes - len(last[1]) * plan.lanes // 2 == wanted
    checked(plan)


@pytest.mark.parametrize("name", LAST_ROWS)
def test_last_rows_of_weights(name):
    problem, fields = LAST_ROWS[name]
    plan = replace(wanted_plan(problem, WeightsPlan, spread=False), **{"row_shares": 1, **fields})
    assert 0 < plan.rest_rows < plan.row_channels < plan.row_count
    checked(plan)


def of_the_last(plan):
    """Of a block of lanes."""
    return lane_columns(plan, last=True)[1]


def of_the_last_alone(plan):
    """Where others compute all else of such a block."""
    assert plan.writes_in_place
    assert lane_columns(plan, last=True) == ((plan.width - plan.lanes // 2,), frozenset({0}))
    return of_the_last(plan)


@pytest.mark.parametrize("isa", [isa for isa in HOST_ISAS if isa.startswith("avx512_bf16")])
@pytest.mark.parametrize(
    ("problem", "kind", "halves"),
    [
        (image(Y, (20, 24), 10, layout="NXC", **BF16), DotDataPlan, of_the_last),
        (image(X, (40, 20), 10, layout="NCX", **BF16), DotDataPlan, of_the_last),
        (image(Y, (20, 53), 12, layout="NXC", bias=True, **BF16), DotDataPlan, of_the_last),
        (image(Y, (20, 164), 12, layout="NXC", **BF16), DotDataPlan, of_the_last_alone),
        (image(X, (37, 20), 12, layout="NCX", **BF16), DotDataPlan, of_the_last),
        (image(Y, (3, 40), 12, layout="NXC", **BF16), DotRunPlan, of_the_last),
        (image(W, (20, 24), 10, layout="NXC", **BF16), DotWeightsPlan, weights_halves),
    ],
    ids=[
        "windows",
        "images",
        "the last of several, in place",
        "alone, in place",
        "the last, copied",
        "runs",
        "weights",
    ],
)
def test_dot_products(problem, kind, halves, isa):
    plan = wanted_plan(problem, kind, isa)
    assert halves(plan)
    checked(plan)


@pytest.mark.skipif("avx512_bf16" not in HOST_ISAS, reason="the processor has no dot products")
@pytest.mark.parametrize("layout", ["NCX", "NXC"])
def test_bits_of_dot_products_are_those_of_whole_vectors(layout, monkeypatch):
    plan = wanted_plan(image(Y, (20, 53), 12, layout=layout, **BF16), DotDataPlan, "avx512_bf16")
    halved, code = bits(plan), lower(plan).ir
    whole = replace(instruction_sets.ISAS["avx512_bf16"], halves=False)
    monkeypatch.setitem(instruction_sets.ISAS, "avx512_bf16", whole)
    assert lower(plan).ir != code
    assert bits(plan) == halved


@pytest.mark.parametrize("half_empty", [7, 8])
def test_more_than_half_is_a_whole_vector(half_empty):
    plan = wanted_plan(image(Y, (20, 32 - half_empty), 10, layout="NXC"), DataPlan, pixels=False, spread=False)
    assert bool(lane_columns(plan, last=True)[1]) == (half_empty == 8)
    assert bool(sums_of_halves(plan)) == (half_empty == 8)


@pytest.mark.parametrize("name", ["as many vectors as before, in place", "sums that are fetched again", "strides"])
def test_bits_are_those_of_whole_vectors(name, monkeypatch):
    plan = wanted_plan(CHANNELS[name], DataPlan, pixels=False, spread=False)
    halved = bits(plan)
    whole = replace(instruction_sets.ISAS["avx512"], halves=False)
    monkeypatch.setitem(instruction_sets.ISAS, "avx512", whole)
    assert sums_of_halves(plan) == 0
    assert bits(plan) == halved


def bits(plan):
    """Of a result of random numbers."""
    problem, rng = replace(plan.problem, bias=False), np.random.default_rng(0)
    arrays = {}
    for name, shape in problem.shapes.items():
        arrays[name] = StridedArray(shape, problem.strides[name], numpy_dtype(problem.dtype))
        arrays[name].view[...] = rng.standard_normal(shape)
    run_here(lower(plan), machine_for(plan.isa), [*(arrays[name] for name in "xwy"), None])
    return arrays[problem.unknown.value].view.tobytes()
