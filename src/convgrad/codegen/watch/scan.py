"""Whether there are numbers that are not finite, or NaN, by comparing bits: nothing is rounded, no exception raised."""

from __future__ import annotations

from collections.abc import Sequence

from convgrad.codegen.ir import Builder
from convgrad.codegen.ir_module import Index, Value, constant, vector_of
from convgrad.codegen.isa.base import BYTES, STORAGE, Isa
from convgrad.plan.guard import Box

INFINITY = {"f32": -(1 << 24), "f64": -(1 << 53), "bf16": -(1 << 8), "f16": -(1 << 11)}  # its bits, times 2


def any_not_finite(b: Builder, isa: Isa, dtype: str, base: Value, boxes: Sequence[Box]) -> Value:
    """Whether one of the boxes of a tensor holds an infinity or NaN."""
    return _any(b, isa, dtype, base, boxes, "uge")


def any_nan(b: Builder, isa: Isa, dtype: str, base: Value, boxes: Sequence[Box]) -> Value:
    """Whether one of the boxes of a tensor holds NaN."""
    return _any(b, isa, dtype, base, boxes, "ugt")


def _any(b: Builder, isa: Isa, dtype: str, base: Value, boxes: Sequence[Box], above: str) -> Value:
    found = [b.compare_like(above, _largest(b, isa, dtype, base, box), INFINITY[dtype]) for box in boxes]
    result = found[0]
    for other in found[1:]:
        result = b.binary("or", result, other)
    return result


def _largest(b: Builder, isa: Isa, dtype: str, base: Value, box: Box) -> Value:
    """The largest magnitude of a box, as bits without the sign and times 2."""
    *outer, (run, step) = _merged(box.axes)
    if step != 1:
        outer, run = [*outer, (run, step)], 1
    bits = 8 * BYTES[dtype]
    lanes = isa.vector_bytes // BYTES[dtype]
    while lanes > run:
        lanes //= 2
    kind, suffix = (f"i{bits}",) * 2 if lanes == 1 else (vector_of(lanes, f"i{bits}"), f"v{lanes}i{bits}")

    def larger(now: Value, offset: Index) -> Value:
        number = b.load(kind, b.at(base, offset, STORAGE[dtype]), BYTES[dtype])
        return b.call(kind, f"llvm.umax.{suffix}", now, b.binary("add", number, number))

    def nest(axes: Sequence[tuple[int, int]], start: Index, now: Value) -> Value:
        if axes:
            (extent, step), *others = axes
            return b.loop(0, extent, lambda i, now: {0: nest(others, b.add(start, b.mul(i, step)), now[0])},
                          carried={0: now}, name="scan")[0]  # fmt: skip
        whole = run // lanes * lanes
        now = b.loop(0, whole, lambda i, now: {0: larger(now[0], b.add(start, i))}, step=lanes, carried={0: now},
                     name="scan")[0]  # fmt: skip
        return now if whole == run else larger(now, b.add(start, run - lanes))

    total = nest(outer, 0, constant(kind, 0))
    return total if lanes == 1 else b.call(f"i{bits}", f"llvm.vector.reduce.umax.{suffix}", total)


def _merged(axes: Sequence[tuple[int, int]]) -> list[tuple[int, int]]:
    """The same numbers by fewer axes, outermost in memory first; those that step nowhere are left out."""
    kept: list[tuple[int, int]] = []
    for extent, step in sorted(axes, key=lambda axis: -abs(axis[1])):
        if extent == 1 or step == 0:
            continue
        if kept and kept[-1][1] == extent * step:
            kept[-1] = kept[-1][0] * extent, step
        else:
            kept.append((extent, step))
    return kept or [(1, 1)]
