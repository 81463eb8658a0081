"""Lowering of a DotRowProductsPlan: a RowProductsPlan whose products are dot products of pairs, as rows have them."""

from __future__ import annotations

from convgrad.codegen.in_place.row_products import RowProductsStages
from convgrad.codegen.ir import Builder
from convgrad.codegen.ir_module import Index, Value, vector_of
from convgrad.codegen.isa.base import STORAGE
from convgrad.codegen.isa.dots import PAIR, WORDS
from convgrad.codegen.loops.lanes import lane_origin, weights_steps
from convgrad.codegen.microkernels.contract import Tile
from convgrad.codegen.stages import Places
from convgrad.codegen.watch.pair_watch import WatchedPairs
from convgrad.plan.by_dots.dot_row_products import DotRowProductsPlan
from convgrad.values import replace

KIND = STORAGE["bf16"]


class DotRowProductsStages(WatchedPairs, RowProductsStages):
    """The stage of a plan."""

    plan: DotRowProductsPlan

    def look(
        self, b: Builder, at: Places, which: tuple[Index, Index], piece: tuple[Index, Index], *, ends: bool
    ) -> None:  # fmt: skip
        """At weights, which the tiles have left in L1, unless these looked; at images with the first block of lanes."""
        plan, p, (group, block), (start, number) = self.plan, self.plan.problem, which, piece
        begin, (group_step, step, _) = b.mul(number, plan.piece * plan.in_vector), weights_steps(plan)
        weights = b.at(at.w, b.add(lane_origin(plan, b, group, block, group_step, step), begin), KIND)
        rows = [b.at(weights, j * step, KIND) for j in range(plan.width)]
        self._look_along(b, "w", rows, ends=ends, whole=not plan.looks_as_it_reads)
        with b.when(b.compare("eq", block, 0)):
            name, strides = p.given, p.strides[p.given]
            images = b.at(at.of(name), b.add(b.mul(group, strides[1]), begin), KIND)
            last = b.minimum(b.add(start, plan.block[-1]), plan.axes[-1].count)
            b.loop(
                start, last,
                lambda i, _: self._look_along(b, name, [b.at(images, b.mul(i, strides[-1]), KIND)], ends=ends),
                name="images",
            )  # fmt: skip

    def _look_along(self, b: Builder, name: str, rows: list[Value], *, ends: bool, whole: bool = True) -> None:
        """Pieces of rows; of what is beyond whole vectors alone, unless `whole`."""
        plan, steps = self.plan, self.steps(ends=ends)

        def step(i: Index, _: object) -> None:
            for row in rows:
                self._noted(b, name, b.at(row, i, KIND))

        if whole:
            b.loop(0, steps * plan.in_vector, step, step=plan.in_vector, name="look")
        if ends and plan.rest:
            for row in rows:
                self._noted(b, name, b.at(row, steps * plan.in_vector, KIND), self.mask)

    def _noted(self, b: Builder, name: str, address: Value, mask: Value | None = None) -> Value:
        bits = self.isa.load_bits(b, self.plan.problem.dtype, address, self.plan.in_vector, mask=mask)
        self.watch.note(b, name, bits)
        return bits

    def _shape(self) -> Tile:
        plan, tile = self.plan, super()._shape()
        tile = replace(tile, a_dtype="bf16", b_dtype="bf16", loads=self._load, adds=self.unit.multiply_add)
        return replace(tile, b_read=self._read_weights) if plan.looks_as_it_reads else tile

    def _load(self, b: Builder, dtype: str, address: Value, lanes: int, *, mask: Value | None = None) -> Value:
        """Pairs, of which a mask holds either half."""
        return b.cast("bitcast", self.isa.load_bits(b, dtype, address, PAIR * lanes, mask=mask), WORDS)

    def _read_weights(self, b: Builder, base: Value, offset: int) -> Value:
        """Looking at them."""
        address = b.at(base, offset, KIND)
        if self.plan.fetched_ahead:
            b.prefetch(b.beyond(address, self.plan.fetched_ahead), keep=3)
        return b.cast("bitcast", self._noted(b, "w", address), WORDS)

    def _start(self, b: Builder, at: Places, tile: Tile, which: tuple[Index, Index]) -> list[Value]:
        """Looking at the bias, which is flushed as sums are."""
        plan, p = self.plan, self.plan.problem
        if p.bias:
            first = lane_origin(plan, b, *which, plan.out_channels * p.bias_stride, p.bias_stride)
            kind = vector_of(plan.in_vector, "i16")
            for j in range(plan.width):
                one = b.load("i16", b.at(at.bias, b.add(first, j * p.bias_stride), KIND), PAIR)
                self.watch.note(b, "w", b.emit(kind, f"insertelement {kind} zeroinitializer, {one}, i64 0"))
        return super()._start(b, at, tile, which)
