"""The plan of a weights gradient with lanes along runs of taps and channels of x, by predicted cycles."""

from __future__ import annotations

from collections.abc import Iterator
from math import gcd, prod

from convgrad.dtypes import COMPUTE, SIZES
from convgrad.plan.costs import CLAIM, LINE, MOVE, OVERFLOW, ROW, SCALAR, SLAB_BYTES, TURN, TURN_BACK
from convgrad.plan.few_channels.run_weights import RunWeightsPlan
from convgrad.plan.general.window_blocks import (
    ALONE,
    CHUNK_BYTES,
    FAR_SUM,
    FAR_SUM_BYTES,
    LEAST_TASKS,
    MOST_CHUNKS,
    SUM_MOVE,
    SUM_VECTOR,
)
from convgrad.plan.machine import Machine
from convgrad.plan.row_tiles import CROSSING, STEP, best_row_tile
from convgrad.plan.shares import even_share
from convgrad.plan.steps import FMA_PER_CYCLE, LATENCY, NUMBER, VECTOR, most_rows
from convgrad.plan.units import products_on
from convgrad.plan.window_axes import window_axes
from convgrad.problem.conv import ConvProblem, Ints
from convgrad.values import replace

MOST_VECTORS = 8  # of a tile
MOST_WINDOWS = 1024  # of a block
NEAR_BYTES = 24 * 1024  # of what the tiles of a row of taps read one after the other, in L1
WORTH = 1.05  # times as many lanes of a run have something to do than of vectors along the channels of either side
WORTH_OF_GROUPS = 0.8  # likewise than of vectors that hold several groups, whose numbers of y take shuffles
BLOCKS_FELT = 0.3  # of what is predicted of a blocking beyond what is predicted of plans without one
BESIDE_UNITS = 1.2  # times the cycles that are predicted of plans for a unit, which are cautious
FETCH = 0.35  # cycles, not hidden, for a vector from L2


def run_weights_candidates(problem: ConvProblem, machine: Machine) -> Iterator[tuple[float, RunWeightsPlan]]:
    """Predicted cycles, and a plan, where a row of taps side by side fills vectors that channels alone would not.

    That is, vectors as long as lines: shorter ones are filled better by channels. Or where channels would meet one
    number of x at a time, so that sums wait for each other.
    """
    compute = COMPUTE[problem.dtype]
    lanes = machine.lanes_f32 * 4 // SIZES[compute]
    c, k, axes = problem.x_channels, problem.y_channels, window_axes(problem)
    if not c * k or not (_fills_more(problem, lanes) or _single_row(problem, lanes, machine.registers)):
        return
    if not prod(axis.windows for axis in axes):
        return
    if any(axis.dilation * (axis.taps - 1) > 2 * axis.windows * axis.stride for axis in axes):
        return  # mostly zeros between
    base = RunWeightsPlan(
        problem=problem, isa=machine.isa, compute=compute, lanes=lanes, axes=axes, lane_side="x", vectors=1,
        lane_groups=1, spread=False, row_channels=1, tile_taps=axes[-1].taps, block=(1,) * len(axes), chunks=1,
        lane_shares=1, row_shares=1, x_pixel_major=abs(problem.y_strides[2]) <= abs(problem.y_strides[-1]),
        rows_in_place=problem.dtype == compute, tile_vectors=1,
    )  # fmt: skip
    tiles = [
        replace(base, row_channels=rows, vectors=vectors, tile_vectors=vectors)
        for vectors in dict.fromkeys(even_share(base.run_vectors, most) for most in range(1, MOST_VECTORS + 1))
        for rows in dict.fromkeys(even_share(k, most) for most in range(1, most_rows(machine.registers, vectors) + 1))
    ]
    best = min(tiles, key=_window_cycles)
    _, plan = min((_in_chunks(replace(best, block=block)) for block in _blocks(best)), key=lambda found: found[0])
    yield _compared(plan) * (1.0 if products_on(problem, machine) is None else BESIDE_UNITS), plan


def _fills_more(problem: ConvProblem, lanes: int) -> bool:
    """Whether a run leaves fewer lanes empty than channels of either side, or of several groups, do."""
    if lanes * SIZES[COMPUTE[problem.dtype]] != LINE:
        return False
    c, k = problem.x_channels, problem.y_channels
    filled = _filled(c * problem.taps[-1], lanes)
    channels, groups = max(_filled(c, lanes), _filled(k, lanes)), _by_groups(problem, lanes)
    return filled >= WORTH * channels and filled >= WORTH_OF_GROUPS * groups


def _single_row(problem: ConvProblem, lanes: int, registers: int) -> bool:
    """Whether tiles with lanes along y have one number of x: there is one channel, and no rows divide its taps."""
    if problem.x_channels > 1 or problem.groups > 1:
        return False
    tile = best_row_tile(
        1, window_axes(problem)[-1], problem.y_channels, lanes, registers, rows_shift=True, ends_early=True
    )
    return tile.taps == 1


def _filled(numbers: int, lanes: int) -> float:
    """The share of lanes that so many numbers fill."""
    return numbers / (-(-numbers // lanes) * lanes)


def _by_groups(problem: ConvProblem, lanes: int) -> float:
    """The share of lanes that several whole groups fill, where a vector holds so many."""
    together, c = lanes // problem.x_channels, problem.x_channels
    return problem.groups * c / (-(-problem.groups // together) * lanes) if problem.groups > 1 < together else 0.0


def _window_cycles(plan: RunWeightsPlan) -> float:
    """Of all tiles of a row of taps, at a window."""
    window = SIZES[plan.compute] * plan.axes[-1].stride * plan.lane_count
    crossing = (LINE - gcd(window, LINE)) / LINE
    return sum(
        of_rows * of_columns * _step_cycles(rows, columns, crossing)
        for _, of_rows, rows in plan.row_tiles
        for _, of_columns, columns in plan.column_tiles
    )


def _step_cycles(rows: int, columns: int, crossing: float) -> float:
    """Of a tile, whose vectors come from L1; of these that share lies across lines."""
    loads = NUMBER * rows + (VECTOR / 2 + CROSSING * crossing) * columns
    return max(rows * columns / FMA_PER_CYCLE, loads, LATENCY) + STEP


def _rows_met(plan: RunWeightsPlan) -> int:
    """Pairs of a window and a row of taps that meets x."""
    inner = plan.axes[-1].windows
    return inner * prod(sum(last - first for first, last in map(a.met, range(a.taps))) for a in plan.axes[:-1])


def _compared(plan: RunWeightsPlan) -> float:
    """Of arithmetic, and to move numbers, as it is predicted of other plans with lanes along channels.

    Besides a part of what sums and packing take in this blocking, which other plans do not count either, and have less.
    """
    p = plan.problem
    moved = sum(
        prod(p.shapes[name]) * (MOVE if abs(p.strides[name][2]) <= abs(p.strides[name][-1]) else TURN) for name in "xy"
    )
    once = p.groups * _rows_met(plan) * _window_cycles(plan) + moved + prod(p.shapes["w"]) * TURN
    return once + BLOCKS_FELT * (_fixed_cycles(plan) + _sum_cycles(plan) - once)


def _blocks(plan: RunWeightsPlan) -> Iterator[Ints]:
    """Windows per axis: innermost first, an outer axis only once the inner ones are whole."""
    block = [1] * len(plan.axes)
    for n in reversed(range(len(block))):
        windows = plan.axes[n].windows
        for size in dict.fromkeys(even_share(windows, 1 << m) for m in range(11) if 1 << m < 2 * windows):
            if prod(block) // block[n] * size > MOST_WINDOWS and prod(block) > 1:
                return
            block[n] = size
            yield tuple(block)


def _in_chunks(plan: RunWeightsPlan) -> tuple[float, RunWeightsPlan]:
    """The cheapest number of chunks, and predicted cycles."""
    blocks, fixed = prod(plan.block_grid), _fixed_cycles(plan)
    most = max(1, min(MOST_CHUNKS, blocks, 1 + CHUNK_BYTES // max(1, SIZES[plan.compute] * plan.sum_size)))
    found = []
    for chunks in sorted({1 << n for n in range(most.bit_length())} | {most}):
        tasks = chunks * plan.problem.groups
        late = ALONE * (1 / tasks + -(-blocks // chunks) * chunks / blocks - 1) if tasks < LEAST_TASKS else 0.0
        chunked = replace(plan, chunks=chunks)
        found.append((fixed * (1 + late) + _sum_cycles(chunked) + CLAIM * tasks, chunked))
    return min(found, key=lambda one: one[0])


def _sum_cycles(plan: RunWeightsPlan) -> float:
    """To write the sums of all chunks, and to make weights of them."""
    far = FAR_SUM if SIZES[plan.compute] * plan.chunks * plan.sum_size > FAR_SUM_BYTES else 1
    return plan.sum_size * (SUM_MOVE * 2 * plan.chunks * far + TURN_BACK)


def _fixed_cycles(plan: RunWeightsPlan) -> float:
    """Of arithmetic, of packing, and of sums that are fetched and stored."""
    size, p, blocks = SIZES[plan.compute], plan.problem, prod(plan.block_grid)
    windows = prod(plan.block)
    near = size * windows * (plan.tile_vectors * plan.lanes + plan.row_channels) <= NEAR_BYTES
    tiles = sum(many for _, many, _ in plan.row_tiles) * plan.run_vectors
    step = _window_cycles(plan) + (0.0 if near else FETCH * tiles)
    slabs = size * (plan.lane_slab_size + plan.row_slab_size)
    far = OVERFLOW * max(0.0, slabs / (2 * SLAB_BYTES) - 1)
    cycles = _rows_met(plan) * step * (1 + far)
    cycles += blocks * plan.taps * plan.share_rows * plan.run_vectors * SUM_VECTOR
    return p.groups * (cycles + blocks * _packing(plan))


def _packing(plan: RunWeightsPlan) -> float:
    """Cycles to pack a block of one group."""
    p = plan.problem
    met = prod(min(extent, axis.image) for extent, axis in zip(plan.x_extent, plan.axes, strict=True))
    cycles = 0.0
    for name, positions in (("x", met), ("y", 0 if plan.rows_in_place else prod(plan.block))):
        strides, channels = p.strides[name], p.shapes[name][2]
        beside, planes = abs(strides[2]) == 1, abs(strides[-1]) == 1
        each, run = MOVE if beside else TURN if planes else SCALAR, channels if beside else plan.block[-1]
        cycles += positions * channels * (each + ROW / max(1, run))
    return cycles
