"""Lowering of a TurnedDotPlan: slabs and panels of pairs, and sums for each turn of a group."""

from __future__ import annotations

from collections.abc import Sequence

from convgrad.codegen.by_dots.dot_data import DotStages, DotSweep
from convgrad.codegen.copies.copying import Copy, Dim
from convgrad.codegen.copies.paired_copies import paired_copy
from convgrad.codegen.copies.zeroing import Range, emit_zero, emit_zero_outside
from convgrad.codegen.groups.turned_data import exchanged, turned
from convgrad.codegen.ir import Builder
from convgrad.codegen.ir_module import Index, Value
from convgrad.codegen.isa.base import STORAGE, shuffle
from convgrad.codegen.isa.dots import DOT_UNITS
from convgrad.codegen.loops.lanes import whole_lanes
from convgrad.codegen.loops.tap_sums import Spot
from convgrad.codegen.microkernels.contract import Tile
from convgrad.codegen.stages import Places
from convgrad.plan.by_dots.dots import LANES, PAIR
from convgrad.plan.by_dots.turned_dots import TurnedDotPlan


class TurnedDotSweep(DotSweep):
    """All tiles of a task, for one block of groups."""

    plan: TurnedDotPlan

    def _emit_tile(self, spot: Spot) -> None:
        b, turns = self.b, self.plan.turns
        a, x = b.at(self.slab, spot.slab, "i16"), b.at(self.weights, spot.weights, "i16")
        tile, walks = self._words(), self.walks() if self.walks else ()
        sums = tile.sum(b, a, x, tile.zeros(), self.taps.in_order(spot.sums), spot.unrolled, walks)
        rows = [sums[r : r + turns] for r in range(0, len(sums), turns)]
        results = [value for row in rows for value in self._in_order(row)]
        _, out = self._dtypes()
        target = b.at(self.results, spot.result, STORAGE[out])
        if self.bias is not None:
            first = self._first(self.tile, target)
            results = [b.binary("fadd", start, value) for start, value in zip(first, results, strict=True)]
        self._store(self._dots(), out, target, results)

    def _words(self) -> Tile:
        """The tile of all turns."""
        unit, turns = DOT_UNITS[self.plan.isa](), self.plan.turns

        def load(b: Builder, base: Value, offset: int) -> Value:
            return unit.load(b, b.at(base, offset, "i16"))

        return Tile(
            isa=self.isa, compute="f32", rows=self.tile.rows, c_rows=self.tile.c_rows,
            columns=tuple(range(0, turns * PAIR * LANES, PAIR * LANES)), c_columns=(0,) * turns, a_vector=True,
            a_shared=True, a_dtype="bf16", b_dtype="bf16", a_read=load, b_read=load, adds=unit.multiply_add,
        )  # fmt: skip

    def _in_order(self, sums: Sequence[Value]) -> list[Value]:
        """The results of a position, channel by channel, in two vectors."""
        b, half = self.b, len(sums) // 2
        even, odd = turned(b, sums[:half]), turned(b, sums[half:])
        places = [lane + of * LANES for lane in range(LANES) for of in range(2)]
        return [shuffle(b, even, odd, places[start : start + LANES]) for start in (0, LANES)]


class TurnedDotStages(DotStages):
    """The stages of a plan."""

    plan: TurnedDotPlan
    sweep = TurnedDotSweep

    @property
    def pack_bytes(self) -> int:
        """Nothing is staged."""
        return 0

    def begin_slab(self, b: Builder, slab: Value, channels: Index) -> None:
        """Nothing is there to fill up."""

    def clear_slab(self, b: Builder, slab: Value, ranges: list[Range], channels: Index) -> None:
        """Zeros around the numbers of the input, in one band."""
        words = [Range(r.low, r.high, r.extent, r.step // PAIR) for r in ranges]
        emit_zero_outside(b, self.isa, "f32", slab, words)

    def copy_slab(self, b: Builder, copy: Copy, tensor: Value, packed: Value, dims: list[Dim], channels: Index) -> None:
        """Pairs of channels of all groups of the task."""
        plan, group_step, step = self.plan, *self.in_strides[1:3]
        pairs, groups = plan.in_channels // PAIR, plan.slab_groups
        many: Index = groups
        if plan.problem.groups % groups:
            many = b.minimum(b.sub(plan.problem.groups, self.slab_group), groups)
        dims = [Dim(dim.extent, dim.src, dim.dst // PAIR) for dim in dims]
        if group_step == plan.in_channels * step:
            dims.append(Dim(b.mul(many, pairs), PAIR * step, 1))
        else:
            dims += [Dim(many, group_step, pairs), Dim(pairs, PAIR * step, 1)]
        paired_copy(self.isa, plan.problem.dtype, self.watch, self.room, step).emit(b, tensor, packed, dims)

    def pack_panel(
        self, b: Builder, at: Places, source: Value, target: Value, *,
        lanes: list[tuple[Index, int, int]], channels: tuple[Index, int, int],
    ) -> None:  # fmt: skip
        """Vectors of one output of every group each, even ones first, which are then exchanged lane by lane."""
        plan, p = self.plan, self.plan.problem
        (groups, _, group_step), (_, _, out_step) = lanes
        pairs, step = plan.turns // PAIR, channels[2]
        if not whole_lanes(plan):
            emit_zero(b, self.isa, "f32", target, plan.panel // PAIR)
        dims = [Dim(groups, group_step, pairs), Dim(pairs, PAIR * step, 1)]
        dims += [Dim(pairs, PAIR * out_step, LANES), Dim(PAIR, out_step, pairs * LANES)]
        place = plan.turns * LANES
        for extent, tap_step in reversed(list(zip(p.taps, p.w_strides[3:], strict=True))):
            dims.append(Dim(extent, tap_step, place))
            place *= extent
        paired_copy(self.isa, plan.problem.dtype, self.watch, self.room, step).emit(b, source, target, dims)
        count = PAIR * plan.taps  # of tap by tap the even outputs, and the odd ones
        b.loop(
            0, count, lambda n, _: self._exchange(b, b.at(target, b.mul(n, pairs * PAIR * LANES), "i16")), name="tap"
        )

    def _exchange(self, b: Builder, panel: Value) -> None:
        """Lane i of vector e gets that of vector i xor e."""
        places = [b.at(panel, e * LANES, "float") for e in range(self.plan.turns // PAIR)]
        vectors = [self.isa.load(b, "f32", place, LANES) for place in places]
        for place, vector in zip(places, exchanged(b, vectors), strict=True):
            self.isa.store(b, "f32", vector, place)
