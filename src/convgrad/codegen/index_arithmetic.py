"""Arithmetic of indices, Python ints and SSA values alike: what is known is folded, and costs no instruction."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from convgrad.codegen.instructions import Instructions
from convgrad.codegen.ir_module import Index, Value, index


class IndexArithmetic(Instructions):
    """Of i64, such that emitters read like the formula."""

    def add(self, x: Index, y: Index) -> Index:
        """x + y"""
        if isinstance(x, int) and isinstance(y, int):
            return x + y
        if x == 0 or y == 0:
            return y if x == 0 else x
        return self.emit("i64", f"add nsw {index(x)}, {index(y).text}")

    def sub(self, x: Index, y: Index) -> Index:
        """x - y"""
        if isinstance(x, int) and isinstance(y, int):
            return x - y
        return x if y == 0 else self.emit("i64", f"sub nsw {index(x)}, {index(y).text}")

    def mul(self, x: Index, y: Index) -> Index:
        """x * y"""
        if isinstance(x, int) and isinstance(y, int):
            return x * y
        if x == 0 or y == 0:
            return 0
        if x == 1 or y == 1:
            return y if x == 1 else x
        return self.emit("i64", f"mul nsw {index(x)}, {index(y).text}")

    def floor_div(self, x: Index, y: int) -> Index:
        """Floor of x / y for y > 0."""
        if isinstance(x, int):
            return x // y
        if y == 1:
            return x
        rest = self.emit("i64", f"srem {x}, {y}")
        negative = self.emit("i64", f"ashr {rest}, 63")
        return self.add(self.emit("i64", f"sdiv {x}, {y}"), negative)

    def shift_right(self, x: Index, bits: int) -> Index:
        """x / 2^bits for x >= 0, rounded down."""
        if isinstance(x, int):
            return x >> bits
        return self.emit("i64", f"lshr {x}, {bits}") if bits else x

    def both(self, x: Value, y: Value) -> Value:
        """Whether two conditions hold."""
        return self.emit("i1", f"and {x}, {y.text}")

    def split(self, x: Index, extents: Sequence[int]) -> list[Index]:
        """The indices of a flat, non-negative row-major index."""
        indices: list[Index] = []
        for extent in reversed(extents[1:]):
            if extent == 1:
                indices.insert(0, 0)
            elif isinstance(x, int):
                x, rest = divmod(x, extent)
                indices.insert(0, rest)
            else:
                indices.insert(0, self.emit("i64", f"urem {x}, {extent}"))
                x = self.emit("i64", f"udiv {x}, {extent}")
        return [x, *indices] if extents[0] != 1 else [0, *indices]

    def minimum(self, x: Index, y: Index) -> Index:
        """The smaller, signed."""
        return self._extreme("llvm.smin.i64", min, x, y)

    def maximum(self, x: Index, y: Index) -> Index:
        """The larger, signed."""
        return self._extreme("llvm.smax.i64", max, x, y)

    def _extreme(self, name: str, fold: Callable[[int, int], int], x: Index, y: Index) -> Index:
        if isinstance(x, int) and isinstance(y, int):
            return fold(x, y)
        return self.call("i64", name, index(x), index(y))

    def dot(self, terms: Sequence[tuple[Index, Index]], start: Index = 0) -> Index:
        """start + Σ x · y"""
        for x, y in terms:
            start = self.add(start, self.mul(x, y))
        return start
