"""Tensors of a graph in .npz files.

An entry is named by the id of its tensor, such as `10`. numpy files know no bf16: such an entry is called `10.bf16` and
holds the 16 bits of each element as uint16. On reading, floating arrays of another type are rounded to that of the
tensor.
"""

from __future__ import annotations

import zipfile
from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np

from convgrad.dtypes import FLOATING, dtype_name, numpy_dtype
from convgrad.errors import FileFormatError
from convgrad.graph import LogicalTensor

_BITS = ".bf16"


def write(path: str, arrays: Mapping[int, np.ndarray]) -> None:
    """Save arrays by the id of their tensor."""
    entries = {}
    for id, array in arrays.items():
        is_bf16 = dtype_name(array.dtype) == "bf16"
        entries[f"{id}{_BITS if is_bf16 else ''}"] = array.view(np.uint16) if is_bf16 else array
    with Path(path).open("wb") as file:  # numpy would append .npz to another name
        np.savez(file, allow_pickle=False, **entries)


def read(path: str, tensors: Sequence[LogicalTensor]) -> dict[int, np.ndarray]:
    """The arrays of these tensors; every one must be there, and nothing else."""
    try:
        with np.load(path, allow_pickle=False) as file:
            if not isinstance(file, np.lib.npyio.NpzFile):
                raise FileFormatError(f"{path}: a single array; an .npz file with one entry for each input is needed")
            entries = {name: file[name] for name in file.files}
    except (zipfile.BadZipFile, ValueError, EOFError, KeyError, MemoryError, NotImplementedError) as error:
        raise FileFormatError(f"{path}: not an .npz file of plain arrays: {error}") from error
    arrays = {}
    for tensor in tensors:
        arrays[tensor.id] = _take(path, entries, tensor)
    if entries:
        names = ", ".join(str(tensor.id) for tensor in tensors)
        raise FileFormatError(f"{path}: {next(iter(entries))!r} is not an input of the graph; its inputs are {names}")
    return arrays


def _take(path: str, entries: dict[str, np.ndarray], tensor: LogicalTensor) -> np.ndarray:
    name = str(tensor.id)
    if name + _BITS in entries:
        bits = entries.pop(name + _BITS)
        if bits.dtype != np.uint16:
            raise FileFormatError(f"{path}: {name + _BITS!r} holds {bits.dtype}; the bits of bf16 are uint16")
        array = bits.view(numpy_dtype("bf16"))
    elif name in entries:
        array = entries.pop(name)
    else:
        raise FileFormatError(f"{path}: there is no entry {name!r}, the {tensor}")
    if tensor.known_shape is not None and array.shape != tensor.known_shape:
        raise FileFormatError(f"{path}: {name!r} has shape {array.shape}, but is the {tensor}")
    is_floating = dtype_name(array.dtype) is not None
    if tensor.dtype in FLOATING and is_floating:
        with np.errstate(over="ignore"):
            return array.astype(numpy_dtype(tensor.dtype), copy=False)
    if tensor.dtype == "s32" and array.dtype.kind in "iu":
        small = array.astype(np.int32, copy=False)
        if not np.array_equal(small, array):
            raise FileFormatError(f"{path}: {name!r} holds {array.tolist()}, of which not all are s32")
        return small
    raise FileFormatError(f"{path}: {name!r} holds {array.dtype}, but is the {tensor}")
