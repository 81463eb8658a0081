"""What a kernel needs to know of an array, whatever library it comes from."""

from __future__ import annotations

import ctypes
import sys
from collections.abc import Iterable
from typing import Any, NamedTuple

import numpy as np

from convgrad.dtypes import FLOATING, SIZES, dtype_name, numpy_dtype
from convgrad.errors import ArrayError, DtypeError

Ints = tuple[int, ...]

SHARING_EFFORT: Any = 100_000  # steps of the exact search for a common byte before two tensors count as overlapping


class View(NamedTuple):
    """Memory of a tensor on the CPU."""

    address: int  # of the element with all indices zero
    shape: Ints
    strides: Ints  # in elements
    dtype: str
    writeable: bool
    owner: Any  # keeps the memory alive

    @property
    def span(self) -> tuple[int, int]:
        """The bytes that the tensor lies in, relative to `address`: from the first to behind the last."""
        return span(self.shape, self.strides, SIZES[self.dtype])

    def as_numpy(self) -> np.ndarray:
        """An array on the same memory."""
        size = SIZES[self.dtype]
        low, high = self.span
        memory: Any = (ctypes.c_char * (high - low)).from_address(self.address + low)
        memory.owner = self.owner  # as long as the array lives
        strides = tuple(stride * size for stride in self.strides)
        return np.ndarray(self.shape, numpy_dtype(self.dtype), memory, -low, strides)


def span(shape: Ints, strides: Ints, itemsize: int) -> tuple[int, int]:
    """Bytes from the element with all indices zero to the first byte of a tensor, and to behind its last."""
    if 0 in shape:
        return 0, 0
    reach = [(extent - 1) * stride * itemsize for extent, stride in zip(shape, strides, strict=True)]
    return sum(r for r in reach if r < 0), sum(r for r in reach if r > 0) + itemsize


def dense_strides(shape: tuple[int, ...]) -> tuple[int, ...]:
    """Strides in elements of a C-contiguous tensor."""
    strides, step = [], 1
    for extent in reversed(shape):
        strides.append(step)
        step *= max(extent, 1)
    return tuple(reversed(strides))


def view(op: str, name: str, array: Any) -> View:
    """The memory of an input; an array that no kernel can address is copied."""
    if isinstance(array, np.ndarray):
        return _of_numpy(op, name, array, copy=True)
    return _of_dlpack(op, name, array)


def output_view(op: str, name: str, array: Any) -> View:
    """The memory of `out`, which must be addressable as it is, writeable, and must not overlap itself."""
    found = _of_numpy(op, name, array, copy=False) if isinstance(array, np.ndarray) else _of_dlpack(op, name, array)
    if not found.writeable:
        raise ArrayError(f"{op}: {name} is read-only, but the result is to be written to it; give a writeable array")
    if overlaps_itself(found.shape, found.strides):
        raise ArrayError(
            f"{op}: elements of {name} with shape {list(found.shape)} and strides {list(found.strides)} may share "
            "memory; give an array whose elements are apart"
        )
    return found


def overlaps_itself(shape: Ints, strides: Ints) -> bool:
    """Whether two elements may share memory: each stride must step over all that lies within the smaller ones."""
    if 0 in shape:
        return False
    reach = 0
    for stride, extent in sorted((abs(s), n) for s, n in zip(strides, shape, strict=True) if n > 1):
        if stride <= reach:
            return True
        reach += (extent - 1) * stride
    return False


def refuse_overlap(op: str, name: str, out: View, inputs: Iterable[tuple[str, View]]) -> None:
    """Raise if the output shares memory with an input: it is written while inputs are still being read."""
    for other, given in inputs:
        if share_memory(out, given):
            raise ArrayError(
                f"{op}: {name} and {other} share memory, but {name} is written while {other} is read; give an {name} "
                "of its own memory"
            )


def share_memory(one: View, two: View) -> bool:
    """Whether two tensors have a byte in common, as far as that can be told in bounded time; else it is assumed."""
    return _bounds_overlap(one, two) and _share_memory(one, two)


def _bounds_overlap(one: View, two: View) -> bool:
    (low, high), (other_low, other_high) = one.span, two.span
    return one.address + low < two.address + other_high and two.address + other_low < one.address + high


def _share_memory(one: View, two: View) -> bool:
    try:
        return np.shares_memory(one.as_numpy(), two.as_numpy(), max_work=SHARING_EFFORT)
    except np.exceptions.TooHardError:
        return True


def _of_numpy(op: str, name: str, array: np.ndarray, *, copy: bool) -> View:
    masked = sys.modules.get("numpy.ma")  # which numpy loads when it is first asked for, in 40 ms
    if masked is not None and isinstance(array, masked.MaskedArray):
        raise ArrayError(f"{op}: {name} is a masked array, whose mask would be lost; give a plain array")
    dtype = dtype_name(array.dtype)
    if dtype is None:
        hint = "; convert it to native byte order" if not array.dtype.isnative else ""
        raise DtypeError(f"{op}: {name} holds {array.dtype}, but must hold one of {', '.join(FLOATING)}{hint}")
    itemsize = array.dtype.itemsize
    if not array.flags.aligned or any(
        stride % itemsize for stride, extent in zip(array.strides, array.shape, strict=True) if extent > 1
    ):
        if not copy:
            raise ArrayError(
                f"{op}: {name} is not aligned to its elements of {itemsize} bytes, with strides of "
                f"{list(array.strides)} bytes; give an aligned array"
            )
        array = array.copy(order="C")
    return View(
        address=array.__array_interface__["data"][0],
        shape=array.shape,
        strides=tuple(stride // itemsize for stride in array.strides),
        dtype=dtype,
        writeable=array.flags.writeable,
        owner=array,
    )


def _of_dlpack(op: str, name: str, array: Any) -> View:
    if not hasattr(array, "__dlpack__"):
        raise ArrayError(
            f"{op}: {name} is of type {type(array).__name__}, which is neither a NumPy array nor speaks DLPack; "
            "convert it with numpy.asarray"
        )
    from convgrad.arrays import dlpack  # callers of NumPy alone need not load it

    return dlpack.read(op, name, array)
