"""How much of a problem that solves for X or Y one task packs and computes, chosen by predicted cycles.

Sizes are of a core's share of L2 on the machines that matter, not read from the machine: blocks decide the order of
sums, and equal instruction sets are to give equal bits.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from itertools import product
from math import prod
from typing import TypeVar

from convgrad.dtypes import SIZES
from convgrad.plan.costs import TURN
from convgrad.plan.data import KEPT_BYTES, DataPlan
from convgrad.plan.tiles import step_cycles
from convgrad.problem.conv import Ints

Plan = TypeVar("Plan", bound=DataPlan)

PANEL_BYTES = 192 * 1024  # of packed weights that one sweep reads again and again: from L2
SLAB_BYTES = 256 * 1024
RESULT_BYTES = 512 * 1024
LEAST_CHANNELS = 16  # of the input, or of the rows, that are worth packing at a time
LEAST_TASKS = 8  # that keep a few threads evenly busy
FAR_BYTES = 16.0  # per cycle, from beyond L2
WRITTEN_BYTES = 128 * 1024  # of an output that is written a few channels at a time
NEAR_BYTES = 40 * 1024  # that stay in L1
SHARED_BYTES = 32 * 1024  # of weights that stay in L1 while tile after tile reads its own numbers
ROWS_BYTES = 28 * 1024  # of a slab that is read about as often as it is multiplied: L1 holds results and more, too
FEW_ROWS = 5
FEW_TILES = 8  # of a block read in place, below which it is a whole row
ROW = 10.0  # cycles for a row more to copy
READ_FAR, WRITE_FAR = 90.0, 170.0  # cycles, not hidden, to begin a run of a channel's numbers that are not in L2
PAGE = 4096  # bytes, in which a core finds out what is read next: longer runs begin again with each
RUN = 30.0  # cycles, not hidden, to find the numbers of a position, where others lie between them and the next
CLAIM = 50.0  # cycles for a task more
THROUGH = ((0, 4.0), (40 * 1024, 6.0), (256 * 1024, 8.0))  # bytes of results, cycles to load and store a vector of them
COPIED = 0.7  # cycles per result that could be written in place, if all channels of the input came at once
OVERFLOW = 0.2  # of the arithmetic, for every time that a buffer outgrows its share


def even_share(total: int, most: int) -> int:
    """The largest equal share of a total, up to rounding, that is at most `most`."""
    return max(1, -(-total // max(1, -(-total // most))))


def best_blocks(plan: Plan, cycles: float) -> Plan:
    """The plan with the blocks, and the share of input channels, of the lowest cost; `cycles` are its arithmetic's."""
    shares = [plan.i_block]
    least = max(LEAST_CHANNELS, plan.channel_unit)
    while not (plan.spread or plan.reads_in_place) and shares[-1] >= 2 * least:
        half = even_share(plan.in_channels, -(-shares[-1] // 2))
        shares.append(-(-half // plan.channel_unit) * plan.channel_unit)
    candidates = [_shared(replace(plan, i_block=share, block=block)) for block in _blocks(plan) for share in shares]
    if plan.spread and not plan.reads_in_place:
        candidates = [fewer for candidate in candidates for fewer in _halved(candidate)]
    return min(candidates, key=lambda candidate: _cost(candidate, cycles))


def packing_cost(plan: DataPlan, cycles: float) -> float:
    """Predicted cycles that the best blocks take beyond those of the arithmetic."""
    return _cost(best_blocks(plan, cycles), cycles)


def _halved(plan: Plan) -> Iterator[Plan]:
    """With fewer and fewer groups per task: all of a position at once, or a few planes."""
    if _in_planes(plan):
        plan = replace(plan, blocks_per_task=1)
    while True:
        yield plan
        if plan.blocks_per_task == 1:
            return
        plan = replace(plan, blocks_per_task=even_share(plan.lane_blocks, -(-plan.blocks_per_task // 2)))


def _shared(plan: Plan) -> Plan:
    """With the lane blocks divided among tasks where blocks of outputs alone would be too few."""
    pieces = -(-LEAST_TASKS // prod(plan.grid))
    return replace(plan, blocks_per_task=max(1, -(-plan.lane_blocks // pieces)))


def _blocks(plan: DataPlan) -> Iterator[Ints]:
    """Blocks to try: the innermost two axes in some sizes each, outer axes only once those are whole."""
    counts = [axis.count for axis in plan.axes]
    whole = [-(-count // tile) * tile for count, tile in zip(counts, plan.tile, strict=True)]
    inner = min(2, len(counts))
    sizes = [_sizes(plan.tile[n], whole[n], fine=not plan.pixels) for n in range(len(counts))]
    if plan.reads_in_place:  # borders are outputs of their own, and the last tile of a block repeats some
        sizes[-1] = [size for size in sizes[-1] if size >= FEW_TILES * plan.tile[-1] or size == whole[-1]]
    for chosen in product(*sizes[-inner:]):
        yield (*plan.tile[:-inner], *chosen)
    for n in reversed(range(len(counts) - inner)):
        for size in sizes[n][1:]:
            yield (*plan.tile[:n], size, *whole[n + 1 :])


def _sizes(tile: int, whole: int, *, fine: bool) -> list[int]:
    sizes = [tile]
    while sizes[-1] < whole:
        sizes.append(min(whole, sizes[-1] * (2 if sizes[-1] * 8 >= whole or (fine and sizes[-1] >= 64) else 4)))
    return sizes


def _cost(plan: DataPlan, cycles: float) -> float:
    """Predicted cycles of packing, of fetching weights again, and of what grows with too large or too few tasks."""
    size, tasks = plan.packed_bytes, prod(plan.grid)
    alone = 1 / tasks if tasks < LEAST_TASKS and cycles > 1e5 else 0.0
    touched = prod(min(a, axis.in_extent) for a, axis in zip(plan.slab_extent, plan.axes, strict=True))
    zeros = plan.slab_size / plan.lanes if any(plan.padded(n) for n in range(len(plan.axes))) else 0.0
    in_planes = not plan.spread and _in_planes(plan)
    rows = prod(plan.slab_extent[:-1]) * (plan.i_block if in_planes or not plan.pixel_major else 1)
    packing = touched * plan.slab_numbers * TURN + zeros + ROW * rows
    if plan.pixel_major and in_planes:  # squares of lanes turn, or parts of one
        squares = prod(plan.slab_extent[:-1]) * -(-plan.slab_extent[-1] // plan.lanes) * -(-plan.i_block // plan.lanes)
        packing = squares * plan.lanes**2 * TURN + zeros + ROW * rows
    packing += READ_FAR * _far_runs(plan, given=True)
    weights = size * plan.panel * plan.i_blocks * plan.blocks_per_task / FAR_BYTES
    scattered = 0.0
    if plan.spread:
        packing += 0.0 if _in_planes(plan) else RUN * touched
        scattered = _overflow(_written_bytes(plan), WRITTEN_BYTES)
    if plan.reads_in_place:  # whole positions come along, whatever channels a task wants of them
        step = abs(plan.slab_strides[0][-1])
        overflow = _overflow(size * step * prod(plan.slab_extent), SLAB_BYTES) + scattered
        again = weights if size * plan.weights_size > PANEL_BYTES else 0.0
        return cycles * (OVERFLOW * overflow + alone) + tasks * (CLAIM + again)
    results_bytes = SIZES[plan.compute] * plan.result_size
    results = plan.result_block * plan.blocks_per_task
    through = _through(results_bytes) if plan.i_blocks > 1 else THROUGH[0][1]
    written = WRITE_FAR * _far_runs(plan, given=False)
    if plan.i_blocks > 1 and (plan.pixels or not _in_planes(plan, given=False)):
        written += results * _filled(plan) * COPIED
    room = ROWS_BYTES if plan.pixels and plan.width <= FEW_ROWS else SLAB_BYTES
    overflow = _overflow(size * plan.slab_size, room) + _overflow(results_bytes, RESULT_BYTES) + scattered
    moved = tasks * (plan.i_blocks * (packing + results * through / plan.lanes) + written)
    return moved + tasks * weights + cycles * (OVERFLOW * overflow + alone - _saved(plan))


def _filled(plan: DataPlan) -> float:
    """Outputs of all blocks that there are, as a share of those that would fit: the last blocks may be smaller."""
    per_axis = zip(plan.axes, plan.block, strict=True)
    return prod(axis.count / (-(-axis.count // block) * block) for axis, block in per_axis)


def _through(size: int) -> float:
    """Cycles for a vector of results of so many bytes, each time that channels of the input are added to them."""
    return next(cycles for most, cycles in reversed(THROUGH) if size >= most)


def _in_planes(plan: DataPlan, *, given: bool = True) -> bool:
    """Whether channels of the input, or of the output, lie farther apart than positions."""
    strides = plan.problem.x_strides if plan.solves_y == given else plan.problem.y_strides
    return min(map(abs, strides[1:3])) > abs(strides[-1])


def _saved(plan: DataPlan) -> float:
    """Of the cycles of the arithmetic, where the weights that tiles share, of one phase, stay in L1."""
    shared = plan.packed_bytes * plan.panel / prod(len(axis.phases) for axis in plan.axes)
    if plan.pixels or plan.spread or shared > SHARED_BYTES:
        return 0.0
    rows, vectors = prod(plan.tile), plan.width // plan.lanes
    return 1 - step_cycles(rows, vectors, near=True) / step_cycles(rows, vectors)


def _far_runs(plan: DataPlan, *, given: bool) -> float:
    """Pieces of memory that a task reads, or writes, beyond one for each page: of channels that lie far apart."""
    p = plan.problem
    tensor = "x" if plan.solves_y == given else "y"
    shape, strides, size = p.shapes[tensor], p.strides[tensor], SIZES[p.dtype]
    if min(map(abs, strides[1:3])) <= abs(strides[-1]) or size * prod(shape) <= KEPT_BYTES:
        return 0.0
    if plan.spread:
        channels = plan.slab_groups * shape[2]
    else:
        channels = plan.i_block if given else plan.width * plan.blocks_per_task
    batch, *spatial = map(min, _taken(plan, given), (shape[0], *shape[3:]))
    channels = min(shape[1] * shape[2], channels)
    runs, whole = batch * channels, True
    for extent, total in zip(reversed(spatial), reversed(shape[3:]), strict=True):
        runs *= 1 if whole else extent
        whole = whole and extent == total
    return max(0.0, runs - size * batch * channels * prod(spatial) / PAGE)


def _taken(plan: DataPlan, given: bool) -> Ints:
    """Extents of what a task reads, or writes."""
    return plan.slab_extent if given else plan.result_extent


def _written_bytes(plan: DataPlan) -> int:
    """Of the output that lies between what a task writes, were channels innermost: a few of them at a time."""
    p = plan.problem
    strides = p.y_strides if plan.solves_y else p.x_strides
    return SIZES[p.out_dtype] * prod(plan.result_extent) * abs(strides[-1]) if abs(strides[2]) <= 1 else 0


def _overflow(size: int, room: int) -> float:
    return max(0.0, size / room - 1)
