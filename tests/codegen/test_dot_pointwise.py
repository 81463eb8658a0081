"""Planes times weights by dot products, as both planes lie in memory: random problems, exactly; and watched."""

from dataclasses import replace

import numpy as np
import pytest

from codegen.dense_problems import problem_of
from codegen.dot_cases import EMULATED, HERE, REAL, check_watched, needs_dots
from codegen.matrix_checks import BF16_KINDS, check_kind, data, run
from codegen.random_problems import check_plan
from codegen.test_flat_data import altered
from convgrad.codegen.by_dots import dot_pointwise
from convgrad.codegen.by_dots.dot_pointwise import DotPointwiseSweep, SumsWatch
from convgrad.plan.by_dots.choose_dot_pointwise import dot_pointwise_candidates
from convgrad.plan.by_dots.dot_pointwise import DotPointwisePlan
from convgrad.plan.by_dots.dots import DotDataPlan
from convgrad.plan.choose import choose, variants
from convgrad.plan.machine import machine_for
from convgrad.problem.conv import Unknown
from convgrad.problem.simplify import simplify

X, Y = Unknown.X, Unknown.Y
pytestmark = needs_dots
both = pytest.mark.parametrize("unknown", [X, Y])


def one_tap(unknown, channels, extent=(5, 8), **more):
    """Dense, channels first."""
    more = {"dtype": "bf16", "out_dtype": "bf16", "groups": 1, "batch": 1} | more
    return simplify(problem_of(unknown, extent, extent, (1,) * len(extent), channels=channels, **more))


def plan_of(problem, isa=EMULATED):
    """The plan, whether it is the fastest or not; None where it cannot be."""
    machine = machine_for(isa)
    for plan in variants(problem, machine):
        if isinstance(plan, DotPointwisePlan):
            return plan
        if type(plan) is DotDataPlan:
            found = next((found for _, found in dot_pointwise_candidates(plan, float("inf"), machine)), None)
            return found and replace(found, fallback=plan.fallback)
    return None


@both
def test_whole_numbers_are_exact(unknown):
    """As planned, and in other tiles and blocks, next to either guard page: odd channels, groups, a bias, f32."""
    met, isa = [], HERE[-1]
    for seed in range(40):
        rng = np.random.default_rng(seed)
        extent = {1: (int(rng.integers(32, 200)),), 2: (5, int(rng.integers(7, 40)))}[int(rng.integers(1, 3))]
        problem = one_tap(
            unknown, tuple(int(n) for n in rng.integers(2, 40, 2)), extent, groups=int(rng.integers(1, 3)),
            batch=int(rng.integers(1, 4)), bias=bool(rng.integers(2)), out_dtype=str(rng.choice(["bf16", "f32"])),
        )  # fmt: skip
        plan = plan_of(problem, isa)
        if seed % 3:
            plan = altered(plan, rng)
            plan = replace(plan, vectors=2 * min(-(-plan.vectors // 2), plan.positions // 32), width=min(plan.width, 9))
            plan = replace(plan, blocks_per_task=min(plan.blocks_per_task, plan.lane_blocks))
        plan.validate()
        check_plan(problem, plan, machine_for(isa), seed, low=bool(seed % 2))
        met.append(plan)
    assert {plan.odd for plan in met} == {plan.packs_weights for plan in met} == {False, True}


def test_bits_are_those_of_the_instruction():
    """Sums are rounded, so that any other order of pairs shows."""
    if REAL not in HERE:
        pytest.skip("the processor has no such instruction")
    for problem in (one_tap(X, (9, 33), out_dtype="f32"), one_tap(Y, (34, 7)), one_tap(Y, (33, 7))):
        given = data(problem, np.random.default_rng(3), lambda rng, s: rng.standard_normal(s))
        plan = plan_of(problem)
        (emulated, _), (real, _) = run(plan, given), run(replace(plan, isa=REAL), given)
        np.testing.assert_array_equal(emulated, real)


@pytest.mark.parametrize("kind", BF16_KINDS)
def test_every_kind_of_data_is_multiplied_as_f32(kind):
    check_kind(plan_of(one_tap(Y, (5, 3), out_dtype="f32")), kind)


@both
def test_every_number_is_watched(unknown):
    """In the first block of output channels, be it the only one; with a partner or without."""
    for channels, width in (((4, 5), 2), ((3, 3), 3)):
        plan = plan_of(one_tap(unknown, channels, batch=2))
        plan = replace(plan, width=width, blocks_per_task=1, vectors=2, tile=(1, 32), block=(1, 32))
        assert not run(plan, {n: np.ones(shape) for n, shape in plan.numbers.shapes.items() if n != unknown.value})[1]
        check_watched(plan)


def test_denormals_are_watched():
    """As if they were multiplied: in all places, in either operand."""
    problem = one_tap(Y, (3, 4), (1, 40), out_dtype="f32")
    plan = plan_of(problem)
    ones = {name: np.ones(problem.shapes[name]) for name in "xw"}
    assert not run(plan, ones)[1]
    for name, place in (("x", 0), ("x", 39), ("x", 45), ("x", 119), ("w", 0), ("w", 11)):
        given = {n: values.copy() for n, values in ones.items()}
        given[name].flat[place] = 2.0**-130
        assert run(plan, given)[1], f"{place} of {name} was not seen"


def test_the_bias_is_watched():
    problem = one_tap(Y, (4, 3), bias=True, out_dtype="f32")
    given = data(problem, np.random.default_rng(3), lambda rng, s: rng.integers(1, 3, s))
    assert [run(plan_of(problem), given, bias=[1, 1, last])[1] for last in (1, 2.0**-130)] == [False, True]


def test_chosen_where_planes_have_no_gaps():
    """Not with gaps, of other numbers, where sums add to what is there, nor where lines from memory are met twice."""

    def chosen(problem, isa=EMULATED):
        return isinstance(choose(problem, machine_for(isa)), DotPointwisePlan)

    layer = one_tap(Y, (256, 64), (56, 56))
    assert chosen(layer)
    assert chosen(replace(layer, unknown=X))
    assert not chosen(layer, "avx512")
    assert not chosen(replace(layer, accumulate=True))
    assert not chosen(replace(layer, dtype="f16", out_dtype="f16"))
    assert chosen(one_tap(Y, (256, 64), (56, 56), batch=16))
    assert not chosen(one_tap(Y, (256, 64), (55, 55), batch=16))
    assert chosen(one_tap(Y, (512, 128), (120, 120)))
    assert not chosen(one_tap(Y, (512, 128), (128, 128))), "512 planes, of which L2 has room for 32 lines side by side"
    assert not chosen(one_tap(Y, (128, 128), (64, 64))), (
        "128 planes, of which there is room for 128 without anything else"
    )
    assert chosen(one_tap(Y, (144, 24), (128, 128))), "which two blocks of output channels meet"
    assert not chosen(one_tap(Y, (384, 832), (7, 7), batch=96)), "tiles of 64 outputs for 49"
    assert chosen(one_tap(Y, (64, 256), (7, 7), batch=32)), "few channels, of which packing is most of the work"
    gaps = problem_of(Y, (56, 56), (56, 56), (1, 1), channels=(256, 64), dtype="bf16", out_dtype="bf16")
    assert not chosen(replace(gaps, x_strides=(*gaps.x_strides[:3], 57, 1)))


def _without_last(sweep, tile, weights, x):
    return sweep._start(tile)


BROKEN = {
    "the last channel is left out": (DotPointwiseSweep, "_begin", _without_last),
    "results stay as they were unpacked": (dot_pointwise, "UNIT", 2),
    "words are of one channel": (dot_pointwise, "paired", lambda b, one, _: _paired(b, one, one)),
}
_paired = dot_pointwise.paired


@pytest.mark.parametrize("defect", BROKEN)
def test_kernels_that_are_broken_are_found_out(defect, monkeypatch):
    problem = one_tap(Y, (5, 7))
    plan = plan_of(problem)
    check_plan(problem, plan, machine_for(EMULATED))
    monkeypatch.setattr(*BROKEN[defect])
    with pytest.raises(AssertionError):
        check_plan(problem, plan, machine_for(EMULATED))


@pytest.mark.parametrize("blind", ["note_bf16", "note_sum"])
def test_a_watch_that_is_blind_is_found_out(blind, monkeypatch):
    monkeypatch.setattr(SumsWatch, blind, lambda *_: None)
    with pytest.raises(AssertionError):
        (test_denormals_are_watched if blind == "note_bf16" else lambda: test_every_number_is_watched(Y))()
