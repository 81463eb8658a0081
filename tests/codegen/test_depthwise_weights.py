"""W of one channel per group, channels side by side: all taps of a window at once, exactly and at every border."""

from dataclasses import replace
from math import prod

import numpy as np
import pytest

from codegen.dense_problems import on_axes
from codegen.dense_problems import problem_of as dense_problem
from codegen.emitted import kernel_here
from codegen.random_problems import check_plan, in_turn, strides_in
from convgrad.codegen.lower import lower
from convgrad.plan.choose import choose, variants
from convgrad.plan.depthwise.depthwise_weights import DepthwiseWeightsPlan
from convgrad.plan.machine import available_isas, machine_for
from convgrad.problem.conv import Unknown

ISAS = [isa for isa in ("avx512", "avx2", "portable") if isa in available_isas()]
AXES = {  # extents of x and y, taps, stride, dilation, low pad
    "as large": ((9, 14), (9, 14), (3, 3), (1, 1), (1, 1), (1, 1)),
    "no pads": ((8, 13), (6, 11), (3, 3), (1, 1), (1, 1), (0, 0)),
    "stride 2": ((12, 20), (6, 10), (3, 3), (2, 2), (1, 1), (1, 1)),
    "stride 3": ((13, 25), (4, 8), (4, 4), (3, 3), (1, 1), (0, 0)),
    "dilation": ((9, 16), (9, 16), (3, 3), (1, 1), (2, 3), (2, 3)),
    "many taps": ((8, 15), (8, 15), (7, 7), (1, 1), (1, 1), (3, 3)),
    "a tap": ((5, 9), (5, 9), (1, 2), (1, 1), (1, 1), (0, 1)),
    "windows beside the image": ((4, 5), (9, 14), (2, 3), (1, 1), (1, 1), (3, 5)),
    "four windows": ((4, 5), (2, 2), (3, 4), (1, 1), (1, 1), (0, 0)),
    "long rows": ((3, 90), (3, 90), (5, 5), (1, 1), (1, 1), (2, 2)),
    "rows of 5": ((5, 30), (5, 30), (5, 5), (1, 1), (1, 1), (2, 2)),
    "three axes": ((3, 5, 9), (3, 5, 9), (3, 3, 3), (1, 1, 1), (1, 1, 1), (1, 1, 1)),
    "strides of three axes": ((5, 6, 9), (3, 3, 4), (4, 3, 3), (2, 2, 2), (1, 1, 1), (1, 1, 1)),
    "planes beside the image": ((3, 4, 7), (9, 4, 7), (3, 2, 3), (1, 1, 1), (2, 1, 1), (5, 1, 1)),
    "one axis": ((40,), (40,), (31,), (1,), (1,), (15,)),
    "one axis, strides": ((70,), (30,), (19,), (2,), (2,), (9,)),
    "a long row of taps": ((3, 30), (3, 30), (1, 29), (1, 1), (1, 1), (0, 14)),
    "more rows of taps than are written out": ((10, 12), (10, 12), (9, 9), (1, 1), (1, 1), (4, 4)),
    "likewise, dilated, with strides": ((21, 24), (8, 9), (8, 11), (2, 3), (2, 1), (5, 4)),
    "likewise, of volumes": ((3, 8, 9), (3, 8, 9), (3, 6, 9), (1, 1, 1), (1, 1, 1), (1, 2, 4)),
    "rows of taps beside the image": ((4, 9), (12, 12), (7, 8), (1, 1), (1, 1), (9, 5)),
    "four axes": ((2, 3, 4, 5), (2, 3, 4, 5), (2, 3, 2, 3), (1, 1, 1, 1), (1, 2, 1, 1), (1, 2, 0, 1)),
}


def problem_of(axes, groups, *, batch=2, c=1, k=1, **more):
    """Dense, with channels last; c and k of a group of x and y."""
    sizes = {"channels": (c, k), "groups": groups, "batch": batch}
    return on_axes(Unknown.W, axes, **sizes, layout="NXC", weights="NCX", **more)


def plan_of(problem, isa):
    """The plan for all taps at once; None if there is none."""
    return next((plan for plan in variants(problem, machine_for(isa)) if isinstance(plan, DepthwiseWeightsPlan)), None)


@pytest.mark.parametrize("isa", ISAS)
@pytest.mark.parametrize("along", ["groups", "x", "y"])
@pytest.mark.parametrize("name", AXES)
def test_every_border(name, along, isa):
    """In whole vectors of lanes and in others, in 16 bits, with sums of either tensor, in other tiles and chunks."""
    rng, found = np.random.default_rng(len(name)), []
    for seed, lanes in enumerate((16, 32, 21, 40, 17)):
        fields = ({}, {"bias_gradient": "x"}, {"dtype": "bf16", "out_dtype": "f32", "bias_gradient": "y"},
                  {"accumulate": True}, {"dtype": "f16", "out_dtype": "f16"})[seed]  # fmt: skip
        groups, c, k = {"groups": (lanes, 1, 1), "x": (1, lanes, 1), "y": (1, 1, lanes)}[along]
        problem = problem_of(AXES[name], groups, c=c, k=k, **fields)
        plan = plan_of(problem, isa)
        assert (plan is None) == (lanes % machine_for(isa).lanes_f32 > 0 and isa != "avx512")
        if plan is None:
            continue
        found.append((seed, problem, plan, _otherwise(plan, rng)))
    assert found
    order = list(AXES).index(name) + len(along)
    for number, (seed, problem, *plans) in enumerate(found):
        if isa == "avx512" or (number + order) % 2:
            check_plan(problem, in_turn(number + order // 2, *plans), machine_for(isa), seed, low=bool(seed % 2))


def _otherwise(plan, rng):
    """In other tiles, blocks and chunks."""
    row, inner = plan.axes[-2:]
    rows, columns = int(rng.integers(1, 5)), int(rng.integers(1, 9))
    if plan.looped:
        rows = 1
    tap_rows = 1 if plan.looped else int(rng.integers(1, row.taps + 1))
    tap_columns = int(rng.integers(1, inner.taps + 1)) if plan.in_pieces else inner.taps
    tiles = [-(-axis.windows // size) for axis, size in ((row, rows), (inner, columns))]
    block = (*plan.block[:-2], rows * int(rng.integers(1, tiles[0] + 1)), columns * int(rng.integers(1, tiles[1] + 1)))
    other = replace(plan, rows=rows, columns=columns, tap_rows=tap_rows, tap_columns=tap_columns, block=block, chunks=1)
    return replace(other, chunks=int(rng.integers(1, prod(other.block_grid) + 1)))


@pytest.mark.parametrize(("axes", "looped"), [
    (((500,), (500,), (31,), (1,), (1,), (15,)), False),
    (((32, 32), (32, 32), (31, 31), (1, 1), (1, 1), (15, 15)), True),
])  # fmt: skip
def test_taps_of_long_rows_are_summed_in_pieces(axes, looped):
    """Of one axis those that no tile of sums divides; of planes, rows of taps in a loop."""
    plan = choose(problem_of(axes, 144), machine_for("avx512"))
    assert isinstance(plan, DepthwiseWeightsPlan)
    assert plan.looped == looped
    assert [len(piece) for piece in plan.column_pieces] == [16, 15]
    assert prod(plan.grid) >= 4


def test_many_rows_of_taps_are_met_where_l1_holds_a_row():
    """Of 512 channels positions share two sets of it."""
    axes = ((14, 14), (14, 14), (9, 9), (1, 1), (1, 1), (4, 4))
    few, many = (choose(problem_of(axes, groups), machine_for("avx512")) for groups in (384, 512))
    assert isinstance(few, DepthwiseWeightsPlan)
    assert few.looped
    assert not isinstance(many, DepthwiseWeightsPlan)


@pytest.mark.parametrize(("taps", "isa", "expected"), [(9, "avx512", False), (9, "avx2", True), (5, "avx512", True)])
def test_one_channel_of_many_rows_of_taps_is_left_to_sums_in_registers(taps, isa, expected):
    """Where vectors are long, sums that come and go with each row of taps take longer than what is packed."""
    problem = dense_problem(
        Unknown.W, (304, 304), (100, 100), (taps, taps), channels=(1, 56), stride=3, low=taps // 3, layout="NXC"
    )
    assert isinstance(choose(problem, machine_for(isa)), DepthwiseWeightsPlan) == expected


def test_chunks_are_as_many_as_their_sums_are_worth():
    """Sums of every chunk are cleared, fetched and added up: of many taps and few windows that is most of the work."""
    few, many = (
        choose(problem_of(((n, n), (n, n), (7, 7), (1, 1), (1, 1), (3, 3)), groups), machine_for("avx512"))
        for n, groups in ((7, 640), (56, 16))
    )
    assert isinstance(few, DepthwiseWeightsPlan)
    assert isinstance(many, DepthwiseWeightsPlan)
    assert few.chunks <= 4 < prod(few.block_grid)
    assert many.chunks >= 12


@pytest.mark.parametrize("isa", ISAS)
@pytest.mark.parametrize("extents", [(9, 14), (8, 40), (3, 9)])
def test_tiles_of_four_rows_where_registers_hold_all_that_they_meet(extents, isa):
    """Exactly, with rows that are left over; of strides only as long as caches hold the tensors."""
    problem = problem_of((extents, extents, (3, 3), (1, 1), (1, 1), (1, 1)), 32)
    plan = plan_of(problem, isa)
    assert (plan.rows == 4) == (isa == "avx512" and extents[0] > 3)
    check_plan(problem, plan, machine_for(isa), 7)
    near, far = (
        plan_of(problem_of(((112, 112), (56, 56), (3, 3), (2, 2), (1, 1), (1, 1)), 16, batch=n), "avx512")
        for n in (1, 2)
    )
    assert (near.rows, far.rows) == (4, 2)


def test_memory_is_asked_for_ahead_where_tensors_are_large():
    """As much as a tile reads of either."""
    axes = ((112, 112), (56, 56), (3, 3), (2, 2), (1, 1), (1, 1))
    small, large = (choose(problem_of(axes, 16, batch=n), machine_for("avx512")) for n in (1, 2))  # 1003 KiB each
    assert isinstance(small, DepthwiseWeightsPlan)
    assert isinstance(large, DepthwiseWeightsPlan)
    assert "prefetch" not in lower(small).ir
    assert "prefetch" in lower(large).ir


@pytest.mark.parametrize(("axes", "batch", "asked"), [
    (((8000,), (8000,), (31,), (1,), (1,), (15,)), 2, False),  # images are rows, and a tile has both
    (((8000,), (8000,), (31,), (1,), (1,), (15,)), 8, False),  # the next two begin 4 MB further on
    (((300,), (300,), (31,), (1,), (1,), (15,)), 64, True),
    (((16, 8192), (16, 8192), (3, 3), (1, 1), (1, 1), (1, 1)), 1, False),
    (((64, 512), (64, 512), (3, 3), (1, 1), (1, 1), (1, 1)), 1, True),
])  # fmt: skip
@pytest.mark.parametrize("isa", ["avx2", "avx512"])
def test_rows_that_are_none_or_far_are_not_asked_for(axes, batch, asked, isa):
    """Addresses behind a tensor take a core as long as any page that it has to find, and what is far is gone again."""
    plan = plan_of(problem_of(axes, 32, batch=batch), isa)
    assert ("prefetch" in lower(plan).ir) == asked


@pytest.mark.parametrize(("taps", "expected"), [
    ((5, 5), (1, 1, [5])), ((7, 7), (1, 1, [7])), ((3, 9), (1, 1, [5, 4])), ((3, 3), (1, 3, [3])),
])  # fmt: skip
def test_fewer_rows_of_windows_leave_registers_for_taps_of_a_row(taps, expected):
    """Sums of half a row come and go twice as often, and too few of them wait for each other."""
    axes = ((20, 20), (20, 20), taps, (1, 1), (1, 1), tuple(t // 2 for t in taps))
    plan = plan_of(problem_of(axes, 16), "avx2")
    assert (plan.rows, plan.tap_rows, [len(piece) for piece in plan.column_pieces]) == expected


@pytest.mark.parametrize(("dtype", "expected"), [("f32", True), ("f16", False), ("bf16", False)])
def test_numbers_that_tiles_widen_again_are_better_packed_once(dtype, expected):
    """Each number of the single channel is met by 81 taps, for seven vectors of channels."""
    problem = dense_problem(
        Unknown.W, (302, 302), (100, 100), (9, 9), channels=(1, 56), stride=3, low=3, layout="NXC", dtype=dtype
    )
    assert isinstance(choose(problem, machine_for("avx2")), DepthwiseWeightsPlan) == expected


@pytest.mark.parametrize("isa", ISAS)
def test_channels_that_lie_apart_are_left_to_others(isa):
    """Rows of channels first."""
    problem = problem_of(AXES["as large"], 32)
    assert plan_of(problem, isa) is not None
    shape = problem.shapes["x"]
    assert plan_of(replace(problem, x_strides=strides_in(range(5), shape)), isa) is None


@pytest.mark.parametrize("isa", ISAS)
def test_rows_that_windows_step_over_may_hold_anything(isa):
    """And columns: nobody multiplies them."""
    problem = problem_of(((12, 24), (4, 8), (2, 2), (3, 3), (1, 1), (0, 0)), 16)
    rng = np.random.default_rng(1)
    x = rng.integers(-2, 3, (2, 12, 24, 16)).astype(np.float32)
    y = rng.integers(-2, 3, (2, 4, 8, 16)).astype(np.float32)
    wanted = np.zeros((16, 2, 2), np.float32)
    for r in range(2):
        for c in range(2):
            wanted[:, r, c] = (x[:, r::3, c::3][:, :4, :8] * y).sum((0, 1, 2))
    x[:, 2::3], x[:, :, 2::3] = np.nan, np.inf
    plan = plan_of(problem, isa)
    kernel = kernel_here(problem, lower(plan), machine_for(isa))
    result = np.zeros_like(wanted)
    kernel(x.ctypes.data, result.ctypes.data, y.ctypes.data)
    np.testing.assert_array_equal(result, wanted)


@pytest.mark.parametrize("dtype", ["f32", "f16"])
def test_one_mask_for_all_that_a_tile_loads(dtype):
    """Of 21 groups the last five: LLVM, from which the number of 16-bit lanes is hidden, would make each mask anew."""
    problem = problem_of(AXES["as large"], 21, dtype=dtype, out_dtype=dtype)
    ir = lower(plan_of(problem, "avx512")).ir
    assert ir.count("masked.load") > 200
    assert ir.count("shl i64 -1,") < 10
