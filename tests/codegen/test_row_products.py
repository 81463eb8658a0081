"""X or Y of windows that are whole images: rows of what is given times rows of weights, lanes added at the end."""

from dataclasses import replace

import numpy as np
import pytest

from codegen import dense_problems
from codegen.dot_cases import EMULATED, HERE, needs_dots
from codegen.emitted import kernel_here, load_here
from codegen.matrix_checks import check_one_number, run
from codegen.random_problems import check_plan
from convgrad.codegen.lower import lower
from convgrad.plan import along
from convgrad.plan.along import multiplies_rows, row_length
from convgrad.plan.by_dots.dot_row_products import DotRowProductsPlan
from convgrad.plan.choose import choose, variants
from convgrad.plan.in_place.row_products import RowProductsPlan
from convgrad.plan.machine import available_isas, machine_for
from convgrad.problem.conv import Unknown

ISAS = [isa for isa in ("avx512", "avx2", "portable") if isa in available_isas()]
# batch, groups, channels given and solved for, taps
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
OF_X = {
    "one image, of X": (1, 1, 300, 37, (4, 4)),
    "one image, one tap, of X": (1, 1, 140, 41, (1, 1)),
    "tiles that begin early, of X": (11, 1, 180, 23, (2, 2)),
    "several blocks of images, of X": (150, 1, 128, 10, (1, 1)),
    "groups, of X": (5, 3, 160, 9, (1,)),
    "many tasks of a group, of X": (2, 2, 136, 90, (1, 1, 1)),
    "several pieces, of X": (9, 1, 1303, 33, (2,)),
}
CASES = {name: (Unknown.Y, *shape) for name, shape in SHAPES.items()} | {
    name: (Unknown.X, *shape) for name, shape in OF_X.items()
}


def of_either(unknown, batch, groups, given, solved, taps, **more):
    """Dense, Y with channels first, X with channels last: the rows of weights are made of channels of y."""
    channels, layout = ((given, solved), "NCX") if unknown is Unknown.Y else ((solved, given), "NXC")
    sizes = {"channels": channels, "groups": groups, "batch": batch, "layout": layout}
    return dense_problems.problem_of(unknown, taps, (1,) * len(taps), taps, **sizes, **more)


def problem_of(*shape, **more):
    """Of Y."""
    return of_either(Unknown.Y, *shape, **more)


def plan_of(problem, isa):
    """The plan; None if there is none."""
    return next((plan for plan in variants(problem, machine_for(isa)) if isinstance(plan, RowProductsPlan)), None)


@pytest.mark.parametrize("isa", ISAS)
@pytest.mark.parametrize("name", CASES)
def test_every_shape(name, isa, monkeypatch):
    """With a bias, in tiles, blocks, pieces and shares of other sizes; rows of 16 bits are longer, else."""
    for least in ("LONG_ROW", "LONG_ROW_OF_LINES", "LONG_HALVES"):
        monkeypatch.setattr(along, least, 0)
    rng, machine = np.random.default_rng(len(name)), machine_for(isa)
    found = 0
    for seed, dtype in enumerate(("f32", "f32", *(["f32"] if isa == "avx512" else []), "f16", "bf16")):
        problem = of_either(*CASES[name], bias=seed in (1, 3), bias_stride=1 + seed, dtype=dtype, out_dtype=dtype)
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
    assert found or (isa != "avx512" and row_length(problem) % machine.lanes_f32), "without masks, whole vectors"


@pytest.mark.parametrize("isa", ISAS)
@pytest.mark.parametrize("dtype", ["f16", "bf16"])
@pytest.mark.parametrize("widened", ["nothing", "images", "weights", "both"])
def test_what_is_met_again_is_widened_once(widened, dtype, isa):
    """Images that several blocks of weights meet, weights that several tiles do; the last tile begins early."""
    problem, machine = problem_of(11, 1, 603, 10, (4, 4), dtype=dtype, out_dtype=dtype), machine_for(isa)
    plan = plan_of(problem, isa)
    if plan is None:
        assert isa != "avx512"
        problem = problem_of(11, 1, 604, 10, (4, 4), dtype=dtype, out_dtype=dtype)
        plan = plan_of(problem, isa)
    images, weights = widened in ("images", "both"), widened in ("weights", "both")
    for pieces in (1, 5):
        one = replace(
            plan, tile=(1, 3), block=(1, 9 if weights else 3), width=4, piece=-(-plan.vectors // pieces),
            blocks_per_task=2 if images else 1,
        )  # fmt: skip
        hidden = weights and isa == "avx2"  # beside products with weights that are wide already
        assert (one.widens_images, one.widens_weights) == (images and not hidden, weights)
        check_plan(problem, one, machine, pieces, low=bool(pieces % 2))
    long = plan_of(problem_of(1, 1, 2**19, 9, (1,), dtype=dtype, out_dtype=dtype), isa)
    assert not replace(long, blocks_per_task=2).widens_images, "2 MiB of one image"
    plan = plan_of(replace(problem, dtype="f32", out_dtype="f32"), isa)
    assert not plan.widens_images
    assert not plan.widens_weights


def test_rows_of_16_bits_are_long_ones():
    """Of shorter ones images may be many, and how many there are decides nothing: parts have the bits of the whole."""
    for isa, lanes in (("avx512", 16), ("avx2", 8), ("portable", 4)):
        long = 128 if isa == "avx512" else 64
        for dtype, vectors in (("f16", 512 if isa == "portable" else long), ("bf16", long), ("f32", 8)):
            for batch in (1, 100):
                found = [
                    plan_of(problem_of(batch, 1, count * lanes, 20, (1,), dtype=dtype, out_dtype=dtype), isa)
                    for count in (vectors - 1, vectors)
                ]
                assert [plan is not None for plan in found] == [False, True], (isa, dtype, batch)


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
    kernel = kernel_here(problem, lower(plan), machine)
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
    assert not multiplies_rows(replace(problem, unknown=Unknown.X), 16), "lanes along channels of x"
    assert not multiplies_rows(replace(problem, accumulate=True), 16)
    assert not multiplies_rows(replace(problem, dtype="f16"), 16), "f32 of f16"
    assert not multiplies_rows(replace(problem, pad_low=(1, 0)), 16)
    assert not multiplies_rows(replace(problem_of(1, 1, 128, 5, (1,)), pad_low=(1,)), 16)
    assert not multiplies_rows(replace(problem, x_extent=(5, 4)), 16)
    assert not multiplies_rows(replace(problem, y_extent=(1, 2), x_extent=(4, 5)), 16)
    assert not multiplies_rows(replace(problem, w_strides=(1600, 1, 80, 20, 5)), 16), "lanes along channels of y"
    assert not multiplies_rows(replace(problem, x_strides=(320, 320, 1, 80, 20)), 16), "channels last on one side"
    assert not multiplies_rows(replace(problem, unknown=Unknown.W), 16)


def test_what_it_is_for_of_x():
    """Rows of weights along channels of y, whatever the batch is; patches have the order of larger images."""
    problem = of_either(Unknown.X, 4, 1, 128, 5, (4, 4))
    assert multiplies_rows(problem, 16)
    assert multiplies_rows(replace(problem, batch=1, stride=(3, 1)), 16)
    assert not multiplies_rows(of_either(Unknown.X, 4, 1, 127, 5, (4, 4)), 16)
    for channels, long in ((120, False), (128, True)):
        assert multiplies_rows(of_either(Unknown.X, 4, 1, channels, 5, (1, 1)), 8) is long
    assert not multiplies_rows(replace(problem, stride=(4, 1)), 16), "windows of larger images are side by side"
    assert not multiplies_rows(replace(problem, bias=True), 16), "one number of a bias for all taps"
    assert multiplies_rows(of_either(Unknown.X, 4, 1, 128, 5, (1, 1), bias=True), 16)
    assert not multiplies_rows(replace(problem, accumulate=True), 16)
    assert not multiplies_rows(replace(problem, y_extent=(1, 2), x_extent=(4, 5)), 16)
    assert not multiplies_rows(replace(problem, w_strides=(10240, 80, 1, 2560, 640)), 16), "rows of channels of x"
    assert not multiplies_rows(of_either(Unknown.X, 4, 2, 128, 5, (4, 4)), 16), "between taps are other groups"
    found = {type(plan) for plan in variants(problem, machine_for("portable"))}
    assert RowProductsPlan in found


def test_what_has_a_unit_is_left_to_it():
    """16 bits are widened where nothing else computes with them; dot products have rows of their own."""
    of = {dtype: problem_of(4, 1, 256, 5, (4, 4), dtype=dtype, out_dtype=dtype) for dtype in ("f16", "bf16")}
    for isa, f16, bf16 in (
        ("avx512", True, True), ("avx2", True, True), ("portable", True, True),
        ("avx512_bf16_emulated", True, False), ("amx_emulated", False, False),
    ):  # fmt: skip
        machine = machine_for(isa)
        found = {dtype: {type(plan) for plan in variants(problem, machine)} for dtype, problem in of.items()}
        assert (RowProductsPlan in found["f16"], RowProductsPlan in found["bf16"]) == (f16, bf16), isa


# --- bf16, by dot products


def in_bf16(name, **more):
    return replace(of_either(*CASES[name], **more), dtype="bf16", out_dtype="bf16")


@needs_dots
@pytest.mark.parametrize("name", CASES)
def test_every_shape_by_dots(name):
    """As planned, and in tiles, blocks, pieces and shares of other sizes, with a bias and in f32; exactly."""
    rng, machine = np.random.default_rng(len(name)), machine_for(HERE[-1])
    problem = in_bf16(name)
    plan = plan_of(problem, HERE[-1])
    assert type(plan) is DotRowProductsPlan
    check_plan(problem, plan, machine)
    problem = replace(problem, bias=name in SHAPES, bias_stride=2, out_dtype="f32")
    rows, columns = (int(rng.integers(1, most + 1)) for most in (min(3, plan.axes[-1].count), plan.width))
    other = replace(
        plan_of(problem, HERE[-1]), tile=(1, rows), block=(1, 2 * rows), width=columns, blocks_per_task=2,
        piece=int(rng.integers(1, plan.vectors + 1)),
    )  # fmt: skip
    check_plan(problem, other, machine, 1, low=True)


@needs_dots
@pytest.mark.parametrize("tile", ["all images", "some"])
@pytest.mark.parametrize("shape", [(Unknown.Y, 3, 2, 35, 3, (2, 2)), (Unknown.X, 3, 2, 140, 3, (1,))])
def test_every_number_is_watched_by_dots(shape, tile):
    """Whether tiles look at weights or something after them, in pieces, in what is left of a row, in any task."""
    problem = replace(of_either(*shape), dtype="bf16", out_dtype="bf16")
    plan = plan_of(problem, EMULATED)
    some = {"width": 2, "blocks_per_task": 1, "tile": (1, 2), "block": (1, 2), "piece": 1}
    plan = plan if tile == "all images" else replace(plan, **some)
    assert plan.looks_as_it_reads == (tile == "all images")
    module = lower(plan)
    made = module, load_here(module, machine_for(EMULATED))
    ones = {name: np.ones(size) for name, size in plan.problem.shapes.items() if name != problem.solved}
    assert not run(plan, ones, made=made)[1]
    for name, values in ones.items():
        for place in range(values.size):
            values.flat[place] = -(2.0**-130)
            assert run(plan, ones, made=made)[1], f"{np.unravel_index(place, values.shape)} of {name} was not seen"
            values.flat[place] = np.inf
            assert place % 13 or run(plan, ones, made=made)[1], "infinity"
            values.flat[place] = 1


@needs_dots
@pytest.mark.parametrize("side", [0, 1])
def test_one_such_number_gives_the_bits_of_vectors(side):
    check_one_number(plan_of(in_bf16("fewer images than a tile has"), EMULATED), side, 2.0**-133)


@needs_dots
def test_a_bias_is_watched():
    plan = plan_of(in_bf16("fewer images than a tile has", bias=True), EMULATED)
    ones = {n: np.ones(s) for n, s in plan.problem.shapes.items() if n != "y"}
    bias = np.ones(plan.out_channels)
    assert not run(plan, ones, bias=bias)[1]
    bias[-1] = 2.0**-130
    assert run(plan, ones, bias=bias)[1]


@needs_dots
def test_short_rows_of_many_images_are_packed():
    for channels, batch, rows in ((128, 256, False), (128, 2, True), (2048, 256, True)):
        problem = replace(problem_of(batch, 1, channels, 500, (1,)), dtype="bf16", out_dtype="bf16")
        assert isinstance(choose(problem, machine_for(EMULATED)), DotRowProductsPlan) == rows
