"""What the tiles of a weights kernel fetch ahead: the rows and lanes of the block of windows that follows."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field

from convgrad.codegen.ahead import Ahead, Lines, Walk, lines_of
from convgrad.codegen.ir import Builder
from convgrad.codegen.ir_module import Index, Value
from convgrad.codegen.stages import Places
from convgrad.dtypes import SIZES
from convgrad.plan.weights import WeightsPlan

MOST_LINES = 4  # of an operand, in a step


@dataclass
class WeightsAhead:
    """Of one task, which is of a bundle of groups and begins at a row channel and a block of lanes."""

    plan: WeightsPlan
    bundle: Index
    first_row: Index
    first_block: Index
    bases: list[Value] = field(default_factory=list)  # where the operands of the next block begin in memory

    def begin(self, b: Builder, at: Places, number: Index) -> None:
        """From now on tiles fetch block `number`."""
        plan = self.plan
        places = b.split(number, plan.block_grid)
        starts = [b.mul(place, size) for place, size in zip(places, plan.block, strict=True)]
        self.bases = []
        for tensor, channel, _ in self._operands(b):
            strides = plan.problem.strides[tensor]
            origins = starts
            if tensor == "x":
                origins = [
                    b.maximum(b.add(b.mul(start, axis.stride), first), 0)
                    for start, axis, first in zip(starts, plan.axes, plan.x_start, strict=True)
                ]
            steps = (strides[0], *strides[3:])
            place = b.dot(list(zip(origins, steps, strict=True)), b.mul(self.bundle, plan.lane_groups * strides[1]))
            place = b.add(place, b.mul(channel, strides[2]))
            self.bases.append(b.beyond(at.of(tensor), b.mul(place, SIZES[plan.problem.dtype])))

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
        return [Ahead(boxes, plan.tile_steps, tiles).walk(b, number, self.bases)]

    def _operands(self, b: Builder) -> Iterator[tuple[str, Index, int]]:
        """Rows, then lanes: tensor, first channel and number of channels of the task."""
        plan = self.plan
        rows, lanes = ("x", "y") if plan.rows_shift else ("y", "x")
        yield rows, self.first_row, plan.share_rows
        yield lanes, b.mul(self.first_block, plan.block_channels), plan.share_blocks * plan.block_channels

    def _lines(self, tensor: str, channels: int) -> Lines:
        plan, strides = self.plan, self.plan.problem.strides[tensor]
        extents = plan.x_met if tensor == "x" else plan.block
        box = zip((*extents, channels), (strides[0], *strides[3:], strides[2]), strict=True)
        return lines_of([(extent, SIZES[plan.problem.dtype] * step) for extent, step in box])
