"""The tiles of layers: how many outputs, and how many vectors of channels, are computed together."""

from dataclasses import replace
from math import prod

import pytest

from codegen.dense_problems import problem_of as exact_problem
from convgrad.plan.by_dots.dot_depthwise import DotDepthwisePlan
from convgrad.plan.by_matrix.runs import DotRunPlan
from convgrad.plan.choose import choose, variants
from convgrad.plan.few_channels.folded import FoldedPlan
from convgrad.plan.general.data import DataPlan
from convgrad.plan.in_place.flat_data import FlatDataPlan
from convgrad.plan.machine import machine_for
from convgrad.problem.conv import Unknown
from plan.layers import TABLE, each_level, problem_of


def one_row(problem):
    """The plan across groups whose tiles are outputs of one row."""
    plans = variants(problem, machine_for("avx512"))
    return next(plan for plan in plans if type(plan) is DataPlan and plan.spread)


def test_depthwise_layers_beyond_every_cache_move_many_channels_at_a_time():
    sizes = {"channels": (1, 1), "groups": 96, "image": 112, "windows": 56, "taps": 3, "stride": 2, "low": 1}
    for unknown in (Unknown.X, Unknown.Y):
        far = one_row(problem_of(unknown, **sizes, batch=4, nxc=True))
        small = sizes | {"image": 28, "windows": 14}
        near = one_row(problem_of(unknown, **small, batch=1, nxc=True))
        assert (far.width, far.lane_blocks) == (96, 1)
        assert near.width < far.width


@pytest.mark.parametrize(("isa", "dtype", "rows"), [("avx512", "f16", 4), ("avx512", "bf16", 4), ("avx2", "bf16", 2),
                                                    ("avx2", "f16", 2), ("avx512", "f32", 4)])  # fmt: skip
def test_what_tiles_of_windows_widen_serves_many(isa, dtype, rows):
    """Numbers of 16 bits, where widening them takes as many instructions as multiplying."""
    problem = problem_of(Unknown.W, channels=(64, 1), image=60, windows=60, taps=3, low=1, batch=2, nxc=True)
    plan = choose(replace(problem, dtype=dtype, out_dtype=dtype), machine_for(isa))
    assert (plan.rows, plan.columns) == (rows, 4 if dtype == "f32" else 8)


def test_tiles_of_windows_keep_more_rows_than_would_be_widened_together():
    """A column of taps, whose sums leave room for four rows with the registers of AVX2."""
    image = {"channels": (1, 1), "groups": 64, "low": (3, 0), "layout": "NXC"}
    problem = exact_problem(Unknown.W, (60, 60), (60, 60), (7, 1), **image)
    plan = choose(replace(problem, dtype="bf16", out_dtype="bf16"), machine_for("avx2"))
    assert (plan.rows, plan.tap_rows) == (4, 7)


@pytest.mark.parametrize(("isa", "groups", "columns"), [("avx2", 96, 28), ("avx2", 768, 8), ("avx512", 96, 8)])
def test_tiles_of_short_vectors_are_long_where_sums_come_and_go(isa, groups, columns):
    """As far as L1 has places for what lies a power of two apart; longer vectors have more arithmetic for sums."""
    sizes = {"channels": (1, 1), "groups": groups, "image": 56, "windows": 56, "taps": 11, "low": 5, "nxc": True}
    plan = choose(problem_of(Unknown.W, **sizes), machine_for(isa))
    assert plan.tap_rows == 1
    assert plan.columns == columns


def test_small_images_are_tiled_across_the_batch():
    """Of 4x4 images that one position gives, a tile in an image meets one tap of sixteen at each of its outputs.

    Channels lie together in the image and taps in the weights, else these are a product of matrices.
    """
    sizes = {"channels": (1024, 96), "image": 4, "windows": 1, "taps": 4, "nxc": True}
    many = choose(problem_of(Unknown.X, **sizes, batch=16), machine_for("avx512"))
    assert many.tile[0] > 1
    assert many.tile[1:] == (1, 1)
    one = choose(problem_of(Unknown.X, **sizes, batch=1), machine_for("avx512"))
    assert one.tile == (1, 1, 1), "without neighbours that meet the same taps"
    large = problem_of(Unknown.Y, channels=(64, 64), image=56, windows=56, taps=3, low=1, batch=4)
    assert choose(large, machine_for("avx512")).tile[0] == 1


def test_depthwise_tiles_hold_several_outputs():
    """One alone waits for itself; a column is for tensors that are far away."""
    sizes = {"channels": (1, 1), "groups": 32, "nxc": True}
    long = problem_of(Unknown.Y, image=60, windows=7, taps=16, stride=8, low=4, batch=40, **sizes)
    assert prod(choose(long, machine_for("avx512")).tile) > 1
    near, far = (
        choose(
            problem_of(Unknown.Y, image=64, windows=32, taps=3, stride=2, low=1, batch=n, **sizes),
            machine_for("avx512"),
        )
        for n in (2, 40)
    )
    assert near.tile[-1] > 1
    assert far.tile[-1] == 1


def test_depthwise_tiles_of_strided_volumes_follow_no_more_rows_than_a_core_can():
    """Of every plane that a tile meets; volumes that L2 holds have no need to."""
    sizes = {"channels": (1, 1), "groups": 64, "stride": (1, 2, 2), "low": (1, 1, 1), "layout": "NXC"}

    def rows(planes, extent):
        problem = exact_problem(
            Unknown.Y, (planes, extent, extent), (planes, extent // 2, extent // 2), (3,) * 3, **sizes
        )
        return choose(problem, machine_for("avx512")).tile[-2]

    assert rows(8, 112) == 2
    assert rows(4, 56) > 2


@pytest.mark.parametrize(("image", "taps", "tile"), [(14, 3, (1, 7)), (14, 7, (1, 7)), (56, 7, (1, 7)), (7, 5, (1, 7))])
def test_depthwise_tiles_of_short_vectors_are_parts_of_a_row(image, taps, tile):
    """A vector of weights serves all of them; it would serve few of several rows."""
    sizes = {"channels": (1, 1), "groups": 96, "image": image, "windows": image, "taps": taps, "low": taps // 2}
    for unknown in (Unknown.X, Unknown.Y):
        assert choose(problem_of(unknown, **sizes, nxc=True), machine_for("avx2")).tile[-2:] == tile


def test_depthwise_tiles_of_short_vectors_that_wait_for_memory_have_one_column_where_strides_keep_rows_apart():
    sizes = {"channels": (1, 1), "groups": 96, "image": 112, "windows": 56, "taps": 3, "stride": 2, "low": 1}
    near, far = (
        choose(problem_of(Unknown.Y, **sizes, batch=n, nxc=True), machine_for("avx2")).tile[-2:] for n in (1, 4)
    )
    assert near[1] > 1
    assert far == (4, 1)


def test_one_vector_of_channels_made_of_strided_rows_is_not_along_outputs():
    """Whose rows would be taken apart first."""
    layer = {"channels": (16, 16), "groups": 4, "image": 112, "windows": 56, "taps": 3, "stride": 2, "low": 1}
    assert not choose(problem_of(Unknown.Y, batch=2, **layer), machine_for("avx512")).pixels


def test_tiles_are_wide_where_loads_are_what_takes_time():
    plan = choose(TABLE["dense, y, NXC"], machine_for("avx512"))
    assert plan.width >= 3 * plan.lanes


@pytest.mark.parametrize("unknown", [Unknown.X, Unknown.Y])
def test_rows_of_sevens_are_tiled_without_rest(unknown):
    """Tiles of 7 x 4 leave the last vector of weights in memory; 6 x 4 compute 30 of 28 outputs, 7 x 3 144 of 128."""
    for nxc in (False, True):
        sizes = {"channels": (128, 128), "image": 28, "windows": 28, "taps": 3, "low": 1, "nxc": nxc}
        plan = choose(problem_of(unknown, **sizes), machine_for("avx512"))
        assert (prod(plan.tile), plan.width // plan.lanes) == (7, 4)


def test_tiles_of_few_rows_are_taken_where_those_of_more_compute_what_nobody_wants():
    """Wide tiles hide where vectors of weights come from: 4 x 4 loses less to that than 6 x 4 to the 33rd output."""
    volume = exact_problem(
        Unknown.Y, (16, 16, 32), (16, 16, 32), (3, 3, 3), channels=(32, 64), low=1, layout="NXC", batch=1
    )
    plan = choose(volume, machine_for("avx512"))
    assert (prod(plan.tile), plan.width // plan.lanes) == (4, 4)


@pytest.mark.parametrize(
    "problem",
    [
        problem_of(Unknown.Y, channels=(480, 16), image=56, windows=56, taps=1, nxc=True),
        problem_of(Unknown.X, channels=(16, 8), image=28, windows=14, taps=21, stride=2, low=10, batch=8),
    ],
    ids=["in place", "large kernel"],
)
def test_tiles_of_one_vector_are_taken_where_those_along_outputs_are_hardly_better(problem):
    """Not all processors take as long for numbers in all lanes as plans say, but all copy what is not read in place."""
    plan = choose(problem, machine_for("avx512"))
    assert (plan.pixels, plan.width) == (False, 16)


@pytest.mark.parametrize(
    ("groups", "stride", "width"),
    [(144, 1, 16), (128, 1, 128), (160, 2, 80), (144, 2, 48), (24, 2, 16)],
    ids=["a position is an odd number of lines", "positions collide", "strided", "strided, other", "strided, in L2"],
)
def test_depthwise_tiles_are_wide_where_neighbours_would_be_far(groups, stride, width):
    sizes = {"channels": (1, 1), "groups": groups, "image": 56, "windows": 56 // stride, "stride": stride, "taps": 3}
    for unknown in (Unknown.X, Unknown.Y):
        plan = one_row(problem_of(unknown, **sizes, low=1, nxc=True))
        assert (plan.reads_in_place, plan.width) == (True, width)


@each_level
@pytest.mark.parametrize("dtype", ["f32", "f64"])
def test_depthwise_tiles_are_never_wider_than_registers_allow(isa, dtype):
    """A tile of eight vectors across sixteen registers would leave none for sums."""
    sizes = {"channels": (1, 1), "groups": 64, "image": 112, "windows": 56, "taps": 3, "stride": 2, "low": 1}
    for unknown in Unknown:
        problem = replace(problem_of(unknown, **sizes, batch=4, nxc=True), dtype=dtype, out_dtype=dtype)
        for plan in variants(problem, machine_for(isa)):
            plan.validate()
            assert not isinstance(plan, DataPlan) or min(plan.tile) >= 1


@pytest.mark.parametrize(("channels", "vectors"), [(144, 3), (128, 4), (42, 1), (16, 1)])
def test_lines_of_bf16_are_not_written_by_halves(channels, vectors):
    """Of channels that lie side by side and fill vectors; tiles of one vector would be the taller ones."""
    layer = {"channels": (24, channels), "image": 64, "windows": 64, "taps": 1, "nxc": True}
    problem = replace(problem_of(Unknown.Y, **layer), dtype="bf16", out_dtype="bf16")
    assert choose(problem, machine_for("avx512_bf16")).width == 16 * vectors


def test_runs_of_taps_are_not_written_by_halves_either():
    problem = exact_problem(
        Unknown.Y,
        (299, 299),
        (149, 149),
        (3, 3),
        channels=(3, 32),
        stride=2,
        layout="NXC",
        dtype="bf16",
        out_dtype="bf16",
    )
    plan = choose(problem, machine_for("avx512_bf16"))
    assert isinstance(plan, DotRunPlan)
    assert plan.width == 32


@pytest.mark.parametrize(
    ("channels", "isa", "dtype"),
    [((24, 144), "avx512_bf16", "bf16"), ((42, 42), "avx512_bf16", "bf16"), ((16, 96), "avx512", "f32")],
)
def test_tiles_that_write_where_they_sum_little_are_small(channels, isa, dtype):
    """Of 27 or 28 vectors of results, which registers hold, a core finishes the last before it begins others."""
    problem = problem_of(Unknown.Y, channels=channels, image=112, windows=112, taps=1, nxc=True)
    plan = choose(replace(problem, dtype=dtype, out_dtype=dtype), machine_for(isa))
    assert plan.reads_in_place
    assert plan.writes_in_place
    assert 8 <= prod(plan.tile) * plan.width // plan.lanes <= 24


def test_tiles_are_large_where_weights_outweigh_what_they_write():
    """Of sixteen outputs, tiles of four read each of 100 times 16384 weights four times instead of twice."""
    problem = exact_problem(Unknown.X, (4, 4), (1, 1), (4, 4), channels=(1024, 100), batch=16, layout="NXC")
    plan = choose(problem, machine_for("avx512"))
    assert plan.writes_in_place
    assert plan.tile[-1] == 8


def test_tiles_of_dot_products_have_sums_enough_for_their_latency():
    """Of 2x1 outputs, or of a few more, the next product would wait for the last one."""
    sizes = {"channels": (64, 256), "image": 10, "windows": 6, "taps": 5, "batch": 2, "nxc": True}
    problem = problem_of(Unknown.X, **sizes)
    plan = choose(replace(problem, dtype="bf16", out_dtype="bf16"), machine_for("avx512_bf16"))
    assert plan.ON_UNITS
    assert prod(plan.tile) * plan.width // plan.lanes >= 12


def test_tiles_of_flat_planes_leave_registers_for_what_they_read():
    """Two for each vector, besides its sums of all channels: nine channels by three vectors would spill."""
    for channels in (128, 172, 192):
        sizes = {"channels": (channels, 3), "image": 112, "windows": 112, "taps": 3, "low": 1}
        plans = variants(problem_of(Unknown.X, **sizes), machine_for("avx512"))
        flat = next(plan for plan in plans if isinstance(plan, FlatDataPlan))
        assert flat.vectors * (flat.width + 2) <= 32


def test_depthwise_tiles_of_dot_products_are_counted_like_those_of_vectors():
    """By what tiles of one row are counted: 256 taps are written out, and take a fraction of what is predicted."""
    sizes = {"channels": (1, 1), "groups": 21, "image": 264, "windows": 32, "taps": 16, "stride": 8}
    problem = replace(problem_of(Unknown.Y, **sizes, nxc=True), dtype="bf16", out_dtype="bf16")
    assert isinstance(choose(problem, machine_for("avx512_bf16")), DotDepthwisePlan)
    assert not choose(problem, machine_for("avx512")).ON_UNITS


def test_taps_that_an_output_does_not_meet_are_not_counted():
    """Of 22 rows of taps an element meets one, whichever way vectors run: those across groups need no other."""
    sizes = {"channels": (1, 2), "groups": 16, "batch": 8, "layout": "NXC"}
    plan = choose(exact_problem(Unknown.X, (22, 500), (1, 500), (22, 1), **sizes), machine_for("avx512"))
    assert plan.spread


def test_short_vectors_take_all_phases_of_the_image_of_a_stem_at_once():
    stem = TABLE["stem, x, NCX"]
    plan = choose(stem, machine_for("avx2"))
    assert type(plan) is FoldedPlan
    assert plan.width == 6, "two phases of three channels"


def test_of_two_sides_in_planes_the_one_of_fewer_numbers_is_turned():
    """By one tap; though lanes are filled worse. Not where rows of a tile would lie in the same set of L1."""

    def plan_of(image, channels=(144, 24)):
        sizes = {"channels": channels, "image": image, "windows": image, "taps": 1, "batch": 2}
        return choose(problem_of(Unknown.W, **sizes), machine_for("avx512"))

    assert [plan_of(56).lane_side, plan_of(56, (24, 144)).lane_side] == ["y", "x"]
    assert plan_of(64).lane_side == "x"


def test_of_two_sides_in_planes_one_with_numbers_between_is_not_turned():
    """Which takes longer; with short vectors it is told from none."""

    def plan_of(stride, isa="avx512"):
        sizes = {"channels": (96, 128), "image": 56 * stride, "windows": 56, "taps": 1, "batch": 4}
        return choose(problem_of(Unknown.W, **sizes, stride=stride), machine_for(isa))

    assert [plan_of(1).lane_side, plan_of(2).lane_side, plan_of(2, "avx2").lane_side] == ["x", "y", "x"]
