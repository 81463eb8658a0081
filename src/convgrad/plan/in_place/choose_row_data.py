"""Plans that read rows as they lie in memory, by predicted cycles: tiles, blocks of rows and shares of the input."""

from __future__ import annotations

from collections.abc import Iterator
from math import prod

from convgrad.dtypes import SIZES
from convgrad.plan.axes import gather_axes
from convgrad.plan.costs import LEAST_TASKS, MOVE, TURN_BACK
from convgrad.plan.few_channels.folded import folded
from convgrad.plan.general.block_costs import EVEN_TASKS
from convgrad.plan.general.data import DataPlan
from convgrad.plan.in_place.row_data import RowDataPlan
from convgrad.plan.kinds import as_kind
from convgrad.plan.machine import Machine
from convgrad.plan.shares import even_share
from convgrad.plan.steps import BROADCAST, FMA_PER_CYCLE, LATENCY, LOADS_PER_CYCLE, TILE_OVERHEAD
from convgrad.problem.conv import ConvProblem, Unknown
from convgrad.values import replace

MOST_OUTPUTS = 16  # channels and phases that are solved for, of a group: rows are read again for every dozen
MOST_OF_FEW, FEWEST = 64, 4  # likewise, where rows have a stride of two, made of so few channels
MOST_TAPS, MOST_STEP, MOST_PHASES = 11, 3, 8
FEW_CHANNELS = 16  # of an input of one axis, read at a time: as many runs of memory
MOST_ROWS = 4  # of outputs in a tile
CROSSING, PICKED = 1.6, 1.2  # cycles for a vector that crosses lines, and for one of those to pick from
CROSSING_FEW, FEW_GIVEN = 2.4, 8  # likewise where there are fewer channels of the input, for each tap a short loop
AMONG_PICKS = 0.5  # cycles of a number in all lanes, where loads of vectors are few
NARROW = 1.2  # cycles for a vector of 16-bit numbers, which crosses lines half as often, and is widened
PART, WRITTEN = 16.0, 0.5  # cycles besides for a tap of a row: of a loop over channels, and of a single one
FETCH = 1.5  # cycles, not hidden, for a line of a channel from L2
STREAM = 1.0  # cycles of a step for each row beyond the first
FAR = 0.1  # cycles, not hidden, for a number of the input from beyond
COPIED = 0.5  # cycles that copying a number of the input takes, which others do, beyond what is predicted of them
COPIED_WORDS = 0.2  # likewise where numbers are copied two by two
APART, APART_PHASES = 0.5, 0.42  # of the cycles predicted of several groups, which others pack one by one; in phases
APART_WORDS = 0.85  # likewise where others pack words of two channels
DEALT, HALVED = 0.7, 0.76  # of those of strided rows of few channels, which others copy to planes first; of 16 bits
NEAR_BYTES = 256 * 1024  # of rows that tiles read more than once
BLOCK_BYTES = 320 * 1024  # of rows that several phases of a block read
LEAST_ROWS = 4  # of outputs that a task computes, since its neighbours read nearly the same
RESULT_BYTES = 64 * 1024


def row_data_candidates(problem: ConvProblem, machine: Machine, base: DataPlan) -> Iterator[tuple[float, RowDataPlan]]:
    """Predicted cycles, and the plan, if rows can be read as they lie."""
    p, solves_y = problem, problem.unknown is Unknown.Y
    phases = 1 if solves_y else p.stride[-1]
    given = p.strides[p.given]
    solved, channels = (p.y_channels, p.x_channels) if solves_y else (p.x_channels, p.y_channels)
    masked = base.fills_lines  # as instruction sets with masks are
    in_words = p.dtype == "bf16" and machine.has_dots
    few = solves_y and p.stride[-1] == 2 and p.dtype != "f64" and not in_words and channels <= FEWEST
    most = MOST_OF_FEW if few else MOST_OUTPUTS
    if not masked or p.accumulate or given[-1] != 1 or not 0 < solved * phases <= most or not channels:
        return
    if phases > 1 and not _folds(p):
        return
    inner = folded(p) if phases > 1 else p
    axes = gather_axes(inner)
    row = axes[-1]
    if len(row.phases) != 1 or not 0 < row.taps <= MOST_TAPS or row.in_step > MOST_STEP:
        return
    if any(not (axis.taps and axis.in_extent and phase.count) for axis in axes for phase in axis.phases):
        return
    plan = as_kind(
        RowDataPlan, base, problem=inner, axes=axes, pixels=True, spread=False, pixel_major=False, unroll=0,
        lane_groups=1, packs_weights=False, reads_weights=False, reads_in_place=True, reasons=(), unfolded=p,
    )  # fmt: skip
    found = [_blocked(tile) for tile in _tiles(plan, machine.registers, few=few)]
    if found:
        copied = prod(p.shapes[p.given]) * (COPIED_WORDS if in_words else COPIED)
        words = in_words and channels > 1
        cycles, best = min(
            ((_cycles(one, few=few, words=words), one) for one in found), key=lambda candidate: candidate[0]
        )  # fmt: skip
        yield cycles - (copied if p.groups == 1 else 0.0), best


def _folds(p: ConvProblem) -> bool:
    """Whether phases of a row can be computed side by side."""
    s = p.stride[-1]
    return s <= MOST_PHASES and p.dilation[-1] == 1 and s <= min(p.taps[-1], p.x_extent[-1]) and p.pad_low[-1] >= 0


def _tiles(plan: RowDataPlan, registers: int, *, few: bool) -> Iterator[RowDataPlan]:
    """Tiles that fit, of whole channels; `few` of the input, every second number of whose rows takes little to read."""
    row, rank = plan.axes[-1], len(plan.axes) - 1
    solved, ones = plan.out_channels // plan.phases, (1,) * (rank - 1)
    room = registers - 2 - 2 * (row.in_step > 1)
    even = plan.phases > 1 or plan.deals or few  # shares of the channels
    for channels in (n for n in range(1, solved + 1) if solved % n == 0 or not even):
        width = channels * plan.phases
        for vectors in range(1, min(-(-row.count // plan.lanes), room // (width + 1)) + 1):
            for rows in range(1, MOST_ROWS + 1 if rank > 1 else 2):
                if (width + 1) * vectors * rows > room or (rows > 1 and rows > plan.axes[-2].count):
                    break
                tile = (*ones, rows, vectors * plan.lanes) if rank > 1 else (1, vectors * plan.lanes)
                one = replace(plan, width=width, tile=tile, block=tile)
                if one.middle_inside:
                    yield one


def _blocked(plan: RowDataPlan) -> RowDataPlan:
    """With blocks of rows, and a share of the input that caches keep from one tile to the next."""
    p, row = plan.problem, plan.axes[-1]
    *outer, _ = plan.axes
    whole = -(-row.count // plan.tile[-1]) * plan.tile[-1]
    read = SIZES[p.dtype] * row.in_extent * prod(axis.taps for axis in outer)
    share = plan.packable(even_share(plan.in_channels, max(1, NEAR_BYTES // read)))
    tasks = prod(axis.count for axis in outer[:-1]) * plan.group_blocks
    results = SIZES[plan.compute] * plan.width * prod(len(axis.phases) for axis in outer)
    if len(plan.axes) > 2:
        rows = outer[-1].count
        wanted = max(1, -(-EVEN_TASKS // tasks), rows * whole * results // RESULT_BYTES)
        if len(outer[-1].phases) * plan.lane_blocks > 1:  # which read the same
            most = BLOCK_BYTES // (SIZES[p.dtype] * row.in_extent * outer[-1].in_step * share) - outer[-1].taps
            wanted = max(wanted, -(-rows // max(LEAST_ROWS, most)))
        several = plan.tile[-2]
        block = (*plan.tile[:-2], -(-rows // (wanted * several)) * several, whole)
    else:  # few channels at a time, of long runs
        share = plan.packable(min(plan.in_channels, FEW_CHANNELS))
        tiles = whole // plan.tile[-1]
        pieces = min(tiles, max(-(-LEAST_TASKS // tasks), whole * results // RESULT_BYTES))
        block = (1, -(-tiles // max(1, pieces)) * plan.tile[-1])
    blocked = replace(plan, block=block, i_block=share, blocks_per_task=plan.lane_blocks)
    solved = plan.unfolded.strides[p.solved]
    in_place = blocked.i_blocks == 1 and solved[-1] == 1 and (plan.phases > 1 or row.count >= plan.lanes)
    alone = prod(blocked.grid) == blocked.group_blocks
    return replace(blocked, writes_in_place=in_place, packs_weights=alone)


def _cycles(plan: RowDataPlan, *, few: bool, words: bool) -> float:
    """Of all tiles, with what they wait for; `words`, others multiply words of two channels."""
    p, row = plan.problem, plan.axes[-1]
    (phase,) = row.phases
    several = plan.tile[-2] if len(plan.axes) > 2 else 1
    columns = several * len(plan.columns)
    step = 0.0
    for n, rows in enumerate(map(plan.part_rows, plan.met)):
        shift = phase.offset + n * row.offset_step
        products, loads = len(rows) * columns, columns / LOADS_PER_CYCLE
        if row.in_step > 1:
            picks = 0 if plan.deals or few else row.in_step - 1
            products, loads = products + picks * columns, PICKED * row.in_step * columns
        elif shift % plan.lanes and plan.slides:
            products, loads = products + columns, loads + several / LOADS_PER_CYCLE
        elif not plan.slides:
            crossing = CROSSING if plan.in_channels >= FEW_GIVEN else CROSSING_FEW
            loads = (crossing if SIZES[p.dtype] == SIZES[plan.compute] else NARROW) * columns
        numbers = (AMONG_PICKS if plan.deals or few else BROADCAST) * len(rows)
        step += max(products / FMA_PER_CYCLE, numbers + loads, LATENCY)
        unit = min(plan.channel_unit, plan.in_channels)
        step += PART / unit if unit > 1 else WRITTEN
    crosses = not plan.slides or row.taps > 1
    step += FETCH * (columns * row.in_step + several * crosses) + STREAM * row.in_step * len(plan.met) * (several - 1)
    tiles = plan.row_tiles * plan.lane_blocks
    visits = prod(axis.visits(size) for axis, size in zip(plan.axes[:-1], plan.tile, strict=False))
    outputs = prod(axis.tiles(size) for axis, size in zip(plan.axes[:-1], plan.tile, strict=False))
    results = 2.0 * plan.width * columns * plan.i_blocks
    cycles = p.groups * tiles * (visits * plan.in_channels * step + outputs * (TILE_OVERHEAD + results))
    if p.groups == 1:
        cycles *= (DEALT if plan.deals else HALVED) if few else 1.0
    else:
        of_numbers = APART if plan.phases == 1 or p.dtype != plan.compute else APART_PHASES
        cycles *= APART_WORDS if words else of_numbers
    read, written = (prod(p.shapes[name]) for name in (p.given, p.solved))
    solved = p.strides[p.solved]
    apart = plan.phases == 1 and solved[-1] != 1  # outputs of a row
    return cycles + FAR * read + (TURN_BACK if apart else MOVE) * written
