"""Values of one kind made from those of another."""

from __future__ import annotations

from dataclasses import fields
from typing import Any, TypeVar

Kind = TypeVar("Kind")


def as_kind(kind: type[Kind], base: Any, **changes: Any) -> Kind:
    """A value of a dataclass with the fields of `base` that both have, but for `changes`, and those it has alone."""
    known = {field.name for field in fields(base)}
    shared = (field.name for field in fields(kind) if field.init and field.name in known)  # pyright: ignore
    return kind(**{name: getattr(base, name) for name in shared} | changes)
