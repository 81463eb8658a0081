"""The operations of the oneDNN Graph specification as functions on arrays.

All take NumPy arrays of any strides, and CPU arrays of any library that speaks DLPack; the result is an array of the
library of the first argument, C-contiguous, or `out`. What the words mean is the same everywhere:

Layouts
    data_format NCX is (batch, channels, spatial...), NXC is (batch, spatial..., channels), with one spatial axis or
    more. weights_format orders O, I and the kernel X. For convolutions O = OC and I = IC/groups; for transposed ones
    I = IC and O = OC/groups, or I = IC/groups and O = OC as the pages have it: the extents tell.
Attributes
    strides, dilations (default 1 each), pads_begin, pads_end and output_padding (default 0 each) are lists of
    integers, one per spatial axis. auto_pad is none, same_upper, same_lower or valid; unless it is none, it replaces
    the pads. Strings may be in any letter case.
Types
    f32, bf16 (of ml_dtypes), f16 or f64, the same for all inputs. 16-bit inputs are summed in f32 and rounded once.
Keywords of every function
    out             an array to write the result to; it must not share memory with an input, and stays untouched if
                    the call raises (or holds NaN, if what numbers beyond bf16 pieces need could not be compiled)
    out_dtype       the type of the result; f32 is possible for 16-bit inputs. `out` implies it
    accumulate      add the result to what `out` holds
    fpmath_mode     how far the operands of f32 products may be rounded: strict (not at all), tf32 (to 16 bits), f16 (to
                    16 bits), bf16 (to 8 bits) or any (whatever is fastest); None is what `convgrad.fpmath_mode` or the
                    environment says, else strict. Only matrix units make use of it: elsewhere nothing is ever rounded.
                    BiasAddBackward has no products
Errors
    Every mistake of the caller is a `ConvError`: `AttributeRuleError`, `ShapeError`, `DtypeError` or `ArrayError`.

Source: the operation pages of the oneDNN Graph specification; docs/semantics.md lists where pages and library differ.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from convgrad.arrays.call import Operation, known_one
from convgrad.arrays.pair import WeightsOperation
from convgrad.settings import arithmetic

Ints = Sequence[int]

_GEOMETRY = (
    "strides", "pads_begin", "pads_end", "dilations", "auto_pad", "groups", "data_format", "weights_format",
    "fpmath_mode",
)  # fmt: skip

_convolution = Operation("Convolution", *_GEOMETRY)
_convolution_backward_data = Operation("ConvolutionBackwardData", *_GEOMETRY, "output_padding")
_convolution_backward_weights = WeightsOperation("ConvolutionBackwardWeights", *_GEOMETRY)
_conv_transpose = Operation("ConvTranspose", *_GEOMETRY, "output_padding")
_conv_transpose_backward_data = Operation("ConvTransposeBackwardData", *_GEOMETRY, "output_padding")
_conv_transpose_backward_weights = WeightsOperation("ConvTransposeBackwardWeights", *_GEOMETRY, "output_padding")
_bias_add_backward = Operation("BiasAddBackward", "data_format")


def convolution(
    src: Any,
    weights: Any,
    bias: Any = None,
    *,
    strides: Ints | None = None,
    pads_begin: Ints | None = None,
    pads_end: Ints | None = None,
    dilations: Ints | None = None,
    auto_pad: str = "none",
    groups: int = 1,
    data_format: str = "NXC",
    weights_format: str = "XIO",
    out: Any = None,
    out_dtype: Any = None,
    accumulate: bool = False,
    fpmath_mode: str | None = None,
) -> Any:
    """Convolution: dst[n, o, y] = bias[o] + Σ src[n, i, y·S + k·D − PB] · W[o, i, k].

    src has IC channels, weights O = OC and I = IC/groups, bias OC elements. dst has OC channels and
    (X + PB + PE − ((K − 1)·D + 1)) // S + 1 elements per spatial axis.
    """
    attributes = (
        strides, pads_begin, pads_end, dilations, auto_pad, groups, data_format, weights_format,
        arithmetic(fpmath_mode),
    )  # fmt: skip
    return _convolution.call(src, weights, bias, attributes, None, out, out_dtype, accumulate)


def convolution_backward_data(
    diff_dst: Any,
    weights: Any,
    dst_shape: Any = None,
    *,
    strides: Ints | None = None,
    pads_begin: Ints | None = None,
    pads_end: Ints | None = None,
    dilations: Ints | None = None,
    auto_pad: str = "none",
    output_padding: Ints | None = None,
    groups: int = 1,
    data_format: str = "NXC",
    weights_format: str = "XIO",
    auto_pad_rule: str = "code",
    out: Any = None,
    out_dtype: Any = None,
    accumulate: bool = False,
    fpmath_mode: str | None = None,
) -> Any:
    """ConvolutionBackwardData, the gradient of Convolution in src.

    diff_src[n, i, x] = Σ diff_dst[n, o, y] · W[o, i, k] over o, k and y with y·S + k·D − PB = x.

    dst_shape is the full shape of diff_src in the order of data_format, or its spatial extents alone; it may be left
    out if `out` tells it. diff_dst must have the extents of a convolution of that shape. An output_padding that is
    given must be exact: x extent = S·(Y − 1) + (K − 1)·D + 1 − PB − PE + OP.

    auto_pad_rule chooses what SAME pads are: "code", those of the forward convolution as the library has them, or
    "page", those of the formulas on the operation's page, where same_upper and same_lower change places.
    """
    attributes = (
        strides, pads_begin, pads_end, dilations, auto_pad, groups, data_format, weights_format,
        arithmetic(fpmath_mode), output_padding,
    )  # fmt: skip
    return _convolution_backward_data.call(
        diff_dst, weights, None, attributes, dst_shape, out, out_dtype, accumulate, auto_pad_rule
    )


def convolution_backward_weights(
    src: Any,
    diff_dst: Any,
    weights_shape: Any = None,
    *,
    strides: Ints | None = None,
    pads_begin: Ints | None = None,
    pads_end: Ints | None = None,
    dilations: Ints | None = None,
    auto_pad: str = "none",
    groups: int = 1,
    data_format: str = "NXC",
    weights_format: str = "XIO",
    out: Any = None,
    out_dtype: Any = None,
    accumulate: bool = False,
    fpmath_mode: str | None = None,
    diff_bias: Any = None,
) -> Any:
    """ConvolutionBackwardWeights, the gradient of Convolution in weights.

    diff_weights[o, i, k] = Σ src[n, i, y·S + k·D − PB] · diff_dst[n, o, y] over n and y.

    weights_shape is the full shape of diff_weights in the order of weights_format; it may be left out if `out` tells
    it.

    diff_bias asks for the gradient in bias, too, diff_bias[o] = Σ diff_dst[n, o, y] over n and y, summed while diff_dst
    is read for the weights: True for a new array, or an array of OC elements to write it to, of the type of
    diff_weights. Then the result is the pair (diff_weights, diff_bias), and `accumulate` holds for both.
    """
    attributes = (
        strides, pads_begin, pads_end, dilations, auto_pad, groups, data_format, weights_format,
        arithmetic(fpmath_mode),
    )  # fmt: skip
    if diff_bias is None or diff_bias is False:
        return _convolution_backward_weights.call(
            src, diff_dst, None, attributes, weights_shape, out, out_dtype, accumulate
        )
    return _convolution_backward_weights.pair(
        src, diff_dst, diff_bias, attributes, weights_shape, out, out_dtype, accumulate
    )


def conv_transpose(
    src: Any,
    weights: Any,
    bias: Any = None,
    *,
    strides: Ints | None = None,
    pads_begin: Ints | None = None,
    pads_end: Ints | None = None,
    dilations: Ints | None = None,
    auto_pad: str = "none",
    output_padding: Ints | None = None,
    groups: int = 1,
    data_format: str = "NXC",
    weights_format: str = "XOI",
    out: Any = None,
    out_dtype: Any = None,
    accumulate: bool = False,
    fpmath_mode: str | None = None,
) -> Any:
    """ConvTranspose: dst[n, o, x] = bias[o] + Σ src[n, i, y] · W[i, o, k] over i, k and y with y·S + k·D − PB = x.

    src has IC channels, dst OC and S·(Y − 1) + (K − 1)·D + 1 − PB − PE + OP elements per spatial axis; elements that
    no tap reaches hold the bias, or zero.
    """
    attributes = (
        strides, pads_begin, pads_end, dilations, auto_pad, groups, data_format, weights_format,
        arithmetic(fpmath_mode), output_padding,
    )  # fmt: skip
    return _conv_transpose.call(src, weights, bias, attributes, None, out, out_dtype, accumulate)


def conv_transpose_backward_data(
    diff_dst: Any,
    weights: Any,
    *,
    strides: Ints | None = None,
    pads_begin: Ints | None = None,
    pads_end: Ints | None = None,
    dilations: Ints | None = None,
    auto_pad: str = "none",
    output_padding: Ints | None = None,
    groups: int = 1,
    data_format: str = "NXC",
    weights_format: str = "XOI",
    out: Any = None,
    out_dtype: Any = None,
    accumulate: bool = False,
    fpmath_mode: str | None = None,
) -> Any:
    """ConvTransposeBackwardData, the gradient of ConvTranspose in src.

    diff_src[n, i, y] = Σ diff_dst[n, o, y·S + k·D − PB] · W[i, o, k] over o and k.

    diff_src has (X + PB + PE − ((K − 1)·D + 1)) // S + 1 elements per spatial axis. An output_padding that is given
    is that of the forward operation, and then X − OP takes the place of X and must divide exactly; SAME pads are
    right for any forward operation only if its output_padding is given.
    """
    attributes = (
        strides, pads_begin, pads_end, dilations, auto_pad, groups, data_format, weights_format,
        arithmetic(fpmath_mode), output_padding,
    )  # fmt: skip
    return _conv_transpose_backward_data.call(diff_dst, weights, None, attributes, None, out, out_dtype, accumulate)


def conv_transpose_backward_weights(
    src: Any,
    diff_dst: Any,
    weights_shape: Any = None,
    *,
    strides: Ints | None = None,
    pads_begin: Ints | None = None,
    pads_end: Ints | None = None,
    dilations: Ints | None = None,
    auto_pad: str = "none",
    output_padding: Ints | None = None,
    groups: int = 1,
    data_format: str = "NXC",
    weights_format: str = "XOI",
    out: Any = None,
    out_dtype: Any = None,
    accumulate: bool = False,
    fpmath_mode: str | None = None,
    diff_bias: Any = None,
) -> Any:
    """ConvTransposeBackwardWeights, the gradient of ConvTranspose in weights.

    diff_weights[i, o, k] = Σ src[n, i, y] · diff_dst[n, o, y·S + k·D − PB] over n and y.

    weights_shape is the full shape of diff_weights in the order of weights_format; it may be left out if `out` tells
    it. output_padding is that of the forward operation.

    diff_bias asks for the gradient in bias, too, diff_bias[o] = Σ diff_dst[n, o, x] over n and x, in the way of
    `convolution_backward_weights`.
    """
    attributes = (
        strides, pads_begin, pads_end, dilations, auto_pad, groups, data_format, weights_format,
        arithmetic(fpmath_mode), output_padding,
    )  # fmt: skip
    if diff_bias is None or diff_bias is False:
        return _conv_transpose_backward_weights.call(
            src, diff_dst, None, attributes, weights_shape, out, out_dtype, accumulate
        )
    return _conv_transpose_backward_weights.pair(
        src, diff_dst, diff_bias, attributes, weights_shape, out, out_dtype, accumulate
    )


def conv_transpose_backprop_filters(
    input_forward: Any,
    output_delta: Any,
    filter_shape: Any = None,
    *,
    strides: Ints | None = None,
    pads_begin: Ints | None = None,
    pads_end: Ints | None = None,
    dilations: Ints | None = None,
    auto_pad: str = "none",
    output_padding: Ints | None = None,
    groups: int = 1,
    data_format: str = "NXC",
    filter_format: str = "XIO",
    out: Any = None,
    out_dtype: Any = None,
    accumulate: bool = False,
    fpmath_mode: str | None = None,
) -> Any:
    """ConvTransposeBackpropFilters of the 2022 specification: `conv_transpose_backward_weights` by its old names.

    input_forward is src, output_delta is diff_dst, filter_shape is weights_shape and filter_format weights_format,
    whose default was XIO: (K, IC, OC/groups).
    """
    attributes = (
        strides, pads_begin, pads_end, dilations, auto_pad, groups, data_format, filter_format,
        arithmetic(fpmath_mode), output_padding,
    )  # fmt: skip
    return _conv_transpose_backward_weights.call(
        input_forward, output_delta, None, attributes, filter_shape, out, out_dtype, accumulate
    )


def bias_add_backward(
    diff_dst: Any, *, data_format: str = "NXC", out: Any = None, out_dtype: Any = None, accumulate: bool = False
) -> Any:
    """BiasAddBackward: diff_bias[c] = Σ diff_dst over every axis except that of the channels.

    diff_dst has a batch, channels, and any number of other axes.
    """
    return _bias_add_backward.call(
        diff_dst, known_one(diff_dst), None, (data_format,), None, out, out_dtype, accumulate
    )
