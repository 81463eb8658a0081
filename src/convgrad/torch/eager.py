"""The short way to an operator, where the dispatcher would have nothing to decide.

A call through the dispatcher turns every list into one of C++ and back, which takes longer than a small layer. Where
the tensors are plain ones on the CPU, and nothing that PyTorch can put between a call and its kernel is active (modes,
transforms, autocast, tracing, a profiler), what it would arrive at is known.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from marshal import dumps
from typing import Any

import torch
from torch import Tensor
from torch.autograd import forward_ad
from torch.nn import Parameter

from convgrad.arrays.call import MARSHAL_VERSION
from convgrad.torch.kernels import Known, TensorOperation
from convgrad.torch.precision import asked_arithmetic

MOST_SHAPES = 6  # that are looked through for one choice of words

_included, _excluded = torch._C._dispatch_tls_local_include_set, torch._C._dispatch_tls_local_exclude_set
_guards = torch._C._dynamo.guards.TensorGuards
_dispatch_modes = torch._C._len_torch_dispatch_stack
_function_modes = torch._C._len_torch_function_stack
_profiles = torch.autograd._profiler_enabled
_compiles = torch.compiler.is_compiling

_strided = torch.strided
_types = (Tensor, Parameter)
_not_tensors = (type(None), list, tuple, torch.Size)
# Of a thread in which nothing is switched on. A program that imports us inside a mode merely goes the long way.
_nothing_on = (_included().raw_repr(), _excluded().raw_repr())


def short_way(
    op: Callable[..., Tensor], autograd: Callable[..., Tensor], again: Callable[..., Tensor | None]
) -> Callable[..., Tensor]:
    """A function that calls `autograd` without dispatch keys where it may, and the operator anywhere else.

    It takes what the operator takes, by position. `autograd` and `again` take dispatch keys first, here None, with
    which `again` gives the result where it knows the call, else None.
    """

    def call(first: Tensor, *rest: Any) -> Tensor:
        if _compiles() or _function_modes() or _profiles():
            return op(first, *rest)
        result = again(None, first, *rest)
        if result is not None:
            return result
        if (
            type(first) in _types
            and (_included().raw_repr(), _excluded().raw_repr()) == _nothing_on
            and _lies_in_memory(first)
        ):
            for other in rest[:2]:  # where operators have their other tensors
                kind = type(other)
                if kind in _types:
                    if not _lies_in_memory(other):
                        break
                elif kind not in _not_tensors:
                    break
            else:
                return autograd(None, first, *rest)
        return op(first, *rest)

    return call


def _lies_in_memory(tensor: Tensor) -> bool:
    """Whether the numbers of a tensor are at its address."""
    if not tensor.is_cpu or tensor.layout is not _strided or tensor.is_neg():
        return False
    try:
        return tensor.data_ptr() != 0  # 0 of what stands for numbers that lie elsewhere, or nowhere
    except RuntimeError:  # what a transform of torch.func leaves in the graph of its result has no memory of its own
        return False


class Shortcuts:
    """Calls of one operator that came before: `again` tells by one look whether another one is like them.

    The look is that of compiled graphs: type, dispatch keys under what is switched on in this thread, number type,
    shape, strides, and `requires_grad` of all tensors at once. It does not see whether gradients are switched off.
    """

    def __init__(self, operation: TensorOperation):
        self.operation = operation
        self.found: dict[tuple, list[tuple[Callable[..., bool], Known, bool, bool]]] = {}

    def again(self, apply: Callable[..., Tensor], otherwise: Callable[..., Tensor], *, has_bias: bool):
        """A function of dispatch keys and what the operator takes, which gives the result of a known call.

        Of other calls it gives `otherwise` of the same arguments, or None if there are no dispatch keys. If a gradient
        is wanted, `apply` is called with (known, the rest of the arguments), first, second and bias. Everything is in
        one function on purpose: each further call would be a twentieth of what it costs.
        """
        found, is_grad_enabled = self.found, torch.is_grad_enabled
        # Words of operators with a bias come from the dispatcher as lists of whole numbers, never symbolic ones. They
        # may be compared as they are: it takes a fifth of encoding them, and layers in a row are mostly alike in this.
        latest: tuple[Any, ...] = (None, False, None, ())

        def again(keyset: Any, first: Tensor, second: Tensor, *rest: Any) -> Tensor | None:
            nonlocal latest
            bias, words = (rest[0], rest[1:]) if has_bias else (None, rest)
            result, mode = None, asked_arithmetic()
            its_words, without_bias, its_mode, alike = latest
            comparable = has_bias and keyset is not None
            if not comparable or words != its_words or (bias is None) is not without_bias or mode != its_mode:
                try:
                    alike = found.get((dumps(words, MARSHAL_VERSION), bias is None, mode), ())
                except ValueError:  # symbolic numbers
                    alike = ()
                if comparable and alike:
                    latest = words, bias is None, mode, alike
            if (
                alike
                and forward_ad._current_level < 0
                and not _dispatch_modes()
                and not getattr(first, "is_nested", True)  # the look at nested ones would end the process
                and not getattr(second, "is_nested", True)
            ):
                for check, known, trains, switched_off in alike:
                    if switched_off and is_grad_enabled():
                        continue
                    if check(first, second) if bias is None else check(first, second, bias):
                        result = apply((known, rest), first, second, bias) if trains else known.run(first, second, bias)
                        break
            return result if result is not None or keyset is None else otherwise(keyset, first, second, *rest)

        return again

    def learn(self, first: Tensor, second: Tensor, bias: Tensor | None, words: Sequence[Any], *, trains: bool) -> None:
        """Remember a call that went the ordinary way to the end."""
        known = self.operation.known_for(first, second, bias, words)
        if known is None or _dispatch_modes():
            return
        alike = self.found.setdefault((dumps(words, MARSHAL_VERSION), bias is None, asked_arithmetic()), [])
        tensors = (first, second) if bias is None else (first, second, bias)
        sizes, strides = [list(each.shape) for each in tensors], [list(each.stride()) for each in tensors]
        look = _guards(*tensors, dynamic_dims_sizes=sizes, dynamic_dims_strides=strides)
        switched_off = not trains and any(each.requires_grad for each in tensors)
        alike[:] = [*alike[1 - MOST_SHAPES :], (look.check, known, trains, switched_off)]  # the oldest make room
