"""Convolutions of split tensors: each process fetches its halo and computes its part; both gradients do the same.

No element of dst or of diff_src is a sum of what several processes computed: each of them is computed whole where it
belongs, from a halo of src or of diff_dst. Gradients of weights and bias are those of the own part; what sums them is
`exchange.shared`, through which weights come here.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache

import torch
import torch.distributed as dist
from torch import Tensor
from torch.autograd import Function
from torch.autograd.function import once_differentiable

from convgrad.sharding import Part, Proportions, ShardPlan, Share, in_order_of, shard_plan
from convgrad.torch import operators
from convgrad.torch.distributed.exchange import Group, exchange
from convgrad.torch.kernels import DTYPES
from convgrad.torch.layout import activation_strides, dim_order, is_channels_last, order_of_activations
from convgrad.torch.precision import asked_mode
from convgrad.values import frozen

Ints = tuple[int, ...]

_GRADIENTS = {
    "Convolution": ("ConvolutionBackwardData", "ConvolutionBackwardWeights"),
    "ConvTranspose": ("ConvTransposeBackwardData", "ConvTransposeBackwardWeights"),
}


@frozen
class Geometry:
    """A forward operation on tensors split along one spatial axis: everything its plans follow from."""

    op: str
    axis: int  # spatial
    src: Ints  # shape of the whole tensor
    weights: Ints
    bias: bool
    words: tuple[tuple[str, Ints | int], ...]  # attributes
    proportions: Proportions

    def plan(self, op: str) -> ShardPlan:
        """Of the operation itself, or of one of its gradients."""
        return _plan(self, op)


@lru_cache(maxsize=4096)
def _plan(geometry: Geometry, op: str) -> ShardPlan:
    words = {**dict(geometry.words), "data_format": "NCX"}
    words["weights_format"] = "IOX" if geometry.op == "ConvTranspose" else "OIX"
    shapes = [geometry.src, geometry.weights]
    if op != geometry.op:
        dst = geometry.plan(geometry.op).problem.output_shape
        data, _ = _GRADIENTS[geometry.op]
        shapes = [dst, geometry.weights] if op == data else [geometry.src, dst]
        told = {"ConvolutionBackwardData": ("dst_shape", geometry.src)}
        name, shape = told.get(op, ("weights_shape", geometry.weights))
        if op != "ConvTransposeBackwardData":
            words[name] = shape
    elif geometry.bias:
        channels = geometry.weights[1] * words["groups"] if op == "ConvTranspose" else geometry.weights[0]
        shapes.append((channels,))
    cut = geometry.proportions
    even = shard_plan(op, geometry.axis, cut.parts, shapes=shapes, **words)
    boundaries = {tensor: cut.boundaries(bounds[-1]) for tensor, bounds in even.boundaries.items()}
    if boundaries == even.boundaries:
        return even
    return shard_plan(op, geometry.axis, cut.parts, shapes=shapes, boundaries=boundaries, **words)


def split_convolution(src: Tensor, weights: Tensor, bias: Tensor | None, geometry: Geometry, group: Group) -> Tensor:
    """This rank's part of dst, from its part of src."""
    return _SplitConvolution.apply(src, weights, bias, geometry, group)


class _SplitConvolution(Function):
    @staticmethod
    def forward(ctx, src, weights, bias, geometry, group):
        plan = geometry.plan(geometry.op)
        part = plan.parts[dist.get_rank(group)]
        needed = _with_halo(src, plan, part.inputs[0], group)
        ctx.geometry, ctx.group, ctx.has_bias = geometry, group, bias is not None
        # What a gradient in weights meets besides diff_dst: the windows of this part span what is needed of src in a
        # convolution, and are src itself in a transposed one.
        kept = needed if geometry.op == "Convolution" else src
        ctx.save_for_backward(kept if ctx.needs_input_grad[1] else None, weights)
        return _data(plan, part, needed, weights, bias)

    @staticmethod
    @once_differentiable
    def backward(ctx, diff_dst):
        geometry, group, rank = ctx.geometry, ctx.group, dist.get_rank(ctx.group)
        kept, weights = ctx.saved_tensors
        of_data, of_weights = (geometry.plan(op) for op in _GRADIENTS[geometry.op])
        transposed = geometry.op == "ConvTranspose"
        needs_src, needs_weights, needs_bias, *_ = ctx.needs_input_grad
        needed = diff_dst
        if needs_src or (needs_weights and transposed):  # on all ranks alike, so that all of them communicate
            needed = _with_halo(diff_dst, of_data, of_data.parts[rank].inputs[0], group)
        diff_src = _data(of_data, of_data.parts[rank], needed, weights, None) if needs_src else None
        diff_weights = None
        if needs_weights:
            diff_weights = _weights(of_weights.parts[rank], kept, needed if transposed else diff_dst, weights)
        diff_bias = operators.bias_add_backward(diff_dst) if ctx.has_bias and needs_bias else None
        return diff_src, diff_weights, diff_bias, None, None


def _with_halo(local: Tensor, plan: ShardPlan, share: Share, group: Group) -> Tensor:
    """What a part reads of an input: its own elements that it needs, and those of others."""
    owned, wanted = [], []
    for part in plan.parts:
        each = part.input(share.tensor)
        assert each.owned is not None, "inputs that come here are split"
        assert each.span is not None
        owned.append(each.owned)
        wanted.append(each.span)
    assert share.selection is not None
    return exchange(local, share.selection.axis, owned, wanted, group)


def _data(plan: ShardPlan, part: Part, given: Tensor, weights: Tensor, bias: Tensor | None) -> Tensor:
    """dst or diff_src of a part, summed in the order of the whole."""
    whole, lies = plan.problem, (given.shape, given.stride())
    strides = (
        activation_strides(whole.input_shapes[0], is_channels_last(*lies)),
        weights.stride(),
        activation_strides(whole.output_shape, order_of_activations(*lies, weights.shape, weights.stride())),
    )
    dtype = DTYPES.get(given.dtype, "f32")  # of others the operators say that they do not take them
    with in_order_of(whole, dtype, strides=strides, fpmath_mode=asked_mode()):
        return _computed(part, given, weights, bias)


def _computed(part: Part, given: Tensor, weights: Tensor, bias: Tensor | None) -> Tensor:
    shape, problem = part.output.shape, part.problem
    if problem is None or 0 in given.shape:  # nothing, or nothing but the bias
        result = given.new_zeros(shape)
        return result if bias is None else result + bias.reshape(-1, *(1,) * (len(shape) - 2))
    pads = (problem.pads_begin, problem.pads_end)
    words = (problem.dilations, problem.groups)
    match problem.op:
        case "Convolution":
            return operators.convolution(given, weights, bias, problem.strides, *pads, *words)
        case "ConvolutionBackwardData":
            return operators.convolution_backward_data(given, weights, shape[2:], problem.strides, *pads, *words)
        case "ConvTranspose":
            return operators.conv_transpose(
                given, weights, bias, problem.strides, *pads, problem.output_padding, *words
            )
        case _:
            return operators.conv_transpose_backward_data(
                given, weights, problem.strides, *pads, problem.output_padding, *words
            )


def _weights(part: Part, src: Tensor, diff_dst: Tensor, weights: Tensor) -> Tensor:
    """A part's summand of diff_weights, which lies as the weights do."""
    problem = part.problem
    if problem is None or 0 in src.shape or 0 in diff_dst.shape:
        return torch.zeros_like(weights)
    pads = (problem.pads_begin, problem.pads_end)
    tail = (problem.dilations, problem.groups, dim_order(weights))
    if problem.op == "ConvolutionBackwardWeights":
        return operators.convolution_backward_weights(src, diff_dst, problem.kernel, problem.strides, *pads, *tail)
    return operators.conv_transpose_backward_weights(
        src, diff_dst, problem.kernel, problem.strides, *pads, problem.output_padding, *tail
    )


def as_tuple(values: int | Sequence[int], rank: int) -> Ints:
    """An attribute of PyTorch's layers, one number or one for each axis."""
    if isinstance(values, int):
        return (values,) * rank
    plain = tuple(int(value) for value in values)
    return plain * rank if len(plain) == 1 else plain
