"""Squares of f32 that become bf16 as they are turned: the processor rounds, and a line of 64 bytes is a column.

Two vectors are rounded at once, before they are turned: then half as many are.
"""

from __future__ import annotations

from dataclasses import dataclass

from convgrad.codegen.copies.squares import Dim, Squares
from convgrad.codegen.ir import Builder
from convgrad.codegen.ir_module import Index, Value
from convgrad.codegen.isa.base import STORAGE
from convgrad.codegen.isa.conversions import bfloats_of_two

ROWS, COLUMNS = 32, 16


@dataclass(frozen=True, slots=True)
class BfloatSquares(Squares):
    """Squares of 32 rows, where there are as many; of fewer rows or columns those of other copies."""

    def emit(self, b: Builder, src: Value, dst: Value, across: Dim, along: Dim) -> None:
        """`across` is contiguous in dst, `along` in src."""
        plain = super(BfloatSquares, self)
        sides = ((across.extent, ROWS), (along.extent, COLUMNS))
        enough = [b.compare("sge", extent, least) for extent, least in sides if isinstance(extent, Value)]
        if along.src != 1 or any(isinstance(extent, int) and extent < least for extent, least in sides):
            plain.emit(b, src, dst, across, along)
        elif enough:
            whole = b.both(*enough) if len(enough) > 1 else enough[0]
            b.either(
                whole, lambda: self._all(b, src, dst, across, along), lambda: plain.emit(b, src, dst, across, along)
            )
        else:
            self._all(b, src, dst, across, along)

    def _all(self, b: Builder, src: Value, dst: Value, across: Dim, along: Dim) -> None:
        """The last ones begin early: some numbers twice cost less than a part of a square."""
        copy = self.copy
        whole = b.mul(b.floor_div(across.extent, ROWS), ROWS)
        rest = b.sub(across.extent, whole)

        def lines(i: Index, _: object = None) -> None:
            def one(j: Index, _: object) -> None:
                j = b.minimum(j, b.sub(along.extent, COLUMNS))
                source = copy.src_at(b, src, b.dot([(i, across.src), (j, along.src)]))
                target = copy.dst_at(b, dst, b.dot([(i, across.dst), (j, along.dst)]))
                b.call_void(self._function_of_lines(b), source, target, across.src, along.dst)

            b.loop(0, along.extent, one, step=COLUMNS, name="along")

        b.loop(0, whole, lines, step=ROWS, name="across")
        if isinstance(rest, Value):
            with b.when(b.compare("sgt", rest, 0)):
                lines(b.sub(across.extent, ROWS))
        elif rest:
            lines(b.sub(across.extent, ROWS))

    def _function_of_lines(self, b: Builder) -> str:
        """The name of the function of one square, which is written if there is none yet."""
        name = "turn.lines"
        if name not in b.module.notes:
            b.module.notes.add(name)
            arguments = [("ptr", "src"), ("ptr", "dst"), ("i64", "src.step"), ("i64", "dst.step")]
            inner = Builder(b.module, name, arguments, inline=False)
            self._turn_lines(inner)
            inner.finish()
        return name

    def _turn_lines(self, b: Builder) -> None:
        """Two rows eight apart become one vector, and columns of these vectors are what is wanted."""
        isa = self.copy.isa
        src, dst, src_step, dst_step = b.arguments
        halves = (src, b.at(src, b.mul(src_step, ROWS // 2), "float"))
        pairs = []
        for half in halves:
            rows = [isa.load(b, "f32", line, COLUMNS) for line in self._lines(b, half, src_step, "float")]
            pairs += [bfloats_of_two(b, rows[q], rows[q + 8]) for q in range(8)]
        lines = self._lines(b, dst, dst_step, STORAGE["bf16"])
        for line, words in zip(lines, isa.transpose_words(b, pairs), strict=True):
            isa.store_bits(b, words, line)
