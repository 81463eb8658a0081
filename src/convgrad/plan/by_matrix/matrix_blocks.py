"""How many windows a task of a MatrixWeightsPlan packs at a time, and who shares channels, by predicted cycles.

Every share of the lanes packs x again, and every share of the rows y: with few taps that costs more than the
arithmetic. Small blocks of windows keep all channels in the cache instead, but fetch and store the sums more often.
"""

from __future__ import annotations

from collections.abc import Iterator
from math import prod
from typing import TypeVar

from convgrad.plan.by_dots.dots import LANES, PAIR, DotWeightsPlan
from convgrad.plan.by_matrix.gathered_weights import GatheredWeightsPlan
from convgrad.plan.by_matrix.matrix import COLUMNS, DEPTH, ROWS
from convgrad.plan.by_matrix.matrix_weights import MatrixWeightsPlan
from convgrad.plan.by_matrix.shifted_pairs import ShiftedPairsPlan
from convgrad.plan.costs import LOOK, MOVE, OVERFLOW, SPLIT, TURN
from convgrad.plan.general.room import roomy
from convgrad.plan.general.window_blocks import FAR_SUM, FAR_SUM_BYTES, SUM_MOVE, SUM_VECTOR, left_idle
from convgrad.plan.shares import even_share
from convgrad.plan.steps import dot_cycles
from convgrad.plan.units import loads_of
from convgrad.plan.window_axes import WindowAxis
from convgrad.problem.conv import Ints
from convgrad.values import frozen, replace

Plan = TypeVar("Plan", bound=MatrixWeightsPlan)

PRODUCT = 19.0  # cycles of a product of two tiles, however few rows A has: those of B take as long
OVERLAP = 0.1  # of loads that products hide, or of products that loads hide
LOAD_ROWS = 1.5  # rows of tiles loaded per cycle
NEAR_ROW = 1.2  # cycles for a row that comes from L2
TILE_OVERHEAD = 60.0  # cycles to zero, store and loop, per block of tiles
VERDICT = 8000.0  # cycles to look at what was noted and begin two more stages
PIECE = 6.0  # to find the channels of a group at a position, where others lie between them and the next
GATHER = 2.0  # cycles for a row of up to 32 bf16 that is moved from anywhere to anywhere in L2
TURNED_WEIGHT = 1.0  # cycles more to write a weight whose lanes are channels of x, which lie apart
LATER = 0.1  # cycles to pair a number of x again, one window later, for every piece
SUM_ROWS = 3.0  # cycles for a row of sums that is fetched and stored
UNALIGNED_ROWS = 7  # rows that one across cache lines counts for
ALONE = 4  # likewise, of one product alone, which waits for B, too
SHORT_ROW = 6.0  # cycles more to pack a row of a channel, as far as it leaves a vector empty
ROW = 2.0  # cycles of a loop over rows of windows, each a sum of its own
TAPS_APART = 1.15  # times the cycles of dot products of a tile of several taps, whose words lie apart
ZERO_BYTES = 32.0  # per cycle
PACKED_AGAIN = 2.0  # what packing counts among blocks and shares of one plan: it leaves caches and threads to wait
SLAB_BYTES = 768 * 1024  # of x and y together
SUM_BYTES = 3 * 1024 * 1024  # of sums besides those of the first chunk
MOST_WINDOWS = 4096
MOST_CHUNKS = 16
SHARES = (1, 2, 3, 4, 6, 8, 12, 16)


@frozen
class _OfBlock:
    """What shares and chunks do not change."""

    products: float  # cycles
    of_rows: float  # to pack the side that gives the rows, and to gather what taps meet, in each share of the lanes
    of_lanes: float  # to pack the other side, in each share of the rows
    row_bytes: int  # of the slab, per channel that is a row
    lane_bytes: int  # per block of lanes


def _of_block(plan: MatrixWeightsPlan) -> _OfBlock:
    row_side, lane_side = "xy" if plan.rows_shift else "yx"
    return _OfBlock(
        products=_products(plan),
        of_rows=_gathered(plan) + _packing(plan, row_side),
        of_lanes=_packing(plan, lane_side),
        row_bytes=plan.packed_bytes * plan.pieces * plan.row_slab[1],
        lane_bytes=plan.packed_bytes * plan.lane_slab_size // plan.share_blocks,
    )


def best_window_blocks(plan: Plan) -> tuple[float, Plan]:
    """Predicted cycles, and the plan with the best blocks of windows, chunks and shares."""
    few = plan.tile_taps > 1  # channels of x, which lie together, or planes that are packed together
    tiles = 1 if few else -(-plan.row_count // plan.row_channels), plan.lane_blocks
    shares = [(rows, lanes) for rows in _shares(tiles[0]) for lanes in _shares(tiles[1])]
    candidates: list[tuple[float, Plan, _OfBlock]] = []
    for block in _blocks(plan):
        blocked = replace(plan, block=block)
        if isinstance(blocked, ShiftedPairsPlan) and not blocked.begins_with_pairs:
            continue
        found = _of_block(blocked)
        for rows, lanes in shares:
            for candidate in _chunked(replace(blocked, row_shares=rows, lane_shares=lanes)):
                candidates.append((_cost(candidate, found, PACKED_AGAIN), candidate, found))
    _, chosen, found = roomy(candidates, lambda candidate: candidate[0], lambda candidate: max(candidate[1].work_bytes))
    return _cost(chosen, found), chosen


def _shares(tiles: int) -> list[int]:
    """Numbers of shares of which none is empty."""
    return [n for n in SHARES if n <= tiles and -(-tiles // -(-tiles // n)) == n]


def _blocks(plan: MatrixWeightsPlan) -> Iterator[Ints]:
    """Windows per axis: innermost first, an outer axis only once the inner ones are whole."""
    block = [1] * len(plan.axes)
    for n in reversed(range(len(block))):
        windows = max(1, plan.axes[n].windows)
        while block[n] < windows:
            if prod(block) >= DEPTH:
                yield tuple(block)
            following = min(windows, 2 * block[n])
            if n == len(block) - 1 and not isinstance(plan, DotWeightsPlan):
                following = even_share(windows, following)
                if following > DEPTH:
                    following = _whole_steps(windows, following, block[n])
            if prod(block) // block[n] * following > MOST_WINDOWS:
                break
            block[n] = following
        if block[n] < windows:
            break
    yield tuple(block)


def _whole_steps(windows: int, size: int, less: int) -> int:
    """About `size` windows of a row, but more than `less`: steps of a sum, and blocks alike, if that can be."""
    steps = -(-size // DEPTH) * DEPTH
    alike = (n for n in range(steps, less, -DEPTH) if windows % n == 0)
    return next(alike, min(windows, steps))


def _chunked(plan: Plan) -> Iterator[Plan]:
    """With as many chunks as their sums, and blocks of windows, allow; or fewer, where a task may keep its own."""
    most = 1 + SUM_BYTES // max(1, 4 * plan.sum_size)
    most = max(1, min(MOST_CHUNKS, prod(plan.block_grid), most))
    for chunks in sorted({1, 2, 4, 8, most}):
        if chunks <= most:
            yield replace(plan, chunks=chunks)


def _products(plan: MatrixWeightsPlan) -> float:
    """Cycles of all products of tiles, and of fetching and storing their sums."""
    if isinstance(plan, DotWeightsPlan):
        return _dot_products(plan)
    row_tiles, lane_tiles = plan.row_tiles, plan.width // COLUMNS
    gathered = isinstance(plan, GatheredWeightsPlan)
    rows = row_tiles * plan.rows
    a_loads, b_loads = loads_of(plan.products)
    across_lines = ALONE if len(plan.products) == 1 else UNALIGNED_ROWS
    a_rows = 1 + (across_lines - 1) * plan.across_lines
    loads = (a_loads * a_rows * rows + b_loads * lane_tiles * ROWS) / LOAD_ROWS
    step = step_cycles(len(plan.products) * row_tiles * lane_tiles, loads)
    steps = plan.depth / DEPTH * (_met(plan.axes[plan.longest]) if gathered else prod(plan.outer_block))
    sums = TILE_OVERHEAD + SUM_ROWS * rows * lane_tiles
    tiles = plan.row_blocks * plan.lane_blocks * plan.problem.groups
    return prod(plan.block_grid) * tiles * (steps * step + sums)


def step_cycles(products: int, loads: float) -> float:
    """So many products of tiles, and cycles of the loads between them."""
    alone = PRODUCT * products
    return max(alone, loads) + OVERLAP * min(alone, loads)


def _dot_products(plan: DotWeightsPlan) -> float:
    """The same of register tiles, of which each tap has those of the windows that it meets x in."""
    rows = prod(plan.outer_block) * prod(_met(axis) for axis in plan.outer)
    tile_rows = plan.tile_taps * plan.row_channels
    step = dot_cycles(tile_rows, plan.vectors, near=True) * (TAPS_APART if plan.tile_taps > 1 else 1.0)
    steps = rows * (ROW + plan.depth / PAIR * step)
    sums = TILE_OVERHEAD + SUM_VECTOR * tile_rows * plan.vectors
    tiles = -(-plan.row_count // plan.row_channels) * plan.lane_blocks * plan.problem.groups
    tiles *= plan.taps // plan.tile_taps
    return prod(plan.block_grid) * tiles * (steps + sums)


def gathering(plan: MatrixWeightsPlan) -> float:
    """Cycles of gathering what taps meet, in all shares of the lanes."""
    return plan.lane_shares * _gathered(plan)


def _gathered(plan: MatrixWeightsPlan) -> float:
    """The same in each."""
    if not isinstance(plan, GatheredWeightsPlan):
        return 0.0
    lines = prod(plan.block[:-1]) * -(-plan.block[-1] // DEPTH) * plan.pieces * plan.row_channels
    tiles = plan.row_blocks * plan.problem.groups
    return GATHER * prod(plan.block_grid) * tiles * lines


def _packing(plan: MatrixWeightsPlan, tensor: str) -> float:
    """Cycles of packing all blocks of one side, once."""
    p, dots, rows = plan.problem, isinstance(plan, DotWeightsPlan), (tensor == "x") == plan.rows_shift
    turned = abs(p.strides[tensor][2]) < abs(p.strides[tensor][-1])  # channels are innermost
    if tensor == "x":
        count = plan.x_outer_strides[0] * plan.outer_extent[0]  # with what blocks have in common, and zeros
        channels, turn = p.x_channels, (turned or plan.axes[-1].stride > 1) if rows else not turned
    else:
        count, turn = prod(plan.block), turned if rows else not turned
        channels = max(p.y_channels, LANES) if dots and turn else p.y_channels  # in squares of whole vectors
    each = channels * ((TURN if turn else MOVE) + SPLIT * plan.pieces)
    if isinstance(plan, ShiftedPairsPlan) and tensor == "x" and plan.odd_taps:
        each += channels * plan.pieces * LATER
    if dots and not turned:
        each += channels / plan.block[-1] * SHORT_ROW * max(0.0, 1 - plan.block[-1] / LANES)
    elif dots and p.groups > 1:
        each += PIECE
    return prod(plan.block_grid) * count * p.groups * each


def _met(axis: WindowAxis) -> float:
    """The share of the windows of an axis that a tap meets x in, on average."""
    met = (axis.met(r) for r in range(axis.taps))
    return sum(last - first for first, last in met) / max(1, axis.taps * axis.windows)


def _cost(plan: MatrixWeightsPlan, block: _OfBlock, packed: float = 1.0) -> float:
    """All cycles; more where slabs outgrow the cache or tasks are too few. Packing counts `packed` times."""
    blocks, tasks = prod(plan.block_grid), prod(plan.grid)
    packing = block.of_rows * plan.lane_shares + block.of_lanes * plan.row_shares
    slabs = block.row_bytes * plan.share_rows + block.lane_bytes * plan.share_blocks
    zeroed = tasks if blocks == plan.chunks else blocks * tasks // plan.chunks
    overflow = OVERFLOW * max(0.0, slabs / SLAB_BYTES - 1)
    cycles = (LOOK if isinstance(plan, DotWeightsPlan) else VERDICT) if plan.watch else 0.0
    cycles += block.products * (1 + overflow) + packed * packing + zeroed * slabs / ZERO_BYTES + _sum_cost(plan)
    return cycles * (1 + left_idle(tasks, cycles))


def _sum_cost(plan: MatrixWeightsPlan) -> float:
    """To make weights of the sums of all chunks; to clear, write and read those that tasks share, too."""
    turned = not plan.rows_shift and plan.problem.w_strides[2] != 1
    cycles = plan.sum_size * (SUM_MOVE + TURNED_WEIGHT if turned else SUM_MOVE)
    if not plan.own_sums:
        far = 4 * plan.chunks * plan.sum_size > FAR_SUM_BYTES
        cycles += 2 * plan.chunks * plan.sum_size * SUM_MOVE * (FAR_SUM if far else 1)
    return cycles
