"""Weights whose lanes lie side by side, read as they lie."""

from dataclasses import replace
from math import prod

import pytest

from codegen.dense_problems import problem_of
from codegen.emitted import each_isa
from codegen.random_problems import check_plan
from convgrad.codegen.lower import lower
from convgrad.plan.choose import choose, variants
from convgrad.plan.machine import machine_for
from convgrad.problem.conv import Unknown

X, Y = Unknown.X, Unknown.Y

LAYERS = {
    "a row, with bias, and lanes that overlap": dict(
        image=(101,), windows=(101,), taps=(1,), channels=(33, 72), batch=2, bias=True
    ),
    "taps, and more than one run of channels": dict(
        image=(7, 9), windows=(7, 9), taps=(3, 3), channels=(130, 80), low=1
    ),
    "windows as large as the image": dict(image=(5, 5), windows=(1, 1), taps=(5, 5), channels=(70, 100), batch=3),
    "strides and groups": dict(image=(9, 9), windows=(4, 4), taps=(3, 3), channels=(32, 64), stride=2, groups=2),
}


def _readable(problem, isa):
    """Plans that may read the weights of a problem as they lie, and the same in shares of the channels."""
    for plan in variants(problem, machine_for(isa)):
        if plan.ON_UNITS or not getattr(plan, "may_read_weights", False):
            continue
        plan = replace(plan, reads_weights=True, packs_weights=False)
        yield plan
        share = plan.packable(plan.in_channels // 2 + 1)
        if share < plan.in_channels:
            yield replace(plan, reads_in_place=False, writes_in_place=False, i_block=share)


@each_isa
@pytest.mark.parametrize("dtype", ["f32", "f16", "bf16"])
@pytest.mark.parametrize("sizes", LAYERS.values(), ids=LAYERS)
def test_weights_that_are_read_as_they_lie(sizes, dtype, isa):
    problem = problem_of(Y, **sizes, layout="NXC", dtype=dtype, out_dtype=dtype)
    lanes_last = replace(problem, w_strides=_with_lanes_last(problem))
    plans = list(_readable(lanes_last, isa))
    assert plans
    for plan in plans:
        assert [stage.symbol for stage in lower(plan).stages] == ["main"]
        check_plan(lanes_last, plan, machine_for(isa), low=True)


@each_isa
def test_solving_for_x_reads_lanes_of_x(isa):
    problem = problem_of(X, (7, 9), (7, 9), (3, 3), channels=(80, 130), low=1, layout="NXC")
    taps, c = (3 * 80 * 130, 80 * 130), problem.x_channels
    problem = replace(problem, w_strides=(0, c, 1, *taps))
    plans = list(_readable(problem, isa))
    assert len(plans) > 1
    for plan in plans:
        check_plan(problem, plan, machine_for(isa))


def _with_lanes_last(problem):
    """Strides of w in the order taps, group, channel of x, channel of y."""
    _, groups, channels = problem.shapes["y"][:3]
    steps, step = [], groups * problem.x_channels * channels
    for extent in reversed(problem.taps):
        steps.insert(0, step)
        step *= extent
    return (problem.x_channels * channels, 1, channels, *steps)


@pytest.mark.parametrize(
    ("sizes", "unpacked"),
    [
        (dict(image=(100,), channels=(96, 336)), True),
        (dict(image=(200,), channels=(1024, 512)), False),  # rows that push each other out of caches
        (dict(image=(100,), channels=(1024, 512)), True),  # which a few tiles may read from L3
        (dict(image=(100,), channels=(2048, 512)), False),  # not so many of them
        (dict(image=(30,), channels=(4096, 512)), True),  # unless tiles are fewer than packing is worth
        (dict(image=(9000,), channels=(96, 336)), False),  # many tiles make up for packing
    ],
)
def test_few_tiles_read_weights_as_they_lie(sizes, unpacked):
    problem = problem_of(Y, windows=sizes["image"], taps=(1,), layout="NXC", **sizes)
    problem = replace(problem, w_strides=_with_lanes_last(problem))
    plan = choose(problem, machine_for("avx512"))
    assert plan.reads_weights == unpacked
    assert ("unpacked weights" in str(plan)) == unpacked


@pytest.mark.parametrize("isa", ["avx512", "avx2", "portable"])
@pytest.mark.parametrize("dtype", ["f16", "bf16"])
def test_fewer_tiles_do_of_weights_that_each_of_them_widens(dtype, isa):
    """Of short vectors the fewer, if widening is more than an instruction, and taps are not beside the image."""

    def reads(rows, dtype, taps=1):
        problem = problem_of(
            Y, (rows,), (rows,), (taps,), low=(taps // 2,), channels=(96, 336), layout="NXC", dtype=dtype,
            out_dtype=dtype,
        )  # fmt: skip
        return choose(replace(problem, w_strides=_with_lanes_last(problem)), machine_for(isa)).reads_weights

    again = isa == "avx2" or (isa == "portable" and dtype == "f16")
    assert [reads(rows, dtype) for rows in (10, 49, 360)] == [True, not again, False]
    assert [reads(rows, "f32") for rows in (10, 49, 360)] == [True, True, True]
    assert [reads(30, dtype, taps) for taps in (3, 119)] == [not again, True]


@pytest.mark.parametrize(
    ("image", "taps", "channels", "isa", "expected"),  # weights as they lie, blocks of a task, channels at a time
    [
        (4, 3, (512, 512), "avx2", (True, 3, 64)),
        (4, 3, (512, 512), "avx512", (True, 1, 128)),  # whose vectors are lines
        (6, 3, (768, 768), "avx2", (True, 6, 64)),
        (4, 3, (512, 2048), "avx2", (False, 11, 64)),  # whose rows share too few places of L2 to be read as they lie
        (7, 3, (256, 512), "avx2", (False, 1, 128)),  # 4.5 MiB of weights, in 13 tasks
        (14, 3, (256, 256), "avx2", (False, 1, 256)),  # which L2 nearly holds
        (2, 1, (1000, 1280), "avx2", (True, 1, 1000)),
        (2, 1, (1280, 1280), "avx2", (True, 7, 256)),  # rows in 1280 pages
    ],
)
def test_tasks_read_whole_lines_of_weights_from_memory(image, taps, channels, isa, expected):
    """By several blocks of lanes that are not whole lines, of few channels at a time, while there are eight tasks."""
    sizes = {"channels": channels, "low": taps // 2, "layout": "NXC"}
    problem = problem_of(Y, (image,) * 2, (image,) * 2, (taps,) * 2, **sizes)
    plan = choose(replace(problem, w_strides=_with_lanes_last(problem)), machine_for(isa))
    assert (plan.reads_weights, plan.blocks_per_task, plan.i_block) == expected
    assert prod(plan.grid) >= 8 or plan.blocks_per_task == 1


@pytest.mark.parametrize(
    ("images", "channels", "isa", "expected"),  # weights as they lie, whether tasks pack them, channels at a time
    [
        (30, (2048, 1000), "avx2", (True, False, 256)),
        (30, (1000, 1000), "avx2", (True, False, 1000)),  # in 1000 pages
        (30, (2048, 1000), "avx512", (True, False, 2048)),  # of lines, which nobody has measured
        (4, (4096, 500), "avx2", (True, False, 4096)),  # rows by twos in a page, of which one tile asks for each once
        (30, (4096, 500), "avx2", (True, False, 256)),
        (90, (2048, 2048), "avx2", (False, True, 256)),  # rows that push each other out of caches
        (16, (2048, 2048), "avx2", (True, False, 256)),  # but for four tiles
        (90, (1024, 1024), "avx2", (False, True, 1024)),  # that are near
        (900, (2048, 1000), "avx2", (False, True, 2048)),  # many tiles, which read them packed
        (300, (3000, 1001), "avx2", (True, False, 215)),  # what meets them stays in L2
    ],
)
def test_rows_in_many_pages_are_read_some_at_a_time(images, channels, isa, expected):
    """Each tile, or task that packs them, would look for all of those pages."""
    problem = problem_of(Y, (1,), (1,), (1,), channels=channels, batch=images, layout="NXC")
    problem = replace(problem, w_strides=_with_lanes_last(problem))
    plan = choose(problem, machine_for(isa))
    assert (plan.reads_weights, plan.packs_weights, plan.i_block) == expected


@pytest.mark.parametrize("images", [3, 17])
@pytest.mark.parametrize("channels", [(1030, 1030), (1040, 1536)])
def test_runs_of_rows_in_many_pages(channels, images):
    """Read or packed, of either unknown."""
    problem = problem_of(Y, (1,), (1,), (1,), channels=channels, batch=images, layout="NXC")
    problem = replace(problem, w_strides=_with_lanes_last(problem))
    other = problem_of(X, (1,), (1,), (1,), channels=channels[::-1], batch=images, layout="NXC")
    other = replace(other, w_strides=(0, channels[1], 1, 0))
    for each in (problem, other):
        plan = choose(each, machine_for("avx2"))
        assert plan.i_blocks > 1
        check_plan(each, plan, machine_for("avx2"), low=True)
