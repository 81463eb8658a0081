"""Plans: valid, readable, the same for equal arguments, and of bounded memory."""

from dataclasses import replace
from itertools import product
from math import prod
from time import process_time

import numpy as np
import pytest

from cases import shared
from codegen.random_problems import random_problem, strides_in
from codegen.test_kernels import problem_of as exact_problem
from convgrad.codegen.lower import lower
from convgrad.plan.block_costs import EVEN_TASKS
from convgrad.plan.blocks import MOST_PACKINGS
from convgrad.plan.choose import choose, variants
from convgrad.plan.data import DataPlan
from convgrad.plan.machine import LEVELS, machine_for
from convgrad.plan.matrix import MatrixDataPlan
from convgrad.plan.plane_data import PlaneDataPlan
from convgrad.plan.plane_weights import PlaneWeightsPlan
from convgrad.problem.conv import ConvProblem, Unknown
from convgrad.runtime import set_num_threads
from convgrad.runtime.threads import team

each_level = pytest.mark.parametrize("isa", LEVELS)
MOST_BYTES = 4 << 20  # of workspace on one thread, besides packed weights


def problem_of(unknown, *, channels, image, windows, taps, stride=1, dilation=1, low=0, groups=1, batch=1, nxc=False):
    """Dense, and square."""
    shapes = {
        "x": (batch, groups, channels[0], image, image),
        "w": (groups, channels[1], channels[0], taps, taps),
        "y": (batch, groups, channels[1], windows, windows),
    }
    order = (0, 3, 4, 1, 2) if nxc else (0, 1, 2, 3, 4)
    strides = {name: strides_in((0, 1, 2, 3, 4) if name == "w" else order, shape) for name, shape in shapes.items()}
    return ConvProblem(
        unknown=unknown, batch=batch, groups=groups, x_channels=channels[0], y_channels=channels[1],
        x_extent=(image,) * 2, y_extent=(windows,) * 2, taps=(taps,) * 2, stride=(stride,) * 2,
        dilation=(dilation,) * 2, pad_low=(low,) * 2, **{f"{name}_strides": value for name, value in strides.items()},
    )  # fmt: skip


LAYERS = {
    "stem": {"channels": (3, 64), "image": 224, "windows": 112, "taps": 7, "stride": 2, "low": 3},
    "dense": {"channels": (256, 256), "image": 14, "windows": 14, "taps": 3, "low": 1},
    "pointwise": {"channels": (512, 2048), "image": 7, "windows": 7, "taps": 1},
    "depthwise": {"channels": (1, 1), "groups": 144, "image": 56, "windows": 56, "taps": 3, "low": 1},
    "grouped": {"channels": (4, 4), "groups": 32, "image": 56, "windows": 56, "taps": 3, "low": 1},
    "generator": {"channels": (64, 128), "image": 64, "windows": 32, "taps": 4, "stride": 2, "low": 1},
    "patches": {"channels": (3, 768), "image": 224, "windows": 14, "taps": 16, "stride": 16},
    "dilated": {"channels": (256, 256), "image": 33, "windows": 33, "taps": 3, "dilation": 18, "low": 18},
    "head": {"channels": (64, 1), "image": 128, "windows": 128, "taps": 9, "low": 4},
    "large patches of many channels": {"channels": (1000, 64), "image": 64, "windows": 4, "taps": 16, "stride": 16},
}
TABLE = {
    f"{name}, {unknown.value}, {'NXC' if nxc else 'NCX'}": problem_of(unknown, **layer, nxc=nxc)
    for name, layer in LAYERS.items()
    for unknown in Unknown
    for nxc in (False, True)
}
each_layer = pytest.mark.parametrize("problem", TABLE.values(), ids=TABLE)


@each_level
def test_all_plans_of_layers_are_valid_and_readable(isa):
    for problem in TABLE.values():
        for plan in variants(problem, machine_for(isa)):
            plan.validate()
            first, *reasons = str(plan).splitlines()
            assert ("weights plan" if problem.unknown is Unknown.W else "data plan") in first
            assert f"on {isa}" in first
            assert any("Mcycles predicted" in reason for reason in reasons), "a plan says what it was chosen over"
            assert max(map(len, (first, *reasons))) < 256


@each_level
def test_plans_of_random_problems_are_valid(isa):
    for seed in range(300):
        problem = random_problem(np.random.default_rng(seed))
        for plan in variants(problem, machine_for(isa)):
            plan.validate()
            assert str(plan)


@each_level
def test_the_first_variant_is_chosen(isa):
    for problem in TABLE.values():
        assert choose(problem, machine_for(isa)) == next(iter(variants(problem, machine_for(isa))))


def test_equal_arguments_give_equal_plans_and_equal_code():
    for problem in list(TABLE.values())[::7]:
        machine, again = machine_for("avx512"), replace(machine_for("avx512"))
        assert choose(problem, machine) == choose(replace(problem), again)
        assert lower(choose(problem, machine)).ir == lower(choose(replace(problem), again)).ir


@pytest.fixture
def threads():
    """Sets their number, and puts it back."""
    team.start()
    before = team.count, team.source
    yield set_num_threads
    team.resize(before[0])
    team.source = before[1]


def test_the_plan_does_not_depend_on_threads(threads, monkeypatch):
    machine = machine_for("avx512")
    plans = []
    for count in (1, 2, 7):
        threads(count)
        monkeypatch.setenv("CONVGRAD_NUM_THREADS", str(count))
        monkeypatch.setenv("OMP_NUM_THREADS", str(count))
        plans.append([choose(problem, machine) for problem in TABLE.values()])
    assert plans[0] == plans[1] == plans[2]


@each_level
def test_the_plan_does_not_depend_on_the_sizes_of_caches(isa):
    """Equal instruction sets give equal bits on all machines."""
    small = machine_for(isa, caches=(32 << 10, 256 << 10, 2 << 20))
    large = machine_for(isa, caches=(48 << 10, 2 << 20, 2 << 20))
    for problem in TABLE.values():
        assert choose(problem, small) == choose(problem, large)


# --- work and memory


@each_level
def test_every_task_of_a_weights_plan_has_rows_of_its_own(isa):
    """A share that begins beyond the last row would pack a negative number of them."""
    for name, problem in TABLE.items():
        if problem.unknown is Unknown.W:
            for plan in variants(problem, machine_for(isa)):
                if isinstance(plan, PlaneWeightsPlan):
                    assert (plan.runs - 1) * plan.run < problem.groups, name
                    continue
                assert (plan.row_shares - 1) * plan.share_rows < plan.row_count, name


def layer_problem(layer, unknown, nxc):
    """One of the layers of the shared file, which count windows as `out` for convolutions and as `in` for others."""
    image, window = ("in", "out") if layer["kind"] == "conv" else ("out", "in")
    extents = {side: tuple(layer[f"{name}_spatial"]) for side, name in (("x", image), ("y", window))}
    channels = {side: layer[f"{name[0]}c"] // layer["groups"] for side, name in (("x", image), ("y", window))}
    batch, groups, taps = layer["mb"], layer["groups"], tuple(layer["kernel"])
    shapes = {
        "x": (batch, groups, channels["x"], *extents["x"]),
        "w": (groups, channels["y"], channels["x"], *taps),
        "y": (batch, groups, channels["y"], *extents["y"]),
    }
    plain = tuple(range(3 + len(taps)))
    order = (0, *plain[3:], 1, 2) if nxc else plain
    strides = {name: strides_in(plain if name == "w" else order, shape) for name, shape in shapes.items()}
    return ConvProblem(
        unknown=unknown, batch=batch, groups=groups, x_channels=channels["x"], y_channels=channels["y"],
        x_extent=extents["x"], y_extent=extents["y"], taps=taps, stride=tuple(layer["strides"]),
        dilation=tuple(layer["dilations"]), pad_low=tuple(layer["pads_begin"]),
        **{f"{name}_strides": value for name, value in strides.items()},
    )  # fmt: skip


def workspace(plan):
    """Bytes that a call on one thread works in, but for one copy of the weights as they are packed."""
    module = lower(plan)
    size = 8 if plan.compute == "f64" else 4
    if isinstance(plan, PlaneDataPlan | PlaneWeightsPlan):
        packed = 0
    elif isinstance(plan, DataPlan):
        packed = 0 if plan.packs_weights else plan.weights_size + plan.bias_size
    else:
        packed = plan.sum_size
    return module.scratch_bytes + module.shared_bytes - size * packed


@pytest.mark.parametrize("nxc", [False, True], ids=["NCX", "NXC"])
@pytest.mark.parametrize("unknown", [Unknown.X, Unknown.W, Unknown.Y])
def test_rows_between_taps_that_are_far_apart_are_not_packed(unknown, nxc):
    problem = problem_of(unknown, channels=(64, 64), image=1000, windows=1000, taps=3, dilation=128, low=128, nxc=nxc)
    plan = choose(problem, machine_for("avx512"))
    assert plan.banded(1)
    extents = plan.x_extent if unknown is Unknown.W else plan.slab_extent
    assert extents[1] == 3 * plan.band(1) < 128
    assert workspace(plan) <= MOST_BYTES


@pytest.mark.parametrize("nxc", [False, True], ids=["NCX", "NXC"])
@pytest.mark.parametrize("unknown", [Unknown.X, Unknown.W, Unknown.Y])
def test_the_workspace_of_real_layers_is_bounded(unknown, nxc):
    machine, offenders = machine_for("avx512"), {}
    for layer in shared("layers.json")[::12]:
        problem = layer_problem(layer, unknown, nxc)
        used = workspace(choose(problem, machine))
        if used > MOST_BYTES:
            offenders[str(problem)] = used
    assert not offenders


def tasks_of_a_panel(plan):
    """How many of them multiply the same weights."""
    return prod(plan.grid) // (plan.group_blocks * -(-plan.lane_blocks // plan.blocks_per_task))


@pytest.mark.parametrize("isa", ["avx512", "amx_emulated"])
@pytest.mark.parametrize("nxc", [False, True], ids=["NCX", "NXC"])
@pytest.mark.parametrize("unknown", [Unknown.X, Unknown.Y])
def test_weights_that_outweigh_the_image_are_packed_by_the_task_that_uses_them(unknown, nxc, isa):
    heavy = problem_of(unknown, channels=(512, 512), image=7, windows=7, taps=3, low=1, batch=8, nxc=nxc)
    plan = choose(heavy, machine_for(isa))
    assert isinstance(plan, MatrixDataPlan) == (isa != "avx512")
    assert (plan.packs_weights, tasks_of_a_panel(plan)) == (True, 1)
    assert prod(plan.grid) in (6, 8), "a few threads are busy, two of them to the end"
    module = lower(plan)
    assert module.shared_bytes <= (0 if isa == "avx512" else 4096), "what was found about the data alone is shared"
    assert module.scratch_bytes < 1 << 20
    light = problem_of(unknown, channels=(64, 64), image=56, windows=56, taps=3, low=1, batch=4, nxc=nxc)
    assert not choose(light, machine_for(isa)).packs_weights


@pytest.mark.parametrize("isa", ["avx512", "amx"])
@pytest.mark.parametrize("unknown", [Unknown.X, Unknown.Y])
def test_taps_that_miss_the_input_cost_nothing(unknown, isa):
    def predicted(**sizes):
        plan = choose(problem_of(unknown, channels=(256, 256), image=33, windows=33, taps=3, **sizes), machine_for(isa))
        assert isinstance(plan, MatrixDataPlan) == (isa == "amx")
        return float(plan.reasons[0].split(": ")[1].split()[0])

    near, far = predicted(low=1), predicted(dilation=18, low=18)
    assert far < 0.6 * near, "a tap beside the centre meets 15 rows of 33, and 15 columns"


@pytest.mark.parametrize("unknown", [Unknown.X, Unknown.Y])
@pytest.mark.parametrize(
    ("sizes", "evenly"), [({"image": 80, "windows": 80, "batch": 1}, True), ({"image": 10, "windows": 10}, False)]
)
def test_much_work_is_divided_into_many_tasks_since_threads_wait_for_the_last(unknown, sizes, evenly):
    plan = choose(problem_of(unknown, channels=(128, 128), taps=3, low=1, **sizes, nxc=True), machine_for("avx512"))
    assert (prod(plan.grid) >= EVEN_TASKS) == evenly


@each_level
def test_few_tasks_pack_the_same_weights(isa):
    for seed in range(200):
        for plan in variants(random_problem(np.random.default_rng(seed)), machine_for(isa)):
            if isinstance(plan, DataPlan) and plan.packs_weights:
                assert tasks_of_a_panel(plan) <= MOST_PACKINGS


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


def test_a_task_across_groups_packs_whole_positions_of_images_that_hold_channels_innermost():
    sizes = {"channels": (4, 4), "groups": 32, "image": 56, "windows": 56, "taps": 3, "low": 1, "batch": 4}
    plan = choose(problem_of(Unknown.Y, **sizes, nxc=True), machine_for("avx512"))
    assert (plan.spread, plan.slab_groups) == (True, 32)


@pytest.mark.parametrize("unknown", [Unknown.X, Unknown.Y])
def test_many_channels_are_packed_side_by_side_in_either_layout(unknown):
    """A tile that reads a line of its own for every channel waits for it; a strided image is packed as it lies."""
    for nxc in (False, True):
        plan = choose(TABLE[f"dense, {unknown.value}, {'NXC' if nxc else 'NCX'}"], machine_for("avx512"))
        assert plan.pixel_major
        assert plan.slab_strides[1] == 1
    few = choose(TABLE["stem, y, NCX"], machine_for("avx512"))
    assert not few.pixel_major, "three channels do not fill a vector"
    apart = problem_of(Unknown.Y, channels=(256, 256), image=28, windows=14, taps=1, stride=2)
    assert not choose(apart, machine_for("avx512")).pixel_major


@pytest.mark.parametrize("dtype", ["f16", "bf16"])
def test_16_bits_are_not_turned_where_channels_lie_together(dtype):
    """As of f32, which is read in place there."""
    problem = problem_of(Unknown.Y, channels=(256, 64), image=56, windows=56, taps=1, batch=4, nxc=True)
    assert not choose(replace(problem, dtype=dtype, out_dtype=dtype), machine_for("avx2")).pixels


def test_small_images_are_tiled_across_the_batch():
    """Of 4x4 images that one position gives, a tile in an image meets one tap of sixteen at each of its outputs."""
    sizes = {"channels": (1024, 96), "image": 4, "windows": 1, "taps": 4}
    many = choose(problem_of(Unknown.X, **sizes, batch=16), machine_for("avx512"))
    assert many.tile[0] > 1
    assert many.tile[1:] == (1, 1)
    one = choose(problem_of(Unknown.X, **sizes, batch=1), machine_for("avx512"))
    assert one.tile == (1, 1, 1), "without neighbours that meet the same taps"
    large = problem_of(Unknown.Y, channels=(64, 64), image=56, windows=56, taps=3, low=1, batch=4)
    assert choose(large, machine_for("avx512")).tile[0] == 1


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


def test_a_row_that_can_be_read_in_place_is():
    sizes = {"channels": (64, 64), "image": 130, "windows": 128, "taps": 3, "nxc": True}
    plan = choose(problem_of(Unknown.Y, **sizes), machine_for("avx512"))
    assert plan.reads_in_place
    assert plan.tile[:-1] == (1, 1)


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


@pytest.mark.parametrize(("channels", "solved", "rows"), [(1024, 16, 8), (1024, 32, 8), (512, 16, 16), (528, 16, 28)])
def test_rows_read_in_place_are_no_more_than_l1_holds_of_those_that_collide(channels, solved, rows):
    """Lines 4096 bytes apart, or half of that: 28 of them push each other out in every step."""
    problem = problem_of(Unknown.Y, channels=(channels, solved), image=56, windows=56, taps=1, nxc=True)
    plan = choose(problem, machine_for("avx512"))
    assert plan.reads_in_place
    assert plan.tile[-1] == rows


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


LONG = {
    "one row": ((1, 100_000), (1, 3)),
    "long rows": ((4, 3_000_000), (3, 3)),
    "many rows": ((3_000_000, 4), (3, 3)),
    "one axis": ((10_000_000,), (5,)),
}


@pytest.mark.parametrize("isa", ["avx2", "avx512", "amx"])
@pytest.mark.parametrize(("image", "taps"), LONG.values(), ids=LONG)
def test_planning_takes_no_longer_for_long_images(image, taps, isa):
    """Every number of outputs counts, none is counted one by one: a table of one, a list of all would take minutes."""
    machine = machine_for(isa)
    for groups, channels in ((32, (1, 1)), (1, (1, 24)), (1, (4, 8)), (8, (4, 4)), (1, (20, 20))):
        for unknown, layout in product(Unknown, ("NCX", "NXC")):
            low = tuple(tap // 2 for tap in taps)
            problem = exact_problem(
                unknown, image, image, taps, channels=channels, groups=groups, low=low, layout=layout
            )
            start = process_time()
            lower(choose(problem, machine))
            assert process_time() - start < 5, str(problem)


def test_an_empty_image_has_plans_too():
    """Its rows are packed in no time, however long a run is."""
    problem = problem_of(Unknown.W, channels=(5, 3), image=0, windows=1, taps=1)
    problem = replace(problem, x_strides=(40, 40, 8, 4, 1))  # channels first
    for isa in ("avx512", "portable"):
        machine = machine_for(isa, triple="x86_64-unknown-linux-gnu")
        assert all(plan.validate() is None for plan in variants(problem, machine))


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


@each_level
@pytest.mark.parametrize("unknown", [Unknown.X, Unknown.Y])
@pytest.mark.parametrize(("taps", "image", "expected"), [(31, 56, False), (13, 14, False), (3, 14, True)])
def test_large_depthwise_kernels_pack_rows_that_are_mostly_border(unknown, taps, image, expected, isa):
    low = taps // 2
    p = problem_of(unknown, channels=(1, 1), groups=64, image=image, windows=image, taps=taps, low=low, nxc=True)
    assert choose(p, machine_for(isa)).reads_in_place == expected
