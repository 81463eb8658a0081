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
from convgrad.plan.costs import MOVE, TURN
from convgrad.plan.data import KEPT_BYTES, DataPlan
from convgrad.problem.conv import Ints

Plan = TypeVar("Plan", bound=DataPlan)

PANEL_BYTES = 192 * 1024  # of packed weights that one sweep reads again and again: from L2
SLAB_BYTES = 256 * 1024
RESULT_BYTES = 512 * 1024
OWN_BYTES = 768 * 1024  # of all that a task works with that packs weights
LEAST_CHANNELS = 16  # of the input, or of the rows, that are worth packing at a time
LEAST_TASKS = 8  # that keep a few threads evenly busy
LEAST_PACKING_TASKS = 6  # of those that pack their own weights, of which each packs the input, too
FAR_BYTES = 16.0  # per cycle, from beyond L2
WRITTEN_BYTES = 128 * 1024  # of an output that is written a few channels at a time
NEAR_BYTES = 40 * 1024  # that stay in L1
ROWS_BYTES = 28 * 1024  # of a slab that is read about as often as it is multiplied: L1 holds results and more, too
FEW_ROWS = 5
FEW_TILES = 8  # of a block read in place, below which it is a whole row
ROW = 10.0  # cycles for a row more to copy
RUN = 30.0  # cycles, not hidden, to find the numbers of a position, where others lie between them and the next
READ_NEAR, READ_FAR = 0.1, 1.0  # cycles, not hidden, to read a number of w from L2, and from beyond
WRITTEN_NEAR, WRITTEN_FAR = 0.2, 1.0  # to write it for others
SCATTERED, MOVED_AGAIN = 6.0, 0.7  # cycles to pack a number of a few lanes, and more where taps lie side by side
STAGE = 1000.0  # cycles for a stage
MOST_PACKINGS = 2  # of the same weights that may be worth while
CLAIM = 50.0  # cycles for a task more
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
    if plan.may_pack_weights:
        candidates += [own for candidate in candidates for own in _packing(candidate)]
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


def _packing(plan: Plan) -> Iterator[Plan]:
    """With tasks that pack their own weights, if few tasks need the same: as many lane blocks each, or one."""
    if prod(plan.grid) > MOST_PACKINGS * plan.group_blocks * -(-plan.lane_blocks // plan.blocks_per_task):
        return
    yield replace(plan, packs_weights=True)
    if plan.blocks_per_task > 1 and not plan.spread:
        yield replace(plan, packs_weights=True, blocks_per_task=1)


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
    alone = 1 / tasks if cycles > 1e5 and _leave_threads_idle(plan, tasks) else 0.0
    touched = prod(min(a, axis.in_extent) for a, axis in zip(plan.slab_extent, plan.axes, strict=True))
    zeros = plan.slab_size / plan.lanes if any(plan.padded(n) for n in range(len(plan.axes))) else 0.0
    in_planes = not plan.spread and _in_planes(plan)
    rows = prod(plan.slab_extent[:-1]) * (plan.i_block if in_planes or not plan.pixel_major else 1)
    packing = touched * plan.slab_numbers * TURN + zeros + ROW * rows
    if plan.pixel_major and in_planes:  # squares of lanes turn, or parts of one
        squares = prod(plan.slab_extent[:-1]) * -(-plan.slab_extent[-1] // plan.lanes) * -(-plan.i_block // plan.lanes)
        packing = squares * plan.lanes**2 * TURN + zeros + ROW * rows
    weights, scattered = _weights_cost(plan), 0.0
    if plan.spread:
        packing += 0.0 if _in_planes(plan) else RUN * touched
        scattered = _overflow(_written_bytes(plan), WRITTEN_BYTES)
    if plan.reads_in_place:  # whole positions come along, whatever channels a task wants of them
        step = abs(plan.slab_strides[0][-1])
        overflow = _overflow(size * step * prod(plan.slab_extent), SLAB_BYTES) + scattered
        return cycles * (OVERFLOW * overflow + alone) + tasks * CLAIM + weights
    results = plan.result_block * plan.blocks_per_task * 4 / plan.lanes
    room = ROWS_BYTES if plan.pixels and plan.width <= FEW_ROWS else SLAB_BYTES
    results_bytes = SIZES[plan.compute] * plan.result_size
    overflow = _overflow(size * plan.slab_size, room) + _overflow(results_bytes, RESULT_BYTES) + scattered
    if plan.packs_weights:
        kept = size * (plan.slab_size + 2 * plan.panel) + results_bytes  # a panel, and what it is made of
        overflow += _overflow(kept, OWN_BYTES)
    return tasks * plan.i_blocks * (packing + results) + weights + cycles * (OVERFLOW * overflow + alone)


def _leave_threads_idle(plan: DataPlan, tasks: int) -> bool:
    """Whether tasks are too few; large ones, since they cover all outputs, also where one of a pair has none left."""
    if plan.packs_weights:
        return tasks < LEAST_PACKING_TASKS or (tasks < 2 * LEAST_TASKS and tasks % 2 == 1)
    return tasks < LEAST_TASKS


def _weights_cost(plan: DataPlan) -> float:
    """Predicted cycles of packing weights, once or in every task that multiplies them, and of fetching them."""
    size = plan.packed_bytes
    used = prod(plan.grid) * plan.panel * plan.i_blocks * plan.blocks_per_task  # by all tasks together
    again = used * size / FAR_BYTES
    if not plan.may_pack_weights:
        return again
    far = size * plan.weights_size > KEPT_BYTES
    each = _order_cost(plan) + (READ_FAR if far else READ_NEAR)
    if plan.packs_weights:
        return used * each
    if plan.reads_in_place and size * plan.weights_size <= PANEL_BYTES:
        again = 0.0
    return STAGE + plan.weights_size * (each + (WRITTEN_FAR if far else WRITTEN_NEAR)) + again


def _order_cost(plan: DataPlan) -> float:
    """Predicted cycles for a number of w to be put in the order of a panel, once it is there."""
    p = plan.problem
    lane_step, channel_step = p.w_strides[1:3] if plan.solves_y else p.w_strides[2:0:-1]
    if plan.width < plan.lanes:
        return SCATTERED
    if plan.spread or abs(lane_step) <= 1:
        return MOVE
    taps = zip(p.taps, p.w_strides[3:], strict=True)
    by_taps = any(extent > 1 and abs(step) < abs(channel_step) for extent, step in taps)
    return TURN + (MOVED_AGAIN if by_taps else 0.0)


def _in_planes(plan: DataPlan) -> bool:
    """Whether channels of the input lie farther apart than positions."""
    strides = plan.problem.x_strides if plan.solves_y else plan.problem.y_strides
    return min(map(abs, strides[1:3])) > abs(strides[-1])


def _written_bytes(plan: DataPlan) -> int:
    """Of the output that lies between what a task writes, were channels innermost: a few of them at a time."""
    p = plan.problem
    strides = p.y_strides if plan.solves_y else p.x_strides
    return SIZES[p.out_dtype] * prod(plan.result_extent) * abs(strides[-1]) if abs(strides[2]) <= 1 else 0


def _overflow(size: int, room: int) -> float:
    return max(0.0, size / room - 1)
