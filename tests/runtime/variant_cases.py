"""Small problems whose plans have variants, with inputs and exact results."""

import numpy as np

from convgrad.dtypes import numpy_dtype
from convgrad.problem.canonicalize import ROLES, canonicalize
from convgrad.spec.definition import define
from convgrad.spec.resolve import resolve

GEOMETRIES = {  # batch, groups, image and window channels of a group, extent, kernel, stride, pads, dilation
    "dense": (2, 1, 9, 18, (7, 19), (3, 3), (1, 1), (1, 0), (1, 1)),
    "strided": (2, 2, 5, 3, (11, 20), (3, 2), (2, 3), (1, 0), (1, 2)),
    "strided, few channels": (2, 1, 3, 5, (9, 20), (3, 4), (2, 2), (1, 1), (1, 1)),
    "depthwise": (2, 34, 1, 1, (6, 9), (3, 3), (1, 1), (1, 1), (1, 1)),
    "depthwise in whole vectors": (1, 32, 1, 1, (5, 9), (3, 3), (1, 1), (1, 1), (1, 1)),
    "few channels of many groups": (1, 18, 2, 2, (5, 18), (2, 3), (1, 2), (0, 2), (2, 1)),
}
OPS = [op for op in ROLES if op != "BiasAddBackward"]


def case(op, geometry, data_format, rng, bias=False, **types):
    """A problem, its inputs and its exact result, on small integers."""
    batch, groups, image, window, extent, taps, stride, pads, dilation = GEOMETRIES[geometry]
    reach = [(t - 1) * d + 1 for t, d in zip(taps, dilation, strict=True)]
    room = [e + 2 * p - r for e, p, r in zip(extent, pads, reach, strict=True)]
    windows = [r // s + 1 for r, s in zip(room, stride, strict=True)]

    def activation(channels, spatial):
        return (batch, channels, *spatial) if data_format == "NCX" else (batch, *spatial, channels)

    transposed = op.startswith("ConvTranspose")
    shapes = {
        "x": activation(groups * image, extent),
        "w": (groups * window, image, *taps),
        "y": activation(groups * window, windows),
    }
    *given, solved = ROLES[op]
    attributes = {
        "strides": stride, "pads_begin": pads, "pads_end": pads, "dilations": dilation, "groups": groups,
        "data_format": data_format, "weights_format": "IOX" if transposed else "OIX",
    }  # fmt: skip
    if transposed:
        attributes["output_padding"] = [r % s for r, s in zip(room, stride, strict=True)]
    dtype = types.get("dtype", "f32")
    inputs = [rng.integers(-2, 3, shapes[name]).astype(numpy_dtype(dtype)) for name in given]
    if bias:
        channels = groups * (image if solved == "x" else window)
        inputs.append(rng.integers(-9, 10, channels).astype(numpy_dtype(dtype)))
    resolved = resolve(op, attributes, [array.shape for array in inputs], output_shape=shapes[solved])
    exact = np.ascontiguousarray(define(resolved, inputs))
    problem = canonicalize(
        resolved,
        input_strides=[strides(array) for array in inputs[:2]],
        output_strides=strides(exact),
        dtype=dtype,
        out_dtype=types.get("out_dtype", dtype),
        bias_stride=1 if bias else None,
    )
    return problem, inputs, exact


def strides(array):
    return tuple(step // array.itemsize for step in array.strides)
