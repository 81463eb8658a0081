"""Tensors of other libraries, through the DLPack protocol (https://dmlc.github.io/dlpack), read with ctypes.

NumPy's own `from_dlpack` refuses bf16 and needs the array to be writeable, so the structures are read here.
"""

from __future__ import annotations

import ctypes
import sys
from typing import Any

import numpy as np

from convgrad.arrays.view import View, dense_strides
from convgrad.dtypes import FLOATING, SIZES
from convgrad.errors import ArrayError, DtypeError

_ON_HOST = (1, 3)  # kDLCPU, and kDLCUDAHost: memory of the host that a GPU can read
_DEVICES = {2: "CUDA", 4: "OpenCL", 7: "Vulkan", 8: "Metal", 10: "ROCm", 13: "CUDA managed", 14: "oneAPI"}
_DTYPES = {(2, 32): "f32", (2, 16): "f16", (2, 64): "f64", (4, 16): "bf16"}  # (code, bits)
_CODES = {0: "integers", 1: "unsigned integers", 2: "floating point", 4: "bfloat", 5: "complex", 6: "bool"}
_READ_ONLY = 1  # bit of the flags of a versioned tensor


class _Tensor(ctypes.Structure):  # DLTensor
    _fields_ = [
        ("data", ctypes.c_void_p),
        ("device_type", ctypes.c_int32),
        ("device_id", ctypes.c_int32),
        ("ndim", ctypes.c_int32),
        ("code", ctypes.c_uint8),
        ("bits", ctypes.c_uint8),
        ("lanes", ctypes.c_uint16),
        ("shape", ctypes.POINTER(ctypes.c_int64)),
        ("strides", ctypes.POINTER(ctypes.c_int64)),
        ("byte_offset", ctypes.c_uint64),
    ]


class _Versioned(ctypes.Structure):  # DLManagedTensorVersioned
    _fields_ = [
        ("major", ctypes.c_uint32),
        ("minor", ctypes.c_uint32),
        ("context", ctypes.c_void_p),
        ("deleter", ctypes.c_void_p),
        ("flags", ctypes.c_uint64),
        ("tensor", _Tensor),
    ]


_is_valid = ctypes.pythonapi.PyCapsule_IsValid
_is_valid.argtypes, _is_valid.restype = [ctypes.py_object, ctypes.c_char_p], ctypes.c_int
_pointer = ctypes.pythonapi.PyCapsule_GetPointer
_pointer.argtypes, _pointer.restype = [ctypes.py_object, ctypes.c_char_p], ctypes.c_void_p


def read(op: str, name: str, array: Any) -> View:
    """The memory of an array that has `__dlpack__`; it must be on the CPU and of a type that kernels take."""
    if getattr(array, "requires_grad", False) is True:
        raise ArrayError(f"{op}: {name} requires a gradient, which this function does not record; give {name}.detach()")
    if getattr(array, "is_neg", bool)() is True:  # PyTorch exports the memory of such a tensor as if it were not
        raise ArrayError(f"{op}: {name} is the negative of what its memory holds; give {name}.resolve_neg()")
    _refuse_device(op, name, array)
    capsule = _export(op, name, array)
    tensor, writeable = _open(op, name, capsule)
    dtype = _DTYPES.get((tensor.code, tensor.bits)) if tensor.lanes == 1 else None
    if dtype is None:
        kind = _CODES.get(tensor.code, f"type code {tensor.code}")
        raise DtypeError(f"{op}: {name} holds {kind} of {tensor.bits} bits, but must hold one of {', '.join(FLOATING)}")
    shape = tuple(tensor.shape[: tensor.ndim]) if tensor.ndim else ()
    strides = tuple(tensor.strides[: tensor.ndim]) if tensor.ndim and tensor.strides else dense_strides(shape)
    if not tensor.data and 0 not in shape:  # such as the zeros that PyTorch keeps no memory for
        raise ArrayError(f"{op}: {name} has no memory, but {list(shape)} elements; give a copy of it")
    address = (tensor.data or 0) + tensor.byte_offset
    if address % SIZES[dtype]:
        raise ArrayError(f"{op}: {name} is not aligned to its elements of {SIZES[dtype]} bytes; copy it first")
    owner = (capsule, array)  # a capsule that nobody consumed releases its tensor when it goes
    return View(address=address, shape=shape, strides=strides, dtype=dtype, writeable=writeable, owner=owner)


def _refuse_device(op: str, name: str, array: Any) -> None:
    try:
        kind, number = map(int, array.__dlpack_device__())
    except Exception as error:
        raise ArrayError(f"{op}: {name} does not tell its device: {error}; give an array on the CPU") from error
    if kind not in _ON_HOST:
        device = _DEVICES.get(kind, f"DLPack type {kind}")
        raise ArrayError(f"{op}: {name} is on the device {device}:{number}; copy it to the CPU first")


def _export(op: str, name: str, array: Any) -> Any:
    try:
        try:
            return array.__dlpack__(max_version=(1, 0))
        except TypeError:  # a library that is older than versions in the protocol
            return array.__dlpack__()
    except Exception as error:
        raise ArrayError(f"{op}: {name} cannot be exported through DLPack: {error}; convert it to NumPy") from error


def _open(op: str, name: str, capsule: Any) -> tuple[_Tensor, bool]:
    if _is_valid(capsule, b"dltensor_versioned"):
        managed = _Versioned.from_address(_pointer(capsule, b"dltensor_versioned") or 0)
        if managed.major > 1:
            raise ArrayError(f"{op}: {name} speaks version {managed.major} of DLPack, only 1 is known; use NumPy")
        return managed.tensor, not managed.flags & _READ_ONLY
    if _is_valid(capsule, b"dltensor"):
        return _Tensor.from_address(_pointer(capsule, b"dltensor") or 0), True
    raise ArrayError(f"{op}: {name} exports something other than a DLPack tensor; convert it to NumPy")


def empty_like_kind(array: Any, shape: tuple[int, ...], dtype: np.dtype, name: str) -> tuple[Any, Any]:
    """A new tensor of the library of `array`: something to write to, and what turns it into the result.

    `name` is the type as `FLOATING` has it. Libraries are found among the modules that are imported already.
    """
    torch = sys.modules.get("torch")
    if torch is not None and isinstance(array, getattr(torch, "Tensor", ())):
        types = {"f32": torch.float32, "bf16": torch.bfloat16, "f16": torch.float16, "f64": torch.float64}
        return torch.empty(shape, dtype=types[name]), lambda tensor: tensor
    return np.empty(shape, dtype), lambda tensor: _to_library_of(array, tensor)


def _to_library_of(array: Any, result: np.ndarray) -> Any:
    """The result as an array of the library of `array`, where that library has a name for itself; NumPy otherwise."""
    try:
        library = array.__array_namespace__()
    except AttributeError:
        return result
    try:
        return library.from_dlpack(result)
    except (BufferError, TypeError, ValueError, RuntimeError):  # NumPy does not export bf16
        return library.asarray(result)
