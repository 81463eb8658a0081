"""Plans that find the products of every result one by one: exact for any problem and any index along vectors."""

from dataclasses import replace

import numpy as np
import pytest

from codegen.dense_problems import W, X, Y, problem_of
from codegen.emitted import HOST_ISAS, each_isa
from codegen.random_problems import check_plan, random_problem, rebuilding
from convgrad.codegen.isa import ISAS
from convgrad.codegen.watch import inside_data, inside_weights
from convgrad.dtypes import COMPUTE
from convgrad.plan.inside import RESULTS, SUMMED, inside_plan
from convgrad.plan.machine import machine_for
from convgrad.problem.simplify import simplify

EACH = 8  # problems of a seed and an index


def plan_of(problem, isa, tasks=3):
    return inside_plan(problem, isa, ISAS[isa].lanes(COMPUTE[problem.dtype]), tasks)


@each_isa
@pytest.mark.parametrize(("unknown", "along"), [(u, index) for u in (X, W, Y) for index in RESULTS[u] + SUMMED[u]])
def test_random_problems_are_solved_exactly_with_vectors_along_any_index(unknown, along, isa):
    rng, found = np.random.default_rng([ord(along), HOST_ISAS.index(isa)]), 0
    while found < EACH:
        problem = replace(random_problem(rng), bias_gradient="")
        if problem.unknown is not unknown:
            continue
        problem = simplify(problem) if found % 2 else problem
        plan = replace(plan_of(problem, isa, int(rng.integers(1, 9))), along=along)
        try:
            check_plan(problem, plan, machine_for(isa), seed=found)
        except AssertionError as error:
            raise AssertionError(f"{rebuilding(problem)}\n{plan}\n{error}") from None
        found += 1


WIDE = problem_of(Y, (2, 40), (2, 40), (3, 3), channels=(5, 7), low=1, batch=2)


@pytest.mark.parametrize(
    ("problem", "along"),
    [
        (WIDE, "p"),
        (replace(problem_of(Y, (2, 40), (2, 40), (3, 3), channels=(32, 32), low=1, layout="NXC")), "k"),
        (problem_of(W, (9, 40), (9, 40), (3, 3), channels=(5, 7), low=1), "p"),
        (problem_of(W, (9, 40), (9, 40), (3, 3), channels=(32, 3), low=1, layout="NXC"), "c"),
        (problem_of(X, (80,), (40,), (3,), channels=(32, 32), stride=2, low=1), "q"),
        (problem_of(X, (9, 9), (9, 9), (3, 3), channels=(1, 1), groups=32, low=1, layout="NXC"), "g"),
    ],
    ids=["rows", "channels", "windows", "channels of weights", "phases", "groups"],
)
def test_vectors_run_along_what_lies_side_by_side(problem, along):
    assert plan_of(problem, HOST_ISAS[-1]).along == along


def test_there_are_no_more_tasks_than_results():
    assert plan_of(problem_of(Y, (3,), (3,), (1,), channels=(1, 1)), HOST_ISAS[-1], tasks=64).tasks == 1


@pytest.mark.parametrize("unknown", [X, W, Y])
def test_a_product_too_many_is_found(unknown, monkeypatch):
    """The tests above can fail."""
    owner = inside_weights._InsideWeights if unknown is W else inside_data._Spot
    name = "_met" if unknown is W else "met"
    plain = getattr(owner, name)

    def one_less(self, *given):
        low, high, *others = plain(self, *given)
        b = self.b if unknown is W else given[0]
        return (low, b.sub(high, 1), *others)

    problem = problem_of(unknown, (9, 40), (9, 40), (3, 3), channels=(3, 4), low=1)
    check_plan(problem, plan_of(problem, HOST_ISAS[-1]), machine_for(HOST_ISAS[-1]))
    monkeypatch.setattr(owner, name, one_less)
    with pytest.raises(AssertionError):
        check_plan(problem, plan_of(problem, HOST_ISAS[-1]), machine_for(HOST_ISAS[-1]))
