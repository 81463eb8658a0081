"""Operations with attributes and shapes, for the tests of convgrad.jax: one row for each way that layouts differ."""

import numpy as np
import pytest

from convgrad.dtypes import numpy_dtype
from convgrad.spec.definition import define
from convgrad.spec.resolve import resolve

jax = pytest.importorskip("jax", reason="JAX is not installed: pip install 'convgrad[jax]'")
import jax.numpy as jnp  # noqa: E402

import convgrad.jax as cj  # noqa: E402

FUNCTIONS = {
    "Convolution": cj.convolution,
    "ConvolutionBackwardData": cj.convolution_backward_data,
    "ConvolutionBackwardWeights": cj.convolution_backward_weights,
    "ConvTranspose": cj.conv_transpose,
    "ConvTransposeBackwardData": cj.conv_transpose_backward_data,
    "ConvTransposeBackwardWeights": cj.conv_transpose_backward_weights,
    "BiasAddBackward": cj.bias_add_backward,
}
_STRIDED = {"strides": [2], "pads_begin": [1], "pads_end": [2]}
_PLANE = {"strides": [2, 1], "dilations": [1, 2], "pads_begin": [1, 0], "pads_end": [0, 2]}
_NCX = {"data_format": "NCX", "weights_format": "OIX"}

# operation, attributes, shapes of the inputs, and the told shape of the output (None where it is inferred)
CASES = {
    "convolution": ("Convolution", _STRIDED, [(2, 9, 4), (3, 4, 5)], None),
    "convolution with bias": ("Convolution", _PLANE, [(2, 7, 6, 4), (3, 2, 4, 6), (6,)], None),
    "convolution NCX, groups, bias": (
        "Convolution", _PLANE | _NCX | {"groups": 2}, [(2, 4, 7, 6), (6, 2, 3, 2), (6,)], None,
    ),
    "depthwise SAME": ("Convolution", {"groups": 5, "auto_pad": "same_upper"}, [(1, 6, 5, 5), (3, 3, 1, 5)], None),
    "convolution of one pixel": ("Convolution", _NCX, [(1, 1, 1), (1, 1, 1), (1,)], None),
    "volume": ("Convolution", {"strides": [2, 1, 2]}, [(1, 4, 3, 5, 2), (2, 2, 2, 2, 3)], None),
    "backward data": ("ConvolutionBackwardData", _STRIDED, [(2, 5, 5), (3, 4, 5)], (2, 9, 4)),
    "backward data NCX, groups": (
        "ConvolutionBackwardData", _PLANE | _NCX | {"groups": 2}, [(2, 6, 3, 6), (6, 2, 3, 2)], (7, 6),
    ),
    "backward weights": ("ConvolutionBackwardWeights", _STRIDED, [(2, 9, 4), (2, 5, 5)], (3, 4, 5)),
    "backward weights IOX, groups": (
        "ConvolutionBackwardWeights", _PLANE | {"groups": 2, "weights_format": "IOX"},
        [(2, 7, 6, 4), (2, 3, 6, 6)], (2, 6, 3, 2),
    ),
    "transpose": ("ConvTranspose", _STRIDED | {"output_padding": [1]}, [(2, 5, 4), (3, 5, 4)], None),
    "transpose NCX, groups, bias": (
        "ConvTranspose", _PLANE | {"data_format": "NCX", "weights_format": "IOX", "groups": 2},
        [(2, 6, 4, 5), (6, 2, 3, 2), (4,)], None,
    ),
    "transpose, weights as the pages have them": (
        "ConvTranspose", {"groups": 2, "weights_format": "IOX"}, [(2, 5, 6), (3, 4, 2)], None,
    ),
    "transpose backward data": ("ConvTransposeBackwardData", _STRIDED, [(2, 9, 5), (3, 5, 4)], None),
    "transpose backward weights": ("ConvTransposeBackwardWeights", _STRIDED, [(2, 5, 4), (2, 9, 5)], (3, 5, 4)),
    "bias gradient": ("BiasAddBackward", {}, [(2, 5, 3, 6)], None),
    "bias gradient NCX": ("BiasAddBackward", {"data_format": "NCX"}, [(2, 6, 5)], None),
    "bias gradient without space": ("BiasAddBackward", {}, [(7, 6)], None),
    "no batch": ("Convolution", {}, [(0, 5, 2), (3, 2, 4)], None),
    "sum over no batch": ("ConvolutionBackwardWeights", {}, [(0, 5, 2), (0, 3, 4)], (3, 2, 4)),
}  # fmt: skip


def integers(rng, shape, dtype="f32"):
    """Values that every type holds, and whose sums are exact in all of them."""
    return jnp.asarray(rng.integers(-2, 3, shape).astype(numpy_dtype(dtype)))


def call(op, attributes, inputs, told=None, **keywords):
    """The function of an operation."""
    return FUNCTIONS[op](*inputs, *(() if told is None else (told,)), **attributes, **keywords)


def defined(op, attributes, inputs, told=None):
    """The definition, in float64."""
    rank = inputs[0].ndim - 2
    required = {} if op == "BiasAddBackward" else {"strides": [1] * rank, "dilations": [1] * rank}
    resolved = resolve(op, required | attributes, [i.shape for i in inputs], shape_input=told)
    return define(resolved, [np.asarray(i) for i in inputs])
