"""X and Y by dot products with vectors along outputs: random problems, exactly; and watched."""

from dataclasses import replace

import numpy as np
import pytest

from codegen.dot_cases import EMULATED, HERE, REAL, check_watched
from codegen.matrix_checks import BF16_KINDS, check_kind, data, run
from codegen.random_problems import altered, check_plan, random_problem
from codegen.test_group_weights import AXES
from codegen.test_turned_data import problem_of
from convgrad.codegen.by_dots.paired_outputs import PairedOutputsStages
from convgrad.codegen.copies.paired_copies import PairedCopy
from convgrad.codegen.lower import lower
from convgrad.plan.by_dots.paired_outputs import PairedFoldedPlan, PairedOutputsPlan
from convgrad.plan.choose import choose, variants
from convgrad.plan.machine import machine_for, why_not
from convgrad.problem.conv import Unknown
from convgrad.runtime import jit

X, Y = Unknown.X, Unknown.Y
KINDS = PairedOutputsPlan, PairedFoldedPlan
pytestmark = pytest.mark.skipif(not HERE, reason=f"dot products cannot be emulated here: {why_not(EMULATED)}")


def plans_of(problem, isa=EMULATED):
    """Of either kind, as far as there are such."""
    return [plan for plan in variants(problem, machine_for(isa)) if isinstance(plan, KINDS)]


def small(unknown, given, solved, *, first=True, name="stride 2", **fields):
    """A problem that solves for a few channels."""
    c, k = (solved, given) if unknown is X else (given, solved)
    fields = {"dtype": "bf16", "out_dtype": "bf16"} | fields
    axes = AXES[name]
    problem = problem_of(axes, unknown, 1, c, first=first, **fields)
    return with_channels(problem, c, k, first)


def with_channels(problem, c, k, first):
    """The same, dense, with as many channels of x and of y."""
    problem = replace(problem, x_channels=c, y_channels=k)
    rank = problem.rank

    def dense(shape, order):
        steps, step = [0] * len(shape), 1
        for n in reversed(order):
            steps[n], step = step, step * shape[n]
        return tuple(steps)

    order = (0, 1, 2, *range(3, 3 + rank)) if first else (0, *range(3, 3 + rank), 1, 2)
    strides = {f"{name}_strides": dense(problem.shapes[name], order) for name in "xy"}
    return replace(problem, w_strides=dense(problem.shapes["w"], (0, 1, 2, *range(3, 3 + rank))), **strides)


def test_random_problems_exactly():
    """As planned, and in other blocks: strides of any kind, groups, borders, odd channels."""
    met, isa = [], HERE[-1]
    for seed in range(70):
        rng = np.random.default_rng(seed)
        problem = replace(random_problem(rng), accumulate=False, dtype="bf16")
        out_dtype = str(rng.choice(["bf16", "f32"]))
        problem = replace(problem, out_dtype=out_dtype)
        if problem.unknown is Unknown.W:
            problem = replace(problem, unknown=X, bias_gradient="", bias_stride=1, groups=1)
            problem = with_channels(problem, int(rng.integers(1, 5)), int(rng.integers(2, 20)), bool(rng.integers(2)))
        for plan in plans_of(problem, isa):
            plan = altered(plan, rng) if seed % 2 else plan
            try:
                check_plan(problem, plan, machine_for(isa), seed, low=bool(seed % 3))
            except AssertionError as error:
                raise AssertionError(f"seed {seed}: {problem}\n{plan}\n{error}") from None
            met.append(plan)
    assert len(met) > 30
    assert {type(plan) for plan in met} == set(KINDS)
    assert any(plan.odd for plan in met)
    assert any(plan.planes > 1 for plan in met)


@pytest.mark.parametrize("first", [True, False])
@pytest.mark.parametrize("given", [2, 3, 4, 7, 8, 33, 40])
def test_channels_of_the_input(given, first):
    """Side by side and apart, alone and in runs, those that have no partner among them, each share of its own."""
    for unknown, name in ((X, "stride 2"), (Y, "as large"), (Y, "a row")):
        problem = small(unknown, given, 3, first=first, name=name, bias=given % 4 == 3)
        for plan in plans_of(problem, HERE[-1]):
            check_plan(problem, plan, machine_for(plan.isa), given)
            if plan.in_channels > plan.channel_unit:
                shares = replace(plan, i_block=plan.channel_unit, writes_in_place=False)
                check_plan(problem, shares, machine_for(plan.isa), given)


def test_what_it_is_for():
    """Few channels of bf16, of more than one; not where sums add to what is there."""
    for given, solved, found in ((1, 3, False), (2, 3, True), (64, 1, True), (64, 15, True), (64, 16, False)):
        assert bool(plans_of(small(Y, given, solved))) == found
    assert not plans_of(small(Y, 64, 3, dtype="f32", out_dtype="f32"))
    assert not plans_of(small(Y, 64, 3, accumulate=True))
    large = problem_of(((56, 56), (28, 28), (3, 3), (2, 2), (1, 1), (1, 1)), X, 1, 3, dtype="bf16", out_dtype="bf16")
    for first in (True, False):
        assert isinstance(choose(with_channels(large, 3, 64, first), machine_for(EMULATED)), KINDS)


@pytest.mark.skipif(REAL not in HERE, reason="the processor has no such instruction")
def test_the_instruction_is_used():
    for plan in (*plans_of(small(X, 64, 3), REAL), *plans_of(small(Y, 64, 3, name="a row"), REAL)):
        assembly = jit.assembly(lower(plan).ir, machine_for(REAL))
        assert "vdpbf16ps" in assembly
        assert ("vcvtne" in assembly) == plan.writes_in_place


@pytest.mark.skipif(REAL not in HERE, reason="the processor has no such instruction")
def test_bits_are_those_of_the_instruction():
    """Sums are rounded, so that any other order shows; and results, in tiles and as they are copied."""
    for problem in (small(X, 33, 3, out_dtype="f32"), small(Y, 33, 3, name="a row"), small(Y, 33, 3)):
        given = data(problem, np.random.default_rng(3), lambda rng, s: rng.standard_normal(s))
        for plan in plans_of(problem):
            (emulated, _), (real, _) = run(plan, given), run(replace(plan, isa=REAL), given)
            np.testing.assert_array_equal(emulated, real)


# --- numbers that dot products take differently


@pytest.mark.parametrize("kind", BF16_KINDS)
@pytest.mark.parametrize("unknown", [X, Y])
def test_every_kind_of_data_is_multiplied_as_f32(unknown, kind):
    for plan in plans_of(small(unknown, 5, 3, out_dtype="f32")):
        check_kind(plan, kind)


@pytest.mark.parametrize("first", [True, False])
def test_every_number_is_watched(first):
    for unknown in (X, Y):
        for plan in plans_of(small(unknown, 3, 2, first=first, name="a tap", out_dtype="f32")):
            check_watched(plan)


def test_the_bias_is_watched():
    problem = small(Y, 4, 3, bias=True, out_dtype="f32")
    given = data(problem, np.random.default_rng(3), lambda rng, s: rng.integers(1, 3, s))
    for plan in plans_of(problem):
        assert [run(plan, given, bias=[1, 1, last])[1] for last in (1, 2.0**-130)] == [False, True]


# --- kernels that are broken


BROKEN = {
    "partners are left out": (PairedCopy, "_together", lambda copy, b, load: b.cast("zext", load(0), "<16 x i32>")),
    "the last channel meets itself": (PairedCopy, "with_partner", lambda copy, _: replace(copy, partner=0)),
    "nothing is around an image": (PairedOutputsStages, "clear_slab", lambda *_: None),
}


@pytest.mark.parametrize("defect", BROKEN)
def test_kernels_that_are_broken_are_found_out(defect, monkeypatch):
    problem = small(Y, 5, 7)
    (plan,) = plans_of(problem)
    check_plan(problem, plan, machine_for(EMULATED))
    monkeypatch.setattr(*BROKEN[defect])
    with pytest.raises(AssertionError):
        check_plan(problem, plan, machine_for(EMULATED))
