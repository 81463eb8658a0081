"""Zeros in packed buffers, where nobody copies anything."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from convgrad.codegen.ir import Builder
from convgrad.codegen.ir_module import Index, Value
from convgrad.codegen.isa.base import STORAGE, Isa
from convgrad.values import frozen


def emit_zero(b: Builder, isa: Isa, compute: str, dst: Value, count: Index) -> None:
    """Zeros in `count` numbers of a buffer."""
    kind, lanes = STORAGE[compute], isa.lanes(compute)
    zeros, zero = Value(isa.vector(compute), "zeroinitializer"), Value(kind, "0.0")
    dst = b.hidden(dst)  # likewise of loops that hold this one
    whole = b.mul(b.floor_div(count, lanes), lanes)

    def clear(value: Value) -> Callable[[Index, object], None]:
        return lambda i, _: isa.store(b, compute, value, b.at(dst, i, kind))

    b.loop(0, whole, clear(zeros), step=lanes, name="zero")
    b.loop(whole, count, clear(zero), name="zero")


@frozen
class Range:
    """Positions low <= i < high of a packed axis that hold numbers; others are to be zero, if anybody reads them."""

    low: Index
    high: Index
    extent: Index | None  # None: nobody reads beyond the numbers
    step: int

    @property
    def full(self) -> bool:
        """Whether nothing is to be zero."""
        return self.extent is None or (self.low == 0 and self.high == self.extent)


def emit_zero_outside(b: Builder, isa: Isa, compute: str, dst: Value, axes: Sequence[Range]) -> None:
    """Zeros at all positions of a packed box that lie outside the range of some axis; the last axis is contiguous."""
    if all(axis.full for axis in axes):
        return
    axis, *inner = axes

    def at(i: Index) -> Value:
        return b.at(dst, b.mul(i, axis.step), STORAGE[compute])

    for first, last in ((0, axis.low), (axis.high, axis.extent)) if axis.extent is not None else ():
        if inner:
            b.loop(first, last, lambda i, _: emit_zero(b, isa, compute, at(i), axis.step), name="outside")
        else:
            emit_zero(b, isa, compute, at(first), b.mul(b.sub(last, first), axis.step))
    if inner:
        b.loop(axis.low, axis.high, lambda i, _: emit_zero_outside(b, isa, compute, at(i), inner), name="inside")
