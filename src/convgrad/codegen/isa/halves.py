"""Halves of vectors, and vectors of which only one half counts."""

from __future__ import annotations

from convgrad.codegen.ir import Builder
from convgrad.codegen.ir_module import Value, lanes_of
from convgrad.codegen.isa.base import shuffle


def lower_half(b: Builder, x: Value) -> Value:
    """Of a vector."""
    return shuffle(b, x, x, list(range(lanes_of(x) // 2)))


def with_lower_half(b: Builder, half: Value) -> Value:
    """A whole vector, of which nobody may look at the rest."""
    lanes = list(range(lanes_of(half)))
    return shuffle(b, half, half, lanes + lanes)
