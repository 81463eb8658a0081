"""Numbers that are not finite reach the results that the definition says, whatever kernels multiply beside that."""

from dataclasses import replace

import numpy as np
import pytest

from codegen.dense_problems import W, X, Y, problem_of
from codegen.emitted import HOST_ISAS, each_isa, outer_isas
from codegen.guard_cases import Case
from codegen.random_problems import random_problem
from convgrad.codegen.lower import lower
from convgrad.codegen.watch import guard as emitting
from convgrad.plan.choose import choose, variants
from convgrad.plan.guard import guard_of
from convgrad.plan.machine import machine_for

SPECIAL = (np.inf, -np.inf, np.nan)
BEST = HOST_ISAS[-1]


# --- every kind of plan

KINDS = {
    "dense": {"channels": (17, 20)},
    "few of x": {"channels": (3, 17)},
    "few of y": {"channels": (17, 3)},
    "few": {"channels": (2, 3)},
    "one": {"channels": (1, 1)},
    "depthwise": {"channels": (1, 1), "groups": 18},
    "groups": {"channels": (4, 4), "groups": 5},
    "a multiplier": {"channels": (1, 2), "groups": 9},
}
SHAPES = {
    "same": ((5, 18), (5, 18), (3, 3), 1, 1),
    "strided": ((9, 17), (5, 9), (3, 3), 2, 1),
    "no pads": ((6, 19), (4, 17), (3, 3), 1, 0),
    "row": ((1, 20), (1, 20), (1, 5), 1, (0, 2)),
    "tiny": ((2, 2), (2, 2), (3, 3), 1, 1),
}


def problems(unknown, layout):
    return {
        (kind, shape): problem_of(unknown, *extents, stride=stride, low=low, layout=layout, batch=2, **channels)
        for kind, channels in KINDS.items()
        for shape, (*extents, stride, low) in SHAPES.items()
    }


@outer_isas
@pytest.mark.parametrize("layout", ["NCX", "NXC"])
@pytest.mark.parametrize("unknown", [X, W, Y])
def test_one_number_reaches_the_results_it_is_part_of(unknown, layout, isa):
    """In any operand, for the plan of problems of every kind, and for every other plan of some of each kind."""
    machine, rng, again = machine_for(isa), np.random.default_rng(5), 0
    every = problems(unknown, layout)
    for number, problem in list(enumerate(every.values()))[:: 1 if isa == BEST else 3]:
        kind, shape = divmod(number, len(SHAPES))
        turn = (kind + shape + (layout == "NXC")) % 3
        if isa == BEST and turn == 2:  # all of its plans are tried in the other layout
            continue
        whole = isa != BEST or turn == 0
        for plan in variants(problem, machine) if whole else [choose(problem, machine)]:
            case = Case(problem, plan, machine)
            case.fill(rng)
            assert not case.check(), "finite numbers need no other kernel"
            for view in case.given.values():
                for _ in range(2):
                    case.fill(rng)
                    view[tuple(rng.integers(0, view.shape))] = rng.choice(SPECIAL)
                    again += case.check()
    assert again > 30


@pytest.mark.parametrize("layout", ["NCX", "NXC"])
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("unknown", [X, W, Y])
def test_wherever_it_is(unknown, kind, layout):
    """All places of an operand, one after the other, or, of many, in steps that meet each channel and each tap."""
    machine = machine_for(BEST)
    problem = problems(unknown, layout)[kind, "tiny"]
    case = Case(problem, choose(problem, machine), machine)
    for view in case.given.values():
        case.fill(np.random.default_rng(1))
        for place in range(0, view.size, 1 if view.size < 500 else 7):
            was = view.flat[place]
            view.flat[place] = np.inf
            case.check()
            view.flat[place] = was


@each_isa
@pytest.mark.parametrize("seed", range(6))
def test_random_problems_of_all_types_and_strides(isa, seed):
    """Each on every other instruction set."""
    machine, rng = machine_for(isa), np.random.default_rng([seed, 77])
    for number in range(12):
        problem = random_problem(rng)
        if (number + HOST_ISAS.index(isa)) % 2:
            continue
        plans = list(variants(problem, machine))
        case = Case(problem, plans[rng.integers(len(plans))], machine)
        for special in (0, 1, 1, 4):
            case.fill(rng)
            for view in case.given.values():
                for _ in range(special):
                    view[tuple(rng.integers(0, view.shape))] = rng.choice(SPECIAL)
            case.check()


@pytest.mark.parametrize("accumulate", [False, True])
@pytest.mark.parametrize("unknown", [X, W, Y])
def test_the_largest_and_the_least_numbers_are_finite(unknown, accumulate):
    machine = machine_for(BEST)
    for dtype in ("f32", "f64", "bf16", "f16"):
        problem = problem_of(
            unknown, (4, 18), (4, 18), (3, 3), channels=(3, 5), low=1, dtype=dtype, out_dtype=dtype,
            accumulate=accumulate,
        )  # fmt: skip
        case = Case(problem, choose(problem, machine), machine)
        for one, other in ((3.3e38 if dtype in ("f32", "bf16") else 65504, 0), (0, 1e-40), (-0.0, -0.0)):
            first, second = case.given.values()
            first[...], second[...] = one, other
            assert not case.check()


@each_isa
def test_windows_that_see_no_image_at_all(isa):
    """Every product is one with padding."""
    machine = machine_for(isa)
    for channels, groups, layout in [((4, 5), 1, "NCX"), ((1, 4), 4, "NXC"), ((1, 1), 3, "NCX"), ((3, 17), 1, "NXC")]:
        for unknown in (W, Y):
            problem = problem_of(
                unknown, (0, 4), (2, 5), (2, 3), channels=channels, groups=groups, layout=layout, low=(2, 1), batch=2
            )
            for plan in variants(problem, machine):
                case = Case(problem, plan, machine)
                for view in case.given.values():
                    view[...] = np.inf
                case.check()


# --- what is looked at

SAME = ((9, 9), (9, 9), (3, 3))


def guard(problem):
    return guard_of(choose(problem, machine_for(BEST)))


@pytest.mark.parametrize("unknown", [X, W, Y])
def test_nothing_where_every_product_is_one_of_the_definition(unknown):
    assert guard(problem_of(unknown, (9, 9), (9, 9), (1, 1), channels=(20, 20))) is None
    assert unknown is X or guard(problem_of(unknown, (9, 9), (7, 7), (3, 3), channels=(20, 20))) is None


@pytest.mark.parametrize("unknown", [X, Y])
def test_the_smaller_one_of_weights_and_results(unknown):
    small = guard(problem_of(unknown, (40, 40), (40, 40), (3, 3), channels=(8, 8), low=1))
    assert [box.tensor for box in small.before] == ["w"]
    assert not small.after
    large = guard(problem_of(unknown, *SAME, channels=(64, 64), low=1, batch=5))
    assert not large.before
    assert [box.tensor for box in (*large.after, *large.if_also)] == [unknown.value, "w"]
    assert large.after[0].size == 2 * 64 * 81  # of the first image and the last
    added_to = guard(problem_of(unknown, *SAME, channels=(64, 64), low=1, accumulate=True))
    assert [box.tensor for box in added_to.before] == ["w"]


def test_weights_that_are_added_to_are_copied_or_what_makes_them_is_looked_at_before():
    few = guard(problem_of(W, (40, 40), (40, 40), (3, 3), channels=(8, 8), low=1, accumulate=True))
    assert few.keeps_weights
    assert not few.before
    many = problem_of(W, (3, 3), (3, 3), (3, 3), channels=(64, 64), low=1, accumulate=True)
    assert not guard(many).keeps_weights
    assert {box.tensor for box in guard(many).before} == {"x", "y"}
    assert guard(replace(many, bias_gradient="y")).keeps_weights  # sums that are added to, too


def test_a_copy_of_weights_has_room_in_shared_memory():
    problem = problem_of(W, (40, 40), (40, 40), (3, 3), channels=(8, 8), low=1, accumulate=True)
    module, plain = (lower(choose(p, machine_for(BEST))) for p in (problem, replace(problem, accumulate=False)))
    assert module.all_shared_bytes - plain.all_shared_bytes == 4 * 8 * 8 * 9
    assert module.fallback.at_once
    assert not plain.fallback.at_once


@pytest.mark.parametrize("unknown", [X, W, Y])
@pytest.mark.parametrize("accumulate", [False, True])
def test_a_verdict_that_overlooks_something_is_found(unknown, accumulate, monkeypatch):
    """The tests above can fail."""
    problem = problem_of(unknown, *SAME, channels=(5, 7), low=1, accumulate=accumulate)
    monkeypatch.setattr(emitting, "guard_of", lambda plan: None)
    messages = [message_of(problem, plan) for plan in variants(problem, machine_for(BEST))]
    assert any("nan location mismatch" in message for message in messages)  # some multiply nothing around an image


def message_of(problem, plan):
    """What the check of a call says whose corner is infinite; nothing if it is content."""
    case = Case(problem, plan, machine_for(BEST))
    for view in case.given.values():
        view[...] = 1
    case.given["y" if problem.unknown is W else "w"][..., 0, 0] = np.inf
    try:
        case.check()
    except AssertionError as error:
        return str(error)
    return ""
