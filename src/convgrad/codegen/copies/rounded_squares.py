"""Squares of sums that become bf16 before they are turned: half as much to turn, and the processor rounds.

Two rows are rounded to one vector, so that a square has twice as many rows as columns, and its columns are whole lines
of bf16. For sums that are neither denormal nor NaN, which the processor rounds as integers do.
"""

from __future__ import annotations

from collections.abc import Callable

from convgrad.codegen.copies.squares import Square, Squares
from convgrad.codegen.ir import Builder
from convgrad.codegen.ir_module import Value, index
from convgrad.codegen.isa import x86
from convgrad.codegen.isa.conversions import bfloats_of_two
from convgrad.values import frozen

ROWS_TOGETHER = 2  # in a vector


@frozen
class RoundedSquares(Squares):
    """How `copy` moves sums that are contiguous along one axis, and bf16 that is along another."""

    @property
    def height(self) -> int:
        """Rows of a square."""
        return ROWS_TOGETHER * self.lanes

    def _one(self, b: Builder, square: Square) -> None:
        whole = square.rows == self.height and square.columns == self.lanes
        operands = [square.src, square.dst, index(square.src_step), index(square.dst_step)]
        extents = [] if whole else [index(square.rows), index(square.columns)]
        b.call_void(self._rounded(b, whole=whole), *operands, *extents)

    def _rounded(self, b: Builder, *, whole: bool) -> str:
        """The name of the function of whole squares, or of any, which is written if there is none yet."""
        name = f"turn.rounded.{'whole' if whole else 'any'}"
        if name not in b.module.notes:
            b.module.notes.add(name)
            names = ["src.step", "dst.step", *([] if whole else ["rows", "columns"])]
            inner = Builder(
                b.module, name, [("ptr", "src"), ("ptr", "dst"), *(("i64", n) for n in names)], inline=False
            )
            src, dst, src_step, dst_step, *extents = inner.arguments
            rows, columns = extents or (self.height, self.lanes)
            square = Square(src, dst, src_step, dst_step, rows, columns)
            if whole:
                self._store_columns(
                    inner, square, self._turned(inner, self._pairs(inner, self._all_rows(inner, square)))
                )
            else:
                self._any(inner, square)
            inner.finish()
        return name

    def _any(self, b: Builder, square: Square) -> None:
        """Most squares are whole even where that is not known."""
        whole = b.compare("eq", b.add(square.rows, square.columns), self.height + self.lanes)
        pairs = b.one_of(
            whole, lambda: self._pairs(b, self._all_rows(b, square)), lambda: self._pairs(b, self._some_rows(b, square))
        )
        columns = self._turned(b, pairs)
        b.either(
            whole, lambda: self._store_columns(b, square, columns), lambda: self._store_some(b, square, columns)
        )  # fmt: skip

    def _all_rows(self, b: Builder, square: Square) -> Callable[[int], Value]:
        """Row by row."""
        isa, lanes = self.copy.isa, self.lanes
        return lambda i: isa.load(b, "f32", b.at(square.src, b.mul(i, square.src_step), "float"), lanes)

    def _some_rows(self, b: Builder, square: Square) -> Callable[[int], Value]:
        """Those that there are, the last one again and again, and of each what there is."""
        last, many = b.sub(square.rows, 1), index(square.columns)

        def row(i: int) -> Value:
            place = b.mul(b.minimum(i, last), square.src_step)
            return self.copy.isa.load(b, "f32", b.at(square.src, place, "float"), self.lanes, many)

        return row

    def _pairs(self, b: Builder, row: Callable[[int], Value]) -> list[Value]:
        """Two rows each, rounded."""
        firsts = map(x86.first_row, range(self.lanes))
        return [bfloats_of_two(b, row(i), row(i + self.lanes // 2)) for i in firsts]

    def _turned(self, b: Builder, pairs: list[Value]) -> list[Value]:
        """Columns."""
        return self.copy.isa.transpose_words(b, pairs)

    def _store_columns(self, b: Builder, square: Square, columns: list[Value]) -> None:
        for j, column in enumerate(columns):
            self.copy.isa.store_bits(b, column, self.copy.dst_at(b, square.dst, b.mul(j, square.dst_step)))

    def _store_some(self, b: Builder, square: Square, columns: list[Value]) -> None:
        for j, column in enumerate(columns):
            with b.when(b.compare("slt", j, square.columns)):
                line = self.copy.dst_at(b, square.dst, b.mul(j, square.dst_step))
                self.copy.isa.store_bits(b, column, line, index(square.rows))
