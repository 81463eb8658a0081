"""What a result has to be: of the type that the inputs and the caller give it, and no larger than memory."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from convgrad.arrays.view import View
from convgrad.dtypes import FLOATING, dtype_name, numpy_dtype
from convgrad.errors import DtypeError, ShapeError, shown


def common_dtype(op: str, inputs: Sequence[tuple[str, View]]) -> str:
    """The type that all inputs hold."""
    (first, given), *others = inputs
    for name, other in others:
        if other.dtype != given.dtype:
            raise DtypeError(
                f"{op}: {first} holds {given.dtype}, but {name} holds {other.dtype}; convert one so that all inputs "
                "have the same type"
            )
    return given.dtype


def result_dtype(op: str, dtype: str, target: View | None, asked: Any) -> str:
    """The type of the result: that of the inputs, or f32 for 16-bit inputs if `out` or `out_dtype` says so."""
    name = None if asked is None else _dtype_named(op, asked)
    if target is not None and name is not None and target.dtype != name:
        raise DtypeError(f"{op}: out holds {target.dtype}, but out_dtype is {name}; give only one of them")
    result = name or (dtype if target is None else target.dtype)
    if result != dtype and not (result == "f32" and dtype in ("bf16", "f16")):
        legal = f"{dtype} or f32" if dtype in ("bf16", "f16") else dtype
        source = "out_dtype is" if name else "out holds"
        raise DtypeError(f"{op}: {source} {result}, but inputs of {dtype} give {legal}; change the type of the output")
    return result


def _dtype_named(op: str, asked: Any) -> str:
    if isinstance(asked, str) and asked in FLOATING:
        return asked
    try:
        spelled = asked if isinstance(asked, str) else str(asked).removeprefix("torch.")
        if spelled == "bfloat16":
            return "bf16"
        found = np.dtype(spelled if isinstance(asked, str) or spelled != str(asked) else asked)
        name = None if isinstance(asked, str) and found.name != asked else dtype_name(found)  # "f8" is not eight bits
    except Exception:  # NumPy's, of what it cannot read, or one of a class of the caller
        name = None
    if name is None:
        raise DtypeError(f"{op}: out_dtype is {shown(asked)}, but must be one of {', '.join(FLOATING)}")
    return name


def refuse_more_than_memory(op: str, name: str, shape: tuple[int, ...], dtype: str) -> None:
    """Try, before anything is compiled, whether there is room for a result."""
    try:
        np.empty(shape, numpy_dtype(dtype))
    except (MemoryError, ValueError) as error:  # ValueError: more bytes than an address can count
        raise ShapeError(
            f"{op}: {name} {list(shape)} of {dtype} does not fit into memory ({error}); make strides, pads or shapes "
            "smaller"
        ) from None
