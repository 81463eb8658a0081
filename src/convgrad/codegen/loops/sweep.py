"""The loops of a DataPlan over phases and register tiles, for one block of lanes and one block of input channels."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from math import prod
from typing import Protocol

from convgrad.codegen.ir import Builder
from convgrad.codegen.ir_module import Index, Value
from convgrad.codegen.isa import ISAS
from convgrad.codegen.isa.base import ARITHMETIC, STORAGE
from convgrad.codegen.isa.halves import with_lower_half
from convgrad.codegen.loops.ahead import Fetch
from convgrad.codegen.loops.half_vectors import lane_columns, row_columns
from convgrad.codegen.loops.lanes import weights_steps
from convgrad.codegen.loops.tap_sums import Spot, TapSums, paces
from convgrad.codegen.microkernels.contract import Tile
from convgrad.codegen.microkernels.reduction import Groups
from convgrad.dtypes import SIZES
from convgrad.plan.axes import GatherAxis, Phase
from convgrad.plan.general.block_costs import NEAR_BYTES
from convgrad.plan.general.data import DataPlan
from convgrad.problem.conv import Ints
from convgrad.values import replace

AHEAD_BYTES = 2048
STEPS_AHEAD = 6
ROWS_AHEAD = 8
MOST_WRITTEN_OUT = 8  # channels


class Beside(Protocol):
    """What packs a slab that tiles meet before it is whole."""

    def up_to(self, b: Builder, place: Index) -> None:
        """What is missing of all positions before one."""

    def after(self, b: Builder, number: int) -> None:
        """More of it, after a product of so many."""


class Sweep:
    """Emits axis after axis, outermost first; `fresh` sums start from the bias or zero, others from the results."""

    def __init__(
        self, plan: DataPlan, b: Builder, slab: Value, weights: Value, results: Value, bias: Value | None,
        channels: Index, starts: list[Index], *, fresh: bool | Value, last: bool = False, room: Value | None = None,
        walks: Callable[[], Sequence[Fetch]] | None = None, beside: Beside | None = None, end: Value | None = None,
    ):  # fmt: skip
        self.plan, self.b, self.isa, self.kind = plan, b, ISAS[plan.isa], ARITHMETIC[plan.compute]
        self.slab, self.weights, self.results, self.bias = slab, weights, results, bias
        self.channels, self.starts, self.fresh = channels, starts, fresh
        self.walks, self.last = walks, last  # whether it is known to be the last block
        self.beside = beside  # what packs the slab, if tiles meet it before it is whole
        self.end = end  # behind an input that is read in place, where nothing more is asked for
        self.room = room  # for a tile that vectors move to the output
        self.vectors, self.halves = lane_columns(plan, last=last)  # of the block, those that are computed
        self.taps = TapSums(plan, b, channels, paces(plan) if walks else [0] * (1 + len(plan.axes)))
        self.tile = self._tile(plan.tile)

    def run(self) -> None:
        """All tiles."""
        self._axis(0, Spot())

    def _tile(self, shape: tuple[int, ...]) -> Tile:
        """Outputs of the tile, in row-major order of the axes, against output channels."""
        plan = self.plan
        inputs, results, halves = [0], [0], self.halves
        axis_steps, channel_step = plan.result_strides
        for axis, tile, slab, (_, result) in zip(plan.axes, shape, plan.slab_strides[0], axis_steps, strict=True):
            step, each = axis.in_step * slab, range(tile)
            if plan.pixels and axis is plan.axes[-1]:
                step, each = slab, range(0, tile, plan.lanes)
                if plan.writes_in_place:  # vectors overlap rather than reach beyond the row
                    span = plan.span(len(plan.axes) - 1)
                    each = [min(m, span - plan.lanes) for m in each if m < span]
                each, of_row = row_columns(plan, list(each))
                halves = frozenset(n * len(each) + m for n in range(len(inputs)) for m in of_row)
            inputs = [place + m * step for place in inputs for m in each]
            results = [place + m * result for place in results for m in each]
        if plan.pixels:
            rows, c_rows = range(plan.width), range(0, plan.width * channel_step, channel_step)
            columns, c_columns = inputs, results
        else:
            rows, c_rows = inputs, results
            columns = c_columns = self.vectors
        slab, out = self._dtypes()
        past_caches = _past_caches(plan, [*c_rows, *c_columns])
        groups = Groups(plan.in_channels, plan.out_channels) if plan.spread else None
        return Tile(
            isa=self.isa, compute=plan.compute, rows=tuple(rows), columns=tuple(columns), c_rows=tuple(c_rows),
            c_columns=tuple(c_columns), halves=halves, a_vector=plan.spread, groups=groups, c_dtype=out,
            ahead=bytes_ahead(plan), a_end=self.end, b_aligned=plan.aligned,
            unroll=_written_out(plan), past_caches=past_caches, may_stay=past_caches and plan.may_stay,
            a_dtype="" if plan.pixels else slab, b_dtype=slab if plan.pixels else plan.weights_dtype,
        )  # fmt: skip

    def _dtypes(self) -> tuple[str, str]:
        """Of the slab and the result as they are stored."""
        plan, p = self.plan, self.plan.problem
        slab = p.dtype if plan.reads_in_place else plan.compute
        return slab, p.out_dtype if plan.writes_in_place else plan.compute

    # --- phases

    def _axis(self, n: int, spot: Spot) -> None:
        if n == len(self.plan.axes):
            self._emit_tile(spot)
            return
        b, axis = self.b, self.plan.axes[n]
        alone = self.plan.reads_in_place or self.plan.separate_taps
        if self.plan.unrolls(axis) or (alone and n == len(self.plan.axes) - 1):
            for one in axis.phases:
                self._known_phase(n, axis, one, spot)
            return
        table = b.module.table([v for f in axis.phases for v in (f.first, f.count, f.taps, f.offset, f.tap)])

        def phase(number: Index, _: object) -> None:
            if isinstance(number, int):
                f = axis.phases[number]
                first, count, taps, offset, tap = f.first, f.count, f.taps, f.offset, f.tap
            else:
                first, count, taps, offset, tap = (b.lookup(table, b.add(b.mul(number, 5), i)) for i in range(5))
            taps = axis.taps if axis.even else taps

            stop = self._stop(n, count)

            def tile(j: Index, shape: Ints) -> None:
                bounds = self.taps.bounds(axis, shape[n], b.add(self.starts[n], j), taps, offset)
                at = self._moved(n, spot, j, first, offset, tap)
                at = at if shape == whole else replace(at, tile=shape)
                self._axis(n + 1, self.taps.summed(n, at, bounds))

            whole = self.plan.tile
            size = whole[n]
            if n != self.plan.ragged:
                b.loop(0, stop, lambda j, _: tile(self._shifted(n, j, stop), whole), step=size, name="tile")
                return
            many = b.floor_div(b.add(stop, size - 1), size)
            end = b.mul(b.sub(stop, b.mul(many, size - 1)), size)  # of whole tiles
            b.loop(0, end, lambda j, _: tile(j, whole), step=size, name="tile")
            shorter = (*whole[:n], size - 1, *whole[n + 1 :])
            b.loop(end, stop, lambda j, _: tile(j, shorter), step=size - 1, name="tile")

        b.loop(0, len(axis.phases), phase, name="phase")

    def _known_phase(self, n: int, axis: GatherAxis, phase: Phase, spot: Spot) -> None:
        """A phase emitted for itself: its taps are written out, or its borders told from its inside."""
        plan, b = self.plan, self.b
        stop = self._stop(n, phase.count)

        def unrolled(j: Index, _: object) -> None:
            if not plan.reads_in_place:
                j = self._shifted(n, j, stop)
            at = self._moved(n, spot, j, phase.first, phase.offset, phase.tap)
            at = self.taps.where_met(n, axis, phase, (self.starts[n], j), at)
            taps = self.taps.in_parts if plan.separate_taps else self.taps.written_out
            at = taps(n, axis, phase, at)
            self._by_place(n, axis, phase, j, at)

        def single(j: Index, _: object) -> None:
            bounds = self.taps.bounds(axis, 1, b.add(self.starts[n], j), phase.taps, phase.offset)
            at = self._moved(n, spot, j, phase.first, phase.offset, phase.tap)
            at = replace(at, tile=(*plan.tile[:-1], 1))
            self._axis(n + 1, self.taps.summed(n, at, bounds))

        if not plan.reads_in_place or n < len(plan.axes) - 1:
            b.loop(0, stop, unrolled, step=plan.tile[n], name="tile")
            return
        low, high = axis.inside(phase)
        tile = plan.tile[n]
        if high - low < tile or (tile == 1 and not plan.unrolls(axis)):
            b.loop(0, stop, single, name="single")
            return

        def inside(j: Index, _: object) -> None:
            back = b.sub(high - tile, self.starts[n])  # the last tile begins early and repeats some outputs
            place = b.minimum(j, back)
            if plan.unrolls(axis):
                unrolled(place, _)
            else:
                at = self._moved(n, spot, place, phase.first, phase.offset, phase.tap)
                self._axis(n + 1, self.taps.summed(n, at, (0, phase.taps)))

        first = b.minimum(b.maximum(b.sub(low, self.starts[n]), 0), stop)
        last = b.maximum(b.minimum(b.sub(high, self.starts[n]), stop), first)
        if low > 0:
            b.loop(0, first, single, name="low")
        b.loop(first, last, inside, step=tile, name="inside")
        if high < phase.count:
            b.loop(last, stop, single, name="high")

    def _by_place(self, n: int, axis: GatherAxis, phase: Phase, j: Index, spot: Spot) -> None:
        """The tile that begins with output j of a block, without products with padding where a row has few tiles."""
        plan, b = self.plan, self.b
        size = plan.tile[n]
        if plan.pixels or plan.spread or n < len(plan.axes) - 1 or not axis.apart(phase, size):
            self._axis(n + 1, spot)
            return
        last = phase.count - min(plan.span(n), phase.count) if plan.writes_in_place else phase.count
        starts = sorted({min(start, last) for start in range(0, phase.count, size)})
        place = b.add(self.starts[n], j) if len(starts) > 1 else j

        def one(first: int, *others: int) -> None:
            def here() -> None:
                self._axis(n + 1, replace(spot, met=self._rows_met(axis, phase, first)))

            if others:
                b.either(b.compare("eq", place, first), here, lambda: one(*others))
            else:
                here()

        one(*starts)

    def _rows_met(self, axis: GatherAxis, phase: Phase, first: int) -> tuple[tuple[int, ...], ...]:
        """Per tap of a row, rows of the register tile that begins with output `first` and meet the image with it."""
        size = self.plan.tile[-1]
        every = range(0, prod(self.plan.tile), size)
        return tuple(tuple(r + m for r in every for m in met) for met in axis.met(phase, first, size))

    def _shifted(self, n: int, j: Index, stop: Index) -> Index:
        """Where the tile at j begins: written in place, the last one begins early and repeats some outputs."""
        if not self.plan.writes_in_place or self.plan.tile[n] == 1:
            return j
        return self.b.minimum(j, self.b.sub(stop, self.plan.span(n)))

    def _stop(self, n: int, count: Index) -> Index:
        return self.b.minimum(self.b.sub(count, self.starts[n]), self.plan.block[n])

    def _moved(self, n: int, spot: Spot, j: Index, first: Index, offset: Index, tap: Index) -> Spot:
        """At output j of the block and tap 0."""
        plan, b, axis = self.plan, self.b, self.plan.axes[n]
        phase_step, j_step = plan.result_strides[0][n]
        absolute = b.add(self.starts[n], j)
        i = absolute if plan.reads_in_place else j
        here = b.mul(b.sub(b.add(b.mul(i, axis.in_step), offset), plan.slab_start[n]), plan.slab_strides[0][n])
        beside = spot.beside
        if plan.planes > 1 and axis is plan.axes[-1]:
            here = j
        elif plan.aligned and axis is plan.axes[-1]:
            assert isinstance(offset, int), "taps are written out"
            here, beside = b.mul(j, axis.in_step), offset - plan.slab_start[n]
        if plan.writes_in_place:
            j = absolute
        return replace(
            spot,
            slab=b.add(spot.slab, here),
            beside=beside,
            weights=b.add(spot.weights, b.mul(tap, self.taps.strides[n])),
            result=b.add(spot.result, b.add(b.mul(first, phase_step), b.mul(j, j_step))),
        )

    # --- the register tile

    def _emit_tile(self, spot: Spot) -> None:
        b, plan = self.b, self.plan
        tile = self._tile(spot.tile) if spot.tile else replace(self.tile, met=spot.met)
        slab, out, weights = (STORAGE[dtype] for dtype in (*self._dtypes(), plan.weights_dtype))
        a, x = b.at(self.slab, spot.slab, slab), b.at(self.weights, spot.weights, weights)
        taps = spot.unrolled
        if plan.pixels:
            a, x = x, a
            taps = tuple((w, place + spot.beside) for place, w in taps)
        target = b.at(self.results, spot.result, out)
        first = self._first(tile, target)
        walks = self.walks() if self.walks else ()
        tile.emit(b, a, x, target, self.taps.in_order(spot.sums), first, taps, walks)

    def _first(self, tile: Tile, target: Value) -> list[Value]:
        """What the tile at `target` starts from: the bias, zeros or, unless `fresh`, what is there."""
        start = self._start(tile)
        if isinstance(self.fresh, Value):
            return self.b.one_of(self.fresh, lambda: start, lambda: tile.load(self.b, target))
        return start

    def _start(self, tile: Tile) -> list[Value]:
        if self.bias is None:
            return tile.zeros()
        b, plan = self.b, self.plan
        load: Callable[..., Value] = self.isa.load
        if plan.pixels:
            numbers = [load(b, plan.compute, b.at(self.bias, m, self.kind)) for m in range(plan.width)]
            return [self.isa.splat(b, number, plan.lanes) for number in numbers for _ in tile.columns]
        places = [b.at(self.bias, v, self.kind) for v in self.vectors]
        return [
            with_lower_half(b, load(b, plan.compute, place, plan.lanes // 2)) if v in self.halves
            else load(b, plan.compute, place, plan.lanes)
            for v, place in enumerate(places)
        ] * len(tile.rows)  # fmt: skip


def _written_out(plan: DataPlan) -> int:
    """Steps of the innermost sum that are written out: channels, where these are too few for a loop of their own."""
    few = plan.pixels and not plan.unroll and 1 < plan.in_channels <= MOST_WRITTEN_OUT and plan.taps > 1
    if not few or plan.i_blocks > 1:
        return 1
    return min(4, plan.in_channels) if plan.separate_taps else plan.in_channels


def _past_caches(plan: DataPlan, places: list[int]) -> bool:
    """Whether the vectors of a tile are whole cache lines of the output if the first one is."""
    whole = all(place % plan.lanes == 0 for place in places)
    return plan.writes_in_place and plan.past_caches and ISAS[plan.isa].streams and whole


def bytes_ahead(plan: DataPlan) -> int:
    """What outgrows L1 comes from L2 in every tile: a few steps of the sum early, if asked for.

    That is packed weights, or the slab, where vectors run along it and one tap leaves channel after channel.
    """
    if plan.pixels:
        channel = plan.slab_strides[1] * plan.packed_bytes
        return STEPS_AHEAD * channel if plan.taps == 1 and plan.i_block * channel > NEAR_BYTES else 0
    if plan.reads_weights:
        return ROWS_AHEAD * weights_steps(plan)[2] * SIZES[plan.problem.dtype]
    streams = not plan.spread and plan.panel * plan.packed_bytes > NEAR_BYTES
    return AHEAD_BYTES if streams else 0
