"""Arrays of any strides, as inputs and as outputs."""

import numpy as np
import pytest

import convgrad
from convgrad.arrays.view import overlaps_itself, span
from convgrad.errors import ArrayError

ATTRIBUTES = {"data_format": "NCX", "weights_format": "IOX", "strides": [2, 1]}


@pytest.fixture
def arrays(rng):
    """diff_dst, weights and what the operation makes of them."""
    diff_dst = rng.integers(-3, 4, (2, 3, 7, 6)).astype(np.float32)
    weights = rng.integers(-3, 4, (4, 3, 3, 2)).astype(np.float32)
    return diff_dst, weights, convgrad.conv_transpose_backward_data(diff_dst, weights, **ATTRIBUTES)


def spread(array):
    """The same values with gaps of two elements on every axis."""
    memory = np.full([2 * n for n in array.shape], np.nan, array.dtype)
    memory[tuple(slice(None, None, 2) for _ in array.shape)] = array
    return memory[tuple(slice(None, None, 2) for _ in array.shape)]


def unaligned(array):
    memory = np.zeros(array.nbytes + 1, np.uint8)
    found = memory[1:].view(array.dtype).reshape(array.shape)
    found[...] = array
    return found


def odd_strides(array):
    """A field of packed records of 6 bytes: strides that are no multiple of an element."""
    record = np.zeros(array.shape, np.dtype([("value", array.dtype), ("tag", np.int16)]))
    record["value"] = array
    return record["value"]


FORMS = {
    "Fortran order": np.asfortranarray,
    "channels last in memory": lambda a: np.moveaxis(np.ascontiguousarray(np.moveaxis(a, 1, -1)), -1, 1),
    "gaps": spread,
    "backwards": lambda a: a[::-1, ::-1, ::-1, ::-1].copy()[::-1, ::-1, ::-1, ::-1],
    "read-only": lambda a: np.lib.stride_tricks.as_strided(a, writeable=False),
    "unaligned": unaligned,
    "strides of half an element": odd_strides,
    "subclass": lambda a: a.view(np.memmap),
}


@pytest.mark.parametrize("form", FORMS.values(), ids=FORMS)
def test_inputs_may_have_any_strides(form, arrays):
    diff_dst, weights, expected = arrays
    for _ in range(2):  # the careful path, then the fast one
        result = convgrad.conv_transpose_backward_data(form(diff_dst), form(weights), **ATTRIBUTES)
        np.testing.assert_array_equal(result, expected)
        assert type(result) is np.ndarray
        assert result.flags.c_contiguous


def test_a_shape_seen_aligned_may_come_unaligned_and_the_other_way_round(arrays):
    diff_dst, weights, expected = arrays
    for form in (unaligned, np.copy, unaligned, odd_strides, np.copy, odd_strides):
        result = convgrad.conv_transpose_backward_data(form(diff_dst), weights, **ATTRIBUTES)
        np.testing.assert_array_equal(result, expected)


def test_inputs_may_be_broadcast(arrays):
    _, weights, _ = arrays
    ones = np.broadcast_to(np.float32(1), (2, 3, 7, 6))
    result = convgrad.conv_transpose_backward_data(ones, weights, **ATTRIBUTES)
    sums = weights.sum(axis=(1, 2, 3))[None, :, None, None]
    np.testing.assert_array_equal(result, np.broadcast_to(sums, result.shape))
    np.testing.assert_array_equal(convgrad.bias_add_backward(ones, data_format="NCX"), [84, 84, 84])


def test_both_inputs_may_be_the_same_array():
    x = np.arange(3, dtype=np.float32).reshape(1, 3, 1)
    np.testing.assert_array_equal(convgrad.convolution_backward_weights(x, x, (1, 1, 1)), [[[5]]])


@pytest.mark.parametrize("form", ["Fortran order", "channels last in memory", "gaps", "backwards", "subclass"])
def test_outputs_may_have_any_strides(form, arrays):
    diff_dst, weights, expected = arrays
    out = FORMS[form](np.full(expected.shape, np.nan, np.float32))
    for _ in range(2):
        out[...] = np.nan
        assert convgrad.conv_transpose_backward_data(diff_dst, weights, **ATTRIBUTES, out=out) is out
        np.testing.assert_array_equal(out, expected)


def test_an_output_between_gaps_leaves_the_gaps_alone(arrays):
    diff_dst, weights, expected = arrays
    memory = np.full([n + 4 for n in expected.shape], 77, np.float32)
    out = memory[2:-2, 2:-2, 2:-2, 2:-2]
    convgrad.conv_transpose_backward_data(diff_dst, weights, **ATTRIBUTES, out=out)
    np.testing.assert_array_equal(out, expected)
    out[...] = 77
    np.testing.assert_array_equal(memory, 77)


def test_an_output_interleaved_with_an_input_shares_no_memory():
    memory = np.arange(8, dtype=np.float32)
    x, out = memory[::2].reshape(1, 4, 1), memory[1::2].reshape(1, 4, 1)
    for _ in range(2):
        convgrad.convolution(x, np.full((1, 1, 1), 10, np.float32), out=out)
        np.testing.assert_array_equal(memory, [0, 0, 2, 20, 4, 40, 6, 60])


def test_an_array_that_moves_over_its_input_is_refused_on_the_fast_path_too():
    memory = np.zeros((1, 8, 1), np.float32)
    w, out = np.ones((1, 1, 1), np.float32), np.zeros((1, 4, 1), np.float32)
    convgrad.convolution(memory[:, :4], w, out=out)
    convgrad.convolution(memory[:, :4], w, out=memory[:, 4:])
    with pytest.raises(ArrayError, match="out and src share memory"):
        convgrad.convolution(memory[:, :4], w, out=memory[:, 3:7])


@pytest.mark.parametrize(
    ("shape", "strides", "overlaps"),
    [
        ((2, 3), (3, 1), False),
        ((2, 3), (-3, 1), False),
        ((2, 3), (2, 1), True),
        ((2, 3), (0, 1), True),
        ((1, 3), (0, 1), False),
        ((0, 3), (0, 0), False),
        ((), (), False),
    ],
)
def test_self_overlap(shape, strides, overlaps):
    assert overlaps_itself(shape, strides) is overlaps


def test_the_span_of_a_tensor_counts_bytes_from_its_first_element():
    assert span((2, 3), (3, 1), 4) == (0, 24)
    assert span((2, 3), (-3, 1), 4) == (-12, 12)
    assert span((2, 0), (3, 1), 4) == (0, 0)
