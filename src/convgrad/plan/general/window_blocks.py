"""How many windows a task of a WeightsPlan packs at a time, and who shares channels, by predicted cycles.

Every share of the lanes packs the rows again, and every share of the rows the lanes. Few windows at a time leave what
a register tile reads in L1, but fetch and store its sums more often.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import product
from math import ceil, prod
from typing import TypeVar

from convgrad.dtypes import SIZES
from convgrad.plan.costs import CLAIM, FAR_BYTES, LEAST_CHANNELS, LINE, OVERFLOW, ROW, SLAB_BYTES, TURN, worth_sharing
from convgrad.plan.general.room import MOST_BYTES, roomy
from convgrad.plan.general.sides_in_place import crowding, in_place_cycles, ways_in_place
from convgrad.plan.general.together import grouped
from convgrad.plan.general.weights import WeightsPlan
from convgrad.problem.conv import Ints
from convgrad.values import frozen, replace

Plan = TypeVar("Plan", bound=WeightsPlan)

MOST_WINDOWS = 512  # packed at a time
ROW_WINDOWS = 256  # of a block in place
MOST_CHUNKS = 16
PACK = 0.5  # cycles per number copied by vectors into a slab
PACK_WORD = 0.25  # likewise, of two bf16, which nothing widens
CHUNK_BYTES = 3 * 1024 * 1024  # of sums besides those of the first chunk
SUM_BYTES = 512 * 1024  # of the sums of a task that stay in L2
LEAST_TASKS = 16
PANEL_BYTES = 36 * 1024  # of what a tile reads in one block: more does not stay in L1
PANEL_FETCH = 1.0  # cycles, not hidden, for a vector of lanes that has to come from L2
RUN_BYTES = 64  # rows side by side where those of all tiles do not stay in L1
MANY_ROWS = 128  # that one tile meets
NEAR_BYTES = 44 * 1024  # of all rows and of the lanes that meet a block of windows, from L1
SUM_VECTOR = 3.0  # cycles for a vector of sums that is fetched and stored
SUM_MOVE = 0.25  # cycles per sum, to write it for others and to read it
FAR_SUM_BYTES = 1024 * 1024  # of all sums of all chunks, that are cleared and come back as weights: more leave L2
FAR_SUM = 2.2  # times as many cycles for those, written and read again beyond L2
PARTED_BYTES = 16 * 1024 * 1024  # of channels-first rows in place that come from memory
PARTED_ROW = 0.8  # cycles, not hidden, for a number of those, if a block has windows of several images
SIZES_TRIED = (1, 2, 4, 8, 16, 32, 64, 128, 256, 512)  # windows of an axis, then as even as they can be
ALONE = 0.5  # of a task, that few threads wait for the last one
SHARES = (1, 2, 3, 4, 6, 8, 12, 16, 24, 32, 48, 64, 96, 128)


@frozen
class Side:
    """The rows or the lanes of a problem that is computed in blocks of so many windows."""

    units: int  # tiles of rows, or blocks of lanes
    channels: int  # of a unit
    slab_bytes: float  # of all of them
    cycles: float  # to pack all of them, in all blocks

    def shares(self, *, tight: bool) -> Iterator[int]:
        """Numbers of tasks that may divide the units: none is left without, nor with few channels to pack.

        If memory is `tight` also as many as have room, where that takes more than usual.
        """
        needed = ceil(self.slab_bytes / (MOST_BYTES // 2)) if tight else 1
        for n in (*SHARES, -(-self.units // max(1, self.units // needed))) if needed > SHARES[-1] else SHARES:
            each = -(-self.units // n)
            if n == 1 or (n <= self.units and -(-self.units // each) == n and each * self.channels >= LEAST_CHANNELS):
                yield n


def best_window_blocks(plan: WeightsPlan, cycles: float) -> WeightsPlan:
    """The plan with the cheapest blocks of windows, chunks and shares; `cycles` are its arithmetic's."""
    return cheapest_window_blocks(plan, cycles)[1]


def cheapest_window_blocks(plan: Plan, cycles: float) -> tuple[float, Plan]:
    """Likewise, and all cycles."""
    ways = [
        replace(plan, block=block, rows_in_place=rows, lanes_in_place=lanes)
        for block in _blocks(plan)
        for rows, lanes in ways_in_place(plan)
    ]
    total, best = min((_shared(way, cycles) for way in ways), key=lambda candidate: candidate[0])
    if max(best.work_bytes) > MOST_BYTES:
        tight = [_shared(way, cycles, tight=True) for way in ways]
        total, best = roomy(tight, lambda candidate: candidate[0], lambda candidate: max(candidate[1].work_bytes))
    best = grouped(best, cycles, most_chunks(best))
    size = SIZES[best.compute]
    near = size * prod(best.block) * (best.share_rows + best.width) <= NEAR_BYTES
    if best.spread or best.rows_in_place or near or _meets_rows_once(best):
        return total, best
    return total, replace(best, rows_together=best.row_channels * max(1, RUN_BYTES // size // best.row_channels))


def _meets_rows_once(plan: WeightsPlan) -> bool:
    """Whether many rows are read by one tile each: what a copy in runs takes more does not come back.

    Of vectors as long as lines nobody has measured it.
    """
    return plan.taps * plan.lane_blocks == 1 and plan.share_rows >= MANY_ROWS and not plan.fills_lines


def rows_of_windows(plan: WeightsPlan) -> WeightsPlan:
    """A plan that reads the tensors as they lie, whose blocks are whole rows of windows."""
    block = list(plan.block)
    *outer, row = (max(1, axis.windows) for axis in plan.axes)  # where there are none, a plan is made all the same
    block[-1] = row
    block[-2] = min(outer[-1], max(1, prod(outer) // (2 * LEAST_TASKS)), max(1, ROW_WINDOWS // row))
    plan = replace(plan, block=tuple(block))
    return replace(plan, chunks=most_chunks(plan))


def most_chunks(plan: WeightsPlan) -> int:
    """By blocks, and by the memory that sums take."""
    most = 1 + CHUNK_BYTES // max(1, SIZES[plan.compute] * plan.sum_size)
    return max(1, min(MOST_CHUNKS, prod(plan.block_grid), most))


def _blocks(plan: WeightsPlan) -> Iterator[Ints]:
    """Windows per axis: innermost first, an outer axis only once the inner ones are whole."""
    block, lines = [1] * len(plan.axes), _whole_lines(plan)
    yield tuple(block)
    for n in reversed(range(len(block))):
        windows = plan.axes[n].windows
        sizes = (-(-windows // -(-windows // most)) for most in SIZES_TRIED if most <= 2 * windows)
        unit = lines if n == len(block) - 1 else 1
        for following in dict.fromkeys(
            size if size < unit else min(windows, -(-size // unit) * unit) for size in sizes
        ):
            if prod(block) // block[n] * following > MOST_WINDOWS:
                return
            if following > block[n]:
                block[n] = following
                yield tuple(block)


def _whole_lines(plan: WeightsPlan) -> int:
    """Windows of a row of which parts should be multiples: a cache line of 16 bits, which are packed.

    Where planes of both sides begin with one, and windows of one tap lie alike in both.
    """
    p, unit = plan.problem, LINE // SIZES[plan.problem.dtype]
    narrow = SIZES[p.dtype] < SIZES[plan.compute] and prod(p.taps) == 1
    beside = p.x_strides[-1] * p.stride[-1] == p.y_strides[-1] == 1
    return unit if narrow and beside and p.x_strides[2] % unit == p.y_strides[2] % unit == 0 else 1


def _shared(plan: Plan, cycles: float, *, tight: bool = False) -> tuple[float, Plan]:
    """The cheapest chunks and shares for these blocks, and their predicted cycles; if memory is `tight`, with room."""
    size, blocks = SIZES[plan.compute], prod(plan.block_grid)
    rows, lanes = _sides(plan, blocks)
    fixed = cycles + _panel_cycles(plan) + in_place_cycles(plan)
    sum_vectors = plan.bundles * plan.lane_blocks * plan.taps * rows.units * plan.row_channels * plan.vectors
    most = most_chunks(plan)
    row_shares, lane_shares = tuple(rows.shares(tight=tight)), tuple(lanes.shares(tight=tight))
    best = float("inf"), 1, 1, 1
    for chunks in sorted({1 << n for n in range(most.bit_length())} | {most}):
        own = replace(plan, chunks=chunks)
        own_sums = own.own_sums
        met = blocks - 1 if own_sums else blocks  # a first block starts from zeros
        written = 0 if own.straight else chunks * 2 * plan.lanes * SUM_MOVE
        if not own_sums and size * chunks * plan.sum_size > FAR_SUM_BYTES:
            written *= FAR_SUM
        for of_rows, of_lanes in product(row_shares, lane_shares):
            tasks = chunks * plan.bundles * of_rows * of_lanes
            slabs = rows.slab_bytes / of_rows + lanes.slab_bytes / of_lanes
            if tight and slabs > MOST_BYTES:
                continue
            sums = size * plan.lanes * sum_vectors / (plan.bundles * of_rows * of_lanes)
            far = OVERFLOW * max(0.0, slabs / (2 * SLAB_BYTES) - 1)
            late = ALONE * worth_sharing(cycles) * _late(tasks, blocks, chunks) if tasks < LEAST_TASKS else 0.0
            cost = fixed * (1 + far + late)
            cost += rows.cycles * of_lanes + lanes.cycles * of_rows + CLAIM * tasks
            beyond = sums > SUM_BYTES
            cost += sum_vectors * (met * SUM_VECTOR * (1 + beyond) + written * (FAR_SUM if own_sums and beyond else 1))
            if cost < best[0]:
                best = cost, chunks, of_rows, of_lanes
    if best[0] == float("inf"):  # there is no room at all
        return _shared(plan, cycles)
    return best[0], replace(plan, chunks=best[1], row_shares=best[2], lane_shares=best[3])


def left_idle(tasks: int, cycles: float) -> float:
    """What it counts, as a share of so many cycles of arithmetic, that a few tasks leave threads idle."""
    return worth_sharing(cycles) / tasks if tasks < LEAST_TASKS else 0.0


def _late(tasks: int, blocks: int, chunks: int) -> float:
    """The share of all time in which a thread may wait for the last task, and one of two does for larger chunks."""
    most = -(-tasks // 2) * 2 * -(-blocks // chunks) * chunks / max(1, tasks * blocks)
    return 1 / tasks + most - 1


def _sides(plan: WeightsPlan, blocks: int) -> tuple[Side, Side]:
    """Of a plan whose channels nobody shares."""
    p, size = plan.problem, SIZES[plan.compute]
    of_x = prod(plan.x_met)
    of_y = prod(plan.block)
    row_count, lane_count = (of_x, of_y) if plan.rows_shift else (of_y, of_x)
    lane_strides = (p.y_strides if plan.rows_shift else p.x_strides)[2:]
    turned = abs(lane_strides[0]) > abs(lane_strides[-1])
    extent = plan.x_extent if plan.rows_shift else plan.block
    run = plan.row_count if plan.x_pixel_major else extent[-1]
    if plan.ON_UNITS and plan.x_pixel_major and plan.share_rows == plan.row_count == plan.row_pitch:
        run *= extent[-1] if abs((p.x_strides if plan.rows_shift else p.y_strides)[-1]) == plan.row_count else 1
    far, pack = SIZES[p.dtype] / FAR_BYTES, PACK_WORD if plan.ON_UNITS else PACK
    return (
        Side(
            units=-(-plan.row_count // plan.row_channels), channels=plan.row_channels,
            slab_bytes=size * plan.row_slab_size,
            cycles=blocks * row_count * plan.row_count * p.groups
            * (far + _parted(plan) if plan.rows_in_place else pack + far + ROW / max(1, run)),
        ),
        Side(
            units=plan.lane_blocks, channels=plan.width, slab_bytes=size * plan.lane_slab_size,
            cycles=blocks * lane_count * plan.lane_count * p.groups
            * (far if plan.lanes_in_place else (TURN if turned else pack) + far),
        ),
    )  # fmt: skip


def _panel_cycles(plan: WeightsPlan) -> float:
    """To fetch vectors from L2 in every step of every tile, where what a tile reads in a block outgrows L1."""
    size = SIZES[plan.compute]
    windows, axis = prod(plan.block), plan.axes[-1]
    taps = plan.tile_taps if plan.rows_shift else 1
    fresh = min(axis.stride, taps) if plan.rows_shift else 1  # positions of the rows that no window before has met
    run = size * plan.row_channels
    row_bytes = fresh * (run + RUN_BYTES if plan.x_pixel_major else run)
    panel = windows * (row_bytes + size * plan.width * crowding(plan))
    columns = plan.vectors * (1 if plan.rows_shift else plan.tile_taps)
    tiles = -(-plan.row_count // plan.row_channels) * plan.lane_blocks * plan.taps // plan.tile_taps * plan.bundles
    steps = tiles * prod(axis.windows for axis in plan.axes)
    return steps * columns * PANEL_FETCH * min(1.0, max(0.0, panel / PANEL_BYTES - 1))


def _parted(plan: WeightsPlan) -> float:
    """Cycles for a number of rows in place: planes of several images lie far apart, and none is asked for in time."""
    p, name = plan.problem, "x" if plan.rows_shift else "y"
    far = p.bytes_of(name) > PARTED_BYTES and abs(p.strides[name][2]) > abs(p.strides[name][-1])
    return PARTED_ROW if far and plan.block[0] > 1 else 0.0
