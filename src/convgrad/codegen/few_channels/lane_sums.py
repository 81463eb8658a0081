"""Lowering of a LaneSumsPlan: that of a DataPlan whose sums are vectors until they are stored."""

from __future__ import annotations

from collections.abc import Sequence
from math import ceil, prod

from convgrad.codegen.copies.copying import Copy, Dim
from convgrad.codegen.copies.panels import pack_bias
from convgrad.codegen.copies.zeroing import emit_zero
from convgrad.codegen.general.data import DataStages
from convgrad.codegen.ir import Builder
from convgrad.codegen.ir_module import Index, Value, index, lanes_of
from convgrad.codegen.isa.base import STORAGE, shuffle
from convgrad.codegen.loops.ahead import Fetch, inside
from convgrad.codegen.loops.lanes import weights_steps
from convgrad.codegen.loops.sweep import Sweep
from convgrad.codegen.loops.tap_sums import Spot
from convgrad.codegen.microkernels.contract import Tile
from convgrad.codegen.microkernels.products import Taps
from convgrad.codegen.microkernels.reduction import Masks, Reduction
from convgrad.codegen.stages import Places
from convgrad.dtypes import SIZES
from convgrad.plan.axes import GatherAxis, Phase
from convgrad.plan.costs import LINE
from convgrad.plan.few_channels.lane_sums import LaneSumsPlan
from convgrad.values import frozen, replace

AHEAD_BYTES = 8192  # from what a tile reads to what it asks for
MOST_SHORT = 4  # lanes of vectors that do not become shorter
MOST_BODIES = 4  # tiles at the borders of a row that are written out, each for what it misses


@frozen(kw_only=True)
class LaneSumsTile(Tile):
    """A tile whose sums are vectors, and whose results lie side by side, row by row, with room for so many in each.

    Where there is `more` in each row that is not this tile's, results of a row are stored for themselves.
    """

    room: int
    more: bool = False

    def emit(
        self, b: Builder, a: Value, x: Value, c: Value, reductions: Sequence[Reduction], first: list[Value] | None,
        taps: Taps = ((0, 0),), walks: Sequence[Fetch] = (),
    ) -> None:  # fmt: skip
        """As of any tile; the lanes of as many sums at a time as a vector has are added."""
        assert first is not None
        lanes, count = self.isa.lanes(self.compute), len(self.columns)
        summed = self.sum(b, a, x, first, reductions, taps, walks)
        if self.more:
            together = lanes // count * count  # whole rows
            for start in range(0, len(summed), together):
                some = summed[start : start + together]
                self._store_rows(b, c, lanes_added(b, some), start // count, len(some) // count)
            return
        none = [Value(summed[0].type, "zeroinitializer")] * (self.room - count)
        sums = [value for row in range(0, len(summed), count) for value in (*summed[row : row + count], *none)]
        for start in range(0, len(sums), lanes):
            some = sums[start : start + lanes]
            place = b.at(c, start, self._kind(self.c_dtype))
            self.isa.store(
                b, self.c_dtype, lanes_added(b, some), place, None if len(some) == lanes else index(len(some))
            )

    def _store_rows(self, b: Builder, c: Value, added: Value, first: int, rows: int) -> None:
        """Some rows, from the first one on, whose results follow each other in a vector."""
        count, lanes = len(self.columns), lanes_of(added)
        for row in range(rows):
            own = [min(row * count + n, lanes - 1) for n in range(lanes)]
            value = shuffle(b, added, added, own) if row else added
            place = b.at(c, (first + row) * self.room, self._kind(self.c_dtype))
            self.isa.store(b, self.c_dtype, value, place, index(count))


def lanes_added(b: Builder, sums: Sequence[Value]) -> Value:
    """Lane n is the sum of the lanes of vector n, added by halves; there are no more vectors than lanes.

    Of few sums it is a shorter vector, since those become shorter before they share registers.
    """
    lanes = lanes_of(sums[0])
    while lanes > MOST_SHORT and len(sums) <= lanes // 2:
        lanes //= 2
        halves = [[shuffle(b, v, v, list(range(start, start + lanes))) for start in (0, lanes)] for v in sums]
        sums = [b.binary("fadd", *of) for of in halves]
    zero = Value(sums[0].type, "zeroinitializer")
    vectors, half = [*sums, *[zero] * (lanes - len(sums))], lanes // 2
    while half:  # what is left of a vector are its first `2 * half` lanes, and those of others beside them
        met = [lane + (lanes if lane & half else 0) for lane in range(lanes)]  # a blend, which ports do beside shuffles
        other = [lane + (lanes - half if lane & half else half) for lane in range(lanes)]
        pairs = zip(vectors[:half], vectors[half:], strict=True)
        vectors = [
            zero if v.text == w.text == zero.text else b.binary("fadd", shuffle(b, v, w, met), shuffle(b, v, w, other))
            for v, w in pairs
        ]
        half //= 2
    return vectors[0]


@frozen
class LinesAhead:
    """Lines that a tile asks for, `each` of them in each of its steps."""

    first: Value
    each: int

    def begin(self, b: Builder) -> None:
        """Nothing at once."""

    def go_on(self, b: Builder, done: Index) -> None:
        """After so many steps."""
        for more in range(self.each):
            b.prefetch(b.beyond(self.first, b.mul(b.add(b.mul(done, self.each), more), LINE)), keep=2)


class LaneSumsSweep(Sweep):
    """All tiles of a task."""

    plan: LaneSumsPlan

    def run(self) -> None:
        """All tiles, at whose pace memory is asked for."""
        plan = self.plan
        if plan.fetches_rows:
            pace, paces = plan.vectors, list[int]()
            for axis in reversed(plan.axes):
                inner = axis is plan.axes[-1] and plan.unroll
                paces.insert(0, 0 if inner else pace)
                pace *= 1 if inner else axis.taps
            self.taps.paces = [0, *paces]
        super().run()

    def _tile(self, shape: tuple[int, ...]) -> Tile:
        plan, (slab, out) = self.plan, self._dtypes()
        return LaneSumsTile(
            isa=self.isa, compute=plan.compute, a_vector=True, a_shared=True, a_dtype=slab, c_dtype=out,
            rows=tuple(m * plan.axes[-1].in_step * plan.slab_strides[0][-1] for m in range(shape[-1])), c_rows=(0,),
            columns=tuple(k * plan.pitch for k in (range(plan.at_once) or self.vectors)), c_columns=(0,),
            room=plan.width, more=plan.at_once > 0,
        )  # fmt: skip

    def _from(self, tile: Tile, first: Index) -> list[Value]:
        """The bias in the first lane, of channels from some on."""
        if self.bias is None:
            return tile.zeros()
        b, (zero, *_) = self.b, tile.zeros()
        places = (b.add(first, k) for k in range(len(tile.columns)))
        numbers = [self.isa.load(b, self.plan.compute, b.at(self.bias, place, self.kind)) for place in places]
        starts = [b.emit(zero.type, f"insertelement {zero}, {number}, i64 0") for number in numbers]
        return starts * len(tile.rows)

    def _known_phase(self, n: int, axis: GatherAxis, phase: Phase, spot: Spot) -> None:
        """Tiles of a row; the last one begins early. Those at its borders know what they miss, or go one by one."""
        if not self.plan.unroll:
            super()._known_phase(n, axis, phase, spot)
            return
        b, size = self.b, self.plan.tile[n]
        low, high = axis.inside(phase)
        starts = {min(start, phase.count - size) for start in range(0, phase.count, size)}
        beside = sorted(start for start in starts if not low <= start <= high - size)

        def tile(j: Index, _: object) -> None:
            place = b.minimum(b.add(self.starts[n], j), phase.count - size)
            at = self._moved(n, spot, b.sub(place, self.starts[n]), phase.first, phase.offset, phase.tap)
            whole = self.taps.written_out(n, axis, phase, at)
            self._dispatch(axis, phase, place, whole, beside, at, inside=len(beside) < len(starts))

        b.loop(0, self._stop(n, phase.count), tile, step=size, name="tile")

    def _dispatch(
        self, axis: GatherAxis, phase: Phase, place: Index, whole: Spot, beside: list[int], at: Spot, *, inside: bool
    ) -> None:
        """The tile at `place`: one of those beside the row, or else one inside."""
        b = self.b
        if len(beside) > MOST_BODIES:
            low, high = axis.inside(phase)
            within = b.both(b.compare("sge", place, low), b.compare("sle", place, high - self.plan.tile[-1]))
            b.either(within, lambda: self._emit_tile(whole), lambda: self._one_by_one(axis, phase, place, at))
            return
        if not beside or (len(beside) == 1 and not inside):
            met = self._rows_met(axis, phase, beside[0]) if beside else None
            self._emit_tile(replace(whole, met=met))
            return
        first, *others = beside
        b.either(
            b.compare("eq", place, first),
            lambda: self._emit_tile(replace(whole, met=self._rows_met(axis, phase, first))),
            lambda: self._dispatch(axis, phase, place, whole, others, at, inside=inside),
        )

    def _one_by_one(self, axis: GatherAxis, phase: Phase, place: Index, at: Spot) -> None:
        """Outputs of a tile, each with the taps that it meets, in the same order."""
        b, n = self.b, len(self.plan.axes) - 1
        in_step, out_step = axis.in_step * self.plan.slab_strides[0][n], self.plan.result_strides[0][n][1]

        def single(m: Index, _: object) -> None:
            bounds = self.taps.bounds(axis, 1, b.add(place, m), phase.taps, phase.offset)
            there = replace(
                at, slab=b.add(at.slab, b.mul(m, in_step)), result=b.add(at.result, b.mul(m, out_step)),
                tile=(*self.plan.tile[:-1], 1),
            )  # fmt: skip
            inner = self.taps.summed(n, replace(there, sums=()), bounds).sums
            self._emit_tile(replace(there, sums=(*at.sums, self._vectors(1), *inner)), ordered=True)

        b.loop(0, self.plan.tile[n], single, name="single")

    def _vectors(self, rows: int) -> Reduction:
        """The sum over vectors of a position, of which the last one may be a part."""
        plan, lanes = self.plan, self.plan.lanes
        rest = plan.run % lanes

        def masks(b: Builder, i: Index) -> Masks:
            count = b.minimum(b.sub(plan.run, b.mul(i, lanes)), lanes)
            others = b.emit("i64", f"shl i64 -1, {index(count).text}")
            return (b.binary("xor", b.cast("trunc", others, f"i{lanes}"), Value(f"i{lanes}", "-1")),) * rows

        pace = int(plan.fetches_rows or self.walks is not None)
        return Reduction(0, plan.vectors, lanes, lanes, pace=pace, a_masks=masks if rest else None)

    def _emit_tile(self, spot: Spot, *, ordered: bool = False) -> None:
        b, plan = self.b, self.plan
        tile = self._tile(spot.tile) if spot.tile else replace(self.tile, met=spot.met)
        slab, out = (STORAGE[dtype] for dtype in self._dtypes())
        a = b.at(self.slab, spot.slab, slab)
        sums = list(spot.sums if ordered else (*spot.sums, self._vectors(len(tile.rows))))
        asks = plan.fetches_rows and not spot.tile

        def some(first: Index) -> None:
            x = b.at(self.weights, b.add(spot.weights, b.mul(first, plan.pitch)), self.kind)
            target = b.at(self.results, b.add(spot.result, first), out)
            walks = [self._ahead(a, first)] if asks else self.walks() if self.walks else []
            tile.emit(b, a, x, target, sums, self._from(tile, first), spot.unrolled, walks)

        if plan.at_once:  # the last ones begin early
            last = plan.width - plan.at_once
            b.loop(0, plan.width, lambda n, _: some(b.minimum(n, last)), step=plan.at_once, name="some")
        else:
            some(0)

    def _ahead(self, a: Value, first: Index) -> LinesAhead:
        """What later tiles read first: of the row, and the plane, that is met last; some with each lot of channels."""
        plan, b = self.plan, self.b
        *steps, _ = plan.slab_strides[0]
        *outer, inner = plan.axes
        last = sum(max(0, (axis.taps - 1) * axis.offset_step) * step for axis, step in zip(outer, steps, strict=True))
        place = b.beyond(b.at(a, last, STORAGE[plan.problem.dtype]), AHEAD_BYTES)
        taps = prod(axis.taps for axis in (outer if plan.unroll else plan.axes))
        lines = plan.tile[-1] * inner.in_step * SIZES[plan.problem.dtype] / SIZES[plan.compute]  # for each vector
        lots = -(-plan.width // plan.at_once) if plan.at_once else 1
        each = ceil(lines / (taps * lots))
        size = each * taps * plan.vectors * LINE
        if self.end is not None:
            place = inside(b, place, size * lots, self.end)
        lot = b.floor_div(first, plan.at_once) if plan.at_once else 0  # of those that begin early the one before, again
        return LinesAhead(b.beyond(place, b.mul(lot, size)), each)


class LaneSumsStages(DataStages):
    """The stages of a plan."""

    plan: LaneSumsPlan
    sweep = LaneSumsSweep

    @property
    def pack_bytes(self) -> int:
        """None: weights are copied at once."""
        return 0

    def _pack(
        self, b: Builder, at: Places, which: tuple[Index, Index, Index], target: Value, bias: Value | None
    ) -> None:  # fmt: skip
        """Weights in the order (tap, output, channel of the input), with zeros where these do not fill a vector."""
        plan, p, (group, block, _) = self.plan, self.plan.problem, which
        _, out_step, in_step = weights_steps(plan)
        if plan.in_channels % plan.lanes:
            emit_zero(b, self.isa, plan.compute, target, plan.panel)
        taps = [Dim(n, src, dst) for n, src, dst in zip(p.taps, p.w_strides[3:], plan.tap_steps, strict=True)]
        copy = Copy(isa=self.isa, compute=plan.compute, src_dtype=p.dtype, dst_dtype=plan.compute)
        channels = [Dim(plan.width, out_step, plan.pitch), Dim(plan.in_channels, in_step, 1)]
        copy.emit(b, b.at(at.w, 0, STORAGE[p.dtype]), target, [*taps, *channels])
        if bias is not None:
            pack_bias(plan, b, at, group, block, bias)
