"""What functions of PyTorch do to split tensors: a table from function to rule.

A rule takes the function, its positional and its keyword arguments, as PyTorch's dispatch hands them over.
"""

from __future__ import annotations

import operator
from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from convgrad.errors import ArrayError, ShapeError
from convgrad.torch.distributed.exchange import shared
from convgrad.torch.distributed.tensor import SplitTensor

Rule = Callable[[Callable, tuple, dict], Any]

_RULES: dict[Any, Rule] = {}


def rule_of(func: Callable) -> Rule | None:
    """The rule of a function, None if there is none."""
    return _RULES.get(getattr(func, "overloadpacket", func))


def takes(*functions: Any) -> Callable[[Rule], Rule]:
    """Register the rule of some functions."""

    def register(rule: Rule) -> Rule:
        _RULES.update(dict.fromkeys(functions, rule))
        return rule

    return register


# --- element by element


@takes(
    torch.add, torch.sub, torch.mul, torch.div, torch.pow, torch.neg, torch.abs, torch.exp, torch.log, torch.sqrt,
    torch.square, torch.clamp, torch.maximum, torch.minimum, torch.where, torch.lerp,
    torch.relu, torch.relu_, F.relu, F.relu6, F.leaky_relu, F.elu, F.selu, F.celu, F.silu, F.mish, F.gelu, F.softplus,
    F.hardswish, F.hardtanh, F.hardsigmoid, F.tanh, torch.tanh, F.sigmoid, torch.sigmoid,
    operator.add, operator.sub, operator.mul, operator.truediv, operator.pow, operator.neg,
    Tensor.add, Tensor.sub, Tensor.mul, Tensor.div,  # of a tensor and a split one
    F.dropout, F.alpha_dropout, torch.zeros_like, torch.ones_like, torch.rand_like, torch.randn_like,
)  # fmt: skip
def _elementwise(func: Callable, args: tuple, kwargs: dict) -> SplitTensor:
    one = _alike(func, args, kwargs)
    kept = (one.ndim - one.split_dim, one.extent)

    def local(value: Any) -> Any:
        if isinstance(value, SplitTensor):
            return value.local
        if isinstance(value, Tensor):
            place, extent = kept
            if value.dim() >= place and value.shape[-place] != 1:
                raise ShapeError(
                    f"{func.__name__}: a tensor {list(value.shape)} that is not split meets {one!r}; split it as well "
                    f"if its axis {value.dim() - place} is that of {extent} elements, else give it extent 1 there"
                )
            return shared(value, one.group)
        return value

    return one.with_local(func(*map(local, args), **{name: local(value) for name, value in kwargs.items()}))


@takes(torch.prelu)
def _prelu(func: Callable, args: tuple, kwargs: dict) -> SplitTensor:
    one, weight = args
    return one.with_local(func(one.local, shared(weight, one.group)))


@takes(torch.cat, torch.concat, torch.concatenate)
def _cat(func: Callable, args: tuple, kwargs: dict) -> SplitTensor:
    tensors, dim = _cat_arguments(*args, **kwargs)
    one = _alike(func, tuple(tensors), {})
    whole = [tensor for tensor in tensors if not isinstance(tensor, SplitTensor)]
    if whole or dim % one.ndim == one.split_dim:
        raise ArrayError(
            f"cat: joins split tensors along axes other than {one.split_dim}, which is split; "
            + ("one of these is not split" if whole else f"dim is {dim}")
        )
    return one.with_local(torch.cat([tensor.local for tensor in tensors], dim))


# --- sums over everything


@takes(torch.sum, torch.mean)
def _reduction(func: Callable, args: tuple, kwargs: dict) -> Tensor:
    if len(args) != 1 or kwargs:
        raise ArrayError(f"{func.__name__}: of split tensors only over all axes; gather() first, or map()")
    return args[0].sum() if func is torch.sum else args[0].mean()


@takes(F.mse_loss, F.l1_loss, F.smooth_l1_loss, F.binary_cross_entropy_with_logits)
def _loss(func: Callable, args: tuple, kwargs: dict) -> Any:
    how = kwargs.pop("reduction", "mean")
    loss = _elementwise(func, args, {**kwargs, "reduction": "none"})
    return loss if how == "none" else loss.sum() if how == "sum" else loss.mean()


def _cat_arguments(tensors: Any, dim: int = 0) -> tuple[Any, int]:
    return tensors, dim


def _alike(func: Callable, args: tuple, kwargs: dict) -> SplitTensor:
    """One of the split tensors, all of which have to be split alike."""
    found = [value for value in (*args, *kwargs.values()) if isinstance(value, SplitTensor)]
    one = found[0]

    def cut(tensor: SplitTensor) -> tuple:
        return tensor.ndim, tensor.split_dim, tensor.boundaries, tensor.group

    for other in found[1:]:
        if cut(one) != cut(other):
            raise ShapeError(
                f"{func.__name__}: {one!r} and {other!r} are not split alike; give both the same axis, extent, "
                "proportions and group"
            )
    return one
