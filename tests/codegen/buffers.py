"""Memory for kernels under test, where every step beyond the edge shows.

A buffer lies flush against memory that nobody may touch, so much of it that wrong strides end there, too; what lies on
its other side, and between the elements of an array, is looked at afterwards. Every byte is 0xFF at first: NaN in all
floating types, so that a number which was never written, or read from a place that holds none, shows in the result.
"""

import ctypes
import mmap
from functools import cache
from math import prod

import numpy as np

PAGE = mmap.PAGESIZE
GUARD = 4 * 1024 * 1024  # bytes on each side, which are addresses only
FILL = 0xFF
_PROT_NONE = 0


@cache
def _mprotect():
    """The system's call; where there is none, edges are redzones only."""
    mprotect = getattr(ctypes.CDLL(None) if hasattr(mmap, "PROT_READ") else None, "mprotect", None)
    if mprotect is None:
        return lambda *_: 0
    mprotect.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int]
    return mprotect


def _protect(address, length):
    assert _mprotect()(address, length, _PROT_NONE) == 0


class Buffer:
    """`size` bytes, flush against the guard page above, or below with `low`."""

    def __init__(self, size, *, low=False):
        inside = -(-size // PAGE) * PAGE + PAGE  # at least a page of redzone on the other side
        mapped = mmap.mmap(-1, inside + 2 * GUARD)
        everything = np.frombuffer(mapped, np.uint8)
        base = everything.ctypes.data
        self.inside = everything[GUARD : GUARD + inside]  # keeps the mapping alive
        self.inside[:] = FILL
        self.start = 0 if low else inside - size
        self.bytes = self.inside[self.start : self.start + size]
        self.address = base + GUARD + self.start
        _protect(base, GUARD)
        _protect(base + GUARD + inside, GUARD)

    def redzone_is_whole(self):
        """Whether nothing was written beside the buffer."""
        size = len(self.bytes)
        return bool(np.all(self.inside[: self.start] == FILL) and np.all(self.inside[self.start + size :] == FILL))


class StridedArray:
    """An array of any strides, in elements, in a buffer that just holds it; `address` is that of element zero."""

    def __init__(self, shape, strides, dtype, *, low=False):
        dtype = np.dtype(dtype)
        reach = [step * (extent - 1) for extent, step in zip(shape, strides, strict=True)] if prod(shape) else []
        first, last = sum(r for r in reach if r < 0), sum(r for r in reach if r > 0)
        count = last - first + 1 if prod(shape) else 0
        self.buffer = Buffer(count * dtype.itemsize, low=low)
        steps = tuple(step * dtype.itemsize for step in strides)
        self.zero = -first * dtype.itemsize
        self.view = np.ndarray(shape, dtype, self.buffer.bytes.data, self.zero, steps)
        self.address = self.buffer.address + self.zero

    def only_elements_changed(self):
        """Whether the bytes between the elements, and beside them, are as they were at first."""
        held = self.view.copy()
        self.view.view(f"u{self.view.dtype.itemsize}")[...] = np.iinfo(f"u{self.view.dtype.itemsize}").max
        whole = bool(np.all(self.buffer.inside == FILL))
        self.view[...] = held
        return whole
