"""Arguments in types that a call can be found by again: None, whole numbers, words, and lists and tuples of numbers."""

from __future__ import annotations

from typing import Any

import numpy as np

from convgrad.dtypes import dtype_name


def is_plain(values: tuple) -> bool:
    """Whether the values are made of types that marshal tells apart, and nothing that changes under its eyes."""
    for value in values:
        if type(value) in (list, tuple):
            if not all(type(entry) is int for entry in value):
                return False
        elif value is not None and type(value) not in (int, str):
            return False
    return True


def plainer(attributes: tuple, shape: Any, out_dtype: Any) -> tuple[tuple, Any, Any] | None:
    """The same in types that a record can be found by, such as for shapes that are tensors; None if there is no more.

    What is not right is left as it is, for the careful path to explain.
    """
    given = (*attributes, shape)
    if is_plain(given) and (out_dtype is None or type(out_dtype) is str):
        return None
    values, name = tuple(map(_plain, given)), _plain_dtype(out_dtype)
    if name is out_dtype and all(new is old for new, old in zip(values, given, strict=True)):
        return None
    return values[:-1], values[-1], name


def _plain(value: Any) -> Any:
    if value is None or type(value) in (int, str):
        return value
    if isinstance(value, np.integer):
        return int(value)
    if isinstance(value, list | tuple):
        entries = [int(entry) if isinstance(entry, np.integer) else entry for entry in value]
        known = type(value) in (list, tuple) and _all_int(value)
        return value if known or not _all_int(entries) else tuple(entries)
    if getattr(value, "ndim", 0) == 1 and hasattr(value, "tolist"):
        try:
            entries = value.tolist()
        except Exception:  # its numbers are elsewhere, or nowhere
            return value
        return tuple(entries) if _all_int(entries) else value
    return value


def _all_int(entries: Any) -> bool:
    return all(type(entry) is int for entry in entries)


def _plain_dtype(asked: Any) -> Any:
    if isinstance(asked, type | np.dtype):
        try:
            return dtype_name(np.dtype(asked)) or asked
        except TypeError:
            return asked
    return asked
