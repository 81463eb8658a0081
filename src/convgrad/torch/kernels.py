"""From CPU tensors to compiled kernels: no autograd, no dispatcher, no copies.

Six operations of Φ and the gradient of a bias, in PyTorch's order of axes: activations (N, C, spatial...), weights
(OC, IC/groups, kernel...), transposed weights (IC, OC/groups, kernel...). Attributes are lists or tuples of one int per
spatial axis. Strides of tensors are read as they are; results are dense, activations in the memory format that
`layout.order_of_activations` tells, gradients of weights in `dim_order`.

Errors: every mistake of the caller is a `ConvError`, raised before anything is compiled or written.
"""

from __future__ import annotations

from collections.abc import Sequence
from marshal import dumps
from typing import Any

import torch
from torch import Tensor

from convgrad.arrays.call import MARSHAL_VERSION, MOST_RECORDS, Operation
from convgrad.arrays.record import Record
from convgrad.arrays.results import common_dtype, refuse_more_than_memory
from convgrad.arrays.view import View
from convgrad.dtypes import SIZES
from convgrad.errors import ArrayError, DtypeError, ShapeError
from convgrad.spec.resolve import resolve
from convgrad.torch.layout import activation_strides, order_of_activations, strides_in_order
from convgrad.torch.precision import asked_arithmetic
from convgrad.torch.results import allocator

Ints = Sequence[int]

DTYPES = {torch.float32: "f32", torch.bfloat16: "bf16", torch.float16: "f16", torch.float64: "f64"}

_CONVOLUTION = ("strides", "pads_begin", "pads_end", "dilations", "groups")
_TRANSPOSED = ("strides", "pads_begin", "pads_end", "output_padding", "dilations", "groups")


class Known:
    """What is left to do for tensors of known shapes, strides and types: `run`, a function, which is called faster."""

    __slots__ = ("kernel", "run")

    def __init__(self, record: Record, shape: tuple[int, ...], strides: tuple[int, ...], dtype: torch.dtype):
        self.kernel = record.kernel
        self.run = _runner(record, shape, strides, dtype)


def _runner(record: Record, shape: tuple[int, ...], strides: tuple[int, ...], dtype: torch.dtype):
    """A function of two tensors and a bias, or None for it.

    It gives the result, or None where there is no memory to be read, or elements lie across their addresses.
    """
    call, mask, empty_strided = record.kernel.__call__, record.input_mask, allocator(shape, dtype)
    x, w, y = record.arrange((0, 1, 2))  # which of the two tensors and the result each of them is

    def run(first: Tensor, second: Tensor, bias: Tensor | None) -> Tensor | None:
        one, other = first.data_ptr(), second.data_ptr()
        bias_at = 0 if bias is None else bias.data_ptr()
        if not one or not other or not (bias_at or bias is None) or (one | other | bias_at) & mask:
            return None
        result = empty_strided(shape, strides, dtype)
        at = one, other, result.data_ptr()
        call(at[x], at[w], at[y], bias_at)
        return result

    return run


class TensorOperation(Operation):
    """An operation on tensors; `words` of a call are the values of `names`, all of them."""

    def __init__(self, op: str, *names: str):
        weights = ("weights_format", "fpmath_mode") if names else ()
        super().__init__(op, *names, "data_format", *weights)
        self.count = len(names)
        self.weights_format = ("IOX" if op.startswith("ConvTranspose") else "OIX",) if weights else ()
        self.known: dict[tuple | None, Known] = {}  # by all that a call depends on

    def __call__(self, first: Tensor, second: Tensor, bias: Tensor | None, rest: Sequence[Any]) -> Tensor:
        """The result; `rest` is what the operator takes besides tensors, in its order.

        That is the spatial extents that a gradient cannot infer, the words, and the order of the axes of diff_weights
        in memory, as far as there are any.
        """
        key = self._key(first, second, bias, rest)
        known = self.known.get(key)
        if known is not None:
            result = known.run(first, second, bias)
            if result is not None:
                return result
        return self._first_time(key, first, second, bias, *self._divided(rest))

    def known_for(self, first: Tensor, second: Tensor, bias: Tensor | None, rest: Sequence[Any]) -> Known | None:
        """What is left to do for tensors like these, after a first call."""
        return self.known.get(self._key(first, second, bias, rest))

    def _key(self, first: Tensor, second: Tensor, bias: Tensor | None, rest: Sequence[Any]) -> tuple | None:
        try:
            return (
                first.shape,
                first.stride(),
                first.dtype,
                second.shape,
                second.stride(),
                second.dtype,
                dumps(rest, MARSHAL_VERSION),
                bias is not None and (bias.shape, bias.stride(), bias.dtype),
                asked_arithmetic(),
            )
        except (AttributeError, RuntimeError, ValueError):  # no tensor, one without strides, or not a plain sequence
            return None

    def _divided(self, rest: Sequence[Any]) -> tuple[tuple, Ints | None, Ints]:
        """Words, the extents that were told, and the order of axes."""
        start = 1 if self.schema.shape_attribute else 0
        stop = start + self.count
        told = tuple(rest[0]) if start else None
        return tuple(rest[start:stop]), told, rest[stop] if len(rest) > stop else ()

    def attributes(self, words: tuple) -> tuple:
        """`words`, the order of axes, and the fpmath_mode that is asked for."""
        return (*words, "NCX", *((*self.weights_format, asked_arithmetic()) if self.weights_format else ()))

    def output_shape(self, shapes: Sequence[Ints], words: tuple, told: Ints | None = None) -> tuple[int, ...]:
        """The shape of the result, from those of the inputs; raises for everything that does not fit."""
        plain = [tuple(shape) for shape in shapes]
        if self.op.startswith("ConvTranspose"):
            self._refuse_other_convention(plain, words)
        if told is not None and self.schema.output == "diff_weights":
            told = self._weights_shape(plain, words[-1], told)
        attributes = self._attributes(self.attributes(words), len(plain[0]) - 2)
        return resolve(self.op, attributes, plain, shape_input=told).output_shape

    def _weights_shape(self, shapes: list[tuple[int, ...]], groups: int, kernel: Ints) -> tuple[int, ...]:
        """(OC, IC/groups, kernel...), transposed (IC, OC/groups, kernel...)."""
        src, diff_dst = (shape[1] if len(shape) > 1 else 0 for shape in shapes)
        full, divided = (src, diff_dst) if self.schema.family == "transposed" else (diff_dst, src)
        return (full, divided // max(groups, 1), *kernel)

    def _refuse_other_convention(self, shapes: list[tuple[int, ...]], words: tuple) -> None:
        """The specification's pages divide IC by groups, not OC, and extents tell; PyTorch's weights never do."""
        groups, weights = words[-1], shapes[1]
        if self.op == "ConvTransposeBackwardWeights" or groups == 1 or min(map(len, shapes[:2])) < 2:
            return
        name, channels = self.schema.inputs[0], shapes[0][1]
        letter, held = ("OC", weights[1] * groups) if name == "diff_dst" else ("IC", weights[0])
        if channels != held:
            raise ShapeError(
                f"{self.op}: {name} has {channels} channels, but weights {list(weights)}, that is (IC, OC/groups, "
                f"kernel...) with groups = {groups}, make {letter} = {held}; check the order of the axes and groups"
            )

    def _first_time(self, key, first, second, bias, words, told, order) -> Tensor:
        """Check everything, compile, run, and remember."""
        op = self.op
        names = (*self.schema.inputs, "bias")
        tensors = [first, second] if len(self.schema.inputs) == 2 else [first]
        if bias is not None:
            tensors.append(bias)
        inputs = [(name, tensor_view(op, name, tensor)) for name, tensor in zip(names, tensors, strict=False)]
        dtype = common_dtype(op, inputs)
        views = [given for _, given in inputs]
        out_shape = self.output_shape([v.shape for v in views], words, told)
        refuse_more_than_memory(op, self.schema.output, out_shape, dtype)
        strides = self._strides(views, out_shape, order)
        result = allocator(out_shape, first.dtype)(out_shape, strides, first.dtype)
        if op == "BiasAddBackward":
            views.append(tensor_view(op, "one", second))
        out = View(
            address=result.data_ptr(), shape=out_shape, strides=strides, dtype=dtype, writeable=True, owner=result
        )
        record = self.record(views, out, self.attributes(words), told and out_shape, dtype, False, "code")
        if record.kernel is not None:
            addresses = (views[0].address, views[1].address, out.address)
            record.kernel(*record.arrange(addresses), 0 if bias is None else views[2].address)
        if key is not None and record.kernel is not None:
            if len(self.known) >= MOST_RECORDS:
                self.known.clear()
            self.known[key] = Known(record, out_shape, strides, first.dtype)
        return result

    def _strides(self, views: Sequence[View], shape: tuple[int, ...], order: Ints) -> tuple[int, ...]:
        if self.schema.output == "diff_weights":
            return strides_in_order(shape, order)
        if self.schema.output == "diff_bias":
            return (1,)
        given, weights = views[:2]
        return activation_strides(
            shape, order_of_activations(given.shape, given.strides, weights.shape, weights.strides)
        )


def tensor_view(op: str, name: str, tensor: Any) -> View:
    """The memory of a tensor; raises for one that kernels cannot address."""
    if not isinstance(tensor, Tensor):
        raise ArrayError(f"{op}: {name} is of type {type(tensor).__name__}; give a torch.Tensor")
    if tensor.device.type != "cpu":
        raise ArrayError(f"{op}: {name} is on the device {tensor.device}; move it with .cpu() first")
    if tensor.is_nested:
        raise ArrayError(f"{op}: {name} is nested; give {name}.to_padded_tensor(0), or its tensors one by one")
    if tensor.is_quantized:
        raise ArrayError(f"{op}: {name} is quantized ({tensor.dtype}); give {name}.dequantize()")
    if tensor.layout != torch.strided:
        raise ArrayError(f"{op}: {name} has the layout {tensor.layout}; give {name}.to_dense()")
    dtype = DTYPES.get(tensor.dtype)
    if dtype is None:
        known = ", ".join(str(known) for known in DTYPES)
        raise DtypeError(f"{op}: {name} holds {tensor.dtype}, but must hold one of {known}; convert it with .to()")
    if tensor.is_neg():
        raise ArrayError(f"{op}: {name} is the negative view of another tensor; give {name}.resolve_neg()")
    address = tensor.data_ptr()
    if address % SIZES[dtype]:
        raise ArrayError(f"{op}: {name} is not aligned to its elements of {SIZES[dtype]} bytes; give {name}.clone()")
    return View(
        address=address,
        shape=tuple(tensor.shape),
        strides=tensor.stride(),
        dtype=dtype,
        writeable=True,
        owner=tensor,
    )


_ones = {dtype: torch.ones((), dtype=dtype) for dtype in DTYPES}  # the x of BiasAddBackward, kept for good

CONVOLUTION = TensorOperation("Convolution", *_CONVOLUTION)
CONVOLUTION_BACKWARD_DATA = TensorOperation("ConvolutionBackwardData", *_CONVOLUTION)
CONVOLUTION_BACKWARD_WEIGHTS = TensorOperation("ConvolutionBackwardWeights", *_CONVOLUTION)
CONV_TRANSPOSE = TensorOperation("ConvTranspose", *_TRANSPOSED)
CONV_TRANSPOSE_BACKWARD_DATA = TensorOperation("ConvTransposeBackwardData", *_TRANSPOSED)
CONV_TRANSPOSE_BACKWARD_WEIGHTS = TensorOperation("ConvTransposeBackwardWeights", *_TRANSPOSED)
BIAS_ADD_BACKWARD = TensorOperation("BiasAddBackward")


def convolution(src: Tensor, weights: Tensor, bias: Tensor | None, *words: Any) -> Tensor:
    """Convolution; words are strides, pads_begin, pads_end, dilations, groups."""
    return CONVOLUTION(src, weights, bias, words)


def convolution_backward_data(diff_dst: Tensor, weights: Tensor, *rest: Any) -> Tensor:
    """ConvolutionBackwardData; rest are the spatial extents of the result, and the words of `convolution`."""
    return CONVOLUTION_BACKWARD_DATA(diff_dst, weights, None, rest)


def convolution_backward_weights(src: Tensor, diff_dst: Tensor, *rest: Any) -> Tensor:
    """ConvolutionBackwardWeights; rest are the spatial extents of the kernel, words, and the result's order in memory.

    The order may be left out.
    """
    return CONVOLUTION_BACKWARD_WEIGHTS(src, diff_dst, None, rest)


def conv_transpose(src: Tensor, weights: Tensor, bias: Tensor | None, *words: Any) -> Tensor:
    """ConvTranspose; words are strides, pads_begin, pads_end, output_padding, dilations, groups."""
    return CONV_TRANSPOSE(src, weights, bias, words)


def conv_transpose_backward_data(diff_dst: Tensor, weights: Tensor, *words: Any) -> Tensor:
    """ConvTransposeBackwardData; words as in `conv_transpose`, whose extents diff_dst must have."""
    return CONV_TRANSPOSE_BACKWARD_DATA(diff_dst, weights, None, words)


def conv_transpose_backward_weights(src: Tensor, diff_dst: Tensor, *rest: Any) -> Tensor:
    """ConvTransposeBackwardWeights; as `convolution_backward_weights`, with the words of `conv_transpose`."""
    return CONV_TRANSPOSE_BACKWARD_WEIGHTS(src, diff_dst, None, rest)


def bias_add_backward(diff_dst: Tensor) -> Tensor:
    """BiasAddBackward: the sum over every axis but that of the channels."""
    return BIAS_ADD_BACKWARD(diff_dst, _ones.get(diff_dst.dtype, diff_dst), None, ())
