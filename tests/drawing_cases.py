"""Geometries that pictures are tested on."""

from convgrad.drawing.arithmetic import Arithmetic
from convgrad.spec.resolve import resolve

OPERATIONS = (
    "Convolution",
    "ConvolutionBackwardData",
    "ConvolutionBackwardWeights",
    "ConvTranspose",
    "ConvTransposeBackwardData",
    "ConvTransposeBackwardWeights",
)

CASES = {  # image extent, kernel, strides, dilations, pads_begin, pads_end
    "one axis": ((9,), (3,), (1,), (1,), (1,), (1,)),
    "dilated and strided by a common factor": ((11,), (3,), (4,), (2,), (2,), (1,)),
    "stride beyond the kernel": ((12,), (2,), (3,), (1,), (0,), (0,)),
    "pads beyond the kernel": ((3,), (2,), (1,), (1,), (3,), (4,)),
    "strided": ((6, 6), (3, 3), (2, 2), (1, 1), (1, 1), (1, 1)),
    "every axis its own": ((5, 8), (3, 2), (1, 3), (2, 1), (2, 0), (0, 1)),
    "pointwise": ((4, 3), (1, 1), (1, 1), (1, 1), (0, 0), (0, 0)),
}


def arithmetic_of(op, case):
    """The arithmetic of an operation, on one channel, of a geometry above."""
    image, kernel, strides, dilations, begin, end = case
    axes = zip(image, kernel, strides, dilations, begin, end, strict=True)
    left = [(x + pb + pe - (k - 1) * d - 1) % s for x, k, s, d, pb, pe in axes]
    axes = zip(image, kernel, strides, dilations, begin, end, strict=True)
    window = [(x + pb + pe - (k - 1) * d - 1) // s + 1 for x, k, s, d, pb, pe in axes]
    x, y, w = (1, 1, *image), (1, 1, *window), (1, 1, *kernel)
    transposed = op.startswith("ConvTranspose")
    attributes = {
        "strides": strides, "dilations": dilations, "pads_begin": begin, "pads_end": end, "data_format": "NCX",
        "weights_format": "IOX" if transposed else "OIX",
    }  # fmt: skip
    if transposed:
        attributes["output_padding"] = left
    inputs, told = {
        "Convolution": ((x, w), None),
        "ConvolutionBackwardData": ((y, w), x),
        "ConvolutionBackwardWeights": ((x, y), w),
        "ConvTranspose": ((y, w), None),
        "ConvTransposeBackwardData": ((x, w), None),
        "ConvTransposeBackwardWeights": ((y, x), w),
    }[op]
    return Arithmetic.of(resolve(op, attributes, inputs, shape_input=told))
