"""Dot products of channels that lie side by side, where they lie: exactly, and watched."""

from dataclasses import replace

import numpy as np
import pytest

from codegen.dense_problems import X, Y, problem_of
from codegen.dot_cases import EMULATED, HERE, check_watched, each, in_bf16, needs_dots
from codegen.matrix_checks import BF16_KINDS, check_kind
from codegen.random_problems import check_plan
from convgrad.plan.by_dots.dots_in_place import DotsInPlacePlan
from convgrad.plan.choose import choose, variants
from convgrad.plan.machine import machine_for

pytestmark = needs_dots


def pointwise(unknown, image, channels, *, stride=1, **others):
    """One tap, channels last, in bf16."""
    windows = tuple(-(-n // stride) for n in image)
    problem = problem_of(
        unknown, image, windows, (1,) * len(image), channels=channels, stride=stride, layout="NXC", **others
    )
    return in_bf16(problem, others.get("out_dtype", "bf16"))


def in_place(problem, isa=EMULATED):
    """The plan, whether it is the fastest or not; None where it cannot be."""
    found = (plan for plan in variants(problem, machine_for(isa)) if isinstance(plan, DotsInPlacePlan))
    return next(found, None)


@each
def test_whole_numbers_are_exact(isa):
    """In tiles and blocks of all sizes, of which the last ones begin early."""
    tried = 0
    for seed in range(18):
        rng = np.random.default_rng(seed)
        image = [(int(rng.integers(7, 90)),), (5, int(rng.integers(4, 20))), (2, 3, 9)][seed % 3]
        channels = tuple(2 * int(n) for n in rng.integers(1, 60, 2))
        problem = pointwise(
            Y if seed % 2 else X, image, channels, stride=1 + (seed % 4 == 3), bias=bool(rng.integers(2)),
            groups=int(rng.integers(1, 3)), batch=int(rng.integers(1, 4)),
        )  # fmt: skip
        plan = in_place(problem, isa)
        if plan is None:
            continue
        rows = int(rng.integers(1, plan.tile[-1] + 1))
        block = (int(rng.integers(1, 3)), *plan.block[1:-1], rows * int(rng.integers(1, 5)))
        small = replace(plan, tile=(*plan.tile[:-1], rows), block=block, blocks_per_task=int(rng.integers(1, 3)))
        for one in (plan, small):
            one.validate()
            check_plan(problem, one, machine_for(isa), seed, low=isa == HERE[-1])
        tried += 1
    assert tried > 9


@pytest.mark.parametrize("unknown", [X, Y])
def test_every_number_is_watched(unknown):
    """Those of the last channels, which fill no vector, and of the last tile, too."""
    for channels in ((6, 16), (16, 6), (34, 34)):
        plan = in_place(pointwise(unknown, (3, 5), channels, batch=2))
        if plan is not None:
            check_watched(plan)


@pytest.mark.parametrize("kind", BF16_KINDS)
def test_every_kind_of_data_is_multiplied_as_f32(kind):
    check_kind(in_place(pointwise(Y, (4, 5), (34, 32), batch=2, out_dtype="f32")), kind)


def test_chosen_where_nothing_has_to_be_moved():
    def chosen(problem, isa=EMULATED):
        return isinstance(choose(problem, machine_for(isa)), DotsInPlacePlan)

    layer = pointwise(Y, (56, 56), (256, 64), batch=4)
    assert chosen(layer)
    assert chosen(replace(layer, unknown=X))
    assert chosen(pointwise(Y, (56, 56), (256, 512), stride=2))
    assert not chosen(replace(layer, dtype="f32", out_dtype="f32", fpmath_mode="bf16"))
    assert not chosen(pointwise(Y, (56, 56), (255, 64)))
    assert not chosen(in_bf16(problem_of(Y, (56, 56), (56, 56), (1, 1), channels=(256, 64)), "bf16"))


def test_tiles_have_no_more_rows_than_share_their_sets_of_l1():
    """Positions of 1024, 2048 and 4096 bytes, of one group or of several."""
    rows = [in_place(pointwise(Y, (14, 14), (n, 16), batch=2)).tile[-1] for n in (512, 1024, 2048)]
    assert rows == [28, 14, 8]
    assert in_place(pointwise(Y, (14, 14), (64, 16), batch=2, groups=16)).tile[-1] == 14


@pytest.mark.parametrize(("given", "solved", "width"), [(2, 128, 128), (4, 96, 96), (8, 64, 64), (512, 128, 32)])
def test_tiles_of_few_channels_write_all_of_a_position(given, solved, width):
    """Where there is little to sum, what takes longest is to come back to a position for its other channels."""
    plan = choose(pointwise(X, (56, 56), (solved, given), batch=2), machine_for("avx512_bf16"))
    assert isinstance(plan, DotsInPlacePlan)
    assert plan.width == width
