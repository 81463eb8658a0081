"""Graphs that several tests use, with small integers for inputs so that every sum is exact."""

from __future__ import annotations

import numpy as np

from convgrad.dtypes import FLOATING, numpy_dtype
from convgrad.graph import Graph, LogicalTensor, Op

GEOMETRY = {
    "strides": [2, 1],
    "pads_begin": [1, 0],
    "pads_end": [0, 1],
    "dilations": [1, 2],
    "data_format": "NCX",
}
X, Y = (9, 8), (4, 5)  # extents of the image and of the windows: (9 + 1 - 3) // 2 + 1, (8 + 1 - 5) // 1 + 1
CONV = GEOMETRY | {"weights_format": "OIX"}
DECONV = GEOMETRY | {"weights_format": "IOX"}
IMAGE, WINDOW, WEIGHTS = (2, 3, *X), (2, 4, *Y), (4, 3, 3, 3)
KINDS = {  # kind: attributes, shapes of the inputs, shape of the output
    "Convolution": (CONV, [IMAGE, WEIGHTS, (4,)], WINDOW),
    "ConvolutionBackwardData": (CONV | {"dst_shape": IMAGE}, [WINDOW, WEIGHTS], IMAGE),
    "ConvolutionBackwardWeights": (CONV | {"weights_shape": WEIGHTS}, [IMAGE, WINDOW], WEIGHTS),
    "ConvTranspose": (DECONV, [WINDOW, WEIGHTS, (3,)], (2, 3, 8, 8)),
    "ConvTransposeBackwardData": (DECONV, [IMAGE, WEIGHTS], WINDOW),
    "ConvTransposeBackwardWeights": (DECONV | {"weights_shape": WEIGHTS}, [WINDOW, IMAGE], WEIGHTS),
    "BiasAddBackward": ({"data_format": "NCX"}, [IMAGE], (3,)),
}


def op_of(kind: str, *, dtype: str = "f32", known_output: bool = True, id: int = 7, first: int = 0) -> Op:
    """One operation on tensors first, first + 1, ..."""
    attrs, shapes, out = KINDS[kind]
    inputs = [LogicalTensor(first + i, dtype, shape) for i, shape in enumerate(shapes)]
    output = LogicalTensor(first + len(shapes), dtype, out if known_output else None)
    return Op(id, kind, kind.lower(), attrs, inputs, [output])


def graph_of(*ops: Op) -> Graph:
    """An open graph."""
    graph = Graph()
    for op in ops:
        graph.add_op(op)
    return graph


def whole_numbers(tensor: LogicalTensor, seed: int = 0) -> np.ndarray:
    """A dense array of integers from -2 to 2."""
    assert tensor.dtype in FLOATING
    numbers = np.random.default_rng([seed, tensor.id]).integers(-2, 3, tensor.known_shape)
    return numbers.astype(numpy_dtype(tensor.dtype))


def inputs_of(graph: Graph, seed: int = 0) -> dict[int, np.ndarray]:
    """An array for every floating input of a graph."""
    graph.finalize()
    return {port.id: whole_numbers(port, seed) for port in graph.get_input_ports() if port.dtype in FLOATING}
