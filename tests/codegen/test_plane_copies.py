"""Copies that divide an axis into planes or join phases, and those past the caches, against NumPy."""

from dataclasses import replace
from types import SimpleNamespace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from codegen.buffers import StridedArray
from codegen.copies import AROUND_LANES, PAIRS, assert_copied, bounded, box_copy, copy_of, run_copy, whole_numbers
from codegen.emitted import each_isa
from convgrad.codegen.copies.copying import Dim
from convgrad.codegen.ir import Builder
from convgrad.codegen.ir_module import Module
from convgrad.dtypes import numpy_dtype


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


@pytest.mark.parametrize(("run", "alone"), [(16, 0), (27, 1), (14, 0), (15, 1), (5, 1), (4, 0)])
@pytest.mark.parametrize("joined", [False, True])
def test_without_masks_one_number_of_two_planes_is_left_at_most(run, alone, joined):
    """Vectors begin early, and are shorter where there are fewer numbers than two of them have."""
    copy, module = copy_of("avx2", "f32", "f32"), Module()
    b = Builder(module, "f", [("ptr", "src"), ("ptr", "dst")], exported=True)
    emit = copy.emit_phases if joined else copy.emit_planes
    emit(b, *b.arguments, [], Dim(run, 1, 1), 2, 20)
    b.finish()
    assert "rest" not in str(module)  # a loop over numbers
    assert str(module).count("load float,") == alone


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
