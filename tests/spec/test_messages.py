"""Every message of the specification layer, reached and read."""

import numpy as np
import pytest

from convgrad.errors import AttributeRuleError, ShapeError
from convgrad.spec.resolve import resolve

FLAT = {"strides": [1], "dilations": [1], "data_format": "NCX", "weights_format": "OIX"}
CONV = ("Convolution", FLAT, [(2, 3, 8), (4, 3, 3)])
DATA = ("ConvolutionBackwardData", FLAT | {"dst_shape": [2, 3, 8]}, [(2, 4, 6), (4, 3, 3)])
FILTERS = ("ConvolutionBackwardWeights", FLAT | {"weights_shape": [4, 3, 3]}, [(2, 3, 8), (2, 4, 6)])
UP = ("ConvTranspose", FLAT | {"weights_format": "IOX"}, [(2, 4, 6), (4, 3, 3)])
DOWN = ("ConvTransposeBackwardData", FLAT | {"weights_format": "IOX"}, [(2, 3, 8), (4, 3, 3)])
BIAS = ("BiasAddBackward", {}, [(2, 3)])


def test_the_calls_that_mistakes_are_made_in_are_right():
    for op, attributes, shapes in (CONV, DATA, FILTERS, UP, DOWN, BIAS):
        resolve(op, attributes, shapes)


ATTRIBUTES = {  # what is changed, and how the message reads
    "no such attribute": (
        {"stride": [1]},
        r"Convolution: there is no attribute 'stride'; the attributes are strides, ",
    ),
    "not for this operation": ({"output_padding": [0]}, r"there is no attribute 'output_padding'"),
    "required, missing": ({"strides": ...}, r"the required attribute strides is missing; give a list of integers"),
    "dilations, missing": ({"dilations": ...}, r"the required attribute dilations is missing"),
    "two names": ({"filter_format": "OIX"}, r"filter_format and weights_format are two names of one attribute"),
    "bool in a list": ({"strides": [True]}, r"strides holds True, which is a truth value; give an integer"),
    "numpy bool": ({"strides": np.array([True])}, r"strides holds np.True_, which is a truth value"),
    "float in a list": ({"strides": [1.0]}, r"strides holds 1.0, which is of type float; give an integer"),
    "float array": ({"dilations": np.ones(1)}, r"dilations holds np.float64\(1.0\), which is of type float64"),
    "word in a list": ({"strides": ["1"]}, r"strides holds '1', which is of type str"),
    "scalar for a list": ({"strides": 1}, r"strides is 1, which is of type int; give a list of integers"),
    "string for a list": ({"strides": "11"}, r"strides is '11', which is of type str; give a list of integers"),
    "None for a list": ({"strides": None}, r"strides is None, which is of type NoneType"),
    "matrix for a list": ({"strides": np.ones((1, 1), int)}, r"strides has 2 axes, but must be one-dimensional"),
    "zero stride": ({"strides": [0]}, r"strides holds 0, but must be at least 1"),
    "negative stride": ({"strides": [-1]}, r"strides holds -1, but must be at least 1"),
    "zero dilation": ({"dilations": [0]}, r"dilations holds 0, but must be at least 1"),
    "negative dilation": ({"dilations": [-2]}, r"dilations holds -2, but must be at least 1"),
    "negative pad": ({"pads_begin": [-1]}, r"pads_begin holds -1, but must be at least 0"),
    "negative pad at the end": ({"pads_end": [-3]}, r"pads_end holds -3, but must be at least 0"),
    "a number beyond 64 bits": ({"pads_end": [2**64]}, r"pads_end holds 18446744073709551616, but must be less than"),
    "zero groups": ({"groups": 0}, r"groups holds 0, but must be at least 1"),
    "negative groups": ({"groups": -1}, r"groups holds -1, but must be at least 1"),
    "groups in a list": ({"groups": [1]}, r"groups holds \[1\], which is of type list; give an integer"),
    "groups as a string": ({"groups": "1"}, r"groups holds '1', which is of type str; give an integer"),
    "groups as a truth value": ({"groups": True}, r"groups holds True, which is a truth value"),
    "auto_pad": ({"auto_pad": "same"}, r"auto_pad is 'same', but must be one of NONE, SAME_UPPER, SAME_LOWER, VALID"),
    "auto_pad not a string": ({"auto_pad": 1}, r"auto_pad is 1, which is of type int; give a string"),
    "data_format": ({"data_format": "NHWC"}, r"data_format is 'NHWC', but must be one of NCX, NXC"),
    "weights_format": ({"weights_format": "OIHW"}, r"weights_format is 'OIHW', but must be one of OIX, XIO, IOX, XOI"),
    "empty string": ({"data_format": ""}, r"data_format is '', but must be one of"),
}


@pytest.mark.parametrize(("change", "message"), ATTRIBUTES.values(), ids=ATTRIBUTES)
def test_an_attribute_out_of_its_rules_is_explained(change, message):
    op, attributes, shapes = CONV
    changed = {name: value for name, value in (attributes | change).items() if value is not ...}
    with pytest.raises(AttributeRuleError, match="^Convolution: " + message.removeprefix("Convolution: ")):
        resolve(op, changed, shapes)


SHAPES = {  # a call, what is changed of its attributes, its shapes or None, and how the message reads
    "strides of another rank": (CONV, {"strides": [1, 1]}, None, r"strides has 2 entries, \[1, 1\], .* 1 spatial axes"),
    "pads of another rank": (CONV, {"pads_begin": [0, 0]}, None, r"pads_begin has 2 entries.*; give 1 entries"),
    "empty pads without auto_pad": (CONV, {"pads_end": []}, None, r"pads_end has 0 entries, \[\]"),
    "dilations of another rank": (CONV, {"dilations": [1, 1, 1]}, None, r"dilations has 3 entries"),
    "short output padding": (
        (DOWN[0], DOWN[1], [(2, 3, 8, 8), (4, 3, 3, 3)]),
        {"strides": [1, 1], "dilations": [1, 1], "output_padding": [1]},
        None,
        r"output_padding has 1 entries, \[1\], but the tensors have 2 spatial axes",
    ),
    "one input": (CONV, {}, [(2, 3, 8)], r"1 inputs are given, but the operation takes src, weights, bias"),
    "a third input": (DOWN, {}, [(2, 3, 8), (4, 3, 3), (4,)], r"3 inputs are given.* takes diff_dst, weights$"),
    "an unknown extent": (
        CONV,
        {},
        [(2, 3, -1), (4, 3, 3)],
        r"src has the shape \[2, 3, -1\]; every extent must be known",
    ),
    "no spatial axis": (
        CONV,
        {},
        [(2, 3), (4, 3)],
        r"src \[2, 3\] has 2 axes, but needs a batch, channels and at least",
    ),
    "ranks": (CONV, {}, [(2, 3, 8), (4, 3, 3, 3)], r"src \[2, 3, 8\] has 3 axes, but weights \[4, 3, 3, 3\] has 4"),
    "batches": (FILTERS, {}, [(2, 3, 8), (1, 4, 6)], r"the batch of src is 2, but that of diff_dst is 1"),
    "no taps": (CONV, {}, [(2, 3, 8), (4, 3, 0)], r"weights \[4, 3, 0\] in OIX has no taps; give extents above 0"),
    "channels": (
        CONV,
        {},
        [(2, 3, 8), (4, 2, 3)],
        r"weights \[4, 2, 3\] in OIX has O = 4, I = 2, but src has 3 channels in groups = 1: I = 3 is needed; check "
        r"data_format, weights_format and groups",
    ),
    "channels of groups": (
        CONV,
        {"groups": 2},
        [(2, 6, 8), (4, 6, 3)],
        r"but src has 6 channels in groups = 2, that is 3 per group: I = 3 is needed",
    ),
    "channels of groups, transposed": (
        DOWN,
        {"groups": 2},
        [(2, 8, 8), (4, 3, 3)],
        r"weights \[4, 3, 3\] in IOX has O = 3, I = 4, but diff_dst has 8 channels in groups = 2, that is 4 per group: "
        r"O = 4 \(or 8 as the pages write it\) is needed",
    ),
    "groups do not divide the input": (
        CONV,
        {"groups": 2},
        None,
        r"src has 3 channels, which groups = 2 does not divide",
    ),
    "groups do not divide the weights": (
        CONV,
        {"groups": 3},
        [(2, 3, 8), (4, 1, 3)],
        r"weights \[4, 1, 3\] in OIX has O = 4, I = 1: groups = 3 does not divide O = 4; check weights_format",
    ),
    "bias": (CONV, {}, [(2, 3, 8), (4, 3, 3), (3,)], r"bias has the shape \[3\], but dst has 4 channels; .* \[4\]"),
    "bias of two axes": (CONV, {}, [(2, 3, 8), (4, 3, 3), (4, 1)], r"bias has the shape \[4, 1\]"),
    "the kernel does not fit": (
        CONV,
        {"dilations": [5], "pads_begin": [1]},
        None,
        r"spatial axis 0: the kernel does not fit: 3 taps with dilation 5 span 11 elements, but the padded extent of "
        r"src is 1 \+ 8 \+ 0 = 9, more than a stride of 1 short; add padding or shrink the kernel",
    ),
    "an output padding that takes too much": (
        DOWN,
        {"output_padding": [9]},
        None,
        r"the kernel does not fit.* diff_dst is 0 \+ 8 \+ 0 - 9 \(output_padding\) = -1",
    ),
    "an output padding that does not divide": (
        DOWN,
        {"output_padding": [2], "strides": [2]},
        None,
        r"spatial axis 0: no extent of diff_src gives the 8 elements of diff_dst: 8 - 2 \(output_padding\) \+ 0 \+ 0 "
        r"\(pads\) - 3 \(elements that 3 taps with dilation 1 span\) = 3 is not a multiple of the stride 2",
    ),
    "pads that eat the output": (
        UP,
        {"pads_begin": [5], "pads_end": [4]},
        None,
        r"spatial axis 0: dst would have 1 \* \(6 - 1\) \+ 3 - 5 - 4 \+ 0 = -1 elements; make pads_begin and pads_end",
    ),
    "windows that do not belong": (
        FILTERS,
        {},
        [(2, 3, 8), (2, 4, 5)],
        r"spatial axis 0: diff_dst has 5 elements, but \(8 \+ 0 \+ 0 - 3\) // 1 \+ 1 = 6 belong to the 8 of src "
        r"\(3 taps with dilation 1\); change a shape, pads_begin, pads_end, strides or dilations",
    ),
    "windows that do not belong to SAME pads": (
        FILTERS,
        {"auto_pad": "SAME_UPPER"},
        None,
        r"= 8 belong to the 8 of src.*; auto_pad = SAME_UPPER chose these pads: change a shape, auto_pad",
    ),
    "an output padding that is not that of the shapes": (
        DATA,
        {"output_padding": [1]},
        None,
        r"diff_src has 8 elements, but 1 \* \(6 - 1\) \+ 3 - 0 - 0 \+ 1 \(output_padding\) = 9 belong to the 6 of",
    ),
    "no dst_shape": (
        DATA,
        {"dst_shape": [0, 0, 0]},
        None,
        r"shape of diff_src cannot be inferred; give dst_shape as an",
    ),
    "no weights_shape": (
        FILTERS,
        {"weights_shape": [0] * 12},
        None,
        r"diff_weights cannot be inferred; give weights_shape",
    ),
    "a short dst_shape": (
        DATA,
        {"dst_shape": [3, 8]},
        None,
        r"the attribute dst_shape \[3, 8\] has 2 entries, but diff_src",
    ),
    "a short weights_shape": (
        FILTERS,
        {"weights_shape": [3]},
        None,
        r"the attribute weights_shape \[3\] has 1 entries, but weights with 1 spatial axes have 3",
    ),
    "batch of dst_shape": (DATA, {"dst_shape": [1, 3, 8]}, None, r"dst_shape \[1, 3, 8\] has batch 1, but .* batch 2"),
    "channels of dst_shape": (
        DATA,
        {"dst_shape": [2, 4, 8]},
        None,
        r"\[2, 4, 8\] in NCX has 4 channels, .* make them 3",
    ),
    "too many elements": (
        CONV,
        {},
        [(2**40, 3, 2**30), (4, 3, 3)],
        r"dst \[1099511627776, 4, 1073741822\] would have more than 2\*\*62 elements",
    ),
    "out of reach": (
        UP,
        {"strides": [2**61]},
        None,
        r"strides, dilations and pads reach \d+ elements far, which is not below 2\*\*62",
    ),
    "no batch": (BIAS, {}, [(3,)], r"diff_dst \[3\] has 1 axes, but needs a batch and channels"),
}


@pytest.mark.parametrize(("call", "change", "shapes", "message"), SHAPES.values(), ids=SHAPES)
def test_shapes_that_contradict_each_other_are_explained(call, change, shapes, message):
    op, attributes, right = call
    with pytest.raises(ShapeError, match=f"^{op}: .*{message}" if "^" not in message else message):
        resolve(op, attributes | change, shapes or right)


OPTIONS = {
    "a rule that is none": (
        DATA,
        {"auto_pad_rule": "book"},
        AttributeRuleError,
        r"auto_pad_rule is 'book', but must be",
    ),
    "the page of another": (
        CONV,
        {"auto_pad_rule": "page"},
        AttributeRuleError,
        r"the page of ConvolutionBackwardData",
    ),
    "a shape input": (
        CONV,
        {"shape_input": [2]},
        AttributeRuleError,
        r"takes no input that tells a shape; leave it out",
    ),
    "a shape input of floats": (
        DATA,
        {"shape_input": np.ones(3)},
        AttributeRuleError,
        r"dst_shape holds np.float64\(1.0\)",
    ),
    "a shape input of two axes": (
        DATA,
        {"shape_input": np.ones((1, 3), int)},
        AttributeRuleError,
        r"dst_shape has 2 axes",
    ),
    "a negative shape input": (DATA, {"shape_input": [2, 3, -8]}, AttributeRuleError, r"dst_shape holds -8"),
    "another output": (
        CONV,
        {"output_shape": (2, 4, 7)},
        ShapeError,
        r"dst is given with shape \[2, 4, 7\], but the inputs and attributes make it \[2, 4, 6\]",
    ),
}


@pytest.mark.parametrize(("call", "options", "kind", "message"), OPTIONS.values(), ids=OPTIONS)
def test_options_that_contradict_the_call_are_explained(call, options, kind, message):
    with pytest.raises(kind, match=f"^{call[0]}: .*{message}"):
        resolve(*call, **options)


def test_an_unknown_operation_is_answered_with_the_known_ones():
    with pytest.raises(AttributeRuleError, match=r"^Pool: no such operation; the operations are Convolution, "):
        resolve("Pool", {}, [])
