"""What the tiles of a data kernel fetch ahead: the slab that their thread packs next, the weights of the next sweep."""

from __future__ import annotations

from collections.abc import Callable
from math import prod

from convgrad.codegen.ir import Builder
from convgrad.codegen.ir_module import Index, Value, index
from convgrad.codegen.loops.ahead import Ahead, Lines, Walk, lines_of
from convgrad.codegen.loops.lanes import first_group, weights_origin, weights_steps
from convgrad.codegen.loops.tap_sums import paces, walks_along_channels
from convgrad.codegen.stages import Places
from convgrad.dtypes import SIZES
from convgrad.plan.general.data import DataPlan
from convgrad.problem.conv import Ints
from convgrad.values import frozen

MOST_LINES = 12  # that a tile asks for at a time
MOST_OF_WORDS = 32  # likewise where dot products have vectors along outputs: half the time for as many lines


@frozen
class Turn:
    """A sweep of a task: its group, the first lane block and the one behind the last, and what is multiplied now."""

    first_group: Index
    group: Index
    first: Index
    last: Index
    block: Index
    i_block: Index


class DataAhead:
    """Of one task. A counter in memory numbers the tiles of a sweep, whatever loops they are in."""

    def __init__(self, b: Builder, plan: DataPlan):
        self.plan, self.counter = plan, b.emit("ptr", "alloca i64, align 8")
        p = plan.problem
        self.given = p.given
        self.strides, self.size = p.strides[self.given], SIZES[p.dtype]
        axes = zip(plan.axes, plan.block, plan.tile, strict=True)
        self.tiles = prod(-(-block // tile) * len(axis.phases) for axis, block, tile in axes)  # of one sweep
        self.slab: Value | None = None  # where the next one begins in memory

    def begin(self, b: Builder, at: Places, task: Value, i_block: Index) -> None:
        """From now on tiles fetch the slab that this thread is likely to pack next, nothing beside the tensor."""
        plan = self.plan
        if not plan.fetches_slab:
            return
        following = b.add(i_block, 1)
        last = b.compare("sge", following, plan.i_blocks)
        then = b.minimum(b.select(last, index(b.add(task, at.threads)), task), prod(plan.grid) - 1)
        *blocks, group, share = b.split(then, plan.grid)
        channel = b.mul(b.select(last, index(0), index(following)), plan.i_block)
        channel = b.minimum(channel, max(0, plan.in_channels - plan.i_block))
        place = b.mul(channel, self.strides[2])
        steps = (self.strides[0], *self.strides[3:])
        of_axes = zip(blocks, plan.block, plan.axes, plan.slab_start, self._extents, steps, strict=True)
        for block, size, axis, first, extent, step in of_axes:
            origin = b.maximum(b.add(b.mul(b.mul(block, size), axis.in_step), first), 0)
            place = b.add(place, b.mul(b.minimum(origin, axis.in_extent - extent), step))
        group = first_group(plan, b, b.mul(group, plan.bundle), b.mul(share, plan.blocks_per_task))
        place = b.add(place, b.mul(group, self.strides[1]))
        self.slab = b.beyond(at.of(self.given), b.mul(place, self.size))

    def walks(self, b: Builder, at: Places, turn: Turn) -> Callable[[], list[Walk]]:
        """What tile after tile of a sweep fetches."""
        plan = self.plan
        b.store(index(0), self.counter, 8)
        panel, panel_lines = None, lines_of([(plan.panel, plan.packed_bytes)])
        if plan.fetches_weights:
            panel = self._following_panel(b, at, turn)
        elif plan.fetches_raw_weights:
            panel, panel_lines = self._following_weights(b, at, turn), raw_lines(plan)

        def of_tile() -> list[Walk]:
            number = b.load("i64", self.counter, 8)
            b.store(index(b.add(number, 1)), self.counter, 8)
            found = []
            if self.slab is not None:
                before = b.sub(turn.block, turn.first)
                if plan.bundle > 1:
                    before = b.add(before, b.mul(b.sub(turn.group, turn.first_group), plan.blocks_per_task))
                of_slab = b.add(number, b.mul(before, self.tiles))
                sweeps = plan.bundle * plan.blocks_per_task
                found.append(self._ahead(self._slab_lines(), sweeps).walk(b, of_slab, [self.slab]))
            if panel is not None:
                found.append(self._ahead(panel_lines, 1).walk(b, number, [panel]))
            return found

        return of_tile

    def _ahead(self, lines: Lines, sweeps: int) -> Ahead:
        """Lines for the tiles of so many sweeps to fetch."""
        steps = max(1, paces(self.plan)[0] * self.plan.runs)  # none, where no window meets an output
        if walks_along_channels(self.plan):
            steps = self.plan.i_block
        most = MOST_OF_WORDS if self.plan.BY_DOTS and self.plan.pixels else MOST_LINES
        return Ahead((lines,), steps, sweeps * self.tiles, most)

    @property
    def _extents(self) -> Ints:
        """Elements of each axis that a slab may hold."""
        axes = zip(self.plan.slab_extent, self.plan.axes, strict=True)
        return tuple(min(extent, axis.in_extent) for extent, axis in axes)

    def _slab_lines(self) -> Lines:
        plan = self.plan
        steps = (self.strides[0], *self.strides[3:], self.strides[2])
        channels = min(plan.i_block, plan.in_channels) * plan.slab_groups  # those of groups lie side by side
        box = zip((*self._extents, channels), steps, strict=True)
        return lines_of([(extent, self.size * step) for extent, step in box])

    def _following_weights(self, b: Builder, at: Places, turn: Turn) -> Value:
        """Where those of the next sweep begin; if they are fewer, as many are asked for nevertheless."""
        place = weights_origin(self.plan, b, turn.group, *self._following(b, turn))
        return b.beyond(at.w, b.mul(place, self.size))

    def _following_panel(self, b: Builder, at: Places, turn: Turn) -> Value:
        """Of the packed weights, the part that the next sweep is likely to multiply."""
        plan = self.plan
        lane_block, i = self._following(b, turn)
        which = b.dot([(turn.group, plan.lane_blocks * plan.i_blocks), (lane_block, plan.i_blocks)])
        which = b.add(which, i)
        return b.beyond(at.shared, b.mul(which, plan.panel * plan.packed_bytes))

    def _following(self, b: Builder, turn: Turn) -> tuple[Index, Index]:
        """The next lane block, or the same one with the next channels, of this share or the next; of this group."""
        plan = self.plan
        wrapped = b.compare("sge", b.add(turn.block, 1), turn.last)
        i = b.select(wrapped, index(b.add(turn.i_block, 1)), index(turn.i_block))
        over = b.compare("sge", i, plan.i_blocks)
        share = b.select(b.compare("sge", turn.last, plan.lane_blocks), index(0), index(turn.last))
        start = b.select(over, share, index(turn.first))
        lane_block = b.select(wrapped, start, index(b.add(turn.block, 1)))
        return lane_block, b.select(over, index(0), i)


def raw_lines(plan: DataPlan) -> Lines:
    """Of the weights that a task packs for a sweep, as they lie."""
    p, (_, out_step, in_step) = plan.problem, weights_steps(plan)
    lanes, channels = min(plan.width, plan.out_channels), min(plan.i_block, plan.in_channels)
    box = [(lanes, out_step), (channels, in_step), *zip(p.taps, p.w_strides[3:], strict=True)]
    return lines_of([(extent, SIZES[p.dtype] * step) for extent, step in box])
