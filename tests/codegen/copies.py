"""Boxes of whole numbers on both sides of a copy, and the copy of one to the other, compiled and run."""

from math import prod

import numpy as np
from hypothesis import settings

from codegen.buffers import StridedArray
from codegen.emitted import compile_function
from convgrad.codegen.copies.copying import Copy, Dim
from convgrad.codegen.isa import ISAS
from convgrad.dtypes import COMPUTE, numpy_dtype

PAIRS = [("f32", "f32"), ("bf16", "f32"), ("f16", "f32"), ("f32", "bf16"), ("f32", "f16"), ("bf16", "bf16"),
         ("f16", "f16"), ("bf16", "f16"), ("f64", "f64")]  # fmt: skip
AROUND_LANES = (1, 2, 3, 4, 5, 7, 8, 9, 15, 16, 17, 31, 32, 33, 48, 50)
bounded = settings(max_examples=36, deadline=None, derandomize=True)


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
