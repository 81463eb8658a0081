"""Lowering of a RowDataPlan: tiles along the outputs of a row that read rows as they lie in memory."""

from __future__ import annotations

from collections.abc import Sequence

from convgrad.codegen.copies.copying import Copy
from convgrad.codegen.copies.interleave import dealt_order, gathered
from convgrad.codegen.copies.squares import Dim
from convgrad.codegen.few_channels.folded import FoldedStages
from convgrad.codegen.general.data import DataStages
from convgrad.codegen.in_place.row_weights import read_every
from convgrad.codegen.ir import Builder
from convgrad.codegen.ir_module import Index, Value, index
from convgrad.codegen.isa.base import BYTES, STORAGE, shuffle
from convgrad.codegen.loops.sweep import Sweep
from convgrad.codegen.loops.tap_sums import Spot
from convgrad.codegen.microkernels.contract import Read, Tile
from convgrad.codegen.outputs.results import store_runs
from convgrad.codegen.outputs.runs import IN_TURN, Run, rounds
from convgrad.codegen.stages import Places
from convgrad.plan.axes import GatherAxis, Phase
from convgrad.plan.costs import LINE
from convgrad.plan.in_place.row_data import RowDataPlan
from convgrad.plan.kinds import as_kind
from convgrad.values import frozen, replace

COLUMN = 1 << 44  # from a column of a tile to the next, in its offsets; see `RowSweep._reader`
ANYWHERE = 1 << 40  # elements of a row that goes on as far as a tile reads


@frozen(kw_only=True)
class PhasesTile(Tile):
    """A tile whose rows are phases of channels, which meet in registers on their way to memory."""

    phases: int
    rest: int | None  # elements of the row from the first one of the tile on; None: all that the tile has
    ahead_of_results: int = 0  # numbers by which lines are asked for before they are written; 0: they are not

    def store(self, b: Builder, c: Value, tile: Sequence[Value]) -> None:
        """Vectors of elements side by side, and none beyond the row."""
        columns, lanes = len(self.columns), self.isa.lanes(self.compute)
        dtype = self.c_dtype or self.compute
        runs = [
            ([tile[(channel + phase) * columns + v] for phase in range(self.phases)], self.c_rows[channel] + place, v)
            for channel in range(0, len(self.rows), self.phases) for v, place in enumerate(self.c_columns)
        ]  # fmt: skip
        if rounds(dtype) and self.phases in IN_TURN:
            rooms = (None if self.rest is None else self.rest - self.phases * self._along(v) for *_, v in runs)
            store_runs(b, self.isa, dtype, (
                Run(parts, b.at(c, there, STORAGE[dtype]), room, self.phases > 1)
                for (parts, there, _), room in zip(runs, rooms, strict=True)
            ))  # fmt: skip
            return
        for parts, there, v in runs:
            for i, value in enumerate(gathered(b, self.isa, parts)):
                room = lanes if self.rest is None else self.rest - self.phases * self._along(v) - i * lanes
                if room <= 0:
                    continue
                address = b.at(c, there + i * lanes, STORAGE[dtype])
                if self.ahead_of_results:
                    b.prefetch(b.beyond(address, self.ahead_of_results * BYTES[dtype]), keep=2)
                self.isa.store(b, dtype, value, address, None if room >= lanes else index(room))

    def _along(self, v: int) -> int:
        """Where column v begins in the row."""
        return self.columns[v] % COLUMN


@frozen(kw_only=True)
class DealtTile(Tile):
    """A tile whose lanes are in the order of `dealt_order` until they are stored."""

    def store(self, b: Builder, c: Value, tile: Sequence[Value]) -> None:
        """In the order of the row."""
        lanes = self.isa.lanes(self.compute)
        places = dealt_order(lanes)
        Tile.store(self, b, c, [shuffle(b, v, v, [places.index(lane) for lane in range(lanes)]) for v in tile])


class RowSweep(Sweep):
    """All tiles of a task, for one block of output channels."""

    plan: RowDataPlan

    def _tile(self, shape: tuple[int, ...]) -> Tile:
        """Columns say which row and which output in it they begin with, and `_reader` what that reads."""
        plan, inner = self.plan, self.plan.axes[-1]
        tile = Sweep._tile(self, (*plan.tile[:-2], 1, plan.tile[-1]) if len(plan.axes) > 2 else plan.tile)
        along, c_columns = plan.columns, [place * plan.written_phases for place in plan.columns]
        rows = shape[-2] if len(plan.axes) > 2 else 1
        of_row = plan.result_strides[0][-2][1] if rows > 1 else 0
        apart = (inner.taps - 1) * abs(inner.offset_step) + inner.in_step < plan.channel_step
        tile = replace(
            tile,
            columns=tuple((m * len(along) + v) * COLUMN + at for m in range(rows) for v, at in enumerate(along)),
            c_columns=tuple(m * of_row + at for m in range(rows) for at in c_columns),
            unroll=tile.unroll if apart else 1,
        )
        if plan.deals:
            return as_kind(DealtTile, tile)
        if plan.written_phases == 1:
            return tile
        c_rows = tuple(r // plan.phases * plan.result_strides[1] for r in range(plan.width))
        return as_kind(
            PhasesTile, tile, c_rows=c_rows, phases=plan.phases, rest=None, ahead_of_results=plan.ahead_of_results
        )  # fmt: skip

    def _axis(self, n: int, spot: Spot) -> None:
        """Some rows at a time where no tap of theirs misses the input, one at a time elsewhere."""
        plan, b = self.plan, self.b
        if n != len(plan.axes) - 2 or plan.tile[n] == 1:
            Sweep._axis(self, n, spot)
            return
        axis, several = plan.axes[n], plan.tile[n]
        ends = [max(0, end) for phase in axis.phases for end in axis.inside(phase)]
        table = b.module.table([v for f in axis.phases for v in (f.first, f.count, f.taps, f.offset, f.tap)])
        inside = b.module.table(ends)
        together, alone = self.tile, self._tile((*plan.tile[:-2], 1, plan.tile[-1]))

        def phase(number: Index, _: object) -> None:
            first, count, taps, offset, tap = (b.lookup(table, b.add(b.mul(number, 5), i)) for i in range(5))
            stop = self._stop(n, count)
            low, high = (b.lookup(inside, b.add(b.mul(number, 2), i)) for i in range(2))
            low = b.minimum(b.maximum(b.sub(low, self.starts[n]), 0), stop)
            high = b.maximum(b.minimum(b.sub(high, self.starts[n]), stop), low)
            high = b.add(low, b.mul(b.floor_div(b.sub(high, low), several), several))

            def rows(j: Index, _: object) -> None:
                self.tile = together
                self._axis_inside(n, spot, j, (first, offset, tap), (0, taps))

            def row(j: Index, _: object) -> None:
                self.tile = alone
                j = b.select(b.compare("slt", j, low), index(j), index(b.add(j, b.sub(high, low))))
                bounds = self.taps.bounds(axis, 1, b.add(self.starts[n], j), taps, offset)
                self._axis_inside(n, spot, j, (first, offset, tap), bounds)

            b.loop(low, high, rows, step=several, name="rows")
            b.loop(0, b.sub(stop, b.sub(high, low)), row, name="row")

        b.loop(0, len(axis.phases), phase, name="phase")

    def _axis_inside(
        self, n: int, spot: Spot, j: Index, of_phase: tuple[Index, Index, Index], bounds: tuple[Index, Index]
    ) -> None:
        """The tiles at output j, with the taps that all of their rows have."""
        Sweep._axis(self, n + 1, self.taps.summed(n, self._moved(n, spot, j, *of_phase), bounds))

    def _known_phase(self, n: int, axis: GatherAxis, phase: Phase, spot: Spot) -> None:
        """The tiles of a row: the first one, those that lie inside, the last one."""
        plan, b, begin, whole = self.plan, self.b, self.starts[n], self.tile
        tiles = plan.row_tiles
        last = plan.tile_start(tiles - 1)
        middle = (plan.tile[n], plan.tile_start(tiles - 2) + 1)  # from the second to the last but one

        def tile(j: Index, start: int | None) -> None:
            at = self._moved(n, spot, j, phase.first, phase.offset, phase.tap)
            first = None if start is None else start * axis.in_step + phase.offset
            self.tile = replace(whole, b_read=self._reader(first))
            if isinstance(self.tile, PhasesTile) and start is not None:
                self.tile = replace(self.tile, rest=plan.unfolded.x_extent[-1] - plan.phases * start)
            self._emit_tile(self.taps.in_parts(n, axis, phase, at))
            self.tile = whole

        if plan.block[n] >= axis.count:
            tile(0, 0)
            if tiles > 2:
                b.loop(*middle, lambda j, _: tile(j, None), step=plan.tile[n], name="inside")
            if tiles > 1:
                tile(last, last)
            return

        def some(j: Index, _: object) -> None:
            at = b.add(begin, j)
            is_last = b.compare("sge", at, middle[1])

            def further() -> None:
                b.either(is_last, lambda: tile(b.sub(last, begin), last), lambda: tile(j, None))

            b.either(b.compare("eq", at, 0), lambda: tile(j, 0), further)

        b.loop(0, self._stop(n, axis.count), some, step=plan.tile[n], name="tile")

    def _reader(self, first: int | None) -> Read:
        """How vectors are read by a tile whose base is element `first` of the row; None: one somewhere inside.

        Offsets are a number of a column, where it begins in the row, how far a tap shifts that, and some channels.
        """
        plan, axis = self.plan, self.plan.axes[-1]
        lanes, dtype, many = plan.lanes, plan.problem.dtype, len(plan.columns)
        of_row = axis_step(plan)
        beginning = axis.phases[0].offset if first is None else first  # of the base, or a multiple of a vector before
        reach = (axis.phases[0].taps - 1) * axis.offset_step
        read: dict[tuple[str, int, int], Value] = {}
        unroll = self.tile.unroll

        order = dealt_order(lanes) if plan.deals else None
        asks = 0 if plan.fetches_rows else None  # the shift of the taps that do
        following = axis_step(plan) * plan.tile[-2] if len(plan.axes) > 2 else plan.tile[-1] * axis.in_step
        ahead = following * BYTES[dtype]

        def one(b: Builder, x: Value, base: int, of_row: int, shift: int) -> Value:
            if (x.text, base, of_row) not in read:
                address = b.at(x, base + of_row, STORAGE[dtype])
                if shift == asks:
                    for line in range(0, axis.in_step * lanes * BYTES[dtype], LINE):
                        b.prefetch(b.beyond(address, ahead + line), keep=3)
                element, extent = (0, ANYWHERE) if first is None else (first + of_row, axis.in_extent)
                value = read_every(b, self.isa, dtype, address, axis.in_step, element, extent, lanes, order)
                read[x.text, base, of_row] = value
            return read[x.text, base, of_row]

        def vector(b: Builder, x: Value, offset: int) -> Value:
            number = (offset + COLUMN // 2) // COLUMN
            at = plan.columns[number % many]
            shift = offset - number * COLUMN - at
            base = number // many * of_row
            if unroll > 1:
                channels = (shift - min(0, reach)) // plan.channel_step * plan.channel_step
                shift, base = shift - channels, base + channels
            place = at * axis.in_step + shift
            rest = (beginning + place) % lanes if plan.slides else 0  # channels begin with lines, too
            if rest == 0:
                return one(b, x, base, place, shift)
            return self.isa.slide(
                b, one(b, x, base, place - rest, shift), one(b, x, base, place - rest + lanes, 1 << 60), rest
            )

        return vector


def axis_step(plan: RowDataPlan) -> int:
    """Numbers of the input from what a row of outputs reads to what the next one does."""
    return plan.axes[-2].in_step * plan.slab_strides[0][-2]


class RowStages(FoldedStages):
    """The stages of a plan."""

    plan: RowDataPlan
    sweep = RowSweep

    def _pack(
        self, b: Builder, at: Places, which: tuple[Index, Index, Index], target: Value, bias: Value | None
    ) -> None:  # fmt: skip
        of = FoldedStages if self.plan.phases > 1 else DataStages
        of._pack(self, b, at, which, target, bias)

    def _unpack(self, b: Builder, at: Places, results: Value, block: Index) -> None:
        if self.plan.written_phases == 1 < self.plan.phases:
            FoldedStages._unpack(self, b, at, results, block)
        elif self.plan.phases == 1:
            DataStages._unpack(self, b, at, results, block)
        else:
            self._unpack_rows(b, at, results, block)

    def _unpack_rows(self, b: Builder, at: Places, results: Value, block: Index) -> None:
        """Of which phases have met already."""
        plan, p = self.plan, self.plan.unfolded
        dims, target = [], self._of_lanes(b, block)
        axis_steps, channel_step = plan.result_strides
        outer = zip(
            plan.axes, self.starts, plan.result_extent, (p.x_strides[0], *p.x_strides[3:]), axis_steps, strict=True
        )
        for axis, start, extent, stride, (step, _) in list(outer)[:-1]:
            origin = b.mul(start, axis.out_step)
            dims.append(Dim(b.minimum(b.sub(axis.out_extent, origin), extent), step, stride))
            target = b.add(target, b.mul(origin, stride))
        first = b.mul(self.starts[-1], plan.phases)
        run = b.minimum(b.sub(p.x_extent[-1], first), plan.row_extent)
        target = b.add(target, b.mul(first, p.x_strides[-1]))
        dims += [Dim(run, 1, p.x_strides[-1]), Dim(plan.width // plan.phases, channel_step, p.x_strides[2])]
        copy = Copy(
            isa=self.isa, compute=plan.compute, src_dtype=plan.compute, dst_dtype=p.out_dtype,
            accumulate=p.accumulate, past_caches=plan.past_caches,
        )  # fmt: skip
        copy.emit(b, results, b.at(at.of(self.output), target, STORAGE[p.out_dtype]), dims)

    def _of_lanes(self, b: Builder, block: Index) -> Index:
        """Where the channels of a block of lanes begin in X."""
        p, channels = self.plan.unfolded, self.plan.width // self.plan.phases
        return b.dot([(self.group, p.x_strides[1]), (block, channels * p.x_strides[2])])

    def _in_place(self, b: Builder, at: Places, block: Index) -> None:
        if self.plan.phases == 1:
            FoldedStages._in_place(self, b, at, block)
        else:
            target = b.at(at.of(self.output), self._of_lanes(b, block), STORAGE[self.plan.problem.out_dtype])
            self._sweep(b, at, at.scratch, target, block, 0, fresh=True)

    def _pack_slab(self, b: Builder, at: Places, slab: Value, i_block: Index) -> None:
        """Nothing."""

    def _sweep(
        self, b: Builder, at: Places, slab: Value, results: Value, block: Index, i_block: Index,
        fresh: bool | Value,
    ) -> None:  # fmt: skip
        """From the input itself."""
        place = b.dot([(self.group, self.in_strides[1]), (i_block, self.plan.i_block * self.in_strides[2])])
        slab = b.at(at.of(self.input), place, STORAGE[self.plan.problem.dtype])
        FoldedStages._sweep(self, b, at, slab, results, block, i_block, fresh)
