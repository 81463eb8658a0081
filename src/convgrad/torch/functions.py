"""The operations as functions on torch.Tensor, with keywords and in PyTorch's order of axes.

All are differentiable to any order, forward and backward, and work under `torch.compile`, `torch.func` and autocast.

Tensors
    Activations are (N, C, spatial...) with one spatial axis or more. Weights of convolutions are (OC, IC/groups,
    kernel...), of transposed ones (IC, OC/groups, kernel...), a bias has OC elements. f32, bf16, f16 or f64, the same
    for all; strides are anything, and are read in place. Results of channels_last activations are channels_last.
Attributes
    strides, dilations (default 1), pads_begin, pads_end and output_padding (default 0) are one int for all spatial
    axes, or one per axis. auto_pad is none, same_upper, same_lower or valid; unless it is none, it replaces the pads.
Errors
    Every mistake of the caller is a `ConvError`: `AttributeRuleError`, `ShapeError`, `DtypeError` or `ArrayError`.

Source: the operation pages of the oneDNN Graph specification; the order of axes is that of torch.nn.functional.
"""

from __future__ import annotations

from collections.abc import Sequence
from operator import index
from typing import Any

from torch import Tensor

from convgrad.errors import ArrayError, AttributeRuleError, ShapeError
from convgrad.spec.schemas import AUTO_PADS, SCHEMAS
from convgrad.torch import operators
from convgrad.torch.pads import same_pads

Ints = int | Sequence[int]


def convolution(
    src: Tensor,
    weights: Tensor,
    bias: Tensor | None = None,
    *,
    strides: Ints = 1,
    pads_begin: Ints = 0,
    pads_end: Ints = 0,
    dilations: Ints = 1,
    auto_pad: str = "none",
    groups: int = 1,
) -> Tensor:
    """Convolution: dst[n, o, y] = bias[o] + Σ src[n, i, y·S + k·D − PB] · W[o, i, k].

    dst is (N, OC, Y...) with Y = (X + PB + PE − ((K − 1)·D + 1)) // S + 1 on every axis.
    """
    tensors = (src, weights) if bias is None else (src, weights, bias)
    words = _words("Convolution", tensors, strides, pads_begin, pads_end, dilations, auto_pad, groups)
    return operators.convolution(src, weights, bias, *words)


def convolution_backward_data(
    diff_dst: Tensor,
    weights: Tensor,
    dst_shape: Sequence[int],
    *,
    strides: Ints = 1,
    pads_begin: Ints = 0,
    pads_end: Ints = 0,
    dilations: Ints = 1,
    auto_pad: str = "none",
    groups: int = 1,
) -> Tensor:
    """ConvolutionBackwardData, the gradient of `convolution` in src.

    diff_src[n, i, x] = Σ diff_dst[n, o, y] · W[o, i, k] over o, k and y with y·S + k·D − PB = x.

    dst_shape is the shape of diff_src, (N, IC, X...) or the spatial extents alone. diff_dst must have the extents of
    a convolution of that shape.
    """
    op = "ConvolutionBackwardData"
    tensors = (diff_dst, weights)
    words = _words(op, tensors, strides, pads_begin, pads_end, dilations, auto_pad, groups, told=dst_shape)
    spatial = _spatial(op, "dst_shape", dst_shape, diff_dst.dim() - 2, (diff_dst.shape[0], weights.shape[1] * groups))
    return operators.convolution_backward_data(diff_dst, weights, spatial, *words)


def convolution_backward_weights(
    src: Tensor,
    diff_dst: Tensor,
    weights_shape: Sequence[int],
    *,
    strides: Ints = 1,
    pads_begin: Ints = 0,
    pads_end: Ints = 0,
    dilations: Ints = 1,
    auto_pad: str = "none",
    groups: int = 1,
) -> Tensor:
    """ConvolutionBackwardWeights, the gradient of `convolution` in weights.

    diff_weights[o, i, k] = Σ src[n, i, y·S + k·D − PB] · diff_dst[n, o, y] over n and y.

    weights_shape is the shape of diff_weights, (OC, IC/groups, K...) or the extents of the kernel alone.
    """
    op = "ConvolutionBackwardWeights"
    tensors = (src, diff_dst)
    words = _words(op, tensors, strides, pads_begin, pads_end, dilations, auto_pad, groups, told=weights_shape)
    channels = (diff_dst.shape[1], src.shape[1] // max(groups, 1))
    kernel = _spatial(op, "weights_shape", weights_shape, src.dim() - 2, channels)
    return operators.convolution_backward_weights(src, diff_dst, kernel, *words)


def conv_transpose(
    src: Tensor,
    weights: Tensor,
    bias: Tensor | None = None,
    *,
    strides: Ints = 1,
    pads_begin: Ints = 0,
    pads_end: Ints = 0,
    dilations: Ints = 1,
    auto_pad: str = "none",
    output_padding: Ints = 0,
    groups: int = 1,
) -> Tensor:
    """ConvTranspose: dst[n, o, x] = bias[o] + Σ src[n, i, y] · W[i, o, k] over i, k and y with y·S + k·D − PB = x.

    dst is (N, OC, X...) with X = S·(Y − 1) + (K − 1)·D + 1 − PB − PE + OP on every axis.
    """
    tensors = (src, weights) if bias is None else (src, weights, bias)
    words = _words("ConvTranspose", tensors, strides, pads_begin, pads_end, dilations, auto_pad, groups, output_padding)
    return operators.conv_transpose(src, weights, bias, *words)


def conv_transpose_backward_data(
    diff_dst: Tensor,
    weights: Tensor,
    *,
    strides: Ints = 1,
    pads_begin: Ints = 0,
    pads_end: Ints = 0,
    dilations: Ints = 1,
    auto_pad: str = "none",
    output_padding: Ints = 0,
    groups: int = 1,
) -> Tensor:
    """ConvTransposeBackwardData, the gradient of `conv_transpose` in src.

    diff_src[n, i, y] = Σ diff_dst[n, o, y·S + k·D − PB] · W[i, o, k] over o and k.

    output_padding is that of the forward operation, and diff_dst has the extents that it gives.
    """
    op = "ConvTransposeBackwardData"
    tensors = (diff_dst, weights)
    words = _words(op, tensors, strides, pads_begin, pads_end, dilations, auto_pad, groups, output_padding)
    return operators.conv_transpose_backward_data(diff_dst, weights, *words)


def conv_transpose_backward_weights(
    src: Tensor,
    diff_dst: Tensor,
    weights_shape: Sequence[int],
    *,
    strides: Ints = 1,
    pads_begin: Ints = 0,
    pads_end: Ints = 0,
    dilations: Ints = 1,
    auto_pad: str = "none",
    output_padding: Ints = 0,
    groups: int = 1,
) -> Tensor:
    """ConvTransposeBackwardWeights, the gradient of `conv_transpose` in weights.

    diff_weights[i, o, k] = Σ src[n, i, y] · diff_dst[n, o, y·S + k·D − PB] over n and y.

    weights_shape is the shape of diff_weights, (IC, OC/groups, K...) or the extents of the kernel alone.
    """
    op = "ConvTransposeBackwardWeights"
    tensors, told = (src, diff_dst), weights_shape
    words = _words(op, tensors, strides, pads_begin, pads_end, dilations, auto_pad, groups, output_padding, told=told)
    channels = (src.shape[1], diff_dst.shape[1] // max(groups, 1))
    kernel = _spatial(op, "weights_shape", weights_shape, src.dim() - 2, channels)
    return operators.conv_transpose_backward_weights(src, diff_dst, kernel, *words)


def bias_add_backward(diff_dst: Tensor) -> Tensor:
    """BiasAddBackward: diff_bias[c] = Σ diff_dst over every axis except that of the channels."""
    if not isinstance(diff_dst, Tensor):
        raise ArrayError(f"BiasAddBackward: diff_dst is of type {type(diff_dst).__name__}; give a torch.Tensor")
    return operators.bias_add_backward(diff_dst)


def _words(
    op: str,
    tensors: tuple[Tensor, ...],
    strides: Ints,
    pads_begin: Ints,
    pads_end: Ints,
    dilations: Ints,
    auto_pad: str,
    groups: int,
    output_padding: Ints | None = None,
    told: Sequence[int] | None = None,
) -> tuple[Any, ...]:
    """What operators take: one int per axis, and pads instead of auto_pad."""
    for name, tensor in zip((*SCHEMAS[op].inputs, "bias"), tensors, strict=False):
        if not isinstance(tensor, Tensor):
            raise ArrayError(f"{op}: {name} is of type {type(tensor).__name__}; give a torch.Tensor")
    if SCHEMAS[op].shape_attribute and not hasattr(told, "__len__"):
        raise ShapeError(f"{op}: {SCHEMAS[op].shape_attribute} is {told!r}; give a list or a tuple of whole numbers")
    rank = tensors[0].dim() - 2
    steps, apart = _per_axis(op, "strides", strides, rank), _per_axis(op, "dilations", dilations, rank)
    begin, end = _per_axis(op, "pads_begin", pads_begin, rank), _per_axis(op, "pads_end", pads_end, rank)
    extra = () if output_padding is None else (_per_axis(op, "output_padding", output_padding, rank),)
    if type(groups) is not int:
        groups = _whole(op, "groups", groups, "a whole number")
    if auto_pad != "none":
        kernel = (tensors[1].shape if SCHEMAS[op].inputs[1] == "weights" else told)[-rank:]
        image = (told if op == "ConvolutionBackwardData" else tensors[0].shape)[-rank:]
        begin, end = _automatic_pads(op, auto_pad, kernel, image, steps, apart)
    return (steps, begin, end, *extra, apart, groups)


def _per_axis(op: str, name: str, values: Ints, rank: int) -> Sequence[int]:
    """One int per spatial axis."""
    if type(values) is int:
        return (values,) * rank
    wanted = "a whole number, or one for each spatial axis"
    if not isinstance(values, list | tuple):
        return (_whole(op, name, values, wanted),) * rank
    if all(type(n) is int for n in values):
        return values
    return tuple(_whole(op, name, n, wanted, of=values) for n in values)


def _whole(op: str, name: str, number: Any, wanted: str, of: Any = None) -> int:
    """An int, also from what can be one, such as NumPy's and symbolic ones, which become what they stand for."""
    if type(number) is int:
        return number
    try:
        if isinstance(number, bool | Tensor):
            raise TypeError
        return index(number)
    except TypeError:
        shown = number if of is None else of
        raise AttributeRuleError(f"{op}: {name} is {shown!r}; give {wanted}") from None


def _automatic_pads(op: str, auto_pad: Any, kernel, image, strides, dilations) -> tuple[Sequence[int], Sequence[int]]:
    """Pads of the forward operation, axis by axis."""
    words = auto_pad.upper() if isinstance(auto_pad, str) else None
    if words not in AUTO_PADS:
        raise AttributeRuleError(
            f"{op}: auto_pad is {auto_pad!r}, but must be one of {', '.join(word.lower() for word in AUTO_PADS)}"
        )
    if not words.startswith("SAME"):
        return (0,) * len(strides), (0,) * len(strides)
    of_image = None if op.startswith("ConvTranspose") else image
    return same_pads(kernel, strides, dilations, of_image, lower=words == "SAME_LOWER")


def _spatial(op: str, name: str, shape: Sequence[int], rank: int, channels: tuple[int, int]) -> Sequence[int]:
    """The spatial extents of a shape, whose other two must be those that the tensors tell."""
    if len(shape) == rank:
        return tuple(shape)
    if len(shape) != rank + 2:
        raise ShapeError(
            f"{op}: {name} {list(shape)} has {len(shape)} entries, but with {rank} spatial axes it takes "
            f"{rank + 2}, or the {rank} spatial ones alone"
        )
    if tuple(shape[:2]) != channels:
        raise ShapeError(
            f"{op}: {name} {list(shape)} begins with {list(shape[:2])}, but the tensors and groups make that "
            f"{list(channels)}; change {name}, groups or the order of the axes"
        )
    return tuple(shape[2:])
