"""Dot products of weights that nobody packs, whose channels of y lie side by side: exactly, and watched."""

from dataclasses import replace

import numpy as np
import pytest

from codegen.dense_problems import X, Y, problem_of
from codegen.dot_cases import EMULATED, HERE, check_watched, each, in_bf16, needs_dots
from codegen.matrix_checks import BF16_KINDS, check_kind
from codegen.random_problems import check_plan
from convgrad.codegen.by_dots import dots_unpacked
from convgrad.plan.by_dots.dots_unpacked import DotsUnpackedPlan
from convgrad.plan.choose import choose, variants
from convgrad.plan.machine import machine_for

pytestmark = needs_dots


def whole_images(channels, batch, taps=(1,), unknown=Y, layout="NXC", **others):
    """Windows that are all of an image each, in bf16; channels last, and so those of y side by side in weights."""
    ones = (1,) * len(taps)
    problem = problem_of(unknown, taps, ones, taps, channels=channels, batch=batch, layout=layout, **others)
    return in_bf16(problem, others.get("out_dtype", "bf16"))


def unpacked(problem, isa=EMULATED):
    """The plan, whether it is the fastest or not; None where it cannot be."""
    found = (plan for plan in variants(problem, machine_for(isa)) if isinstance(plan, DotsUnpackedPlan))
    return next(found, None)


@each
def test_whole_numbers_are_exact(isa):
    """In one tile and in two, of which the second begins early, and blocks of lanes that do."""
    tried = 0
    for seed in range(24):
        rng = np.random.default_rng(seed)
        channels = 2 * int(rng.integers(1, 70)), int(rng.integers(16, 140))
        batch, groups = int(rng.integers(1, 20)), int(rng.integers(1, 3))
        taps = [(1,), (3, 3), (2, 1, 4)][seed % 3] if groups == 1 else (1,)
        problem = whole_images(channels, batch, taps, bias=bool(rng.integers(2)), groups=groups)
        plan = unpacked(problem, isa)
        if plan is None:
            continue
        rows = -(-batch // 2)
        tile = (*plan.tile[:-1], rows)
        small = replace(plan, tile=tile, block=(*plan.block[:-1], 2 * rows), width=16, blocks_per_task=1)
        for one in (plan, small):
            one.validate()
            check_plan(problem, one, machine_for(isa), seed, low=isa == HERE[-1])
        tried += 1
    assert tried > 15


def shared(plan, width=16):
    """The plan that goes over a few rows of weights at a time, with its outputs in tiles of whole rows."""
    count = plan.axes[-1].count
    rows = next(rows for rows in (5, 4, 3, 2, 1) if count % rows == 0)
    tile, block = (*plan.tile[:-1], rows), (*plan.tile[:-1], count)
    return replace(plan, tile=tile, block=block, width=width, i_block=plan.channel_unit, writes_in_place=False)


@each
@pytest.mark.parametrize("blocks", [1, 2])
def test_shares_of_the_channels_are_summed_exactly(isa, blocks):
    """One after the other, the last of which is not whole, with the bias once; several tiles and blocks of lanes."""
    tried = 0
    for seed in range(16):
        rng = np.random.default_rng(seed)
        channels = 2 * int(rng.integers(30, 120)), int(rng.integers(16, 140))
        batch, groups = int(rng.integers(1, 20)), int(rng.integers(1, 3))
        problem = whole_images(channels, batch, bias=bool(rng.integers(2)), groups=groups)
        plan = unpacked(problem, isa)
        if plan is None:
            continue
        plan = replace(shared(plan), blocks_per_task=blocks)
        assert plan.i_blocks > 1
        plan.validate()
        check_plan(problem, plan, machine_for(isa), seed, low=isa == HERE[-1])
        tried += 1
    assert tried > 8


def test_shares_are_of_weights_that_are_far():
    near, far = (unpacked(whole_images((channels, 1000), 16)) for channels in (512, 4096))
    assert near.i_blocks == 1
    assert (far.i_block, far.i_blocks) == (512, 8)
    assert unpacked(whole_images((4096, 1000), 13)).i_blocks == 1  # rows of two tiles overlap


def test_every_number_is_watched():
    """Those of the last channels, which share a block of lanes with others, and of the bias."""
    for channels, batch in (((6, 16), 1), ((34, 37), 3), ((20, 70), 9)):
        check_watched(unpacked(whole_images(channels, batch)))
    check_watched(shared(unpacked(whole_images((90, 37), 4))))


@pytest.mark.parametrize("kind", BF16_KINDS)
def test_every_kind_of_data_is_multiplied_as_f32(kind):
    check_kind(unpacked(whole_images((34, 40), 5, out_dtype="f32")), kind)


@pytest.mark.parametrize("broken", ["only the first share of channels", "sums begun anew"])
def test_shares_that_are_broken_on_purpose_are_found(monkeypatch, broken):
    problem, right = whole_images((90, 40), 4), dots_unpacked.DotsUnpackedStages._sweep
    plan = shared(unpacked(problem))
    check_plan(problem, plan, machine_for(EMULATED), 0)

    def wrong(self, b, at, slab, results, block, i_block, fresh):
        if broken == "sums begun anew":
            fresh = True
        else:
            i_block = 0
        right(self, b, at, slab, results, block, i_block, fresh)

    monkeypatch.setattr(dots_unpacked.DotsUnpackedStages, "_sweep", wrong)
    with pytest.raises(AssertionError):
        check_plan(problem, plan, machine_for(EMULATED), 0)


@pytest.mark.parametrize("broken", ["the same row twice", "rows the other way round"])
def test_kernels_that_are_broken_on_purpose_are_found(monkeypatch, broken):
    problem, right = whole_images((34, 40), 5), dots_unpacked.UnpackedTile.row_of
    plan = unpacked(problem)
    check_plan(problem, plan, machine_for(EMULATED), 0)
    other = {"the same row twice": lambda row: 0, "rows the other way round": lambda row: 1 - row}[broken]
    monkeypatch.setattr(
        dots_unpacked.UnpackedTile, "row_of", lambda self, b, line, row: right(self, b, line, other(row))
    )  # fmt: skip
    with pytest.raises(AssertionError):
        check_plan(problem, plan, machine_for(EMULATED), 0)


def test_chosen_where_images_are_few():
    def chosen(problem):
        return isinstance(choose(problem, machine_for(EMULATED)), DotsUnpackedPlan)

    assert chosen(whole_images((1024, 1000), 16))
    assert chosen(whole_images((256, 100), 16, (4, 4)))
    assert not chosen(whole_images((1024, 1000), 64))
    assert chosen(whole_images((1024, 2048), 8))  # rows a multiple of 4 KiB apart
    assert not chosen(whole_images((1024, 2048), 16))
    assert not chosen(whole_images((1023, 1000), 16))
    assert not chosen(whole_images((1024, 1000), 16, unknown=X))
    assert not chosen(whole_images((1024, 1000), 16, layout="NCX"))
    assert not chosen(replace(whole_images((1024, 1000), 16), dtype="f32", out_dtype="f32", fpmath_mode="bf16"))
