"""Lowering of a GatheredRowsPlan: lines of channels copied from the tensor, and looked at, output by output."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import product
from math import prod

from convgrad.codegen.by_matrix.tile_by_tile import TileByTileStages
from convgrad.codegen.ir import Builder
from convgrad.codegen.ir_module import Index, Value, index
from convgrad.codegen.isa.base import BYTES, STORAGE
from convgrad.codegen.stages import Places
from convgrad.plan.by_matrix.gathered_rows import GatheredRowsPlan
from convgrad.plan.by_matrix.matrix import DEPTH
from convgrad.problem.conv import Ints
from convgrad.values import frozen

KIND, MOST_WRITTEN_OUT = STORAGE["bf16"], 32  # lines of an output


@frozen
class RowsAhead:
    """Of rows that begin at some places, the line that each step of a sum meets of the present ones, `lines` apart."""

    rows: Sequence[Value]
    lines: Value  # a table, in numbers

    def begin(self, b: Builder) -> None:
        """Nothing."""

    def go_on(self, b: Builder, done: Index) -> None:
        """A line of each row."""
        line = b.mul(b.lookup(self.lines, done), BYTES["bf16"])
        for row in self.rows:
            b.prefetch(b.beyond(row, line), keep=2)


class GatheredRowsStages(TileByTileStages):
    """Both stages of a GatheredRowsPlan."""

    plan: GatheredRowsPlan

    @property
    def steps(self) -> int:
        """Taps and blocks of channels."""
        return self.plan.a_tiles

    @property
    def _given(self) -> Ints:
        return self.in_strides[0], *self.in_strides[3:]

    def pack_input(self, b: Builder, at: Places) -> Value:
        """Nothing; from what tap 0 of the first output meets on."""
        place = b.mul(self.group, self.in_strides[1])
        for axis, start, stride in zip(self.plan.axes, self.starts, self._given, strict=True):
            place = b.add(place, b.mul(b.add(b.mul(start, axis.in_step), axis.phases[0].offset), stride))
        return b.at(at.of(self.input), place, KIND)

    def places(self) -> Ints:
        """In the tensor."""
        return tuple(axis.in_step * stride for axis, stride in zip(self.plan.axes, self._given, strict=True))

    def row_ahead(self, b: Builder, here: Sequence[Value]) -> RowsAhead:
        """Line by line."""
        plan = self.plan
        taps = product(*(range(axis.taps) for axis in plan.axes))
        steps = [axis.offset_step * stride for axis, stride in zip(plan.axes, self._given, strict=True)]
        places = [sum(tap * step for tap, step in zip(each, steps, strict=True)) for each in taps]
        deep = -(-plan.in_channels // DEPTH)
        return RowsAhead(here, b.module.table([place + d * DEPTH for d in range(deep) for place in places]))

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

        def line(src: Value, dst: Value, count: int | None) -> None:
            value = self.isa.load_bits(b, "bf16", src, DEPTH, None if count is None else index(count))
            if self.watch is not None:
                self.watch.note_bf16(b, value)
            b.store(value, dst, 64)

        def taps(n: int, src: Value, dst: Value) -> None:
            if n < len(plan.axes):
                inner = prod(axis.taps for axis in plan.axes[n + 1 :])
                of_src, of_dst = plan.axes[n].offset_step * self._given[n], inner * step
                each(
                    plan.axes[n].taps,
                    lambda r: taps(n + 1, b.at(src, b.mul(r, of_src), KIND), b.at(dst, b.mul(r, of_dst), KIND)),
                )  # fmt: skip
                return
            each(deep, lambda d: line(b.at(src, b.mul(d, DEPTH), KIND), b.at(dst, b.mul(d, of_block), KIND), None))
            if rest:
                line(b.at(src, deep * DEPTH, KIND), b.at(dst, deep * of_block, KIND), rest)

        taps(0, here, rows)
