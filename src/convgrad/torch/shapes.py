"""Fake results: shapes, strides and types of what the operators return, without numbers.

Extents that are known are checked as the kernels check them. Symbolic ones are computed by the formulas of the
operations and checked when the operator runs.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from torch import Tensor

from convgrad.torch import kernels
from convgrad.torch.layout import activation_strides, order_of_activations, strides_in_order

Ints = Sequence[Any]  # of int or torch.SymInt


def convolution(src, weights, bias, strides, pads_begin, pads_end, dilations, groups) -> Tensor:
    """As `kernels.convolution`."""
    words = (strides, pads_begin, pads_end, dilations, groups)
    shape = _checked(kernels.CONVOLUTION, (src, weights, bias), words)
    if shape is None:
        window = _window(src.shape[2:], weights.shape[2:], strides, pads_begin, pads_end, dilations)
        shape = (src.shape[0], weights.shape[0], *window)
    return _activations(shape, src, weights)


def convolution_backward_data(
    diff_dst, weights, src_spatial, strides, pads_begin, pads_end, dilations, groups
) -> Tensor:
    """As `kernels.convolution_backward_data`."""
    words = (strides, pads_begin, pads_end, dilations, groups)
    shape = _checked(kernels.CONVOLUTION_BACKWARD_DATA, (diff_dst, weights), words, src_spatial)
    if shape is None:
        shape = (diff_dst.shape[0], weights.shape[1] * groups, *src_spatial)
    return _activations(shape, diff_dst, weights)


def convolution_backward_weights(
    src, diff_dst, kernel, strides, pads_begin, pads_end, dilations, groups, dim_order=()
) -> Tensor:
    """As `kernels.convolution_backward_weights`."""
    words = (strides, pads_begin, pads_end, dilations, groups)
    shape = _checked(kernels.CONVOLUTION_BACKWARD_WEIGHTS, (src, diff_dst), words, kernel)
    if shape is None:
        shape = (diff_dst.shape[1], src.shape[1] // groups, *kernel)
    return src.new_empty_strided(shape, strides_in_order(shape, dim_order))


def conv_transpose(src, weights, bias, strides, pads_begin, pads_end, output_padding, dilations, groups) -> Tensor:
    """As `kernels.conv_transpose`."""
    words = (strides, pads_begin, pads_end, output_padding, dilations, groups)
    shape = _checked(kernels.CONV_TRANSPOSE, (src, weights, bias), words)
    if shape is None:
        axes = zip(
            src.shape[2:],
            weights.shape[2:],
            strides,
            pads_begin,
            pads_end,
            output_padding,
            dilations,
            strict=True,
        )
        image = (s * (y - 1) + (k - 1) * d + 1 - low - high + extra for y, k, s, low, high, extra, d in axes)
        shape = (src.shape[0], weights.shape[1] * groups, *image)
    return _activations(shape, src, weights)


def conv_transpose_backward_data(
    diff_dst, weights, strides, pads_begin, pads_end, output_padding, dilations, groups
) -> Tensor:
    """As `kernels.conv_transpose_backward_data`."""
    words = (strides, pads_begin, pads_end, output_padding, dilations, groups)
    shape = _checked(kernels.CONV_TRANSPOSE_BACKWARD_DATA, (diff_dst, weights), words)
    if shape is None:
        image = (x - extra for x, extra in zip(diff_dst.shape[2:], output_padding, strict=True))
        window = _window(image, weights.shape[2:], strides, pads_begin, pads_end, dilations)
        shape = (diff_dst.shape[0], weights.shape[0], *window)
    return _activations(shape, diff_dst, weights)


def conv_transpose_backward_weights(
    src, diff_dst, kernel, strides, pads_begin, pads_end, output_padding, dilations, groups, dim_order=()
) -> Tensor:
    """As `kernels.conv_transpose_backward_weights`."""
    words = (strides, pads_begin, pads_end, output_padding, dilations, groups)
    shape = _checked(kernels.CONV_TRANSPOSE_BACKWARD_WEIGHTS, (src, diff_dst), words, kernel)
    if shape is None:
        shape = (src.shape[1], diff_dst.shape[1] // groups, *kernel)
    return src.new_empty_strided(shape, strides_in_order(shape, dim_order))


def bias_add_backward(diff_dst) -> Tensor:
    """As `kernels.bias_add_backward`."""
    shape = _checked(kernels.BIAS_ADD_BACKWARD, (diff_dst,), ()) or (diff_dst.shape[1],)
    return diff_dst.new_empty_strided(shape, (1,))


def _checked(operation, tensors, words, told: Ints | None = None) -> tuple[int, ...] | None:
    """The shape of the result if all extents are numbers; raises where they do not fit. None if some are symbols."""
    shapes = [tensor.shape for tensor in tensors if tensor is not None]
    if all(type(extent) is int for extents in (*shapes, told or ()) for extent in extents):
        return operation.output_shape(shapes, words, told)
    return None


def _window(image: Ints, kernel: Ints, strides, pads_begin, pads_end, dilations) -> list[Any]:
    """Extents of the window side: how often the kernel fits."""
    axes = zip(image, kernel, strides, pads_begin, pads_end, dilations, strict=True)
    return [(x + low + high - (k - 1) * d - 1) // s + 1 for x, k, s, low, high, d in axes]


def _activations(shape: Ints, given: Tensor, weights: Tensor) -> Tensor:
    channels_last = order_of_activations(given.shape, given.stride(), weights.shape, weights.stride())
    return given.new_empty_strided(shape, activation_strides(shape, channels_last))
