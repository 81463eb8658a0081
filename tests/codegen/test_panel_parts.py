"""Panels of weights that several tasks pack, some runs of channels each."""

import pytest

import convgrad.plan.general.data
from codegen.dense_problems import SAME, X, Y, problem_of
from codegen.emitted import HOST_ISAS
from codegen.random_problems import check, check_plan
from convgrad.codegen.lower import lower
from convgrad.plan.choose import choose, variants
from convgrad.plan.general.data import DataPlan
from convgrad.plan.machine import machine_for
from convgrad.values import replace

PROBLEMS = {
    "one panel": problem_of(Y, (12, 40), (12, 40), (3, 3), channels=(96, 16), layout="NXC", **SAME),
    "with bias": problem_of(Y, (12, 40), (12, 40), (3, 3), channels=(80, 40), layout="NXC", bias=True, **SAME),
    "channels first": problem_of(X, (12, 40), (12, 40), (3, 3), channels=(16, 112), bias=True, **SAME),
    "windows side by side": problem_of(X, (16, 64), (4, 16), (4, 4), channels=(8, 160), stride=4, layout="NXC"),
    "two groups": problem_of(Y, (9, 40), (9, 40), (3, 3), channels=(48, 16), groups=2, layout="NXC", bias=True, **SAME),
}


@pytest.fixture
def small_parts(monkeypatch):
    monkeypatch.setattr(convgrad.plan.general.data, "PART_BYTES", 64)


def packing(plan):
    """Tasks of the stage that packs."""
    return {stage.symbol: stage.tasks for stage in lower(plan).stages}.get("pack", 0)


@pytest.mark.usefixtures("small_parts")
@pytest.mark.parametrize("isa", HOST_ISAS)
@pytest.mark.parametrize("problem", PROBLEMS.values(), ids=PROBLEMS)
def test_parts_are_exact(problem, isa):
    check(problem, isa)
    check(problem, isa, alter=3)


@pytest.mark.usefixtures("small_parts")
@pytest.mark.parametrize("isa", HOST_ISAS)
@pytest.mark.parametrize("runs", [1, 2, 3, 4])
@pytest.mark.parametrize("bias", [False, True])
def test_every_run_of_channels_is_packed_once(runs, bias, isa, monkeypatch):
    """The last block of channels may have fewer than others, and fewer than there are parts."""
    monkeypatch.setattr(convgrad.plan.general.data, "PACKING_TASKS", 64)  # enough for short vectors' panels, too
    machine = machine_for(isa)
    problem = problem_of(Y, (9, 40), (9, 40), (3, 3), channels=(240, 16), layout="NXC", bias=bias, **SAME)
    plan = next(plan for plan in variants(problem, machine) if type(plan) is DataPlan)
    assert plan.in_channels == 4 * plan.channel_unit
    plan = replace(plan, i_block=runs * plan.channel_unit, packs_weights=False, reads_weights=False)
    plan = replace(plan, writes_in_place=plan.writes_in_place and runs == 4)
    assert plan.panel_parts == runs
    assert packing(plan) == plan.panels * plan.panel_parts
    check_plan(problem, plan, machine)


@pytest.mark.parametrize(
    ("channels", "taps", "panels", "parts"),
    [
        ((240, 16), 2, 1, 1),  # 30 KB
        ((448, 32), 3, 1, 4),  # 7 runs, 168 KB: two each
        ((240, 128), 2, 2, 2),  # 4 runs, 120 KB: at least 32 KB a task
        ((480, 128), 2, 2, 4),  # 8 runs, 240 KB: eight tasks are enough
        ((480, 1024), 2, 16, 1),
    ],
)
def test_it_is_for_few_large_panels(channels, taps, panels, parts):
    problem = problem_of(Y, (4000,), (4001 - taps,), (taps,), channels=channels, layout="NXC")
    plan = choose(problem, machine_for("avx512"))
    assert (plan.panels, plan.panel_parts) == (panels, parts)
    assert packing(plan) == panels * parts
