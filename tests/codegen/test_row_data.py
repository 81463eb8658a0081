"""Rows of the input read as they lie in memory, outputs of a row along vectors: random problems, exactly."""

from dataclasses import replace

import numpy as np
import pytest

from codegen.dense_problems import problem_of
from codegen.random_problems import check_plan, strides_in
from codegen.test_flat_data import alike_problem, apart
from convgrad.plan.choose import variants
from convgrad.plan.general.data import DataPlan
from convgrad.plan.in_place.choose_row_data import row_data_candidates
from convgrad.plan.machine import machine_for, why_not
from convgrad.problem.conv import Unknown

ISA = "avx512"  # the only one with masks
needs_masks = pytest.mark.skipif(why_not(ISA) is not None, reason=f"no {ISA} here: {why_not(ISA)}")


def random_rows(rng, unknown):
    """Rows without gaps, in any order of the other axes; long ones, short ones, strided ones."""
    problem = alike_problem(rng, unknown)
    if rng.integers(3):
        problem = apart(problem, rng)
    for name in "xy":
        shape = problem.shapes[name]
        inner = len(shape) - 1
        order = [*rng.permutation(inner), inner] if rng.integers(2) else range(inner + 1)
        problem = replace(problem, **{f"{name}_strides": strides_in(order, shape)})
    return problem


def row_plan(problem):
    """The plan, whether it is the fastest or not; None where it cannot be."""
    machine = machine_for(ISA)
    base = next((plan for plan in variants(problem, machine) if isinstance(plan, DataPlan)), None)
    found = base and next(row_data_candidates(problem, machine, base), None)
    return found[1] if found else None


def altered(plan, rng):
    """With other tiles and blocks, a buffer of results, or fewer channels of the input at a time."""
    row, inner = plan.axes[-1], len(plan.axes) - 1
    tiles = -(-row.count // plan.lanes)
    tile, block = list(plan.tile), [int(rng.integers(1, axis.count + 1)) for axis in plan.axes]
    tile[-1] = int(rng.integers(1, tiles + 1)) * plan.lanes
    if inner > 1:
        tile[-2] = int(rng.integers(1, min(4, plan.axes[-2].count) + 1))
    block[-1] = -(-row.count // tile[-1]) * tile[-1]
    if rng.integers(2) and len(range(0, row.count, tile[-1])) > 2:
        block[-1] = tile[-1] * int(rng.integers(1, 3))
    channels = plan.out_channels // plan.phases
    widths = [n for n in range(1, channels + 1) if channels % n == 0 or plan.phases == 1]
    width = int(rng.choice(widths)) * plan.phases
    i_block = plan.packable(int(rng.integers(1, plan.in_channels + 1))) if rng.integers(3) == 0 else plan.in_channels
    in_place = plan.writes_in_place and i_block >= plan.in_channels and bool(rng.integers(2))
    return replace(
        plan, tile=tuple(tile), block=tuple(block), width=width, i_block=i_block, writes_in_place=in_place,
        packs_weights=bool(rng.integers(2)), blocks_per_task=int(rng.integers(1, -(-plan.out_channels // width) + 1)),
    )  # fmt: skip


def valid(plan):
    """Whether a plan is one that the emitter takes."""
    try:
        plan.validate()
    except AssertionError:
        return False
    return True


@needs_masks
@pytest.mark.parametrize("unknown", [Unknown.X, Unknown.Y])
def test_rows_exactly(unknown):
    """As planned, and in other tiles and blocks; what is beside a row is neither read nor multiplied."""
    kinds = []
    for seed in range(100):
        rng = np.random.default_rng(seed)
        problem = random_rows(rng, unknown)
        plan = row_plan(problem)
        if plan is None:
            continue
        if seed % 3:
            plan = next(filter(valid, (altered(plan, rng) for _ in range(20))), plan)
        plan.validate()
        try:
            check_plan(problem, plan, machine_for(ISA), seed, low=bool(seed % 2))
        except AssertionError as error:
            raise AssertionError(f"seed {seed}: {problem}\n{plan}\n{error}") from None
        kinds.append(plan)
    assert len(kinds) > 35
    assert any(plan.slides for plan in kinds)
    assert any(plan.i_blocks > 1 for plan in kinds)
    assert any(len(plan.axes) > 2 and plan.tile[-2] > 1 for plan in kinds)
    assert any(plan.block[-1] < plan.axes[-1].count for plan in kinds)
    if unknown is Unknown.X:
        assert any(plan.phases > 1 and plan.writes_in_place for plan in kinds)
        assert any(plan.phases > 1 and plan.written_phases > 1 and not plan.writes_in_place for plan in kinds)
    else:
        assert any(plan.axes[-1].in_step > 1 and plan.writes_in_place for plan in kinds)


@needs_masks
def test_rows_of_stride_two_exactly():
    """Whose lanes are in another order until they are stored, in place or in a buffer; some lie beside the row.

    Of 16 bits every second number is half of a word.
    """
    in_place = []
    for seed in range(48):
        dtype = ("f32", "f16", "f32", "bf16")[seed % 4]
        rng = np.random.default_rng(seed)
        rank, taps, low, dilation = (int(n) for n in rng.integers((1, 2, 0, 1), (4, 6, 3, 3)))
        image = (*(int(n) for n in rng.integers(9, 16, rank - 1)), int(rng.integers(36, 110)))
        windows = tuple((x + 2 * low - dilation * (taps - 1) - 1) // 2 + 1 for x in image)
        problem = problem_of(
            Unknown.Y, image, windows, (taps,) * rank, channels=tuple(int(n) for n in rng.integers(1, 9, 2)),
            groups=int(rng.integers(1, 3)), stride=2, dilation=dilation, low=low, bias=bool(seed % 2), dtype=dtype,
            out_dtype=dtype,
        )  # fmt: skip
        plan = row_plan(problem)
        if seed % 3:
            plan = next(filter(valid, (altered(plan, rng) for _ in range(20))), plan)
        assert plan.deals == (plan.i_blocks == 1 and dtype == "f32")
        check_plan(problem, plan, machine_for(ISA), seed, low=bool(seed % 2))
        in_place += [plan.writes_in_place] if plan.deals else []
    assert set(in_place) == {True, False}
