"""Fewer channels side by side than a long vector holds: half vectors, as another instruction set has them."""

from dataclasses import replace

import pytest

from codegen.dense_problems import problem_of
from codegen.random_problems import check_plan
from convgrad.plan.choose import choose, variants
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
def test_single_channels_exactly(unknown, dtype, isa):
    machine, short = machine_for(isa), 4 if dtype == "f64" else 8
    for groups in (short, *(() if unknown is W else (short // 2, short + 1, 2 * short - 1))):
        for seed, stride in enumerate((1, 2)):
            problem = depthwise(unknown, groups, dtype, stride, bias=unknown is not W and stride == 1)
            plan = choose(problem, machine)
            assert (plan.isa, plan.lanes) == ("avx2", short)
            check_plan(problem, plan, machine, seed)


def test_what_single_channels_they_are_for():
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


def dense(unknown=Y, channels=(24, 8), taps=(1, 1), stride=1, layout="NXC", dtype="f32", **more):
    """Of two images."""
    y = tuple(-(-(extent - r + 1) // stride) for extent, r in zip((9, 21), taps, strict=True))
    return problem_of(
        unknown, (9, 21), y, taps, channels=channels, stride=stride, layout=layout, batch=2, dtype=dtype,
        out_dtype=dtype, **more,
    )  # fmt: skip


@pytest.mark.parametrize("isa", LEVELS)
@pytest.mark.parametrize("dtype", ["f32", "f16", "bf16"])
@pytest.mark.parametrize(("taps", "stride"), [((1, 1), 1), ((3, 3), 2), ((2, 2), 2)])
def test_channels_of_a_group_exactly(taps, stride, dtype, isa):
    machine, found = machine_for(isa), 0
    for seed, (unknown, channels) in enumerate(((Y, (24, 8)), (Y, (5, 12)), (X, (8, 40)), (X, (15, 16)))):
        problem = dense(unknown, channels, taps, stride, dtype=dtype, bias=bool(seed % 2), groups=1 + seed // 2)
        for plan in variants(problem, machine):
            if plan.isa != isa:
                assert plan.lanes == 8
                check_plan(problem, plan, machine, seed)
                found += 1
    assert found >= 2


def test_what_channels_they_are_for():
    """All of half a vector; what is read where it lies may also be more."""

    def halved(**layer):
        return choose(dense(**layer), machine_for("avx512")).isa == "avx2"

    assert halved()
    assert halved(unknown=X, channels=(8, 24))
    assert halved(channels=(16, 12))
    assert halved(channels=(3, 8), taps=(3, 3), stride=2)
    assert not halved(channels=(16, 12), dtype="bf16")
    assert not halved(channels=(16, 7))
    assert not halved(channels=(16, 16))
    assert not halved(layout="NCX")
