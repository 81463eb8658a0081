"""Weights as a matrix unit reads them, in pieces: two input channels side by side for every lane."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from convgrad.codegen.copies.copying import Copy
from convgrad.codegen.copies.halves import HalvesCopy
from convgrad.codegen.copies.squares import Dim
from convgrad.codegen.copies.zeroing import emit_zero
from convgrad.codegen.ir import Builder
from convgrad.codegen.ir_module import Index, Value
from convgrad.plan.by_matrix.matrix import COLUMNS, halves_of
from convgrad.plan.strides import row_major

PAIRS = 2 * COLUMNS  # numbers of a row of pairs


@dataclass(frozen=True, slots=True, kw_only=True)
class SplitPanel:
    """target[taps, block of channels, piece, tile of 16 lanes, pair, lane, number of the pair] = pieces of source.

    Partners are half a block of channels apart.

    tiles   side by side in a block of lanes
    depth   channels of a block
    taps    (extent, source step) per spatial axis
    room    channels that a panel holds
    last    channels of a block that is not whole
    """

    copy: Copy
    tiles: int
    depth: int
    taps: Sequence[tuple[int, int]]
    room: int
    last: int

    def emit(
        self, b: Builder, source: Value, target: Value, lanes: tuple[Index, int], channels: tuple[Index, int]
    ) -> None:
        """`lanes` and `channels` are (how many there are, source step); what a panel holds besides becomes zero."""
        (many, lane_step), (count, step) = lanes, channels
        pieces = self.copy.pieces
        assert pieces is not None
        tile_numbers = self.depth * COLUMNS
        block_step = pieces.count * self.tiles * tile_numbers
        tap_steps = row_major(tuple(extent for extent, _ in self.taps), self.room // self.depth * block_step)
        taps = [Dim(extent, src, dst) for (extent, src), dst in zip(self.taps, tap_steps, strict=True)]
        if not (many == self.tiles * COLUMNS and count == self.room and self.room % self.depth == 0):
            size = tap_steps[0] * self.taps[0][0]
            emit_zero(b, self.copy.isa, "f32", target, size // 2)  # two bf16 per f32

        def block(n: Index, size: int) -> None:
            first, _ = runs = halves_of(size)
            for tile in range(self.tiles):
                of = self.copy.src_at(b, source, b.add(b.mul(n, self.depth * step), tile * COLUMNS * lane_step))
                to = b.at(target, b.add(b.mul(n, block_step), tile * tile_numbers), "i16")
                some = b.minimum(b.sub(many, tile * COLUMNS), COLUMNS)
                pairs = HalvesCopy(copy=self.copy, lanes=(some, some), lane_step=lane_step, apart=first * step)
                if isinstance(some, int):
                    if some > 0:
                        pairs.emit(b, of, to, taps, Dim(first, step, PAIRS), runs)
                    continue
                with b.when(b.compare("sgt", some, 0)):
                    pairs.emit(b, of, to, taps, Dim(first, step, PAIRS), runs)

        whole = b.floor_div(count, self.depth)
        b.loop(0, whole, lambda n, _: block(n, self.depth), name="block")
        if self.last:
            with b.when(b.compare("ne", b.mul(whole, self.depth), count)):
                block(whole, self.last)
