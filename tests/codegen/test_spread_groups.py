"""W of vectors of y across groups: numbers of x are spread over the lanes of their group, by vectors where they can."""

import pytest

from codegen.dense_problems import W, problem_of
from codegen.emitted import HOST_ISAS
from codegen.random_problems import check_plan
from convgrad.codegen.copies import window_slabs
from convgrad.codegen.isa import ISAS
from convgrad.codegen.lower import lower
from convgrad.plan.choose import variants
from convgrad.plan.general.weights import WeightsPlan
from convgrad.plan.machine import machine_for

WHOLE = {  # groups, channels of x and y
    "two groups in a vector": (8, 2, 4),
    "four groups in a vector": (16, 1, 2),
    "one for each lane, taken apart": (16, 3, 1),
    "several parts": (8, 7, 2),
    "read early": (8, 3, 4),
    "as many as there are": (4, 5, 4),
}
WITHOUT_MASKS = [isa for isa in HOST_ISAS if not ISAS[isa].masks]
LEFT = {"a vector not full": (9, 2, 4), "groups not whole": (8, 2, 3)}


def across_groups(groups, c, k, isa, **fields):
    """The problem, and its plan of that kind."""
    problem = problem_of(
        W, (7, 11), (4, 6), (3, 3), channels=(c, k), groups=groups, layout="NXC", batch=2, stride=2, low=1, **fields
    )
    plans = variants(problem, machine_for(isa))
    return problem, next((plan for plan in plans if type(plan) is WeightsPlan and plan.spread), None)


@pytest.fixture
def spread(monkeypatch):
    """How often numbers were spread by vectors."""
    calls, plain = [], window_slabs.spread_groups

    def noted(*args, **keywords):
        calls.append(keywords["groups"])
        plain(*args, **keywords)

    monkeypatch.setattr(window_slabs, "spread_groups", noted)
    return calls


@pytest.mark.parametrize("isa", HOST_ISAS)
@pytest.mark.parametrize("dtype", ["f32", "bf16", "f16"])
@pytest.mark.parametrize("name", WHOLE)
def test_whole_vectors_are_spread_by_vectors(name, dtype, isa, spread):
    """With masks or without, and exactly."""
    groups, c, k = WHOLE[name]
    problem, plan = across_groups(groups, c, k, isa, dtype=dtype, out_dtype=dtype)
    lanes = machine_for(isa).lanes_f32
    if k >= lanes or plan is None:  # a vector of its own
        assert k >= lanes or c % lanes == 0
        return
    lower(plan)
    whole = groups % plan.lane_groups == 0 and plan.lane_groups * c >= lanes and k > 1
    assert bool(spread) == (whole or isa not in WITHOUT_MASKS)
    check_plan(problem, plan, machine_for(isa), 5, low=dtype != "f32")


@pytest.mark.parametrize("isa", WITHOUT_MASKS)
@pytest.mark.parametrize("name", LEFT)
def test_others_are_spread_one_by_one_without_masks(name, isa, spread):
    """Nothing is read beyond the last group."""
    groups, c, k = LEFT[name]
    problem, plan = across_groups(groups, c, k, isa)
    assert (plan is None) == (k >= machine_for(isa).lanes_f32)
    if plan is not None:
        lower(plan)
        assert not spread
        check_plan(problem, plan, machine_for(isa))
