"""The operations of the oneDNN Graph specification as functions of JAX.

They mean what `convgrad.operations` says, attribute by attribute, and have the same defaults; instead of `out` and
`accumulate`, which change arrays in place, they return arrays. Shapes come from tracing and attributes are Python
values, so every mistake raises a `ConvError` when the program is traced; the fpmath_mode of the surroundings is that of
the time of tracing.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import jax

from convgrad.arrays.view import dense_strides
from convgrad.jax.arguments import arrays_of, common_dtype, mode_of, result_dtype
from convgrad.jax.layouts import given_names, shape_of
from convgrad.jax.primitives import one_like, solve
from convgrad.problem.canonicalize import ROLES, canonicalize
from convgrad.spec.resolve import resolve
from convgrad.spec.schemas import SCHEMAS

Ints = Sequence[int]


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
    out_dtype: Any = None,
    fpmath_mode: str | None = None,
) -> jax.Array:
    """Convolution: dst[n, o, y] = bias[o] + Σ src[n, i, y·S + k·D − PB] · W[o, i, k].

    src has IC channels, weights O = OC and I = IC/groups, bias OC elements. dst has OC channels and
    (X + PB + PE − ((K − 1)·D + 1)) // S + 1 elements per spatial axis.
    """
    attributes = _geometry(strides, pads_begin, pads_end, dilations, auto_pad, groups, data_format, weights_format)
    return _call("Convolution", (src, weights), attributes, bias=bias, out_dtype=out_dtype, mode=fpmath_mode)


def convolution_backward_data(
    diff_dst: Any,
    weights: Any,
    dst_shape: Ints | None = None,
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
    out_dtype: Any = None,
    fpmath_mode: str | None = None,
) -> jax.Array:
    """ConvolutionBackwardData, the gradient of Convolution in src.

    diff_src[n, i, x] = Σ diff_dst[n, o, y] · W[o, i, k] over o, k and y with y·S + k·D − PB = x.

    dst_shape is the full shape of diff_src in the order of data_format, or its spatial extents alone, as numbers.
    """
    attributes = _geometry(strides, pads_begin, pads_end, dilations, auto_pad, groups, data_format, weights_format)
    return _call(
        "ConvolutionBackwardData",
        (diff_dst, weights),
        attributes | {"output_padding": output_padding},
        shape=dst_shape,
        out_dtype=out_dtype,
        auto_pad_rule=auto_pad_rule,
        mode=fpmath_mode,
    )


def convolution_backward_weights(
    src: Any,
    diff_dst: Any,
    weights_shape: Ints | None = None,
    *,
    strides: Ints | None = None,
    pads_begin: Ints | None = None,
    pads_end: Ints | None = None,
    dilations: Ints | None = None,
    auto_pad: str = "none",
    groups: int = 1,
    data_format: str = "NXC",
    weights_format: str = "XIO",
    out_dtype: Any = None,
    fpmath_mode: str | None = None,
) -> jax.Array:
    """ConvolutionBackwardWeights, the gradient of Convolution in weights.

    diff_weights[o, i, k] = Σ src[n, i, y·S + k·D − PB] · diff_dst[n, o, y] over n and y.

    weights_shape is the full shape of diff_weights in the order of weights_format.
    """
    attributes = _geometry(strides, pads_begin, pads_end, dilations, auto_pad, groups, data_format, weights_format)
    return _call(
        "ConvolutionBackwardWeights",
        (src, diff_dst),
        attributes,
        shape=weights_shape,
        out_dtype=out_dtype,
        mode=fpmath_mode,
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
    out_dtype: Any = None,
    fpmath_mode: str | None = None,
) -> jax.Array:
    """ConvTranspose: dst[n, o, x] = bias[o] + Σ src[n, i, y] · W[i, o, k] over i, k and y with y·S + k·D − PB = x.

    src has IC channels, dst OC and S·(Y − 1) + (K − 1)·D + 1 − PB − PE + OP elements per spatial axis; elements that
    no tap reaches hold the bias, or zero.
    """
    attributes = _geometry(strides, pads_begin, pads_end, dilations, auto_pad, groups, data_format, weights_format)
    attributes["output_padding"] = output_padding
    return _call("ConvTranspose", (src, weights), attributes, bias=bias, out_dtype=out_dtype, mode=fpmath_mode)


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
    out_dtype: Any = None,
    fpmath_mode: str | None = None,
) -> jax.Array:
    """ConvTransposeBackwardData, the gradient of ConvTranspose in src.

    diff_src[n, i, y] = Σ diff_dst[n, o, y·S + k·D − PB] · W[i, o, k] over o and k.

    diff_src has (X + PB + PE − ((K − 1)·D + 1)) // S + 1 elements per spatial axis. An output_padding that is given
    is that of the forward operation.
    """
    attributes = _geometry(strides, pads_begin, pads_end, dilations, auto_pad, groups, data_format, weights_format)
    attributes["output_padding"] = output_padding
    return _call("ConvTransposeBackwardData", (diff_dst, weights), attributes, out_dtype=out_dtype, mode=fpmath_mode)


def conv_transpose_backward_weights(
    src: Any,
    diff_dst: Any,
    weights_shape: Ints | None = None,
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
    out_dtype: Any = None,
    fpmath_mode: str | None = None,
) -> jax.Array:
    """ConvTransposeBackwardWeights, the gradient of ConvTranspose in weights.

    diff_weights[i, o, k] = Σ src[n, i, y] · diff_dst[n, o, y·S + k·D − PB] over n and y.

    weights_shape is the full shape of diff_weights in the order of weights_format. output_padding is that of the
    forward operation.
    """
    attributes = _geometry(strides, pads_begin, pads_end, dilations, auto_pad, groups, data_format, weights_format)
    attributes["output_padding"] = output_padding
    return _call(
        "ConvTransposeBackwardWeights",
        (src, diff_dst),
        attributes,
        shape=weights_shape,
        out_dtype=out_dtype,
        mode=fpmath_mode,
    )


def bias_add_backward(diff_dst: Any, *, data_format: str = "NXC", out_dtype: Any = None) -> jax.Array:
    """BiasAddBackward: diff_bias[c] = Σ diff_dst over every axis except that of the channels.

    diff_dst has a batch, channels, and any number of other axes.
    """
    return _call("BiasAddBackward", (diff_dst,), {"data_format": data_format}, out_dtype=out_dtype)


def _geometry(
    strides, pads_begin, pads_end, dilations, auto_pad, groups, data_format, weights_format
) -> dict[str, Any]:
    return {
        "strides": strides,
        "pads_begin": pads_begin,
        "pads_end": pads_end,
        "dilations": dilations,
        "auto_pad": auto_pad,
        "groups": groups,
        "data_format": data_format,
        "weights_format": weights_format,
    }


def _call(
    op: str,
    inputs: Sequence[Any],
    attributes: Mapping[str, Any],
    *,
    bias: Any = None,
    shape: Ints | None = None,
    out_dtype: Any = None,
    auto_pad_rule: str = "code",
    mode: str | None = None,
) -> jax.Array:
    """From arrays of the user's shapes to those of the primitive, and back."""
    schema = SCHEMAS[op]
    values = [*inputs] if bias is None else [*inputs, bias]
    names = (*schema.inputs, "bias")[: len(values)]
    arrays = arrays_of(op, list(zip(names, values, strict=True)))
    dtype = common_dtype(op, list(zip(names, arrays, strict=True)))
    out_dtype = result_dtype(op, "out_dtype", dtype, out_dtype)
    resolved = resolve(
        op,
        _with_ones(schema, attributes, arrays[0].ndim - 2),
        [array.shape for array in arrays],
        shape_input=shape,
        auto_pad_rule=auto_pad_rule,
    )
    problem = canonicalize(
        resolved,
        input_strides=[dense_strides(array.shape) for array in arrays[: len(inputs)]],
        output_strides=dense_strides(resolved.output_shape),
        dtype=dtype,
        out_dtype=out_dtype,
        bias_stride=None if bias is None else 1,
        fpmath_mode=mode_of(op, mode),
    )
    roles = dict(zip(ROLES[op], arrays if len(inputs) > 1 else (arrays[0], one_like(arrays[0])), strict=False))
    given = [roles[name].reshape(shape_of(problem, name)) for name in given_names(problem)]
    return solve(problem, *given, *arrays[len(inputs) :]).reshape(resolved.output_shape)


def _with_ones(schema: Any, given: Mapping[str, Any], rank: int) -> dict[str, Any]:
    """What the call gives, and ones where the specification requires a list that has an obvious default."""
    ones = (1,) * max(rank, 0)
    required = {attribute.name: ones for attribute in schema.attributes if attribute.required}
    return required | {name: value for name, value in given.items() if value is not None}
