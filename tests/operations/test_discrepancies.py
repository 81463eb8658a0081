"""Where the oneDNN library, or its pages, are wrong or refuse: one test for each, named as docs/semantics.md does."""

import numpy as np
import pytest

import convgrad
from convgrad.errors import ShapeError

FLAT = {"data_format": "NCX"}


def row(*values):
    return np.array(values, np.float32).reshape(1, 1, -1)


def test_d1_grouped_transposed_weights_in_the_convention_of_the_pages(rng):
    """(IC/G, OC) holds the same numbers as (IC, OC/G), in another order."""
    src, library = (rng.integers(-3, 4, s).astype(np.float32) for s in ((1, 4, 5), (4, 3, 2)))
    documented = library.reshape(2, 2, 3, 2).transpose(1, 0, 2, 3).reshape(2, 6, 2)
    attributes = FLAT | {"groups": 2, "weights_format": "IOX"}
    dst = convgrad.conv_transpose(src, library, **attributes)
    np.testing.assert_array_equal(convgrad.conv_transpose(src, documented, **attributes), dst)


def test_d5_output_padding_counts_in_the_same_pads_of_convolution_backward_data():
    """diff_dst of 3 belongs to 7 elements under output_padding 1: total 2·(3 − 1) + 3 − 7 + 1 = 1."""
    attributes = FLAT | {"strides": [2], "output_padding": [1], "weights_format": "OIX"}
    arguments = row(1, 2, 3), row(1, 10, 100), (1, 1, 7)
    upper = convgrad.convolution_backward_data(*arguments, **attributes, auto_pad="same_upper")
    np.testing.assert_array_equal(upper, row(1, 10, 102, 20, 203, 30, 300))
    lower = convgrad.convolution_backward_data(*arguments, **attributes, auto_pad="same_lower")
    np.testing.assert_array_equal(lower, row(10, 102, 20, 203, 30, 300, 0))
    page = convgrad.convolution_backward_data(*arguments, **attributes, auto_pad="same_lower", auto_pad_rule="page")
    np.testing.assert_array_equal(page, upper)


def test_d5_the_formulas_of_the_page_use_the_extent_of_diff_dst():
    """6 elements and 2 windows: total 2·(2 − 1) + 3 − 6 = −1 is no padding; the forward rule finds 3 windows."""
    arguments, attributes = (row(1, 2), row(1, 10, 100), (1, 1, 6)), FLAT | {"strides": [2], "weights_format": "OIX"}
    page = convgrad.convolution_backward_data(*arguments, **attributes, auto_pad="same_upper", auto_pad_rule="page")
    np.testing.assert_array_equal(page, row(1, 10, 102, 20, 200, 0))
    with pytest.raises(ShapeError, match=r"diff_dst has 2 elements, but .* = 3 belong to the 6 of diff_src"):
        convgrad.convolution_backward_data(*arguments, **attributes, auto_pad="same_upper")


def test_d7_shapes_come_as_tensors():
    shape = np.array([1, 1, 4], np.int32)
    diff_src = convgrad.convolution_backward_data(row(1, 2), row(1, 10, 100), shape, **FLAT, weights_format="OIX")
    np.testing.assert_array_equal(diff_src, row(1, 12, 120, 200))
    shape = np.array([1, 1, 3], np.int64)
    diff_weights = convgrad.conv_transpose_backward_weights(
        row(1, 2), row(1, 2, 3, 4), shape, **FLAT, weights_format="IOX"
    )
    np.testing.assert_array_equal(diff_weights, row(5, 8, 11))


def test_d9_a_shape_that_nothing_tells_is_asked_for():
    with pytest.raises(ShapeError, match=r"diff_src cannot be inferred; give dst_shape as an input or as an attribute"):
        convgrad.convolution_backward_data(row(1, 2), row(1, 10, 100), **FLAT, weights_format="OIX")
    with pytest.raises(ShapeError, match=r"diff_weights cannot be inferred; give weights_shape"):
        convgrad.convolution_backward_weights(row(1, 2, 3), row(1, 2), **FLAT, weights_format="OIX")


def test_d10_dilated_conv_transpose_backward_data():
    """K = 3, D = 2, S = 4, X = 9: the undilated 123, 567 would have the same shape."""
    diff_src = convgrad.conv_transpose_backward_data(
        row(1, 2, 3, 4, 5, 6, 7, 8, 9), row(100, 10, 1), **FLAT, strides=[4], dilations=[2], weights_format="IOX"
    )
    np.testing.assert_array_equal(diff_src, row(135, 579))


def test_d11_same_pads_of_conv_transpose_backward_weights():
    """Pads (0, 1) for the end and (1, 0) for the beginning, as those of the forward operation."""
    attributes = FLAT | {"strides": [2], "weights_format": "IOX"}
    arguments = row(1, 10, 100), row(1, 2, 3, 4, 5, 6), (1, 1, 3)
    upper = convgrad.conv_transpose_backward_weights(*arguments, **attributes, auto_pad="same_upper")
    np.testing.assert_array_equal(upper, row(531, 642, 53))
    lower = convgrad.conv_transpose_backward_weights(*arguments, **attributes, auto_pad="same_lower")
    np.testing.assert_array_equal(lower, row(420, 531, 642))


def test_d12_grouped_convolution_backward_data():
    diff_dst = np.float32([[[1, 2], [3, 4]]])
    weights = np.float32([[[1, 10]], [[100, 1000]]])
    attributes = FLAT | {"groups": 2, "weights_format": "OIX"}
    diff_src = convgrad.convolution_backward_data(diff_dst, weights, (1, 2, 3), **attributes)
    np.testing.assert_array_equal(diff_src, [[[1, 12, 20], [300, 3400, 4000]]])


@pytest.mark.parametrize("rank", [2, 3, 4, 5, 6])
def test_d13_bias_add_backward_of_any_rank(rank, rng):
    diff_dst = rng.integers(-3, 4, (2, 3, 4, 2, 3, 2)[:rank]).astype(np.float32)
    channels_last = convgrad.bias_add_backward(diff_dst)
    np.testing.assert_array_equal(channels_last, diff_dst.sum(axis=tuple(range(rank - 1))))
    channels_first = convgrad.bias_add_backward(diff_dst, data_format="NCX")
    np.testing.assert_array_equal(channels_first, diff_dst.sum(axis=(0, *range(2, rank))))


def test_d15_output_padding_with_same_pads_on_the_backward_operations():
    """The ConvTranspose of 3 elements with output_padding 1 has 7, pads (0, 1): its gradients go back to 3."""
    attributes = FLAT | {"strides": [2], "auto_pad": "same_upper", "output_padding": [1], "weights_format": "IOX"}
    dst = convgrad.conv_transpose(row(1, 2, 3), row(1, 10, 100), **attributes)
    np.testing.assert_array_equal(dst, row(1, 10, 102, 20, 203, 30, 300))
    diff_src = convgrad.conv_transpose_backward_data(row(1, 2, 3, 4, 5, 6, 7), row(1, 10, 100), **attributes)
    np.testing.assert_array_equal(diff_src, row(321, 543, 765))
    diff_weights = convgrad.conv_transpose_backward_weights(
        row(1, 10, 100), row(1, 2, 3, 4, 5, 6, 7), (1, 1, 3), **attributes
    )
    np.testing.assert_array_equal(diff_weights, row(531, 642, 753))
