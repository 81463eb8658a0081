"""The register tile that every algorithm is made of."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from convgrad.codegen.ir import Builder, Index, Value
from convgrad.codegen.isa.base import ARITHMETIC, Isa


@dataclass(frozen=True, slots=True)
class Reduction:
    """One axis of the sum: start <= i < stop, and the step of each operand per i, in numbers.

    B may take its steps from a table of i64 instead.
    """

    start: Index
    stop: Index
    a_step: int
    b_step: int | Value


@dataclass(frozen=True, slots=True, kw_only=True)
class Tile:
    """C[r, v] += Σ A[rows[r] + Σ i·a_step] · B[columns[v] + Σ i·b_step]   over the product of the reductions.

    C        a register tile of rows × columns vectors; in memory C[r, v] is the vector at c_rows[r] + c_columns[v]
    A        numbers broadcast to all lanes (`a_vector` false), or vectors (`a_vector`), one per
             column: A[r, v] at rows[r] + v · lanes
    B        vectors, any alignment
    Every offset is known at compile time and becomes part of the instruction. A reduction without trips leaves C as
    it was. rows · columns + columns + 1 registers.
    """

    isa: Isa
    compute: str
    rows: tuple[int, ...]
    columns: tuple[int, ...]
    c_rows: tuple[int, ...]
    c_columns: tuple[int, ...]
    a_vector: bool = False

    def emit(
        self, b: Builder, a: Value, x: Value, c: Value, reductions: Sequence[Reduction], first: list[Value] | None
    ) -> None:
        """Update the tile at c; with `first`, start from these (per row and column) instead of from memory."""
        kind = ARITHMETIC[self.compute]
        lanes = self.isa.lanes(self.compute)
        places = [(r, v) for r in range(len(self.rows)) for v in range(len(self.columns))]
        if first is None:
            tile = {
                (r, v): self.isa.load(b, self.compute, b.at(c, self.c_rows[r] + self.c_columns[v], kind), lanes)
                for r, v in places
            }
        else:
            tile = dict(zip(places, first, strict=True))
        tile = self._reduce(b, a, x, tile, list(reductions))
        for r, v in places:
            self.isa.store(b, self.compute, tile[r, v], b.at(c, self.c_rows[r] + self.c_columns[v], kind))

    def _reduce(
        self, b: Builder, a: Value, x: Value, tile: dict[tuple[int, int], Value], reductions: list[Reduction]
    ) -> dict[tuple[int, int], Value]:
        if not reductions:
            return self._rank_one(b, a, x, tile)
        axis, kind = reductions[0], ARITHMETIC[self.compute]

        def body(i: Index, now: dict) -> dict:
            moved = b.mul(i, axis.b_step) if isinstance(axis.b_step, int) else b.lookup(axis.b_step, i)
            here, there = b.at(a, b.mul(i, axis.a_step), kind), b.at(x, moved, kind)
            return self._reduce(b, here, there, now, reductions[1:])

        return b.loop(axis.start, axis.stop, body, carried=tile, name="k")

    def _rank_one(
        self, b: Builder, a: Value, x: Value, tile: dict[tuple[int, int], Value]
    ) -> dict[tuple[int, int], Value]:
        kind, lanes = ARITHMETIC[self.compute], self.isa.lanes(self.compute)
        vectors = [self.isa.load(b, self.compute, b.at(x, column, kind), lanes) for column in self.columns]
        following = {}
        for r, row in enumerate(self.rows):
            if not self.a_vector:
                value = self.isa.splat(b, self.isa.load(b, self.compute, b.at(a, row, kind)), lanes)
            for v, vector in enumerate(vectors):
                if self.a_vector:
                    value = self.isa.load(b, self.compute, b.at(a, row + v * lanes, kind), lanes)
                following[r, v] = self.isa.multiply_add(b, value, vector, tile[r, v])
        return following

    def zeros(self) -> list[Value]:
        """To start from."""
        zero = Value(self.isa.vector(self.compute), "zeroinitializer")
        return [zero] * (len(self.rows) * len(self.columns))


