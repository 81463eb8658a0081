"""Derivatives: each operator is linear in each tensor, and what multiplies the other is an operator again.

Φ = Σ x · w · y, and every operator is ∂Φ of one factor, so its derivatives are ∂Φ of the other two. Nothing is
computed, and nothing is kept, for a gradient that nobody asked for.
"""

from __future__ import annotations

from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import torch
from torch import Tensor
from torch._functorch.utils import enable_single_level_autograd_function
from torch.autograd import forward_ad
from torch.autograd.function import Function, _SingleLevelFunction

from convgrad.torch import kernels
from convgrad.torch.eager import Shortcuts, short_way
from convgrad.torch.kernels import Known
from convgrad.torch.layout import dim_order
from convgrad.values import frozen

_below_autograd = torch._C._after_autograd_keyset
_view_tracking = torch._C.DispatchKeySet(torch._C.DispatchKey.ADInplaceOrView)
# Dispatch keys that come after autograd, and what they are for plain CPU tensors: nothing but the kernel
_REMAINING = _below_autograd.raw_repr() & ~_view_tracking.raw_repr()
_PLAIN = torch._C.DispatchKeySet(torch._C.DispatchKey.CPU).raw_repr()
call = SimpleNamespace()  # all operators by name, by the shortest way


@frozen
class Rule:
    """The derivatives of an operator (first, second, *rest).

    Functions take the gradient of the result, the other tensor, the shape and the axes' order in memory of the tensor
    whose gradient they return, and the words: strides, pads_begin, pads_end, then output_padding of transposed
    operations, dilations, groups.
    """

    of_first: Callable[..., Tensor]
    of_second: Callable[..., Tensor]
    words: slice  # where in `rest` the words are
    has_bias: bool = False


def _rules() -> dict[str, Rule]:
    return {
        "convolution": Rule(
            of_first=lambda diff, w, shape, order, words: call.convolution_backward_data(diff, w, shape[2:], *words),
            of_second=lambda diff, x, shape, order, words: call.convolution_backward_weights(
                x, diff, shape[2:], *words, order
            ),
            words=slice(1, None),
            has_bias=True,
        ),
        "convolution_backward_data": Rule(
            of_first=lambda diff, w, shape, order, words: call.convolution(diff, w, None, *words),
            of_second=lambda diff, y, shape, order, words: call.convolution_backward_weights(
                diff, y, shape[2:], *words, order
            ),
            words=slice(1, None),
        ),
        "convolution_backward_weights": Rule(
            of_first=lambda diff, y, shape, order, words: call.convolution_backward_data(y, diff, shape[2:], *words),
            of_second=lambda diff, x, shape, order, words: call.convolution(x, diff, None, *words),
            words=slice(1, 6),
        ),
        "conv_transpose": Rule(
            of_first=lambda diff, w, shape, order, words: call.conv_transpose_backward_data(diff, w, *words),
            of_second=lambda diff, y, shape, order, words: call.conv_transpose_backward_weights(
                y, diff, shape[2:], *words, order
            ),
            words=slice(1, None),
            has_bias=True,
        ),
        "conv_transpose_backward_data": Rule(
            of_first=lambda diff, w, shape, order, words: call.conv_transpose(diff, w, None, *words),
            of_second=lambda diff, x, shape, order, words: call.conv_transpose_backward_weights(
                diff, x, shape[2:], *words, order
            ),
            words=slice(0, None),
        ),
        "conv_transpose_backward_weights": Rule(
            of_first=lambda diff, x, shape, order, words: call.conv_transpose_backward_data(x, diff, *words),
            of_second=lambda diff, y, shape, order, words: call.conv_transpose(y, diff, None, *words),
            words=slice(1, 7),
        ),
    }


def register(library: torch.library.Library) -> None:
    """Give every operator its rule under autograd, of reverse and of forward mode, and `call` all operators."""
    functions = {name: _bilinear(name, rule) for name, rule in _rules().items()}
    linear = _linear("bias_add_backward")
    functions["bias_add_backward"] = linear, lambda keyset, *args: None if keyset is None else linear(keyset, *args)
    for name, (function, again) in functions.items():
        library.impl(name, again, "Autograd", with_keyset=True)
        setattr(call, name, short_way(getattr(torch.ops.convgrad, name).default, function, again))


def _below(name: str) -> Callable[..., Tensor]:
    """What runs an operator on whatever comes after autograd.

    For plain CPU tensors that is the kernel, which is called here and now: another round through the dispatcher would
    cost more than a small layer.
    """
    kernel = getattr(kernels, name)
    op = getattr(torch.ops.convgrad, name).default

    def run(keyset, *args):
        if keyset is None or keyset.raw_repr() & _REMAINING == _PLAIN:
            return kernel(*args)
        # An autograd function switches gradients off, but transforms that come further down may want theirs.
        with torch._C._AutoDispatchBelowAutograd(), torch.enable_grad(), forward_ad._set_fwd_grad_enabled(True):
            return op.redispatch(keyset & _below_autograd, *args)

    return run


def _bilinear(name: str, rule: Rule) -> tuple[Callable[..., Tensor], Callable[..., Tensor | None]]:
    """An operator with its derivatives, and the same where an earlier call like this one is looked for first."""
    run, shortcuts = _below(name), Shortcuts(getattr(kernels, name.upper()))
    op = getattr(torch.ops.convgrad, name).default
    words, has_bias = rule.words, rule.has_bias
    is_grad_enabled = torch.is_grad_enabled

    # What is no tensor comes in one tuple: autograd looks at every argument of a function, and wants a None for each.
    def forward(ctx, known, first, second, bias):
        by, rest = known
        _, needs_first, needs_second, _ = ctx.needs_input_grad
        if needs_second:
            ctx.save_for_backward(first, second if needs_first else None)
            ctx.known = tuple(first.shape), tuple(second.shape), dim_order(second), rest[words]
        else:
            ctx.save_for_backward(None, second if needs_first else None)
            ctx.known = tuple(first.shape), None, None, rest[words]
        result = by.run(first, second, bias) if type(by) is Known else None
        if result is None:
            rest = (bias, *rest[1:]) if has_bias else rest
            result = run(None if type(by) is Known else by, first, second, *rest)
        return result

    def backward(ctx, diff):
        first, second = ctx.saved_tensors
        first_shape, second_shape, order, words = ctx.known
        _, needs_first, needs_second, needs_bias = ctx.needs_input_grad
        diff_first = diff_second = diff_bias = None
        if needs_first:
            diff_first = rule.of_first(diff, second, first_shape, (), words)
        if needs_second:
            diff_second = rule.of_second(diff, first, second_shape, order, words)
        if needs_bias:
            diff_bias = call.bias_add_backward(diff)
        return None, diff_first, diff_second, diff_bias

    # Autograd below the transforms of torch.func, which come here once for each of their levels
    apply = type(f"{name}_autograd", (_SingleLevelFunction,), _static(forward, backward)).apply

    def autograd(keyset, first, second, *rest):
        bias, others = (rest[0], rest[1:]) if has_bias else (None, rest)
        if _may_be_dual():
            primals, tangents = _unpacked(first, second, bias)
            if any(tangent is not None for tangent in tangents):
                # What backward finds there are the dual tensors, whose gradients have tangents of their own.
                with forward_ad._set_fwd_grad_enabled(False):
                    result = op(first, second, *rest)
                return forward_ad.make_dual(
                    result, _tangent(op, has_bias, primals, tangents, rest, result.shape), level=0
                )
        trains = is_grad_enabled() and (
            first.requires_grad or second.requires_grad or (bias is not None and bias.requires_grad)
        )
        result = _apply(apply, (keyset, rest), first, second, bias) if trains else run(keyset, first, second, *rest)
        if keyset is None or keyset.raw_repr() & _REMAINING == _PLAIN:
            shortcuts.learn(first, second, bias, others, trains=trains)
        return result

    return autograd, shortcuts.again(apply, autograd, has_bias=has_bias)


def _linear(name: str):
    """Of BiasAddBackward: the gradient of a sum is the same number everywhere."""
    run = _below(name)
    op = getattr(torch.ops.convgrad, name).default

    def forward(ctx, keyset, diff_dst):
        ctx.shape = diff_dst.shape
        return run(keyset, diff_dst)

    def backward(ctx, diff):
        ones = (1,) * (len(ctx.shape) - 2)
        return None, diff.reshape(1, -1, *ones).expand(ctx.shape)

    function = type(f"{name}_autograd", (_SingleLevelFunction,), _static(forward, backward))

    def autograd(keyset, diff_dst):
        if _may_be_dual():
            (primal,), (tangent,) = _unpacked(diff_dst)
            if tangent is not None:
                return forward_ad.make_dual(op(primal), op(tangent), level=0)
        if torch.is_grad_enabled() and diff_dst.requires_grad:
            return _apply(function.apply, keyset, diff_dst)
        return run(keyset, diff_dst)

    return autograd


def _apply(apply, *args):
    """An autograd function on tensors of one level of transforms, or of none."""
    if torch._C._are_functorch_transforms_active():
        with enable_single_level_autograd_function():
            return apply(*args)
    return apply(*args)


def _static(forward, backward) -> dict[str, Any]:
    """What an autograd function consists of; compiled autograd asks each one for its key."""
    return {
        "forward": staticmethod(forward),
        "backward": staticmethod(backward),
        "_compiled_autograd_key": staticmethod(Function._compiled_autograd_key),
    }


def _may_be_dual() -> bool:
    """Whether tensors may have tangents; compiled graphs of `torch.func.jvp` enter the level, the only one, untold."""
    return forward_ad._current_level >= 0 or torch._C._are_functorch_transforms_active()


def _unpacked(*tensors: Tensor | None) -> tuple[list, list]:
    """Primals and tangents; None for those that have none."""
    pairs = [(None, None) if tensor is None else tuple(forward_ad.unpack_dual(tensor, level=0)) for tensor in tensors]
    return [primal for primal, _ in pairs], [tangent for _, tangent in pairs]


def _tangent(op, has_bias: bool, primals: list, tangents: list, rest: tuple, shape: torch.Size) -> Tensor:
    """The product rule: op(dx, w) + op(x, dw) + db."""
    (first, second, _), (d_first, d_second, d_bias) = primals, tangents
    tail = (None, *rest[1:]) if has_bias else rest
    terms = []
    if d_first is not None:
        terms.append(op(d_first, second, *tail))
    if d_second is not None:
        terms.append(op(first, d_second, *tail))
    if d_bias is not None:
        terms.append(d_bias.reshape(1, -1, *(1,) * (len(shape) - 2)).expand(shape))
    return sum(terms[1:], terms[0])
