"""Memory for results, from PyTorch's allocator; large ones may take what earlier ones of their size left.

A step of a training makes the gradients and activations of the step before anew. malloc maps large blocks from the
system each time, which hands them out page by page, each at the price of an interruption and of zeroing it; to touch
32 MiB in this way takes longer than to compute what goes there.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from math import prod

import torch
from torch import Tensor

from convgrad.errors import SettingError
from convgrad.runtime.memory import on_huge_pages
from convgrad.torch.kept import Store, empty_strided

Ints = Sequence[int]

LARGE_BYTES = 8 << 20  # of results whose memory is worth being kept: mapped, or at the end of what malloc trims
FRESH_BYTES = 32 << 20  # glibc's malloc maps blocks from here on anew each time
KEEP_BYTES = 512 << 20  # that `enable` keeps unless told otherwise


def allocator(shape: Ints, dtype: torch.dtype) -> Callable[[Ints, Ints, torch.dtype], Tensor]:
    """`empty_strided`, or the same from the store while that keeps memory of this size."""
    size = prod(shape) * dtype.itemsize
    if size < LARGE_BYTES:
        return empty_strided

    def large(shape: Ints, strides: Ints, dtype: torch.dtype) -> Tensor:
        if size <= STORE.limit:
            return STORE.empty_strided(shape, strides, dtype, size)
        result = empty_strided(shape, strides, dtype)
        _advise(result, size)
        return result

    return large


def keep_results(most_bytes: int) -> None:
    """Keep the memory of large results when they die, at most so many bytes, for results of the same size that follow.

    `enable` does it while convolutions are taken over. This is for programs that call the functions of `convgrad.torch`
    or its layers, or take over only some of their steps. 0 gives all back and keeps nothing more, as at the beginning;
    results that are alive stay as they are. Raises SettingError for what is not a whole number of bytes.
    """
    _limits["program"] = checked("most_bytes", most_bytes)
    _apply()


def keep_while_taken(most_bytes: int) -> None:
    """Keep so many bytes, or what `keep_results` says if that is more."""
    _limits["enable"] = most_bytes
    _apply()


def kept_while_taken() -> int:
    """What `keep_while_taken` was told last."""
    return _limits["enable"]


def checked(name: str, count: int) -> int:
    """A number of bytes that a program gave."""
    if not isinstance(count, int) or isinstance(count, bool) or count < 0:
        raise SettingError(f"{name} is {count!r}; it takes a whole number of bytes, 0 or more")
    return count


def _apply() -> None:
    STORE.resize(max(_limits.values()))


def _fresh(size: int) -> Tensor:
    memory = empty_strided((size,), (1,), torch.uint8)
    _advise(memory, size)
    return memory


def _advise(memory: Tensor, size: int) -> None:
    if size >= FRESH_BYTES:
        on_huge_pages(memory.data_ptr(), size)


STORE = Store(_fresh)
_limits = {"program": 0, "enable": 0}
if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=STORE.after_fork)
