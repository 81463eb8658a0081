"""Taps side by side in a tile of a weights gradient, at the border of x: windows meet some of them, and no zeros."""

from dataclasses import replace
from itertools import product
from math import prod

import numpy as np
import pytest

from codegen.buffers import StridedArray
from codegen.emitted import HOST_ISAS, compile_function
from codegen.random_problems import check_plan
from codegen.test_contract import tile_of
from codegen.test_flat_data import ISA
from codegen.test_sides_in_place import problem_of, shared_out
from convgrad.codegen.microkernels.reduction import Reduction, Segment
from convgrad.plan.choose import choose, variants
from convgrad.plan.general.sides_in_place import ways_in_place
from convgrad.plan.general.weights import WeightsPlan
from convgrad.plan.machine import machine_for

SEGMENTS = ((0, 1, (1, 2), (0, 1)), (1, 1, (0,), (0,)), (1, 4, (0, 1, 2), (0, 1)), (4, 6, (0, 1, 2), (1,)))


@pytest.mark.parametrize("known", [True, False], ids=["known bounds", "bounds at run time"])
@pytest.mark.parametrize("isa", HOST_ISAS)
def test_segments_are_for_their_own_rows_and_columns(isa, known):
    """With an axis around and one inside; steps are those of the whole axis."""
    tile = tile_of(isa, "f32", 3, 2)
    lanes, (outer, inner) = tile.isa.lanes("f32"), ((2, 40, 70), (2, 3, 2))
    rng = np.random.default_rng(3)
    arrays = [StridedArray((size,), (1,), np.float32) for size in (100, 150 + 2 * lanes, 300)]
    for array in arrays:
        array.view[...] = rng.integers(-3, 4, array.view.shape)
    bounds = [bound for start, stop, *_ in SEGMENTS for bound in (start, stop)]

    def body(b, *arguments):
        seen = bounds if known else arguments[3:]
        cut = tuple(Segment(*seen[2 * n : 2 * n + 2], *segment[2:]) for n, segment in enumerate(SEGMENTS))
        axes = [Reduction(0, *outer), Reduction(0, 6, 5, 7, segments=cut), Reduction(0, *inner)]
        tile.emit(b, *arguments[:3], axes, None)

    a, x, c = (array.view.astype(np.float64) for array in arrays)
    for start, stop, rows, columns in SEGMENTS:
        for r, v in product(rows, columns):
            place = tile.c_rows[r] + tile.c_columns[v]
            for i, j, k in product(range(outer[0]), range(start, stop), range(inner[0])):
                at_a = tile.rows[r] + i * outer[1] + 5 * j + k * inner[1]
                at_b = tile.columns[v] + i * outer[2] + 7 * j + k * inner[2]
                c[place : place + lanes] += a[at_a] * x[at_b : at_b + lanes]
    call = compile_function(isa, ("ptr",) * 3 + ("i64",) * len(bounds), body)
    call(*(array.address for array in arrays), *bounds)
    np.testing.assert_array_equal(arrays[2].view, c)
    assert arrays[2].only_elements_changed()


def random_problem(rng):
    """Rows of which a border of one to four windows meets some taps; at least one window meets all."""

    def pick(*choices):
        return choices[rng.integers(len(choices))]

    taps = pick((1, 2), (1, 3), (3, 3), (2, 5), (1, 9))
    stride = pick(1, 1, 2)
    image = int(rng.integers(2, 5)), int(rng.integers(taps[1], taps[1] + 9))
    low = int(rng.integers(1, taps[1]))
    channels = pick((16, 5), (33, 16), (2, 48), (6, 7), (17, 18))
    return problem_of(
        channels, image, order=pick("NCX", "NXC"), groups=pick(1, 1, 2), batch=pick(1, 2), taps=taps, stride=stride,
        low=low, dtype=pick("f32", "f32", "f64", "bf16"), accumulate=bool(rng.integers(2)),
        bias_gradient=pick("", "x", "y"),
    )  # fmt: skip


def beside(problem, machine):
    """Plans whose tiles hold all taps of a row, or some of them, for lanes along either side."""
    for plan in variants(problem, machine):
        if type(plan) is not WeightsPlan or plan.spread or plan.direct:
            continue
        taps = plan.axes[-1].taps
        for together in (t for t in range(2, taps + 1) if taps % t == 0):
            room = plan.lanes // together  # portable vectors are few
            rows = min(plan.row_count, max(1, room // (together if plan.rows_shift else 1)))
            tile = replace(plan, tile_taps=together, vectors=1, row_channels=rows, rows_together=0)
            tile = replace(tile, rows_in_place=False, lanes_in_place=False, lane_shares=1, row_shares=1)
            if tile.in_segments:
                yield from (replace(tile, rows_in_place=r, lanes_in_place=x) for r, x in ways_in_place(tile))


@pytest.mark.parametrize("isa", sorted({ISA, "portable"}))
def test_taps_beside_x_exactly(isa):
    """Packed and in place, with blocks of whole rows and of parts of them."""
    machine, tried = machine_for(isa), {}
    for seed in range(32):
        rng = np.random.default_rng(seed)
        problem = random_problem(rng)
        problem = replace(problem, out_dtype=problem.dtype)
        plans = list(beside(problem, machine))
        for n in rng.permutation(len(plans))[: 3 if isa == ISA else 2]:
            plan, changed = plans[n], shared_out(plans[n], rng)
            changed.validate()
            try:
                check_plan(problem, changed, machine, seed, low=bool(seed % 2))
            except AssertionError as error:
                raise AssertionError(f"seed {seed}: {problem}\n{changed}\n{error}") from None
            kind = plan.rows_shift, plan.x_in_place, changed.block[-1] < changed.axes[-1].windows
            tried[kind] = tried.get(kind, 0) + 1
    assert set(tried) == set(product((False, True), repeat=3))
    assert min(tried.values()) > 1


def test_slabs_hold_no_zeros():
    """Rows of x as they are, where a block is of whole rows."""
    problem = problem_of((16, 16), (5, 6), taps=(3, 3), low=1, order="NXC")
    machine = machine_for(ISA)
    for plan in beside(problem, machine):
        whole = replace(plan, block=tuple(axis.windows for axis in plan.axes))
        assert whole.x_extent == (1, 5, 6)
        assert prod(whole.x_met) == 30


def test_few_channels_are_read_in_place_with_taps_beside_each_other():
    """Where packing x, again for every block of rows, took a quarter of all time."""
    plan = choose(problem_of((32, 16), (112, 112), taps=(3, 3), low=1, order="NXC"), machine_for("avx512"))
    assert plan.lane_side == "x"
    assert plan.tile_taps == 3
    assert plan.in_segments
    assert plan.lanes_in_place
    assert plan.lane_slab_size == 0
