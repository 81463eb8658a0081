"""Lowering of a GatheredRowsPlan: lines of channels copied from the tensor, and looked at, output by output."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import product
from math import prod

from convgrad.codegen.by_matrix.beside_products import LineByLine
from convgrad.codegen.by_matrix.tile_by_tile import Block, Run, TileByTileStages, Tiles
from convgrad.codegen.ir import Builder
from convgrad.codegen.ir_module import Index, Value, index
from convgrad.codegen.isa.base import BYTES, STORAGE
from convgrad.codegen.stages import Places
from convgrad.plan.by_matrix.gathered_rows import GatheredRowsPlan
from convgrad.plan.by_matrix.matrix import DEPTH
from convgrad.problem.conv import Ints
from convgrad.values import replace

KIND, MOST_WRITTEN_OUT = STORAGE["bf16"], 32  # lines of an output


class GatheredRowsStages(TileByTileStages):
    """Both stages of a GatheredRowsPlan."""

    plan: GatheredRowsPlan

    @property
    def steps(self) -> int:
        """Taps and blocks of channels."""
        return self.plan.a_tiles

    def pack_input(self, b: Builder, at: Places) -> Value:
        """Nothing; from what tap 0 of the first output meets on."""
        place = b.mul(self.group, self.in_strides[1])
        for axis, start, stride in zip(self.plan.axes, self.starts, self.plan.given_steps, strict=True):
            place = b.add(place, b.mul(b.add(b.mul(start, axis.in_step), axis.phases[0].offset), stride))
        return b.at(at.of(self.input), place, KIND)

    def places(self) -> Ints:
        """In the tensor."""
        return tuple(axis.in_step * stride for axis, stride in zip(self.plan.axes, self.plan.given_steps, strict=True))

    def begin_block(self, b: Builder, block: Block) -> None:
        """The first tiles, if others come while there are products."""
        if self.plan.reads_rows:
            self.begins_with_lines = self.isa.is_aligned(b, block.origin)
        if self.plan.gathers_ahead:
            tiles = self._in_turn(b, block, 0)
            self._either(b, lambda: None, lambda: self.gather_rows(b, block, tiles, 0, tiles.left))

    def tiles_of(self, b: Builder, block: Block, t: Index) -> Tiles:
        """Where they were put while those before were multiplied."""
        return self._in_turn(b, block, t) if self.plan.gathers_ahead else super().tiles_of(b, block, t)

    def multiply(self, b: Builder, block: Block, tiles: Tiles, t: Index, first: Index, run: Run) -> None:
        """Where they lie, and are looked at line by line, or where they were put, while the next ones are copied.

        Lines that are looked at before their time leave L1 again: it costs a tenth.
        """
        plan = self.plan
        if not plan.gathers_ahead:
            super().multiply(b, block, tiles, t, first, run)
            return

        def rows(of: Tiles) -> list[tuple[Value, Value]]:
            return [self._row(b, block, of, b.add(first, row)) for row in range(plan.shared_rows)]

        def copied() -> None:
            following = rows(self._in_turn(b, block, b.add(t, 1)))
            more = b.compare("slt", b.mul(b.add(t, 1), plan.together), block.outputs)
            run(tiles, [LineByLine(lambda done: self._lines(b, following, done), more)])

        def in_place() -> None:
            here, present = b.at(block.origin, b.mul(tiles.first, plan.given_step), KIND), rows(tiles)
            walk = LineByLine(lambda done: self._lines(b, present, done, copied=False))
            run(replace(tiles, rows=here, row_step=plan.given_step, deep_step=DEPTH), [walk])

        self._either(b, in_place, copied)

    def end_tiles(self, b: Builder, block: Block, tiles: Tiles, t: Index, first: Index) -> None:
        """Rows that no block of lanes has seen to, since the last share of them has fewer."""
        plan = self.plan
        if not plan.gathers_ahead or plan.lane_blocks % plan.blocks_per_task == 0:
            return
        following = self._in_turn(b, block, b.add(t, 1))

        def look(row: Index, _: object) -> None:
            here = self._row(b, block, tiles, row)
            b.loop(0, self.steps, lambda done, _: self._lines(b, [here], done, copied=False), name="line")

        self._either(
            b, lambda: b.loop(first, plan.together, look, name="row"),
            lambda: self.gather_rows(b, block, following, first, following.left),  # of none, where there are no more
        )  # fmt: skip

    def _either(self, b: Builder, in_place: Callable[[], object], copied: Callable[[], object]) -> None:
        """What is to be done with rows that are read where they lie, or with those that are copied."""
        if self.plan.reads_rows:
            b.either(self.begins_with_lines, in_place, copied)
        else:
            copied()

    def _in_turn(self, b: Builder, block: Block, t: Index) -> Tiles:
        """Tiles number t, in one room or the other; the last of those that may be read in place begin early."""
        tiles = self.gathered(b, block, t, b.sub(t, b.mul(b.floor_div(t, 2), 2)))
        if not self.plan.reads_rows:
            return tiles
        together = self.plan.together
        return replace(tiles, first=b.minimum(tiles.first, b.sub(block.outputs, together)), left=together)

    def _row(self, b: Builder, block: Block, tiles: Tiles, number: Index) -> tuple[Value, Value]:
        """What one of the outputs meets, and its row of A; the last of them again, where there are no more."""
        number = b.minimum(number, self.plan.together - 1)
        output = b.minimum(b.add(tiles.first, number), b.sub(block.outputs, 1))
        here = b.at(block.origin, b.lookup(block.table, output), KIND)
        return here, b.at(tiles.rows, b.mul(number, tiles.row_step), KIND)

    def _lines(self, b: Builder, rows: Sequence[tuple[Value, Value]], done: Index, *, copied: bool = True) -> None:
        """Of each row, what a step of a sum meets; what lies a block of tiles further is asked for."""
        plan = self.plan
        taps = list(product(*(range(axis.taps) for axis in plan.axes)))
        steps = [axis.offset_step * step for axis, step in zip(plan.axes, plan.given_steps, strict=True)]
        places = [sum(tap * step for tap, step in zip(each, steps, strict=True)) for each in taps]
        deep = -(-plan.in_channels // DEPTH)
        lines = b.module.table([place + d * DEPTH for d in range(deep) for place in places])
        place, channel = b.lookup(lines, done), b.mul(b.floor_div(done, len(taps)), DEPTH)
        count = b.minimum(b.sub(plan.in_channels, channel), DEPTH) if plan.in_channels % DEPTH else None
        for here, there in rows:
            src = b.at(here, place, KIND)
            self._line(b, src, b.at(there, b.mul(done, plan.a_steps[1]), KIND) if copied else None, count)
            if plan.asks_ahead:
                b.prefetch(b.beyond(src, plan.asks_ahead * BYTES["bf16"]), keep=2)

    def gather(self, b: Builder, here: Value, rows: Value) -> None:
        """Tap by tap, lines of 32 channels; in loops where they are many."""
        plan, step = self.plan, self.plan.a_steps[1]
        deep, rest = divmod(plan.in_channels, DEPTH)
        of_block = prod(axis.taps for axis in plan.axes) * step

        def each(count: int, body: Callable[[Index], None]) -> None:
            if plan.a_tiles > MOST_WRITTEN_OUT:
                b.loop(0, count, lambda i, _: body(i), name="line")
                return
            for i in range(count):
                body(i)

        def taps(n: int, src: Value, dst: Value) -> None:
            if n < len(plan.axes):
                inner = prod(axis.taps for axis in plan.axes[n + 1 :])
                of_src, of_dst = plan.axes[n].offset_step * plan.given_steps[n], inner * step
                each(
                    plan.axes[n].taps,
                    lambda r: taps(n + 1, b.at(src, b.mul(r, of_src), KIND), b.at(dst, b.mul(r, of_dst), KIND)),
                )  # fmt: skip
                return
            each(
                deep,
                lambda d: self._line(b, b.at(src, b.mul(d, DEPTH), KIND), b.at(dst, b.mul(d, of_block), KIND), None),
            )
            if rest:
                self._line(b, b.at(src, deep * DEPTH, KIND), b.at(dst, deep * of_block, KIND), rest)

        taps(0, here, rows)

    def _line(self, b: Builder, src: Value, dst: Value | None, count: Index | None) -> None:
        """Of 32 channels, or the first of them: looked at and, to some place, copied."""
        value = self.isa.load_bits(b, "bf16", src, DEPTH, None if count is None else index(count))
        if self.watch is not None:
            self.watch.note_bf16(b, value)
        if dst is not None:
            b.store(value, dst, 64)
