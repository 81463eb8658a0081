"""Dot products of pairs of bf16: the instruction and its emulation, plans on it, and how numbers become pairs."""

from dataclasses import replace
from math import prod

import ml_dtypes
import numpy as np
import pytest

from codegen.emitted import compile_function, load_here
from codegen.random_problems import check, check_plan, random_problem
from codegen.test_kernels import W, X, Y, problem_of
from codegen.test_matrix import BF16_KINDS, WIDE, check_kind, check_own_weights, data, run
from convgrad.codegen import paired_copies
from convgrad.codegen.dot_runs import DotRunStages
from convgrad.codegen.isa.dots import DOT_UNITS
from convgrad.codegen.lower import lower
from convgrad.codegen.microkernels.dots import WRITTEN_OUT, DotTile
from convgrad.codegen.paired_copies import PairedCopy
from convgrad.codegen.paired_weights import PairedPanel
from convgrad.codegen.paired_windows import PairedRuns
from convgrad.plan import machine
from convgrad.plan.choose import choose, variants
from convgrad.plan.data_in_place import writes_in_place
from convgrad.plan.dots import DotDataPlan, DotWeightsPlan, depth_of, taps_together
from convgrad.plan.machine import machine_for, why_not
from convgrad.plan.runs import DotRunPlan
from convgrad.plan.window_axes import WindowAxis
from convgrad.runtime import jit

EMULATED, REAL = "avx512_bf16_emulated", "avx512_bf16"
HERE = [isa for isa in (EMULATED, REAL) if why_not(isa) is None]
pytestmark = pytest.mark.skipif(not HERE, reason=f"dot products cannot be emulated here: {why_not(EMULATED)}")
each = pytest.mark.parametrize("isa", HERE)
PLANS = DotDataPlan, DotWeightsPlan
BF16 = ml_dtypes.bfloat16


def plan_of(problem, isa=EMULATED):
    return next(plan for plan in variants(problem, machine_for(isa)) if isinstance(plan, PLANS))


def shaped(plan, rows, width, blocks=1):
    """With tiles of so many outputs of the innermost axis, and channels, in place where that can be."""
    outer = [1] * (len(plan.axes) - 1)
    fields = {"tile": (*outer, rows), "block": (*outer, rows * blocks), "width": width, "blocks_per_task": 1}
    plan = replace(plan, writes_in_place=False, **fields)
    return replace(plan, writes_in_place=writes_in_place(plan))


def in_bf16(problem, out_dtype="f32"):
    return replace(problem, dtype="bf16", out_dtype=out_dtype)


# --- one instruction


def multiplied(total, x, y):
    """VDPBF16PS as the manual writes it: the odd products, then the even ones, denormals being zero."""

    def flushed(values):
        return np.where(np.abs(values) < np.float32(2.0**-126), np.copysign(np.float32(0), values), values)

    total = flushed(total)
    for part in (1, 0):
        factors = (flushed(pairs[part::2].astype(np.float32)).astype(np.float64) for pairs in (x, y))
        total = flushed((np.prod(list(factors), axis=0) + total.astype(np.float64)).astype(np.float32))
    return total


@each
def test_a_dot_product_is_what_the_manual_says(isa):
    def body(b, total, x, y):
        unit = DOT_UNITS[isa]()
        before = b.load("<16 x float>", total, 4)
        b.store(unit.multiply_add(b, unit.load(b, x), unit.load(b, y), before), total, 4)

    call = compile_function(isa, ["ptr", "ptr", "ptr"], body)
    rng = np.random.default_rng(0)
    for scale in (1.0, 2.0**-60, 2.0**-64):  # products that are normal, denormal, and neither alone
        for _ in range(50):
            x, y = ((rng.standard_normal(32) * scale).astype(BF16) for _ in range(2))
            x[0], y[0] = BF16(1e-39), BF16(1.0)
            total = (rng.standard_normal(16) * scale * scale).astype(np.float32)
            total[3] = 1e-40
            wanted = multiplied(total, x, y)
            call(total.ctypes.data, x.ctypes.data, y.ctypes.data)
            np.testing.assert_array_equal(total.view(np.uint32), wanted.view(np.uint32))


@each
def test_one_pair_meets_all_lanes(isa):
    def body(b, total, x, y):
        unit = DOT_UNITS[isa]()
        b.store(unit.multiply_add(b, unit.splat(b, x), unit.load(b, y), b.load("<16 x float>", total, 4)), total, 4)

    total, y = np.zeros(16, np.float32), np.arange(32).astype(BF16)
    x = np.array([9, 3, 5], BF16)
    compile_function(isa, ["ptr", "ptr", "ptr"], body)(total.ctypes.data, x[1:].ctypes.data, y.ctypes.data)
    np.testing.assert_array_equal(total, 3 * np.arange(0, 32, 2) + 5 * np.arange(1, 32, 2))


@each
@pytest.mark.parametrize("place", range(4))
def test_a_pair_in_memory_meets_all_lanes(isa, place):
    def body(b, total, x, y):
        unit = DOT_UNITS[isa]()
        sums = unit.multiply_add_one(b, b.at(x, place, "i16"), unit.load(b, y), b.load("<16 x float>", total, 4))
        b.store(sums, total, 4)

    total, x, y = np.ones(16, np.float32), np.array([9, 3, 5, -7, 2], BF16), np.arange(32).astype(BF16)
    compile_function(isa, ["ptr", "ptr", "ptr"], body)(total.ctypes.data, x.ctypes.data, y.ctypes.data)
    low, high = x[place : place + 2].astype(np.float32)
    np.testing.assert_array_equal(total, 1 + low * np.arange(0, 32, 2) + high * np.arange(1, 32, 2))


@each
@pytest.mark.parametrize("vectors", [1, 2])
def test_sums_are_rounded_to_the_nearest_bf16(isa, vectors):
    def body(b, numbers, sums):
        values = [b.load("<16 x float>", b.at(sums, 16 * n, "float"), 4) for n in range(vectors)]
        b.store(DOT_UNITS[isa]().narrow(b, values), numbers, 2)

    call = compile_function(isa, ["ptr", "ptr"], body)
    rng = np.random.default_rng(0)
    for scale in (0, 1, 2.0**100, 2.0**-100):
        sums = (rng.standard_normal(16 * vectors) * scale).astype(np.float32)
        sums[:4] = 1 + 2.0**-8, 1 + 3 * 2.0**-8, np.inf, np.finfo(np.float32).max  # ties, and what is rounded up to it
        numbers = np.zeros(16 * vectors, BF16)
        call(numbers.ctypes.data, sums.ctypes.data)
        np.testing.assert_array_equal(numbers.view(np.uint16), sums.astype(BF16).view(np.uint16))


# --- whole problems, exactly

PACKED = {  # by how numbers become pairs
    f"{name}, {layout}": problem_of(unknown, layout=layout, **sizes)
    for layout in ("NCX", "NXC")
    for name, unknown, sizes in (
        ("rows of odd length", W, {"image": (7, 7), "windows": (7, 7), "taps": (3, 3), "channels": (34, 40), "low": 1}),
        ("one column", W, {"image": (9, 1), "windows": (9, 1), "taps": (3, 1), "channels": (34, 40), "low": (1, 0)}),
        ("planes", W, {"image": (90,), "windows": (11,), "taps": (16,), "channels": (20, 33), "stride": 8, "low": 4}),
        ("odd channels", Y, {"image": (9, 9), "windows": (9, 9), "taps": (3, 3), "channels": (35, 40), "low": 1}),
        ("a few channels", Y, {"image": (9, 9), "windows": (9, 9), "taps": (3, 3), "channels": (6, 10), "low": 1}),
        ("an even number of taps", Y, {"image": (9, 9), "windows": (9, 8), "taps": (3, 2), "channels": (70, 49)}),
        ("one tap", Y, {"image": (9, 20), "windows": (9, 20), "taps": (1, 1), "channels": (66, 49)}),
        ("many channels", X, {"image": (4, 5), "windows": (4, 5), "taps": (3, 3), "channels": (33, 600), "low": 1}),
        ("strides", X, {"image": (13, 19), "windows": (7, 10), "taps": (3, 3), "channels": (33, 48), "stride": 2}),
        (
            "groups of half a vector",
            Y,
            {"image": (5, 9), "windows": (5, 9), "taps": (3, 3), "channels": (16, 20), "low": 1, "groups": 3},
        ),
        (
            "groups of a quarter",
            X,
            {"image": (5, 11), "windows": (5, 11), "taps": (3, 2), "channels": (20, 8), "low": (1, 0), "groups": 2},
        ),
        ("long rows", Y, {"image": (3, 75), "windows": (3, 75), "taps": (1, 3), "channels": (36, 20), "low": (0, 1)}),
    )
}
RUNS = {  # of taps and a few channels
    f"{c} channels, taps {k}, stride {s}, {layout}": problem_of(
        Y, (17, 41), tuple((n + 2 * low - k) // s + 1 for n in (17, 41)), (k, k), channels=(c, 40), stride=s, low=low,
        layout=layout, batch=2, bias=True,
    )
    for layout, c, k, s, low in (
        ("NCX", 3, 3, 2, 1), ("NXC", 3, 3, 2, 1), ("NCX", 1, 5, 3, 2), ("NXC", 1, 2, 1, 0), ("NCX", 4, 4, 4, 0),
        ("NXC", 3, 7, 2, 3), ("NCX", 2, 3, 1, 1), ("NXC", 8, 3, 1, 1), ("NCX", 7, 2, 1, 1),
    )
}  # fmt: skip


@each
@pytest.mark.parametrize("problem", RUNS.values(), ids=RUNS)
def test_taps_and_few_channels_are_one_run(problem, isa):
    problem = in_bf16(problem, "bf16")
    plan = next(plan for plan in variants(problem, machine_for(isa)) if isinstance(plan, DotRunPlan))
    check_plan(problem, plan, machine_for(isa), low=isa == REAL)


def test_what_an_odd_run_reads_at_the_end_of_a_slab_is_zero():
    problem = in_bf16(problem_of(Y, (3, 3), (1, 1), (3, 3), channels=(3, 16)))
    plan = next(plan for plan in variants(problem, machine_for(EMULATED)) if isinstance(plan, DotRunPlan))
    assert plan.run % 2
    check_plan(problem, plan, machine_for(EMULATED))  # in memory that holds NaN at first
    check_plan(problem, replace(plan, packs_weights=not plan.packs_weights), machine_for(EMULATED))


EVERY = {name: in_bf16(problem) for name, problem in (WIDE | PACKED).items()}


@each
@pytest.mark.parametrize("problem", EVERY.values(), ids=EVERY)
def test_whole_numbers_are_exact(problem, isa):
    variant = [isinstance(plan, PLANS) for plan in variants(problem, machine_for(isa))].index(True)
    if isa == HERE[0]:
        check(problem, isa, variant=variant)
    if isa == HERE[-1]:
        check(problem, isa, variant=variant, low=True, alter=1)
        check_plan(in_bf16(problem, "bf16"), plan_of(in_bf16(problem, "bf16"), isa), machine_for(isa))


@pytest.mark.parametrize("layout", ["NCX", "NXC"])
def test_results_in_bf16_are_written_in_place_where_channels_lie_together(layout):
    problem = in_bf16(problem_of(Y, (9, 26), (9, 26), (3, 3), channels=(32, 64), low=1, layout=layout), "bf16")
    plan = plan_of(problem)
    assert plan.writes_in_place == (layout == "NXC")
    check_plan(problem, plan, machine_for(EMULATED))


def test_blocks_of_channels_waste_next_to_none():
    for channels in range(1, 400):
        depth = depth_of(channels)
        assert depth % 2 == 0
        assert depth <= 48
        filled = -(-channels // depth) * depth
        assert filled - channels <= 1 + channels / 20, channels
    assert [depth_of(channels) for channels in (1, 3, 16, 24, 40, 64, 80, 512)] == [2, 4, 16, 24, 40, 32, 40, 32]


@each
@pytest.mark.parametrize("layout", ["NCX", "NXC"])
@pytest.mark.parametrize("channels", [2, 9, 16, 24, 40, 52, 67, 100])
def test_slabs_hold_as_many_channels_as_there_are(channels, layout, isa):
    problem = in_bf16(problem_of(Y, (5, 7), (5, 7), (3, 3), channels=(channels, 20), low=1, layout=layout), "bf16")
    plan = next(plan for plan in variants(problem, machine_for(isa)) if type(plan) is DotDataPlan)
    assert plan.slab_size < prod(plan.slab_extent) * (channels + 4)
    check_plan(problem, plan, machine_for(isa))


@pytest.mark.parametrize("vectors", [1, 2, 3, 4])
@each
def test_tiles_of_any_width_are_rounded_in_place(vectors, isa):
    problem = in_bf16(problem_of(Y, (4, 9), (4, 9), (3, 3), channels=(6, 70), low=1, layout="NXC", bias=True), "bf16")
    for plan in variants(problem, machine_for(isa)):
        if isinstance(plan, DotDataPlan):
            plan = shaped(plan, 3, 16 * vectors)
            assert plan.writes_in_place
            check_plan(problem, plan, machine_for(isa))


def of_lines(layout="NXC", channels=64):
    """A problem whose results are whole lines, more than caches should hold."""
    return in_bf16(problem_of(Y, (160, 160), (160, 160), (1, 1), channels=(2, channels), layout=layout), "bf16")


def test_whole_lines_of_results_go_past_the_caches():
    plan = shaped(plan_of(of_lines(), REAL), 4, 32, 64)
    assert plan.past_caches
    text = jit.assembly(lower(plan).ir, machine_for(REAL))
    assert "vmovnt" in text
    assert text.index("vmovnt") < text.index("sfence")
    for other in (plan_of(of_lines("NCX")), plan_of(of_lines(channels=72))):
        assert not shaped(other, 4, 32, 64).past_caches
    assert not shaped(plan, 4, 16, 64).past_caches


@each
@pytest.mark.parametrize("low", [False, True])
def test_lines_are_the_same_wherever_they_lie(low, isa):
    problem = of_lines()
    plan = shaped(plan_of(problem, isa), 4, 32, 64)
    assert plan.past_caches
    check_plan(problem, plan, machine_for(isa), low=low)


@pytest.mark.parametrize("channels", [8, 64])
def test_the_slab_that_follows_is_asked_for(channels, monkeypatch):
    """Of one run of taps and channels, too; not with channels first."""
    problems = [
        in_bf16(problem_of(Y, (270, 270), (270, 270), (3, 3), channels=(channels, 3), low=1, layout=layout), "bf16")
        for layout in ("NXC", "NCX")
    ]
    plan, first = (plan_of(problem, HERE[-1]) for problem in problems)
    assert plan.fetches_slab
    assert not first.fetches_slab
    asked = lower(plan).ir.count("@llvm.prefetch")
    check_plan(problems[0], plan, machine_for(HERE[-1]))
    monkeypatch.setattr(DotDataPlan, "fetches_slab", False)
    assert lower(plan).ir.count("@llvm.prefetch") < asked


@pytest.mark.parametrize("layout", ["NXC", "NCX"])
@pytest.mark.parametrize("taps", [1, 3])
def test_the_windows_that_follow_are_asked_for(taps, layout, monkeypatch):
    """In rows numbered through, and in sums of their own, whose first row some taps do not meet."""
    problem = problem_of(
        W, (80, 141), (80, 141), (taps, taps), channels=(50, 61), low=taps // 2, layout=layout
    )  # fmt: skip
    plan = plan_of(in_bf16(problem), HERE[-1])
    assert plan.fetches_ahead == (layout == "NXC")
    monkeypatch.setattr(DotWeightsPlan, "fetches_ahead", False)
    plain = lower(plan).ir.count("@llvm.prefetch")
    monkeypatch.setattr(DotWeightsPlan, "fetches_ahead", True)
    assert lower(plan).ir.count("@llvm.prefetch") > plain
    for apart, block in ((False, (1, 600)),) if taps == 1 else ((False, (1, 9, 141)), (True, (1, 9, 141))):
        check_plan(plan.problem, replace(plan, rows_apart=apart, block=block), machine_for(HERE[-1]))


ROWS = {  # of windows
    f"{windows}, taps {taps}, stride {stride}, dilation {dilation}, {layout}": problem_of(
        W, tuple((n - 1) * stride + dilation * (k - 1) + 1 - 2 * low for n, k in zip(windows, taps, strict=True)),
        windows, taps, channels=(19, 21), stride=stride, dilation=dilation, low=low, layout=layout, batch=3,
    )
    for layout in ("NCX", "NXC")
    for windows, taps, stride, dilation, low in (
        ((5, 7), (3, 3), 1, 1, 1), ((4, 10), (3, 2), 1, 1, 0), ((6, 9), (3, 4), 2, 1, 1), ((7, 6), (3, 3), 1, 2, 2),
        ((9, 1), (3, 1), 1, 1, 0), ((3, 4, 5), (2, 3, 3), 1, 1, 1),
    )
}  # fmt: skip


@each
@pytest.mark.parametrize("problem", ROWS.values(), ids=ROWS)
def test_rows_of_windows_may_be_sums_of_their_own(problem, isa):
    problem = in_bf16(problem, "bf16")
    plan = replace(plan_of(problem, isa), rows_apart=True)
    every = tuple(axis.windows for axis in plan.axes)
    assert plan.depth == -(-plan.block[-1] // 2) * 2
    for block in (plan.block, every, (1, *every[1:]), (1, *[2] * (len(every) - 2), every[-1]), (1,) * len(every)):
        check_plan(problem, replace(plan, block=block), machine_for(isa))
        check_plan(problem, replace(plan, block=block, rows_apart=False), machine_for(isa))


FEW = {  # channels of x: taps are rows of a tile, in planes of a stride
    f"{c} channels, taps {taps}, stride {stride}, dilation {dilation}, {layout}": problem_of(
        W, tuple((n - 1) * stride + dilation * (k - 1) + 1 - 2 * low for n, k in zip(windows, taps, strict=True)),
        windows, taps, channels=(c, 37), stride=stride, dilation=dilation, low=low, layout=layout, batch=2,
    )
    for layout in ("NCX", "NXC")
    for c, windows, taps, stride, dilation, low in (
        (1, (5, 7), (3, 3), 1, 1, 1), (1, (6, 6), (9, 9), 3, 1, 4), (3, (4, 5), (16, 16), 16, 1, 1),
        (2, (5, 9), (4, 6), 4, 1, 1), (2, (6, 5), (3, 6), 3, 2, 2), (1, (41,), (10,), 5, 1, 0),
        (1, (23,), (8,), 6, 3, 5), (1, (3, 4, 5), (2, 3, 3), 2, 1, 1),
    )
}  # fmt: skip


@each
@pytest.mark.parametrize("problem", FEW.values(), ids=FEW)
def test_taps_of_few_channels_are_rows_of_a_tile(problem, isa):
    for dtype in ("bf16", "f32"):
        problem = in_bf16(problem, dtype)
        plan = plan_of(problem, isa)
        assert plan.tile_taps > 1 or problem.x_channels > 2
        check_plan(problem, plan, machine_for(isa), low=isa == REAL)
        every = tuple(axis.windows for axis in plan.axes)
        for taps in taps_together(plan.axes[-1]):
            if taps * problem.x_channels <= 30:
                tiles = replace(plan, vectors=1, row_channels=problem.x_channels, tile_taps=taps)
                tiles = replace(tiles, rows_apart=bool(taps % 2) and problem.rank > 1, block=every, chunks=1)
                check_plan(problem, tiles, machine_for(isa))


@pytest.mark.parametrize(
    "axis", [(9, 3, 1, 4), (16, 16, 1, 0), (6, 4, 1, 1), (6, 3, 2, 2), (8, 6, 3, 5), (12, 8, 2, 3)]
)
def test_taps_lie_alike_in_all_tiles_of_so_many(axis):
    taps, stride, dilation, low = axis
    windows = WindowAxis(windows=9, image=64, taps=taps, stride=stride, dilation=dilation, low=low)
    places = [divmod(-low % stride + r * dilation, stride) for r in range(taps)]  # in a plane, and which

    def alike(count):
        tiles = [places[first : first + count] for first in range(0, taps, count)]
        return len({tuple((p - tile[0][0], q - tile[0][1]) for p, q in tile) for tile in tiles}) == 1

    assert taps_together(windows) == [n for n in range(1, taps + 1) if taps % n == 0 and alike(n)]


def test_short_rows_are_summed_apart():
    problem = in_bf16(problem_of(W, (7, 7), (7, 7), (3, 3), channels=(64, 64), low=1, batch=8), "bf16")
    assert choose(problem, machine_for(REAL)).rows_apart


@each
@pytest.mark.parametrize("part", range(3))
def test_random_problems_by_dot_products(part, isa):
    found, seed = 0, 1000 * part + (500 if isa == REAL else 0)
    while found < 12:
        problem = in_bf16(random_problem(np.random.default_rng(seed)), ("f32", "bf16")[seed % 2])
        for plan in variants(problem, machine_for(isa)):
            if isinstance(plan, PLANS):
                check_plan(problem, plan, machine_for(isa), seed=seed, low=bool(seed % 3))
                found += 1
        seed += 1


@pytest.mark.parametrize("layout", ["NCX", "NXC"])
@pytest.mark.parametrize("unknown", [X, Y])
def test_tasks_may_pack_their_own_weights_and_watch_them(unknown, layout):
    check_own_weights(plan_of, "bf16", unknown, layout)


@pytest.mark.parametrize("chunks", [1, 2])
def test_a_task_may_keep_its_sums(chunks):
    problem = in_bf16(problem_of(W, (12, 13), (12, 13), (3, 3), channels=(34, 40), low=1, batch=2), "bf16")
    plan = replace(plan_of(problem), block=(1, 12, 13), chunks=chunks)
    assert plan.own_sums == (chunks == 1)
    check_plan(problem, plan, machine_for(EMULATED))


# --- broken on purpose


def without_the_rest(plain, self, b, pairs, a, x, tile):
    return plain(self, b, pairs - pairs % WRITTEN_OUT, a, x, tile)


def nothing(*_):
    return None


def of_the_first_tile_alone(plain, self, b, source, target, lanes, channels):
    return plain(replace(self, tiles=1), b, source, target, lanes, channels)


def itself_as_partner(plain, self, partner):
    return plain(self, 0 if partner is None else partner)


def the_other_way_round(plain, b, low, high):
    return plain(b, high, low)


def one_after_the_other(*_):
    return range(6)


def with_one_tap(plain, self, *arguments):
    return plain(replace(self, taps=[replace(tap, extent=1) for tap in self.taps]), *arguments)


BROKEN = {  # what is broken, what becomes of it, and a problem that shows it
    "the last pairs of a step are left out": (DotTile, "_step", without_the_rest, PACKED["a few channels, NXC"]),
    "what runs do not fill is not zeroed": (
        DotRunStages,
        "begin_slab",
        nothing,
        RUNS["3 channels, taps 7, stride 2, NXC"],
    ),
    "the last of an odd row of x is left out": (PairedRuns, "_last", nothing, PACKED["rows of odd length, NXC"]),
    "the last of an odd row of y meets itself": (
        PairedCopy,
        "with_partner",
        itself_as_partner,
        PACKED["rows of odd length, NCX"],
    ),
    "runs that are put together change places": (
        paired_copies,
        "concatenated",
        the_other_way_round,
        PACKED["groups of half a vector, NXC"],
    ),
    "weights of other tiles are left out": (
        PairedPanel,
        "emit",
        of_the_first_tile_alone,
        WIDE["channels of several tiles"],
    ),
    "taps in planes are taken for neighbours": (
        DotWeightsPlan,
        "row_places",
        property(one_after_the_other),
        FEW["2 channels, taps (4, 6), stride 4, dilation 1, NCX"],
    ),
    "taps between channels are taken for one": (PairedPanel, "_run", with_one_tap, WIDE["channels of several tiles"]),
}


@pytest.mark.parametrize("defect", BROKEN)
def test_kernels_that_are_broken_are_found_out(defect, monkeypatch):
    owner, name, instead, problem = BROKEN[defect]
    problem = in_bf16(problem)
    kind = DotRunPlan if owner is DotRunStages else PLANS
    plan = next(plan for plan in variants(problem, machine_for(EMULATED)) if isinstance(plan, kind))
    plain = getattr(owner, name)
    broken = instead if isinstance(instead, property) else lambda *arguments: instead(plain, *arguments)
    monkeypatch.setattr(owner, name, broken)
    with pytest.raises(AssertionError):
        check_plan(problem, plan, machine_for(EMULATED), low=True)


# --- numbers that dot products take differently

SMALL = [in_bf16(problem_of(u, (6, 18), (6, 18), (3, 3), channels=(34, 20), low=1)) for u in (X, W, Y)]
IDS = ["x", "w", "y"]


@pytest.mark.parametrize("kind", BF16_KINDS)
@pytest.mark.parametrize("problem", SMALL, ids=IDS)
def test_every_kind_of_data_is_multiplied_as_f32(problem, kind):
    check_kind(plan_of(problem), kind)


@pytest.mark.parametrize("side", [0, 1])
@pytest.mark.parametrize("value", [-np.inf, np.nan, 2.0**-133])
@pytest.mark.parametrize("problem", SMALL, ids=IDS)
def test_one_such_number_gives_the_bits_of_vectors(problem, value, side):
    problem = in_bf16(problem, "bf16")
    given = data(problem, np.random.default_rng(2), lambda rng, s: rng.standard_normal(s))
    name = sorted(given)[side]
    given[name].flat[given[name].size // 2] = value
    plan = plan_of(problem)
    result, again = run(plan, given)
    assert again
    wanted, _ = run(plan.fallback, given)
    np.testing.assert_array_equal(result.view(np.uint16), wanted.view(np.uint16))


@pytest.mark.parametrize("odd", [False, True])
@pytest.mark.parametrize("layout", ["NCX", "NXC"])
@pytest.mark.parametrize("unknown", [X, W, Y])
def test_every_number_is_watched(unknown, layout, odd):
    """Wherever one is, and however it became one of a pair."""
    channels = (3, 5) if odd else (4, 6)
    problem = in_bf16(problem_of(unknown, (3, 5), (3, 5), (1, 3), channels=channels, low=(0, 1), layout=layout))
    check_watched(plan_of(problem))


def check_watched(plan):
    """The fallback takes over wherever one number is infinite."""
    module = lower(plan)
    made = module, load_here(module, machine_for(EMULATED))
    ones = {name: np.ones(shape) for name, shape in plan.problem.shapes.items() if name != plan.problem.unknown.value}
    for name, values in ones.items():
        for place in range(values.size):
            given = {n: v.copy() for n, v in ones.items()}
            given[name].flat[place] = np.inf
            _, again = run(plan, given, made=made)
            assert again, f"infinity at {np.unravel_index(place, values.shape)} of {name} was not seen"


def test_what_is_added_to_an_output_is_computed_on_vectors():
    for problem in SMALL:
        plans = list(variants(replace(problem, accumulate=True), machine_for(EMULATED)))
        assert not any(isinstance(plan, PLANS) for plan in plans)


@pytest.mark.parametrize("mode", ["bf16", "any", "strict", "tf32"])
@pytest.mark.parametrize("unknown", [X, W, Y])
def test_f32_is_rounded_to_pairs_where_that_is_allowed(unknown, mode):
    problem = problem_of(unknown, (9, 9), (9, 9), (3, 3), channels=(34, 17), low=1, fpmath_mode=mode)
    found = [plan for plan in variants(problem, machine_for(EMULATED)) if isinstance(plan, PLANS)]
    assert bool(found) == (mode in ("bf16", "any"))
    for plan in found:
        check_plan(problem, plan, machine_for(EMULATED))


# --- the real instruction


@pytest.mark.parametrize("problem", SMALL, ids=IDS)
def test_kernels_for_processors_that_have_it_use_the_instruction(problem):
    text = jit.assembly(lower(plan_of(problem, REAL)).ir, machine_for(REAL))
    assert "vdpbf16ps" in text
    assert "vcvtne" not in text, "it takes denormals for zero"


def test_only_sums_that_are_watched_are_rounded_by_the_processor():
    problem = in_bf16(problem_of(Y, (6, 18), (6, 18), (3, 3), channels=(34, 40), low=1, layout="NXC"), "bf16")
    plan = shaped(plan_of(problem, REAL), 6, 32)
    assert plan.writes_in_place
    assert plan.watch
    main, fallback = lower(plan), lower(plan.fallback)
    assert "vcvtne2ps2bf16" in jit.assembly(main.ir, machine_for(REAL))
    assert "vcvtne" not in jit.assembly(fallback.ir, machine_for(REAL))


def test_dense_layers_are_planned_on_it():
    for unknown in (X, W, Y):
        problem = in_bf16(problem_of(unknown, (28, 28), (28, 28), (3, 3), channels=(64, 64), low=1), "bf16")
        assert isinstance(choose(problem, machine_for(REAL)), PLANS)
        assert not isinstance(choose(replace(problem, dtype="f32", out_dtype="f32"), machine_for(REAL)), PLANS)


@pytest.mark.parametrize("slow", [False, True])
def test_it_is_preferred_where_it_is_as_fast_as_a_multiply_add(monkeypatch, slow):
    flags = {*machine.LEVELS[REAL].needs, *(["avx512_fp16"] if slow else [])}
    monkeypatch.setattr(machine, "cpu_flags", lambda: frozenset(flags))
    monkeypatch.setattr(machine, "host_triple", lambda: "x86_64-unknown-linux-gnu")
    for cached in (machine.why_not, machine.available_isas):
        cached.cache_clear()
    try:
        assert machine.available_isas()[-1] == ("avx512" if slow else REAL)
        assert REAL in machine.available_isas()
    finally:
        monkeypatch.undo()
        for cached in (machine.why_not, machine.available_isas):
            cached.cache_clear()
