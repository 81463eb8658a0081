"""Lines that are asked for lie in tensors: where nothing is mapped, asking takes longer than all else of a kernel."""

import ctypes
import re
from dataclasses import replace

import numpy as np
import pytest

from codegen.buffers import GUARD
from codegen.dense_problems import W, X, Y, problem_of
from codegen.emitted import each_isa, run_here
from codegen.random_problems import check_plan
from convgrad.plan.choose import choose
from convgrad.plan.few_channels import lane_sums, run_weights, window_lanes
from convgrad.plan.few_channels.lane_sums import LaneSumsPlan
from convgrad.plan.few_channels.window_lanes import WindowLanesPlan
from convgrad.plan.general import data, weights
from convgrad.plan.general.data import DataPlan
from convgrad.plan.general.weights import WeightsPlan
from convgrad.plan.machine import machine_for

ASKING = re.compile(r"call void @llvm\.prefetch\.p0\((ptr [^,]+), [^)]*\)")
ROUNDED = 6  # lines beside a tensor, where boxes are rounded up to lines
PROBLEMS = {
    "the next slab, which begins and ends around the image": (
        problem_of(Y, (33, 20), (33, 20), (3, 3), channels=(70, 40), dilation=6, low=6, layout="NXC"), DataPlan
    ),
    "the rows of the next tile": (
        problem_of(Y, (40, 50), (40, 50), (1, 1), channels=(64, 40), batch=2, layout="NXC"), DataPlan
    ),
    "the next windows and channels": (
        problem_of(W, (40, 50), (40, 50), (3, 3), channels=(35, 70), batch=2, layout="NXC", low=1), WeightsPlan
    ),
    "the next windows of planes": (
        problem_of(W, (44, 64), (44, 64), (3, 3), channels=(1, 64), batch=2, low=1), WindowLanesPlan
    ),
    "later rows of lanes that are added": (
        problem_of(X, (40, 41), (40, 41), (3, 3), channels=(3, 64), batch=2, layout="NXC", low=1), LaneSumsPlan
    ),
}  # fmt: skip


def asked(problem, plan, machine, *, low):
    """The addresses that a kernel asks for, and the arrays it works on; its result is looked at, too."""
    found, held = set(), []
    note = ctypes.CFUNCTYPE(None, ctypes.c_uint64)(found.add)
    place = ctypes.cast(note, ctypes.c_void_p).value

    def run(module, machine, arrays, *, low):
        held.extend(arrays)
        ir = ASKING.sub(rf"call void inttoptr (i64 {place} to ptr)(\1)", module.ir)
        assert ir != module.ir, "nothing is asked for"
        return run_here(replace(module, ir=ir), machine, arrays, low=low)

    check_plan(problem, plan, machine, low=low, run=run)
    return np.array(sorted(found), np.int64), held


@each_isa
@pytest.mark.parametrize("low", [False, True], ids=["nothing behind", "nothing before"])
@pytest.mark.parametrize("name", PROBLEMS)
def test_nothing_is_asked_for_beside_tensors(name, low, isa, monkeypatch):
    for module in (data, weights, lane_sums, run_weights, window_lanes):
        monkeypatch.setattr(module, "KEPT_BYTES", 0)
    problem, kind = PROBLEMS[name]
    machine = machine_for(isa)
    plan = choose(problem, machine)
    if not isinstance(plan, kind):
        pytest.skip(f"another kind of plan is the fastest here: {type(plan).__name__}")
    places, arrays = asked(problem, plan, machine, low=low)
    for array, given in zip(arrays, "xwy", strict=False):
        if given in ("w", plan.problem.solved if isinstance(plan, DataPlan) else "w"):
            continue
        inside = array.buffer.inside.ctypes.data, array.buffer.inside.ctypes.data + array.buffer.inside.nbytes
        beside = places[(places >= inside[0] - GUARD) & (places < inside[1] + GUARD)]
        assert beside.size, f"{given} is asked for"
        outside = beside[(beside < inside[0]) | (beside >= inside[1])]
        assert outside.size <= ROUNDED, f"{given}: {outside - inside[0]} of {inside[1] - inside[0]} bytes"
