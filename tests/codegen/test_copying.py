"""Copies of boxes between any strides and types against NumPy; nothing outside the box is touched."""

from dataclasses import replace
from math import prod
from types import SimpleNamespace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from codegen.buffers import Buffer, StridedArray
from codegen.emitted import compile_function, each_isa
from codegen.random_problems import strides_in
from convgrad.codegen.copying import Copy, Dim
from convgrad.codegen.isa import ISAS
from convgrad.codegen.isa.base import STORAGE
from convgrad.codegen.zeroing import Range, emit_zero, emit_zero_outside
from convgrad.dtypes import COMPUTE, numpy_dtype

PAIRS = [("f32", "f32"), ("bf16", "f32"), ("f16", "f32"), ("f32", "bf16"), ("f32", "f16"), ("bf16", "bf16"),
         ("f16", "f16"), ("bf16", "f16"), ("f64", "f64")]  # fmt: skip
AROUND_LANES = (1, 2, 3, 4, 5, 7, 8, 9, 15, 16, 17, 31, 32, 33, 48, 50)
bounded = settings(max_examples=50, deadline=None, derandomize=True)


def copy_of(isa, source, target, accumulate=False):
    return Copy(
        isa=ISAS[isa], compute=COMPUTE[source], src_dtype=source, dst_dtype=target, accumulate=accumulate
    )  # fmt: skip


def whole_numbers(shape, dtype, start=0):
    """Different neighbours, and small enough that every type holds them and their sums."""
    return ((np.arange(prod(shape)).reshape(shape) * 7 + start) % 101 - 50).astype(numpy_dtype(dtype))


def boxes(shape, source_strides, target_strides, pair, accumulate, low):
    """Both sides of a copy, and what the target is to hold afterwards."""
    source = StridedArray(shape, source_strides, numpy_dtype(pair[0]), low=low)
    target = StridedArray(shape, target_strides, numpy_dtype(pair[1]), low=low)
    source.view[...] = whole_numbers(shape, pair[0])
    expected = source.view.astype(np.float64)
    if accumulate:
        target.view[...] = whole_numbers(shape, pair[1], 13)
        expected = expected + target.view.astype(np.float64)
    return source, target, expected


def assert_copied(target, expected):
    np.testing.assert_array_equal(target.view.astype(np.float64), expected)
    assert target.only_elements_changed(), "something was written outside the box"


def known_or_not(b, extents, numbers, known):
    """Extents of a box, some of which the compiler does not know."""
    return [extent if knows else number for extent, number, knows in zip(extents, numbers, known, strict=True)]


def box_copy(copy, source_strides, target_strides):
    """Emits the copy of a box of any extents."""

    def emit(b, src, dst, extents):
        steps = zip(extents, source_strides, target_strides, strict=True)
        copy.emit(b, src, dst, [Dim(*step) for step in steps])

    return emit


def run_copy(isa, source, target, shape, known, emit):
    """Call `emit(b, src, dst, extents)` with the extents as the compiler sees them."""

    def body(b, src, dst, *numbers):
        emit(b, src, dst, known_or_not(b, shape, numbers, known))

    compile_function(isa, ("ptr", "ptr", *["i64"] * len(shape)), body)(source.address, target.address, *shape)


@st.composite
def any_strides(draw, shape, *, once):
    """Any order of axes, with gaps, backwards, and repeated elements unless each may be met only `once`."""
    order = draw(st.permutations(range(len(shape))))
    gaps = [draw(st.sampled_from([1, 1, 1, 2])) for _ in shape]
    signs = [draw(st.sampled_from([1, 1, 1, -1] if once else [1, 1, 1, -1, 0])) for _ in shape]
    return tuple(step * sign for step, sign in zip(strides_in(order, shape, gaps), signs, strict=True))


@st.composite
def copies(draw):
    rank = draw(st.integers(0, 4))
    extents = [draw(st.sampled_from(AROUND_LANES if n < 2 else (1, 2, 3, 5))) for n in range(rank)]
    shape = tuple(draw(st.permutations(extents)))
    return {
        "shape": shape,
        "source_strides": draw(any_strides(shape, once=False)),
        "target_strides": draw(any_strides(shape, once=True)),
        "pair": draw(st.sampled_from(PAIRS)),
        "accumulate": draw(st.booleans()),
        "low": draw(st.booleans()),
    }


@each_isa
@bounded
@given(copies(), st.data())
def test_any_box_is_copied(isa, case, data):
    known = [data.draw(st.booleans()) for _ in case["shape"]]
    source, target, expected = boxes(**case)
    copy = copy_of(isa, *case["pair"], case["accumulate"])
    run_copy(isa, source, target, case["shape"], known, box_copy(copy, case["source_strides"], case["target_strides"]))
    assert_copied(target, expected)


ARRANGEMENTS = {  # strides of a box of two axes on both sides
    "the same axis contiguous": lambda n, m: ((m, 1), (m + 3, 1)),
    "two different axes contiguous": lambda n, m: ((1, n + 1), (m + 2, 1)),
    "transposed without gaps": lambda n, m: ((1, n), (m, 1)),
    "no axis contiguous": lambda n, m: ((2 * m, 2), (3, 3 * n)),
    "only the source contiguous": lambda n, m: ((m, 1), (2 * m, 2)),
    "only the target contiguous": lambda n, m: ((2 * m, 2), (m, 1)),
    "one number along the contiguous axis": lambda n, m: ((1, 0), (m, 1)),
    "one number everywhere": lambda n, m: ((0, 0), (m, 1)),
    "every second number": lambda n, m: ((2 * m + 1, 2), (m, 1)),
    "every third number": lambda n, m: ((3 * m - 1, 3), (m + 5, 1)),
    "every fourth number": lambda n, m: ((4 * m, 4), (m, 1)),
    "every second number, transposed": lambda n, m: ((2, 2 * n), (m, 1)),
    "every third number, transposed": lambda n, m: ((3, 3 * n + 1), (m + 1, 1)),
    "every fourth number, transposed": lambda n, m: ((4, 4 * n - 3), (m, 1)),
    "backwards": lambda n, m: ((-m, -1), (m, 1)),
    "rows backwards": lambda n, m: ((-m, 1), (m, 1)),
}


@each_isa
@pytest.mark.parametrize("accumulate", [False, True], ids=["", "accumulate"])
@pytest.mark.parametrize("arrangement", ARRANGEMENTS.values(), ids=ARRANGEMENTS)
def test_every_arrangement_of_strides_around_each_lane_count(arrangement, accumulate, isa):
    lanes = ISAS[isa].lanes("f32")
    for n, m in [(3, lanes - 1), (lanes, lanes + 1), (2 * lanes + 1, lanes), (1, 2 * lanes), (lanes - 1, 1), (2, 3)]:
        for known in ((True, True), (False, False)):
            strides = arrangement(n, m)
            source, target, expected = boxes((n, m), *strides, ("bf16", "f32"), accumulate, low=known[0])
            copy = copy_of(isa, "bf16", "f32", accumulate)
            run_copy(isa, source, target, (n, m), known, box_copy(copy, *strides))
            assert_copied(target, expected)


@each_isa
@pytest.mark.parametrize("transposed", [False, True], ids=["", "transposed"])
@pytest.mark.parametrize(
    ("step", "pair"),
    [(2, ("f32", "f32")), (2, ("bf16", "f32")), (3, ("f32", "bf16")), (3, ("f16", "f16")), (4, ("bf16", "f32")),
     (4, ("f64", "f64"))],
)  # fmt: skip
def test_runs_with_gaps_are_not_read_beyond_their_last_number(step, pair, transposed, isa):
    """The source ends where the last number of the last row does: there begins a page that nobody may read."""
    lanes = ISAS[isa].lanes(COMPUTE[pair[0]])
    for run in (1, 5, lanes - 1, lanes, lanes + 1, 2 * lanes - 1):
        for known, rows in ((True, 2), (False, lanes + 1)):
            strides = (step * run + 1, step), ((1, rows) if transposed else (run, 1))
            source, target, expected = boxes((rows, run), *strides, pair, False, low=False)
            run_copy(isa, source, target, (rows, run), (known, known), box_copy(copy_of(isa, *pair), *strides))
            assert_copied(target, expected)


@each_isa
def test_squares_of_different_gaps_share_a_module(isa):
    """Each finds the function of its own gap."""
    lanes = ISAS[isa].lanes("f32")
    sides = [boxes((lanes, 2 * lanes), (2 * lanes * step, step), (1, lanes), ("f32", "f32"), False, False)
             for step in (1, 2, 3)]  # fmt: skip
    copy = copy_of(isa, "f32", "f32")

    def body(b, *addresses):
        for step, (src, dst) in enumerate(zip(addresses[::2], addresses[1::2], strict=True), 1):
            copy.emit(b, src, dst, [Dim(lanes, 2 * lanes * step, 1), Dim(2 * lanes, step, lanes)])

    addresses = [array.address for source, target, _ in sides for array in (source, target)]
    compile_function(isa, ("ptr",) * len(addresses), body)(*addresses)
    for _, target, expected in sides:
        assert_copied(target, expected)


@each_isa
@pytest.mark.parametrize("accumulate", [False, True], ids=["", "accumulate"])
@pytest.mark.parametrize("pair", [("f32", "f32"), ("bf16", "f32"), ("f32", "f16"), ("f64", "f64")], ids="-".join)
def test_few_columns_or_rows_of_as_many_others_as_only_the_kernel_knows(pair, accumulate, isa):
    """As taps of a block of channels; squares of different numbers of columns and rows share a module."""
    for rows in (1, 5, 8, 16, 37, 64):
        sides = [boxes((rows, few), (few + 1, 1), (1, rows + 3), pair, accumulate, True) for few in (3, 9, 11)]
        sides += [boxes((few, rows), (rows + 3, 1), (1, few + 1), pair, accumulate, True) for few in (3, 9)]

        def body(b, count, *pointers, sides=sides, rows=rows):
            for (source, _, _), src, dst in zip(sides[:3], pointers[:6:2], pointers[1:6:2], strict=True):
                few = source.view.shape[1]
                copy_of(isa, *pair, accumulate).emit(b, src, dst, [Dim(count, few + 1, 1), Dim(few, 1, rows + 3)])
            for (source, _, _), src, dst in zip(sides[3:], pointers[6::2], pointers[7::2], strict=True):
                few = source.view.shape[0]
                copy_of(isa, *pair, accumulate).emit(b, src, dst, [Dim(few, rows + 3, 1), Dim(count, 1, few + 1)])

        addresses = [side.address for source, target, _ in sides for side in (source, target)]
        compile_function(isa, ("i64", *["ptr"] * 10), body)(rows, *addresses)
        for _, target, expected in sides:
            assert_copied(target, expected)


@each_isa
@pytest.mark.parametrize("pair", PAIRS, ids="-".join)
def test_every_pair_of_types(pair, isa):
    for accumulate in (False, True):
        for strides in (((37, 1), (37, 1)), ((1, 6), (37, 1)), ((2, 12), (1, 5))):
            source, target, expected = boxes((5, 37), *strides, pair, accumulate, low=accumulate)
            copy = copy_of(isa, *pair, accumulate)
            run_copy(isa, source, target, (5, 37), (True, False), box_copy(copy, *strides))
            assert_copied(target, expected)


EMPTY = {  # steps of an axis that turns out to have no elements
    "vectors": (1, 1),
    "transposed": (1, 5),
    "one by one": (3, 2),
    "repeated": (0, 1),
}


@each_isa
@pytest.mark.parametrize("steps", EMPTY.values(), ids=EMPTY)
def test_an_empty_box_is_not_touched(steps, isa):
    """Neither side has any element, and both end at a page that nobody may read."""
    copy = copy_of(isa, "f32", "f32")
    source, target = (Buffer(0) for _ in range(2))
    run_copy(isa, source, target, (0, 3), (False, True), box_copy(copy, (steps[0], 7), (steps[1], 9)))
    assert target.redzone_is_whole()


# --- planes and phases


@st.composite
def plane_cases(draw):
    planes = draw(st.sampled_from((2, 3, 4, 5, 6, 8, 12, 16)))
    run = draw(st.sampled_from(AROUND_LANES))
    return {
        "planes": planes,
        "run": run,
        "pitch": -(-run // planes) + draw(st.integers(0, 3)),
        "rows": draw(st.integers(1, 3)),
        "step": draw(st.sampled_from([1, 1, 2, -1])),
        "known": draw(st.booleans()),
        "pair": draw(st.sampled_from(PAIRS)),
        "low": draw(st.booleans()),
        "accumulate": draw(st.booleans()),
    }


@each_isa
@bounded
@given(plane_cases())
def test_an_axis_is_divided_into_planes(isa, case):
    planes, pitch, run, rows = case["planes"], case["pitch"], case["run"], case["rows"]
    copy = copy_of(isa, *case["pair"])
    source = StridedArray((rows, run), (2 * run + 1, case["step"]), numpy_dtype(case["pair"][0]), low=case["low"])
    source.view[...] = whole_numbers((rows, run), case["pair"][0])
    target = StridedArray((rows, planes * pitch), (planes * pitch, 1), numpy_dtype(case["pair"][1]), low=case["low"])

    def emit(b, src, dst, extents):
        inner, outer = Dim(extents[1], case["step"], 1), [Dim(extents[0], 2 * run + 1, planes * pitch)]
        copy.emit_planes(b, src, dst, outer, inner, planes, pitch)

    run_copy(isa, source, target, (rows, run), (True, case["known"]), emit)
    expected = np.full((rows, planes * pitch), np.nan)
    q = np.arange(run)
    expected[:, q % planes * pitch + q // planes] = source.view.astype(np.float64)
    np.testing.assert_array_equal(target.view.astype(np.float64), expected)
    assert target.buffer.redzone_is_whole()


@each_isa
@bounded
@given(plane_cases())
def test_phases_are_joined_to_an_axis(isa, case):
    planes, pitch, run, rows = case["planes"], case["pitch"], case["run"], case["rows"]
    copy = copy_of(isa, *case["pair"], case["accumulate"])
    source = StridedArray((rows, planes * pitch), (planes * pitch, 1), numpy_dtype(case["pair"][0]), low=case["low"])
    in_order = whole_numbers((rows, run), case["pair"][0])
    q = np.arange(run)
    source.view[:, q % planes * pitch + q // planes] = in_order
    strides = (2 * run + 1, case["step"])
    target = StridedArray((rows, run), strides, numpy_dtype(case["pair"][1]), low=case["low"])
    expected = in_order.astype(np.float64)
    if case["accumulate"]:
        target.view[...] = whole_numbers((rows, run), case["pair"][1], 5)
        expected = expected + target.view.astype(np.float64)

    def emit(b, src, dst, extents):
        inner, outer = Dim(extents[1], 1, case["step"]), [Dim(extents[0], planes * pitch, 2 * run + 1)]
        copy.emit_phases(b, src, dst, outer, inner, planes, pitch)

    run_copy(isa, source, target, (rows, run), (True, case["known"]), emit)
    assert_copied(target, expected)


@each_isa
@bounded
@given(plane_cases(), st.sampled_from((2, 3, 4, 8, 9)), st.integers(0, 1))
def test_phases_of_a_few_channels_that_lie_side_by_side(isa, case, channels, gap):
    """With a gap between positions they are no run."""
    planes, pitch, run, rows = case["planes"], case["pitch"], case["run"], case["rows"]
    copy, plane = copy_of(isa, *case["pair"], case["accumulate"]), planes * pitch + 3
    source = StridedArray(
        (rows, channels, plane), (channels * plane, plane, 1), numpy_dtype(case["pair"][0]), low=case["low"]
    )
    in_order = whole_numbers((rows, channels, run), case["pair"][0])
    q, step = np.arange(run), channels + gap
    source.view[:, :, q % planes * pitch + q // planes] = in_order
    target = StridedArray(
        (rows, run, channels), (2 * run * step + 1, step, 1), numpy_dtype(case["pair"][1]), low=case["low"]
    )
    expected = in_order.transpose(0, 2, 1).astype(np.float64)
    if case["accumulate"]:
        target.view[...] = whole_numbers((rows, run, channels), case["pair"][1], 5)
        expected = expected + target.view.astype(np.float64)

    def emit(b, src, dst, extents):
        outer = [Dim(extents[0], channels * plane, 2 * run * step + 1), Dim(channels, plane, 1)]
        copy.emit_phases(b, src, dst, outer, Dim(extents[1], 1, step), planes, pitch)

    run_copy(isa, source, target, (rows, run), (True, case["known"]), emit)
    assert_copied(target, expected)


# --- past the caches

LINE_STEP = 144  # from row to row: a multiple of every vector, so that all rows begin with one or none does


@each_isa
@pytest.mark.parametrize("beside", [0, 1], ids=["", "unaligned"])
@pytest.mark.parametrize("known", [True, False], ids=["known", "unknown"])
@pytest.mark.parametrize("run", [16, 37, 48, 84, 128, 132])
def test_whole_lines_past_the_caches_and_parts_of_lines(run, known, beside, isa):
    """Of vectors, of squares, and of phases: where a row of the target ends, and where it is no line at all."""
    rows = 19
    copy = replace(copy_of(isa, "f32", "f32"), past_caches=True)
    room = StridedArray((rows, run + beside), (LINE_STEP, 1), np.float32, low=True)
    target = SimpleNamespace(address=room.address + 4 * beside, view=room.view[:, beside:])
    expected = whole_numbers((rows, run), "f32")

    def move(source, emit):
        room.view[...] = 0
        run_copy(isa, source, target, (rows, run), (known, known), emit)
        np.testing.assert_array_equal(target.view, expected)
        assert not room.view[:, :beside].any()
        assert room.only_elements_changed()

    for strides in [(run + 3, 1), (1, rows + 2)]:
        source = StridedArray((rows, run), strides, np.float32)
        source.view[...] = expected
        move(source, box_copy(copy, strides, (LINE_STEP, 1)))
    for planes in (2, 3):
        pitch, q = -(-run // planes), np.arange(run)
        source = StridedArray((rows, planes * pitch), (planes * pitch, 1), np.float32)
        source.view[:, q % planes * pitch + q // planes] = expected

        def emit(b, src, dst, extents, planes=planes, pitch=pitch):
            outer = [Dim(extents[0], planes * pitch, LINE_STEP)]
            copy.emit_phases(b, src, dst, outer, Dim(extents[1], 1, 1), planes, pitch)

        move(source, emit)


# --- zeros


@each_isa
@pytest.mark.parametrize("compute", ["f32", "f64"])
def test_zeros_end_where_they_should(compute, isa):
    for count in AROUND_LANES:
        target = StridedArray((count,), (1,), numpy_dtype(compute), low=bool(count % 2))

        def body(b, dst, n):
            emit_zero(b, ISAS[isa], compute, dst, n)

        compile_function(isa, ("ptr", "i64"), body)(target.address, count)
        assert_copied(target, np.zeros(count))


@st.composite
def ranges(draw):
    extent = draw(st.integers(1, 20))
    low = draw(st.integers(0, extent))
    return extent, low, draw(st.integers(low, extent)), draw(st.booleans())


@each_isa
@bounded
@given(st.lists(ranges(), min_size=1, max_size=3), st.booleans(), st.sampled_from([1, 3, 16]))
def test_only_what_lies_outside_a_range_is_zeroed(isa, axes, known, innermost):
    """An axis nobody reads beyond (no extent) keeps what it holds there."""
    shape = tuple(extent for extent, *_ in axes)
    strides = strides_in(range(len(shape) + 1), (*shape, innermost))[:-1]
    target = StridedArray((prod(shape) * innermost,), (1,), np.float32)
    bounds = [bound for _, low, high, _ in axes for bound in (low, high)]

    def body(b, dst, *numbers):
        seen = bounds if known else numbers
        emit_zero_outside(
            b, ISAS[isa], "f32", dst,
            [Range(seen[2 * n], seen[2 * n + 1], extent if read else None, step)
             for n, ((extent, _, _, read), step) in enumerate(zip(axes, strides, strict=True))],
        )  # fmt: skip

    compile_function(isa, ("ptr", *["i64"] * len(bounds)), body)(target.address, *bounds)
    expected = np.full((*shape, innermost), np.nan)
    outside = np.zeros(shape, bool)
    reachable = np.ones(shape, bool)
    for n, (extent, low, high, read) in enumerate(axes):
        i = np.arange(extent).reshape([-1 if m == n else 1 for m in range(len(axes))])
        beyond = (i < low) | (i >= high)
        outside |= beyond & read & reachable
        if not read:
            reachable &= ~beyond
    expected[outside] = 0
    np.testing.assert_array_equal(target.view.reshape(expected.shape), expected)
    assert target.buffer.redzone_is_whole()


def test_types_are_stored_as_numpy_does():
    for dtype, stored in STORAGE.items():
        assert numpy_dtype(dtype).itemsize == {"float": 4, "double": 8, "i16": 2}[stored]
