"""What a call gives, checked while JAX traces it: arrays, types, and shapes that are numbers."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from convgrad.dtypes import FLOATING, dtype_name
from convgrad.errors import ArrayError, AttributeRuleError, DtypeError, ShapeError
from convgrad.settings import FPMATH_MODES, fpmath_mode

Named = Sequence[tuple[str, Any]]


def arrays_of(op: str, given: Named) -> list[jax.Array]:
    """The arguments as JAX has them; a tensor whose shape is not known yet is refused."""
    arrays = []
    for name, value in given:
        try:
            array = jnp.asarray(value)
        except (TypeError, ValueError) as error:
            raise ArrayError(f"{op}: {name} is of type {type(value).__name__}: {error}; give an array of JAX") from None
        if not all(isinstance(extent, int) for extent in array.shape):
            raise ShapeError(
                f"{op}: {name} has the shape {array.shape}, part of which is a symbol, but kernels are compiled for "
                "exact shapes; export the program with numbers"
            )
        arrays.append(array)
    return arrays


def common_dtype(op: str, named: Named) -> str:
    """The type of all arguments, by our names."""
    kinds = [(name, _known(op, name, array.dtype)) for name, array in named]
    (first, dtype), *others = kinds
    for name, other in others:
        if other != dtype:
            raise DtypeError(
                f"{op}: {first} holds {dtype}, but {name} holds {other}; convert one so that all inputs have the same "
                "type"
            )
    return dtype


def result_dtype(op: str, word: str, dtype: str, asked: Any) -> str:
    """The type of the result: that of the inputs, or f32 for 16-bit inputs if it is asked for under the name `word`."""
    if asked is None or (isinstance(asked, str) and asked == dtype):
        return dtype
    try:
        result = asked if isinstance(asked, str) and asked in FLOATING else dtype_name(jnp.dtype(asked))
    except TypeError:
        result = None
    if result != dtype and not (result == "f32" and dtype in ("bf16", "f16")):
        legal = f"{dtype} or f32" if dtype in ("bf16", "f16") else dtype
        raise DtypeError(
            f"{op}: {word} is {result or repr(asked)}, but inputs of {dtype} give {legal}; change the type of the "
            "output"
        )
    return result


def mode_of(op: str, asked: str | None) -> str:
    """How far products of f32 may be rounded: what is asked for, else what the surroundings say while tracing."""
    mode = asked or fpmath_mode()
    if mode not in FPMATH_MODES:
        raise AttributeRuleError(
            f"{op}: fpmath_mode is {mode!r}; it must be one of {', '.join(FPMATH_MODES)}, or None for that of the "
            "surroundings"
        )
    return mode


def _known(op: str, name: str, dtype: np.dtype) -> str:
    found = dtype_name(np.dtype(dtype)) if isinstance(dtype, np.dtype) else None
    if found is None:
        raise DtypeError(f"{op}: {name} holds {dtype}, but must hold one of {', '.join(FLOATING)}; convert it")
    return found
