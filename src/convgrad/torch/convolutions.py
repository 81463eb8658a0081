"""Convolutions of PyTorch as operations of convgrad: `aten::convolution` and its gradients for dense CPU tensors.

What is left to PyTorch, because of its type, its shape or an error that PyTorch should word, goes to its kernel for all
backends.
"""

from __future__ import annotations

import torch
from torch import Tensor

from convgrad.torch.calls import Plans
from convgrad.torch.jobs import ONES, Gradients, Job, misaligned, plan_backward, plan_forward
from convgrad.torch.precision import asked_arithmetic

# The lookup for no backend finds the kernel for all of them, which is what the CPU had before.
_STOCK = torch._C.DispatchKeySet(torch._C.DispatchKey.Undefined)
_STOCK_CONVOLUTION = torch.ops.aten._convolution.default
_STOCK_BACKWARD = torch.ops.aten.convolution_backward.default
_tracing = torch._C._get_tracing_state
_FLAGS = (False, False, True, True)  # benchmark, deterministic, enabled and TF32 of cuDNN mean nothing on a CPU

_forward = Plans("convolution", plan_forward)
_backward = Plans("convolution_backward", plan_backward)
PLANS = (_forward, _backward)


def convolution(
    input, weight, bias, stride, padding, dilation, transposed, output_padding, groups, *flags: bool
) -> Tensor:
    """`aten::convolution` and `aten::_convolution` for dense CPU tensors."""
    key = (
        input.shape,
        input.stride(),
        input.dtype,
        weight.shape,
        weight.stride(),
        weight.dtype,
        bias is not None and (bias.shape, bias.stride(), bias.dtype),
        tuple(stride),
        tuple(padding),
        tuple(dilation),
        transposed,
        tuple(output_padding),
        groups,
        asked_arithmetic(),
    )
    job = _forward.get(key)
    if job is None and _tracing() is not None:  # `torch.jit.trace` records `_convolution`, and extents are tensors here
        return _STOCK_CONVOLUTION(
            input, weight, bias, stride, padding, dilation, transposed, output_padding, groups, *_FLAGS
        )
    if job is None and not (misaligned(input) or misaligned(weight) or (bias is not None and misaligned(bias))):
        job = _forward.learn(key, input, weight, bias, stride, padding, dilation, transposed, output_padding, groups)
    if type(job) is Job:
        first, second, third = input.data_ptr(), weight.data_ptr(), 0 if bias is None else bias.data_ptr()
        if not (first | second | third) & job.mask:
            return job(first, second, input, third)
        job = None
    _forward.leave(job)
    return _STOCK_CONVOLUTION.redispatch(
        _STOCK, input, weight, bias, stride, padding, dilation, transposed, output_padding, groups, *(flags or _FLAGS)
    )


def convolution_backward(
    grad_output, input, weight, bias_sizes, stride, padding, dilation, transposed, output_padding, groups, output_mask
) -> tuple[Tensor | None, Tensor | None, Tensor | None]:
    """`aten::convolution_backward` for dense CPU tensors: the gradients that output_mask asks for."""
    key = (
        grad_output.shape,
        grad_output.stride(),
        grad_output.dtype,
        input.shape,
        input.stride(),
        input.dtype,
        weight.shape,
        weight.stride(),
        weight.dtype,
        tuple(stride),
        tuple(padding),
        tuple(dilation),
        transposed,
        tuple(output_padding),
        groups,
        tuple(output_mask),
        asked_arithmetic(),
    )
    found = _backward.get(key)
    if found is None and not (misaligned(grad_output) or misaligned(input) or misaligned(weight)):
        found = _backward.learn(key, grad_output, input, weight, bias_sizes, stride, padding, dilation, transposed,
                                output_padding, groups, output_mask)  # fmt: skip
    if type(found) is Gradients:
        diff_dst, src, weights = grad_output.data_ptr(), input.data_ptr(), weight.data_ptr()
        if not (diff_dst | src | weights) & found.mask:
            data, of_weights, of_bias = found.data, found.weights, found.bias
            diff_bias, at = None, 0
            if found.channels:
                diff_bias = grad_output.new_empty_strided((found.channels,), (1,))
                at = diff_bias.data_ptr()
            elif of_bias is not None:
                diff_bias = of_bias(diff_dst, ONES[grad_output.dtype].data_ptr(), grad_output)
            return (
                None if data is None else data(diff_dst, weights, input),
                None if of_weights is None else of_weights(src, diff_dst, weight, at),
                diff_bias,
            )
        found = None
    _backward.leave(found)
    return _STOCK_BACKWARD.redispatch(
        _STOCK, grad_output, input, weight, bias_sizes, stride, padding, dilation, transposed, output_padding, groups,
        output_mask,
    )  # fmt: skip


KERNELS = {"convolution": convolution, "_convolution": convolution, "convolution_backward": convolution_backward}
