"""Arrays for logical tensors: checked, brought into the layout that was compiled for, or made."""

from __future__ import annotations

import os
from collections.abc import Iterable
from functools import cache
from typing import Any

import numpy as np

from convgrad.arrays.view import view
from convgrad.dtypes import FLOATING, dtype_name, numpy_dtype
from convgrad.errors import ArrayError, GraphError
from convgrad.graph.tensors import LogicalTensor, dense_strides


def dtype_of(tensor: LogicalTensor) -> np.dtype:
    """The numpy type of the elements."""
    return numpy_dtype(tensor.dtype) if tensor.dtype in FLOATING else np.dtype(np.int32)


def strides_of(tensor: LogicalTensor) -> tuple[int, ...]:
    """In elements; dense where the tensor does not say."""
    assert tensor.known_shape is not None
    return dense_strides(tensor.known_shape) if tensor.strides is None else tensor.strides


def empty(tensor: LogicalTensor) -> np.ndarray:
    """New memory in the layout of the tensor, not filled."""
    dtype = dtype_of(tensor)
    assert tensor.known_shape is not None
    memory = np.empty(tensor.memory_bytes // dtype.itemsize, dtype)
    strides = [stride * dtype.itemsize for stride in strides_of(tensor)]
    try:
        return np.ndarray(tensor.known_shape, dtype, memory, strides=strides)
    except ValueError as error:  # it has no elements, but extents that are too large all the same
        raise GraphError(f"{tensor} cannot be a NumPy array: {error}; check the shape") from None


def as_input(tensor: LogicalTensor, value: Any, owner: str) -> np.ndarray:
    """The array itself if it lies as the tensor does, else a copy that does."""
    array = _checked(tensor, value, owner)
    if _lies_as(tensor, array):
        return array
    copy = empty(tensor)
    if 0 in strides_of(tensor) and not _is_broadcast(array, strides_of(tensor)):
        raise ArrayError(f"{owner}: {tensor} has a stride of 0, but the array given for it differs along that axis")
    copy[...] = array
    return copy


def as_output(tensor: LogicalTensor, value: Any, owner: str, inputs: Iterable[np.ndarray]) -> np.ndarray:
    """The array, if results can be written to it where it lies."""
    array = _checked(tensor, value, owner)
    if array is not value:
        raise ArrayError(f"{owner}: {tensor}: results are written to numpy arrays; got {type(value).__name__}")
    if not array.flags.writeable:
        raise ArrayError(f"{owner}: {tensor}: the array for the result is read-only")
    if not _lies_as(tensor, array):
        raise ArrayError(
            f"{owner}: {tensor}: the array for the result has strides of {array.strides} bytes, but was compiled for "
            f"{tuple(s * array.itemsize for s in strides_of(tensor))}, aligned to the element; make one with empty()"
        )
    if any(np.may_share_memory(array, other) for other in inputs):
        raise ArrayError(
            f"{owner}: {tensor}: the array for the result overlaps another of the call; give it memory of its own"
        )
    return array


def shape_value(tensor: LogicalTensor, value: Any, owner: str) -> tuple[int, ...]:
    """The extents that a shape tensor holds."""
    array = np.asarray(value)
    if array.ndim != 1 or array.dtype.kind not in "iu" or array.dtype.itemsize > 8:
        raise ArrayError(
            f"{owner}: {tensor} must hold extents, a list of s32 integers; got {array.dtype} {array.shape}"
        )
    return tuple(int(extent) for extent in array)


def check_output_layout(tensor: LogicalTensor, owner: str) -> None:
    """Refuse strides under which two elements of a result would share memory."""
    assert tensor.known_shape is not None
    axes = sorted(
        (stride, extent) for stride, extent in zip(strides_of(tensor), tensor.known_shape, strict=True) if extent > 1
    )
    reach = 1
    for stride, extent in axes:
        if stride < reach:
            raise GraphError(
                f"{owner}: {tensor}: strides {list(strides_of(tensor))} make elements of the result overlap"
            )
        reach = stride * (extent - 1) + reach


def check_size(tensors: Iterable[LogicalTensor], owner: str) -> None:
    """Refuse tensors that together need more memory than the machine has."""
    needed = {tensor.id: tensor.memory_bytes for tensor in tensors if tensor.is_known}
    if sum(needed.values()) > physical_memory():
        largest = max(needed, key=lambda id: needed[id])
        raise GraphError(
            f"{owner}: the tensors need {sum(needed.values()) / 2**30:.1f} GiB of memory, tensor {largest} most of it, "
            f"and this machine has {physical_memory() / 2**30:.1f} GiB; check the shapes"
        )


@cache
def physical_memory() -> int:
    """Bytes; without end where the system does not tell."""
    try:
        return os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    except (AttributeError, ValueError, OSError):
        return 2**63


def _checked(tensor: LogicalTensor, value: Any, owner: str) -> np.ndarray:
    array = value
    if not isinstance(value, np.ndarray):
        if not hasattr(value, "__dlpack__"):
            raise ArrayError(f"{owner}: {tensor} needs an array; got {type(value).__name__}")
        array = _foreign(tensor, value, owner)
    name = "s32" if array.dtype == np.int32 else dtype_name(array.dtype)
    if name != tensor.dtype or array.shape != tensor.known_shape:
        raise ArrayError(f"{owner}: {tensor} cannot be an array of {array.dtype} with shape {array.shape}")
    return array


def _foreign(tensor: LogicalTensor, value: Any, owner: str) -> np.ndarray:
    if tensor.dtype in FLOATING:
        return view(owner, str(tensor), value).as_numpy()
    try:
        return np.from_dlpack(value)
    except (BufferError, RuntimeError, TypeError, ValueError) as error:
        raise ArrayError(f"{owner}: {tensor}: numpy cannot take the {type(value).__name__}: {error}") from error


def _lies_as(tensor: LogicalTensor, array: np.ndarray) -> bool:
    wanted = zip(strides_of(tensor), array.strides, array.shape, strict=True)
    return array.flags.aligned and (
        array.size == 0 or all(extent == 1 or stride * array.itemsize == have for stride, have, extent in wanted)
    )


def _is_broadcast(array: np.ndarray, strides: tuple[int, ...]) -> bool:
    """Whether the array repeats itself along the axes of stride 0."""
    first = array[tuple(slice(0, 1) if stride == 0 else slice(None) for stride in strides)]
    return array.size == 0 or bool(np.array_equal(np.broadcast_to(first, array.shape), array, equal_nan=True))
