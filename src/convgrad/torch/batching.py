"""Batches of `torch.func.vmap`: folded into images, channels or groups, never a loop.

In Φ = Σ x[n, g, c] · w[g, k, c] · y[n, g, k] a further index b of two of the three factors joins the letter that they
share: n of x and y, c of x and w, k of w and y. If all three have it, it joins g.
"""

from __future__ import annotations

from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import torch
from torch import Tensor

# What the tensors and the result of an operator are in Φ, and at which place the number of groups stands
ROLES = {
    "convolution": "xwy",
    "convolution_backward_data": "ywx",
    "convolution_backward_weights": "xyw",
    "conv_transpose": "ywx",
    "conv_transpose_backward_data": "xwy",
    "conv_transpose_backward_weights": "yxw",
}
SHARED = {frozenset("xy"): "n", frozenset("xw"): "c", frozenset("wy"): "k"}
WITH_BIAS = ("convolution", "conv_transpose")
WITH_ORDER = ("convolution_backward_weights", "conv_transpose_backward_weights")


def register(library: torch.library.Library) -> None:
    """Give every operator its rule under vmap."""
    for name in ROLES:
        torch.library.register_vmap(f"convgrad::{name}", _of_none_too(_rule(name)), lib=library)
    torch.library.register_vmap("convgrad::bias_add_backward", _of_none_too(_bias_rule), lib=library)


def _of_none_too(rule: Callable[..., tuple[Tensor, int]]) -> Callable[..., tuple[Tensor, int]]:
    """The rule, for batches of no element as well: no element of one of zeros, with its shape and its derivatives."""

    def whole(info, in_dims, *args):
        if info.batch_size:
            return rule(info, in_dims, *args)
        given = [
            _with_zeros(arg, dim) if isinstance(dim, int) else arg for arg, dim in zip(args, in_dims, strict=False)
        ]
        one = SimpleNamespace(batch_size=1, randomness=info.randomness)
        result, at = rule(one, in_dims, *given, *args[len(given) :])
        return result.narrow(at, 0, 0), at

    return whole


def _with_zeros(tensor: Tensor, dim: int) -> Tensor:
    return torch.cat((tensor, tensor.new_zeros([*tensor.shape[:dim], 1, *tensor.shape[dim + 1 :]])), dim)


def _rule(name: str):
    op = getattr(torch.ops.convgrad, name).default
    first_role, second_role, role = ROLES[name]

    def rule(info, in_dims, first, second, *rest):
        batch = info.batch_size
        bias, tail = (rest[0], rest[1:]) if name in WITH_BIAS else (None, rest)
        groups_at = len(tail) - 1 if name not in WITH_ORDER or len(tail) == len(in_dims) else _groups_at(tail)
        groups = tail[groups_at]
        bias_dim = in_dims[2] if name in WITH_BIAS else None
        has_first, has_second = in_dims[0] is not None, in_dims[1] is not None
        if has_first and has_second:
            letter = "g"
        elif has_first or has_second:
            letter = SHARED[frozenset((first_role if has_first else second_role, role))]
        else:  # the bias alone
            letter = ""
        first, second = (
            _fold(role, letter, tensor.movedim(dim, 0), groups) if dim is not None else tensor
            for role, tensor, dim in ((first_role, first, in_dims[0]), (second_role, second, in_dims[1]))
        )
        if letter == "g":
            tail = (*tail[:groups_at], groups * batch, *tail[groups_at + 1 :])
        inner, added = _bias(letter, bias, bias_dim, batch, groups)
        result = op(first, second, inner, *tail) if name in WITH_BIAS else op(first, second, *tail)
        if letter:
            result = _unfold(role, letter, result, batch, groups)
        if added is not None:
            ones = (1,) * (result.dim() - (3 if letter else 2))
            result = (result if letter else result.unsqueeze(0)) + added.reshape(batch, 1, -1, *ones)
        return result, 0

    return rule


def _groups_at(tail: tuple[Any, ...]) -> int:
    """Groups are the only number among the words."""
    return next(at for at, word in enumerate(tail) if not isinstance(word, list | tuple))


def _fold(role: str, letter: str, tensor: Tensor, groups: int) -> Tensor:
    """(b, ...) without its first axis, which joins a letter."""
    batch, *shape = tensor.shape
    if letter == "n":
        return tensor.reshape(batch * shape[0], *shape[1:])
    if role == "w":
        rows, columns, *taps = shape
        if letter == "g":
            return tensor.reshape(batch * rows, columns, *taps)
        if letter == "c":
            return tensor.movedim(0, 1).reshape(rows, batch * columns, *taps)
        return tensor.reshape(batch, groups, rows // groups, columns, *taps).transpose(0, 1).reshape(-1, columns, *taps)
    n, channels, *extents = shape
    if letter == "g":
        return tensor.movedim(0, 1).reshape(n, batch * channels, *extents)
    split = tensor.reshape(batch, n, groups, channels // groups, *extents)
    return split.movedim(0, 2).reshape(n, batch * channels, *extents)


def _unfold(role: str, letter: str, tensor: Tensor, batch: int, groups: int) -> Tensor:
    """The inverse of `_fold`."""
    shape = tensor.shape
    if letter == "n":
        return tensor.reshape(batch, shape[0] // batch, *shape[1:])
    if role == "w":
        rows, columns, *taps = shape
        if letter == "g":
            return tensor.reshape(batch, rows // batch, columns, *taps)
        if letter == "c":
            return tensor.reshape(rows, batch, columns // batch, *taps).movedim(1, 0)
        split = tensor.reshape(groups, batch, rows // (batch * groups), columns, *taps).transpose(0, 1)
        return split.reshape(batch, rows // batch, columns, *taps)
    n, channels, *extents = shape
    if letter == "g":
        return tensor.reshape(n, batch, channels // batch, *extents).movedim(1, 0)
    split = tensor.reshape(n, groups, batch, channels // (batch * groups), *extents)
    return split.movedim(2, 0).reshape(batch, n, channels // batch, *extents)


def _bias(letter: str, bias, dim: int | None, batch: int, groups: int) -> tuple[Tensor | None, Tensor | None]:
    """The bias that the operator adds, and one that is left to add: images of one call share theirs."""
    if bias is None:
        return None, None
    if dim is not None:
        bias = bias.movedim(dim, 0)
        if letter in ("", "n"):
            return None, bias
    elif letter == "n":
        return bias, None
    else:
        bias = bias.expand(batch, -1)
    if letter == "g":
        return bias.reshape(-1), None
    return bias.reshape(batch, groups, -1).transpose(0, 1).reshape(-1), None


def _bias_rule(info, in_dims, diff_dst: Tensor):
    """Batches are further channels."""
    folded = _fold("y", "g", diff_dst.movedim(in_dims[0], 0), 1)
    return torch.ops.convgrad.bias_add_backward.default(folded).reshape(info.batch_size, -1), 0
