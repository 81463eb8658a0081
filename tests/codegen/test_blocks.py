"""Blocks of outputs that a tile does not divide, written in place."""

from dataclasses import replace

import pytest

from codegen.dense_problems import problem_of
from codegen.emitted import each_isa
from codegen.random_problems import check_plan
from convgrad.plan.choose import choose, variants
from convgrad.plan.general import block_costs
from convgrad.plan.general.data import DataPlan
from convgrad.plan.general.data_in_place import writes_in_place
from convgrad.plan.machine import machine_for
from convgrad.problem.conv import Unknown

X, Y = Unknown.X, Unknown.Y


@each_isa
@pytest.mark.parametrize(("unknown", "layout"), [(X, "NCX"), (Y, "NCX"), (X, "NXC"), (Y, "NXC")])
def test_the_last_block_begins_early_where_less_than_a_tile_is_left(unknown, layout, isa):
    """With a bias, and with rows that lie apart; tiles along outputs and along channels."""
    rows = [
        problem_of(unknown, (extent,), (extent,), (1,), channels=(48, 48), batch=2, bias=True, layout=layout)
        for extent in (101, 67, 94)
    ]
    image = problem_of(unknown, (5, 53), (5, 53), (3, 1), channels=(32, 40), low=(1, 0), layout=layout)
    early = [_check_early(problem, plan, isa) for problem in (*rows, image) for plan in _dense(problem, isa)]
    assert any(early)


def _dense(problem, isa):
    """Its plans, reading a slab."""
    for plan in variants(problem, machine_for(isa)):
        if type(plan) is DataPlan and not plan.spread:
            channels = plan.packable(plan.in_channels)
            yield replace(plan, reads_in_place=False, writes_in_place=False, i_block=channels)


def _check_early(problem, plan, isa):
    """Whether there were blocks of some tiles that leave less than one, which are exact then."""
    inner, tile = len(plan.axes) - 1, plan.tile[-1]
    blocks = (replace(plan, block=(*plan.tile[:-1], tiles * tile)) for tiles in (1, 2, 3))
    blocks = [replace(each, writes_in_place=True) for each in blocks if writes_in_place(each)]
    early = next((each for each in blocks if each.last_start(inner) is not None), None)
    if early is not None:
        check_plan(problem, early, machine_for(isa))
    return early is not None


@each_isa
@pytest.mark.parametrize("channels", [48, 65, 96, 100, 200])
@pytest.mark.parametrize("stride", [1, 3])
def test_positions_that_come_whole(monkeypatch, isa, channels, stride):
    """As those of inputs that come from memory do, if their channels are whole runs; others run by run, as ever."""
    monkeypatch.setattr(block_costs, "FAR_INPUT", 0)
    problem = problem_of(
        Y, (19, 19), (18 // stride + 1,) * 2, (3, 3), channels=(channels, 16), stride=stride, low=1, layout="NXC"
    )  # fmt: skip
    plan = choose(problem, machine_for(isa))
    check_plan(problem, plan, machine_for(isa), low=True)
