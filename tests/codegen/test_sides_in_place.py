"""Weights gradients whose rows, or lanes, are read where they lie: exactly, and nothing beside the tensors."""

from dataclasses import replace
from math import prod

import numpy as np
import pytest

from codegen import dense_problems
from codegen.random_problems import check_plan
from codegen.test_flat_data import ISA
from convgrad.codegen.loops import weights_ahead
from convgrad.codegen.lower import lower
from convgrad.plan.choose import choose, variants
from convgrad.plan.general.sides_in_place import ways_in_place
from convgrad.plan.general.weights import WeightsPlan
from convgrad.plan.machine import machine_for, why_not
from convgrad.problem.conv import Unknown


def problem_of(channels, image, *, order="NCX", groups=1, batch=1, taps=(1, 1), stride=1, low=0, **others):
    """Dense; windows as many as the image and its pads hold."""
    windows = tuple((extent + 2 * low - r) // stride + 1 for extent, r in zip(image, taps, strict=True))
    sizes = {"channels": channels, "groups": groups, "batch": batch, "stride": stride, "low": low}
    return dense_problems.problem_of(
        Unknown.W, tuple(image), windows, taps, **sizes, layout=order, weights="NCX", **others
    )


def plans_in_place(problem, machine):
    """Every way to read in place, for lanes along either side."""
    for plan in variants(problem, machine):
        if type(plan) is WeightsPlan and not (plan.spread or plan.direct):
            for rows, lanes in ways_in_place(plan):
                if rows or lanes:
                    yield replace(plan, rows_in_place=rows, lanes_in_place=lanes, rows_together=0)


def shared_out(plan, rng):
    """With other blocks, chunks and shares."""
    block = tuple(int(rng.integers(1, axis.windows + 1)) for axis in plan.axes)
    plan = replace(plan, block=block)
    tiles = -(-plan.row_count // plan.row_channels)
    return replace(
        plan,
        chunks=int(rng.integers(1, min(4, prod(plan.block_grid)) + 1)),
        lane_shares=int(rng.integers(1, plan.lane_blocks + 1)),
        row_shares=-(-tiles // int(rng.integers(1, tiles + 1))),
    )


def random_problem(rng):
    """Channels that do and do not fill tiles and vectors, and taps that do and do not stay inside the image."""

    def pick(*choices):
        return choices[rng.integers(len(choices))]

    few, many = pick(1, 2, 5, 6, 7, 13, 24), pick(16, 17, 31, 48, 64, 70, 100)
    low = pick(0, 0, 1)
    return problem_of(
        pick((few, many), (many, few)), pick((3, 7), (5, 4), (4, 11)), order=pick("NCX", "NXC"), groups=pick(1, 1, 2),
        batch=pick(1, 2, 3), taps=(1, 1) if not low and rng.integers(2) else pick((1, 2), (1, 3), (3, 1)),
        stride=pick(1, 1, 2), low=low, dtype=pick("f32", "f32", "f64"), accumulate=bool(rng.integers(2)),
        bias_gradient=pick("", "x", "y"),
    )  # fmt: skip


@pytest.mark.parametrize("isa", sorted({ISA, "portable"}))
def test_sides_in_place_exactly(isa):
    """As planned, and with other blocks, chunks and shares."""
    machine, tried = machine_for(isa), {}
    for seed in (seed for seed in range(40) if isa == ISA or seed % 5 < 3):
        rng = np.random.default_rng(seed)
        problem = random_problem(rng)
        problem = replace(problem, out_dtype=problem.dtype)
        for plan in plans_in_place(problem, machine):
            changed = shared_out(plan, rng) if seed % 4 else plan
            changed.validate()
            try:
                check_plan(problem, changed, machine, seed, low=bool(seed % 2))
            except AssertionError as error:
                raise AssertionError(f"seed {seed}: {problem}\n{changed}\n{error}") from None
            way = plan.rows_in_place, plan.lanes_in_place
            tried[way] = tried.get(way, 0) + 1
    assert set(tried) == {(True, False), (False, True), (True, True)}
    assert min(tried.values()) > 10


@pytest.mark.parametrize("isa", [isa for isa in ("avx2", "avx512") if why_not(isa) is None])
def test_lanes_of_bf16_are_read_as_words(isa):
    """Two vectors of sums to a load, in the order of channels again before they are kept or added to."""
    machine, tried = machine_for(isa), set()
    for seed, channels in enumerate([(6, 64), (64, 5), (7, 100), (48, 24)]):
        problem = problem_of(channels, (5, 11), order="NXC", taps=(1, 3), low=1, dtype="bf16", accumulate=seed == 2)
        for plan in plans_in_place(problem, machine):
            if plan.lanes_in_place:
                by_twos = plan.vectors % 2 == 0 and plan.last_vectors is None and not plan.lane_count % plan.lanes
                words = f"and <{plan.lanes} x i32>" in lower(plan).ir
                assert words or not by_twos
                for changed in (plan, replace(plan, block=(1, 2, 4)), replace(plan, block=(1, 2, 4), chunks=3)):
                    check_plan(problem, changed, machine, seed)
                tried.add(words)
    assert True in tried


def test_rows_that_come_from_memory_are_asked_for(monkeypatch):
    """A tile fetches the planes of the next one, whatever is beyond the last; the result is the same."""
    problem = problem_of((70, 48), (9, 11), batch=2)
    machine = machine_for(ISA)
    plan = next(plan for plan in plans_in_place(problem, machine) if plan.rows_in_place)
    plan = replace(plan, block=(1, 33), row_shares=2, lane_shares=1)
    assert "llvm.prefetch" not in lower(plan).ir
    monkeypatch.setattr(weights_ahead, "NEXT_BYTES", -1)
    assert "llvm.prefetch" in lower(plan).ir
    check_plan(problem, plan, machine)


def test_planes_of_channels_are_read_where_they_lie():
    """Row by row of a matrix product, whose lanes alone are turned."""
    machine = machine_for("avx512")
    plan = choose(problem_of((512, 512), (14, 14), batch=2), machine)
    assert plan.rows_in_place
    assert not plan.lanes_in_place
    assert "rows in place" in str(plan)


def test_windows_that_drive_each_other_out_of_caches_are_packed():
    """1024 channels, 4 KiB apart from a window to the next."""
    machine = machine_for("avx512")
    plan = choose(problem_of((1024, 1024), (14, 14), batch=2, order="NXC"), machine)
    assert not plan.rows_in_place
    assert not plan.lanes_in_place


def test_small_tensors_are_read_in_place_on_both_sides():
    """Channels last, and few: packing them would cost about as much as their products."""
    plan = choose(problem_of((32, 64), (56, 56), order="NXC"), machine_for("avx512"))
    assert plan.rows_in_place
    assert plan.lanes_in_place
    assert plan.row_slab_size == plan.lane_slab_size == 0


def test_zeros_around_x_need_a_slab():
    """Taps side by side in a tile read beyond the image, and no window meets it with all of them."""
    problem = problem_of((64, 64), (9, 2), taps=(3, 3), low=1, order="NXC")
    plan = next(p for p in variants(problem, machine_for("avx512")) if type(p) is WeightsPlan and p.rows_shift)
    beside = replace(plan, tile_taps=3, row_channels=2, rows_together=0)
    assert plan.tile_taps == 1
    assert not beside.in_segments
    assert not any(rows for rows, _ in ways_in_place(beside))
    with pytest.raises(AssertionError, match="zeros around x"):
        replace(beside, rows_in_place=True, lanes_in_place=False).validate()
