"""What a call comes down to once its geometry has been checked: addresses, a kernel, and memory for the result."""

from __future__ import annotations

import ctypes
import sys
from collections.abc import Callable, Sequence
from math import prod
from operator import itemgetter
from typing import Any

import numpy as np

from convgrad.arrays.view import View, span
from convgrad.dtypes import SIZES, numpy_dtype
from convgrad.problem.canonicalize import ROLES
from convgrad.runtime import kernel_for

LARGE_BYTES, LINE = 1 << 20, 64  # of results for which it matters where they begin; of a cache line

ndarray = np.ndarray


def _data_offset() -> int:
    """Where the address of the first element lies in an array object, or 0 if that cannot be relied on.

    `PyArrayObject` begins with the object header and that address, in NumPy's stable binary interface; reading it
    costs a tenth of `__array_interface__`. Two arrays with different addresses prove it at import.
    """
    if sys.implementation.name != "cpython":
        return 0
    offset = object.__basicsize__
    whole = np.arange(4, dtype=np.float32)
    for array in (whole, whole[2:]):
        if ctypes.c_size_t.from_address(id(array) + offset).value != array.__array_interface__["data"][0]:
            return 0
    return offset


_OFFSET = _data_offset()
_word_at = ctypes.c_size_t.from_address


def address(array: ndarray) -> int:
    """The address of the element with all indices zero."""
    return _word_at(id(array) + _OFFSET).value if _OFFSET else array.__array_interface__["data"][0]


Arrange = Callable[[Sequence[int]], tuple[int, int, int]]  # addresses of inputs and result as those of x, w and y


class Record:
    """What is left to do for a geometry that has been checked: addresses, and whether memory is shared."""

    __slots__ = ("arrange", "bytes", "calls", "dtype", "input_mask", "kernel", "output_mask", "shape", "span", "spans")

    def __init__(self, op: str, problem: Any, inputs: Sequence[View], shape: tuple[int, ...], strides, out_dtype: str):
        self.kernel = None if 0 in shape else kernel_for(problem)  # nothing to compute is no problem
        roles = ROLES[op]
        self.arrange: Arrange = itemgetter(roles.index("x"), roles.index("w"), roles.index("y"))
        self.shape, self.dtype = shape, numpy_dtype(out_dtype)
        self.input_mask, self.output_mask = SIZES[problem.dtype] - 1, SIZES[out_dtype] - 1
        self.span = span(shape, strides, SIZES[out_dtype])
        self.bytes = SIZES[out_dtype] * prod(shape)
        self.spans = tuple(given.span for given in inputs)
        self.calls = 0  # by way of Python, since this was made or last admitted to an inline cache

    def empty(self) -> ndarray:
        """A new array for the result; a large one begins with a cache line, so that whole lines can pass the caches."""
        if self.bytes < LARGE_BYTES:
            return np.empty(self.shape, self.dtype)
        memory = np.empty(self.bytes + LINE, np.uint8)
        return ndarray(self.shape, self.dtype, memory, -address(memory) % LINE)

    def fall_back(self, first: ndarray, second: ndarray, bias: ndarray | None, result: ndarray) -> None:
        """Compute what the kernel could not, by the fallback that was not there."""
        assert self.kernel is not None
        addresses = self.arrange((address(first), address(second), address(result)))
        self.kernel.fall_back(*addresses, 0 if bias is None else address(bias))

    def may_overlap(self, out: int, inputs: Sequence[int]) -> bool:
        """Whether the bytes of the output and of an input lie in common bounds."""
        low, high = self.span
        low, high = low + out, high + out
        for address, (first, last) in zip(inputs, self.spans, strict=False):
            if low < address + last and address + first < high:
                return True
        return False
