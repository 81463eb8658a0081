"""Weights gradients whose rows are packed tile by tile, as they are met: exactly, in the order of all other ways."""

from dataclasses import replace

import numpy as np
import pytest

from codegen.buffers import StridedArray
from codegen.emitted import HOST_ISAS, each_isa, run_here
from codegen.random_problems import check_plan
from codegen.test_sides_in_place import problem_of, shared_out
from convgrad.codegen.copies.window_slabs import WindowSlabs
from convgrad.codegen.general.weights import SumsStage
from convgrad.codegen.loops import weights_ahead
from convgrad.codegen.loops.weights_ahead import NextRows
from convgrad.codegen.lower import lower
from convgrad.plan.choose import choose, variants
from convgrad.plan.general import weights
from convgrad.plan.general.weights import WeightsPlan
from convgrad.plan.machine import machine_for

ROUND = {"dtype": "f16", "out_dtype": "f16"}


def plans_as_met(problem, machine):
    """Of every way to lay out vectors, with nothing in place."""
    for plan in variants(problem, machine):
        if type(plan) is WeightsPlan and not (plan.spread or plan.direct):
            plan = replace(plan, rows_in_place=False, lanes_in_place=False, x_pixel_major=False, rows_together=0)
            if plan.rows_as_met:
                yield plan


def random_problem(rng):
    """One tap, channels that do and do not fill tiles and vectors, rows of which some are strided."""

    def pick(*choices):
        return choices[rng.integers(len(choices))]

    few, many = pick(1, 5, 13, 24, 30), pick(17, 31, 48, 100, 130)
    dtype = pick("f16", "bf16", "f16", "f32", "f64")
    wide = "f64" if dtype == "f64" else "f32"
    return problem_of(
        pick((few, many), (many, few), (many, many)), pick((3, 7), (5, 4), (4, 11)), groups=pick(1, 1, 2),
        batch=pick(1, 2, 3), stride=pick(1, 1, 2), dtype=dtype, out_dtype=pick(dtype, wide),
        accumulate=bool(rng.integers(2)), bias_gradient=pick("", "x", "y"),
    )  # fmt: skip


@each_isa
def test_exactly(isa, monkeypatch):
    """As planned, and with other blocks, chunks and shares, whose lanes may be several blocks."""
    machine, tried, several = machine_for(isa), 0, 0
    monkeypatch.setattr(weights, "MET_BYTES", 1 << 30)
    monkeypatch.setattr(weights, "KEPT_BYTES", 0)
    monkeypatch.setattr(weights_ahead, "NEXT_BYTES", 0)
    monkeypatch.setattr(weights_ahead, "PAGE", 0)
    for seed in range(60):
        rng = np.random.default_rng(seed)
        problem = random_problem(rng)
        for plan in plans_as_met(problem, machine):
            if seed % 3 and replace(plan, vectors=1).rows_as_met:
                plan = replace(plan, vectors=1)
            changed = shared_out(plan, rng) if seed % 4 else plan
            changed.validate()
            try:
                check_plan(problem, changed, machine, seed, low=bool(seed % 2))
            except AssertionError as error:
                raise AssertionError(f"seed {seed}, {changed}: {error}") from None
            tried += changed.rows_as_met
            several += changed.rows_as_met and changed.share_blocks > 1
    assert tried > 20
    assert several > 2


LARGE = problem_of((192, 32), (70, 70), batch=4, **ROUND)  # planes of more than a page, beyond L2


def test_rows_of_a_tile_are_all_that_a_slab_holds(monkeypatch):
    plan = choose(LARGE, machine_for("avx512"))
    assert plan.rows_as_met
    assert plan.row_slab_size < plan.row_slab[1] * plan.row_count
    monkeypatch.setattr(WeightsPlan, "rows_as_met", False)
    assert plan.row_slab_size == plan.row_slab[1] * plan.share_rows


@pytest.mark.parametrize(
    ("problem", "wanted"),
    [
        (problem_of((256, 64), (56, 56), **ROUND), True),
        (problem_of((256, 64), (56, 56), order="NXC", **ROUND), False),  # channels lie side by side
        (problem_of((256, 64), (56, 56), taps=(3, 3), low=1, **ROUND), False),  # met again by every tap
        (problem_of((64, 64), (56, 56), batch=4, low=1, **ROUND), False),  # zeros around
        (problem_of((512, 512), (28, 28), **ROUND), False),  # lanes of eight vectors and more
        (problem_of((256, 64), (56, 56)), False),  # where they lie
    ],
)
def test_which_rows_are_packed_as_they_are_met(problem, wanted):
    assert choose(replace(problem, out_dtype=problem.dtype), machine_for("avx512")).rows_as_met == wanted


def test_sums_have_the_order_of_rows_that_are_packed_at_once(rng, monkeypatch):
    """Sums are rounded, so that any other order shows."""
    machine = machine_for(HOST_ISAS[-1])
    problem = problem_of((100, 17), (9, 14), batch=3, **ROUND | {"out_dtype": "f32"})
    arrays = [StridedArray(problem.shapes[name], problem.strides[name], np.float16) for name in "xy"]
    for array in arrays:
        array.view[...] = rng.standard_normal(array.view.shape)
    result, results = StridedArray(problem.shapes["w"], problem.strides["w"], np.float32), []
    (plan, *_) = plans_as_met(problem, machine)
    for as_met in (True, False):
        monkeypatch.setattr(WeightsPlan, "rows_as_met", as_met)
        run_here(lower(plan), machine, [arrays[0], result, arrays[1], None])
        results.append(result.view.copy())
    np.testing.assert_array_equal(*results)


def test_rows_of_the_next_tile_are_asked_for_where_planes_are_pages(monkeypatch):
    near = problem_of((192, 32), (20, 20), batch=40, **ROUND)
    plans = [choose(problem, machine_for("avx512")) for problem in (LARGE, near)]
    assert [(plan.rows_as_met, plan.fetches_ahead, NextRows.wanted(plan)) for plan in plans] == [
        (True, True, True),
        (True, True, False),
    ]
    asked = []
    monkeypatch.setattr(
        NextRows, "of", lambda plan, first, make=NextRows.of: asked.append(plan) or make(plan, first), raising=True
    )
    for plan in plans:
        lower(plan)
    assert set(map(id, asked)) == {id(plans[0])}


@pytest.mark.parametrize(
    ("owner", "name", "broken"),
    [
        (WindowSlabs, "pack_tile_rows", lambda own: lambda s, b, at, starts, row, n: own(s, b, at, starts, 0, n)),
        (SumsStage, "_multiply_as_met", lambda own: lambda s, b, at, lanes, starts: None),
    ],
    ids=["the first rows again", "nothing"],
)
def test_kernels_that_are_broken_are_found_out(owner, name, broken, monkeypatch):
    machine = machine_for("portable")
    problem = problem_of((24, 4), (5, 7), **ROUND)
    plan = next(iter(plans_as_met(problem, machine)))
    check_plan(problem, plan, machine)
    monkeypatch.setattr(owner, name, broken(getattr(owner, name)))
    with pytest.raises(AssertionError):
        check_plan(problem, plan, machine)
