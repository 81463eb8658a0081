"""What layers do to split tensors: convolutions, pooling and normalization."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from itertools import pairwise
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from convgrad.errors import ArrayError, ShapeError
from convgrad.sharding.spatial import SpatialAxis
from convgrad.torch.distributed.convolution import Geometry, as_tuple, split_convolution
from convgrad.torch.distributed.exchange import shared, summed
from convgrad.torch.distributed.rules import rule_of, takes
from convgrad.torch.distributed.tensor import SplitTensor
from convgrad.values import frozen

__all__ = ["rule_of"]

# --- normalization


@takes(F.batch_norm)
def _batch_norm(func: Callable, args: tuple, kwargs: dict) -> SplitTensor:
    def signature(input, running_mean, running_var, weight=None, bias=None, training=False, momentum=0.1, eps=1e-5):
        return input, running_mean, running_var, weight, bias, training, eps

    one, mean, variance, weight, bias, training, eps = signature(*args, **kwargs)
    if training:
        raise ArrayError(
            "batch_norm: in training it needs sums over all parts and over all other batches; use eval(), GroupNorm or "
            "InstanceNorm, or map() to normalize each part by its own numbers"
        )
    affine = [None if tensor is None else shared(tensor, one.group) for tensor in (weight, bias)]
    return one.with_local(F.batch_norm(one.local, mean, variance, *affine, False, 0.0, eps))


@takes(F.group_norm)
def _group_norm(func: Callable, args: tuple, kwargs: dict) -> SplitTensor:
    def signature(input, num_groups, weight=None, bias=None, eps=1e-5):
        return input, num_groups, weight, bias, eps

    return _normalized(*signature(*args, **kwargs))


@takes(F.instance_norm)
def _instance_norm(func: Callable, args: tuple, kwargs: dict) -> SplitTensor:
    def signature(
        input, running_mean=None, running_var=None, weight=None, bias=None, use_input_stats=True, momentum=0.1, eps=1e-5
    ):
        return input, running_mean, weight, bias, use_input_stats, eps

    one, running_mean, weight, bias, use_input_stats, eps = signature(*args, **kwargs)
    if running_mean is not None or not use_input_stats:
        raise ArrayError(
            "instance_norm: of split tensors only without running statistics; give track_running_stats=False"
        )
    return _normalized(one, one.shape[1], weight, bias, eps)


def _normalized(one: SplitTensor, groups: int, weight: Tensor | None, bias: Tensor | None, eps: float) -> SplitTensor:
    """Mean 0 and variance 1 of every image and group of channels, over all parts."""
    images, channels, *extents = one.local.shape
    x = one.local.reshape(images, groups, -1)
    count = one.numel() / (images * groups)

    def mean(values: Tensor) -> Tensor:
        return shared(summed(values.sum(-1, keepdim=True), one.group) / count, one.group)

    x = x - mean(x)
    x = x * torch.rsqrt(mean(x * x) + eps)
    x = x.reshape(images, channels, *extents)
    broadcast = (-1, *(1,) * len(extents))
    if weight is not None:
        x = x * shared(weight, one.group).reshape(broadcast)
    if bias is not None:
        x = x + shared(bias, one.group).reshape(broadcast)
    return one.with_local(x)


# --- pooling


@frozen
class _Pooling:
    """Arguments of a pooling function that decide where its windows lie."""

    kernel: Any
    stride: Any = None
    padding: Any = 0
    dilation: Any = 1
    ceil_mode: bool = False
    return_indices: bool = False


@takes(F.max_pool1d, F.max_pool2d, F.max_pool3d, torch.max_pool1d, torch.max_pool2d, torch.max_pool3d)
def _max_pool(func: Callable, args: tuple, kwargs: dict) -> SplitTensor:
    def signature(input, kernel_size, stride=None, padding=0, dilation=1, ceil_mode=False, return_indices=False):
        return input, _Pooling(kernel_size, stride, padding, dilation, ceil_mode, return_indices)

    return _pooled(func, *signature(*args, **kwargs), args, kwargs)


@takes(F.avg_pool1d, F.avg_pool2d, F.avg_pool3d)
def _avg_pool(func: Callable, args: tuple, kwargs: dict) -> SplitTensor:
    def signature(
        input, kernel_size, stride=None, padding=0, ceil_mode=False, count_include_pad=True, divisor_override=None
    ):
        return input, _Pooling(kernel_size, stride, padding, 1, ceil_mode)

    return _pooled(func, *signature(*args, **kwargs), args, kwargs)


def _pooled(func: Callable, one: SplitTensor, pooling: _Pooling, args: tuple, kwargs: dict) -> SplitTensor:
    """Windows belong to the part whose output they are; it fetches what they span."""
    rank, axis = one.ndim - 2, one.split_dim - 2
    kernel = as_tuple(pooling.kernel, rank)
    stride = as_tuple(pooling.stride or pooling.kernel, rank)
    if as_tuple(pooling.padding, rank)[axis] or pooling.ceil_mode or pooling.return_indices:
        raise ArrayError(
            f"{func.__name__}: of split tensors only without padding along axis {one.split_dim}, which is split, "
            "without ceil_mode and without return_indices; call gather() first"
        )
    whole = SpatialAxis(
        image=one.extent, window=0, taps=kernel[axis], stride=stride[axis],
        dilation=as_tuple(pooling.dilation, rank)[axis], low=0, high=0,
    )  # fmt: skip
    windows = (one.extent - whole.reach) // whole.stride + 1
    if windows < 1:
        raise ShapeError(
            f"{func.__name__}: a window spans {whole.reach} elements, but axis {one.split_dim} has {one.extent}; give "
            "a smaller kernel_size"
        )
    bounds = one.proportions.boundaries(windows)
    spans = [whole.image_of(span) for span in pairwise(bounds)]
    needed = one.fetch(spans)
    own = bounds[one.rank + 1] - bounds[one.rank]
    if own:
        return one.with_local(func(needed, *args[1:], **kwargs), windows)
    window = (*needed.shape[: one.split_dim], whole.reach, *needed.shape[one.split_dim + 1 :])
    none = func(needed.new_zeros(window), *args[1:], **kwargs).narrow(one.split_dim, 0, 0)
    return one.with_local(none + needed.sum(), windows)  # without numbers, but backward has to come to `needed`


# --- convolutions


@takes(torch.conv1d, torch.conv2d, torch.conv3d)
def _conv(func: Callable, args: tuple, kwargs: dict) -> SplitTensor:
    def signature(input, weight, bias=None, stride=1, padding=0, dilation=1, groups=1):
        return input, weight, bias, stride, padding, dilation, groups

    src, weights, bias, stride, padding, dilation, groups = signature(*args, **kwargs)
    rank = src.ndim - 2
    strides, dilations = as_tuple(stride, rank), as_tuple(dilation, rank)
    begin, end = _pads(padding, weights.shape[2:], strides, dilations)
    words = (src, weights, bias, strides, begin, end, dilations, groups)
    return _convolution(torch.ops.convgrad.convolution, words, {})


@takes(torch.conv_transpose1d, torch.conv_transpose2d, torch.conv_transpose3d)
def _conv_transpose(func: Callable, args: tuple, kwargs: dict) -> SplitTensor:
    def signature(input, weight, bias=None, stride=1, padding=0, output_padding=0, groups=1, dilation=1):
        return input, weight, bias, stride, padding, output_padding, groups, dilation

    src, weights, bias, stride, padding, output_padding, groups, dilation = signature(*args, **kwargs)
    strides, pads, more, dilations = (as_tuple(n, src.ndim - 2) for n in (stride, padding, output_padding, dilation))
    words = (src, weights, bias, strides, pads, pads, more, dilations, groups)
    return _transposed(torch.ops.convgrad.conv_transpose, words, {})


@takes(torch.ops.convgrad.convolution)
def _convolution(func: Callable, args: tuple, kwargs: dict) -> SplitTensor:
    def signature(src, weights, bias, strides, pads_begin, pads_end, dilations, groups):
        names = ("strides", "pads_begin", "pads_end", "dilations", "groups")
        return src, weights, bias, zip(names, (strides, pads_begin, pads_end, dilations, groups), strict=True)

    return _split_convolution("Convolution", *signature(*args, **kwargs))


@takes(torch.ops.convgrad.conv_transpose)
def _transposed(func: Callable, args: tuple, kwargs: dict) -> SplitTensor:
    def signature(src, weights, bias, strides, pads_begin, pads_end, output_padding, dilations, groups):
        names = ("strides", "pads_begin", "pads_end", "output_padding", "dilations", "groups")
        values = (strides, pads_begin, pads_end, output_padding, dilations, groups)
        return src, weights, bias, zip(names, values, strict=True)

    return _split_convolution("ConvTranspose", *signature(*args, **kwargs))


def _split_convolution(
    op: str, src: Any, weights: Any, bias: Tensor | None, words: Iterator[tuple[str, Any]]
) -> SplitTensor:
    if not isinstance(src, SplitTensor) or isinstance(weights, SplitTensor) or isinstance(bias, SplitTensor):
        raise ArrayError(f"{op}: src is what can be split; give weights and bias as tensors, the same on every process")
    local, weights, bias = _autocast(src.local, weights, bias)
    geometry = Geometry(
        op=op,
        axis=src.split_dim - 2,
        src=tuple(src.shape),
        weights=tuple(weights.shape),
        bias=bias is not None,
        words=tuple((name, value if isinstance(value, int) else tuple(value)) for name, value in words),
        proportions=src.proportions,
    )
    extent = geometry.plan(op).problem.output_shape[src.split_dim]
    weights, bias = shared(weights, src.group), None if bias is None else shared(bias, src.group)
    return src.with_local(split_convolution(local, weights, bias, geometry, src.group), extent)


def _pads(padding: Any, taps: Any, strides: tuple[int, ...], dilations: tuple[int, ...]) -> tuple[Any, Any]:
    """pads_begin and pads_end of PyTorch's padding; for "same" the odd element goes to the end."""
    if padding == "valid":
        padding = 0
    if padding != "same":
        pads = as_tuple(padding, len(taps))
        return pads, pads
    if any(stride != 1 for stride in strides):
        raise ShapeError(f"Convolution: padding is 'same' with strides {list(strides)}; PyTorch's is for strides of 1")
    totals = [d * (k - 1) for d, k in zip(dilations, taps, strict=True)]
    return tuple(total // 2 for total in totals), tuple(total - total // 2 for total in totals)


def _autocast(*tensors: Tensor | None) -> tuple[Any, ...]:
    """In an autocast region, in its type; f64 stays."""
    kind = tensors[0].device.type
    if not torch.is_autocast_enabled(kind):
        return tensors
    dtype = torch.get_autocast_dtype(kind)
    return tuple(tensor if tensor is None or tensor.dtype is torch.float64 else tensor.to(dtype) for tensor in tensors)
