"""Memory for results, from PyTorch's allocator."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from math import prod

import torch
from torch import Tensor

from convgrad.runtime.memory import on_huge_pages

Ints = Sequence[int]

# What compiled graphs allocate with: it goes past the dispatcher, and takes half the time of torch.empty_strided
empty_strided: Callable[[Ints, Ints, torch.dtype], Tensor] = torch._C._dynamo.guards._empty_strided_cpu

FRESH_BYTES = 32 << 20  # glibc's malloc maps blocks from here on anew each time, and keeps smaller ones


def allocator(shape: Ints, dtype: torch.dtype) -> Callable[[Ints, Ints, torch.dtype], Tensor]:
    """`empty_strided`, or the same on huge pages for results that the system hands out page by page.

    Gradients of that size are dropped and made anew in every step of a training; touching 32 MiB of small pages for the
    first time takes longer than computing what goes there.
    """
    return _empty_on_huge_pages if prod(shape) * dtype.itemsize >= FRESH_BYTES else empty_strided


def _empty_on_huge_pages(shape: Ints, strides: Ints, dtype: torch.dtype) -> Tensor:
    result = empty_strided(shape, strides, dtype)
    on_huge_pages(result.data_ptr(), result.untyped_storage().nbytes())
    return result
