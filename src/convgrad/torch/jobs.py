"""What the convolutions of PyTorch come to: kernels for tensors of known shapes, strides and type, or a reason against.

The arguments are those of `aten::convolution` and `aten::convolution_backward`. Results have the strides that PyTorch's
own would have, since compiled programs count on them.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from convgrad.arrays.view import View
from convgrad.errors import ShapeError
from convgrad.torch import kernels
from convgrad.torch.kernels import DTYPES, TensorOperation, tensor_view
from convgrad.torch.results import allocator

Ints = Sequence[int]

ONES = {dtype: torch.ones((), dtype=dtype) for dtype in DTYPES}  # the x of BiasAddBackward, kept for good


class Job:
    """One kernel for tensors of known shapes, strides and type."""

    __slots__ = ("arrange", "calls", "empty_strided", "kernel", "mask", "name", "shape", "strides")

    def __init__(
        self,
        operation: TensorOperation,
        tensors: Sequence[Tensor],
        words: tuple,
        told: Ints | None,
        strides_of: Callable[[tuple[int, ...]], tuple[int, ...]],
        with_bias: bool = False,
    ):
        """Check, plan and compile; raises a ConvError for what the operation does not take.

        `with_bias` asks a weights gradient for the bias gradient as well, from one reading of diff_dst.
        """
        op = operation.op
        names = (*operation.schema.inputs, "bias")
        views = [tensor_view(op, name, tensor) for name, tensor in zip(names, tensors, strict=False)]
        self.name = f"{op} with BiasAddBackward" if with_bias else op
        self.shape = operation.output_shape([view.shape for view in views], words, told)
        if 0 in self.shape:
            raise ShapeError(f"{op}: {operation.schema.output} {list(self.shape)} has no elements; PyTorch knows why")
        self.strides = strides_of(self.shape)
        if op == "BiasAddBackward":
            views.append(tensor_view(op, "one", ONES[tensors[0].dtype]))
        dtype = views[0].dtype
        out = View(address=0, shape=self.shape, strides=self.strides, dtype=dtype, writeable=True, owner=None)
        attributes, shape = operation.attributes(words), None if told is None else self.shape
        record = operation.record(
            views, out, attributes, shape, dtype, False, "code", bias_stride=1 if with_bias else None
        )
        self.empty_strided = allocator(self.shape, tensors[0].dtype)
        self.kernel, self.arrange, self.mask = record.kernel, record.arrange, record.input_mask
        self.calls = 0

    def __call__(self, first: int, second: int, like: Tensor, bias: int = 0) -> Tensor:
        """The result for inputs at these addresses."""
        result = self.empty_strided(self.shape, self.strides, like.dtype)
        self.kernel(*self.arrange((first, second, result.data_ptr())), bias)
        self.calls += 1
        return result


@dataclass(slots=True)
class Gradients:
    """Those of the gradients that are asked for; that of the bias comes with that of the weights where both are."""

    data: Job | None
    weights: Job | None
    bias: Job | None
    channels: int  # of the bias gradient that comes with the weights, or 0
    mask: int  # bits that no address of the type has

    @property
    def parts(self) -> list[Job]:
        """Those that there are."""
        return [part for part in (self.data, self.weights, self.bias) if part is not None]


def misaligned(tensor: Tensor) -> bool:
    """Whether elements do not begin at multiples of their size, which no kernel can read."""
    return tensor.data_ptr() % tensor.element_size() != 0


def plan_forward(input, weight, bias, stride, padding, dilation, transposed, output_padding, groups) -> Job | str:
    """The kernel of `aten::convolution`, or why it is left to PyTorch."""
    tensors = (input, weight) if bias is None else (input, weight, bias)
    if why := _why_not(tensors, stride, dilation, transposed, output_padding):
        return why
    words = _words(input.dim() - 2, stride, padding, dilation, transposed, output_padding, groups)
    operation = kernels.CONV_TRANSPOSE if transposed else kernels.CONVOLUTION

    def strides_of(shape: tuple[int, ...]) -> tuple[int, ...]:
        memory_format = _memory_format(
            input, weight, bias=bias, stride=stride, padding=padding, dilation=dilation, transposed=transposed,
            output_padding=output_padding, groups=groups,
        )  # fmt: skip
        return _strides(shape, memory_format)

    return Job(operation, tensors, words, None, strides_of)


def plan_backward(
    grad_output, input, weight, bias_sizes, stride, padding, dilation, transposed, output_padding, groups, output_mask
) -> Gradients | str:
    """The kernels of `aten::convolution_backward`, or why it is left to PyTorch."""
    if why := _why_not((grad_output, input, weight), stride, dilation, transposed, output_padding):
        return why
    words = _words(input.dim() - 2, stride, padding, dilation, transposed, output_padding, groups)
    memory_format = _memory_format(
        input, weight, bias=None, bias_sizes=bias_sizes, stride=stride, padding=padding, dilation=dilation,
        transposed=transposed, output_padding=output_padding, groups=groups,
    )  # fmt: skip

    def strides_of(shape: tuple[int, ...]) -> tuple[int, ...]:
        return _strides(shape, memory_format)

    data = of_weights = of_bias = None
    if output_mask[0]:
        operation = kernels.CONV_TRANSPOSE_BACKWARD_DATA if transposed else kernels.CONVOLUTION_BACKWARD_DATA
        told = None if transposed else tuple(input.shape[2:])
        data = Job(operation, (grad_output, weight), words, told, strides_of)
        if data.shape != input.shape:
            return f"a gradient of {list(data.shape)} for an input of {list(input.shape)}"
    if output_mask[1]:
        operation = kernels.CONV_TRANSPOSE_BACKWARD_WEIGHTS if transposed else kernels.CONVOLUTION_BACKWARD_WEIGHTS
        of_weights = Job(operation, (input, grad_output), words, tuple(weight.shape[2:]), strides_of, output_mask[2])
        if of_weights.shape != weight.shape:
            return f"a gradient of {list(of_weights.shape)} for weights of {list(weight.shape)}"
    elif output_mask[2]:
        of_bias = Job(kernels.BIAS_ADD_BACKWARD, (grad_output,), (), None, lambda shape: (1,))
    channels = grad_output.shape[1] if output_mask[1] and output_mask[2] else 0
    return Gradients(data, of_weights, of_bias, channels, input.element_size() - 1)


def _why_not(tensors: Sequence[Tensor], stride, dilation, transposed, output_padding) -> str:
    """What PyTorch takes and convgrad does not, or takes and PyTorch would refuse; "" if there is nothing."""
    first, second = tensors[:2]
    if why := unfit(tensors):
        return why
    if first.dim() not in (3, 4, 5) or second.dim() != first.dim():
        return f"tensors of {first.dim()} and {second.dim()} axes"
    if any(tensor.numel() == 0 for tensor in tensors):
        return "a tensor without elements"
    if transposed and any(
        p >= max(s, d) for p, s, d in zip(*_equally_long(output_padding, stride, dilation), strict=True)
    ):
        return "an output_padding that is not smaller than stride or dilation"
    return ""


def unfit(tensors: Sequence[Tensor]) -> str:
    """What there is against tensors of any operator; "" if there is nothing."""
    dtypes = {tensor.dtype for tensor in tensors}
    if len(dtypes) > 1:
        return f"types {', '.join(sorted(map(str, dtypes)))} together"
    if tensors[0].dtype not in DTYPES:
        return f"type {tensors[0].dtype}"
    if any(tensor.layout is not torch.strided or not tensor.is_cpu for tensor in tensors):
        return "tensors that are not dense, on the CPU"
    return ""


def _words(rank: int, stride, padding, dilation, transposed, output_padding, groups) -> tuple:
    """The attributes of the operation: one entry for each axis, where PyTorch takes one for all."""
    stride, padding, dilation, output_padding = (
        tuple(values) * rank if len(values) == 1 else tuple(values)
        for values in (stride, padding, dilation, output_padding)
    )
    if transposed:
        return stride, padding, padding, output_padding, dilation, groups
    return stride, padding, padding, dilation, groups


def _equally_long(*lists: Ints) -> list[Ints]:
    longest = max(map(len, lists))
    return [list(values) * longest if len(values) == 1 else values for values in lists]


def _memory_format(input: Tensor, weight: Tensor, **words: Any) -> torch.memory_format:
    """The memory format of what PyTorch would compute, as its own fake tensors find it."""
    backend = torch._C._select_conv_backend(input, weight, **words)
    if weight.dim() == 3:
        input, weight = input.contiguous().unsqueeze(2), weight.unsqueeze(2)
    return torch._C._conv_determine_backend_memory_format(input, weight, backend)


def _strides(shape: Ints, memory_format: torch.memory_format) -> tuple[int, ...]:
    result = torch.empty(shape, device="meta")
    if result.dim() == 3 and memory_format is torch.channels_last:
        return result.unsqueeze(2).to(memory_format=memory_format).squeeze(2).stride()
    return result.to(memory_format=memory_format).stride()
