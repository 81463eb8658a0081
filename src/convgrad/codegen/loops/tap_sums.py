"""What a register tile of X or Y sums: taps axis by axis, looped over or written out, and channels, in which order."""

from __future__ import annotations

from math import prod

from convgrad.codegen.ir import Builder
from convgrad.codegen.ir_module import Index, Value, index
from convgrad.codegen.loops.lanes import weights_steps
from convgrad.codegen.microkernels.reduction import Part, Reduction
from convgrad.dtypes import SIZES
from convgrad.plan.axes import GatherAxis, Phase
from convgrad.plan.general.data import DataPlan
from convgrad.problem.conv import Ints
from convgrad.values import frozen, replace


@frozen
class Spot:
    """Offsets from the bases of the slab, the weights and the results, and the sums still to run."""

    slab: Index = 0
    weights: Index = 0
    result: Index = 0
    sums: tuple[Reduction, ...] = ()
    unrolled: tuple[tuple[int, int], ...] = ((0, 0),)  # (slab, weights) offsets of taps written out
    beside: int = 0  # of what aligned vectors of the slab read, from a cache line
    met: tuple[tuple[int, ...], ...] | None = None  # rows of the tile that take part, per tap written out; else all
    tile: Ints | None = None  # outputs, per axis, of a tile that is smaller than others


class TapSums:
    """The sums of a tile, each axis of taps added to a `Spot` as its loops come to it."""

    def __init__(self, plan: DataPlan, b: Builder, channels: Index, paces: list[int]):
        self.plan, self.b, self.channels, self.paces = plan, b, channels, paces
        self.channel_pace = int(paces[0] > 0 and walks_along_channels(plan))
        self.strides = _tap_strides(plan)  # of the weights, per axis
        self.channel_stride = weights_steps(plan)[2] if plan.reads_weights else plan.row_width  # likewise

    def bounds(self, axis: GatherAxis, tile: int, j: Index, taps: Index, offset: Index) -> tuple[Index, Index]:
        """Taps t of which some output of the tile meets the input: 0 <= in_step·(j + m) + offset + t·step < extent."""
        b, step = self.b, axis.offset_step
        if not axis.clipped or axis.taps == 0 or not axis.skips(tile):
            return 0, taps
        low = b.add(b.mul(j, axis.in_step), offset)  # what tap 0 of the tile's first output reads
        high = b.add(low, axis.in_step * (tile - 1))
        if step > 0:
            start = b.sub(0, b.floor_div(high, step))  # ceil(-high / step)
            stop = b.add(b.floor_div(b.sub(axis.in_extent - 1, low), step), 1)
        else:
            start = b.sub(0, b.floor_div(b.sub(axis.in_extent - 1, low), -step))
            stop = b.add(b.floor_div(high, -step), 1)
        return b.maximum(start, 0), b.minimum(stop, taps)

    def summed(self, n: int, spot: Spot, bounds: tuple[Index, Index]) -> Spot:
        """With a loop over the taps of axis n."""
        plan, axis = self.plan, self.plan.axes[n]
        step: int | Value = plan.tap_offset(n) * plan.slab_strides[0][n]
        if plan.planes > 1 and axis is plan.axes[-1]:
            step = self.b.module.table(self._plane_places(axis, axis.phases[0]))
        elif bounds == (0, 1):
            return spot
        tap_step = axis.tap_step * self.strides[n]
        return replace(spot, sums=(*spot.sums, self.reduction(*bounds, step, tap_step, self.paces[1 + n])))

    def where_met(self, n: int, axis: GatherAxis, phase: Phase, j: tuple[Index, Index], spot: Spot) -> Spot:
        """With what follows summed only if the tile at j meets the input, where some tile does not.

        j is a sum of two. Taps that are written out are multiplied with zeros beside the input, and pads may be wider
        than a tile.
        """
        b, reach = self.b, [0, (phase.taps - 1) * axis.offset_step]
        first, last = phase.offset + min(reach), phase.offset + max(reach) + axis.in_step * (self.plan.tile[n] - 1)
        beyond = first + axis.in_step * (phase.count - self.plan.tile[n])
        if phase.taps == 0 or (last >= 0 and beyond < axis.in_extent):
            return spot
        place = b.mul(b.add(*j), axis.in_step)
        met = b.both(
            b.compare("sge", b.add(place, last), 0), b.compare("slt", b.add(place, first), axis.in_extent)
        )  # fmt: skip
        return replace(spot, sums=(*spot.sums, self.reduction(0, b.select(met, index(1), index(0)), 0, 0)))

    def in_parts(self, n: int, axis: GatherAxis, phase: Phase, spot: Spot) -> Spot:
        """With the taps of axis n as sums of their own, some rows of the tile taking part in each."""
        taps = self.written_out(n, axis, phase, Spot()).unrolled
        parts = [Part(w, x, self.plan.part_rows(phase.tap + t)) for t, (x, w) in enumerate(taps)]
        parts = [part for part in parts if part.rows]
        return replace(spot, sums=(*spot.sums, Reduction(0, len(parts), 0, 0, parts=tuple(parts))))

    def written_out(self, n: int, axis: GatherAxis, phase: Phase, spot: Spot) -> Spot:
        """With the taps of axis n as offsets of their own."""
        plan = self.plan
        if plan.planes > 1 and axis is plan.axes[-1]:
            places = self._plane_places(axis, phase)
        else:
            places = [t * plan.tap_offset(n) * plan.slab_strides[0][n] for t in range(phase.taps)]
        step = axis.tap_step * self.strides[n]
        taps = [(x + place, w + t * step) for x, w in spot.unrolled for t, place in enumerate(places[: phase.taps])]
        return replace(spot, unrolled=tuple(taps))

    def reduction(
        self, start: Index, stop: Index, slab_step: int | Value, weights_step: int, pace: int = 0
    ) -> Reduction:
        """One axis of the sum; which operand is which depends on what vectors run along."""
        if self.plan.pixels:
            return Reduction(start, stop, weights_step, slab_step, pace)
        assert isinstance(slab_step, int)
        return Reduction(start, stop, slab_step, weights_step, pace)

    def _plane_places(self, axis: GatherAxis, phase: Phase) -> list[int]:
        """Where each tap finds the input of output 0, for an axis in planes."""
        plan, offset = self.plan, phase.offset - self.plan.slab_start[-1]
        places = (offset + t * axis.offset_step for t in range(max(1, phase.taps)))
        return [at % plan.planes * plan.plane_pitch + at // plan.planes for at in places]

    def in_order(self, taps: tuple[Reduction, ...]) -> list[Reduction]:
        """Runs of channels, taps, channels, see `plan.order`; across groups the register tile sums channels itself."""
        b, plan, step = self.b, self.plan, self.plan.slab_strides[1]
        if plan.spread:
            return list(taps)
        if plan.runs == 1:
            return [*taps, self.reduction(0, self.channels, step, self.channel_stride, self.channel_pace)]
        run = plan.channel_unit
        count = b.floor_div(self.channels, run)
        of_run = run * self.channel_stride if plan.reads_weights else plan.panel_rows // plan.runs
        runs = self.reduction(0, count, run * step, of_run, self.paces[0])
        return [runs, *taps, self.reduction(0, run, step, self.channel_stride)]


def paces(plan: DataPlan) -> list[int]:
    """Steps of a walk from one run of channels to the next, and from one tap to the next of each axis.

    Taps of the innermost axis are no steps, since their sums may be one with those of channels, but for lack of others;
    where there are steps within a tap (`steps_inside`), these are counted, and those of all outer taps.
    """
    taps = [max(phase.taps for phase in axis.phases) for axis in plan.axes]
    alone = plan.runs * prod(taps[:-1]) == 1 and not plan.steps_inside
    inner = taps[-1] if alone else max(1, plan.steps_inside)
    steps, pace = [int(alone and inner > 1)], inner
    for count in reversed(taps[:-1]):
        steps.insert(0, pace if count > 1 or plan.steps_inside else 0)
        pace *= count
    return [pace, *steps]


def walks_along_channels(plan: DataPlan) -> bool:
    """Whether steps of a walk are channels, for lack of others, and a few lines for each tile are not enough.

    Of 16 bits that are widened, since f32 is read in place where this matters most; in sums that this module orders.
    """
    widened = SIZES[plan.problem.dtype] < plan.packed_bytes
    return widened and paces(plan)[0] * plan.runs == 1 and plan.fetches_slab and not (plan.pixels or plan.spread)


def _tap_strides(plan: DataPlan) -> list[int]:
    """Steps of the packed weights per tap of each axis, the batch included."""
    if plan.reads_weights:
        return [0, *plan.problem.w_strides[3:]]
    step, strides = plan.panel_rows // (plan.runs * plan.taps) if plan.taps else 0, []
    for taps in reversed(plan.problem.taps):
        strides.insert(0, step)
        step *= taps
    return [0, *strides]
