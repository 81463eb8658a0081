"""One channel to one, rows of planes read where they lie: exactly, at every border, and nothing beside them."""

import timeit
from dataclasses import replace
from types import SimpleNamespace

import numpy as np
import pytest

import convgrad
from codegen.buffers import StridedArray
from codegen.dense_problems import on_axes
from codegen.emitted import kernel_here
from codegen.random_problems import altered, check, check_plan, in_turn
from codegen.test_planes import plane_problem
from convgrad.codegen.lower import lower
from convgrad.dtypes import numpy_dtype
from convgrad.plan.choose import variants
from convgrad.plan.depthwise.plane_row_weights import PlaneRowWeightsPlan
from convgrad.plan.depthwise.plane_rows import PlaneRowsPlan
from convgrad.plan.machine import machine_for, why_not
from convgrad.problem.conv import Unknown
from convgrad.runtime import memory

ISA = "avx512"
needs_masks = pytest.mark.skipif(why_not(ISA) is not None, reason=f"no {ISA} here: {why_not(ISA)}")
BOTH = [
    pytest.param(isa, marks=pytest.mark.skipif(why_not(isa) is not None, reason=f"no {isa} here: {why_not(isa)}"))
    for isa in (ISA, "avx2")
]
KINDS = PlaneRowsPlan | PlaneRowWeightsPlan
HALVES = ("bf16", "f16")
AXES = {  # extents of x and y, taps, stride, dilation, low pad
    "one vector": ((14, 14), (14, 14), (3, 3), (1, 1), (1, 1), (1, 1)),
    "rows that end within a vector": ((23, 56), (23, 56), (5, 5), (1, 1), (1, 1), (2, 2)),
    "many whole vectors": ((13, 130), (13, 130), (3, 3), (1, 1), (1, 1), (1, 1)),
    "no pads": ((18, 66), (16, 64), (3, 3), (1, 1), (1, 1), (0, 0)),
    "stride 2": ((22, 112), (11, 56), (3, 5), (2, 2), (1, 1), (1, 2)),
    "stride 2, phases of unequal length": ((17, 63), (9, 32), (3, 3), (2, 2), (1, 1), (1, 1)),
    "stride 2, a phase that ends within a vector": ((17, 63), (12, 40), (3, 3), (2, 2), (1, 1), (1, 1)),
    "no tap meets anything": ((30, 1), (31, 1), (2, 4), (1, 1), (1, 1), (1, 5)),
    "stride 2, a phase without taps": ((21, 65), (10, 32), (2, 2), (2, 2), (2, 2), (1, 1)),
    "stride 2, taps before the row": ((5, 60), (3, 33), (3, 3), (2, 2), (1, 1), (1, 6)),
    "stride 3": ((30, 99), (10, 33), (4, 4), (3, 3), (1, 1), (1, 1)),
    "stride 4 of columns": ((12, 131), (12, 33), (3, 5), (1, 4), (1, 1), (1, 2)),
    "dilation": ((19, 40), (19, 40), (3, 3), (1, 1), (3, 2), (3, 2)),
    "large kernel": ((15, 50), (15, 50), (7, 7), (1, 1), (1, 1), (3, 3)),
    "pads wider than a vector": ((9, 20), (9, 52), (3, 3), (1, 1), (1, 1), (1, 17)),
    "three axes": ((5, 9, 40), (5, 9, 40), (3, 3, 3), (1, 1, 1), (1, 1, 1), (1, 1, 1)),
    "three axes, stride 2": ((8, 10, 40), (4, 5, 20), (3, 3, 3), (2, 2, 2), (1, 1, 1), (1, 1, 1)),
}


MANY_TAPS = ("rows that end within a vector", "large kernel", "stride 4 of columns", "three axes")


def problem_of(unknown, axes, *, batch=2, groups=3, **more):
    """Dense, with channels first."""
    return on_axes(unknown, axes, channels=(1, 1), batch=batch, groups=groups, **more)


def rows_plan(problem, isa=ISA):
    """The plan that reads rows in place; None if there is none."""
    plans = variants(problem, machine_for(isa))
    return next((plan for plan in plans if isinstance(plan, KINDS) and not plan.ON_UNITS), None)


@pytest.mark.parametrize("isa", BOTH)
@pytest.mark.parametrize("unknown", Unknown)
@pytest.mark.parametrize("name", AXES)
def test_every_border(unknown, name, isa):
    """As planned, in other blocks, in 16 bits, with a bias or sums of either tensor."""
    of_w, order = unknown is Unknown.W, list(AXES).index(name)
    more = [{}, {"dtype": "bf16", "out_dtype": "bf16"}, {"dtype": "f16", "out_dtype": "f32"}]
    more += [{"bias_gradient": "x"}, {"bias_gradient": "y", "accumulate": True}] if of_w else [{"bias": True}]
    tried = 0
    for seed, fields in enumerate(more):
        problem = problem_of(unknown, AXES[name], **fields)
        plan = rows_plan(problem, isa)
        if plan is None:
            continue
        changes = (None, seed, seed + 100)  # all of them for the first type
        for change in changes if seed == 0 else (in_turn(seed + order, *changes),):
            some = plan if change is None else altered(plan, np.random.default_rng(change))
            check_plan(problem, some, machine_for(isa), seed, low=bool(seed % 2))
            tried += 1
    outside = {("large kernel", Unknown.W), ("stride 3", Unknown.X), ("stride 4 of columns", Unknown.X)}
    outside |= {("three axes, stride 2", Unknown.X)}
    if isa == "avx2":  # many taps of an output, or of a tile of weights
        outside |= {(name, unknown) for name in MANY_TAPS for unknown in Unknown} - {("three axes", Unknown.W)}
        outside |= {("stride 2", Unknown.W), ("stride 2", Unknown.Y), ("three axes, stride 2", Unknown.Y)}
        outside |= {("stride 3", unknown) for unknown in (Unknown.Y, Unknown.W)}
    assert (tried == 0) == ((name, unknown) in outside)


@pytest.mark.parametrize("isa", BOTH)
@pytest.mark.parametrize("unknown", Unknown)
def test_random_problems(unknown, isa):
    """Of one channel each, with all strides, types and blocks, few of which suit short vectors."""
    tried = 0
    for seed in range(80 if isa == ISA else 300):
        problem = plane_problem(np.random.default_rng(seed), unknown)
        plans = list(variants(problem, machine_for(isa)))
        variant = next((n for n, plan in enumerate(plans) if isinstance(plan, KINDS)), None)
        if variant is not None:
            check(problem, isa, variant=variant, seed=seed, low=bool(seed % 2), alter=seed if seed % 3 else None)
            tried += 1
    assert tried > 20


@pytest.mark.parametrize("isa", BOTH)
def test_numbers_that_no_window_meets_may_be_anything(isa):
    """Beside the last window of a stride, in lanes that are left over, in rows between and behind windows."""
    problem = problem_of(Unknown.W, ((12, 40), (4, 13), (1, 2), (3, 3), (1, 1), (0, 0)))
    plan = rows_plan(problem, isa)
    rng = np.random.default_rng(0)
    x, y = (rng.integers(-2, 3, problem.shapes[name]).astype(np.float32) for name in "xy")
    met = np.zeros((12, 40), bool)
    met[np.ix_(range(0, 12, 3), sorted({3 * p + r for p in range(13) for r in range(2)}))] = True
    clean = np.where(met, x, 0)
    spoilt = np.where(met, x, np.nan).astype(np.float32)
    wanted = np.zeros(problem.shapes["w"], np.float32)
    for r in range(2):
        wanted[..., 0, r] = (clean[..., 0:12:3, r:39:3][..., :13] * y).sum((0, 3, 4))[:, None]
    kernel = kernel_here(problem, lower(plan), machine_for(isa))
    result = np.zeros_like(wanted)
    kernel(spoilt.ctypes.data, result.ctypes.data, y.ctypes.data)
    np.testing.assert_array_equal(result, wanted)


@needs_masks
def test_pairs_of_windows_end_with_the_row():
    """bf16: what lies behind the last window is in the same words, and may be anything; not where rows are odd."""
    axes = ((12, 62), (10, 56), (3, 3), (1, 1), (1, 1), (0, 0))
    problem = problem_of(Unknown.W, axes, dtype="bf16", out_dtype="f32")
    plan = rows_plan(problem)
    assert plan.pairs
    assert not rows_plan(replace(problem, dtype="f16")).pairs
    odd = ((12, 62), (10, 57), *axes[2:])
    assert not rows_plan(problem_of(Unknown.W, odd, dtype="bf16")).pairs
    rng, bf16 = np.random.default_rng(0), numpy_dtype("bf16")
    x, y = (rng.integers(-2, 3, problem.shapes[name]).astype(np.float32) for name in "xy")
    wanted = np.zeros(problem.shapes["w"], np.float32)
    for r, c in np.ndindex(3, 3):
        wanted[..., r, c] = (x[..., r : r + 10, c : c + 56] * y).sum((0, 3, 4))[:, None]
    x[..., 58:] = np.nan
    x, y = x.astype(bf16), y.astype(bf16)
    alone = replace(lower(plan), fallback=None)  # which would mend NaN that lanes behind the row make
    kernel = kernel_here(problem, alone, machine_for(ISA))
    result = np.zeros_like(wanted)
    kernel(x.ctypes.data, result.ctypes.data, y.ctypes.data)
    np.testing.assert_array_equal(result, wanted)


@pytest.mark.parametrize("isa", BOTH)
@pytest.mark.parametrize("unknown", [Unknown.X, Unknown.Y])
@pytest.mark.parametrize(("name", "dtype"), [(name, t) for n, name in enumerate(AXES) for t in ("f32", HALVES[n % 2])])
def test_sums_have_the_order_of_other_plans(dtype, unknown, name, isa):
    """Extents that choose another plan do not change a bit: parts of a tensor have those of the whole."""
    problem, solved = problem_of(unknown, AXES[name], dtype=dtype, out_dtype=dtype), unknown.value
    given = random_arrays(problem)
    results = [
        result_of(plan, problem, given | {solved: np.zeros(problem.shapes[solved], numpy_dtype(dtype))}, isa, 1000 + n)
        for n, plan in enumerate(variants(problem, machine_for(isa)))
    ]
    assert len(results) > 1
    for result in results[1:]:
        np.testing.assert_array_equal(result, results[0])


def random_arrays(problem, seed=0):
    """What a kernel is given, from a normal distribution."""
    rng, solved = np.random.default_rng(seed), problem.unknown.value
    names = {"x", "w", "y"} - {solved}
    return {n: rng.standard_normal(problem.shapes[n]).astype(numpy_dtype(problem.dtype)) for n in sorted(names)}


def result_of(plan, problem, arrays, isa, number):
    """What the kernel of a plan writes."""
    kernel = kernel_here(problem, lower(plan), machine_for(isa), variant=number)
    kernel(*(arrays[n].ctypes.data for n in "xwy"))
    return arrays[problem.unknown.value]


@pytest.mark.skipif(why_not("avx512_bf16") is not None, reason=f"no AVX512_BF16 here: {why_not('avx512_bf16')}")
@pytest.mark.parametrize("unknown", [Unknown.X, Unknown.Y])
@pytest.mark.parametrize("name", AXES)
def test_whoever_rounds_to_bf16_the_bits_are_the_same(unknown, name):
    """By integers or by the processor: ordinary sums, and ones that are zero, denormal, infinite or NaN."""
    problem, solved = problem_of(unknown, AXES[name], dtype="bf16", out_dtype="bf16"), unknown.value
    plans = {isa: rows_plan(problem, isa) for isa in (ISA, "avx512_bf16")}
    if plans[ISA] is None:
        assert plans["avx512_bf16"] is None
        return
    given = random_arrays(problem)
    ordinary, rng = next(given[n] for n in given if n != "w"), np.random.default_rng(1)
    for scale in (1, 0, 2.0**-127, 2.0**-133, 2.0**126, np.inf, np.nan):
        changed = ordinary.copy()
        changed[rng.random(ordinary.shape) < 0.1] *= np.array(scale, ordinary.dtype)
        arrays = {n: changed if array is ordinary else array for n, array in given.items()}
        results = [
            result_of(plan, problem, arrays | {solved: np.zeros(problem.shapes[solved], ordinary.dtype)}, isa, 2000)
            for isa, plan in plans.items()
        ]
        np.testing.assert_array_equal(*(result.view(np.uint16) for result in results))


@pytest.mark.parametrize("unknown", Unknown)
def test_large_tensors_are_asked_for_ahead(unknown):
    """From 8 MiB on, 16 KiB of either tensor or so."""
    small, large = (
        problem_of(unknown, ((112, 112), (56, 56), (3, 3), (2, 2), (1, 1), (1, 1)), groups=groups) for groups in (8, 96)
    )
    ahead = [
        plan.fetches if isinstance(plan, PlaneRowsPlan) else plan.fetches_ahead
        for plan in map(rows_plan, (small, large))
    ]
    assert ahead == ([(), ("x", "y")] if unknown is not Unknown.W else [False, True])
    plan = rows_plan(large)
    for name in "xy":
        assert abs(plan.bytes_ahead(name) - 16 * 1024) < 8 * 1024
    assert "prefetch" in lower(plan).ir
    assert "prefetch" not in lower(rows_plan(small)).ir


@pytest.mark.parametrize("unknown", Unknown)
def test_tiles_of_16_bits_are_higher_since_what_they_share_is_converted_for_each(unknown):
    axes = ((56, 56), (56, 56), (3, 3), (1, 1), (1, 1), (1, 1))
    rows = {dtype: rows_plan(problem_of(unknown, axes, dtype=dtype, out_dtype=dtype)).rows for dtype in ("f32", "f16")}
    assert rows["f16"] > rows["f32"]
    check(problem_of(unknown, axes, dtype="f16", out_dtype="f16"), ISA, low=True)


@needs_masks
def test_tiles_of_16_bits_are_higher_with_phases_too():
    """Though these have more sums than f32 is better with."""
    for taps, low in ((3, 1), (5, 2)):
        axes = ((28, 28), (14, 14), (taps, taps), (2, 2), (1, 1), (low, low))
        plans = [rows_plan(problem_of(Unknown.X, axes, dtype=t, out_dtype=t)) for t in ("f32", "bf16", "f16")]
        assert max(plan.rows for plan in plans[:1]) < min(plan.rows for plan in plans[1:])
        for plan in plans[1:]:
            check_plan(plan.problem, plan, machine_for(ISA), taps, low=True)


@pytest.mark.parametrize("unknown", Unknown)
def test_what_slabs_serve_better(unknown):
    """Sums in memory already, many taps, a single axis, the shortest vectors."""
    axes = ((30, 30), (30, 30), (3, 3), (1, 1), (1, 1), (1, 1))
    assert rows_plan(problem_of(unknown, axes)) is not None
    assert unknown is Unknown.W or rows_plan(problem_of(unknown, axes, accumulate=True)) is None
    assert rows_plan(problem_of(unknown, ((30, 30), (30, 30), (9, 9), (1, 1), (1, 1), (4, 4)))) is None
    assert rows_plan(problem_of(unknown, ((90,), (90,), (5,), (1,), (1,), (2,)))) is None
    assert rows_plan(problem_of(unknown, axes), "portable") is None
    plan = rows_plan(problem_of(unknown, axes))
    with pytest.raises(AssertionError):
        lower(replace(plan, block=(*plan.block[:-1], plan.lanes)))


def test_short_vectors_read_rows_in_place_where_it_pays():
    """One or two taps of each number that is converted; few taps of an output, or long rows that many taps meet."""

    def in_place(unknown, x, y, taps, stride, low, dtype="f32"):
        axes = (x, y, *((n,) * len(x) for n in (taps, stride, 1, low)))
        return rows_plan(problem_of(unknown, axes, dtype=dtype), "avx2") is not None

    same, half, small = (56, 56), (28, 28), (7, 7)
    for unknown in Unknown:
        assert in_place(unknown, same, same, 3, 1, 1)
        assert in_place(unknown, same, half, 3, 2, 1, "f64")
        assert not in_place(unknown, same, same, 5, 1, 2)
        assert in_place(unknown, same, same, 3, 1, 1, "f16")
        assert in_place(unknown, same, same, 3, 1, 1, "bf16")
        assert in_place(unknown, same, half, 2, 2, 0, "bf16")
        assert not in_place(unknown, (8, 16, 16), (8, 16, 16), 3, 1, 1)
    for dtype, least in (("f32", 96), ("f16", 96), ("bf16", 160)):
        for extent in (least, least - 2):
            long = (20, extent)
            assert in_place(Unknown.Y, long, long, 5, 1, 2, dtype) == (extent == least)
            assert not in_place(Unknown.Y, long, long, 7, 1, 3, dtype)
    assert in_place(Unknown.X, same, half, 5, 2, 2)
    assert not in_place(Unknown.Y, same, half, 5, 2, 2)
    assert in_place(Unknown.X, same, half, 3, 2, 1, "bf16")
    assert not in_place(Unknown.Y, same, half, 3, 2, 1, "f16")
    assert not in_place(Unknown.Y, (14, 14), small, 3, 2, 1)
    for dtype, least in (("f16", 9), ("bf16", 17)):
        assert in_place(Unknown.W, (20, least), (20, least), 3, 1, 1, dtype)
        assert not in_place(Unknown.W, (20, least - 1), (20, least - 1), 3, 1, 1, dtype)
    assert in_place(Unknown.W, (8, 28, 28), (8, 28, 28), 3, 1, 1)
    assert [
        rows_plan(problem_of(Unknown.Y, (e, e, *AXES["one vector"][2:])), "avx2").vectors for e in (same, small)
    ] == [2, 1]


@pytest.mark.parametrize("isa", BOTH)
@pytest.mark.parametrize("unknown", Unknown)
def test_lanes_beside_a_row_of_zeros_cost_nothing_where_memory_begins(unknown, isa, monkeypatch):
    """A load takes some 300 cycles if its mask leaves out what lies where no memory is: eight times as long in all."""
    problem = problem_of(unknown, ((7, 7), (7, 7), (3, 3), (1, 1), (1, 1), (1, 1)), batch=1, groups=672)
    arrays = random_arrays(problem) | {unknown.value: np.zeros(problem.shapes[unknown.value], np.float32)}
    kernel = kernel_here(problem, lower(rows_plan(problem, isa)), machine_for(isa))
    addresses = [arrays[name].ctypes.data for name in "xwy"]
    least, threads = {}, convgrad.num_threads()
    convgrad.set_num_threads(1)
    for low in (False, True):  # with room before it, and right behind a guard page
        room = StridedArray((1 << 20,), (1,), np.uint8, low=low)
        room.view[...] = 0
        start = room.address if low else -(-room.address // memory.ALIGNMENT) * memory.ALIGNMENT
        block = SimpleNamespace(address=start, size=room.view.size - memory.ALIGNMENT)
        monkeypatch.setattr(memory, "acquire", lambda *_, block=block: block)
        monkeypatch.setattr(memory, "release", lambda *_: None)
        least[low] = min(timeit.repeat(lambda: kernel(*addresses), number=1, repeat=60))
    convgrad.set_num_threads(threads)
    assert least[True] < 3 * least[False]


@pytest.mark.skipif(why_not("avx2") is not None, reason=f"no AVX2 here: {why_not('avx2')}")
@pytest.mark.parametrize("unknown", [Unknown.X, Unknown.Y])
@pytest.mark.parametrize("width", [15, 16, 17, 18, 22, 24, 34, 48, 62])
def test_short_vectors_read_bf16_in_pairs(width, unknown):
    """Where vectors of them have few outputs twice: the first and the last one lack a number beside the row."""
    axes = ((9, width), (9, width), (3, 3), (1, 1), (1, 1), (1, 1))
    problem = problem_of(unknown, axes, dtype="bf16", out_dtype="bf16")
    plan = rows_plan(problem, "avx2")
    if width % 2 or width in (18, 22):
        assert plan is None
        return
    assert (plan.vectors, plan.rows, len(plan.axes[-1].phases)) == (1, 3, 2)
    for low in (False, True):
        check_plan(problem, plan, machine_for("avx2"), width, low=low)
