"""What the layers of `nn` compute, as two functions; `torch.fx` takes a call of either for one node.

They are looked up in this module at each call, since that is where a tracer puts what records them.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from convgrad.errors import ShapeError
from convgrad.torch import operators
from convgrad.torch.pads import same_pads

Ints = tuple[int, ...]
Padding = str | Ints | tuple[Ints, ...]


@torch.fx.wrap
def convolution(
    input: Tensor, weight: Tensor, bias: Tensor | None, stride: Ints, padding: Padding, dilation: Ints, groups: int,
    padding_mode: str,
) -> Tensor:  # fmt: skip
    """The convolution of (batch, in_channels, *extents) or, without a batch, (in_channels, *extents).

    The words are those of `nn.Conv2d`, with one int for each spatial axis, or one in all. Raises ShapeError for other
    axes.
    """
    kernel = weight.shape[2:]
    rank = len(kernel)
    input, batched = _with_batch("Conv", input, rank)
    if type(stride) is not tuple or type(dilation) is not tuple or not len(stride) == len(dilation) == rank:
        stride, dilation = _per_axis(stride, rank), _per_axis(dilation, rank)
    begin, end = _pads(padding, kernel, stride, dilation, input.shape[2:])
    if padding_mode != "zeros":
        last_axis_first = [pad for pair in zip(reversed(begin), reversed(end), strict=True) for pad in pair]
        input = torch.nn.functional.pad(input, last_axis_first, mode=padding_mode)
        begin = end = (0,) * rank
    dst = operators.convolution(input, weight, bias, stride, begin, end, dilation, groups)
    return dst if batched else dst.squeeze(0)


@torch.fx.wrap
def conv_transpose(
    input: Tensor, weight: Tensor, bias: Tensor | None, stride: Ints, padding: Padding, output_padding: Ints,
    dilation: Ints, groups: int, output_size: Sequence[int] | None,
) -> Tensor:  # fmt: skip
    """The transposed convolution of (batch, in_channels, *extents) or, without a batch, (in_channels, *extents).

    output_size, the extents of the result with or without its batch and channels, chooses the output_padding. Raises
    ShapeError for other axes, and for a size that no output_padding gives.
    """
    kernel = weight.shape[2:]
    rank = len(kernel)
    input, batched = _with_batch("ConvTranspose", input, rank)
    if type(stride) is not tuple or type(dilation) is not tuple or not len(stride) == len(dilation) == rank:
        stride, dilation = _per_axis(stride, rank), _per_axis(dilation, rank)
    begin, end = _pads(padding, kernel, stride, dilation, None)
    if output_size is not None:
        size = _spatial(output_size, rank, batched)
        output_padding = _padding_for(size, input.shape[2:], stride, kernel, dilation, begin, end)
    elif type(output_padding) is not tuple or len(output_padding) != rank:
        output_padding = _per_axis(output_padding, rank)
    dst = operators.conv_transpose(input, weight, bias, stride, begin, end, output_padding, dilation, groups)
    return dst if batched else dst.squeeze(0)


def _with_batch(kind: str, input: Tensor, rank: int) -> tuple[Tensor, bool]:
    """The input with a batch axis, and whether it had one."""
    if input.dim() == rank + 2:
        return input, True
    if input.dim() == rank + 1:
        return input.unsqueeze(0), False
    raise ShapeError(
        f"{kind}{rank}d: input {list(input.shape)} has {input.dim()} axes, but {rank} spatial axes make {rank + 2}, or "
        f"{rank + 1} without a batch; add or remove axes of the input"
    )


def _per_axis(values: int | Sequence[int], rank: int) -> Ints:
    """One entry for each axis, where PyTorch takes one for all; programs that change layers may set a plain number."""
    if isinstance(values, int):
        return (values,) * rank
    return tuple(values) * rank if len(values) == 1 else tuple(values)


def _pads(
    padding: Any, kernel: Sequence[int], stride: Ints, dilation: Ints, image: Sequence[int] | None
) -> tuple[Ints, Ints]:
    """pads_begin and pads_end; `image` are the extents that a convolution meets, None for a transposed one."""
    if isinstance(padding, str):
        if padding == "valid":
            return (0,) * len(kernel), (0,) * len(kernel)
        return same_pads(kernel, stride, dilation, image, lower=padding == "same_lower")
    if type(padding) is not tuple or len(padding) != len(kernel):
        padding = _per_axis(padding, len(kernel))
    if padding and isinstance(padding[0], tuple):
        return tuple(begin for begin, _ in padding), tuple(end for _, end in padding)
    return padding, padding


def _spatial(output_size: Sequence[int], rank: int, batched: bool) -> Ints:
    """The last entries, as many as there are spatial axes."""
    whole = rank + 1 + batched
    if len(output_size) not in (rank, whole):
        raise ShapeError(
            f"ConvTranspose{rank}d: output_size {list(output_size)} has {len(output_size)} entries, but the result has "
            f"{rank} spatial axes, {whole} axes in all; give {rank} or {whole} entries"
        )
    return tuple(output_size)[-rank:]


def _padding_for(
    size: Ints, extents: Sequence[int], stride: Ints, kernel: Sequence[int], dilation: Ints, begin: Ints, end: Ints
) -> Ints:
    """The output_padding that makes the result so large."""
    least = tuple(
        s * (y - 1) + (k - 1) * d + 1 - low - high
        for s, y, k, d, low, high in zip(stride, extents, kernel, dilation, begin, end, strict=True)
    )
    padding = tuple(asked - x for asked, x in zip(size, least, strict=True))
    if any(not 0 <= p < s for p, s in zip(padding, stride, strict=True)):
        most = [x + s - 1 for x, s in zip(least, stride, strict=True)]
        raise ShapeError(
            f"ConvTranspose{len(kernel)}d: output_size is {list(size)}, but an input of {list(extents)} with stride "
            f"{list(stride)} gives {list(least)} to {most}; choose a size between them"
        )
    return padding
