"""Lowering of a RowDotsPlan: a RowWeightsPlan whose products are dot products of pairs of windows."""

from __future__ import annotations

from convgrad.codegen.by_dots.in_place_dots import WatchedSums
from convgrad.codegen.by_dots.pair_reads import PairReads
from convgrad.codegen.depthwise.plane_reads import Columns
from convgrad.codegen.in_place.row_weights import RowSums
from convgrad.codegen.ir import Builder
from convgrad.codegen.ir_module import Value
from convgrad.codegen.isa.dots import PAIR, WORDS
from convgrad.codegen.microkernels.contract import Tile
from convgrad.values import replace


class RowDotSums(WatchedSums, RowSums):
    """The stages of a plan."""

    def _tile_of_taps(self, first: int) -> Tile:
        return replace(RowSums._tile_of_taps(self, first), adds=self.unit.multiply_add)

    def met(self, b: Builder, row: Value, i: int, step: int, shift: int, extent: int) -> Value:
        """Pairs of windows; what several taps read alike is read once, since LLVM sees that."""
        first = i // PAIR
        reads = PairReads(
            isa=self.isa, compute=self.plan.compute, dtype=self.slab_dtype, step=PAIR * step, image=extent,
            offsets=(shift,), windows=self.plan.pitch,
        )  # fmt: skip
        found = reads.vectors(b, row, first, Columns(first, 1, self.plan.lanes, False))
        return b.cast("bitcast", found[shift], WORDS) if found else Value(WORDS, "zeroinitializer")
