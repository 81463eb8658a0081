"""Convolution of PyTorch itself, computed by convgrad: `enable`, `disable`, `enabled`, `taken`.

Whatever way a program takes to a convolution, `torch.nn`, `torch.nn.functional`, a second derivative, autocast, vmap, a
compiled graph, it ends in two operators of ATen: `convolution` and `convolution_backward` (and `_convolution`, which
traced programs call). Both are one kernel for all backends; `enable` gives them another one for dense CPU tensors, and
`disable` takes it away. Autograd, autocast and all the rest stay PyTorch's.

What is left to PyTorch, because of its type, its shape or an error that PyTorch should word, goes to the kernel for all
backends, as it would have without `enable`.
"""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.library import Library

from convgrad.errors import ConvError
from convgrad.torch.jobs import ONES, Gradients, Job, misaligned, plan_backward, plan_forward
from convgrad.torch.precision import asked_mode
from convgrad.torch.results import KEEP_BYTES, checked, keep_while_taken, kept_while_taken

MOST_PLANS = 4096  # per operator; a program that makes up more geometries starts afresh

# The lookup for no backend finds the kernel for all of them, which is what the CPU had before.
_STOCK = torch._C.DispatchKeySet(torch._C.DispatchKey.Undefined)
_STOCK_CONVOLUTION = torch.ops.aten._convolution.default
_STOCK_BACKWARD = torch.ops.aten.convolution_backward.default
_tracing = torch._C._get_tracing_state
_FLAGS = (False, False, True, True)  # benchmark, deterministic, enabled and TF32 of cuDNN mean nothing on a CPU


@dataclass(frozen=True, slots=True)
class Taken:
    """Calls since `enable`; `print` says them."""

    operations: dict[str, int]  # name of an operation: how often it was computed here
    left: dict[tuple[str, str], int]  # operator of PyTorch, why it was left to it: how often

    def __str__(self) -> str:
        """A line for each operation, and for each reason."""
        lines = [f"{count} x {name}" for name, count in sorted(self.operations.items())] or ["nothing taken"]
        lines += [f"{count} x {name} left to PyTorch: {why}" for (name, why), count in sorted(self.left.items())]
        return "\n".join(lines)


class _Left:
    """Why something is left to PyTorch."""

    __slots__ = ("calls", "name", "why")

    def __init__(self, name: str, why: str):
        self.name, self.why, self.calls = name, why, 0


_forward: dict[tuple, Job | _Left] = {}
_backward: dict[tuple, Gradients | _Left] = {}
_gone: Counter = Counter()  # calls of plans that were dropped
_misaligned = {name: _Left(name, "not aligned to its elements") for name in ("convolution", "convolution_backward")}


def _convolution(
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
        asked_mode(),
    )
    job = _forward.get(key)
    if job is None and _tracing() is not None:  # `torch.jit.trace` records `_convolution`, and extents are tensors here
        return _STOCK_CONVOLUTION(
            input, weight, bias, stride, padding, dilation, transposed, output_padding, groups, *_FLAGS
        )
    if job is None and not (misaligned(input) or misaligned(weight) or (bias is not None and misaligned(bias))):
        job = _learn(_forward, key, plan_forward, input, weight, bias, stride, padding, dilation, transposed,
                     output_padding, groups)  # fmt: skip
    if type(job) is Job:
        first, second, third = input.data_ptr(), weight.data_ptr(), 0 if bias is None else bias.data_ptr()
        if not (first | second | third) & job.mask:
            return job(first, second, input, third)
        job = None
    _count(job, "convolution")
    return _STOCK_CONVOLUTION.redispatch(
        _STOCK, input, weight, bias, stride, padding, dilation, transposed, output_padding, groups, *(flags or _FLAGS)
    )


def _convolution_backward(
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
        asked_mode(),
    )
    found = _backward.get(key)
    if found is None and not (misaligned(grad_output) or misaligned(input) or misaligned(weight)):
        found = _learn(_backward, key, plan_backward, grad_output, input, weight, bias_sizes, stride, padding,
                       dilation, transposed, output_padding, groups, output_mask)  # fmt: skip
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
    _count(found, "convolution_backward")
    return _STOCK_BACKWARD.redispatch(
        _STOCK, grad_output, input, weight, bias_sizes, stride, padding, dilation, transposed, output_padding, groups,
        output_mask,
    )  # fmt: skip


def _count(left: _Left | None, name: str) -> None:
    """One more that is left to PyTorch; None stands for numbers that lie across their addresses."""
    left = left or _misaligned[name]
    left.calls += 1


def _learn(plans: dict, key: tuple, plan: Callable, *arguments: Any) -> Any:
    """Plan for tensors that were not seen before, and remember it."""
    name = "convolution" if plans is _forward else "convolution_backward"
    try:
        found = plan(*arguments)
    except ConvError as error:
        found = _Left(name, str(error))
    if isinstance(found, str):
        found = _Left(name, found)
    if len(plans) >= MOST_PLANS:
        _gone.update(_counts(plans))
        plans.clear()
    return plans.setdefault(key, found)


_library: Library | None = None
_lock = threading.Lock()


def enable(keep_bytes: int | None = None) -> None:
    """Compute the convolutions of CPU tensors in this process, and their gradients, with convgrad.

    Of f32, f64, bf16 and f16; the rest stays with PyTorch. Models, parameters and programs need no change. Call it
    while no other thread is inside a convolution.

    keep_bytes: when results of 8 MiB or more die, up to so many bytes of their memory are kept for results of the same
    size that follow, until `disable`; 512 MiB if not given, 0 keeps none. Such results cannot be enlarged by `resize_`.

    A second call changes nothing but keep_bytes, if given. Raises SettingError for what is not a whole number of bytes.
    """
    global _library
    if keep_bytes is not None:
        checked("keep_bytes", keep_bytes)
    with _lock:
        if _library is None or keep_bytes is not None:
            keep_while_taken(KEEP_BYTES if keep_bytes is None else keep_bytes)
        if _library is not None:
            return
        _forget_counts()
        library = Library("aten", "IMPL")
        for name, kernel in (
            ("convolution", _convolution),
            ("_convolution", _convolution),
            ("convolution_backward", _convolution_backward),
        ):
            library.impl(name, kernel, "CPU")
        _library = library


def disable() -> None:
    """Give convolution back to PyTorch, and memory that was kept. Without an `enable` before, it changes nothing."""
    global _library
    with _lock:
        if _library is not None:
            _library._destroy()
            _library = None
            keep_while_taken(0)


def is_enabled() -> bool:
    """Whether convolutions are computed here."""
    return _library is not None


@contextmanager
def enabled(keep_bytes: int | None = None) -> Iterator[None]:
    """`enable` for a block; afterwards it is as it was before. It holds for the whole process, not for a thread."""
    before, kept = is_enabled(), kept_while_taken()
    enable(keep_bytes)
    try:
        yield
    finally:
        if before:
            keep_while_taken(kept)
        else:
            disable()


def taken() -> Taken:
    """What was computed here since the last `enable` that changed something, and what was left to PyTorch and why."""
    counts = Counter(_gone)
    for plans in (_forward, _backward):
        counts.update(_counts(plans))
    for left in _misaligned.values():
        counts[left.name, left.why] += left.calls
    operations = {name: count for name, count in counts.items() if isinstance(name, str) and count}
    return Taken(operations, {name: count for name, count in counts.items() if isinstance(name, tuple) and count})


def _counts(plans: dict) -> Counter:
    """Calls by name of the operation, or by name and reason where PyTorch was left to do it."""
    counts: Counter = Counter()
    for found in list(plans.values()):
        for part in (found.data, found.weights, found.bias) if isinstance(found, Gradients) else (found,):
            if isinstance(part, _Left):
                counts[part.name, part.why] += part.calls
            elif part is not None:
                counts[part.name] += part.calls
    return counts


def _forget_counts() -> None:
    _gone.clear()
    for found in (*_forward.values(), *_backward.values(), *_misaligned.values()):
        for part in (found.data, found.weights, found.bias) if isinstance(found, Gradients) else (found,):
            if part is not None:
                part.calls = 0
