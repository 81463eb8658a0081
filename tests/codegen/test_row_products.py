"""Y of windows that are whole images: rows of images times rows of weights, as both lie, lanes added at the end."""

from dataclasses import replace

import numpy as np
import pytest

from codegen.random_problems import check_plan, strides_in
from convgrad.codegen.lower import lower
from convgrad.plan.choose import choose, variants
from convgrad.plan.machine import available_isas, machine_for
from convgrad.plan.order import multiplies_rows
from convgrad.plan.row_products import RowProductsPlan
from convgrad.problem.conv import ConvProblem, Unknown
from convgrad.runtime.kernel import build

ISAS = [isa for isa in ("avx512", "avx2", "portable") if isa in available_isas()]
# batch, groups, channels of x and y, taps
SHAPES = {
    "one image": (1, 1, 64, 37, (4, 4)),
    "one image, one channel": (1, 1, 40, 1, (4, 4)),
    "fewer images than a tile has": (3, 1, 20, 9, (5, 3)),
    "tiles that begin early": (11, 1, 9, 23, (4, 5)),
    "several blocks of images": (150, 1, 128, 10, (1, 1)),
    "groups": (5, 3, 40, 9, (7,)),
    "many tasks of a group": (2, 2, 32, 90, (2, 2, 2)),
    "several pieces": (9, 1, 603, 33, (4, 2)),
}


def problem_of(batch, groups, given, solved, taps, **more):
    """Dense, with channels first."""
    shapes = {"x": (batch, groups, given, *taps), "w": (groups, solved, given, *taps)}
    y, ones, zeros = (batch, groups, solved, *[1] * len(taps)), (1,) * len(taps), (0,) * len(taps)
    steps = {name: strides_in(range(len(shape)), shape) for name, shape in (shapes | {"y": y}).items()}
    return ConvProblem(
        unknown=Unknown.Y, batch=batch, groups=groups, x_channels=given, y_channels=solved, x_extent=taps,
        y_extent=ones, taps=taps, stride=ones, dilation=ones, pad_low=zeros, x_strides=steps["x"],
        w_strides=steps["w"], y_strides=steps["y"], **more,
    )  # fmt: skip


def plan_of(problem, isa):
    """The plan; None if there is none."""
    return next((plan for plan in variants(problem, machine_for(isa)) if isinstance(plan, RowProductsPlan)), None)


@pytest.mark.parametrize("isa", ISAS)
@pytest.mark.parametrize("name", SHAPES)
def test_every_shape(name, isa):
    """With a bias, in tiles, blocks, pieces and shares of other sizes."""
    rng, machine = np.random.default_rng(len(name)), machine_for(isa)
    found = 0
    for seed in range(3 if isa == "avx512" else 2):
        problem = problem_of(*SHAPES[name], bias=seed == 1, bias_stride=1 + seed)
        plan = plan_of(problem, isa)
        if plan is None:
            assert not multiplies_rows(problem, machine.lanes_f32)
            continue
        assert type(choose(problem, machine)) is RowProductsPlan
        found += 1
        rows = int(rng.integers(1, plan.tile[-1] + 1))
        most = -(-plan.axes[-1].count // rows)
        columns = int(rng.integers(1, plan.width + 1))
        other = replace(
            plan, tile=(1, rows), block=(1, int(rng.integers(1, most + 1)) * rows), width=columns,
            piece=int(rng.integers(1, plan.vectors + 1)),
            blocks_per_task=int(rng.integers(1, -(-plan.out_channels // columns) + 1)),
        )  # fmt: skip
        for one in (plan, other):
            check_plan(problem, one, machine, seed, low=bool(seed % 2))
    _, _, given, _, taps = SHAPES[name]
    assert found or (isa != "avx512" and given * np.prod(taps) % machine.lanes_f32), "without masks, whole vectors"


def test_some_plans_have_pieces_and_some_ask_for_weights_ahead():
    assert plan_of(problem_of(*SHAPES["several pieces"]), "avx512").pieces > 1
    assert plan_of(problem_of(*SHAPES["one image"]), "avx512").pieces == 1
    for channels, ahead in ((100, False), (1000, True)):
        plan = plan_of(problem_of(4, 1, 512, channels, (4, 4)), "avx512")
        assert ("llvm.prefetch" in lower(plan).ir) == ahead


@pytest.mark.skipif("avx512" not in ISAS, reason="this CPU has no avx512")
def test_bits_are_those_of_other_tiles_and_images_alone():
    """Sums are rounded, so that any other order shows."""
    machine, rng = machine_for("avx512"), np.random.default_rng(5)
    batch, _, channels, solved, taps = shape = (7, 1, 150, 19, (3, 5))
    given = rng.standard_normal((batch, channels, *taps), np.float32)
    weights = rng.standard_normal((solved, channels, *taps), np.float32)
    problem = problem_of(*shape)
    plan = plan_of(problem, "avx512")
    whole = _solved(problem, plan, machine, given, weights)
    for rows, columns, piece in ((1, 3, 9), (2, 8, 50), (7, 1, 200)):
        other = replace(plan, tile=(1, rows), block=(1, rows), width=columns, piece=min(piece, plan.vectors))
        np.testing.assert_array_equal(whole, _solved(problem, other, machine, given, weights))
    alone = problem_of(1, *shape[1:])
    np.testing.assert_array_equal(whole[2:3], _solved(alone, plan_of(alone, "avx512"), machine, given[2:3], weights))


def _solved(problem, plan, machine, given, weights):
    result = np.zeros((problem.batch, problem.y_channels), np.float32)
    kernel = build(problem, machine, lower=lambda *_: lower(plan))
    kernel(*(side.ctypes.data for side in (np.ascontiguousarray(given), weights, result)), 0)
    assert result.any()
    return result


def test_what_it_is_for():
    """Windows that are whole images, of rows that lie together on either side; whatever the batch is."""
    problem = problem_of(4, 1, 20, 5, (4, 4))
    assert multiplies_rows(problem, 16)
    assert multiplies_rows(replace(problem, batch=1, stride=(3, 1)), 16)
    assert multiplies_rows(problem_of(1, 1, 128, 5, (1,)), 16)
    assert not multiplies_rows(problem_of(1, 1, 127, 5, (1,)), 16)
    assert not multiplies_rows(problem_of(1, 1, 129, 5, (1,)), 8), "without masks"
    assert not multiplies_rows(replace(problem, unknown=Unknown.X), 16)
    assert not multiplies_rows(replace(problem, accumulate=True), 16)
    assert not multiplies_rows(replace(problem, dtype="bf16"), 16)
    assert not multiplies_rows(replace(problem, pad_low=(1, 0)), 16)
    assert not multiplies_rows(replace(problem_of(1, 1, 128, 5, (1,)), pad_low=(1,)), 16)
    assert not multiplies_rows(replace(problem, x_extent=(5, 4)), 16)
    assert not multiplies_rows(replace(problem, y_extent=(1, 2), x_extent=(4, 5)), 16)
    assert not multiplies_rows(replace(problem, w_strides=(1600, 1, 80, 20, 5)), 16), "lanes along channels of y"
    assert not multiplies_rows(replace(problem, x_strides=(320, 320, 1, 80, 20)), 16), "channels last on one side"
