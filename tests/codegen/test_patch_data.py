"""Gradients of windows side by side, channels first, whose taps fill vectors: random problems, exactly."""

from dataclasses import replace

import numpy as np
import pytest

from codegen.dense_problems import problem_of
from codegen.random_problems import check_plan
from convgrad.plan.choose import choose, variants
from convgrad.plan.few_channels.patch_data import PatchDataPlan
from convgrad.plan.machine import machine_for, why_not
from convgrad.problem.conv import Unknown

ISAS = [
    pytest.param(isa, marks=pytest.mark.skipif(why_not(isa) is not None, reason=f"no {isa} here: {why_not(isa)}"))
    for isa in ("avx512", "avx512_bf16", "avx2", "portable")
]


def patches(batch=1, groups=1, c=3, k=64, grid=(4, 5), taps=(16, 16), dtype="f32", **changes):
    """Windows of so many taps, side by side."""
    extent = tuple(n * r for n, r in zip(grid, taps, strict=True))
    problem = problem_of(
        Unknown.X, extent, grid, taps, channels=(c, k), groups=groups, batch=batch, stride=taps, dtype=dtype
    )
    return replace(problem, **changes)


@pytest.mark.parametrize("isa", ISAS)
def test_patches_exactly(isa):
    """With tiles that do not divide the grid, groups, vectors that cross rows of taps, and weights read as they lie."""
    machine, ways = machine_for(isa), set()
    for case in range(36):
        seed, dtype = case % 24, "f32" if case < 24 else ("bf16", "f16")[case // 2 % 2]
        rng = np.random.default_rng(seed)
        rank = int(rng.integers(1, 4))
        lanes = machine.lanes_f32
        taps = (*(int(n) for n in rng.choice([1, 2, 3, 4], rank - 1)), lanes * int(rng.integers(1, 4)))
        grid = tuple(int(n) for n in rng.integers(1, 7, rank))
        batch, groups, c = (int(n) for n in rng.integers((1, 1, 2), 4))  # one channel is simpler than that
        problem = patches(batch, groups, c, int(rng.choice([1, 5, 17, 40])), grid, taps, dtype, out_dtype=dtype)
        plan = next((plan for plan in variants(problem, machine) if isinstance(plan, PatchDataPlan)), None)
        assert plan is not None, problem
        if seed % 2:
            plan = replace(plan, reads_weights=not plan.reads_weights, packs_weights=False)
        plan.validate()
        ways.add((plan.reads_weights, len(plan.columns) > 1 and plan.columns[1] != plan.lanes))
        try:
            check_plan(problem, plan, machine, seed)
        except AssertionError as error:
            raise AssertionError(f"case {case}: {problem}\n{plan}\n{error}") from None
    assert len(ways) == 4


def test_chosen_where_taps_fill_vectors():
    """Not with taps that leave lanes empty, windows that meet, or a bias."""

    def chosen(isa="avx512", **changes):
        return isinstance(choose(patches(**{"k": 768, "grid": (14, 14)} | changes), machine_for(isa)), PatchDataPlan)

    assert chosen()
    assert chosen(batch=2)
    assert chosen(dtype="bf16", out_dtype="bf16")
    assert chosen(dtype="f16", out_dtype="f16")
    assert chosen(grid=(7, 7), taps=(32, 32))
    assert not chosen(taps=(14, 14))
    assert not chosen(stride=(8, 8), y_extent=(27, 27))
    assert not chosen(bias=True, bias_stride=1)
    assert not chosen(accumulate=True)
    assert not chosen(unknown=Unknown.Y)
