"""What is chosen: which inputs are read where they lie, and which are packed."""

from dataclasses import replace
from math import prod

import pytest

from codegen import dense_problems
from convgrad.plan.by_dots.dots_in_place import DotsInPlacePlan
from convgrad.plan.choose import choose, variants
from convgrad.plan.few_channels.choose_window_lanes import SLAB_BYTES
from convgrad.plan.few_channels.window_lanes import WindowLanesPlan
from convgrad.plan.general.data import DataPlan
from convgrad.plan.general.data_in_place import outputs_near
from convgrad.plan.in_place.in_place_weights import InPlaceWeightsPlan
from convgrad.plan.in_place.pointwise import PointwisePlan
from convgrad.plan.in_place.row_data import RowDataPlan
from convgrad.plan.machine import machine_for
from convgrad.problem.conv import Unknown
from plan.layers import each_level, problem_of


def test_a_row_that_can_be_read_in_place_is():
    sizes = {"channels": (64, 64), "image": 130, "windows": 128, "taps": 3, "nxc": True}
    plan = choose(problem_of(Unknown.Y, **sizes), machine_for("avx512"))
    assert plan.reads_in_place
    assert plan.tile[:-1] == (1, 1)


@pytest.mark.parametrize(("channels", "solved", "rows"), [(1024, 16, 8), (1024, 32, 8), (512, 16, 16), (528, 16, 28)])
def test_rows_read_in_place_are_no_more_than_l1_holds_of_those_that_collide(channels, solved, rows):
    """Lines 4096 bytes apart, or half of that: 28 of them push each other out in every step."""
    problem = problem_of(Unknown.Y, channels=(channels, solved), image=56, windows=56, taps=1, nxc=True)
    plan = choose(problem, machine_for("avx512"))
    assert plan.reads_in_place
    assert plan.tile[-1] == rows


@each_level
@pytest.mark.parametrize("unknown", [Unknown.X, Unknown.Y])
@pytest.mark.parametrize(("taps", "image", "expected"), [(31, 56, False), (13, 14, False), (3, 14, True)])
def test_large_depthwise_kernels_pack_rows_that_are_mostly_border(unknown, taps, image, expected, isa):
    low = taps // 2
    p = problem_of(unknown, channels=(1, 1), groups=64, image=image, windows=image, taps=taps, low=low, nxc=True)
    assert choose(p, machine_for(isa)).reads_in_place == expected


@pytest.mark.parametrize(("groups", "channels", "batch", "near"), [
    (8, 32, 32, True), (16, 32, 32, True), (8, 32, 4, False), (4, 64, 32, False), (16, 16, 32, False),
    (2, 512, 32, False),
])  # fmt: skip
@pytest.mark.parametrize("unknown", [Unknown.X, Unknown.Y])
def test_groups_come_soon_after_each_other_where_memory_decides(unknown, groups, channels, batch, near):
    """Lines of other groups come along with those that one asks for, and should be there when these want them."""
    layer = {"channels": (channels, channels), "groups": groups, "image": 28, "windows": 28, "taps": 1, "nxc": True}
    plan = choose(problem_of(unknown, **layer, batch=batch), machine_for("avx512"))
    assert plan.reads_in_place
    assert (outputs_near(plan, plan.problem.flops / 64) is not None) == near
    block = 4 * 2 * groups * channels * prod(plan.block)  # bytes, of all groups
    assert not near or block <= max(192 * 1024, 4 * 2 * groups * channels * 4 * plan.tile[-1])


def test_rows_across_lines_are_read_where_they_lie():
    """Vectors that cross lines cost less than a copy, from some channels on; and less than turning planes, of many."""
    few = problem_of(Unknown.Y, channels=(32, 3), image=60, windows=60, taps=3, low=1)
    fewer = problem_of(Unknown.Y, channels=(4, 3), image=60, windows=60, taps=3, low=1)
    many = problem_of(Unknown.Y, channels=(112, 112), image=32, windows=32, taps=3, low=1)
    machine = machine_for("avx512")
    assert isinstance(choose(few, machine), RowDataPlan)
    assert not isinstance(choose(fewer, machine), RowDataPlan)
    planes, turned = (
        choose(many, machine),
        choose(replace(many, y_strides=(112 * 32 * 32, 0, 1, 32 * 112, 112)), machine),
    )
    assert (type(planes), planes.pixels) == (DataPlan, True)
    assert not turned.pixels


@pytest.mark.parametrize("channels", [1, 2, 4])
def test_windows_of_a_long_axis_are_lanes_in_blocks_that_caches_hold(channels):
    """Read where they lie, channels first; slabs of a part of the axis, channels last."""
    long = {"image": (1 << 24,), "windows": (1 << 24,), "taps": (1,), "channels": (channels, 2)}
    in_place = choose(dense_problems.problem_of(Unknown.W, **long), machine_for("avx512"))
    assert isinstance(in_place, InPlaceWeightsPlan)
    packed = choose(dense_problems.problem_of(Unknown.W, **long, layout="NXC"), machine_for("avx512"))
    assert isinstance(packed, WindowLanesPlan)
    assert 4 * (packed.row_slab_size + packed.lane_slab_size) <= SLAB_BYTES


@pytest.mark.parametrize(("batch", "in_place"), [(16, True), (64, False)])
def test_planes_of_several_images_are_packed_where_they_come_from_memory(batch, in_place):
    """A block of two images reads from two places that are far apart."""
    plan = choose(
        problem_of(Unknown.W, channels=(2048, 512), image=7, windows=7, taps=1, batch=batch), machine_for("avx512")
    )
    assert plan.block[0] > 1
    assert plan.rows_in_place == in_place


@pytest.mark.parametrize("channels", [24, 40, 64])
def test_words_are_read_in_place_for_channels_that_fill_no_second_vector(channels):
    """By tiles of as many whole vectors as there are, the last of which begins early."""
    problem = problem_of(Unknown.Y, channels=(144, channels), image=56, windows=56, taps=1, nxc=True)
    plan = choose(replace(problem, dtype="bf16", out_dtype="bf16"), machine_for("avx512_bf16"))
    assert isinstance(plan, DotsInPlacePlan)
    assert plan.width <= channels


@pytest.mark.parametrize(("dtype", "channels", "isa", "expected"), [
    ("f32", 3, "avx512", True), ("f16", 3, "avx512", True), ("f16", 4, "avx512", True), ("f16", 5, "avx512", False),
    ("bf16", 3, "avx512", True), ("bf16", 3, "avx512_bf16", False),
])  # fmt: skip
def test_rows_of_stride_two_of_few_channels_are_read_in_place(dtype, channels, isa, expected):
    """Every second number of a row takes an instruction or two; dot products want pairs."""
    layer = {"channels": (channels, 32), "image": 224, "windows": 112, "taps": 3, "stride": 2, "low": 1}
    problem = replace(problem_of(Unknown.Y, **layer, nxc=False), dtype=dtype, out_dtype=dtype)
    assert (type(choose(problem, machine_for(isa))) is RowDataPlan) == expected


def test_long_rows_of_16_bits_are_widened_once():
    """Each of 31 taps would widen what it meets; with f32 there is nothing to widen, and 15 taps have tiles of rows."""
    for taps, dtype, in_place in ((31, "f32", True), (31, "f16", False), (31, "bf16", False), (15, "f16", True)):
        sizes = {"channels": (1, 1), "groups": 144, "low": taps // 2, "layout": "NXC"}
        problem = dense_problems.problem_of(Unknown.Y, (250,), (250,), (taps,), batch=16, **sizes)
        plan = choose(replace(problem, dtype=dtype, out_dtype=dtype), machine_for("avx512"))
        assert plan.spread
        assert plan.reads_in_place == in_place


def test_few_channels_are_made_along_outputs_of_16_bits_too():
    """Four of 32: vectors of channels leave twelve lanes empty, which is more than what turning takes."""
    sizes = {"channels": (32, 4), "image": 160, "windows": 160, "taps": 1, "nxc": True}
    for dtype in ("f32", "f16", "bf16"):
        problem = replace(problem_of(Unknown.Y, **sizes), dtype=dtype, out_dtype=dtype)
        assert choose(problem, machine_for("avx512")).pixels


@pytest.mark.parametrize(("image", "expected"), [(32, False), (31, True)])
def test_rows_of_windows_that_drive_each_other_out_are_packed(image, expected):
    """Of a weights gradient: planes of 4096 bytes, fourteen of which a tile reads, fall into the same set of L1."""
    sizes = {"channels": (24, 96), "image": image, "windows": image, "taps": 1, "batch": 4}
    plans = variants(problem_of(Unknown.W, **sizes), machine_for("avx512"))
    along_x = next(plan for plan in plans if plan.lane_side == "x")
    assert along_x.row_channels > 12
    assert along_x.rows_in_place == expected


@pytest.mark.parametrize(("image", "widths"), [(64, range(1, 9)), (62, (9,))])
def test_channels_written_where_they_lie_do_not_drive_each_other_out(image, widths):
    """Planes of 16384 bytes: the lines of nine of them are one more than some L1 hold."""
    sizes = {"channels": (16, 96), "image": image, "windows": image, "taps": 1, "batch": 4}
    plan = choose(problem_of(Unknown.Y, **sizes), machine_for("avx512"))
    assert isinstance(plan, PointwisePlan)
    assert plan.width in widths


@pytest.mark.parametrize(("channels", "together"), [((24, 160), 0), ((24, 112), 16), ((48, 160), 16)])
def test_rows_that_one_tile_meets_are_packed_as_one(channels, together):
    """Of 16 bits, which short vectors pack: runs that stay in L1 cost a copy more, and nobody comes back for them."""
    sizes = {"channels": channels, "image": 56, "windows": 56, "taps": 1, "batch": 4, "nxc": True}
    problem = replace(problem_of(Unknown.W, **sizes), dtype="f16", out_dtype="f16")
    plan = choose(problem, machine_for("avx2"))
    assert not plan.rows_in_place
    assert plan.rows_together == together
