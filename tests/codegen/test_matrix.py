"""Plans on matrix units: exact on whole numbers, and what becomes of data that bf16 pieces cannot stand for."""

from dataclasses import replace

import numpy as np
import pytest

from codegen.buffers import StridedArray
from codegen.dense_problems import W, X, Y, problem_of
from codegen.emitted import run_here
from codegen.matrix_checks import (
    BF16_KINDS,
    IDS,
    ISA,
    KEPT,
    PLANS,
    SMALL,
    WIDE,
    alterations_of,
    check_kind,
    check_one_number,
    check_own_weights,
    data,
    needs_tiles,
    plan_of,
    run,
    variant_of,
)
from codegen.random_problems import check, check_plan, random_problem, solve
from convgrad.codegen.lower import lower
from convgrad.plan.choose import variants
from convgrad.plan.machine import machine_for

pytestmark = needs_tiles


# --- whole problems, exactly


@pytest.mark.parametrize("dtype", ["f32", "bf16", "f16"])
@pytest.mark.parametrize(("number", "problem"), list(enumerate(WIDE.values())), ids=WIDE)
def test_whole_numbers_are_exact(number, problem, dtype):
    problem = replace(problem, dtype=dtype, out_dtype="f32")
    variant = variant_of(problem)
    for alter in alterations_of(dtype, number):
        check(problem, ISA, variant=variant, low=alter == 1, alter=alter or None)


@pytest.mark.parametrize("dtype", ["f32", "bf16"])
@pytest.mark.parametrize(("unknown", "channels"), [(X, (20, 41)), (Y, (41, 20))], ids=["x", "y"])
def test_bands_of_taps_leave_each_other_and_what_fills_up_tiles_alone(unknown, channels, dtype):
    image, windows = (23, 9, 20), (9, 9, 20)
    problem = problem_of(unknown, image, windows, (3, 2, 1), channels=channels, dilation=(7, 5, 1), low=(0, 2, 0))
    problem = replace(problem, dtype=dtype, out_dtype="f32")
    plan = plan_of(problem)
    plan = replace(plan, block=(1, 2 * plan.tile[1], plan.tile[2], plan.block[-1]), writes_in_place=False)
    assert plan.banded(1)
    assert plan.banded(2)
    check_plan(problem, plan, machine_for(ISA))


@pytest.mark.parametrize("mode", ["tf32", "bf16", "f16", "any"])
@pytest.mark.parametrize("unknown", [X, W, Y])
def test_modes_are_exact_where_no_number_is_rounded(unknown, mode):
    problem = problem_of(unknown, (9, 9), (9, 9), (3, 3), channels=(34, 17), low=1, fpmath_mode=mode)
    assert len(plan_of(problem).products) == {"tf32": 3, "bf16": 1, "f16": 3, "any": 1}[mode]
    check(problem, ISA, variant=variant_of(problem))


@pytest.mark.parametrize("rows", [4, 12])
@pytest.mark.parametrize("kind", KEPT)
def test_a_task_that_forms_all_of_a_sum_makes_weights_of_it(kind, rows):
    sizes, strides, out_dtype = KEPT[kind]
    problem = problem_of(W, (12, 13), (12, 13), (3, 3), low=1, batch=2, bias_gradient="y", **sizes, **strides)
    problem = replace(problem, dtype="bf16" if out_dtype == "bf16" else "f32", out_dtype=out_dtype)
    for chunks, batch in ((1, 1), (1, 2), (2, 1)):
        plan = replace(plan_of(problem), block=(batch, rows if batch == 1 else 12, 13), chunks=chunks)
        assert plan.own_sums == (chunks == 1)
        assert plan.straight == (plan.own_sums and out_dtype == "f32" and kind != "lanes that lie apart")
        check_plan(problem, plan, machine_for(ISA), low=True)
        shared = replace(plan, row_shares=min(2, plan.row_count // 32 or 1), lane_shares=min(2, plan.lane_blocks))
        check_plan(problem, shared, machine_for(ISA))


@pytest.mark.parametrize("layout", ["NCX", "NXC"])
@pytest.mark.parametrize("unknown", [X, Y])
@pytest.mark.parametrize("dtype", ["f32", "bf16"])
def test_tasks_may_pack_their_own_weights_and_watch_them(dtype, unknown, layout):
    check_own_weights(plan_of, dtype, unknown, layout)


@pytest.mark.parametrize("part", range(4))
def test_random_problems_on_tiles(part):
    found = 0
    for seed in range(1000 * part, 1000 * part + 30):
        problem = random_problem(np.random.default_rng(seed))
        for variant, plan in enumerate(variants(problem, machine_for(ISA))):
            if isinstance(plan, PLANS):
                check(problem, ISA, variant=variant, seed=seed, low=bool(seed % 2), alter=seed if seed % 3 else None)
                found += 1
    assert found > 5


# --- numbers that pieces cannot stand for


def log_uniform(rng, shape):
    return np.exp2(rng.uniform(-60, 60, shape)) * rng.choice([-1, 1], shape)


KINDS = {  # how the data are made, and whether vectors must compute them
    "normal": (lambda rng, s: rng.standard_normal(s), False),
    "uniform": (lambda rng, s: rng.uniform(-1, 1, s), False),
    "one sign": (lambda rng, s: rng.uniform(0, 1, s), False),
    "zeros among them": (lambda rng, s: rng.standard_normal(s) * (rng.random(s) < 0.5), False),
    "all zero": (lambda rng, s: np.zeros(s), False),
    "small": (lambda rng, s: rng.uniform(1, 2, s) * 2.0**-50, False),
    "very small": (lambda rng, s: rng.uniform(1, 2, s) * 2.0**-56, True),
    "denormal": (lambda rng, s: rng.uniform(1, 2, s) * 2.0**-130, True),
    "log-uniform": (log_uniform, True),
    "large": (lambda rng, s: rng.standard_normal(s) * 2.0**55, False),
}


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("problem", SMALL, ids=IDS)
def test_every_kind_of_data_is_within_the_bound(problem, kind):
    make, on_vectors = KINDS[kind]
    given = data(problem, np.random.default_rng(1), make)
    result, again = run(plan_of(problem), given)
    assert again == on_vectors
    wide = {n: None for n in "xwy"} | {n: v.astype(np.float64) for n, v in given.items()}
    exact = solve(problem, **wide)
    scale = solve(problem, **{n: v if v is None else np.abs(v) for n, v in wide.items()})
    terms = 8 if not again else problem.flops // (2 * result.size)  # of tiles: far below one rounding per product
    assert np.all(np.abs(result - exact) <= terms * 2.0**-24 * scale + 2.0**-149)


@pytest.mark.parametrize("side", [0, 1])
@pytest.mark.parametrize("value", [np.inf, -np.inf, np.nan, np.finfo(np.float32).max, 2.0**-149, 2.0**-110])
@pytest.mark.parametrize("problem", SMALL, ids=IDS)
def test_one_extreme_number_gives_the_bits_of_vectors(problem, value, side):
    check_one_number(plan_of(problem), side, value)


def test_what_is_added_to_an_output_is_computed_on_vectors_unless_the_verdict_comes_before_it():
    for problem in SMALL:
        plans = list(variants(replace(problem, accumulate=True), machine_for(ISA)))
        assert any(isinstance(plan, PLANS) for plan in plans) == (problem.unknown is W)


@pytest.mark.parametrize("dtype", ["f32", "bf16"])
@pytest.mark.parametrize("value", [1.0, 2.0**-130])
def test_weights_that_are_added_to_are_added_to_once(value, dtype):
    problem = replace(SMALL[1], accumulate=True, dtype=dtype, out_dtype="f32")
    given = {n: np.ones(s) for n, s in problem.shapes.items() if n != "w"}
    given["x"].flat[0] = value
    plan = plan_of(problem)
    result, again = run(plan, given, held=0.5)
    assert again == (value < 1)
    wanted, _ = run(plan.fallback, given, held=0.5)
    np.testing.assert_array_equal(result, wanted)
    exact = 0.5 + solve(problem, w=None, **given)
    np.testing.assert_allclose(result, exact, rtol=2.0**-24)  # ones, and one number that is lost beside them


@pytest.mark.parametrize("kind", BF16_KINDS)
@pytest.mark.parametrize("problem", SMALL, ids=IDS)
def test_bf16_of_every_kind_is_multiplied_as_f32(problem, kind):
    check_kind(plan_of(replace(problem, dtype="bf16", out_dtype="f32")), kind)


@pytest.mark.parametrize("side", [0, 1])
@pytest.mark.parametrize("value", [np.inf, -np.inf, np.nan, 2.0**-133, -(2.0**-127)])
@pytest.mark.parametrize("problem", SMALL, ids=IDS)
def test_one_bf16_that_the_unit_takes_differently_gives_the_bits_of_vectors(problem, value, side):
    problem = replace(problem, dtype="bf16", out_dtype="bf16")
    given = data(problem, np.random.default_rng(2), lambda rng, s: rng.standard_normal(s))
    name = sorted(given)[side]
    given[name].flat[given[name].size // 2] = value
    plan = plan_of(problem)
    result, again = run(plan, given)
    assert again
    wanted, _ = run(plan.fallback, given)
    np.testing.assert_array_equal(result.view(np.uint16), wanted.view(np.uint16))


@pytest.mark.parametrize("dtype", ["f32", "bf16"])
def test_a_bias_is_kept_however_small_it_is(dtype):
    problem = replace(SMALL[2], bias=True, bias_stride=1, dtype=dtype, out_dtype="f32")
    given = {n: np.zeros(s) for n, s in problem.shapes.items() if n != "y"}
    result, again = run(plan_of(problem), given, bias=2.0**-130)
    assert again
    np.testing.assert_array_equal(result, np.float32(2.0**-130))
    result, again = run(plan_of(problem), given, bias=2.0**-30)
    assert not again
    np.testing.assert_array_equal(result, np.float32(2.0**-30))


def test_f16_that_is_infinite_is_computed_on_vectors():
    problem = replace(SMALL[2], dtype="f16", out_dtype="f32")
    plan = plan_of(problem)
    machine, rng = machine_for(ISA), np.random.default_rng(3)
    results = []
    for one in (plan, plan.fallback):
        arrays = {n: StridedArray(s, problem.strides[n], np.float16) for n, s in problem.shapes.items() if n != "y"}
        arrays["y"] = StridedArray(problem.shapes["y"], problem.strides["y"], np.float32)
        rng = np.random.default_rng(3)
        for name in "xw":
            arrays[name].view[...] = rng.standard_normal(arrays[name].view.shape)
        arrays["x"].view[0, 0, 3, 2, 5] = np.inf
        run_here(lower(one), machine, [*(arrays[name] for name in "xwy"), None])
        results.append(arrays["y"].view.copy())
    np.testing.assert_array_equal(results[0], results[1])
    assert np.isinf(results[0]).any()
