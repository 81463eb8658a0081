"""Lowering of a GroupDotsPlan: a GroupWeightsPlan whose slabs hold pairs of images, and whose products dot products."""

from __future__ import annotations

from convgrad.codegen.copies.paired_copies import paired_copy
from convgrad.codegen.copies.splitting import room_for_squares
from convgrad.codegen.copies.squares import Dim
from convgrad.codegen.groups.group_weights import GroupsAhead, GroupSums
from convgrad.codegen.ir import Builder
from convgrad.codegen.ir_module import Index, Value
from convgrad.codegen.isa.base import STORAGE
from convgrad.codegen.isa.dots import PAIR, WORDS
from convgrad.codegen.loops.ahead import Walk
from convgrad.codegen.microkernels.contract import Tile
from convgrad.codegen.stages import Places
from convgrad.codegen.watch.pair_watch import WatchedPairs
from convgrad.dtypes import SIZES
from convgrad.plan.by_dots.group_dots import GroupDotsPlan
from convgrad.values import replace


class PairsAhead(GroupsAhead):
    """What tiles fetch ahead: of two images."""

    def strides_of(self, tensor: str) -> tuple[int, ...]:
        """From pair to pair."""
        first, *others = self.plan.problem.strides[tensor]
        return PAIR * first, *others

    def of_tile(self, b: Builder, number: Index) -> list[Walk]:
        """Of the first image, and of the second."""
        p, first = self.plan.problem, self.bases
        walks = GroupsAhead.of_tile(self, b, number)
        steps = [p.strides[tensor][0] * SIZES[p.dtype] for tensor in "xy"]
        self.bases = [b.beyond(base, step) for base, step in zip(first, steps, strict=True)]
        walks += GroupsAhead.of_tile(self, b, number)
        self.bases = first
        return walks


class GroupDotSums(WatchedPairs, GroupSums):
    """The stages of a plan."""

    plan: GroupDotsPlan
    first_pair: Index  # of images, of the block that is packed

    def __init__(self, plan: GroupDotsPlan):
        super().__init__(plan)
        self.tensor_strides = {name: (PAIR * of[0], *of[1:]) for name, of in plan.problem.strides.items()}
        self.room: Value | None = None

    def task(self, b: Builder, at: Places, task: Value) -> None:
        """Watching both operands."""
        self.room = room_for_squares(b, self.plan.lanes)
        super().task(b, at, task)

    def _ahead(self) -> PairsAhead:
        return PairsAhead(self.plan, self.bundle, 0, 0)

    def _pack_rows(self, b: Builder, at: Places, starts: list[Index]) -> None:
        self.first_pair = starts[0]
        GroupSums._pack_rows(self, b, at, starts)

    def _pack_lanes(self, b: Builder, at: Places, slab: Value, starts: list[Index]) -> None:
        self.first_pair = starts[0]
        GroupSums._pack_lanes(self, b, at, slab, starts)

    def move(self, b: Builder, tensor: str, source: Value, slab: Value, dims: list[Dim]) -> None:
        """Two images, and the last one of an odd number with zeros."""
        p, (pairs, *others) = self.plan.problem, dims
        copy = paired_copy(self.isa, p.dtype, self.watch.of(tensor), self.room, p.strides[tensor][0])
        whole, odd = pairs.extent, p.batch % PAIR
        if odd:
            whole = b.minimum(whole, b.sub(p.batch // PAIR, self.first_pair))
        copy.emit(b, source, slab, [replace(pairs, extent=whole), *others])
        if odd:
            with b.when(b.compare("ne", pairs.extent, whole)):
                here, there = b.mul(whole, pairs.src), b.mul(whole, pairs.dst)
                source, slab = b.at(source, here, STORAGE[p.dtype]), b.at(slab, there, self.kind)
                copy.with_partner(None).emit(b, source, slab, others)

    def _tile_of(self, taps: range, channels: range) -> Tile:
        return replace(GroupSums._tile_of(self, taps, channels), adds=self._add)

    def _add(self, b: Builder, x: Value, y: Value, total: Value) -> Value:
        return self.unit.multiply_add(b, b.cast("bitcast", x, WORDS), b.cast("bitcast", y, WORDS), total)
