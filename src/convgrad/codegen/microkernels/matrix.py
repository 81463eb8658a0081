"""The block of tiles that every algorithm on a matrix unit is made of."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from convgrad.codegen.ir import Builder
from convgrad.codegen.ir_module import Index, Value, index
from convgrad.codegen.isa.matrix import A_TILES, B_TILES, C_TILES, COLUMNS, ROW_BYTES, TileUnit
from convgrad.codegen.loops.ahead import Fetch
from convgrad.codegen.microkernels.reduction import Reduction
from convgrad.plan.units import Products
from convgrad.values import frozen


@frozen(kw_only=True)
class MatrixTile:
    """C += Σ over the reductions and the products of pieces of A · B, for up to two tiles of rows by two of columns.

    Places and steps are in numbers: bf16 of A and B, f32 of C. Tile m of A begins at a_rows[m], tile n of B at
    b_columns[n]; a step leads from row to row of a tile, a piece step from a piece to the next. C[m, n] begins at
    c_rows[m] + 16 n. Small products are summed first, over all reductions, then those of the largest pieces. What is
    done `beside` them follows each one, by its number.
    """

    unit: TileUnit
    products: Products
    a_rows: Sequence[int]
    a_step: int
    a_piece: int
    b_columns: Sequence[int]
    b_step: int
    b_piece: int
    c_rows: Sequence[int]
    c_step: int
    beside: Callable[[Builder, int], None] | None = None

    def emit(
        self, b: Builder, a: Value, x: Value, c: Value, reductions: Sequence[Reduction], *, fresh: bool | Value,
        start: Value | None = None, walks: Sequence[Fetch] = (),
    ) -> None:  # fmt: skip
        """Start from zero or, for every row, the vectors at `start`; unless fresh, an i1 perhaps, from what C holds.

        Lines of `walks` are asked for on the way.
        """
        self.begin(b, c, fresh=fresh, start=start)
        self.sum(b, a, x, reductions, walks)
        self.store(b, c, self.c_rows, self.c_step)

    def begin(self, b: Builder, c: Value, *, fresh: bool | Value, start: Value | None = None) -> None:
        """What the sums start from."""
        for m, n in self._places:
            tile, at = self._c(m, n), b.at(c, self.c_rows[m] + n * COLUMNS, "float")
            if isinstance(fresh, Value):
                row = b.at(start, n * COLUMNS, "float") if start is not None else b.module.bytes(bytes(ROW_BYTES))
                step = b.select(fresh, index(0), index(4 * self.c_step))
                self.unit.load(b, tile, b.select(fresh, row, at), step)
            elif not fresh:
                self.unit.load(b, tile, at, 4 * self.c_step)
            elif start is not None:
                self.unit.load(b, tile, b.at(start, n * COLUMNS, "float"), 0)
            else:
                self.unit.zero(b, tile)

    def sum(
        self, b: Builder, a: Value, x: Value, reductions: Sequence[Reduction], walks: Sequence[Fetch] = ()
    ) -> None:  # fmt: skip
        """Add all products."""
        for walk in walks:
            walk.begin(b)
        *small, largest = self.products
        for products in (tuple(small), (largest,)) if small else ((largest,),):
            self._reduce(b, a, x, reductions, products, walks, 0)
            walks = ()

    def store(self, b: Builder, c: Value, rows: Sequence[int], step: int) -> None:
        """The sums, tiles of rows and the rows of a tile as far apart as is said."""
        for m, n in self._places:
            self.unit.store(b, self._c(m, n), b.at(c, rows[m] + n * COLUMNS, "float"), 4 * step)

    @property
    def _places(self) -> list[tuple[int, int]]:
        return [(m, n) for m in range(len(self.a_rows)) for n in range(len(self.b_columns))]

    def _c(self, m: int, n: int) -> int:
        return C_TILES[m * len(self.b_columns) + n]

    def _reduce(
        self, b: Builder, a: Value, x: Value, reductions: Sequence[Reduction], products: Products,
        walks: Sequence[Fetch], done: Index,
    ) -> None:  # fmt: skip
        if not (reductions and reductions[0].pace):
            for walk in walks:
                walk.go_on(b, done)
            walks = ()
        if not reductions:
            self._multiply(b, a, x, products)
            return
        axis = reductions[0]
        assert isinstance(axis.b_step, int)
        b_step = axis.b_step

        def body(i: Index, _: object) -> None:
            here, there = b.at(a, b.mul(i, axis.a_step), "i16"), b.at(x, b.mul(i, b_step), "i16")
            self._reduce(b, here, there, reductions[1:], products, walks, b.add(done, b.mul(i, axis.pace)))

        b.loop(axis.start, axis.stop, body, name="k")

    def _multiply(self, b: Builder, a: Value, x: Value, products: Products) -> None:
        held: tuple[int | None, int | None] = (None, None)
        for of_a, of_b in products:
            if held[0] != of_a:
                for m, row in enumerate(self.a_rows):
                    self.unit.load(b, A_TILES[m], b.at(a, row + of_a * self.a_piece, "i16"), 2 * self.a_step)
            if held[1] != of_b:
                for n, column in enumerate(self.b_columns):
                    self.unit.load(b, B_TILES[n], b.at(x, column + of_b * self.b_piece, "i16"), 2 * self.b_step)
            held = of_a, of_b
            for m in range(len(self.a_rows)):
                for n in range(len(self.b_columns)):
                    self.unit.multiply_add(b, self._c(m, n), A_TILES[m], B_TILES[n])
            if self.beside is not None:
                self.beside(b, self.products.index((of_a, of_b)))
