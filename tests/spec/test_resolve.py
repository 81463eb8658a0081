"""What inference makes of attributes: spellings, defaults, precedence, conventions and pads."""

import numpy as np
import pytest

from convgrad.errors import ShapeError
from convgrad.spec.resolve import resolve

FLAT = {"strides": [1], "dilations": [1], "data_format": "NCX"}


def pads(resolved):
    return resolved.pads_begin + resolved.pads_end


@pytest.mark.parametrize("spelling", ["same_upper", "SAME_UPPER", "Same_Upper"])
def test_letters_may_be_of_any_case(spelling):
    attributes = {"strides": [1], "dilations": [1], "data_format": "ncx", "weights_format": "Oix", "auto_pad": spelling}
    resolved = resolve("Convolution", attributes, [(1, 1, 6), (1, 1, 4)])
    assert (resolved.output_shape, pads(resolved)) == ((1, 1, 6), (1, 2))


def test_defaults_are_those_of_the_specification():
    given = {"strides": np.array([1]), "dilations": (1,)}
    assert resolve("Convolution", given, [(1, 8, 2), (3, 2, 5)]).output_shape == (1, 6, 5)  # NXC, XIO
    assert resolve("ConvTranspose", given, [(1, 8, 2), (3, 5, 2)]).output_shape == (1, 10, 5)  # NXC, XOI
    assert resolve("BiasAddBackward", {}, [(1, 8, 2)]).output_shape == (2,)


def test_names_of_2022_mean_the_operations_of_today():
    attributes = {"strides": [1], "dilations": [1], "filter_shape": [3, 2, 5]}
    old = resolve("ConvTransposeBackpropFilters", attributes, [(1, 8, 2), (1, 10, 5)])  # XIO is (K, IC, OC/G)
    assert (old.op, old.weights_format, old.output_shape) == ("ConvTransposeBackwardWeights", "XIO", (3, 2, 5))
    renamed = {"strides": [1], "dilations": [1], "filter_format": "oix", "output_shape": [1, 10, 3]}
    assert resolve("ConvolutionBackpropData", renamed, [(1, 8, 2), (2, 3, 3)]).output_shape == (1, 10, 3)
    assert resolve("BiasAddBackprop", {"data_format": "NCX"}, [(2, 3)]).output_shape == (3,)


def test_the_shape_input_counts_before_the_attribute():
    attributes = FLAT | {"strides": [2], "weights_format": "OIX", "dst_shape": [1, 1, 7]}
    shapes = [(1, 1, 3), (1, 1, 3)]
    assert resolve("ConvolutionBackwardData", attributes, shapes).output_shape == (1, 1, 7)
    assert resolve("ConvolutionBackwardData", attributes, shapes, shape_input=[1, 1, 8]).output_shape == (1, 1, 8)
    with pytest.raises(ShapeError, match=r"3 elements, but \(9 .* = 4 belong to the 9"):
        resolve("ConvolutionBackwardData", attributes, shapes, shape_input=np.array([1, 1, 9], np.int32))


def test_the_attribute_and_the_existing_output_must_agree():
    attributes = FLAT | {"strides": [2], "weights_format": "OIX"}
    shapes = [(1, 1, 3), (1, 1, 3)]
    assert resolve("ConvolutionBackwardData", attributes, shapes, output_shape=(1, 1, 8)).output_shape == (1, 1, 8)
    with pytest.raises(ShapeError, match=r"diff_src is given with shape \[1, 1, 8\], but .* \[1, 1, 7\]"):
        resolve("ConvolutionBackwardData", attributes | {"dst_shape": [1, 1, 7]}, shapes, output_shape=(1, 1, 8))


def test_dst_shape_may_hold_the_spatial_extents_alone():
    attributes = FLAT | {"weights_format": "OIX", "dst_shape": [8], "groups": 2}
    assert resolve("ConvolutionBackwardData", attributes, [(5, 4, 6), (4, 3, 3)]).output_shape == (5, 6, 8)


CONVENTIONS = {  # groups = 2, IC = 4, OC = 6; weights (I, O): of the library (4, 3), of the pages (2, 6)
    "ConvTranspose": ((1, 4, 5), "weights"),
    "ConvTransposeBackwardData": ((1, 6, 7), "weights"),
    "ConvTransposeBackwardWeights": ((1, 4, 5), "diff_dst"),
}


@pytest.mark.parametrize(("weights", "convention"), [((4, 3, 3), "library"), ((2, 6, 3), "documented")])
@pytest.mark.parametrize("op", CONVENTIONS)
def test_extents_tell_the_convention_of_grouped_weights(op, weights, convention):
    first, second = CONVENTIONS[op]
    attributes = FLAT | {"groups": 2, "weights_format": "IOX"}
    if second == "diff_dst":
        resolved = resolve(op, attributes, [first, (1, 6, 7)], shape_input=weights)
    else:
        resolved = resolve(op, attributes, [first, weights])
    assert resolved.weights_convention == convention
    assert (resolved.window_channels, resolved.image_channels) == (4, 6)


SAME = {  # (op, image extent or None, window extent or None, taps, stride, output padding) -> UPPER pads
    "odd total": (("Convolution", 6, None, 2, 1, 0), (0, 1)),
    "ragged extent": (("Convolution", 5, None, 3, 2, 0), (1, 1)),
    "clamped": (("Convolution", 6, None, 1, 2, 0), (0, 0)),
    "transposed": (("ConvTranspose", None, 3, 3, 2, 0), (0, 1)),
    "transposed, output padding": (("ConvTranspose", None, 3, 3, 2, 1), (0, 1)),
    "backward of it": (("ConvTransposeBackwardData", 7, None, 3, 2, 1), (0, 1)),
    "backward, ragged": (("ConvTransposeBackwardData", 7, None, 3, 2, 0), (1, 1)),
    "backward weights": (("ConvTransposeBackwardWeights", 7, 3, 3, 2, 1), (0, 1)),
    "convolution data": (("ConvolutionBackwardData", 6, 3, 3, 2, 0), (0, 1)),
    "convolution data, output padding": (("ConvolutionBackwardData", 7, 3, 3, 2, 1), (0, 1)),
}


@pytest.mark.parametrize(("geometry", "upper"), SAME.values(), ids=SAME)
def test_same_pads_put_the_odd_element_at_the_end_or_at_the_beginning(geometry, upper):
    op, image, window, taps, stride, padding = geometry
    weights_format = "IOX" if op.startswith("ConvTranspose") else "OIX"
    attributes = FLAT | {"strides": [stride], "weights_format": weights_format}
    if padding:
        attributes["output_padding"] = [padding]
    extents = {"Convolution": [image], "ConvTranspose": [window], "ConvTransposeBackwardData": [image]}
    shapes = [(1, 1, extent) for extent in extents.get(op, [window, image] if "Transpose" in op else [window])]
    if op.endswith("Weights"):
        attributes["weights_shape"] = [1, 1, taps]
    else:
        shapes.append((1, 1, taps))
    if op == "ConvolutionBackwardData":
        attributes["dst_shape"] = [1, 1, image]
    assert pads(resolve(op, attributes | {"auto_pad": "same_upper"}, shapes)) == upper
    assert pads(resolve(op, attributes | {"auto_pad": "same_lower"}, shapes)) == upper[::-1]


def test_pads_may_be_missing_or_stale_under_auto_pad():
    for stale in ({}, {"pads_begin": [], "pads_end": []}, {"pads_begin": [7], "pads_end": [9]}):
        attributes = FLAT | {"weights_format": "OIX", "auto_pad": "valid"} | stale
        assert pads(resolve("Convolution", attributes, [(1, 1, 6), (1, 1, 4)])) == (0, 0)


def test_windows_are_counted_with_floor():
    """One element short of a window is no window, where integer division that truncates would find one."""
    attributes = FLAT | {"strides": [2], "weights_format": "OIX"}
    assert resolve("Convolution", attributes, [(1, 1, 2), (1, 1, 3)]).output_shape == (1, 1, 0)
    assert resolve("Convolution", attributes, [(0, 1, 4), (1, 1, 3)]).output_shape == (0, 1, 1)
    assert resolve("Convolution", attributes, [(1, 1, 4), (0, 1, 3)]).output_shape == (1, 0, 1)
