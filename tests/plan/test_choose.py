"""What is chosen: who packs the weights, how work is divided, and which kind of plan."""

from dataclasses import replace
from math import prod

import pytest

from codegen.dense_problems import problem_of as dense_problem
from codegen.random_problems import strides_in
from convgrad.codegen.lower import lower
from convgrad.dtypes import SIZES
from convgrad.plan.by_dots.dots import DotDataPlan, DotWeightsPlan
from convgrad.plan.by_dots.far_pairs import FarPairsPlan
from convgrad.plan.by_matrix.matrix import MatrixDataPlan
from convgrad.plan.by_matrix.runs import DotRunPlan
from convgrad.plan.choose import choose, variants
from convgrad.plan.costs import LINE
from convgrad.plan.few_channels.window_lanes import WindowLanesPlan
from convgrad.plan.general.block_costs import EVEN_TASKS
from convgrad.plan.general.data import DataPlan
from convgrad.plan.general.weights import WeightsPlan
from convgrad.plan.groups.group_weights import GroupWeightsPlan
from convgrad.plan.machine import machine_for
from convgrad.plan.order import channels_in_turn, taps_inside
from convgrad.problem.conv import ConvProblem, Unknown
from plan.layers import TABLE, each_level, problem_of, tasks_of_a_panel


@pytest.mark.parametrize("isa", ["avx512", "amx_emulated"])
@pytest.mark.parametrize("nxc", [False, True], ids=["NCX", "NXC"])
@pytest.mark.parametrize("unknown", [Unknown.X, Unknown.Y])
def test_weights_that_outweigh_the_image_are_packed_by_the_task_that_uses_them(unknown, nxc, isa):
    batch, dtype = (8, "f32") if isa == "avx512" else (4, "bf16")  # f32 in pieces outweighs twice as much
    heavy = problem_of(unknown, channels=(512, 512), image=7, windows=7, taps=3, low=1, batch=batch, nxc=nxc)
    heavy = replace(heavy, dtype=dtype, out_dtype=dtype)
    plan = choose(heavy, machine_for(isa))
    assert isinstance(plan, MatrixDataPlan) == (isa != "avx512")
    assert (plan.packs_weights, tasks_of_a_panel(plan)) == (True, 1)
    assert prod(plan.grid) in (4, 6, 8), "a few threads are busy, two of them to the end"
    module = lower(plan)
    assert module.shared_bytes <= (0 if isa == "avx512" else 4096), "what was found about the data alone is shared"
    assert module.scratch_bytes < 1 << 20
    light = problem_of(unknown, channels=(64, 64), image=56, windows=56, taps=3, low=1, batch=4, nxc=nxc)
    assert not choose(light, machine_for(isa)).packs_weights


@pytest.mark.parametrize("isa", ["avx512", "amx"])
@pytest.mark.parametrize("unknown", [Unknown.X, Unknown.Y])
def test_taps_that_miss_the_input_cost_nothing(unknown, isa):
    def predicted(**sizes):
        problem = problem_of(unknown, channels=(256, 256), image=33, windows=33, taps=3, **sizes)
        if isa == "amx":  # f32 is for vectors where most taps miss
            problem = replace(problem, dtype="bf16", out_dtype="bf16")
        plan = choose(problem, machine_for(isa))
        assert isinstance(plan, MatrixDataPlan) == (isa == "amx")
        return float(plan.reasons[0].split(": ")[1].split()[0])

    near, far = predicted(low=1), predicted(dilation=18, low=18)
    assert far < 0.75 * near, "a tap beside the centre meets 15 rows of 33, and 15 columns"


@pytest.mark.parametrize(("side", "channels", "on_tiles"), [(32, 810, False), (32, 816, True), (16, 810, True)])
def test_results_that_begin_anywhere_in_far_lines_are_for_vectors(side, channels, on_tiles):
    """Tiles store them by parts of lines."""
    problem = problem_of(Unknown.Y, channels=(64, channels), image=side, windows=side, taps=1, batch=1, nxc=True)
    plan = choose(problem, machine_for("amx", caches=(48 << 10, 2 << 20, 32 << 20)))
    assert isinstance(plan, MatrixDataPlan) == on_tiles


def test_few_channels_are_packed_by_whole_rows():
    """A part of a row begins anew, for three channels of 113 columns as for all of a row."""
    for channels, whole in ((3, True), (64, False)):
        problem = problem_of(
            Unknown.Y, channels=(channels, 32), image=224, windows=112, taps=3, stride=2, low=1, batch=4, nxc=True
        )
        plan = choose(problem, machine_for("avx512"))
        assert (plan.block[-1] == 112) == whole


@pytest.mark.parametrize("unknown", [Unknown.X, Unknown.Y])
@pytest.mark.parametrize(
    ("sizes", "evenly"), [({"image": 80, "windows": 80, "batch": 1}, True), ({"image": 10, "windows": 10}, False)]
)
def test_much_work_is_divided_into_many_tasks_since_threads_wait_for_the_last(unknown, sizes, evenly):
    plan = choose(problem_of(unknown, channels=(128, 128), taps=3, low=1, **sizes, nxc=True), machine_for("avx512"))
    assert (prod(plan.grid) >= EVEN_TASKS) == evenly


def test_a_task_across_groups_packs_whole_positions_of_images_that_hold_channels_innermost():
    sizes = {"channels": (4, 4), "groups": 32, "image": 56, "windows": 56, "taps": 3, "low": 1, "batch": 4}
    plan = choose(problem_of(Unknown.Y, **sizes, nxc=True), machine_for("avx512"))
    assert (plan.spread, plan.slab_groups) == (True, 32)


@pytest.mark.parametrize("unknown", [Unknown.X, Unknown.Y])
def test_many_channels_are_packed_side_by_side_in_either_layout(unknown):
    """A tile that reads a line of its own for every channel waits for it; columns far apart are packed as they lie."""
    for nxc in (False, True):
        plan = choose(TABLE[f"dense, {unknown.value}, {'NXC' if nxc else 'NCX'}"], machine_for("avx512"))
        assert plan.pixel_major
        assert plan.slab_strides[1] == 1
    few = choose(TABLE["stem, y, NCX"], machine_for("avx512"))
    assert not few.pixel_major, "three channels do not fill a vector"
    for stride, turned in ((2, True), (8, True), (9, False)):
        apart = problem_of(Unknown.Y, channels=(256, 256), image=14 * stride, windows=14, taps=1, stride=stride)
        assert choose(apart, machine_for("avx512")).pixel_major == turned


@pytest.mark.parametrize("dtype", ["f16", "bf16"])
def test_16_bits_are_not_turned_where_channels_lie_together(dtype):
    """As of f32, which is read in place there."""
    problem = problem_of(Unknown.Y, channels=(256, 64), image=56, windows=56, taps=1, batch=4, nxc=True)
    assert not choose(replace(problem, dtype=dtype, out_dtype=dtype), machine_for("avx2")).pixels
    for unknown in (Unknown.X, Unknown.Y):  # of 2x2 taps each number meets one
        halved = problem_of(unknown, channels=(64, 128), image=224, windows=112, taps=2, stride=2, nxc=True)
        assert not choose(replace(halved, dtype=dtype, out_dtype=dtype), machine_for("avx2")).pixels


@pytest.mark.parametrize("dtype", ["f16", "bf16"])
def test_parts_of_planes_of_16_bits_begin_with_lines(dtype):
    """3136 windows are cut into blocks of whole lines; not where windows of several taps lie differently in x and y."""
    layer = problem_of(Unknown.W, channels=(256, 64), image=56, windows=56, taps=1, batch=4)
    problems = replace(layer, dtype=dtype, out_dtype=dtype), layer
    blocks = [choose(problem, machine_for("avx512")).block for problem in problems]
    assert [block[-1] % 32 for block in blocks] == [0, 126 % 32]


def test_weights_that_few_tiles_meet_are_read_as_they_lie():
    """Even where their rows share sets of caches, which packing them meets as well; fewer of short vectors."""

    def reads(image, isa="avx512"):
        problem = problem_of(Unknown.X, channels=(2048, 512), image=image, windows=image, taps=1, nxc=True)
        return choose(problem, machine_for(isa)).reads_weights

    assert reads(4)
    assert not reads(8)
    assert [reads(image, "avx2") for image in (3, 4)] == [True, False]


@pytest.mark.parametrize("unknown", [Unknown.X, Unknown.Y])
@pytest.mark.parametrize("groups", [16, 21, 45, 48])
def test_depthwise_is_in_place_whatever_is_left_for_the_last_vector(groups, unknown):
    layer = {"channels": (1, 1), "image": 28, "windows": 14, "taps": 4, "stride": 2, "low": 1, "nxc": True}
    plan = choose(problem_of(unknown, groups=groups, **layer), machine_for("avx512"))
    assert plan.spread
    assert plan.reads_in_place
    assert plan.lane_groups <= groups


def test_lanes_of_weights_waste_no_second_vector_for_one_channel_more():
    """A tile of one vector takes what its broadcasts take, and no more."""
    layer = {"channels": (17, 16), "image": 14, "windows": 12, "taps": 3, "batch": 8}
    for nxc in (False, True):
        plan = choose(problem_of(Unknown.W, **layer, nxc=nxc), machine_for("avx512"))
        assert (plan.lane_side, plan.vectors) == ("y", 1)
        assert plan.row_channels * plan.tile_taps >= 17


def test_lanes_of_weights_are_not_transposed_from_much_the_larger_side():
    layer = {"channels": (480, 16), "image": 14, "windows": 14, "taps": 1, "batch": 16}
    turned, beside = (choose(problem_of(Unknown.W, **layer, nxc=nxc), machine_for("avx512")) for nxc in (False, True))
    assert (turned.lane_side, turned.rows_in_place) == ("y", True)
    assert beside.lane_side == "x"


def test_dot_products_leave_groups_of_half_a_vector_to_plans_across_groups():
    """Of equal arithmetic, which is in vain for half of the lanes of one, those that copy more take longer."""
    layer = {"image": 56, "windows": 28, "taps": 3, "stride": 2, "low": 1, "groups": 32, "batch": 4}
    machine = machine_for("avx512_bf16", triple="x86_64-unknown-linux-gnu")
    for channels, by_dots in ((8, False), (16, True)):
        problem = problem_of(Unknown.W, channels=(channels, channels), **layer)
        plan = choose(replace(problem, dtype="bf16", out_dtype="bf16"), machine)
        assert isinstance(plan, DotWeightsPlan | FarPairsPlan) == by_dots


def test_windows_are_paired_on_the_axis_that_wastes_the_least():
    """Two images; halves of a plane; neighbours in a dilated one, of which some taps meet few rows."""
    machine = machine_for("avx512_bf16", triple="x86_64-unknown-linux-gnu")
    small = {"channels": (512, 512), "image": 7, "windows": 7, "taps": 3, "low": 1}
    dilated = {"channels": (512, 256), "image": 33, "windows": 33, "taps": 3, "low": 18, "dilation": 18}
    for layer, number, step in (
        ({**small, "batch": 8}, 0, 1), ({**small, "image": 16, "windows": 16}, 1, 1), (dilated, 1, 2),
    ):  # fmt: skip
        problem = replace(problem_of(Unknown.W, **layer, nxc=True), dtype="bf16", out_dtype="bf16")
        plan = next(plan for plan in variants(problem, machine) if isinstance(plan, FarPairsPlan))
        assert (plan.fold.number, plan.fold.step) == (number, step)


def test_few_channels_that_strides_part_are_packed_as_they_lie():
    """Pairs of neighbouring windows need them in planes, which takes longer number by number."""
    machine = machine_for("avx512_bf16", triple="x86_64-unknown-linux-gnu")
    for stride, kind in ((2, FarPairsPlan), (1, DotWeightsPlan)):
        layer = {"channels": (4, 16), "image": 224, "windows": 224 // stride, "taps": 3, "low": 1, "batch": 4}
        problem = problem_of(Unknown.W, **layer, stride=stride, nxc=True)
        assert type(choose(replace(problem, dtype="bf16", out_dtype="bf16"), machine)) is kind


@pytest.mark.parametrize("nxc", [False, True])
@pytest.mark.parametrize(("stride", "channels", "kind"), [(4, 4, DotRunPlan), (4, 3, DotRunPlan), (1, 4, DotDataPlan)])
def test_few_channels_and_taps_that_strides_part_are_one_run(stride, channels, kind, nxc):
    machine = machine_for("avx512_bf16", triple="x86_64-unknown-linux-gnu")
    layer = {"channels": (channels, 96), "image": 112, "windows": 112 // stride, "taps": 5, "stride": stride, "low": 2}
    problem = problem_of(Unknown.Y, **layer, batch=2, nxc=nxc)
    assert type(choose(replace(problem, dtype="bf16", out_dtype="bf16"), machine)) is kind


def test_lanes_of_many_weights_lie_near_each_other_in_them():
    few = {"image": 7, "windows": 7, "taps": 3, "low": 1, "batch": 8}
    for channels, side in (((512, 512), "x"), ((19, 23), "y")):  # the latter would compute a quarter more
        plans = variants(problem_of(Unknown.W, channels=channels, **few), machine_for("avx512"))
        assert next(plan for plan in plans if type(plan) is WeightsPlan).lane_side == side


@each_level
@pytest.mark.parametrize("taps", [(1000,), (40, 40)])
@pytest.mark.parametrize("unknown", [Unknown.X, Unknown.Y])
def test_long_kernels_are_not_written_out(unknown, taps, isa):
    """A thousand taps of one channel took 2 to 5 s to compile."""
    image = (5000,) if len(taps) == 1 else (200, 200)
    low = tuple(r // 2 for r in taps)
    windows = tuple(n + 2 * b - r + 1 for n, b, r in zip(image, low, taps, strict=True))
    p = ConvProblem(
        unknown=unknown, batch=1, groups=1, x_channels=1, y_channels=2, x_extent=image, y_extent=windows, taps=taps,
        stride=(1,) * len(taps), dilation=(1,) * len(taps), pad_low=low,
        x_strides=strides_in(tuple(range(2 + len(taps) + 1)), (1, 1, 1, *image)),
        w_strides=strides_in(tuple(range(2 + len(taps) + 1)), (1, 2, 1, *taps)),
        y_strides=strides_in(tuple(range(2 + len(taps) + 1)), (1, 1, 2, *windows)),
    )  # fmt: skip
    for plan in variants(p, machine_for(isa)):
        if type(plan) is DataPlan:
            written = prod(axis.taps for axis in plan.axes if plan.unrolls(axis))
            assert written == 1 or prod(plan.tile) * plan.width // plan.lanes * written <= 1024


@pytest.mark.parametrize(("outputs", "windows"), [(16, True), (32, False), (48, False)])
def test_windows_that_a_stride_parts_are_lanes_for_few_channels_only(outputs, windows):
    """To pick them costs more than to turn y, once there are many channels of it."""
    stem = problem_of(
        Unknown.W, channels=(3, outputs), image=224, windows=112, taps=3, stride=2, low=1, batch=4, nxc=False
    )
    assert isinstance(choose(stem, machine_for("avx512")), WindowLanesPlan) == windows


@pytest.mark.parametrize("isa", ["portable", "avx2", "avx512"])
def test_vectors_across_groups_are_weighed_only_where_one_may_hold_several(isa):
    """Else x would be laid out in whole vectors of a number each, which are read in all lanes as they are."""
    machine = machine_for(isa)
    for channels in (1, 2, 3, 4, 6, 8):
        p = problem_of(Unknown.W, channels=(2, channels), groups=12, image=14, windows=14, taps=3, low=1, nxc=True)
        across = any(plan.spread for plan in variants(p, machine) if type(plan) is WeightsPlan)
        assert across == (channels < machine.lanes_f32)


def weights_of_groups(c, k, groups=32):
    """3x3 on 56x56, channels last, of so many channels of x and y in a group."""
    return problem_of(Unknown.W, channels=(c, k), groups=groups, image=56, windows=56, taps=3, low=1, batch=4, nxc=True)


def test_short_vectors_that_a_group_fills_are_not_shared_by_groups():
    """Its numbers need no copies for other lanes then."""
    for c in (4, 8):
        for k in (1, 2, 3):
            plans = variants(weights_of_groups(c, k), machine_for("avx2"))
            assert any(plan.spread for plan in plans if type(plan) is WeightsPlan) == (c < 8)


@pytest.mark.parametrize(("c", "k"), [(2, 1), (4, 4), (4, 3), (2, 2)])
def test_numbers_of_groups_are_picked_rather_than_spread_over_short_vectors(c, k):
    """A slab of them is several times as large as x, and read from L2."""
    assert isinstance(choose(weights_of_groups(c, k), machine_for("avx2")), GroupWeightsPlan)


@pytest.mark.parametrize(("c", "k", "isa", "across"), [
    (8, 4, "avx2", False), (4, 3, "avx2", False),
    (4, 4, "avx2", True), (2, 8, "avx2", True), (4, 2, "avx2", True), (8, 4, "avx512", True), (4, 3, "avx512", True),
])  # fmt: skip
def test_lanes_that_pick_from_other_parts_of_a_vector_take_longer(c, k, isa, across):
    """Not where one instruction does it, nor where a group's lanes are a whole vector or its channels a part of it."""
    problem = problem_of(Unknown.Y, channels=(c, k), groups=32, image=56, windows=56, taps=3, low=1, batch=4, nxc=True)
    assert choose(problem, machine_for(isa)).kind.startswith("across groups") == across


def groups_of(channels, groups, image, *, unknown=Unknown.Y, layout="NXC", stride=1, batch=1):
    """As many channels given as solved for, 3x3."""
    return dense_problem(
        unknown, (image,) * 2, (-(-image // stride),) * 2, (3, 3), channels=(channels, channels), groups=groups, low=1,
        stride=stride, batch=batch, layout=layout,
    )  # fmt: skip


@pytest.mark.parametrize("channels", [4, 8])
def test_planes_that_a_stride_parts_are_met_along_channels_by_short_vectors(channels):
    """Rows of outputs would have to be taken apart, number by number."""
    planes = groups_of(channels, 32, 56, stride=2, layout="NCX")
    assert "along channels" in str(choose(planes, machine_for("avx2"))).partition("\n")[0]


def test_groups_of_six_are_solved_for_across_groups_where_a_stride_parts_results():
    """Two of eight lanes would be empty, and what six hold would go to parts of positions apart from each other."""
    plan = choose(groups_of(6, 64, 10, unknown=Unknown.X, stride=2, batch=4), machine_for("avx2"))
    assert plan.kind.startswith("across groups")


@pytest.mark.parametrize(("channels", "groups", "image", "reads"), [
    (16, 64, 3, False), (16, 48, 3, True), (16, 48, 14, False), (32, 16, 7, False), (64, 4, 4, True),
])  # fmt: skip
def test_short_vectors_pack_weights_of_groups_whose_rows_are_few_lines(channels, groups, image, reads):
    """Rows of a tile are as far apart as all channels are long: in a page each, or in few places of L1, at worst."""
    plan = choose(groups_of(channels, groups, image), machine_for("avx2"))
    assert plan.kind == "along channels"
    assert plan.reads_weights == reads


@pytest.mark.parametrize(("groups", "along"), [(24, "along x"), (1, "along windows")])
def test_short_vectors_sum_windows_of_one_group_rather_than_of_several(groups, along):
    """Eight channels on either side fill lanes as well."""
    problem = dense_problem(
        Unknown.W, (777,), (777,), (5,), channels=(8, 8), groups=groups, low=2, batch=4, layout="NCX"
    )  # fmt: skip
    assert along in choose(problem, machine_for("avx2")).kind


@pytest.mark.parametrize("dtype", ["f32", "bf16"])
def test_tasks_of_single_rows_of_groups_take_whole_lines_with_short_vectors(dtype):
    """What one reads of a line, its neighbours would read from L2 again."""
    problem = dense_problem(
        Unknown.Y, (3000,), (3000,), (3,), channels=(1, 1), groups=96, low=1, dtype=dtype, layout="NXC"
    )
    plan = choose(problem, machine_for("avx2"))
    assert plan.kind == "across groups, rows together"
    assert plan.blocks_per_task * plan.width * SIZES[dtype] % LINE == 0


@pytest.mark.parametrize("isa", ["portable", "avx2", "avx512"])
def test_two_channels_made_of_one_are_picked_out_of_y(isa):
    """More of them take more shuffles than what is multiplied with each."""
    assert isinstance(choose(weights_of_groups(1, 2), machine_for(isa)), GroupWeightsPlan)
    assert not any(isinstance(plan, GroupWeightsPlan) for plan in variants(weights_of_groups(1, 3), machine_for(isa)))


@pytest.mark.parametrize("isa", ["avx512", "avx2"])
@pytest.mark.parametrize(
    ("channels", "apart", "skipped"),
    [
        ((96, 16), 2, ()),  # longer runs if taps were not far apart
        ((24, 30), 4, ("avx2",)),  # taps inside runs of channels, in longer vectors
        ((24, 96), 2, ("avx512", "avx2")),
    ],
)
def test_windows_as_far_apart_as_their_taps_have_one_order_of_sums_whatever_the_pads(channels, apart, skipped, isa):
    """Parts of an image have pads of their own; what is skipped for some may not tell runs, nor taps inside of them."""
    machine, problems = machine_for(isa), []
    for low in range(4):
        problem = dense_problem(
            Unknown.Y,
            (41, 41),
            (10, 10),
            (3, 3),
            channels=channels,
            stride=apart,
            dilation=apart,
            low=low,
            layout="NXC",
        )
        problems.append(choose(problem, machine).problem)
    lanes = machine.lanes_f32
    assert len({(channels_in_turn(p), taps_inside(p, lanes, machine.registers)) for p in problems}) == 1
    assert any(p.stride[-1] == p.dilation[-1] == 1 for p in problems) == (isa in skipped)
