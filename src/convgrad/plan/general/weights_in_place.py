"""Whether a DataPlan reads weights as they lie or packs them, and how many of their rows at a time."""

from __future__ import annotations

from math import prod

from convgrad.dtypes import SIZES
from convgrad.plan.along import LEAST_WIDENED
from convgrad.plan.costs import LEAST_TASKS, LINE, PAGE
from convgrad.plan.general.data import KEPT_BYTES, DataPlan
from convgrad.plan.shares import even_share
from convgrad.values import replace

CROWDED = 1024  # bytes from a row of weights to the next, or a multiple, of which a few fill all places of L1 for them
CROWDED_BYTES = (896 * 1024, 640 * 1024)  # from the first such row to the last that L2 keeps; of several taps
FAR_TILES, FAR_BYTES = 30, 2 * 1024 * 1024  # up to which tiles, and so far apart, they are worth reading from L3
FEW_TILES, FEW_TILES_OF_ROWS = 100, 50  # up to which tiles read weights as they lie; of several taps, or crowded
FEW_TILES_OF_GROUPS = 4  # likewise, of groups whose rows are two lines at most; none where each is in a page of its own
FEW_WIDENED = 30, 4  # likewise, of 16 bits, which each tile widens; of vectors shorter than lines
FEW_AT_ONCE = 20  # of those that an instruction widens which hardly counts
FEWEST_TILES = 8  # that read whole lines, even where rows push each other out: packing reads such rows as well
ONCE_TILES, ONCE_ROWS = 3, 128  # likewise of shorter vectors, if rows are so many that they are on their way together
ONCE_TILES_OF_RUNS = 4  # likewise of rows that are read some at a time
ONCE_TILES_OF_TAPS = 6  # likewise of several taps, by tiles of a line and more, if L2 has places for these rows
FAR_WEIGHTS = 4 * 1024 * 1024  # bytes of weights that tasks pack for themselves, and that come from beyond L2
FAR_CROWDED = 8192  # bytes from a row of weights to the next, or a multiple, for which it has few
MANY_PAGES = 1024  # from so many on, that rows of weights lie in, the processor has to look for them
FEW_BESIDE = 2  # tiles up to which it goes through pages of two rows and more one after the other
RUN_ROWS, RUN_BYTES = 256, 256 * 1024  # read at a time there, and packed of what meets them


def with_weights_in_place(plan: DataPlan) -> DataPlan:
    """The plan that reads weights as they lie, if too few tiles read one of them to make up for packing it.

    Not where rows of weights push each other out of caches; shares of a run of channels may be few enough rows.
    """
    if not plan.may_read_weights:
        return plan
    p = plan.problem
    row = SIZES[p.dtype] * p.w_strides[2 if plan.solves_y else 1]
    tiles = prod(axis.tiles(size) for axis, size in zip(plan.axes, plan.tile, strict=True))
    crowded, few = row % CROWDED == 0, tiles <= FEWEST_TILES and plan.fills_lines
    room = FAR_BYTES if tiles <= FAR_TILES and plan.fills_lines else CROWDED_BYTES[plan.taps > 1]
    most = FEW_TILES_OF_ROWS if crowded or plan.taps > 1 else FEW_TILES
    if _scatters_weights(plan) and tiles > (0 if row % PAGE == 0 else FEW_TILES_OF_GROUPS):
        return _lanes_together(plan)
    if tiles > (most if p.dtype == plan.compute else _most_widened(plan)):
        return _lanes_together(plan)
    read = replace(plan, reads_weights=True, packs_weights=False)
    shares = (plan.i_block, plan.channel_unit) if plan.i_blocks > 1 and plan.taps > 1 else (plan.i_block,)
    for share in shares:
        if not crowded or few or row * plan.taps * share <= room:
            return _lanes_together(_in_runs(read, row, tiles) or replace(read, i_block=share))
    once = ONCE_TILES_OF_TAPS
    if plan.taps == 1 or row % FAR_CROWDED == 0 or SIZES[p.dtype] * plan.width < LINE:
        once = ONCE_TILES
    if tiles <= once and plan.taps * plan.i_block >= ONCE_ROWS:
        return _lanes_together(_in_runs(read, row, tiles) or read)
    return _lanes_together(_in_runs(read if tiles <= ONCE_TILES_OF_RUNS else plan, row, tiles) or plan)


def _scatters_weights(plan: DataPlan) -> bool:
    """Whether rows of weights are a few lines of a group each, at many taps: of vectors shorter than lines."""
    p = plan.problem
    return p.groups > 1 < plan.taps and not plan.fills_lines and SIZES[p.dtype] * plan.out_channels <= 2 * LINE


def _in_runs(plan: DataPlan, row: int, tiles: int) -> DataPlan | None:
    """The plan with some rows of weights at a time, if all of them lie in too many pages; None if they do not.

    Each tile, or task that packs them, would look for all of those. What meets them is packed then, a run at a time. Of
    vectors as long as lines nobody has measured it.
    """
    p = plan.problem
    plain = plan.taps == plan.i_blocks == p.groups == 1 and p.dtype == plan.compute and not plan.fills_lines
    near = not plan.reads_weights and p.bytes_of("w") <= FAR_WEIGHTS
    pages = min(PAGE, row) * plan.in_channels // PAGE
    if not plain or near or pages < MANY_PAGES or (2 * row <= PAGE and tiles <= FEW_BESIDE):
        return None
    most = min(RUN_ROWS, RUN_BYTES // (SIZES[plan.compute] * prod(plan.block)))
    run = even_share(plan.in_channels, max(plan.channel_unit, most))
    plan = replace(plan, reads_in_place=False, writes_in_place=False, i_block=run)
    return plan if plan.reads_weights else _with_lanes_together(replace(plan, packs_weights=True), run)


def _lanes_together(plan: DataPlan) -> DataPlan:
    """With more blocks of lanes in a task, while a few threads are evenly busy, and with fewer channels at a time.

    Blocks that are not whole lines share some, and pages, with the next ones: these are near still. Of vectors as long
    as lines nobody has measured it.
    """
    own = plan.packs_weights and plan.taps > 1 and plan.problem.dtype == plan.compute
    if plan.fills_lines or plan.i_blocks == 1 or not (own or plan.reads_weights):
        return plan
    if plan.problem.bytes_of("w") <= (KEPT_BYTES if plan.reads_weights else FAR_WEIGHTS):
        return plan
    return _with_lanes_together(plan, plan.channel_unit if plan.taps > 1 else plan.i_block)


def _with_lanes_together(plan: DataPlan, share: int) -> DataPlan:
    """The same of any plan, with a share of the channels at a time if blocks are put together."""
    others = prod(plan.grid) // -(-plan.lane_blocks // plan.blocks_per_task)
    for together in range(plan.lane_blocks, plan.blocks_per_task, -1):
        tasks = others * -(-plan.lane_blocks // together)
        if tasks >= 2 * LEAST_TASKS or (tasks >= LEAST_TASKS and tasks % 2 == 0):
            return replace(plan, blocks_per_task=even_share(plan.lane_blocks, together), i_block=share)
    return plan


def _most_widened(plan: DataPlan) -> float:
    """Tiles up to which each may widen the weights that it meets. Of shorter vectors a step has less arithmetic."""
    if plan.fills_lines:
        return FEW_WIDENED[0]
    if plan.problem.dtype == "bf16" and plan.lanes < LEAST_WIDENED:
        return FEW_AT_ONCE
    met = prod(axis.visits(1) / max(1, axis.count) for axis in plan.axes)  # taps of an output that are not beside x
    return FEW_WIDENED[1] * plan.taps / max(1.0, met)
