"""The operators `torch.ops.convgrad.*`: what they are called with, and what each dispatch key makes of it.

CPU         the kernels
Meta        shapes and strides of the results, for fake tensors and symbolic sizes (`shapes.py`)
Autograd    derivatives of any order, which are operators of this family (`derivatives.py`)
Autocast    both operands of the forward operations in the type of the region
vmap        a batch folded into images, channels or groups (`batching.py`)
others      a ConvError that says what to do
"""

from __future__ import annotations

import torch
from torch import Tensor
from torch.library import Library

from convgrad.errors import ArrayError
from convgrad.torch import kernels, shapes

NAMESPACE = "convgrad"
LIBRARY = Library(NAMESPACE, "DEF")

_CONVOLUTION = "int[] strides, int[] pads_begin, int[] pads_end, int[] dilations, int groups"
_TRANSPOSED = "int[] strides, int[] pads_begin, int[] pads_end, int[] output_padding, int[] dilations, int groups"
_KERNEL = "Tensor src, Tensor diff_dst, SymInt[] kernel"
_ORDER = "int[] dim_order=[]"

SCHEMAS = {
    "convolution": f"Tensor src, Tensor weights, Tensor? bias, {_CONVOLUTION}",
    "convolution_backward_data": f"Tensor diff_dst, Tensor weights, SymInt[] src_spatial, {_CONVOLUTION}",
    "convolution_backward_weights": f"{_KERNEL}, {_CONVOLUTION}, {_ORDER}",
    "conv_transpose": f"Tensor src, Tensor weights, Tensor? bias, {_TRANSPOSED}",
    "conv_transpose_backward_data": f"Tensor diff_dst, Tensor weights, {_TRANSPOSED}",
    "conv_transpose_backward_weights": f"{_KERNEL}, {_TRANSPOSED}, {_ORDER}",
    "bias_add_backward": "Tensor diff_dst",
}
FORWARD = ("convolution", "conv_transpose")
# Strides of results follow from strides of inputs, so a compiler must hand tensors over as it showed them to us.
_TAGS = tuple(
    getattr(torch.Tag, name) for name in ("pt2_compliant_tag", "needs_exact_strides") if hasattr(torch.Tag, name)
)


def _define() -> None:
    for name, arguments in SCHEMAS.items():
        LIBRARY.define(f"{name}({arguments}) -> Tensor", tags=_TAGS)
        LIBRARY.impl(name, getattr(kernels, name), "CPU")
        LIBRARY.impl(name, _refuse(name), "CompositeExplicitAutograd")
        torch.library.register_fake(f"{NAMESPACE}::{name}", getattr(shapes, name), lib=LIBRARY)
    for name in FORWARD:
        LIBRARY.impl(name, _autocast(getattr(torch.ops.convgrad, name).default), "AutocastCPU")


def _refuse(name: str):
    """What runs for tensors of a backend without kernels: they are looked at one by one, and one of them is refused."""
    operation = getattr(kernels, name.upper())

    def refuse(*args):
        named = zip((*operation.schema.inputs, "bias"), args, strict=False)
        for argument, tensor in named:
            if isinstance(tensor, Tensor):
                kernels.tensor_view(operation.op, argument, tensor)
        raise ArrayError(f"{operation.op}: tensors of type {type(args[0]).__name__} have no kernel; give plain tensors")

    return refuse


def _autocast(op):
    """Operands in the type of the autocast region; f64 stays as it is, as in PyTorch's own convolutions."""
    without = torch._C.DispatchKeySet(torch._C.DispatchKey.AutocastCPU)

    def cast(src, weights, bias, *words):
        dtype = torch.get_autocast_dtype("cpu")

        def lower(tensor):
            if tensor is None or not tensor.is_floating_point() or tensor.dtype is torch.float64:
                return tensor
            return tensor.to(dtype)

        with torch._C._ExcludeDispatchKeyGuard(without):
            return op(lower(src), lower(weights), lower(bias), *words)

    return cast


_define()

from convgrad.torch import batching, derivatives, flops  # noqa: E402  they need the operators to be defined

derivatives.register(LIBRARY)
batching.register(LIBRARY)
flops.register()

# Functions with the signatures of the operators, which small layers should prefer to `torch.ops.convgrad`

convolution = derivatives.call.convolution
convolution_backward_data = derivatives.call.convolution_backward_data
convolution_backward_weights = derivatives.call.convolution_backward_weights
conv_transpose = derivatives.call.conv_transpose
conv_transpose_backward_data = derivatives.call.conv_transpose_backward_data
conv_transpose_backward_weights = derivatives.call.conv_transpose_backward_weights
bias_add_backward = derivatives.call.bias_add_backward
