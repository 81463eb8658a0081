"""What one step of a register tile reads of A and B: each place once, for as long as it is remembered."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import cache
from typing import TYPE_CHECKING

from convgrad.codegen.copies.interleave import pick
from convgrad.codegen.ir import Builder
from convgrad.codegen.ir_module import Value, lanes_of, vector_of
from convgrad.codegen.isa.base import apart

if TYPE_CHECKING:
    from convgrad.codegen.microkernels.contract import Tile

Masks = Mapping[int, Value | None]  # of offsets


def chosen(b: Builder, vector: Value, mask: Value | None) -> Value:
    """Those lanes that a mask holds, an integer of as many bits; zeros in others."""
    if mask is None:
        return vector
    lanes = b.cast("bitcast", mask, vector_of(lanes_of(vector), "i1"))
    return b.emit(vector.type, f"select {lanes}, {vector}, {vector.type} zeroinitializer")


class Operands:
    """Numbers or vectors at offsets from A and B; `number` is that of every group, masks are those of offsets.

    `of_a` and `of_b` remember what was read until their `cache_clear`. With `in_turn` vectors of A, or else
    of B, are read when they are wanted.
    """

    def __init__(
        self, tile: Tile, b: Builder, a: Value, x: Value, number: int, a_masks: Masks, b_masks: Masks, *, in_turn: bool,
    ):  # fmt: skip
        self.tile, self.b, self.a, self.x, self.number = tile, b, a, x, number
        self.a_masks, self.b_masks, self.in_turn = a_masks, b_masks, in_turn
        self.lanes = tile.isa.lanes(tile.compute)
        self.of_a, self.of_b, self.place_of_b = cache(self._of_a), cache(self._of_b), cache(self._place_of_b)
        self.half_of_b = cache(self._half_of_b)
        self._whole_a, self._whole_b = cache(self._load_a), cache(self._load_b)

    def _of_a(self, offset: int) -> Value:
        if self.tile.a_vector and offset % self.lanes in self.tile.slid:
            return self._slide(self._whole_a, offset)
        return self._load_a(offset, self.a_masks.get(offset))

    def _of_b(self, offset: int) -> Value:
        if self.tile.b_aligned and offset % self.lanes:
            return self._slide(self.of_b, offset)
        if not self.tile.a_vector and offset % self.lanes in self.tile.slid:
            return self._slide(self._whole_b, offset)
        return self._load_b(offset)

    def _slide(self, whole: Callable[[int], Value], offset: int) -> Value:
        """The vector at an offset, out of two of those at multiples of their length: no load crosses a cache line."""
        rest = offset % self.lanes
        return self.tile.isa.slide(self.b, whole(offset - rest), whole(offset - rest + self.lanes), rest)

    def _load_a(self, offset: int, mask: Value | None = None) -> Value:
        """What the lanes of a column meet."""
        tile, b, lanes = self.tile, self.b, self.lanes
        if self.in_turn and tile.a_vector:
            b.in_turn()
        if tile.a_read is not None:
            return tile.a_read(b, self.a, offset)
        isa, dtype, address = tile.isa, tile.a_dtype or tile.compute, tile.at_a(b, self.a, offset)
        if not tile.a_vector:
            number = isa.load_in_all(b, dtype, address, lanes)
            return apart(b, number) if tile.broadcasts_once else number
        if tile.groups is None:
            return (tile.loads or isa.load)(b, dtype, address, lanes, mask=mask)
        wanted = tile.groups.sources(lanes, self.number)
        starts = range(0, tile.groups.per_vector(lanes), lanes)
        parts = [isa.load(b, dtype, tile.at_a(b, address, start), lanes) for start in starts]
        if wanted == list(range(lanes)):
            return parts[0]
        return isa.pick(b, parts[0], wanted) if len(parts) == 1 else pick(b, parts, wanted)

    def _load_b(self, offset: int) -> Value:
        tile, b = self.tile, self.b
        mask = self.b_masks.get(offset)
        if self.in_turn and not tile.a_vector:
            b.in_turn()
        if tile.b_read is not None:
            return chosen(b, tile.b_read(b, self.x, offset), mask)
        place = self._place_of_b(offset)
        return (tile.loads or tile.isa.load)(b, tile.b_dtype or tile.compute, place, self.lanes, mask=mask)

    def _half_of_b(self, offset: int) -> Value:
        tile = self.tile
        return tile.isa.load(self.b, tile.b_dtype or tile.compute, self._place_of_b(offset), self.lanes // 2)

    def _place_of_b(self, offset: int) -> Value:
        address = self.tile.at_b(self.b, self.x, offset)
        if self.tile.ahead:
            self.b.prefetch(self.b.beyond(address, self.tile.ahead), keep=3)
        return address
