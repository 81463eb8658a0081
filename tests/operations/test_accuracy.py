"""Random data on layers of real networks: results stay within the a-priori bound of docs/semantics.md."""

from math import prod

import numpy as np
import pytest

from cases import FUNCTIONS, assert_within_bound, error_bound, shared
from convgrad.dtypes import FLOATING, numpy_dtype
from convgrad.spec.definition import define, magnitude
from convgrad.spec.resolve import resolve

OPERATIONS = {
    "conv": ("Convolution", "ConvolutionBackwardData", "ConvolutionBackwardWeights"),
    "deconv": ("ConvTranspose", "ConvTransposeBackwardData", "ConvTransposeBackwardWeights"),
}
PARTS = 16  # so that a failure, and a look at the clock, names a part


def scaled_down(layer):
    """Shapes (image, window, weights) and attributes of a smaller layer, NCX; weights (window, image, kernel).

    Kernel, strides, dilations and pads stay as they are; so do channel counts that are not round. What is left over
    behind the last window stays too, as output_padding.
    """
    groups = min(layer["groups"], 3)
    ic, oc = (max(1, min(layer[c] // layer["groups"], 19 if groups == 1 else 4)) for c in ("ic", "oc"))
    image_channels, window_channels = (ic, oc) if layer["kind"] == "conv" else (oc, ic)
    image, window, left = [], [], []
    columns = (layer[name] for name in ("in_spatial", "out_spatial", "kernel", "strides", "dilations"))
    for i, o, k, s, d, begin, end in zip(*columns, layer["pads_begin"], layer["pads_end"], strict=True):
        x, y = (i, o) if layer["kind"] == "conv" else (o, i)
        grown = (k - 1) * d + 1 - begin - end
        left.append((x - grown) % s)
        y = min(y, 5 if len(layer["kernel"]) < 3 else 3)
        while s * (y - 1) + grown + left[-1] < 1:
            y += 1
        image.append(s * (y - 1) + grown + left[-1])
        window.append(y)
    batch = min(layer["mb"], 2)
    return (
        (batch, groups * image_channels, *image),
        (batch, groups * window_channels, *window),
        (groups * window_channels, image_channels, *layer["kernel"]),
        {name: layer[name] for name in ("strides", "dilations", "pads_begin", "pads_end")} | {"groups": groups},
        left,
    )


def terms_of(op, resolved):
    """The most products that one element of the result sums."""
    match op:
        case "Convolution" | "ConvTransposeBackwardData":
            return resolved.image_channels // resolved.groups * prod(resolved.kernel)
        case "ConvTranspose" | "ConvolutionBackwardData":
            return resolved.window_channels // resolved.groups * prod(resolved.kernel)
        case _:
            return resolved.batch * prod(resolved.window_extent)


def problem_of(layer, number, rng):
    """An operation on the layer: op, type, inputs, told shape or None, attributes. The number picks among them."""
    op, dtype = OPERATIONS[layer["kind"]][number % 3], FLOATING[number // 3 % 4]
    *shapes, attributes, left = scaled_down(layer)
    x, y, w = (rng.standard_normal(shape, np.float32).astype(numpy_dtype(dtype)) for shape in shapes)
    if number // 12 % 2:
        x, y = (np.ascontiguousarray(np.moveaxis(tensor, 1, -1)) for tensor in (x, y))
    pair = ("OIX", "XIO") if layer["kind"] == "conv" else ("IOX", "XOI")
    weights_format = pair[number // 24 % 2]
    if weights_format.startswith("X"):
        w = np.ascontiguousarray(np.moveaxis(w, (0, 1), (-1, -2)))
    attributes |= {"data_format": ("NCX", "NXC")[number // 12 % 2], "weights_format": weights_format}
    if op == "ConvTranspose":
        attributes["output_padding"] = left
    inputs, shape = {
        "Convolution": ((x, w), None),
        "ConvolutionBackwardData": ((y, w), x.shape),
        "ConvolutionBackwardWeights": ((x, y), w.shape),
        "ConvTranspose": ((y, w), None),
        "ConvTransposeBackwardData": ((x, w), None),
        "ConvTransposeBackwardWeights": ((y, x), w.shape),
    }[op]
    return op, dtype, inputs, shape, attributes


@pytest.mark.parametrize("part", range(PARTS))
def test_layers_of_networks_are_within_the_bound(part):
    every = shared("layers.json")
    assert len(every) >= 900
    layers = every[::7]
    rng = np.random.default_rng(part)
    for number in range(part, len(layers), PARTS):
        op, dtype, inputs, shape, attributes = problem_of(layers[number], number, rng)
        resolved = resolve(op, attributes, [i.shape for i in inputs], shape_input=shape)
        exact, magnitudes = define(resolved, inputs), magnitude(resolved, inputs)
        out_dtype = "f32" if number % 5 == 0 and dtype in ("bf16", "f16") else dtype
        out = np.full(exact.shape, np.nan, numpy_dtype(out_dtype))
        FUNCTIONS[op](*inputs, *([shape] if shape else []), **attributes, out=out)
        bound = error_bound(terms_of(op, resolved), magnitudes, exact, dtype, out_dtype)
        where = f"layer {number}: {op} {dtype}->{out_dtype} {[i.shape for i in inputs]} {attributes}"
        assert_within_bound(out, exact, bound, where)


@pytest.mark.parametrize("dtype", FLOATING)
def test_sums_with_bias_and_accumulation_are_within_the_bound(dtype, rng):
    x, w, bias, before = (
        rng.standard_normal(shape).astype(numpy_dtype(dtype))
        for shape in ((2, 9, 8, 7), (3, 3, 7, 20), (20,), (2, 7, 6, 20))
    )
    attributes = {"strides": [1, 1], "dilations": [1, 1]}
    resolved = resolve("Convolution", attributes, [x.shape, w.shape, bias.shape])
    out = before.copy()
    FUNCTIONS["Convolution"](x, w, bias, **attributes, out=out, accumulate=True)
    exact = define(resolved, (x, w, bias)) + before.astype(np.float64)
    magnitudes = magnitude(resolved, (x, w, bias)) + np.abs(before.astype(np.float64))
    assert_within_bound(out, exact, error_bound(7 * 9 + 2, magnitudes, exact, dtype, dtype), dtype)


def test_the_bound_refuses_nan_and_a_wrong_element():
    exact, bound = np.ones((2, 2)), np.full((2, 2), 1e-6)
    assert_within_bound(np.ones((2, 2), np.float32), exact, bound, "a matrix")
    for wrong in (np.nan, 1.00001, np.inf):
        result = np.ones((2, 2), np.float32)
        result[1, 0] = wrong
        with pytest.raises(AssertionError, match=r"a matrix at \[1, 0\]"):
            assert_within_bound(result, exact, bound, "a matrix")
