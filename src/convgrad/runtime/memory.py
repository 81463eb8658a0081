"""Memory that kernels work in: aligned, and used again by later calls."""

from __future__ import annotations

import ctypes
import mmap
from collections.abc import Sequence
from functools import cache
from typing import Any

import numpy as np

from convgrad.dtypes import numpy_dtype

ALIGNMENT = 4096  # a page: more than the 64 bytes that stages ask for, so that speed does not depend on malloc's mood
BEHIND = 32 << 10  # bytes behind a block that are there: kernels ask for what they read next, and at the end for more
KEEP_BYTES = 512 << 20  # a larger block goes back to the system after its call
KEEP_BLOCKS = 64

# By what blocks hold, f32 or f64, or words of two numbers of 16 bits. Append and pop are atomic; the block used last is
# the warmest and goes out first.
_free: tuple[list[Workspace], list[Workspace]] = ([], [])


class Workspace:
    """A block of memory whose first byte is at an aligned address. It holds zeros, or what earlier calls left there.

    Lanes that nobody wants are multiplied, too. Memory of malloc's that held addresses makes subnormal numbers of them,
    with which a kernel takes up to forty times as long; so do words of two numbers, of which the upper one is zero, and
    kernels that leave some have blocks of their own. Where nothing is behind a block, or nothing yet in it, each line
    that is asked for there costs hundreds of cycles on some processors, and a kernel takes up to twelve times as long.
    """

    __slots__ = ("_owner", "address", "size")

    def __init__(self, size: int) -> None:
        """Take memory from the system; a failure says how much was asked for."""
        try:
            self._owner = np.zeros(size + ALIGNMENT + BEHIND, np.uint8)
        except MemoryError:
            raise MemoryError(f"a kernel needs {size} bytes ({size / 2**20:.1f} MiB) of workspace") from None
        start = self._owner.ctypes.data
        self.address = (start + ALIGNMENT - 1) // ALIGNMENT * ALIGNMENT
        self.size = size
        self._owner[:: mmap.PAGESIZE] = 0  # the system gives a page when it is written to
        self._owner[-1] = 0


NOTHING = Workspace(0)  # stands in where a kernel needs none


def acquire(size: int, words: bool = False) -> Workspace:
    """A block of at least `size` bytes that nobody else holds, for a kernel that leaves `words` in it or does not."""
    try:
        block = _free[words].pop()
    except IndexError:
        return Workspace(size)
    return block if block.size >= size else Workspace(size)  # the smaller one is dropped: sizes settle at the largest


def release(block: Workspace, words: bool = False) -> None:
    """Give a block back."""
    if block.size <= KEEP_BYTES and len(_free[words]) < KEEP_BLOCKS:
        _free[words].append(block)


def clear() -> None:
    """Return all blocks that are not in use to the system."""
    for blocks in _free:
        blocks.clear()


def held_bytes() -> int:
    """Bytes kept for later calls."""
    return sum(block.size for blocks in _free for block in blocks)


def spoil(address: int, shape: Sequence[int], strides: Sequence[int], dtype: str) -> None:
    """NaN in every element of a result that cannot be completed, so that nobody takes it for one.

    `address` is that of the element with all indices zero; strides count elements.
    """
    kind = numpy_dtype(dtype)
    reach = [(extent - 1) * step * kind.itemsize for extent, step in zip(shape, strides, strict=True)]
    low, high = sum(r for r in reach if r < 0), sum(r for r in reach if r > 0) + kind.itemsize
    held: Any = (ctypes.c_char * (high - low)).from_address(address + low)
    np.ndarray(tuple(shape), kind, held, -low, tuple(step * kind.itemsize for step in strides))[...] = np.nan


def on_huge_pages(address: int, size: int) -> None:
    """Advise the system to back memory that nobody has touched yet with huge pages, where it knows such advice.

    Small pages cost an interruption each when they are first written to. What the memory holds does not change.
    """
    page, advise = mmap.PAGESIZE, _madvise()
    first, last = -(-address // page) * page, (address + size) // page * page
    if advise is not None and first < last:
        advise(first, last - first, mmap.MADV_HUGEPAGE)


@cache
def _madvise() -> Any:
    """The function of the C library; None on systems other than Linux."""
    if not hasattr(mmap, "MADV_HUGEPAGE"):
        return None
    function = ctypes.CDLL(None).madvise
    function.argtypes = (ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int)
    return function
