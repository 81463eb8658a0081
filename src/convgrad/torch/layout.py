"""Memory formats: how results lie in memory, from how the given tensors do.

Everything here is arithmetic on shapes and strides, so that it gives the same for real tensors and for symbolic ones.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache
from typing import Any

Ints = Sequence[Any]  # of int, or of torch.SymInt while a program is traced


def is_channels_last(shape: Ints, strides: Ints) -> bool:
    """Whether channels are the innermost axis of a tensor (N, C, spatial...), for any number of spatial axes.

    Where extents of one leave it open, PyTorch's rule decides: strides as `to(memory_format=...)` makes them tell the
    formats apart, and what still fits both is not channels last.
    """
    least = 0
    for axis in (1, *range(len(shape) - 1, 1, -1), 0):
        if shape[axis] == 0 or strides[axis] < least or (axis == 0 and least == strides[1]):
            return False
        least = strides[axis] * shape[axis] if shape[axis] > 1 else strides[axis]
    return True


def tells_no_format(shape: Ints, strides: Ints) -> bool:
    """Whether strides fit both formats: one element per image or per channel, or one number that is expanded."""
    return shape[1] == 1 or all(n == 1 for n in shape[2:]) or all(s == 0 for s in strides)


def order_of_activations(shape: Ints, strides: Ints, weights_shape: Ints, weights_strides: Ints) -> bool:
    """Whether the result of a data operation is channels last: like the activations given, else like the weights."""
    if is_channels_last(shape, strides):
        return True
    return tells_no_format(shape, strides) and is_channels_last(weights_shape, weights_strides)


def activation_strides(shape: Ints, channels_last: bool) -> tuple[Any, ...]:
    """Strides of a dense tensor (N, C, spatial...)."""
    return strides_in_order(shape, (0, *range(2, len(shape)), 1) if channels_last else ())


def strides_in_order(shape: Ints, order: Sequence[int]) -> tuple[Any, ...]:
    """Strides of a dense tensor whose axes lie in this order, outermost first; () is the order of the shape."""
    strides, step = [1] * len(shape), 1
    for axis in reversed(order or range(len(shape))):
        strides[axis] = step
        step = step * (shape[axis] if shape[axis] > 1 else 1)
    return tuple(strides)


def dim_order(tensor: Any) -> tuple[int, ...]:
    """The order of the axes of a tensor in memory, outermost first; () if it is the order of its shape.

    `strides_in_order` gives the strides of a dense tensor again, those of axes with one element, too: such an axis has
    the stride of what lies inside of it, so where two have the same stride it is the inner one.
    """
    try:
        return _known_order(tensor.shape, tensor.stride())
    except TypeError:  # symbolic numbers have no hash, and are never one
        return () if tensor.is_contiguous() else _order(tensor.stride(), (False,) * tensor.dim())


@lru_cache(4096)
def _known_order(shape: tuple[int, ...], strides: tuple[int, ...]) -> tuple[int, ...]:
    return _order(strides, [n == 1 for n in shape])


def _order(strides: Ints, ones: Sequence[bool]) -> tuple[int, ...]:
    order = tuple(sorted(range(len(strides)), key=lambda axis: (-strides[axis], ones[axis])))
    return () if order == tuple(range(len(strides))) else order
