"""Depthwise data kernels whose tasks copy rows of positions a power of two apart, exactly and where they gain."""

from dataclasses import replace

import numpy as np
import pytest

from codegen.dense_problems import W, X, Y, problem_of
from codegen.emitted import each_isa
from codegen.random_problems import check_plan
from convgrad.plan.choose import choose, variants
from convgrad.plan.depthwise.copied_rows import CopiedRowsPlan
from convgrad.plan.depthwise.depthwise_data import DepthwiseDataPlan
from convgrad.plan.depthwise.depthwise_weights import DepthwiseWeightsPlan
from convgrad.plan.kinds import as_kind
from convgrad.plan.machine import machine_for


def depthwise(unknown, image, taps, *, groups, stride=1, dilation=1, low=None, batch=1, **others):
    """Channels last, windows as many as an image has."""
    low = low if low is not None else tuple(d * (r - 1) // 2 for d, r in zip((dilation,) * 2, taps, strict=True))
    lows = low if isinstance(low, tuple) else (low,) * 2
    windows = tuple(
        (x + 2 * lo - dilation * (r - 1) - 1) // stride + 1 for x, lo, r in zip(image, lows, taps, strict=True)
    )
    return problem_of(
        unknown, image, windows, taps, channels=(1, 1), groups=groups, batch=batch, stride=stride, dilation=dilation,
        low=lows, layout="NXC", **others,
    )  # fmt: skip


PROBLEMS = {
    "3x3": depthwise(Y, (7, 9), (3, 3), groups=40, batch=2),
    "3x3 with a bias, a last block of groups that begins early": depthwise(Y, (9, 7), (3, 3), groups=53, bias=True),
    "gradient of 5x5": depthwise(X, (8, 6), (5, 5), groups=36),
    "strides": depthwise(Y, (11, 9), (3, 3), groups=33, stride=2),
    "gradient with strides": depthwise(X, (11, 12), (3, 3), groups=33, stride=2, batch=2),
    "dilation": depthwise(Y, (9, 8), (3, 2), groups=34, dilation=2),
    "without pads": depthwise(Y, (6, 7), (3, 3), groups=48, low=0),
    "rows beyond the image": depthwise(Y, (3, 5), (3, 3), groups=37, low=4),
    "one row": depthwise(Y, (1, 12), (1, 5), groups=39, batch=3),
}


@each_isa
@pytest.mark.parametrize("name", PROBLEMS)
def test_every_shape(name, isa):
    """Tiles, rows and groups of a task at random."""
    problem, machine = PROBLEMS[name], machine_for(isa)
    plain = next(plan for plan in variants(problem, machine) if type(plan) in (DepthwiseDataPlan, CopiedRowsPlan))
    rng, rows, columns = np.random.default_rng(len(name)), plain.axes[-2], plain.axes[-1]
    for seed in range(6):
        tile = (int(rng.integers(1, min(3, rows.count) + 1)), int(rng.integers(1, min(4, columns.count) + 1)))
        plan = as_kind(
            CopiedRowsPlan, plain, tile=(1, *tile), block=(1, int(rng.integers(1, 4)) * tile[0], columns.count),
            blocks_per_task=int(rng.integers(1, plain.lane_blocks + 1)),
        )  # fmt: skip
        assert (plan.pitch * 4 // 64) % 2 == 1
        check_plan(problem, plan, machine, seed, low=bool(seed % 2))


def test_where_they_are_chosen():
    """Of positions 4096 bytes apart, or 2048 and many taps; by the same order of sums as others."""
    machine = machine_for("avx2")

    def copies(groups, taps=(3, 3), **others):
        plan = choose(depthwise(Y, (14, 14), taps, groups=groups, **others), machine)
        return isinstance(plan, CopiedRowsPlan)

    assert [copies(groups) for groups in (960, 1000, 1024, 2048, 3072, 512)] == [False, False, True, True, True, False]
    assert [copies(512, (taps, taps)) for taps in (3, 5, 7)] == [False, True, True]
    assert not copies(1024, stride=2), "little arithmetic to a number"
    assert not copies(1024, (1, 1))
    problem = depthwise(Y, (14, 14), (3, 3), groups=1024)
    assert not isinstance(choose(problem, machine_for("avx512")), CopiedRowsPlan)
    plans = list(variants(problem, machine))
    assert {plan.order for plan in plans if isinstance(plan, DepthwiseDataPlan)} == {plans[0].order}
    for dtype in ("f16", "bf16"):
        assert not isinstance(choose(replace(problem, dtype=dtype, out_dtype=dtype), machine), CopiedRowsPlan)
    large = choose(depthwise(Y, (112, 112), (3, 3), groups=1024), machine)
    assert large.block[-2] == large.tile[-2], "rows of which a copy stays in L2"
    assert large.work_bytes[1] >= 4 * large.copied_size


def test_weights_of_such_positions_are_tiles_of_a_row_of_taps():
    """Whose sums stay in registers while they pass by: those that come and go read all from L2 again."""
    machine = machine_for("avx2")

    def together(groups, taps, isa="avx2", **others):
        problem = replace(depthwise(Y, (14, 14), (taps, taps), groups=groups, **others), unknown=W)
        return isinstance(choose(problem, machine_for(isa)), DepthwiseWeightsPlan)

    assert [together(groups, 5) for groups in (1000, 1024, 2048, 512)] == [True, False, False, True]
    assert [together(1024, taps) for taps in (3, 7)] == [True, False]
    assert together(1024, 5, "avx512")
    problem = replace(depthwise(Y, (14, 14), (5, 5), groups=1024), unknown=W)
    check_plan(problem, choose(problem, machine), machine)
