"""Ways to lay out vectors for a problem that solves for X or Y, with the best register tile and predicted cycles."""

from __future__ import annotations

from collections.abc import Iterator
from math import prod
from typing import Any, TypeVar

from convgrad.dtypes import COMPUTE, SIZES
from convgrad.plan.axes import GatherAxis, gather_axes
from convgrad.plan.costs import (
    BEHIND,
    LINE,
    LONG,
    MOST_SKIPPED,
    MOST_SPREAD,
    MOVE,
    SCALAR,
    SHORT,
    TURN_ALONE,
    TURN_BACK,
    TURN_NARROW,
)
from convgrad.plan.general.block_costs import PANEL_BYTES, comes_whole, rows_of_whole
from convgrad.plan.general.blocks import packing_cost
from convgrad.plan.general.bundles import coming_back
from convgrad.plan.general.data import DataPlan
from convgrad.plan.general.data_in_place import MOST_KNOWN_PHASES, reads_in_place, rows_of_l1
from convgrad.plan.kinds import as_kind
from convgrad.plan.machine import Machine
from convgrad.plan.order import MOST_SHUFFLED, taps_inside
from convgrad.plan.shares import even_share
from convgrad.plan.tiles import (
    TileShape,
    best_sharing_tile,
    best_spread_tile,
    best_tile,
    best_turned_tile,
    bursts_of,
)
from convgrad.plan.tiles_along_outputs import UNALIGNED, UNALIGNED_PLANES, best_pixel_tile, pixel_cycles
from convgrad.problem.conv import ConvProblem, Unknown
from convgrad.values import replace

Plan = TypeVar("Plan", bound=DataPlan)
Predicted = tuple[float, DataPlan]  # cycles of the arithmetic and of moving numbers once

WORTH_IMAGES = 0.98  # of the cycles of a tile of one image, from which one of several is looked at
AT_ONCE_SHORT = 0.95  # of the cycles predicted of phases at once, of vectors shorter than lines
IN_PLACE = 0.87  # of the cycles of tiles that pack nothing, for what a copy costs besides
ONE_VECTOR = 0.9  # of the cycles of tiles of one, a line, whose numbers in all lanes cost some processors nothing
NEARLY = 0.99  # of the cycles of a tile of several images, packing included: fewer multiply-adds are the surer gain
ROWS_OF_A_ROW = 8  # of a tile of neighbours in a row, where others come back to pages of the output
FEWEST_TURNED = 8  # channels of a group that go between positions and rows in squares
TURN_OF_GROUPS = 0.8  # cycles for a number of those
APART_OF_GROUPS = 0.6  # and more, if neighbours are of several planes or phases
FEWEST_SHORT, TURN_OF_GROUPS_SHORT = 3, 1.0  # likewise of vectors shorter than lines, with channels last
APART_SHORT = 0.3  # cycles more for a number that is turned and comes from several phases, of such vectors
FEWEST_ROWS = 12  # of a tile for which L1 is left
DEEP_PANEL_BYTES = 512 * 1024  # of weights of all channels of an input that nobody has to pack then: in L2 nevertheless


class DataCandidates:
    """Of one problem: predicted cycles, and a plan of one tile per task, for each way to lay out vectors."""

    def __init__(self, problem: ConvProblem, machine: Machine):
        self.problem, self.machine = problem, machine
        compute = COMPUTE[problem.dtype]
        self.size = SIZES[compute]
        self.lanes = machine.lanes_f32 * 4 // self.size
        self.axes = gather_axes(problem)
        given, solved = problem.given, problem.solved
        self.channels_in, self.channels_out = problem.shapes[given][2], problem.shapes[solved][2]
        self.channels = max(1, self.channels_in), self.channels_out
        self.phases = prod(len(axis.phases) for axis in self.axes)
        self.in_strides, out_strides = problem.strides[given], problem.strides[solved]
        self.elements_in, self.elements_out = prod(problem.shapes[given]), prod(problem.shapes[solved])
        self.pixel_major = abs(self.in_strides[2]) < abs(self.in_strides[-1])
        self.out_channels_first = abs(out_strides[2]) > abs(out_strides[-1])
        self.base = DataPlan(
            problem=problem, isa=machine.isa, compute=compute, lanes=self.lanes, axes=self.axes, block=(), tile=(),
            width=self.lanes, lane_groups=1, spread=False, pixels=False, i_block=max(1, self.channels_in),
            blocks_per_task=1, pixel_major=self.pixel_major,
        )  # fmt: skip
        self.lines = self.base.fills_lines
        self.moves = LONG if self.lines else SHORT
        self.sharing = sums_taps_inside(self.base, machine)

    def all(self) -> Iterator[Predicted]:
        """In no order."""
        yield self.along_channels()
        yield from self._along_outputs()
        if self.problem.unknown is Unknown.X and self.problem.stride[-1] > 1:
            yield from self._of_strided_images()
        few = self.channels_out <= min(MOST_SPREAD, self.lanes) and self.channels_in <= MOST_SPREAD
        if self.problem.groups > 1 and few:
            yield from self._across_groups()

    def _of_strided_images(self) -> Iterator[Predicted]:
        """Vectors that taps or phases fill."""
        from convgrad.plan.few_channels.patch_data import patch_data_candidates
        from convgrad.plan.few_channels.phase_lanes import phase_lanes_candidates

        if not self.sharing:
            turned = self.elements_in * MOVE + self.elements_out * (TURN_BACK if self.out_channels_first else MOVE)
            yield from phase_lanes_candidates(self.base, self.machine, turned)
        moved = (self.elements_in + self.elements_out) * MOVE
        yield from patch_data_candidates(self.base, self.machine.registers, moved)

    def _planned(self, shape: TileShape, **changes: Any) -> DataPlan:
        return replace(self.base, block=shape.tile, tile=shape.tile, width=shape.width, **changes)

    def _panel_channels(self, taps: int, width: int, phases_at_once: int = 1) -> int:
        """Input channels that are packed at a time, by the room that their weights take which meet one output."""
        return max(16, PANEL_BYTES // max(1, round(self.size * taps / self.phases * phases_at_once * width)))

    def along_channels(self) -> Predicted:
        """Vectors along output channels."""
        axes = self.axes
        parts = self.problem.groups > 1 and self.channels_in * self.size < LINE
        cost = self.elements_in * max(MOVE, self.moves.part * parts / self.channels[0])
        cost += self.elements_out * self._out_of_lanes()
        turned = self.channels_in >= self.lanes and 0 < abs(self.in_strides[-1]) <= MOST_SKIPPED
        straight = self.lines and prod(self.problem.taps) == 1 and not self.out_channels_first

        def tiled(first: int, *, inside: bool = False, rows: int | None = None) -> Predicted:
            machine = self.machine
            if self.sharing:
                shape = best_sharing_tile(axes, self.channels, self.lanes, machine.registers, first=first, most=rows)
            else:
                shape = best_tile(
                    axes, self.channels, self.lanes, machine.tile_registers, first=first, inside=inside,
                    lines=self.lines, most=rows, alone=machine.loads_alone, short=not self.lines,
                    bursts=bursts_of(self.problem) if inside and straight else 0.0,
                )  # fmt: skip
            taps = prod(self.problem.taps)
            i_block = even_share(self.channels_in, self._panel_channels(taps, shape.width))
            plan = self._planned(shape, pixel_major=self.pixel_major or turned, i_block=i_block)
            deep = replace(plan, i_block=max(1, self.channels_in))
            most = DEEP_PANEL_BYTES if taps == 1 else DEEP_PANEL_BYTES // 2
            if self.size * deep.panel <= most and reads_in_place(whole_blocks(deep)):
                plan = deep
            elif rows is None and comes_whole(plan):
                few = rows_of_whole(plan)
                if FEWEST_ROWS <= few < prod(plan.tile):
                    return tiled(first, inside=inside, rows=few)
            few = rows_of_l1(plan)
            if inside and rows is None and prod(plan.tile) > few and reads_in_place(whole_blocks(plan)):
                return tiled(first, inside=True, rows=few)
            return self.problem.groups * shape.cycles + cost, plan

        cycles, plan = _cheapest(tiled(len(axes) - 1, inside=True), tiled(1), tiled(0))
        if coming_back(plan) > BEHIND * cycles:  # already for a tile
            row = tiled(len(axes) - 1)
            if prod(row[1].tile) >= ROWS_OF_A_ROW:
                cycles, plan = min((cycles, plan), row, key=_packed)
        if reads_in_place(whole_blocks(plan)):
            return IN_PLACE * (cycles - cost), plan
        one = self.lines and plan.width == self.lanes and self.lanes <= 2 * self.channels_out
        strided = axes[-1].in_step > 1 and not self.pixel_major  # rows that those along outputs take apart first
        return (ONE_VECTOR if one and (strided or not self.sharing) else 1.0) * cycles, plan

    def _out_of_lanes(self) -> float:
        """Cycles for a result of vectors along channels; those of a group may leave short ones partly empty."""
        moves, several = self.moves, self.problem.groups > 1
        filled = self.channels_out / (-(-self.channels_out // self.lanes) * self.lanes)
        if self.out_channels_first:
            return moves.back / (filled if several and not self.lines else 1.0)
        more = moves.part_back * (filled < 1) + moves.phase_back * (self.axes[-1].out_step > 1)
        return MOVE + more * several

    def _along_outputs(self) -> Iterator[Predicted]:
        """Vectors along outputs of the innermost axis; of planes as they lie; of all phases at once."""
        (cycles, packed), *at_once = self.packed_along_outputs()
        less = self._unaligned_saves(packed)
        if prod(self.problem.taps) > 1 and not self.sharing:
            from convgrad.plan.in_place.choose_flat_data import flat_data_candidates
            from convgrad.plan.in_place.choose_row_data import row_data_candidates

            whole = replace(packed, i_block=max(1, self.channels_in), pixels=False, pixel_major=self.pixel_major)
            flat = list(flat_data_candidates(whole_blocks(packed), cycles, self.machine))
            in_place = flat or list(row_data_candidates(self.problem, self.machine, whole))
            yield from in_place
            if any(other <= cycles for other, _ in in_place):  # which are not to lose against what packs
                less = 0.0
            parts = prod(packed.tile[1:-1]) > 1 and packed.tile[-1] < self.axes[-1].count
            if parts:  # of rows, in place if they can be
                cycles = max([cycles, *(other for other, _ in in_place)])
        if packed.taps == 1:
            from convgrad.plan.in_place.choose_pointwise import pointwise_candidates

            yield from pointwise_candidates(whole_blocks(packed), cycles, self.machine)
        yield cycles - less, packed
        yield from at_once

    def _unaligned_saves(self, plan: DataPlan) -> float:
        """Cycles that vectors along outputs are taken to have less against those along channels, of planes."""
        row, planes = plan.axes[-1], self.out_channels_first and not self.pixel_major
        if not (planes and self.lines and row.in_step == len(row.phases) == 1):
            return 0.0
        shape = TileShape(plan.tile, plan.width, 0.0)
        more, less = (
            pixel_cycles(plan.axes, self.channels, self.lanes, shape, lines=True, unaligned=unaligned)
            for unaligned in (UNALIGNED, UNALIGNED_PLANES)
        )
        return self.problem.groups * (more - less)

    def _turned(self, channels: int, step: int) -> float:
        """Cycles for a number that goes between positions and rows: one group may be a small part of a position."""
        if self.problem.groups == 1:
            return self.moves.turn
        if self.lines and channels >= FEWEST_TURNED:
            return TURN_OF_GROUPS + (APART_OF_GROUPS if step > 1 else 0.0)
        if not (self.lines or self.out_channels_first) and channels >= FEWEST_SHORT:
            return TURN_OF_GROUPS_SHORT
        return SCALAR

    def packed_along_outputs(self, *, words: bool = False) -> Iterator[Predicted]:
        """Likewise of what is packed, words as they are: all phases after each other, then at once, if they may be."""
        problem, axes, groups = self.problem, self.axes, self.problem.groups
        taps = prod(problem.taps)
        shape = best_pixel_tile(axes, self.channels, self.lanes, self.machine.registers, lines=self.lines)
        moves, alone = self.moves, groups == 1 or not self.lines
        taken = self._turned(self.channels_in, axes[-1].in_step)
        given = self._turned(min(self.channels), axes[-1].out_step)
        apart = moves.apart - MOVE if alone else 0.0
        if self.pixel_major and not self.lines:
            apart = APART_SHORT
        once = all(r <= s for r, s in zip(problem.taps, problem.stride, strict=True))  # a number meets one tap, or none
        converted = once and problem.dtype != self.base.compute
        narrow = (TURN_ALONE if taps == 1 else TURN_NARROW) if converted else 0.0
        packed = (taken + narrow * (not words) if self.pixel_major else MOVE) + apart * (axes[-1].in_step > 1)
        back = moves.unpack if self.channels_out > 1 else moves.back
        unpacked = MOVE if self.out_channels_first else max(given, back) + narrow
        cost = self.elements_in * packed
        cost += self.elements_out * (unpacked + apart * (axes[-1].out_step > 1))
        i_block = even_share(self.channels_in, self._panel_channels(taps, shape.width))
        along_outputs = self._planned(shape, pixels=True, pixel_major=False, i_block=i_block)
        cycles = groups * shape.cycles + cost
        yield cycles, along_outputs
        if problem.unknown is Unknown.Y or problem.stride[-1] == 1:
            return
        from convgrad.plan.few_channels.choose_folded import folded_candidates

        whole = self._planned(shape, i_block=max(1, self.channels_in))
        for cycles, plan in folded_candidates(problem, self.machine, whole):
            most = self._panel_channels(plan.taps, plan.width, axes[-1].out_step)
            cycles *= 1.0 if self.lines else AT_ONCE_SHORT
            yield cycles + cost, replace(plan, i_block=even_share(self.channels_in, most))

    def _across_groups(self) -> Iterator[Predicted]:
        """Vectors of channels of several groups."""
        from convgrad.plan.groups.across_groups import picking, turned_once
        from convgrad.plan.groups.turned_data import TurnedDataPlan, can_turn, worth_turning

        problem, lanes, inner = self.problem, self.lanes, self.axes[-1]
        channels = self.channels_in, self.channels_out
        taps = prod(axis.visits(1) / axis.count for axis in self.axes[:-1] if axis.count)  # that an output meets
        taps *= inner.taps / len(inner.phases)
        together = inner.taps if self.channels_in == 1 or picks_once(self.channels_in, inner) else 1
        counts = tuple(axis.count for axis in self.axes)

        def tiled(*, whole: bool = False) -> tuple[TileShape, DataPlan]:
            shape = best_spread_tile(
                counts, problem.groups, channels, self.channels[0] * taps, max(1, together), inner.in_step, lanes,
                self.machine.tile_registers, whole=whole,
            )  # fmt: skip
            many = shape.width // lanes * (lanes // self.channels_out)
            return shape, self._planned(shape, spread=True, pixel_major=True, lane_groups=many)

        shape, across = tiled()
        if not reads_in_place(across) and reads_in_place((other := tiled(whole=True))[1]):
            shape, across = other  # whose last vectors begin early
        taken = turned_once(channels, self.moves.taken if inner.in_step > 1 else 0.0)
        given = turned_once(channels, self.moves.apart if inner.out_step > 1 else 0.0)
        turned = can_turn(*channels, lanes) and worth_turning(problem)
        if turned:
            every = prod(problem.taps) / self.phases  # cycles are measured for all of them
            shape = best_turned_tile(
                counts, problem.groups, self.channels_out, every, lanes, self.machine.registers
            )  # fmt: skip
        cost = self.elements_in * (MOVE if self.pixel_major else taken)
        cost += self.elements_out * (given if self.out_channels_first else MOVE)
        if turned:
            many = shape.width // lanes * (lanes // self.channels_out)
            across = as_kind(TurnedDataPlan, self._planned(shape, spread=True, pixel_major=True, lane_groups=many))
        cycles = self.phases * shape.cycles + cost
        yield cycles if turned else picking(channels, lanes, self.size) * cycles, across
        if reads_in_place(across):
            from convgrad.plan.depthwise.choose_depthwise_data import depthwise_data_candidates

            yield from depthwise_data_candidates(across, self.phases * shape.cycles, self.machine)


def fills_half(p: ConvProblem, machine: Machine) -> bool:
    """Whether channels solved for fill half of a vector that is a line, and lie side by side, as those given do.

    Half vectors write them where they lie. More than half: only if nothing is packed, since two halves overlap then.
    """
    given, solved = p.strides[p.given][2], p.strides[p.solved][2]
    channels, lanes = p.shapes[p.solved][2], machine.lanes_f32 * 4 // SIZES[COMPUTE[p.dtype]]
    in_place = max(p.taps) == 1 and p.dtype == COMPUTE[p.dtype]
    few = 2 * channels == lanes or (in_place and lanes < 2 * channels < 2 * lanes)
    return few and given == solved == 1 and machine.lanes_f32 * 4 == LINE


def _cheapest(row: Predicted, image: Predicted, images: Predicted) -> Predicted:
    """Of tiles of neighbours in a row, in an image, and of several images: a row only if it can be read in place.

    A task that holds several images has less of each, and packs more around it.
    """
    in_place = reads_in_place(whole_blocks(row[1]))
    if images[0] > WORTH_IMAGES * image[0]:
        return row if in_place and row[0] <= _packed(image) else image
    best = image if _packed(image) < NEARLY * _packed(images) else images
    return row if in_place and row[0] <= _packed(best) else best


def _packed(candidate: Predicted) -> float:
    """Its cycles, with those that its best blocks take besides."""
    return candidate[0] + packing_cost(whole_blocks(candidate[1]), candidate[0])


def picks_once(channels: int, axis: GatherAxis) -> bool:
    """Whether what lanes of several groups pick from so many input channels serves all taps of the innermost axis.

    The kernel alone decides, because the order of the sum depends on it.
    """
    known = len(axis.phases) <= MOST_KNOWN_PHASES
    return known and channels * sum(phase.taps for phase in axis.phases) <= MOST_SHUFFLED


def whole_blocks(plan: Plan) -> Plan:
    """With all blocks of lanes in a task, and whole runs of channels."""
    return replace(plan, blocks_per_task=plan.lane_blocks, i_block=plan.packable(plan.i_block))


def sums_taps_inside(plan: DataPlan, machine: Machine) -> bool:
    """Whether the order of sums wants that, where registers are many and long."""
    return plan.fills_lines and taps_inside(plan.problem, plan.lanes, machine.registers)
