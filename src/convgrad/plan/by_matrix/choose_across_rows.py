"""Plans on matrix units whose tiles go on across rows, with the blocks of fewest predicted cycles."""

from __future__ import annotations

from collections.abc import Iterator
from math import prod
from typing import Any

from convgrad.dtypes import SIZES
from convgrad.plan.by_matrix.across_rows import MOST_PHASES, PER_TILE, AcrossRowsPlan, GatheredDataPlan
from convgrad.plan.by_matrix.matrix import COLUMNS, DEPTH, ROWS, MatrixDataPlan
from convgrad.plan.by_matrix.matrix_blocks import GATHER, LOAD_ROWS, NEAR_ROW, TILE_OVERHEAD, step_cycles
from convgrad.plan.by_matrix.tile_by_tile import TileByTilePlan
from convgrad.plan.costs import LEAST_TASKS, OVERFLOW
from convgrad.plan.general.block_costs import EVEN_TASKS, LONG_CYCLES, block_cost
from convgrad.plan.general.blocks import lanes_shared, own_weights
from convgrad.plan.general.data import KEPT_BYTES
from convgrad.plan.general.room import roomy
from convgrad.plan.kinds import as_kind
from convgrad.plan.shares import even_share
from convgrad.plan.units import loads_of
from convgrad.problem.conv import Ints
from convgrad.values import replace

ROOM_BYTES = 1024 * 1024  # of what a task goes through again and again, in L2
PIECE_ROW = 60.0  # cycles to begin with a tap
PART, WINDOW = 1.8, 4.0  # cycles to move a part of a row of a window, and to begin with a window
MET_AGAIN = 14.0  # more for a line that a window of an earlier row had, which L1 has forgotten
WRITTEN = 45.0  # to write what a block of tiles and lanes gives, before the next
NEAR_PANELS = 24 * 1024  # bytes of weights that stay in L1 beside windows and results
GATHERED = 1.2  # times the cycles of products of what was gathered, which comes from L2 for every tap
FETCHED_BYTES = 12.0  # of weights per cycle, by tiles, from beyond L2
FEWEST_TASKS = 4  # each of which packs, and gathers, for itself
FETCHED_STORED = 2  # times that sums move
SHARES = (1, 2, 4, 8, 16)
MOST_OUTPUTS = 2048
PARTS_OF_ROWS = (128, 512, 2048)  # outputs, of rows that may be cut


def across_rows_candidates(plan: MatrixDataPlan, packing: float) -> Iterator[tuple[float, AcrossRowsPlan]]:
    """Predicted cycles, and plans, of a problem whose outputs are of a few phases; `packing` are those of the input.

    Packing it once is not among them. Where rows are whole tiles, nothing is gained.
    """
    if plan.axes[-1].count % ROWS == 0 or prod(axis.count for axis in plan.axes) < ROWS or min(plan.problem.taps) == 0:
        return
    kinds: list[type[AcrossRowsPlan]] = []
    phases = prod(len(axis.phases) for axis in plan.axes)
    if plan.axes[-2].in_step == plan.axes[-1].in_step == 1 and phases <= MOST_PHASES:
        kinds.append(AcrossRowsPlan)
    if phases == 1 and all(axis.out_step == 1 <= axis.taps for axis in plan.axes):
        kinds.append(GatheredDataPlan)
    for kind in kinds:
        base = as_kind(
            kind, plan, tile=(1,) * len(plan.axes), block=(1,) * len(plan.axes), i_block=DEPTH, unroll=0, rows=ROWS,
            width=PER_TILE * COLUMNS if plan.out_channels > COLUMNS else COLUMNS,
        )  # fmt: skip
        yield from with_best_blocks(base, packing)


def with_best_blocks(base: AcrossRowsPlan, packing: float) -> Iterator[tuple[float, Any]]:
    """Predicted cycles and the plan of the best blocks, if it can have any; `packing` are those of the input."""
    base = replace(base, blocks_per_task=base.lane_blocks)
    blocked = [replace(base, block=block) for block in _blocks(base)]
    blocked = [plan for plan in blocked if not isinstance(plan, TileByTilePlan) or plan.can_write]
    found = [candidate for plan in blocked for candidate in _candidates(plan)]
    if found:
        _, cycles, best = roomy(found, lambda candidate: candidate[0], lambda candidate: candidate[2].work_bytes[1])
        yield cycles + _copies(best) + _again(best, packing), best


def _candidates(plan: AcrossRowsPlan) -> Iterator[tuple[float, float, AcrossRowsPlan]]:
    """All cycles, those of products, and plans with shares of the channels of either side."""
    for share in _shares(plan):
        shared = replace(plan, i_block=share)
        cycles = _products(shared)
        wanted = (FEWEST_TASKS, LEAST_TASKS, EVEN_TASKS) if cycles > LONG_CYCLES else (FEWEST_TASKS, LEAST_TASKS)
        for lanes in lanes_shared(shared, wanted):
            for candidate in (lanes, *(own_weights(lanes) if plan.may_pack_weights else ())):
                yield _cost(candidate, cycles), cycles, candidate


def _products(plan: AcrossRowsPlan) -> float:
    """Cycles of products of tiles, and of loading and storing their sums."""
    (a_loads, b_loads), lane_tiles = loads_of(plan.products), plan.lane_tiles
    a_row, b_row, waiting = _row_cycles(plan)
    tiles = -(-plan.outputs // plan.rows)
    cycles = 0.0
    for row_tiles, count in ((PER_TILE, tiles // PER_TILE), (1, tiles % PER_TILE)):
        loads = a_loads * row_tiles * ROWS * a_row + b_loads * lane_tiles * ROWS * b_row
        step = waiting * step_cycles(len(plan.products) * row_tiles * lane_tiles, loads)
        begun = TILE_OVERHEAD + (WRITTEN if isinstance(plan, TileByTilePlan) else 0.0)
        moved = plan.i_blocks * (begun + FETCHED_STORED * row_tiles * lane_tiles * ROWS / LOAD_ROWS)
        cycles += count * (plan.steps * step + plan.phases * moved)
    blocks = prod(-(-axis.count // size) for axis, size in zip(plan.axes, plan.block, strict=True))
    return plan.group_blocks * plan.lane_blocks * blocks * plan.planes_of_outputs * cycles


def _row_cycles(plan: AcrossRowsPlan) -> tuple[float, float, float]:
    """To load a row of A, and of B, and times as long as all takes."""
    if isinstance(plan, TileByTilePlan):  # of L1, with what all lanes of a task multiply if that is little
        near = plan.packed_bytes * plan.blocks_per_task * plan.panel <= NEAR_PANELS
        return 1 / LOAD_ROWS, 1 / LOAD_ROWS if near else NEAR_ROW, 1.0
    gathered = isinstance(plan, GatheredDataPlan)
    return NEAR_ROW if gathered else 1 / LOAD_ROWS, NEAR_ROW, GATHERED if gathered else 1.0


def _copies(plan: AcrossRowsPlan) -> float:
    """Cycles of gathering, in every task."""
    if not isinstance(plan, GatheredDataPlan):
        return 0.0
    outputs = plan.blocks_of_tiles * plan.together
    if isinstance(plan, TileByTilePlan):
        return prod(plan.grid) * outputs * (WINDOW + PART * plan.moves + MET_AGAIN * plan.moves_again)
    return prod(plan.grid) * (GATHER * outputs * plan.moves + PIECE_ROW * plan.steps)


def _again(plan: AcrossRowsPlan, packing: float) -> float:
    """Cycles to pack what blocks of outputs have in common, and to fetch weights for each of them but the first."""
    per_axis = zip(plan.axes, plan.block, plan.slab_extent, strict=True)
    packed = prod(-(-axis.count // size) * extent / max(1, axis.in_extent) for axis, size, extent in per_axis)
    blocks = prod(-(-axis.count // size) for axis, size in zip(plan.axes, plan.block, strict=True))
    weights = plan.packed_bytes * plan.weights_size
    fetched = (blocks - 1) * weights / FETCHED_BYTES if weights > KEPT_BYTES else 0.0
    return max(0.0, packed - 1) * packing + fetched


def _cost(plan: AcrossRowsPlan, cycles: float) -> float:
    """Of arithmetic, copies and blocks."""
    gathered = plan.gathered_size if isinstance(plan, GatheredDataPlan) else 0
    own = plan.packed_bytes * (gathered + plan.slab_size + 2 * plan.panel) + SIZES[plan.compute] * plan.result_size
    overflow = OVERFLOW * max(0.0, own / ROOM_BYTES - 1)
    return cycles * (1 + overflow) + _copies(plan) + block_cost(plan, cycles)


def _blocks(plan: AcrossRowsPlan) -> Iterator[Ints]:
    """Shares of one axis, the outermost that is not whole, of some outputs at most; rows are whole, or one is cut."""
    counts = [axis.count for axis in plan.axes]
    if isinstance(plan, TileByTilePlan):
        sizes = (even_share(counts[-1], most) for most in PARTS_OF_ROWS)
        yield from ((*[1] * (len(counts) - 1), size) for size in dict.fromkeys(sizes) if size < counts[-1])
    for n in range(len(counts) - 1):
        inner = prod(counts[n + 1 :])
        sizes = {1} | {even_share(counts[n], -(-counts[n] // share)) for share in SHARES if share <= counts[n]}
        for size in sorted(sizes):
            if size * inner <= MOST_OUTPUTS and (size > 1 or n == len(counts) - 2 or inner >= ROWS):
                yield (*[1] * n, size, *counts[n + 1 :])


def _shares(plan: AcrossRowsPlan) -> list[int]:
    """Input channels that are packed at a time: whole tiles, and those of the order that is asked for."""
    if plan.run_asked_for or isinstance(plan, TileByTilePlan):
        return [plan.run_asked_for or plan.i_block]
    padded = -(-max(1, plan.in_channels) // DEPTH) * DEPTH
    return sorted({-(-even_share(padded, -(-padded // share)) // DEPTH) * DEPTH for share in SHARES})
