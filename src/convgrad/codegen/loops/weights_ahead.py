"""What the tiles of a weights kernel fetch ahead: the rows and lanes of the block of windows that follows."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from math import prod

from convgrad.codegen.ir import Builder
from convgrad.codegen.ir_module import Index, Value, index
from convgrad.codegen.loops.ahead import Ahead, Lines, Walk, lines_of
from convgrad.codegen.stages import Places
from convgrad.dtypes import SIZES
from convgrad.plan.costs import LINE
from convgrad.plan.general.weights import WeightsPlan
from convgrad.problem.conv import Ints
from convgrad.values import frozen

PAGE = 4096  # bytes
NEXT_BYTES = 4 * 1024 * 1024  # of a tensor of rows, from where on a tile asks for those of the next one
MOST_LINES = 4  # of an operand, in a step


@dataclass
class WeightsAhead:
    """Of one task, which is of a bundle of groups and begins at a row channel and a block of lanes."""

    plan: WeightsPlan
    bundle: Index
    first_row: Index
    first_block: Index
    most: int = MOST_LINES  # of rows and lanes together, in a step
    bases: list[Value] = field(default_factory=list)  # where the operands of the next block begin in memory
    here: list[Value] = field(default_factory=list)  # likewise of the present one, if rows are packed as they are met

    def begin(self, b: Builder, at: Places, number: Index, present: Index = 0) -> None:
        """From now on tiles fetch block `number`, from the present one; of the last one nothing beside the tensors."""
        self.bases = self._begins(b, at, number, early=True)
        if self._by_tiles:
            self.here = self._begins(b, at, present)

    @property
    def _by_tiles(self) -> bool:
        """Whether a tile fetches the rows of the next one, which are packed when that meets them."""
        return self.plan.rows_as_met and NextRows.wanted(self.plan)

    def _begins(self, b: Builder, at: Places, number: Index, *, early: bool = False) -> list[Value]:
        """Where the operands of a block begin; `early`, if so many elements would reach beyond the tensor."""
        plan, bases = self.plan, []
        places = b.split(number, plan.block_grid)
        starts = [b.mul(place, size) for place, size in zip(places, plan.block, strict=True)]
        for tensor, channel, _ in self._operands(b):
            strides = self.strides_of(tensor)
            origins = starts
            if tensor == "x":
                origins = [
                    b.maximum(b.add(b.mul(start, axis.stride), first), 0)
                    for start, axis, first in zip(starts, plan.axes, plan.x_start, strict=True)
                ]
            if early:
                extents = [axis.image if tensor == "x" else axis.windows for axis in plan.axes]
                box = zip(origins, self._box(tensor), extents, strict=True)
                origins = [b.minimum(origin, extent - size) for origin, size, extent in box]
            steps = (strides[0], *strides[3:])
            place = b.dot(list(zip(origins, steps, strict=True)), b.mul(self.bundle, plan.lane_groups * strides[1]))
            place = b.add(place, b.mul(channel, strides[2]))
            bases.append(b.beyond(at.of(tensor), b.mul(place, SIZES[plan.problem.dtype])))
        return bases

    def strides_of(self, tensor: str) -> tuple[int, ...]:
        """By which blocks are found in a tensor."""
        return self.plan.problem.strides[tensor]

    def walks(self, b: Builder, lane_block: Index, tap: Index, row: Index) -> list[Walk]:
        """What the tile at a tap and a row channel fetches, in a block of lanes of the task."""
        plan = self.plan
        numbers = lane_block, b.floor_div(tap, plan.tile_taps)
        steps = plan.taps // plan.tile_taps * plan.tiles_of_rows, plan.tiles_of_rows
        number = b.dot(list(zip(numbers, steps, strict=True)), b.floor_div(row, plan.row_channels))
        tiles = plan.share_blocks * steps[0]
        boxes = tuple(self._lines(tensor, channels) for tensor, _, channels in self._operands(b))
        if plan.along_windows:  # few tiles, which are long: each fetches some of both
            numbers = number, b.sub(tiles - 1, number)
            return [
                Ahead((box,), plan.tile_steps, tiles, MOST_LINES).walk(b, number, [base])
                for box, number, base in zip(boxes, numbers, self.bases, strict=True)
            ]
        if self._by_tiles:
            following = b.add(row, plan.row_channels)
            own = b.beyond(self.here[0], b.mul(following, SIZES[plan.problem.dtype] * _row_steps(plan)[1]))
            first = b.select(b.compare("slt", following, plan.share_rows), own, self.bases[0])
            lanes = Ahead(boxes[1:], plan.tile_steps, tiles, self.most).complete()
            return [NextRows.of(plan, first), lanes.walk(b, number, self.bases[1:])]
        return [Ahead(boxes, plan.tile_steps, tiles, self.most).complete().walk(b, number, self.bases)]

    def _operands(self, b: Builder) -> Iterator[tuple[str, Index, int]]:
        """Rows, then lanes: tensor, first channel and number of channels of the task."""
        plan = self.plan
        rows, lanes = ("x", "y") if plan.rows_shift else ("y", "x")
        first_lane, lane_count = b.mul(self.first_block, plan.block_channels), plan.share_blocks * plan.block_channels
        for tensor, first, count in ((rows, self.first_row, plan.share_rows), (lanes, first_lane, lane_count)):
            some = count if plan.spread else min(count, plan.problem.shapes[tensor][2])
            yield tensor, first if plan.spread else b.minimum(first, plan.problem.shapes[tensor][2] - some), some

    def _box(self, tensor: str) -> Ints:
        """Elements of each axis that a block meets, of those that there are."""
        plan = self.plan
        if tensor == "x":
            return tuple(min(extent, axis.image) for extent, axis in zip(plan.x_met, plan.axes, strict=True))
        return tuple(min(extent, axis.windows) for extent, axis in zip(plan.block, plan.axes, strict=True))

    def _lines(self, tensor: str, channels: int) -> Lines:
        plan, strides = self.plan, self.plan.problem.strides[tensor]
        box = zip((*self._box(tensor), channels), (strides[0], *strides[3:], strides[2]), strict=True)
        return lines_of([(extent, SIZES[plan.problem.dtype] * step) for extent, step in box])


@frozen
class NextRows(Walk):
    """What a tile fetches whose rows are planes it meets alone: the same windows of the next tile's rows.

    Runs of a row in a block are too short for the processor to find out where they go on. While a line of every row is
    multiplied, one of each of the following rows is asked for.
    """

    plan: WeightsPlan

    @staticmethod
    def of(plan: WeightsPlan, first: Value) -> NextRows:
        """Those rows that begin at an address, at the first window of the block."""
        return NextRows(first, index(0), 0, 0, 0, plan)

    @staticmethod
    def wanted(plan: WeightsPlan) -> bool:
        """Whether rows are such, and come from memory; blocks are one run, and each of them meets one tap.

        Rows that are packed as they are met, from pages of their own: the processor follows them through fewer.
        """
        window, channel = _row_steps(plan)
        size = SIZES[plan.problem.dtype]
        tensor = prod(plan.problem.shapes["x" if plan.rows_shift else "y"]) * size
        apart = LINE if plan.rows_in_place else PAGE
        near = plan.rows_in_place or plan.rows_as_met
        planes = near and 0 < 2 * abs(window) * size <= LINE and apart <= abs(channel) * size
        return planes and tensor > NEXT_BYTES and plan.taps == 1 == prod(plan.block[:-1])

    def begin(self, b: Builder) -> None:
        """Nothing before the first step."""

    def go_on(self, b: Builder, done: Index) -> None:
        """After so many windows of the block."""
        plan, size = self.plan, SIZES[self.plan.problem.dtype]
        step, channel = (size * step for step in _row_steps(plan))
        together = 1 << (LINE // abs(step)).bit_length() - 1  # windows of a line
        turn = b.binary("and", index(done), index(together - 1))
        place = b.mul(b.sub(done, turn), step)
        each = -(-plan.row_channels // together)
        for more in range(each):
            row = b.minimum(b.add(b.mul(turn, each), more), plan.row_channels - 1)
            b.prefetch(b.beyond(self.first, b.add(place, b.mul(row, channel))), keep=3)


def _row_steps(plan: WeightsPlan) -> tuple[int, int]:
    """In the tensor of the rows, from what a tap meets of one window to the next, and from channel to channel."""
    strides = plan.problem.strides["x" if plan.rows_shift else "y"]
    return strides[-1] * (plan.axes[-1].stride if plan.rows_shift else 1), strides[2]
