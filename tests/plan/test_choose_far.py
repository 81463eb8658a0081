"""What plans keep off: strides that share places of L1, memory that is met again and again, parts of lines."""

from dataclasses import replace
from math import prod

import pytest

from codegen.dense_problems import problem_of as exact_problem
from convgrad.plan.by_dots.dots import DotDataPlan, DotWeightsPlan
from convgrad.plan.by_dots.far_pairs import FarPairsPlan
from convgrad.plan.choose import choose
from convgrad.plan.depthwise.depthwise_data import DepthwiseDataPlan
from convgrad.plan.few_channels.run_weights import RunWeightsPlan
from convgrad.plan.few_channels.window_lanes import WindowLanesPlan
from convgrad.plan.general.block_costs import ONCE_BYTES
from convgrad.plan.general.data_in_place import lines_of_l1
from convgrad.plan.in_place.pointwise import PointwisePlan
from convgrad.plan.in_place.row_data import RowDataPlan
from convgrad.plan.machine import machine_for
from convgrad.problem.conv import Unknown
from plan.layers import problem_of


def bf16(problem):
    return replace(problem, dtype="bf16", out_dtype="bf16")


def test_inputs_of_a_tile_across_images_do_not_share_places_of_l1():
    """Slabs of 4 x 4 outputs and 5 x 5 taps of 64 channels are 8 KiB apart: L1 has room for eight of such lines."""
    sizes = {"channels": (48, 64), "image": 35, "windows": 35, "taps": 5, "low": 2, "batch": 22}
    plan = choose(bf16(problem_of(Unknown.X, **sizes, nxc=True)), machine_for("avx512_bf16"))
    assert type(plan) is DotDataPlan
    assert plan.tile[0] == 22
    assert lines_of_l1(plan.packed_bytes * plan.slab_strides[0][0]) >= 22


def test_channels_that_are_scaled_are_met_where_they_lie():
    """1x1 with one channel per group is one row of positions: block by block of lanes that row would come anew."""
    for dtype in ("f32", "bf16"):
        large, small = (
            replace(
                problem_of(
                    Unknown.Y, channels=(1, 1), groups=80, image=size, windows=size, taps=1, batch=4, nxc=True
                ),
                dtype=dtype, out_dtype=dtype,
            )
            for size in (400, 28)
        )  # fmt: skip
        plan = choose(large, machine_for("avx512"))
        assert not isinstance(plan, DepthwiseDataPlan)
        assert plan.lane_blocks == 1
        assert isinstance(choose(small, machine_for("avx512")), DepthwiseDataPlan)


def test_short_rows_of_planes_are_not_packed_for_dot_products():
    """Each is a vector by itself, however little it holds; pairs of windows of two rows are words as well."""
    sizes = {"channels": (32, 144), "taps": 1, "batch": 4, "low": 1}
    short = choose(bf16(problem_of(Unknown.W, image=4, windows=5, **sizes)), machine_for("avx512_bf16"))
    assert not isinstance(short, DotWeightsPlan)


def test_weights_of_many_taps_are_not_written_in_parts_of_lines():
    """16 channels side by side are a line, of which lanes along the others would write a few at a time, tap by tap."""
    problem = problem_of(Unknown.W, channels=(128, 16), image=32, windows=16, taps=64, stride=2, low=1, nxc=True)
    group, *_ = problem.w_strides
    turned = replace(problem, w_strides=(group, 1, 16, 64 * 2048, 2048))  # (taps, channels of x, channels of y)
    plan = choose(turned, machine_for("avx512"))
    assert plan.lane_side == "y"


def test_planes_of_bf16_are_read_by_rows():
    """One channel by one: tiles that move along a row in place, of which two windows are a word, take longer."""
    problem = problem_of(Unknown.W, channels=(1, 1), groups=64, image=74, windows=74, taps=3, low=1)
    assert choose(bf16(problem), machine_for("avx512_bf16")).kind == "along windows, rows in place, by dot products"


def test_rows_of_f16_are_widened_for_few_tiles():
    """Each tile widens what it meets: to be met by fewer is worth more than what a core follows."""

    def rows(dtype, stride=1):
        layer = {"channels": (1, 1), "groups": 32, "image": 150, "windows": 150 // stride, "taps": 3, "low": 1}
        problem = problem_of(Unknown.Y, **layer, stride=stride)
        return choose(replace(problem, dtype=dtype, out_dtype=dtype), machine_for("avx512")).rows

    assert rows("f16") > rows("f32")
    assert rows("f16", 2) > rows("f32", 2)


def test_two_tasks_share_outputs_evenly():
    """Ten columns in blocks of eight would leave a second thread two of them."""
    for nxc in (False, True):
        problem = problem_of(Unknown.X, channels=(64, 256), image=10, windows=6, taps=5, batch=2, nxc=nxc)
        plan = choose(problem, machine_for("avx512"))
        assert plan.even_tasks > 1.9


def test_what_lies_between_taps_of_a_window_is_not_packed():
    """One window of 5 x 5 taps, two apart: 25 of 81 positions, of many channels side by side."""

    def whole(nxc, channels=352):
        sizes = {"channels": (channels, 464), "image": 9, "windows": 1, "taps": 5, "dilation": 2, "batch": 20}
        plan = choose(bf16(problem_of(Unknown.W, **sizes, nxc=nxc)), machine_for("avx512"))
        return plan.whole(1)

    assert not whole(nxc=True)
    assert whole(nxc=False)
    assert whole(nxc=True, channels=16)


def test_positions_that_come_from_memory_are_read_whole_for_few_channels():
    """A part of the channels at a time would meet lines of all of them twice. Tiles are such that L1 holds all rows."""

    def plan_of(channels, image, windows, taken=16):
        layer = {"channels": (channels, taken), "image": image, "windows": windows, "taps": 3, "stride": 3, "low": 1}
        return choose(problem_of(Unknown.Y, **layer, nxc=True), machine_for("avx512"))

    far, near, several = plan_of(320, 150, 50), plan_of(320, 75, 25), plan_of(320, 150, 50, taken=128)
    assert far.i_blocks == far.lane_blocks == 1
    assert near.i_blocks > 1
    assert several.i_blocks > 1
    assert several.lane_blocks > 1
    sharing = plan_of(256, 150, 50)  # rows 3 KiB apart are in every fourth place
    assert sharing.i_blocks == 1
    assert sharing.tile[-1] <= lines_of_l1(3 * 256 * 4) // 2 < far.tile[-1]


def test_lines_that_few_rows_meet_once_leave_l1_room_to_pass_by():
    """To 3 of 16 channels; numbers of two channels are no lines, and of several taps they come again."""
    machine = machine_for("avx512")

    def plan_of(channels, taken, taps):
        layer = {"channels": (channels, taken), "image": 800, "windows": 800, "taps": taps, "low": taps // 2}
        return choose(problem_of(Unknown.Y, **layer, nxc=True), machine)

    lines, words, again = plan_of(16, 3, 1), plan_of(2, 2, 1), plan_of(16, 3, 3)
    assert 4 * lines.slab_size <= ONCE_BYTES < 4 * words.slab_size
    assert 4 * again.slab_size > ONCE_BYTES
    assert lines.pixels
    assert words.pixels


def test_small_problems_are_shared_if_that_costs_little_else():
    """From 30,000 cycles on, in tasks; less is not worth another thread."""
    sizes = {"channels": (24, 24), "taps": 3, "low": 1, "nxc": True}
    for unknown in (Unknown.Y, Unknown.X):
        several, one = (
            choose(problem_of(unknown, **sizes, image=size, windows=size, batch=2), machine_for("avx512"))
            for size in (12, 5)
        )
        assert prod(several.grid) >= 2
        assert prod(one.grid) == 1
    several, one = (
        choose(problem_of(Unknown.W, **sizes, image=4, windows=4, batch=batch), machine_for("avx512"))
        for batch in (16, 2)
    )
    assert several.chunks >= 2
    assert one.chunks == 1


def test_sums_that_wait_for_each_other_are_not_made_of_pairs_far_apart():
    """A number of x meets three vectors at a time, or half a vector five numbers: others have more sums."""
    machine = machine_for("avx512_bf16")
    row = exact_problem(Unknown.W, (4000,), (4000,), (251,), channels=(1, 80), low=125)
    assert isinstance(choose(bf16(row), machine), RunWeightsPlan)
    few = problem_of(Unknown.W, channels=(1, 6), image=28, windows=28, taps=5, low=2, batch=64, nxc=True)
    assert isinstance(choose(bf16(few), machine), WindowLanesPlan)


def test_words_of_several_taps_take_more_than_their_products():
    """Patches of three channels: 12 x 32 sums of four taps would seem to take less than 6 x 48 of pairs far apart."""
    patches = problem_of(Unknown.W, channels=(3, 96), image=224, windows=56, taps=4, stride=4, batch=2)
    assert isinstance(choose(bf16(patches), machine_for("avx512_bf16")), FarPairsPlan)


@pytest.mark.parametrize(("outputs", "image", "expected"), [
    (1, 128, True), (2, 100, True), (8, 128, True), (8, 101, False), (21, 128, False), (21, 64, True),
])  # fmt: skip
def test_planes_from_memory_are_read_in_place_once(outputs, image, expected):
    """By one tap: where a tile makes all outputs; of planes that begin inside of lines in long runs only."""
    sizes = {"channels": (512, outputs), "image": image, "windows": image, "taps": 1}
    plan = choose(problem_of(Unknown.Y, **sizes, batch=1 + (image > 64)), machine_for("avx512"))
    assert isinstance(plan, PointwisePlan) == expected


@pytest.mark.parametrize("batch", [1, 2])
def test_planes_from_memory_are_packed_less_readily(batch):
    """Of 10 MB and of 20."""
    sizes = {"channels": (256, 1), "image": 100, "windows": 100, "taps": 3, "low": 1}
    plan = choose(problem_of(Unknown.Y, **sizes, batch=batch), machine_for("avx512"))
    assert isinstance(plan, RowDataPlan) == (batch == 2)


@pytest.mark.parametrize(("batch", "side"), [(2, "x"), (16, "y")])
def test_planes_from_memory_are_turned_less_readily(batch, side):
    """Of 8 MB and of 64."""
    sizes = {"channels": (64, 16), "image": 128, "windows": 64, "taps": 3, "stride": 2, "low": 1, "batch": batch}
    assert choose(problem_of(Unknown.W, **sizes), machine_for("avx512")).lane_side == side
