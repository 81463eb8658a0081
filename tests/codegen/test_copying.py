"""Copies of boxes between any strides and types against NumPy; nothing outside the box is touched."""

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from codegen.buffers import Buffer
from codegen.copies import AROUND_LANES, PAIRS, assert_copied, bounded, box_copy, boxes, copy_of, run_copy
from codegen.emitted import HOST_ISAS, compile_function, each_isa
from codegen.random_problems import in_turn, strides_in
from convgrad.codegen.copies.copying import Dim
from convgrad.codegen.ir import Builder
from convgrad.codegen.ir_module import Module, Value
from convgrad.codegen.isa import ISAS
from convgrad.codegen.isa.base import STORAGE
from convgrad.dtypes import COMPUTE, numpy_dtype


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
    copy = replace(copy_of(isa, *case["pair"], case["accumulate"]), of_results=data.draw(st.booleans()))
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
    extents = [(3, lanes - 1), (lanes, lanes + 1), (2 * lanes + 1, lanes), (1, 2 * lanes), (lanes - 1, 1), (2, 3)]
    for number, (n, m) in enumerate(extents):
        known, strides = ((number + accumulate) % 2 == 0,) * 2, arrangement(n, m)
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
@pytest.mark.parametrize("low", [False, True], ids=["at the upper guard", "at the lower guard"])
@pytest.mark.parametrize("pair", [("f32", "f32"), ("bf16", "f32"), ("f32", "f16"), ("f64", "f64")], ids="-".join)
@pytest.mark.parametrize("step", [1, 2, 3, 4])
def test_parts_of_squares_that_are_known(step, pair, low, isa):
    """Both sides end where their last numbers do; where there are no masks, some of these are moved twice."""
    lanes = ISAS[isa].lanes(COMPUTE[pair[0]])
    few = sorted({max(1, lanes // 2 - 1), lanes // 2, lanes // 2 + 1, lanes - 1})
    for rows, run in [(n, lanes) for n in few] + [(lanes, n) for n in few] + [(few[-1], few[-2]), (lanes + 1, few[-1])]:
        strides = (step * (run - 1) + 1, step), (1, rows)
        source, target, expected = boxes((rows, run), *strides, pair, False, low=low)
        run_copy(isa, source, target, (rows, run), (True, True), box_copy(copy_of(isa, *pair), *strides))
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


@pytest.mark.parametrize("taken_apart", [False, True], ids=["put in turn", "taken apart"])
def test_planes_that_are_products_of_few_are_interleaved(taken_apart):
    """Rather than turned as parts of squares, under masks: as many as registers hold, fewer than a vector has lanes."""

    def masks(planes):
        axes = Dim(planes, 1, 96), Dim(96, planes, 1)
        dims = axes if taken_apart else [Dim(axis.extent, axis.dst, axis.src) for axis in axes]
        module = Module()
        b = Builder(module, "f", [("ptr", "src"), ("ptr", "dst")], exported=True)
        copy_of("avx512", "f32", "f32").emit(b, *b.arguments, dims)
        b.finish()
        return "masked" in str(module)

    few = [*range(2, 11), 12, 14, 15]
    assert [planes for planes in range(2, 16) if not masks(planes)] == few
    assert [planes for planes in range(2, 40) if copy_of("avx512", "f32", "f32").interleaves(planes)] == few
    assert [planes for planes in range(2, 40) if copy_of("avx2", "f32", "f32").interleaves(planes)] == few[:7]


@each_isa
@pytest.mark.parametrize("accumulate", [False, True], ids=["", "accumulate"])
@pytest.mark.parametrize("pair", [("f32", "f32"), ("bf16", "f32"), ("f32", "f16"), ("f64", "f64")], ids="-".join)
def test_few_columns_or_rows_of_as_many_others_as_only_the_kernel_knows(pair, accumulate, isa):
    """As taps of a block of channels; squares of different numbers of columns and rows share a module."""
    number = ["f32", "bf16", "f64"].index(pair[0]) + accumulate + HOST_ISAS.index(isa)
    for rows in in_turn(number, (1, 8, 37), (5, 16, 64)):
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


def test_types_are_stored_as_numpy_does():
    for dtype, stored in STORAGE.items():
        assert numpy_dtype(dtype).itemsize == {"float": 4, "double": 8, "i16": 2}[stored]


@pytest.mark.parametrize("steps", [(9, 1), (1, 9)])  # of a channel, of one side and the other
def test_channels_of_groups_are_one_axis(steps):
    """However many groups there are: of two channels at a time, no vector is turned."""
    b, (src, dst) = Builder(Module(), "f", [("i64", "groups")]), steps
    groups, copy = Value("i64", "%groups"), copy_of("portable", "f32", "f32")
    dims = [Dim(groups, 2 * src, 2 * dst), Dim(2, src, dst), Dim(9, dst, src)]
    merged = copy.merged(b, dims)
    assert [(d.src, d.dst) for d in merged] == [(dst, src), (src, dst)]
    whole = [Dim(groups, 8 * src, 8 * dst), Dim(8, src, dst)]  # of whole vectors an extent that is known is worth more
    assert copy.merged(b, whole) == whole
