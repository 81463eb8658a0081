"""The loops of a Sweep around tiles of a matrix unit."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from convgrad.codegen.copies.copying import Copy, Dim
from convgrad.codegen.ir import Builder
from convgrad.codegen.ir_module import Value
from convgrad.codegen.isa.base import STORAGE
from convgrad.codegen.isa.matrix import TILE_NUMBERS, UNITS
from convgrad.codegen.loops.sweep import Sweep
from convgrad.codegen.loops.tap_sums import Spot
from convgrad.codegen.microkernels.matrix import MatrixTile
from convgrad.codegen.microkernels.reduction import Reduction
from convgrad.plan.by_matrix.matrix import DEPTH, MatrixDataPlan


class MatrixSweep(Sweep):
    """The loops of a Sweep around tiles of the matrix unit."""

    def _emit_tile(self, spot: Spot) -> None:
        plan, b = self.plan, self.b
        assert isinstance(plan, MatrixDataPlan)
        (a_rows, a_step, a_piece), (c_rows, c_step) = self._rows(), self._sums()
        if self.beside is not None:
            self.beside.up_to(b, b.add(b.floor_div(spot.slab, DEPTH), plan.places_of_tile))
        results, out = self.room, STORAGE[plan.problem.out_dtype]
        target = c_rows, c_step
        if results is None:
            results, out = b.at(self.results, spot.result, self.kind), self.kind
        else:
            tile = plan.rows * plan.width
            c_rows, c_step = range(0, len(a_rows) * tile, tile), plan.width
        tile = MatrixTile(
            unit=UNITS[plan.isa](plan.rows),
            products=plan.products,
            a_rows=a_rows,
            a_step=a_step,
            a_piece=a_piece,
            b_columns=range(0, plan.lane_tiles * TILE_NUMBERS, TILE_NUMBERS),
            b_step=DEPTH,
            b_piece=plan.lane_tiles * TILE_NUMBERS,
            c_rows=c_rows,
            c_step=c_step,
            beside=self._after,
        )
        a, x = b.at(self.slab, spot.slab, "i16"), b.at(self.weights, spot.weights, "i16")
        walks = self.walks() if self.walks else ()
        tile.emit(b, a, x, results, [self._depth(), *spot.sums], fresh=self.fresh, start=self.bias, walks=walks)
        if self.room is not None:
            self._move(b.at(self.results, spot.result, out), *target)

    @property
    def _after(self) -> Callable[[Builder, int], None] | None:
        """What packs more of the slab after each product."""
        return self.beside.after if self.beside is not None else None

    def _move(self, target: Value, rows: Sequence[int], step: int) -> None:
        """Results of a block of tiles, whose rows begin there and are as far apart."""
        plan, b, room = self.plan, self.b, self.room
        assert isinstance(plan, MatrixDataPlan)
        assert room is not None
        copy = Copy(
            isa=self.isa, compute=plan.compute, src_dtype=plan.compute, dst_dtype=plan.problem.out_dtype,
            ordinary=plan.ordinary_sums, of_results=True, past_caches=plan.past_caches,
        )  # fmt: skip
        dims = [Dim(plan.rows, plan.width, step), Dim(plan.width, 1, 1)]
        for n, row in enumerate(rows):
            source = b.at(room, n * plan.rows * plan.width, self.kind)
            copy.emit(b, source, copy.dst_at(b, target, row), dims)

    def _depth(self) -> Reduction:
        """Blocks of input channels."""
        plan, b = self.plan, self.b
        assert isinstance(plan, MatrixDataPlan)
        deep = b.floor_div(b.add(self.channels, DEPTH - 1), DEPTH)
        of_block = plan.taps * plan.pieces * plan.width * DEPTH
        return Reduction(0, deep, self._deep_step(), of_block, self.taps.paces[0])

    def _rows(self) -> tuple[Sequence[int], int, int]:
        """Where tiles of A begin, and how far apart their rows, and pieces, are."""
        plan = self.plan
        assert isinstance(plan, MatrixDataPlan)
        return self.tile.rows[:: plan.rows], plan.axes[-1].in_step * plan.slab_strides[0][-1], plan.piece_step

    def _sums(self) -> tuple[Sequence[int], int]:
        """Where tiles of C begin, and how far apart their rows are."""
        plan = self.plan
        assert isinstance(plan, MatrixDataPlan)
        return self.tile.c_rows[:: plan.rows], plan.result_strides[0][-1][1]

    def _deep_step(self) -> int:
        """From a block of input channels to the next."""
        return self.plan.slab_strides[1]
