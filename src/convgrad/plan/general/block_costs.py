"""Predicted cycles of blocks: packing, results that pass through memory, weights, and caches that overflow.

Constants were measured (docs/measured_facts.md) and are part of what decides the order of sums: see `blocks`.
"""

from __future__ import annotations

from math import prod

from convgrad.dtypes import SIZES
from convgrad.plan.costs import (
    CLAIM,
    COPIED,
    FAR_BYTES,
    FAR_INPUT,
    LEAST_TASKS,
    LINE,
    MOVE,
    OVERFLOW,
    PAGE,
    ROW,
    SLAB_BYTES,
    TURN,
    TURN_BACK,
    worth_sharing,
)
from convgrad.plan.general.bundles import grouping_cost
from convgrad.plan.general.data import KEPT_BYTES, DataPlan
from convgrad.plan.general.data_in_place import lines_of_l1
from convgrad.plan.steps import INSIDE, step_cycles, step_inside

PANEL_BYTES = 192 * 1024  # of packed weights that one sweep reads again and again: from L2
RESULT_BYTES = 512 * 1024
OWN_BYTES = 768 * 1024  # of all that a task works with that packs weights
LEAST_PACKING_TASKS = 6  # of those that pack their own weights, of which each packs the input, too
LOPSIDED = 0.7  # of a few tasks, as many as would be even: else the last one is so small that others wait for nothing
EVEN_TASKS = 16  # that are worth a try, since threads hardly ever run equally fast, and wait for the last task
LONG_CYCLES, LAST_TASK = 1e6, 0.8  # of arithmetic that is worth sharing evenly; of a task that a thread waits for
STREAMED_BYTES, STREAM_BYTES = 256 * 1024, 32.0  # read in place that L2 does not keep for the next lanes; per cycle
DISTANT_BYTES, DISTANT = (14 * 2**19, 6 * 2**19), 10.0  # likewise, which L3 may not keep, of one tap and of more
PANEL_AGAIN_BYTES = 128.0  # per cycle, not hidden, of weights in L2 that a tile meets after those of other groups
BURST_LINES, BURST_BYTES = 8, 6.0  # at a time, and per cycle, where tiles are too few to fetch a line now and then
WRITTEN_BYTES = 128 * 1024  # of an output that is written a few channels at a time
NEAR_BYTES = 40 * 1024  # that stay in L1
SHARED_BYTES = 32 * 1024  # of weights that stay in L1 while tile after tile reads its own numbers
ROWS_BYTES = 28 * 1024  # of a slab that is read about as often as it is multiplied: L1 holds results and more, too
FEW_ROWS = 5
ONCE_BYTES = 14 * 1024  # likewise, if one tap meets it, and it is made of whole lines: these pass by, too
SPILL = 0.4  # cycles for a number that leaves L1 before it is met
BEGUN = 60.0  # cycles more for a part of a row to copy, which begins anew
READ_RUN, WRITE_RUN = 90.0, 170.0  # cycles, not hidden, to begin a run of a channel's numbers that are not in L2
WHOLE_BYTES = 256 * 1024  # of weights that all channels of a position may meet at once
RUN = 30.0  # cycles, not hidden, to find the numbers of a position, where others lie between them and the next
READ_NEAR, READ_FAR = 0.1, 1.0  # cycles, not hidden, to read a number of w from L2, and from beyond
WRITTEN_NEAR, WRITTEN_FAR = 0.2, 1.0  # to write it for others
SCATTERED, MOVED_AGAIN = 6.0, 0.7  # cycles to pack a number of a few lanes, and more where taps lie side by side
PLANE_RUN = 30.0  # likewise, in place
STAGE = 1000.0  # cycles for a stage
PART, FAR_PART = 4.0, 8.0  # cycles, to copy the numbers of a position that are a part of a line, which L2 may have lost
THROUGH = ((0, 4.0), (40 * 1024, 6.0), (256 * 1024, 8.0))  # bytes of results, cycles to load and store a vector of them
COPIED_ROWS = 1.8  # cycles for a copied result, where rows of outputs are all that a slab of one tap is read for
COLLIDING = 1.5  # likewise, for every time that what a tile meets at a tap outgrows the places of L1 that it shares


def block_cost(plan: DataPlan, cycles: float) -> float:
    """Predicted cycles that blocks take beyond those of the arithmetic, for all of a problem."""
    size, tasks = plan.packed_bytes, prod(plan.grid)
    even = plan.even_tasks
    alone = 1 / (even if even < LOPSIDED * tasks else tasks)
    alone = alone * worth_sharing(cycles) if _leave_threads_idle(plan, tasks) else 0.0
    alone += LAST_TASK / tasks if cycles > LONG_CYCLES else 0.0
    scattered = _overflow(_written_bytes(plan), WRITTEN_BYTES) if plan.spread else 0.0
    if plan.reads_in_place:  # whole positions come along, whatever channels a task wants of them
        numbers = plan.in_channels if plan.pixels else abs(plan.slab_strides[0][-1])
        read = size * numbers * prod(plan.slab_extent)
        moved = tasks * CLAIM + _weights_cost(plan) + grouping_cost(plan, cycles)
        if not plan.spread:  # tile after tile, at the pace of its arithmetic
            again = tasks * plan.blocks_per_task * read if read > STREAMED_BYTES else 0
            if plan.pixels:  # where planes are left in the middle, the next lines are as far as the first
                again = max(again, tasks * read) - plan.problem.bytes_of(plan.problem.given)
                runs = _far_runs(plan, given=True) + _far_runs(plan, given=False)
                moved += PLANE_RUN * tasks * runs
            distant = min(1.0, _overflow(read, DISTANT_BYTES[plan.taps > 1]))
            return cycles * alone + moved + again * ((1 - distant) / STREAM_BYTES + distant / DISTANT)
        return cycles * (OVERFLOW * (_overflow(read, SLAB_BYTES) + scattered) + alone) + moved
    few = plan.pixels and plan.rows_at_once <= FEW_ROWS and not plan.BY_DOTS  # words of L2 feed tiles as well
    parts = plan.bundle > 1 and size * plan.in_channels < LINE  # of lines that a tile reads all of, group by group
    room = ROWS_BYTES if few or parts else SLAB_BYTES
    results = SIZES[plan.compute] * plan.result_size
    overflow = _overflow(size * plan.slab_size, room) + _overflow(results, RESULT_BYTES) + scattered
    if plan.packs_weights:
        kept = size * (plan.slab_size + 2 * plan.panel) + results  # a panel, and what it is made of
        overflow += _overflow(kept, OWN_BYTES)
    moved = tasks * (plan.i_blocks * _slab_cost(plan) + plan.bundle * _results_cost(plan))
    moved += _weights_cost(plan) + grouping_cost(plan, cycles)
    lines = abs(plan.problem.strides[plan.problem.given][2]) == 1 and size * plan.in_channels >= LINE
    if few and lines and plan.taps == 1:
        moved += tasks * plan.i_blocks * plan.slab_size * SPILL * min(1.0, _overflow(size * plan.slab_size, ONCE_BYTES))
    return moved + cycles * (OVERFLOW * overflow + COLLIDING * _colliding(plan) + alone - _saved(plan))


def _colliding(plan: DataPlan) -> float:
    """Outputs of a tile, in excess, whose inputs share places of L1: a power of two apart in the slab."""
    tile = list(zip(plan.axes, plan.tile, plan.slab_strides[0], strict=True))[:-1]
    steps = ((size, plan.packed_bytes * axis.in_step * stride) for axis, size, stride in tile if size > 1)
    return max((_overflow(size, lines_of_l1(step)) for size, step in steps), default=0.0)


def _leave_threads_idle(plan: DataPlan, tasks: int) -> bool:
    """Whether tasks are too few; large ones, since they cover all outputs, also where one of a pair has none left."""
    if plan.packs_weights:
        return tasks < LEAST_PACKING_TASKS or (tasks < 2 * LEAST_TASKS and tasks % 2 == 1)
    return tasks < LEAST_TASKS


def _slab_cost(plan: DataPlan) -> float:
    """Predicted cycles of packing the input of a task once."""
    apart = not plan.spread and in_planes(plan)
    padded = any(plan.padded(n) for n in range(len(plan.axes)))
    rows = prod(plan.slab_extent[:-1]) * (plan.i_block if apart or not plan.pixel_major else 1)
    part = plan.pixel_major and not apart and plan.block[-1] < plan.axes[-1].count
    begun = BEGUN if part and plan.fills_lines else 0.0  # shorter vectors take longer to copy it than to begin
    zeros = plan.slab_size / plan.lanes if padded else 0.0
    cost = (ROW + begun) * rows + zeros + READ_RUN * _far_runs(plan, given=True)
    if plan.pixel_major and apart:  # squares of lanes turn, or parts of one
        squares = prod(plan.slab_extent[:-1]) * -(-plan.slab_extent[-1] // plan.lanes) * -(-plan.i_block // plan.lanes)
        return cost + squares * plan.lanes**2 * (TURN + plan.splitting)
    touched = prod(min(a, axis.in_extent) for a, axis in zip(plan.slab_extent, plan.axes, strict=True))
    parts = plan.spread or (plan.pixels and plan.i_blocks > 1 and _is_far(plan))
    run = RUN if parts and not in_planes(plan) else 0.0
    p = plan.problem
    if p.groups > 1 and plan.may_bundle and SIZES[p.dtype] * plan.in_channels < LINE:
        whole = SIZES[p.dtype] * plan.slab_numbers >= LINE
        lost = SIZES[p.dtype] * touched * p.groups * plan.in_channels > KEPT_BYTES
        return cost + touched * (plan.slab_numbers * MOVE + (0.0 if whole else PART + FAR_PART * lost))
    return cost + touched * (plan.slab_numbers * (TURN + plan.splitting) + run)


def _is_far(plan: DataPlan) -> bool:
    """Whether the input comes from memory."""
    return plan.problem.bytes_of(plan.problem.given) > FAR_INPUT


def comes_whole(plan: DataPlan) -> bool:
    """Whether all channels of a position are best read at once: side by side, from memory, for one block of lanes.

    Their weights are few, and they are whole runs, of which each would be packed alone else.
    """
    weights = plan.packed_bytes * plan.taps * plan.in_channels * plan.width
    together = plan.pixel_major and not (in_planes(plan) or plan.pixels or plan.spread)
    runs = plan.packable(plan.in_channels) == plan.in_channels
    return _is_far(plan) and together and runs and plan.lane_blocks == 1 and weights <= WHOLE_BYTES


def rows_of_whole(plan: DataPlan) -> int:
    """Outputs of a tile that meet different places of L1, beside weights, in a slab of all channels."""
    return lines_of_l1(plan.packed_bytes * plan.axes[-1].in_step * plan.in_channels) // 2


def _results_cost(plan: DataPlan) -> float:
    """Predicted cycles for the results of a task: each share of channels adds to them, then they move out."""
    results, size = plan.result_block * plan.blocks_per_task, SIZES[plan.compute] * plan.result_size
    through = THROUGH[0][1]
    if plan.i_blocks > 1:
        through = next(cycles for least, cycles in reversed(THROUGH) if size >= least)
    cost = plan.i_blocks * results * through / plan.lanes + WRITE_RUN * _far_runs(plan, given=False)
    if plan.i_blocks > 1 and (plan.pixels or not in_planes(plan, given=False)):
        cost += results * _filled(plan) * (COPIED_ROWS if plan.pixels and plan.taps == 1 else COPIED)
    if not plan.pixels and in_planes(plan, given=False):
        cost += results * TURN_BACK * _empty_of_squares(plan)
    return cost


def _empty_of_squares(plan: DataPlan) -> float:
    """What is empty of the squares in which a channel's results are turned, as a share of what is not."""
    run = 1
    for extent, axis in zip(reversed(plan.result_extent), reversed(plan.axes), strict=True):
        run *= min(extent, axis.out_extent)
        if extent < axis.out_extent or axis is plan.axes[1]:
            break
    return -(-run // plan.lanes) * plan.lanes / max(1, run) - 1


def _weights_cost(plan: DataPlan) -> float:
    """Predicted cycles of packing weights, once or in every task that multiplies them, and of fetching them."""
    size = plan.packed_bytes
    used = prod(plan.grid) * plan.bundle * plan.panel * plan.i_blocks * plan.blocks_per_task  # by all tasks together
    far = size * plan.weights_size > KEPT_BYTES
    again = used * size / (BURST_BYTES if far and _lines_at_a_time(plan) > BURST_LINES else FAR_BYTES)
    if not plan.may_pack_weights:
        return again
    each = _order_cost(plan) + (READ_FAR if far else READ_NEAR)
    if plan.packs_weights:
        return used * each
    if plan.reads_in_place and size * plan.weights_size <= PANEL_BYTES:
        by_groups = plan.problem.groups > 1 and size * plan.weights_size > SHARED_BYTES
        again = used * size / PANEL_AGAIN_BYTES if by_groups else 0.0
    return STAGE + plan.weights_size * (each + (WRITTEN_FAR if far else WRITTEN_NEAR)) + again


def _lines_at_a_time(plan: DataPlan) -> float:
    """Of the panel of the next sweep, that a tile asks for in every step of its sum."""
    tiles = prod(-(-b // t) * len(a.phases) for a, b, t in zip(plan.axes, plan.block, plan.tile, strict=True))
    steps = (1 if plan.ON_UNITS else plan.runs) * prod(axis.taps for axis in plan.axes[:-1])  # units ask for nothing
    return plan.panel * plan.packed_bytes / LINE / max(1, tiles * steps)


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


def _filled(plan: DataPlan) -> float:
    """Outputs of all blocks that there are, as a share of those that would fit: the last blocks may be smaller."""
    per_axis = zip(plan.axes, plan.block, strict=True)
    return prod(axis.count / (-(-axis.count // block) * block) for axis, block in per_axis)


def in_planes(plan: DataPlan, *, given: bool = True) -> bool:
    """Whether channels of the input, or of the output, lie farther apart than positions."""
    p = plan.problem
    strides = p.strides[p.given if given else p.solved]
    return min(map(abs, strides[1:3])) > abs(strides[-1])


def _saved(plan: DataPlan) -> float:
    """Of the cycles of the arithmetic, where the weights that tiles share, of one phase, stay in L1.

    As of vectors as long as lines: of shorter ones as much was measured.
    """
    shared = plan.packed_bytes * plan.panel / prod(len(axis.phases) for axis in plan.axes)
    if plan.pixels or plan.spread or plan.hides_weights or shared > SHARED_BYTES:
        return 0.0
    rows, vectors = prod(plan.tile), plan.width // plan.lanes
    near, far = step_cycles(rows, vectors, near=True), step_inside(rows, vectors)
    return 1 - near / far if far > INSIDE * near else 0.0  # else the tile hides where they come from


def _far_runs(plan: DataPlan, *, given: bool) -> float:
    """Pieces of memory that a task reads, or writes, beyond one for each page: of channels that lie far apart."""
    p = plan.problem
    tensor = p.given if given else p.solved
    shape, size = p.shapes[tensor], SIZES[p.dtype]
    if not in_planes(plan, given=given) or size * prod(shape) <= KEPT_BYTES:
        return 0.0
    if plan.spread:
        channels = plan.slab_groups * shape[2]
    else:
        channels = plan.i_block if given else plan.width * plan.blocks_per_task
    taken = plan.slab_extent if given else plan.result_extent
    batch, *spatial = map(min, taken, (shape[0], *shape[3:]))
    channels = min(shape[1] * shape[2], channels)
    runs, whole = batch * channels, True
    for extent, total in zip(reversed(spatial), reversed(shape[3:]), strict=True):
        runs *= 1 if whole else extent
        whole = whole and extent == total
    return max(0.0, runs - size * batch * channels * prod(spatial) / PAGE)


def _written_bytes(plan: DataPlan) -> int:
    """Of the output that lies between what a task writes, were channels innermost: a few of them at a time.

    As if they were f32: smaller parts of lines are as many.
    """
    p = plan.problem
    strides = p.strides[p.solved]
    return SIZES[plan.compute] * prod(plan.result_extent) * abs(strides[-1]) if abs(strides[2]) <= 1 else 0


def _overflow(size: int, room: int) -> float:
    return max(0.0, size / room - 1)
