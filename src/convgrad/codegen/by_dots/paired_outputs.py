"""Lowering of plans for dot products along outputs: slabs and panels of words, of which a lane meets one."""

from __future__ import annotations

from collections.abc import Sequence

from convgrad.codegen.copies.copying import Copy, Dim
from convgrad.codegen.copies.paired_copies import paired_copy
from convgrad.codegen.copies.zeroing import emit_zero
from convgrad.codegen.few_channels.folded import FoldedStages
from convgrad.codegen.general.watched import WatchedStages
from convgrad.codegen.ir import Builder
from convgrad.codegen.ir_module import Index, Value, lanes_of, vector_of
from convgrad.codegen.isa.base import BYTES
from convgrad.codegen.isa.dots import DOT_UNITS, LANES, DotUnit
from convgrad.codegen.loops.lanes import whole_lanes
from convgrad.codegen.loops.sweep import Sweep
from convgrad.codegen.microkernels.contract import Tile
from convgrad.codegen.stages import Places
from convgrad.plan.by_dots.dots import PAIR
from convgrad.plan.by_dots.paired_outputs import PairedFoldedPlan, PairedPlan
from convgrad.plan.kinds import as_kind
from convgrad.values import frozen, replace


@frozen(kw_only=True)
class NarrowedTile(Tile):
    """A tile of sums none of which is denormal, or a fallback writes all again: the unit rounds them to bf16."""

    unit: DotUnit

    def store(self, b: Builder, c: Value, tile: Sequence[Value]) -> None:
        """Two vectors side by side at a time."""
        for run in self._runs(b, c, tile):
            for n in range(0, len(run.vectors), PAIR):
                b.store(
                    self.unit.narrow(b, run.vectors[n : n + PAIR]), b.at(run.address, n * LANES, "i16"), BYTES["bf16"]
                )


class PairedSweep(Sweep):
    """All tiles of a task, whose sums take words."""

    plan: PairedPlan  # pyright: ignore

    def _tile(self, shape: tuple[int, ...]) -> Tile:
        unit = DOT_UNITS[self.plan.isa]()

        def adds(b: Builder, x: Value, y: Value, total: Value) -> Value:
            words = vector_of(lanes_of(total), "i32")
            return unit.multiply_add(b, b.cast("bitcast", x, words), b.cast("bitcast", y, words), total)

        tile = replace(super()._tile(shape), adds=adds)
        return as_kind(NarrowedTile, tile, unit=unit) if tile.c_dtype == "bf16" and self.plan.watch else tile


class PairedOutputsStages(WatchedStages):
    """The stages of a PairedOutputsPlan."""

    plan: PairedPlan  # pyright: ignore
    sweep = PairedSweep

    def task(self, b: Builder, at: Places, task: Value) -> None:
        """Watching the input."""
        self.watched_task(b, at, task)

    def copy_slab(self, b: Builder, copy: Copy, tensor: Value, packed: Value, dims: list[Dim], channels: Index) -> None:
        """Words of the input, the last one of a number alone if there is one."""
        plan, step = self.plan, self.in_strides[2]
        pairs = paired_copy(self.isa, self.plan.numbers.dtype, self.watch, self.room, step // PAIR)
        super().copy_slab(b, pairs, tensor, packed, dims, b.sub(channels, int(plan.odd)))
        if plan.odd:
            last = plan.in_channels - 1
            tensor, packed = pairs.src_at(b, tensor, last * step), b.at(packed, last * plan.slab_strides[1], self.kind)
            super().copy_slab(b, pairs.with_partner(None), tensor, packed, dims, 1)

    def pack_panel(
        self, b: Builder, at: Places, source: Value, target: Value, *,
        lanes: list[tuple[Index, int, int]], channels: tuple[Index, int, int],
    ) -> None:  # fmt: skip
        """Words of the weights at `source` in the order of the microkernel."""
        plan, p, (count, room, step) = self.plan, self.plan.problem, channels
        dims, place = [Dim(n, src, dst) for n, dst, src in lanes], room * plan.width
        for extent, tap_step in reversed(list(zip(p.taps, p.w_strides[3:], strict=True))):
            dims.append(Dim(extent, tap_step, place))
            place *= extent
        if not whole_lanes(plan):
            emit_zero(b, self.isa, plan.compute, target, place)
        self.copy_weights(b, source, target, dims, [Dim(count, step, plan.width)])

    def copy_weights(
        self, b: Builder, source: Value, target: Value, dims: Sequence[Dim], channels: Sequence[Dim]
    ) -> None:  # fmt: skip
        """Words likewise."""
        step = channels[-1].src
        pairs = paired_copy(self.isa, self.plan.numbers.dtype, self.watch, self.room, step // PAIR)
        if not self.plan.odd:
            pairs.emit(b, source, target, [*dims, *channels])
            return
        (every,) = channels
        last = self.plan.in_channels - 1
        pairs.emit(b, source, target, [*dims, Dim(last, every.src, every.dst)])
        source, target = pairs.src_at(b, source, last * step), b.at(target, last * every.dst, self.kind)
        pairs.with_partner(None).emit(b, source, target, dims)


class PairedFoldedStages(PairedOutputsStages, FoldedStages):
    """The stages of a PairedFoldedPlan."""

    plan: PairedFoldedPlan  # pyright: ignore
