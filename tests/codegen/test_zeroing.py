"""Zeros, all over or outside a range: they end where they should."""

from math import prod

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from codegen.buffers import StridedArray
from codegen.copies import AROUND_LANES, assert_copied, bounded
from codegen.emitted import compile_function, each_isa
from codegen.random_problems import strides_in
from convgrad.codegen.copies.zeroing import Range, emit_zero, emit_zero_outside
from convgrad.codegen.isa import ISAS
from convgrad.dtypes import numpy_dtype


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
