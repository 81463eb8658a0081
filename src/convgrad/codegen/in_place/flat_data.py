"""Lowering of a FlatDataPlan: that of a DataPlan whose tiles walk through planes as they lie in memory."""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence

from convgrad.codegen.general.data import DataStages
from convgrad.codegen.ir import Builder
from convgrad.codegen.ir_module import Index, Value, index
from convgrad.codegen.isa.base import BYTES, STORAGE
from convgrad.codegen.loops.sweep import Sweep
from convgrad.codegen.loops.tap_sums import Spot, paces
from convgrad.codegen.microkernels.contract import Tile
from convgrad.codegen.microkernels.reduction import Masks, Part, Reduction
from convgrad.codegen.microkernels.words import ODD, pairs_reader
from convgrad.codegen.outputs.results import store_runs
from convgrad.codegen.outputs.runs import Run
from convgrad.plan.costs import LINE
from convgrad.plan.in_place.flat_data import FlatDataPlan, shifts
from convgrad.plan.kinds import as_kind
from convgrad.values import frozen, replace

AHEAD = 512  # numbers, of what a tile reads last, that are asked for meanwhile


@frozen
class Planes:
    """Lines of every channel that a tile asks for, `each` of them in each of its steps."""

    first: Value
    channel_bytes: int
    channels: int
    lines: int  # of a channel
    each: int

    def begin(self, b: Builder) -> None:
        """Nothing at once."""

    def go_on(self, b: Builder, done: Index) -> None:
        """After so many steps."""
        for more in range(self.each):
            number = b.minimum(b.add(b.mul(done, self.each), more), self.channels * self.lines - 1)
            channel, line = b.split(number, (self.channels, self.lines))
            b.prefetch(b.beyond(self.first, b.dot([(channel, self.channel_bytes), (line, 64)])), keep=3)


@frozen(kw_only=True)
class PairsTile(Tile):
    """A tile whose columns are, two by two, outputs of even and of odd places of a run."""

    def store(self, b: Builder, c: Value, tile: Sequence[Value]) -> None:
        """In turn."""
        dtype, columns = self.c_dtype or self.compute, len(self.columns)
        places = [row + column for row in self.c_rows for column in self.c_columns[::2]]
        pairs = (tile[n : n + 2] for n in range(0, len(self.rows) * columns, 2))
        store_runs(b, self.isa, dtype, (
            Run(pair, b.at(c, place, STORAGE[dtype]), in_turn=True) for pair, place in zip(pairs, places, strict=True)
        ))  # fmt: skip


class FlatSweep(Sweep):
    """All tiles of a task, for one block of output channels."""

    plan: FlatDataPlan

    def _tile(self, shape: tuple[int, ...]) -> Tile:
        """Output channels against outputs of a plane."""
        plan, p = self.plan, self.plan.problem
        step = p.strides[p.solved][2]
        run = tuple(range(0, plan.run, plan.lanes))
        unroll = 1 if plan.channel_unit == 1 else min(4, plan.in_channels)
        return Tile(
            isa=self.isa, compute=plan.compute, b_dtype=p.dtype, c_dtype=p.out_dtype,
            rows=tuple(range(plan.width)), columns=run, c_columns=run,
            c_rows=tuple(range(0, plan.width * step, step)), unroll=unroll,
        )  # fmt: skip

    def run(self) -> None:
        """From the first row to the last; a tile at a border of the plane minds rows that are not there."""
        b, plan = self.b, self.plan
        if plan.fetches_ahead:
            self.taps.paces = paces(plan)
        spot = Spot()
        for n in range(plan.outer):
            (phase,) = plan.axes[n].phases
            at = self._moved(n, spot, 0, phase.first, phase.offset, phase.tap)
            spot = self.taps.summed(n, at, self.taps.bounds(plan.axes[n], 1, self.starts[n], phase.taps, phase.offset))
        start = self.starts[plan.outer]
        first = b.mul(start, plan.pitch)
        last = b.mul(b.minimum(b.add(start, plan.block[plan.outer]), plan.rows.count), plan.pitch)
        low, high = plan.inside

        def tile(p: Index, _: object) -> None:
            p = b.maximum(b.minimum(p, b.sub(last, plan.run)), 0)

            def all_inside() -> None:
                tile = self._pairs() if self._in_pairs else self.tile
                self._emit(spot, p, tile, self._column_sums(p, tile), None)

            if plan.inside == (0, plan.positions - plan.run):  # no tap is a shift
                all_inside()
                return
            column_sums = self._column_sums(p, self.tile)
            inside = b.both(b.compare("sge", p, low), b.compare("sle", p, high))
            b.either(
                inside, all_inside,
                lambda: self._emit(spot, p, self.tile, column_sums, lambda b, t: self._row_masks(p, t)),
            )  # fmt: skip

        b.loop(first, last, tile, step=plan.run, name="tile")

    @property
    def _in_pairs(self) -> bool:
        """Whether words of two numbers are read, where no row is missing."""
        p = self.plan.problem
        return p.dtype == p.out_dtype == "bf16" and self.plan.vectors % 2 == 0 and self.isa.assembly

    def _pairs(self) -> Tile:
        """The tile with columns of even and odd places."""
        run, lanes = self.plan.run, self.plan.lanes
        columns = tuple(v + odd for v in range(0, run, 2 * lanes) for odd in (0, ODD))
        return as_kind(PairsTile, self.tile, columns=columns, b_read=pairs_reader(lanes))

    def _emit(
        self, spot: Spot, p: Index, tile: Tile, column_sums: list[Reduction],
        masks: Callable[[Builder, Index], Masks] | None,
    ) -> None:  # fmt: skip
        """The tile at output p of the plane."""
        b, plan, kind = self.b, self.plan, STORAGE[self.plan.problem.dtype]
        (phase,) = plan.rows.phases
        tap_step = self.taps.strides[plan.outer]
        rows = self.taps.reduction(
            0, phase.taps, plan.rows.offset_step * plan.pitch, tap_step,
            self.taps.paces[1 + plan.outer],
        )  # fmt: skip
        sums = self.taps.in_order((*spot.sums, replace(rows, b_masks=masks, own_block=masks is not None), *column_sums))
        plane = b.at(self.slab, spot.slab, kind)
        x = b.at(plane, b.add(p, phase.offset * plan.pitch), kind)
        weights = b.at(self.weights, b.add(spot.weights, phase.tap * tap_step), STORAGE[plan.compute])
        target = b.at(self.results, b.add(spot.result, p), STORAGE[plan.problem.out_dtype])
        walks = [self._ahead(plane, p)] if plan.fetches_ahead else []
        tile.emit(b, weights, x, target, sums, self._begin(tile, weights, x), walks=walks)

    def _begin(self, tile: Tile, weights: Value, x: Value) -> list[Value]:
        """What the sums of a tile start from."""
        return self._start(tile)

    def _ahead(self, plane: Value, p: Index) -> Planes:
        """What a later tile reads first; behind the last one, of the planes that follow on these."""
        b, plan = self.b, self.plan
        channels, channel = plan.in_channels, plan.slab_strides[1]
        place = b.add(p, plan.pitch * max(0, *shifts(plan.rows)) + AHEAD)
        beyond = b.compare("sge", place, plan.positions)
        place = b.add(place, b.select(beyond, index((channels - 1) * channel), index(0)))
        size, steps = BYTES[plan.problem.dtype], self.taps.paces[0] * plan.runs
        lines = plan.run * size // LINE
        first = b.beyond(plane, b.mul(place, size))
        return Planes(first, channel * size, channels, lines, -(-channels * lines // max(1, steps)))

    # --- taps

    def _column_sums(self, p: Index, tile: Tile) -> list[Reduction]:
        """The taps of a row, each with the lanes that it does not carry beside the image."""
        b, plan, axis = self.b, self.plan, self.plan.columns
        if axis is None:
            return []
        (phase,) = axis.phases
        tap_step = self.taps.strides[-1]
        _, column = b.split(p, (1 << 62, plan.pitch))
        parts = tuple(
            Part(
                (phase.tap + t) * tap_step, shift, tuple(range(plan.width)),
                self._column_masks(column, shift, tile),
            )
            for t, shift in enumerate(shifts(axis))
        )  # fmt: skip
        return [Reduction(0, len(parts), 0, 0, parts=parts)]

    def _column_masks(self, column: Index, shift: int, tile: Tile) -> Masks:
        """Per vector of a tile that begins in a column: lanes that are in the image after a shift."""
        b, plan = self.b, self.plan
        if shift == 0:
            return ()
        size, kind = plan.lanes // 8, f"i{plan.lanes}"
        table, step = bytearray(), 2 if isinstance(tile, PairsTile) else 1
        for first in range(plan.pitch + plan.run - plan.lanes):
            columns = ((first + step * lane) % plan.pitch + shift for lane in range(plan.lanes))
            bits = sum((0 <= at < plan.pitch) << lane for lane, at in enumerate(columns))
            table += bits.to_bytes(size, sys.byteorder)
        masks = b.module.bytes(bytes(table))
        places = (b.add(column, v - ODD + 1 if v > ODD // 2 else v) for v in tile.columns)
        return tuple(b.load(kind, b.at(masks, place, kind), size) for place in places)

    def _row_masks(self, p: Index, t: Index) -> Masks:
        """Per vector of the tile at p: lanes that are in the image at tap t of the rows."""
        b, plan, kind = self.b, self.plan, f"i{self.plan.lanes}"
        (phase,) = plan.rows.phases
        row = b.add(b.mul(t, plan.rows.offset_step), phase.offset)
        place = b.add(p, b.mul(row, plan.pitch))

        def mask(v: int) -> Value:
            at = b.add(place, v)
            low = b.minimum(b.maximum(b.sub(0, at), 0), plan.lanes)
            high = b.minimum(b.maximum(b.sub(plan.positions, at), 0), plan.lanes)
            ends = [b.emit("i64", f"shl i64 -1, {index(end).text}") for end in (low, high)]
            some = b.binary("and", ends[0], b.binary("xor", ends[1], Value("i64", "-1")))
            return b.cast("trunc", some, kind)

        return tuple(mask(v) for v in range(0, plan.run, plan.lanes))


class FlatStages(DataStages):
    """The stages of a plan."""

    sweep = FlatSweep
