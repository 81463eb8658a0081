"""Fewer single channels side by side than a long vector holds: half vectors, as another instruction set has them."""

from dataclasses import replace

import pytest

from codegen.dense_problems import problem_of
from codegen.random_problems import check_plan
from convgrad.plan.choose import choose
from convgrad.plan.machine import machine_for, why_not
from convgrad.problem.conv import Unknown

W, X, Y = Unknown.W, Unknown.X, Unknown.Y
LEVELS = [
    pytest.param(isa, marks=pytest.mark.skipif(why_not(isa) is not None, reason=f"no {isa} here: {why_not(isa)}"))
    for isa in ("avx512", "avx512_bf16", "amx_emulated")
]


def depthwise(unknown, groups, dtype="f32", stride=1, layout="NXC", **more):
    """5 x 3 taps."""
    y = tuple(-(-extent // stride) for extent in (11, 23))
    return problem_of(
        unknown, (11, 23), y, (5, 3), groups=groups, channels=(1, 1), stride=stride, low=(2, 1), layout=layout,
        batch=2, dtype=dtype, out_dtype=dtype, **more,
    )  # fmt: skip


@pytest.mark.parametrize("isa", LEVELS)
@pytest.mark.parametrize("dtype", ["f32", "f16", "bf16", "f64"])
@pytest.mark.parametrize("unknown", [W, X, Y])
def test_exactly(unknown, dtype, isa):
    machine, short = machine_for(isa), 4 if dtype == "f64" else 8
    for groups in (short, *(() if unknown is W else (short // 2, short + 1, 2 * short - 1))):
        for seed, stride in enumerate((1, 2)):
            problem = depthwise(unknown, groups, dtype, stride, bias=unknown is not W and stride == 1)
            plan = choose(problem, machine)
            assert (plan.isa, plan.lanes) == ("avx2", short)
            check_plan(problem, plan, machine, seed)


def test_what_they_are_for():
    def halved(*, isa="avx512", **layer):
        return choose(depthwise(**layer), machine_for(isa)).isa == "avx2" != isa

    assert all(halved(unknown=unknown, groups=8) for unknown in (W, X, Y))
    assert halved(unknown=Y, groups=4)
    assert halved(unknown=Y, groups=15)
    assert not halved(unknown=Y, groups=3)
    assert not halved(unknown=Y, groups=16)
    assert not halved(unknown=W, groups=4)
    assert not halved(unknown=W, groups=12)
    assert not halved(unknown=Y, groups=8, layout="NCX")
    assert not halved(unknown=Y, groups=8, isa="avx2")
    assert not halved(unknown=Y, groups=8, isa="neon")


def test_bits_are_those_of_more_groups():
    """Vectors of any length add the products of an output in the same order."""
    alike = [replace(depthwise(Y, groups), batch=2) for groups in (8, 32)]
    assert len({choose(problem, machine_for("avx512")).order for problem in alike}) == 1
