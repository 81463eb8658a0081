"""Sums that one task forms alone, and turns into weights: from registers where it can, else when all are there."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from math import prod

from convgrad.codegen.copies.copying import Dim
from convgrad.codegen.ir import Builder
from convgrad.codegen.ir_module import Index, Value
from convgrad.codegen.isa.base import ARITHMETIC, STORAGE
from convgrad.codegen.loops.half_vectors import Columns, of_taps, weights_columns
from convgrad.codegen.microkernels.contract import Tile
from convgrad.codegen.outputs.finish import weights_copy, write_rows
from convgrad.codegen.stages import Places
from convgrad.plan.general.weights import WeightsPlan


@dataclass
class OwnSums:
    """Of one task, at `sums` in its scratch memory, in the order (lane block, tap, row channel, lane).

    The first block of windows starts from zeros in registers. Where a tile holds whole vectors of weights the last one
    stores them as weights, so that a sum over one block of windows meets no other memory at all.
    """

    plan: WeightsPlan
    tile: Tile
    at: Places
    sums: Value
    bundle: Index
    first_row: Index  # of the task
    first_block: Index
    last_block: Index
    number: Index = 0  # of the block of windows
    row: Index = 0  # from which on `sums` holds them, of the rows of the task
    last: bool = False  # whether the tile is that of the last lane block
    rows: int = 0  # row channels of the tile; 0: as many as the plan says

    def of_tile(self, tile: Tile, *, last: bool, rows: int) -> OwnSums:
        """The same sums, in tiles of another shape."""
        return replace(self, tile=tile, last=last, rows=rows)

    def place(self, b: Builder, lane_block: Index, tap: Index, row: Index) -> Value:
        """Where the sums of a tile are."""
        plan = self.plan
        if plan.straight and self._blocks == 1:  # nobody comes back for them
            return self.sums
        which = 0 if plan.in_turn else b.sub(lane_block, self.first_block)
        place = b.sub(row, self.row)
        of_tap, of_row = plan.sum_steps
        offset = b.dot([(which, plan.sum_block), (tap, of_tap), (place, of_row)])
        return b.at(self.sums, offset, ARITHMETIC[plan.compute])

    def before(self, b: Builder, place: Value) -> list[Value]:
        """What the tile at a place starts from."""
        fresh = self.fresh(b)
        if isinstance(fresh, Value):
            return b.one_of(fresh, self.tile.zeros, lambda: self.tile.load(b, place))
        return self.tile.zeros()

    def fresh(self, b: Builder) -> bool | Value:
        """Whether tiles start from zeros."""
        return b.compare("eq", self.number, 0) if self._blocks > 1 else True

    def after(self, b: Builder, place: Value, tile: Sequence[Value], lane_block: Index, tap: Index, row: Index) -> None:
        """Keep the tile at its place, or make it weights."""

        def store(target: Value, row_step: int | None) -> None:
            if row_step is None:
                self.tile.store(b, target, tile)
            else:
                self._store_weights(b, target, tile)

        self.keep(b, place, store, lane_block, tap, row)

    def keep(
        self, b: Builder, place: Value, store: Callable[[Value, int | None], None], lane_block: Index, tap: Index,
        row: Index,
    ) -> None:  # fmt: skip
        """The same of any tile: `store` puts it among the sums or, with the step from row to row, among the weights."""
        if not self.plan.straight:
            store(place, None)
        elif self._blocks == 1:
            self._write(b, place, store, lane_block, tap, row)
        else:
            b.either(
                b.compare("eq", self.number, self._blocks - 1),
                lambda: self._write(b, place, store, lane_block, tap, row),
                lambda: store(place, None),
            )

    def finish(self, b: Builder) -> None:
        """All sums are there: write those that are not weights yet."""
        plan = self.plan
        if not (plan.straight or plan.by_rows):
            self._finish_blocks(b, 0, self._rows(b))
        if self._streams or (plan.turned_past_caches and self.tile.isa.streams):
            self.tile.isa.end_streams(b)

    def by_rows(
        self, b: Builder, lane_blocks: tuple[Index, Index], sweep: Callable[[tuple[Index, Index]], None]
    ) -> None:
        """Some rows after the other: all their taps, which `sweep` emits from one row to another, then the weights."""
        plan, count = self.plan, self._rows(b)

        def of_rows(first: Index, _: object) -> None:
            last = b.minimum(b.add(first, plan.rows_at_once), count)
            self.row = first if self._blocks == 1 else 0
            sweep((first, last))
            if self._blocks == 1:
                self._finish_blocks(b, first, last, lane_blocks)
            else:
                with b.when(b.compare("eq", self.number, self._blocks - 1)):
                    self._finish_blocks(b, first, last, lane_blocks)

        b.loop(0, count, of_rows, step=plan.rows_at_once, name="rows")

    def _rows(self, b: Builder) -> Index:
        """Of the task."""
        return b.minimum(b.sub(self.plan.row_count, self.first_row), self.plan.share_rows)

    def _finish_blocks(
        self, b: Builder, first: Index, last: Index, lane_blocks: tuple[Index, Index] | None = None
    ) -> None:  # fmt: skip
        """Write the weights of some rows and lane blocks, or of all of these."""
        plan = self.plan

        def of_block(lane_block: Index, _: object) -> None:
            def of_rows(row: Index, _: object) -> None:
                sums, channel = self.place(b, lane_block, 0, row), b.add(self.first_row, row)

                def write(rows: Index) -> None:
                    self._write_rows(b, sums, (lane_block, channel), rows)

                many, rest = plan.finish_rows, b.minimum(b.sub(last, row), plan.finish_rows)
                if plan.finishes_evenly:
                    write(many)
                elif plan.taps_inside:
                    b.either(b.compare("eq", rest, many), lambda: write(many), lambda: write(rest))
                else:
                    write(rest)

            b.loop(first, last, of_rows, step=plan.finish_rows, name="row")

        b.loop(*(lane_blocks or (self.first_block, self.last_block)), of_block, name="write")

    def _copy(self, b: Builder, sums: Value, target: Value, extents: tuple[Index, Index]) -> None:
        """Some rows and lanes of a tile, with all of its taps."""
        plan, p = self.plan, self.plan.problem
        of_tap = Dim(plan.tile_taps, plan.sum_rows * plan.width, p.w_strides[-1])

        def emit(b: Builder, sums: Value, target: Value, rows: Index, lanes: Index) -> None:
            box = [of_tap, Dim(rows, plan.width, self._row_step), Dim(lanes, 1, 1)]
            weights_copy(plan).emit(b, sums, target, box)

        if self.tile.isa.few_registers:
            _apart(b, "write.tile", (sums, target), extents, emit)
        else:
            emit(b, sums, target, *extents)

    def _write_rows(self, b: Builder, sums: Value, first: tuple[Index, Index], rows: Index) -> None:
        """So many, from a lane block and a channel on."""
        plan, at, numbers = self.plan, self.at, (self.bundle, *first, rows)

        def emit(b: Builder, sums: Value, w: Value, scratch: Value, bundle: Index, *numbers: Index) -> None:
            write_rows(plan, b, replace(at, w=w, scratch=scratch), sums, bundle, *numbers)

        if self.tile.isa.few_registers:
            _apart(b, "write.rows", (sums, at.w, at.scratch), numbers, emit)
        else:
            write_rows(plan, b, at, sums, *numbers)

    @property
    def _blocks(self) -> int:
        return prod(self.plan.block_grid)

    def _write(
        self, b: Builder, place: Value, store: Callable[[Value, int | None], None], lane_block: Index, tap: Index,
        row: Index,
    ) -> None:  # fmt: skip
        """Straight to the weights or, what is not all there of a tile, by way of its place."""
        plan, p = self.plan, self.plan.problem
        group = p.w_strides[0]
        channel = b.add(self.first_row, row)
        taps = zip(b.split(tap, p.taps), p.w_strides[3:], strict=True)
        lane = b.mul(lane_block, plan.width)
        if plan.lanes_in_place:
            lane = b.minimum(lane, plan.lane_count - plan.width)
        origin = b.dot([*taps, (self.bundle, group), (lane, 1), (channel, self._row_step)])
        target = b.at(self.at.w, origin, STORAGE[p.out_dtype])
        rows, lanes = b.sub(plan.row_count, channel), b.sub(plan.lane_count, lane)

        def partly() -> None:
            store(place, None)
            done, *_ = self._vectors[0]  # lanes that are those of a block before
            here, there = b.at(place, done, ARITHMETIC[plan.compute]), b.at(target, done, STORAGE[p.out_dtype])
            self._copy(b, here, there, (b.minimum(rows, plan.row_channels), b.sub(b.minimum(lanes, plan.width), done)))

        whole = self._whole(b, rows, lanes)
        if whole is None:
            store(target, self._row_step)
        else:
            b.either(whole, lambda: store(target, self._row_step), partly)

    def _store_weights(self, b: Builder, target: Value, tile: Sequence[Value]) -> None:
        straight = self._straight()
        if self._streams:
            aligned = self.tile.isa.is_aligned(b, self.at.w)
            b.either(aligned, lambda: straight.stream(b, target, tile), lambda: straight.store(b, target, tile))
        else:
            straight.store(b, target, tile)

    @property
    def _vectors(self) -> Columns:
        """Of the tile, of one tap."""
        return weights_columns(self.plan, last=self.last or self.plan.lane_blocks == 1)

    @property
    def _lanes(self) -> int:
        """Of which all tiles like this one have whole weights, if the lanes are a multiple of them."""
        return self.plan.lanes if self.last and self.plan.may_end_early else self.plan.width

    @property
    def _row_step(self) -> int:
        """From a channel of the rows to the next, in the weights."""
        return self.plan.problem.w_strides[2 if self.plan.rows_shift else 1]

    @property
    def _streams(self) -> bool:
        return self.plan.past_caches and self.tile.isa.streams

    def _whole(self, b: Builder, rows: Index, lanes: Index) -> Value | None:
        """Whether the weights have all rows and lanes of a tile; None: always."""
        plan = self.plan
        conditions = []
        if plan.row_count % plan.row_channels and not plan.rest_rows:
            conditions.append(b.compare("sge", rows, plan.row_channels))
        if plan.lane_count % self._lanes and not plan.lanes_in_place:
            conditions.append(b.compare("sge", lanes, plan.width))
        if len(conditions) == 2:
            return b.both(*conditions)
        return conditions[0] if conditions else None

    def _straight(self) -> Tile:
        """The tile with its sums among the weights."""
        plan, strides, row_step = self.plan, self.plan.problem.w_strides, self._row_step
        taps, channels = range(plan.tile_taps), range(self.rows or plan.row_channels)
        row_taps, column_taps = (taps, 1) if plan.rows_shift else (range(1), plan.tile_taps)
        return replace(
            self.tile,
            c_dtype=plan.problem.out_dtype,
            c_rows=tuple(t * strides[-1] + c * row_step for t in row_taps for c in channels),
            c_columns=of_taps(self._vectors, column_taps, strides[-1])[0],
        )


def _apart(
    b: Builder, name: str, pointers: Sequence[Value], numbers: Sequence[Index], body: Callable[..., None]
) -> None:
    """`body(builder, *pointers, *numbers)` as a function, one for every choice of numbers that are known.

    What LLVM loads for shuffles and for rounding it else keeps in registers through the loops of products before.
    """
    name += "".join(f".{number}" if isinstance(number, int) else ".n" for number in numbers)
    some = [number for number in numbers if isinstance(number, Value)]
    if name not in b.module.notes:
        b.module.notes.add(name)
        arguments = [("ptr", f"p{n}") for n in range(len(pointers))] + [("i64", f"n{n}") for n in range(len(some))]
        inner = Builder(b.module, name, arguments, inline=False)
        given = iter(inner.arguments[len(pointers) :])
        known = [next(given) if isinstance(number, Value) else number for number in numbers]
        body(inner, *inner.arguments[: len(pointers)], *known)
        inner.finish()
    b.call_void(name, *pointers, *some)
