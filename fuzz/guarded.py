"""Memory between guards that nobody may touch, for the arrays of a call and for the workspace of its kernel.

A block lies flush against one of its two guards, so that the first byte read or written beyond that end stops the
process, and a wrong stride, too. What lies between the block and the other guard is a redzone, which is looked at after
the call.
"""

from __future__ import annotations

import ctypes
import mmap
import threading
from collections.abc import Sequence

import numpy as np

from convgrad.arrays.view import span
from convgrad.runtime import driver, memory

PAGE = mmap.PAGESIZE
GUARD = 4 * 1024 * 1024  # bytes on each side, which are addresses only
UNTOUCHED = 0xFF  # NaN in every floating type, so that what is read from it shows in the result

_libc = ctypes.CDLL(None, use_errno=True)
_libc.mmap.restype = ctypes.c_void_p
_libc.mmap.argtypes = [ctypes.c_void_p, ctypes.c_size_t, *[ctypes.c_int] * 3, ctypes.c_long]
_libc.munmap.argtypes = [ctypes.c_void_p, ctypes.c_size_t]
_libc.mprotect.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int]
_NONE, _READ, _WRITE = 0, 1, 2  # PROT_*
_PRIVATE, _ANONYMOUS = 2, 0x20  # MAP_*, of Linux


class Block:
    """`size` bytes between two guards, flush against the upper one, or against the lower one with `low`."""

    def __init__(self, size: int, *, low: bool = False) -> None:
        """All bytes are `UNTOUCHED`."""
        self.size = size
        self._inside = max(-(-size // PAGE), 1) * PAGE
        self._length = self._inside + 2 * GUARD
        base = _libc.mmap(None, self._length, _READ | _WRITE, _PRIVATE | _ANONYMOUS, -1, 0)
        if base in (None, ctypes.c_void_p(-1).value):
            raise MemoryError(f"{self._length} bytes cannot be mapped")
        self._base = base
        _protect(base, GUARD, _NONE)
        _protect(base + GUARD + self._inside, GUARD, _NONE)
        self._first = base + GUARD
        self.address = self._first if low else self._first + self._inside - size
        ctypes.memset(self._first, UNTOUCHED, self._inside)

    def __del__(self) -> None:
        if getattr(self, "_base", None):
            _libc.munmap(self._base, self._length)

    @property
    def whole(self) -> np.ndarray:
        """Every byte between the guards."""
        return np.ctypeslib.as_array((ctypes.c_uint8 * self._inside).from_address(self._first))

    @property
    def offset(self) -> int:
        """Of the block within `whole`."""
        return self.address - self._first

    def freeze(self) -> None:
        """Let nobody write from now on."""
        _protect(self._first, self._inside, _READ)

    def redzone_is_whole(self) -> bool:
        """Whether nothing was written beside the block."""
        whole = self.whole
        return bool((whole[: self.offset] == UNTOUCHED).all() and (whole[self.offset + self.size :] == UNTOUCHED).all())


class GuardedArray:
    """An array of any strides in elements, negative ones and zeros included, in a block that just holds it."""

    def __init__(self, shape: Sequence[int], strides: Sequence[int], dtype: np.dtype, *, low: bool = False) -> None:
        """All elements, and what lies between them, are NaN."""
        first, last = span(tuple(shape), tuple(strides), dtype.itemsize)
        self.block = Block(last - first, low=low)
        self._memory = (ctypes.c_uint8 * (last - first)).from_address(self.block.address)
        steps = tuple(step * dtype.itemsize for step in strides)
        self.array = np.ndarray(tuple(shape), dtype, self._memory, -first, steps)

    def untouched_beside(self) -> bool:
        """Whether no byte but those of the elements differs from what it was at first."""
        held = self.array.copy()
        self.array.view(_bits(self.array.dtype))[...] = -1
        whole = bool((self.block.whole == UNTOUCHED).all())
        self.array[...] = held
        return whole


def _bits(dtype: np.dtype) -> np.dtype:
    return np.dtype(f"i{dtype.itemsize}")


def _protect(address: int, length: int, rights: int) -> None:
    if _libc.mprotect(address, length, rights):
        raise OSError(ctypes.get_errno(), "mprotect refused")


class GuardedWorkspace:
    """Puts the workspace of every kernel between guards, filled with NaN, for as long as it is entered.

    The memory that all threads of a call share, and the slices of scratch, become blocks of their own. With one thread
    there is one slice, and both its ends are guarded.
    """

    def __init__(self) -> None:
        """Nothing happens before it is entered."""
        self.low = False  # blocks are flush against their lower guard
        self.blocks = 0  # how many there were
        self.broken: list[str] = []  # what was found beside them
        self._mine = threading.local()

    def __enter__(self) -> GuardedWorkspace:
        self._plain = memory.acquire, memory.release, driver.pack_into
        memory.acquire, memory.release, driver.pack_into = self._acquire, self._release, self._pack
        return self

    def __exit__(self, *_: object) -> None:
        memory.acquire, memory.release, driver.pack_into = self._plain

    def _acquire(self, size: int, words: bool = False) -> Block:
        self.blocks += 1
        self._mine.parts = [Block(size, low=self.low)]
        return self._mine.parts[0]

    def _pack(self, record, at, x, w, y, bias, shared, scratch, *rest) -> None:
        """Split what the kernel takes for one block in two."""
        parts = getattr(self._mine, "parts", [])
        if parts and parts[0].address == shared and shared < scratch < shared + parts[0].size:
            size = parts[0].size
            parts[:] = [Block(scratch - shared, low=self.low), Block(shared + size - scratch, low=self.low)]
            shared, scratch = (part.address for part in parts)
        self._plain[2](record, at, x, w, y, bias, shared, scratch, *rest)

    def _release(self, block: Block, words: bool = False) -> None:
        for name, part in zip(("shared memory", "scratch"), self._mine.parts, strict=False):
            if not part.redzone_is_whole():
                self.broken.append(f"something was written beside the {name} of {part.size} bytes")
        self._mine.parts = []
