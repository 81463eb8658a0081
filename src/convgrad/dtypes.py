"""Names of the element types, as oneDNN spells them, and what numpy calls them."""

from __future__ import annotations

from functools import cache

import numpy as np

FLOATING = ("f32", "bf16", "f16", "f64")
SIZES = {"f32": 4, "bf16": 2, "f16": 2, "f64": 8}  # bytes
COMPUTE = {"f32": "f32", "bf16": "f32", "f16": "f32", "f64": "f64"}  # what sums are held in

_NUMPY = {"f32": np.dtype(np.float32), "f16": np.dtype(np.float16), "f64": np.dtype(np.float64)}
_NAMES = {dtype: name for name, dtype in _NUMPY.items()}


@cache
def numpy_dtype(name: str) -> np.dtype:
    """The numpy type of a name in `FLOATING`."""
    if name == "bf16":
        import ml_dtypes  # a cost of start-up that f32 users need not pay

        return np.dtype(ml_dtypes.bfloat16)
    return _NUMPY[name]


def dtype_name(dtype: np.dtype) -> str | None:
    """The name of a numpy type; None for a type that is not in `FLOATING` or not in native byte order."""
    name = _NAMES.get(dtype)
    if name is None and dtype.name == "bfloat16":
        return "bf16"
    return name
