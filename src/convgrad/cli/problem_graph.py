"""A problem string as a graph of one operation, or of two where a direction has two gradients."""

from __future__ import annotations

from convgrad.cli.problem_string import ProblemString
from convgrad.graph import Graph, LogicalTensor, Op
from convgrad.values import frozen

_OPERATIONS = {  # direction: of a convolution, of a transposed one
    "FWD_B": ("Convolution", "ConvTranspose"),
    "FWD_D": ("Convolution", "ConvTranspose"),
    "FWD_I": ("Convolution", "ConvTranspose"),
    "BWD_D": ("ConvolutionBackwardData", "ConvTransposeBackwardData"),
    "BWD_W": ("ConvolutionBackwardWeights", "ConvTransposeBackwardWeights"),
    "BWD_WB": ("ConvolutionBackwardWeights", "ConvTransposeBackwardWeights"),
}
DIRECTIONS = tuple(_OPERATIONS)
_SRC, _WEIGHTS, _DST, _BIAS = range(4)  # ids of tensors; a gradient has the id of what it is the gradient of


@frozen
class Formats:
    """How dims are ordered; None is what PyTorch does, OIX and for transposed convolutions IOX."""

    data: str = "NCX"
    weights: str | None = None


def build(problem: ProblemString, direction: str, dtype: str, formats: Formats) -> Graph:
    """The open graph of a problem in one direction."""
    weights_format = formats.weights or ("IOX" if problem.transposed else "OIX")
    shapes = {
        _SRC: _activation(formats.data, problem.batch, problem.ic, problem.each("src")),
        _WEIGHTS: _weights(problem, weights_format),
        _DST: _activation(formats.data, problem.batch, problem.oc, problem.each("dst")),
        _BIAS: (problem.oc,),
    }
    tensor = {id: LogicalTensor(id, dtype, shape) for id, shape in shapes.items()}
    kind = _OPERATIONS[direction][problem.transposed]
    attrs = {
        "strides": problem.each("stride"),
        "pads_begin": problem.each("pad_begin"),
        "pads_end": problem.each("pad_end"),
        "dilations": problem.each("dilation"),
        "groups": problem.groups,
        "data_format": formats.data,
        "weights_format": weights_format,
    }
    if problem.transposed:
        attrs["output_padding"] = problem.each("output_padding")
    if kind == "ConvolutionBackwardData":
        attrs["dst_shape"] = shapes[_SRC]
    elif kind.endswith("BackwardWeights"):
        attrs["weights_shape"] = shapes[_WEIGHTS]
    ids = _tensors(direction)
    graph = Graph()
    graph.add_op(Op(0, kind, "", attrs, [tensor[id] for id in ids[:-1]], [tensor[ids[-1]]]))
    if direction == "BWD_WB":
        graph.add_op(Op(1, "BiasAddBackward", "", {"data_format": formats.data}, [tensor[_DST]], [tensor[_BIAS]]))
    return graph


def _tensors(direction: str) -> tuple[int, ...]:
    """Inputs, then the output."""
    match direction:
        case "FWD_B":
            return _SRC, _WEIGHTS, _BIAS, _DST
        case "FWD_D" | "FWD_I":
            return _SRC, _WEIGHTS, _DST
        case "BWD_D":
            return _DST, _WEIGHTS, _SRC
        case _:
            return _SRC, _DST, _WEIGHTS


def _activation(data_format: str, batch: int, channels: int, extent: tuple[int, ...]) -> tuple[int, ...]:
    return (batch, channels, *extent) if data_format == "NCX" else (batch, *extent, channels)


def _weights(problem: ProblemString, weights_format: str) -> tuple[int, ...]:
    """The full side of the channels is that of dst, or for transposed convolutions that of src."""
    o, i = problem.oc, problem.ic
    o, i = (o // problem.groups, i) if problem.transposed else (o, i // problem.groups)
    by_letter = {"O": (o,), "I": (i,), "X": problem.each("kernel")}
    return tuple(extent for letter in weights_format for extent in by_letter[letter])
