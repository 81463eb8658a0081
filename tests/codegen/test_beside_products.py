"""What is done beside products of tiles: rows looked at where they lie, or copied for later; lines asked for."""

from dataclasses import replace

import numpy as np
import pytest

from codegen.dense_problems import W, X, Y, problem_of
from codegen.emitted import load_here
from codegen.matrix_checks import ISA, check_blocks, check_one_number, data, run
from codegen.random_problems import check_plan
from convgrad.codegen.ir_module import Value, index
from convgrad.codegen.isa.matrix import A_TILES, UNITS, EmulatedTileUnit
from convgrad.codegen.lower import lower
from convgrad.plan.by_matrix import choose_tile_by_tile, matrix_weights, tile_by_tile
from convgrad.plan.by_matrix import gathered_rows as rows
from convgrad.plan.by_matrix import matrix as matrix_plan
from convgrad.plan.by_matrix.gathered_rows import GatheredRowsPlan
from convgrad.plan.by_matrix.matrix import DEPTH, MatrixDataPlan
from convgrad.plan.by_matrix.matrix_weights import MatrixWeightsPlan
from convgrad.plan.choose import variants
from convgrad.plan.general import data as data_plan
from convgrad.plan.machine import machine_for, why_not

pytestmark = pytest.mark.skipif(why_not(ISA) is not None, reason=f"tiles cannot be emulated here: {why_not(ISA)}")
MACHINE = machine_for(ISA)
LAST = {"layout": "NXC", "dtype": "bf16"}
READ = {
    "a last block that begins early": problem_of(Y, (9, 7), (9, 7), (1, 1), channels=(64, 53), batch=2, **LAST),
    "five blocks of lanes": problem_of(Y, (16, 16), (16, 16), (1, 1), channels=(96, 130), batch=2, bias=True, **LAST),
    "image side": problem_of(X, (9, 7), (9, 7), (1, 1), channels=(53, 64), **LAST),
    "phases": problem_of(X, (8, 12), (4, 6), (2, 2), channels=(20, 32), stride=2, batch=4, **LAST),
    "groups": problem_of(Y, (6, 9), (6, 9), (1, 1), channels=(32, 40), groups=3, bias=True, **LAST),
    "a row with strides": problem_of(Y, (79,), (40,), (1,), channels=(32, 20), stride=2, **LAST),
}
COPIED = {
    "channels that are no whole lines": problem_of(Y, (9, 9), (9, 9), (1, 1), channels=(70, 53), **LAST),
    "rows that share a set of L1": problem_of(Y, (40,), (40,), (1,), channels=(1024, 33), batch=2, **LAST),
    "outputs unequally far apart": problem_of(Y, (11, 81), (6, 41), (1, 1), channels=(32, 33), stride=2, **LAST),
    "taps": problem_of(Y, (20, 22), (10, 11), (2, 2), channels=(64, 70), stride=2, batch=2, **LAST),
    "five blocks of lanes": problem_of(Y, (9, 9), (9, 9), (1, 1), channels=(33, 140), batch=2, **LAST),
}
ASKS_TO_READ, ASKS_TO_WRITE = "i32 0, i32 2, i32 1)", "i32 1, i32 3, i32 1)"


@pytest.fixture(autouse=True)
def _however_few_outputs(monkeypatch):
    monkeypatch.setattr(choose_tile_by_tile, "FEWEST_OUTPUTS", 1)


def plan_of(problem, kind=GatheredRowsPlan):
    return next(plan for plan in variants(problem, MACHINE) if type(plan) is kind)


def least_step_of_rows(plan, monkeypatch):
    """Bytes from row to row of the tiles of A that a kernel loads, at least."""
    step = np.full(1, 1 << 40)

    class Noting(EmulatedTileUnit):
        def load(self, b, tile, address, row_bytes):
            if tile in A_TILES:
                place = Value("ptr", f"inttoptr (i64 {step.ctypes.data} to ptr)")
                b.store(index(b.minimum(b.load("i64", place, 8), row_bytes)), place, 8)
            super().load(b, tile, address, row_bytes)

    with monkeypatch.context() as patched:
        patched.setitem(UNITS, ISA, Noting)
        run(plan, data(plan.problem, np.random.default_rng(0), lambda rng, s: rng.standard_normal(s)))
    return int(step[0])


def with_images_apart(problem, numbers):
    """So many numbers more from image to image."""
    batch, *others = problem.x_strides
    return replace(problem, x_strides=(batch + numbers, *others))


def shares_of_lanes(plan):
    """With as many blocks of lanes in a task as there are, and fewer, the last of which may have fewer still."""
    return [replace(plan, blocks_per_task=each) for each in range(1, plan.lane_blocks + 1)]


@pytest.mark.parametrize("out_dtype", ["f32", "bf16"])
@pytest.mark.parametrize("name", READ)
def test_rows_are_read_where_they_lie(name, out_dtype):
    plan = plan_of(replace(READ[name], out_dtype=out_dtype))
    assert plan.reads_rows
    check_blocks(plan, (1, 2))
    for share in shares_of_lanes(plan):
        check_plan(plan.problem, share, MACHINE, low=True)


def test_rows_that_do_not_begin_with_lines_are_copied(monkeypatch):
    """Of the first image, which lies before a second one that does; tiles would be slow to load."""
    problem = with_images_apart(READ["five blocks of lanes"], 8)
    plan = plan_of(replace(problem, out_dtype="bf16"))
    assert plan.reads_rows
    assert plan.block[0] == 1
    for numbers, step in ((8, 2 * DEPTH), (32, 2 * 96)):  # bytes from row to row
        apart = plan_of(replace(with_images_apart(READ["five blocks of lanes"], numbers), bias=False))
        assert least_step_of_rows(apart, monkeypatch) == step
    for share in shares_of_lanes(plan):
        check_plan(plan.problem, share, MACHINE)
        check_plan(plan.problem, share, MACHINE, low=True)


@pytest.mark.parametrize("out_dtype", ["f32", "bf16"])
@pytest.mark.parametrize("name", COPIED)
def test_others_are_copied_while_those_before_are_multiplied(name, out_dtype):
    plan = plan_of(replace(COPIED[name], out_dtype=out_dtype))
    assert plan.gathers_ahead
    assert not plan.reads_rows
    check_blocks(plan, (1, 2))
    for share in shares_of_lanes(plan):
        check_plan(plan.problem, share, MACHINE, low=True)


def test_a_block_of_few_outputs_is_copied_at_once():
    plan = plan_of(COPIED["channels that are no whole lines"])
    few = replace(plan, block=(1,) * (len(plan.block) - 1) + (27,))
    assert not few.gathers_ahead
    assert few.rooms == 1
    check_plan(few.problem, few, MACHINE)


@pytest.mark.parametrize(
    "problem",
    [READ["five blocks of lanes"], with_images_apart(READ["five blocks of lanes"], 8), COPIED["five blocks of lanes"]],
    ids=["read", "read or copied", "copied"],
)
@pytest.mark.parametrize("value", [np.inf, 2.0**-131])
def test_no_number_is_overlooked_wherever_it_is(problem, value):
    """Of the image, in every share of the lanes, which look at some rows each."""
    plan = plan_of(replace(problem, bias=False, out_dtype="f32"))
    for share in shares_of_lanes(plan):
        for place in (0, 0.37, 1):
            check_one_number(share, sorted("xw").index("x"), value, place)


@pytest.mark.parametrize(
    "problem", [READ["five blocks of lanes"], COPIED["five blocks of lanes"]], ids=["read", "copied"]
)
def test_every_row_of_later_tiles_is_looked_at(problem):
    plan = replace(plan_of(replace(problem, bias=False, out_dtype="f32")), blocks_per_task=2)
    given = data(plan.problem, np.random.default_rng(2), lambda rng, s: rng.standard_normal(s))
    made = lower(plan)
    made = made, load_here(made, MACHINE)
    pixels = np.moveaxis(given["x"], 2, -1).reshape(-1, plan.problem.x_channels)
    for row in range(plan.together, 2 * plan.together):
        extreme = pixels.copy()
        extreme[row, row % plan.problem.x_channels] = np.inf
        x = np.moveaxis(extreme.reshape(np.moveaxis(given["x"], 2, -1).shape), -1, 2)
        assert run(plan, given | {"x": x}, made=made)[1]


def test_lines_are_asked_for_where_tensors_are_far(monkeypatch):
    read, copied = (
        plan_of(replace(of[name], out_dtype="bf16"))
        for of, name in ((READ, "image side"), (COPIED, "rows that share a set of L1"))
    )
    for plan in (read, copied):
        assert "prefetch" not in lower(plan).ir
    monkeypatch.setattr(rows, "KEPT_BYTES", 0)
    monkeypatch.setattr(tile_by_tile, "KEPT_BYTES", 0)
    for plan in (read, copied):
        ir = lower(plan).ir
        assert ASKS_TO_READ in ir
        assert ASKS_TO_WRITE in ir
        check_blocks(plan, (0,))


@pytest.mark.parametrize("kind", [GatheredRowsPlan, MatrixDataPlan])
def test_far_lines_of_bf16_go_past_the_caches(kind, monkeypatch):
    problem = problem_of(Y, (9, 16), (9, 16), (1, 1), channels=(64, 64), batch=2, **LAST)
    plan = plan_of(replace(problem, out_dtype="bf16"), kind)
    assert not plan.past_caches
    assert "!nontemporal" not in lower(plan).ir
    monkeypatch.setattr(matrix_plan, "FAR_BYTES", 0)
    assert plan.past_caches
    ir = lower(plan).ir
    assert "!nontemporal" in ir
    assert "sfence" in ir
    check_blocks(plan, (0, 1))
    parts = problem_of(Y, (9, 16), (9, 16), (1, 1), channels=(64, 48), batch=2, **LAST)
    assert not plan_of(replace(parts, out_dtype="bf16"), kind).past_caches


def test_far_tiles_of_f32_are_moved_past_the_caches(monkeypatch):
    problem = problem_of(Y, (9, 16), (9, 16), (1, 1), channels=(64, 64), batch=2, layout="NXC")
    plan = plan_of(problem, MatrixDataPlan)
    assert plan.writes_in_place
    assert not plan.moves_tiles
    monkeypatch.setattr(data_plan, "PAST_CACHES_BYTES", 0)
    assert not plan.moves_tiles
    monkeypatch.setattr(matrix_plan, "FAR_TILES_BYTES", 0)
    assert plan.moves_tiles
    ir = lower(plan).ir
    assert "!nontemporal" in ir
    assert "sfence" in ir
    check_blocks(plan, (0, 1))
    parts = problem_of(Y, (9, 16), (9, 16), (1, 1), channels=(64, 40), batch=2, layout="NXC")
    assert not plan_of(parts, MatrixDataPlan).moves_tiles


def test_far_windows_are_asked_for_as_weights_gradients_pack(monkeypatch):
    problem = problem_of(W, (12, 40), (12, 40), (1, 1), channels=(64, 70), batch=2, **LAST)
    plan = plan_of(replace(problem, out_dtype="f32"), MatrixWeightsPlan)
    assert "prefetch" not in lower(plan).ir
    monkeypatch.setattr(matrix_weights, "FAR_BYTES", 0)
    assert ASKS_TO_READ in lower(plan).ir
    check_blocks(plan, (0, 1))
