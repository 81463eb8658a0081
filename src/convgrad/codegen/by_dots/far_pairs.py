"""Lowering of a FarPairsPlan: a WeightsPlan whose slabs hold words, and whose products are dot products."""

from __future__ import annotations

from math import prod

from convgrad.codegen.copies.paired_copies import PairedCopy, paired_copy
from convgrad.codegen.copies.splitting import Watch, room_for_squares
from convgrad.codegen.copies.squares import Dim
from convgrad.codegen.copies.window_slabs import Bands
from convgrad.codegen.general.weights import SumsStage
from convgrad.codegen.ir import Builder
from convgrad.codegen.ir_module import Index, Value, lanes_of, vector_of
from convgrad.codegen.isa.base import STORAGE
from convgrad.codegen.isa.dots import DOT_UNITS
from convgrad.codegen.loops.ahead import Walk
from convgrad.codegen.loops.weights_ahead import WeightsAhead
from convgrad.codegen.microkernels.contract import Tile
from convgrad.codegen.outputs.bias import BiasShare
from convgrad.codegen.stages import Places
from convgrad.codegen.watch.verdict import Verdict
from convgrad.dtypes import SIZES
from convgrad.plan.by_dots.far_pairs import FarPairsPlan, of_windows
from convgrad.plan.kinds import as_kind
from convgrad.plan.window_axes import WindowAxis
from convgrad.values import frozen, replace


class PairsAhead(WeightsAhead):
    """What tiles fetch ahead: of both windows."""

    plan: FarPairsPlan

    def strides_of(self, tensor: str) -> tuple[int, ...]:
        """From pair to pair."""
        return self.plan.strides_of(tensor)

    def walks(self, b: Builder, lane_block: Index, tap: Index, row: Index) -> list[Walk]:
        """Of the first ones, and of their partners."""
        p, fold, first = self.plan.problem, self.plan.fold, self.bases
        walks = WeightsAhead.walks(self, b, lane_block, tap, row)
        tensors = [tensor for tensor, _, _ in self._operands(b)]
        steps = [fold.units(tensor)[1] * of_windows(p.strides[tensor])[fold.number] for tensor in tensors]
        self.bases = [b.beyond(base, step * SIZES[p.dtype]) for base, step in zip(first, steps, strict=True)]
        walks += WeightsAhead.walks(self, b, lane_block, tap, row)
        self.bases = first
        return walks


@frozen
class PairsBiasShare(BiasShare):
    """The elements that belong to a block of pairs: those of their first windows, then of their second ones."""

    plan: FarPairsPlan
    second: bool = False

    def add_block(self, b: Builder, starts: list[Index]) -> None:
        """Neighbours are one run of windows."""
        BiasShare.add_block(self, b, starts)
        if self.plan.fold.step == 1:
            BiasShare.add_block(replace(self, second=True), b, starts)

    def windows(self, b: Builder, n: int, start: Index) -> tuple[WindowAxis, Index, Index]:
        """Of the axis as it is."""
        fold, stop = self.plan.fold, b.add(start, self.plan.block[n])
        if n != fold.number:
            return self.plan.axes[n], start, stop
        ahead = fold.apart if self.second else 0
        first, stop = (b.add(b.mul(pair, fold.step), ahead) for pair in (start, b.minimum(stop, fold.pairs)))
        return fold.axis, first, stop


class FarPairSums(SumsStage):
    """The first stage."""

    plan: FarPairsPlan

    def __init__(self, plan: FarPairsPlan):
        self.unit = DOT_UNITS[plan.isa]()
        super().__init__(plan)
        tasks = prod(plan.grid)
        self.verdict: Verdict | None = None
        if plan.watch:
            self.verdict = Verdict(plan, self.shared_bytes, tasks, tasks, after=1, replaces=plan.own_sums)
        self.watches: dict[str, Watch] = {}
        self.room: Value | None = None
        self.tensor_strides = {name: plan.strides_of(name) for name in "xy"}
        self.first: Index = 0  # pair, or element of the scale, from which on something is packed

    def task(self, b: Builder, at: Places, task: Value) -> None:
        """Watching both operands."""
        self.room = room_for_squares(b, self.plan.lanes)
        self.watches = {name: Watch(b, self.plan.lanes, bf16=True) for name in "xy"} if self.verdict else {}
        super().task(b, at, task)
        if self.verdict:
            self.verdict.note_first(b, at.shared, task, self.watches["x"])
            self.verdict.note_second(b, at.shared, task, self.watches["y"])

    def _ahead(self) -> PairsAhead:
        return PairsAhead(self.plan, self.bundle, self.first_row, self.first_block)

    def _bias_share(self, b: Builder, at: Places, chunk: Index, lane_share: Index, row_share: Index) -> PairsBiasShare:
        return as_kind(PairsBiasShare, super()._bias_share(b, at, chunk, lane_share, row_share))

    # --- packing

    def _box(
        self, b: Builder, starts: list[Index], tensor: str, strides: tuple[int, ...], bands: Bands
    ) -> tuple[list[Dim], Index, Index]:
        dims, source, target = super()._box(b, starts, tensor, strides, bands)
        fold = self.plan.fold
        self.first = starts[fold.number]
        if tensor == "x":
            origin, low, _ = self._on_x(b, fold.number, self.first, bands.get(fold.number, 0))
            self.first = b.add(origin, low)
            step = of_windows(self.plan.problem.x_strides)[fold.number]
            source = b.add(source, (fold.first - fold.axis.low) * step)
        return dims, source, target

    def move(self, b: Builder, tensor: str, source: Value, slab: Value, dims: list[Dim]) -> None:
        """Words where both windows of a pair have a number, and numbers next to zeros where one has."""
        p, fold, n = self.plan.problem, self.plan.fold, self.plan.fold.number
        folded, extent = dims[n], dims[n].extent
        start, stop, every = fold.shared(tensor)
        partner = fold.units(tensor)[1] * of_windows(p.strides[tensor])[n]
        both = paired_copy(self.isa, p.dtype, self.watches.get(tensor), self.room, partner)

        def part(low: Index, high: Index, copy: PairedCopy) -> None:
            if isinstance(low, int) and isinstance(high, int) and high <= low:
                return
            some = [*dims[:n], replace(folded, extent=b.sub(high, low)), *dims[n + 1 :]]
            here, there = b.mul(low, folded.src), b.mul(low, folded.dst)
            copy.emit(b, b.at(source, here, STORAGE[p.dtype]), b.at(slab, there, self.kind), some)

        low = b.minimum(b.maximum(b.sub(start, self.first), 0), extent) if start > 0 else 0
        high = b.maximum(b.minimum(b.sub(stop, self.first), extent), low)
        if start > 0:
            part(0, low, replace(both, alone=True))
        part(low, high, both)
        if stop < every:
            part(high, extent, both.with_partner(None))

    # --- arithmetic

    def part_tile(self, *, last: bool, rows: int) -> Tile:
        """Of dot products."""

        def adds(b: Builder, x: Value, y: Value, total: Value) -> Value:
            words = vector_of(lanes_of(total), "i32")
            return self.unit.multiply_add(b, b.cast("bitcast", x, words), b.cast("bitcast", y, words), total)

        return replace(super().part_tile(last=last, rows=rows), adds=adds)
