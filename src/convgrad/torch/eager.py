"""The short way to an operator, where the dispatcher would have nothing to decide.

A call through the dispatcher turns every list into one of C++ and back, which takes longer than a small layer. Where
the tensors are plain ones on the CPU, and nothing that PyTorch can put between a call and its kernel is active (modes,
transforms, autocast, tracing, a profiler), what it would arrive at is known.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch.nn import Parameter

_included, _excluded = torch._C._dispatch_tls_local_include_set, torch._C._dispatch_tls_local_exclude_set
_function_modes = torch._C._len_torch_function_stack
_profiles = torch.autograd._profiler_enabled
_compiles = torch.compiler.is_compiling

_strided = torch.strided
_types = (Tensor, Parameter)
_not_tensors = (type(None), list, tuple, torch.Size)
# Of a thread in which nothing is switched on. A program that imports us inside a mode merely goes the long way.
_nothing_on = (_included().raw_repr(), _excluded().raw_repr())


def short_way(op: Callable[..., Tensor], autograd: Callable[..., Tensor]) -> Callable[..., Tensor]:
    """A function that calls `autograd` without dispatch keys where it may, and the operator anywhere else.

    It takes what the operator takes, by position.
    """

    def call(first: Tensor, *rest: Any) -> Tensor:
        if (
            not _compiles()
            and type(first) in _types
            and not _function_modes()
            and not _profiles()
            and (_included().raw_repr(), _excluded().raw_repr()) == _nothing_on
            and first.is_cpu
            and first.layout is _strided
            and first.data_ptr()  # 0 of what stands for numbers that lie elsewhere, or nowhere
            and not first.is_neg()
        ):
            for other in rest[:2]:  # where operators have their other tensors
                kind = type(other)
                if kind in _types:
                    if not other.is_cpu or other.layout is not _strided or not other.data_ptr() or other.is_neg():
                        break
                elif kind not in _not_tensors:
                    break
            else:
                return autograd(None, first, *rest)
        return op(first, *rest)

    return call
