"""Sums that become bf16 before they are turned, and words of two rows that are turned by whole lines."""

from dataclasses import replace

import numpy as np
import pytest

from codegen.buffers import StridedArray
from codegen.copies import assert_copied, box_copy, run_copy, whole_numbers
from codegen.dense_problems import X, Y, problem_of
from codegen.dot_cases import EMULATED, HERE, needs_dots
from codegen.random_problems import check_plan
from convgrad.codegen.copies.copying import Copy, Dim
from convgrad.codegen.copies.paired_copies import PairedCopy
from convgrad.codegen.copies.squares import Squares
from convgrad.codegen.isa import ISAS
from convgrad.codegen.isa.base import STORAGE
from convgrad.dtypes import numpy_dtype
from convgrad.plan.by_dots.dots import DotDataPlan
from convgrad.plan.choose import variants
from convgrad.plan.machine import machine_for

pytestmark = needs_dots
BF16 = {"dtype": "bf16", "out_dtype": "bf16"}
EXTENTS = [(32, 16), (33, 16), (17, 5), (31, 33), (64, 37), (100, 16), (16, 32)]  # rows that are rounded, columns
ROWS = [(16, 32), (16, 33), (5, 31), (19, 40), (16, 17), (24, 200), (3, 16), (16, 129), (24, 160)]  # words, numbers
BEST = HERE[-1] if HERE else EMULATED


@pytest.mark.parametrize("known", [True, False], ids=["known", "unknown"])
@pytest.mark.parametrize("of_results", [True, False], ids=["line by line", "square by square"])
@pytest.mark.parametrize("extents", EXTENTS, ids=str)
def test_sums_are_rounded_and_turned(extents, of_results, known):
    """To the bits of numpy's rounding, halves to even, in either order; lines of dst are farther apart, or nearer."""
    rows, columns = extents
    for isa in HERE:
        source = StridedArray(extents, (columns + 3, 1), np.float32, low=known)
        step = rows + (200 if columns > 32 else 5)
        target = StridedArray(extents, (1, step), numpy_dtype("bf16"), low=known)
        source.view[...] = (np.random.default_rng(rows).integers(-(2**12), 2**12, extents) * 8 + 4) / 8
        copy = Copy(
            isa=ISAS[isa], compute="f32", src_dtype="f32", dst_dtype="bf16", ordinary=True, of_results=of_results
        )  # fmt: skip
        moved = box_copy(copy, (columns + 3, 1), (1, step))
        run_copy(isa, source, target, extents, (known, known), moved)
        assert_copied(target, source.view.astype(numpy_dtype("bf16")).astype(np.float64))


@pytest.mark.parametrize("known", [True, False], ids=["known", "unknown"])
@pytest.mark.parametrize("gap", [0, 7], ids=["lines", "rows anywhere"])
@pytest.mark.parametrize("extents", ROWS, ids=str)
def test_words_of_two_rows_are_turned(extents, gap, known):
    words, numbers = extents
    step, isa = -(-(numbers + 40) // 64) * 64 + gap, BEST
    shape, steps = (words, 2, numbers), (2 * step, step, 1)
    for begin in (0, 5):
        source = StridedArray((words, 2, numbers + begin), steps, numpy_dtype("bf16"), low=known)
        target = StridedArray((numbers, words, 2), (2 * words + 6, 2, 1), numpy_dtype("bf16"), low=known)
        source.buffer.bytes[:] = 1  # between rows, too: what is taken from there shows beside the target
        source.view[...] = whole_numbers(source.view.shape, "bf16")
        expected = source.view[:, :, begin:].transpose(2, 0, 1).astype(np.float64)

        def moved(b, src, dst, dims, begin=begin):
            room = b.emit("ptr", "alloca [512 x float], align 64")
            copy = PairedCopy(
                isa=ISAS[isa], compute="f32", src_dtype="bf16", dst_dtype="f32", partner=step, watch=None, room=room
            )  # fmt: skip
            inside = box_copy(copy, (2 * step, 1), (1, words + 3))
            inside(b, b.at(src, begin, STORAGE["bf16"]), dst, [words, dims[2]])

        run_copy(isa, source, target, shape, (True, True, known), moved)
        assert_copied(target, expected)


@pytest.mark.parametrize("known", [True, False], ids=["known", "unknown"])
@pytest.mark.parametrize("dtype", ["bf16", "f32"])
@pytest.mark.parametrize(("extents", "skip"), [((16, 16), 2), ((5, 41), 2), ((20, 7), 2), ((17, 28), 3)], ids=str)
def test_words_of_numbers_that_a_stride_parts_are_turned(extents, skip, dtype, known, monkeypatch):
    """As those side by side are: none is moved alone, and nothing behind the last one is read."""
    words, numbers = extents
    step, isa = skip * numbers + 9, BEST
    source = StridedArray((words, 2, numbers), (2 * step, step, skip), numpy_dtype(dtype), low=known)
    target = StridedArray((numbers, words, 2), (2 * words + 6, 2, 1), numpy_dtype("bf16"), low=known)
    source.view[...] = whole_numbers(source.view.shape, dtype)
    monkeypatch.setattr(PairedCopy, "scalar", None)

    def moved(b, src, dst, extents):
        room = b.emit("ptr", "alloca [512 x float], align 64")
        copy = PairedCopy(
            isa=ISAS[isa], compute="f32", src_dtype=dtype, dst_dtype="f32", partner=step, watch=None, room=room
        )  # fmt: skip
        copy.emit(b, src, dst, [Dim(words, 2 * step, 1), Dim(extents[1], skip, words + 3)])

    run_copy(isa, source, target, extents, (True, known), moved)
    assert_copied(target, source.view.transpose(2, 0, 1).astype(np.float64))


def test_lines_that_are_left_out_are_found(monkeypatch):
    monkeypatch.setattr(Squares, "_line_by_line", lambda *_: None)
    with pytest.raises(AssertionError):
        test_sums_are_rounded_and_turned((100, 16), True, True)


ODD = [(19, 40), (21, 32), (3, 17), (31, 33), (33, 70), (35, 160), (47, 129), (1, 50), (19, 7)]  # channels, numbers


@pytest.mark.parametrize("known", [True, False], ids=["known", "unknown"])
@pytest.mark.parametrize("extents", ODD, ids=str)
def test_the_last_of_an_odd_number_of_rows_is_beside_zeros(extents, known):
    """In one square and in two, and word by word where rows are short."""
    channels, numbers = extents
    words, isa = -(-channels // 2), BEST
    source = StridedArray(extents, (numbers + 9, 1), numpy_dtype("bf16"), low=known)
    target = StridedArray((numbers, words, 2), (2 * words + 6, 2, 1), numpy_dtype("bf16"), low=known)
    source.view[...] = whole_numbers(extents, "bf16")
    expected = np.zeros((numbers, words * 2))
    expected[:, :channels] = source.view.T.astype(np.float64)
    run_copy(isa, source, target, extents, (True, known), odd_copy(isa, channels, numbers + 9, words + 3))
    assert_copied(target, expected.reshape(numbers, words, 2))


def odd_copy(isa, channels, step, place):
    """Words of rows `step` apart, at places so many words apart."""

    def moved(b, src, dst, extents):
        room = b.emit("ptr", "alloca [512 x float], align 64")
        copy = PairedCopy(
            isa=ISAS[isa], compute="f32", src_dtype="bf16", dst_dtype="f32", partner=step, watch=None, room=room
        )  # fmt: skip
        copy.emit_odd(b, src, dst, [Dim(extents[1], 1, place)], channels, step)

    return moved


def test_a_last_row_that_is_its_own_partner_is_found(monkeypatch):
    monkeypatch.setattr(PairedCopy, "with_partner", lambda self, partner: self)
    with pytest.raises(AssertionError):
        test_the_last_of_an_odd_number_of_rows_is_beside_zeros((21, 32), True)


@pytest.mark.parametrize("layout", ["NCX", "NXC"])
@pytest.mark.parametrize("channels", [(3, 20), (19, 20), (37, 18), (53, 33), (265, 17)], ids=str)
@pytest.mark.parametrize("unknown", [X, Y])
def test_odd_channels(unknown, channels, layout):
    """Whose last one has no partner."""
    isa = BEST
    channels = channels if unknown is Y else channels[::-1]
    problem = problem_of(unknown, (6, 9), (6, 9), (3, 3), channels=channels, low=1, layout=layout, **BF16)
    (plan,) = [plan for plan in variants(problem, machine_for(isa)) if type(plan) is DotDataPlan]
    for low in (False, True):
        check_plan(problem, plan, machine_for(isa), low=low)


@pytest.mark.parametrize(
    "taps", [(2,), (3,), (5,), (6,), (3, 3), (3, 4), (15,), (4, 4), (3, 6), (24,), (25,), (32,), (50,)], ids=str
)
@pytest.mark.parametrize("channels", [(38, 40), (70, 17), (6, 33)], ids=str)
def test_weights_whose_taps_lie_between_channels_are_packed(channels, taps):
    """Runs of words that end anywhere, of taps that lie a multiple of 4 KiB apart, or not; too many taps, too."""
    image, windows = (tuple(n + more for n in taps) for more in (3, 4))
    problem = problem_of(Y, image, windows, taps, channels=channels, **BF16)
    plan = next(plan for plan in variants(problem, machine_for(BEST)) if type(plan) is DotDataPlan)
    for width in {plan.width, 16}:
        check_plan(problem, replace(plan, width=width, blocks_per_task=1), machine_for(BEST))


def test_taps_that_lie_far_apart_are_packed_one_after_the_other():
    """Of which a pair has more than share a set of L1."""
    problem = problem_of(Y, (9, 9), (6, 6), (4, 4), channels=(64, 40), **BF16)
    plan = next(plan for plan in variants(problem, machine_for(BEST)) if type(plan) is DotDataPlan)
    check_plan(problem, replace(plan, width=32, i_block=64, blocks_per_task=1), machine_for(BEST))
