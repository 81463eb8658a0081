"""Weights in pieces whose taps lie between channels, and what is asked for before it is split or paired."""

from dataclasses import replace

import numpy as np
import pytest

from codegen.dense_problems import X, Y, problem_of
from codegen.emitted import compile_function
from codegen.matrix_checks import ISA, needs_tiles, plan_of, run
from codegen.random_problems import check_plan, solve
from convgrad.codegen.copies.asking import TapsAhead
from convgrad.codegen.ir_module import index
from convgrad.codegen.lower import lower
from convgrad.dtypes import numpy_dtype
from convgrad.plan.machine import machine_for

RUNS = {  # a run for every lane, and for every channel
    "of channels": problem_of(Y, (5, 6), (5, 6), (3, 3), channels=(72, 53), low=1, batch=72),
    "of lanes": problem_of(X, (5, 6), (5, 6), (3, 3), channels=(53, 72), low=1, batch=72),
    "of whole tiles": problem_of(Y, (5, 6), (5, 6), (2, 3), channels=(64, 64), low=1, batch=64),
    "of one tile of few lanes": problem_of(Y, (9,), (9,), (5,), channels=(40, 12), low=2, batch=40),
    "of fewer channels than a tile": problem_of(X, (9,), (9,), (4,), channels=(35, 20), low=2, batch=20),
    "of three axes": problem_of(Y, (4, 4, 4), (4, 4, 4), (2, 2, 2), channels=(33, 34), batch=33),
    "of phases": problem_of(X, (8, 8), (4, 4), (4, 4), channels=(40, 48), stride=2, low=1, batch=48),
}


def impulses(problem, rng, dtype):
    """An image for every channel, with a one in its middle, so that every result is a weight or nothing."""
    given = "x" if problem.unknown is Y else "y"
    ones = np.zeros(problem.shapes[given])
    middle = tuple(extent // 2 for extent in problem.shapes[given][3:])
    for channel in range(problem.shapes[given][2]):
        ones[(channel, 0, channel, *middle)] = 1
    return {given: ones, "w": rng.standard_normal(problem.shapes["w"]).astype(dtype)}


@needs_tiles
@pytest.mark.parametrize("dtype", ["f32", "f16"])
@pytest.mark.parametrize("own", [False, True], ids=["shared", "own"])
@pytest.mark.parametrize("problem", RUNS.values(), ids=RUNS)
def test_all_pieces_of_all_weights_are_in_place(problem, own, dtype):
    problem = replace(problem, dtype=dtype, out_dtype="f32")
    plan = plan_of(problem)
    assert plan.splits_runs
    if own:
        more = {"i_block": plan.channel_unit, "blocks_per_task": 1, "writes_in_place": False}
        plan = replace(plan, packs_weights=True, **more)
    check_plan(problem, plan, machine_for(ISA))
    given = impulses(problem, np.random.default_rng(7), numpy_dtype(dtype))
    result, again = run(plan, given)
    assert not again
    exact = solve(problem, **({"x": None, "w": None, "y": None} | given))
    np.testing.assert_array_equal(result.astype(np.float64), exact)


@needs_tiles
@pytest.mark.parametrize("problem", RUNS.values(), ids=RUNS)
def test_no_weight_that_pieces_cannot_stand_for_is_overlooked(problem):
    plan, rng = plan_of(problem), np.random.default_rng(3)
    given = impulses(problem, rng, np.float32)
    for place in (0, given["w"].size // 2, given["w"].size - 1):
        extreme = given | {"w": given["w"].copy()}
        extreme["w"].flat[place] = np.inf
        assert run(plan, extreme)[1]


@needs_tiles
@pytest.mark.parametrize("weights", [{"weights": "NXC"}, {"stride": 3}], ids=["rows", "1x1"])
def test_weights_that_are_no_such_runs_go_other_ways(weights):
    taps = (1, 1) if "stride" in weights else (3, 3)
    problem = problem_of(Y, (9, 9), (9, 9) if taps[0] > 1 else (3, 3), taps, channels=(40, 40), **weights)
    assert not plan_of(problem).splits_runs


# --- asking


def asked_for(problem, dtype="f32"):
    """How often the code of a plan on tiles asks for lines of L2."""
    plan = plan_of(replace(problem, dtype=dtype, out_dtype=dtype))
    return sum("@llvm.prefetch" in line and "i32 2, i32 1" in line for line in lower(plan).ir.splitlines())


@needs_tiles
@pytest.mark.parametrize(
    ("unknown", "layout", "dtype", "wanted"),
    [
        (Y, "NXC", "f32", True),
        (X, "NXC", "f32", True),
        (Y, "NCX", "f32", True),
        (X, "NCX", "f32", True),
        (X, "NXC", "bf16", True),
        (Y, "NXC", "bf16", False),  # rows, of which processors find out
    ],
)
def test_weights_beyond_l2_are_asked_for(unknown, layout, dtype, wanted):
    near, far = (problem_of(unknown, (6, 6), (6, 6), (3, 3), channels=(n, n), low=1, layout=layout) for n in (64, 512))
    # runs are asked for wherever they come from
    before = asked_for(near, dtype)
    assert (before > 0) == (layout == "NCX" and dtype == "f32")
    assert (asked_for(far, dtype) > 0) == wanted


@needs_tiles
@pytest.mark.parametrize("layout", ["NCX", "NXC"])
def test_an_image_beyond_l2_is_asked_for(layout):
    near, far = (problem_of(Y, (n, n), (n, n), (1, 1), channels=(64, 64), layout=layout) for n in (16, 80))
    assert asked_for(near) == 0
    assert asked_for(far) > 0


@pytest.mark.parametrize(
    ("taps", "blocks", "ahead"),
    [(9, 1, 2), (9, 1, 9), (9, 4, 2), (9, 4, 4), (4, 3, 6), (1, 16, 4), (1, 4, 4), (2, 1, 3)],
)
def test_what_is_asked_for_is_what_is_read_later(taps, blocks, ahead):
    step, block, panel = 1000, 32 if blocks > 1 else 77, 100000
    places = [p * panel + n * block + t * step for p in range(2) for n in range(blocks) for t in range(taps)]
    far = TapsAhead(taps=taps, step=step, blocks=blocks, block=block, panel=panel, ahead=ahead)

    def body(b, results):
        b.loop(0, taps, lambda t, _: b.store(index(far.further(b, t)), b.at(results, t, "i64"), 8))

    call = compile_function("portable", ["ptr"], body)
    bytes_further = np.zeros(taps, np.int64)
    call(bytes_further.ctypes.data)
    last_block = blocks - 1 - ahead // taps - (ahead % taps > 0)
    within = ahead >= taps * blocks or blocks == 1
    for n in range(blocks if within else max(0, last_block + 1)):
        for t in range(taps):
            here = n * taps + t
            later = here + (taps * blocks if ahead >= taps * blocks else ahead)
            assert places[here] + bytes_further[t] == places[later]
