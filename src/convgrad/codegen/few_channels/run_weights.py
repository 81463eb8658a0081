"""Lowering of a RunWeightsPlan: tiles of numbers of y by vectors of what a row of taps meets."""

from __future__ import annotations

from collections.abc import Callable, Iterator

from convgrad.codegen.copies.zeroing import emit_zero
from convgrad.codegen.general.weights import SumsStage
from convgrad.codegen.ir import Builder
from convgrad.codegen.ir_module import Index, Value
from convgrad.codegen.isa.base import STORAGE
from convgrad.codegen.loops.ahead import Ahead, Walk
from convgrad.codegen.loops.weights_ahead import MOST_LINES, WeightsAhead
from convgrad.codegen.loops.window_sweep import Shift, WindowSweep
from convgrad.codegen.microkernels.contract import Tile
from convgrad.codegen.microkernels.reduction import Reduction
from convgrad.codegen.stages import Places
from convgrad.plan.few_channels.run_weights import Pieces, RunWeightsPlan
from convgrad.values import frozen


@frozen
class Piece:
    """Where a tile begins on one of its sides, which it is, and its size."""

    first: Index
    number: Index
    size: int


class RunsAhead(WeightsAhead):
    """What tiles fetch ahead: all channels of a group that the next block packs."""

    plan: RunWeightsPlan

    def of_tile(self, b: Builder, number: Index, tiles: int) -> list[Walk]:
        """What a tile of the block does, by its number; there are so many for each row of taps."""
        plan = self.plan
        boxes = tuple(self._lines(tensor, channels) for tensor, _, channels in self._operands(b))
        return [Ahead(boxes, plan.tile_steps, plan.taps * tiles, MOST_LINES).walk(b, number, self.bases)]

    def _operands(self, b: Builder) -> Iterator[tuple[str, Index, int]]:
        yield "x", 0, self.plan.lane_count
        if not self.plan.rows_in_place:
            yield "y", 0, self.plan.row_count


class RunWeightsSweep(WindowSweep):
    """All tiles of a block of windows."""

    plan: RunWeightsPlan
    stage: RunWeightsSums

    def _taps(self, n: int, shift: Shift, tap: Index, sums: list[Reduction]) -> None:
        """Those of the innermost axis are lanes, for all windows of a row."""
        if n < len(self.plan.axes) - 1:
            super()._taps(n, shift, tap, sums)
            return
        row = self._summed(n, 0, self.counts[n])
        self._row_tiles(self._moved(n, 0, shift), tap, [*sums, row], self.tile)

    def _row_tiles(self, shift: Shift, tap: Index, sums: list[Reduction], tile: Tile) -> None:
        """For some vectors of the run after the other: what a tile reads of them stays in L1 for all channels of y."""
        b, plan, stage = self.b, self.plan, self.stage
        tiles = sum(many for _, many, _ in plan.row_tiles), sum(many for _, many, _ in plan.column_tiles)

        def of_tile(tile: Tile, row: Piece, column: Piece) -> None:
            moved = b.mul(column.first, plan.lanes)
            place = b.dot([(tap, plan.sum_rows * plan.width), (row.first, plan.width), (moved, 1)])
            x = b.at(self.lanes, b.add(shift[1], moved), STORAGE[stage.lane_dtype])
            target = b.at(self.sums, place, stage.kind)
            number = b.dot([(tap, tiles[0] * tiles[1]), (column.number, tiles[0]), (row.number, 1)])
            walks = stage.ahead.of_tile(b, number, tiles[0] * tiles[1]) if stage.ahead else []
            start = stage.before(b, tile, target)
            tile.put(b, target, tile.sum(b, self._rows_at(shift, row.first), x, start, sums, walks=walks))

        def of_columns(column: Piece) -> None:
            self._each(plan.row_tiles, lambda row: of_tile(stage.tile_of(row.size, column.size), row, column))

        self._each(plan.column_tiles, of_columns)

    def _each(self, pieces: Pieces, body: Callable[[Piece], None]) -> None:
        b, before = self.b, 0
        for first, many, size in pieces:

            def piece(n: Index, _: object, first: int = first, size: int = size, before: int = before) -> None:
                body(Piece(b.add(first, b.mul(n, size)), b.add(before, n), size))

            b.loop(0, many, piece, name="tile")
            before += many


class RunWeightsSums(SumsStage):
    """The stages of a plan."""

    plan: RunWeightsPlan
    ahead: RunsAhead | None

    def _ahead(self) -> RunsAhead:
        return RunsAhead(self.plan, self.bundle, 0, 0)

    def _tile(self) -> Tile:
        return self.tile_of(self.plan.row_channels, self.plan.tile_vectors)

    def tile_of(self, rows: int, columns: int) -> Tile:
        """Rows are channels of y, columns vectors of the run."""
        plan, (_, row_channel) = self.plan, self.plan.row_slab
        vectors = tuple(v * plan.lanes for v in range(columns))
        return Tile(
            isa=self.isa, compute=plan.compute, a_dtype=self.row_dtype, b_dtype=self.lane_dtype,
            rows=tuple(k * row_channel for k in range(rows)),
            c_rows=tuple(k * plan.width for k in range(rows)),
            columns=vectors, c_columns=vectors,
        )  # fmt: skip

    def task(self, b: Builder, at: Places, task: Value) -> None:
        """As for any WeightsPlan, with zeros beside rows of x that no block writes, if blocks are whole rows."""
        if not self._cut:
            slab = b.at(at.scratch, self.row_slab_bytes, "i8")
            emit_zero(b, self.isa, self.plan.compute, slab, self.plan.lane_slab_size)
        super().task(b, at, task)

    @property
    def _cut(self) -> bool:
        """Whether blocks are parts of rows, each with its own zeros."""
        return self.plan.block[-1] < self.plan.axes[-1].windows

    def _zero_border(self, b: Builder, slab: Value, size: int, tensor: str, starts: list[Index]) -> None:
        if self._cut:
            super()._zero_border(b, slab, size, tensor, starts)

    def _clear(self, b: Builder) -> None:
        """Nothing: the first block of a chunk starts from zeros."""

    def before(self, b: Builder, tile: Tile, sums: Value) -> list[Value]:
        """What a tile starts from."""
        if isinstance(self.fresh, Value):
            return b.one_of(self.fresh, tile.zeros, lambda: tile.load(b, sums))
        return tile.zeros() if self.fresh else tile.load(b, sums)

    def _sweep(self, b: Builder, rows: Value, lanes: Value, lane_block: Index, starts: list[Index]) -> None:
        """All tiles."""
        RunWeightsSweep(self, b, rows, lanes, lane_block, starts).run()
