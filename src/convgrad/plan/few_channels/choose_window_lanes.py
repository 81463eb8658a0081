"""Plans with vectors along windows, by predicted cycles: tiles, how much is packed at a time, and who shares it."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import product
from math import prod

from convgrad.dtypes import COMPUTE, SIZES
from convgrad.plan.costs import BEYOND_L2, CLAIM, MEMORY_BYTES, MOVE, ROW, SCALAR, TURN
from convgrad.plan.few_channels.window_lanes import WindowLanesPlan
from convgrad.plan.general.window_blocks import CHUNK_BYTES, MOST_CHUNKS, SUM_BYTES, SUM_VECTOR, left_idle
from convgrad.plan.machine import Machine
from convgrad.plan.steps import FMA_PER_CYCLE, LATENCY, LOADS_PER_CYCLE
from convgrad.plan.window_axes import window_axes
from convgrad.problem.conv import ConvProblem, Ints
from convgrad.values import replace

SPLIT = 2.0  # loads that a vector of x counts for: most cross cache lines
MOST_ROWS = 16  # of a tile
NEAR_BYTES = 40 * 1024  # of slabs that stay in L1
FETCH = 0.35  # cycles, not hidden, for a vector of a slab that comes from L2
SLAB_BYTES = 256 * 1024
LOOP = 1.0  # cycles of a step besides
OF_GROUPS, LEAST_PAIRS = 1.3, 16  # times the cycles of groups of so many weights a tap, of vectors shorter than lines
MOST_PLANES = 16
MOST_BODIES = 4  # tiles of taps that are written out
PIECES = (*(1 << n for n in reversed(range(6, 32))), 32, 16, 12, 8, 6, 5, 4, 3, 2)  # of an axis
SHARES = (1, 2, 3, 4, 6, 8, 12, 16, 24, 32)


def window_lanes_candidates(problem: ConvProblem, machine: Machine) -> Iterator[tuple[float, WindowLanesPlan]]:
    """Predicted cycles, and a plan."""
    compute = COMPUTE[problem.dtype]
    lanes = machine.lanes_f32 * 4 // SIZES[compute]
    axes = window_axes(problem)
    if axes[-1].stride > MOST_PLANES:
        return
    if any(axis.dilation * (axis.taps - 1) > 2 * axis.windows * axis.stride for axis in axes):
        return  # mostly zeros between
    base = WindowLanesPlan(
        problem=problem, isa=machine.isa, compute=compute, lanes=lanes, axes=axes, lane_side="y", vectors=1,
        lane_groups=1, spread=False, row_channels=1, tile_taps=1, block=(1,) * len(axes), chunks=1, lane_shares=1,
        row_shares=1, x_pixel_major=False,
    )  # fmt: skip
    shape = min(_tiles(base, machine.tile_registers), key=lambda shape: shape[0], default=None)
    if shape is not None:
        _, rows, taps, vectors = shape
        plan = replace(base, row_channels=rows, tile_taps=taps, vectors=vectors)
        cycles, best = min((_shared(replace(plan, block=block)) for block in _blocks(plan)), key=lambda found: found[0])
        several = problem.groups > 1 and problem.x_channels * problem.y_channels >= LEAST_PAIRS
        yield (OF_GROUPS if several and not plan.fills_lines else 1.0) * cycles, best


def _tiles(plan: WindowLanesPlan, registers: int) -> Iterator[tuple[float, int, int, int]]:
    """Cycles per vector of windows of all of a group, channels of x, taps and channels of y, of tiles that fit."""
    taps = plan.axes[-1].taps
    for together in (t for t in range(1, taps + 1) if taps % t == 0 and taps // t <= MOST_BODIES):
        for channels in range(1, min(plan.row_count, MOST_ROWS // together) + 1):
            rows = together * channels
            most = (registers - 1) // (rows + 1)
            for vectors in range(1, min(plan.lane_count, most) + 1):
                tiles = -(-plan.row_count // channels) * -(-plan.lane_count // vectors) * plan.taps // together
                yield tiles * _step_cycles(rows, vectors), channels, together, vectors


def _step_cycles(rows: int, vectors: int) -> float:
    loads = (SPLIT * rows + vectors) / LOADS_PER_CYCLE
    return max(rows * vectors / FMA_PER_CYCLE, loads, LATENCY) + LOOP


def _blocks(plan: WindowLanesPlan) -> Iterator[Ints]:
    """Windows per axis: innermost first, an outer axis only once the inner ones are whole."""
    block = [1] * len(plan.axes)
    size = SIZES[plan.compute]
    for n in reversed(range(len(block))):
        windows = plan.axes[n].windows
        pieces = [m for m in PIECES if m < windows]
        for m in pieces:
            block[n] = -(-windows // m)
            if n == len(block) - 1 and block[n] < 16 * plan.lanes:
                continue
            grown = replace(plan, block=tuple(block))
            if size * (grown.row_slab_size + grown.lane_slab_size) > SLAB_BYTES:
                break
            yield tuple(block)
        block[n] = max(1, windows)
        grown = replace(plan, block=tuple(block))
        if size * (grown.row_slab_size + grown.lane_slab_size) > SLAB_BYTES and n < len(block) - 1:
            return
        yield tuple(block)


def _shared(plan: WindowLanesPlan) -> tuple[float, WindowLanesPlan]:
    """The cheapest chunks and shares for these blocks, and predicted cycles."""
    p, size, blocks = plan.problem, SIZES[plan.compute], prod(plan.block_grid)
    rows = plan.tile_taps * plan.row_channels
    tiles = -(-plan.row_count // plan.row_channels) * plan.lane_blocks * plan.taps // plan.tile_taps
    steps = blocks * prod(plan.outer_block) * plan.depth // plan.lanes
    sums = p.groups * tiles * rows * plan.vectors
    x_moved, y_moved = _packing(plan)
    x_lines, y_lines = (_lines(p, name) for name in "xy")
    best = float("inf"), (1, 1, 1)
    most = max(1, min(MOST_CHUNKS, blocks, 1 + CHUNK_BYTES // max(1, size * plan.sum_size)))
    slabs = _slabs_by_shares(plan)
    step = _step_cycles(rows, plan.vectors)
    for chunks, ((of_rows, of_lanes), slab) in product(
        sorted({1 << n for n in range(most.bit_length())} | {most}), slabs.items()
    ):
        tasks = chunks * p.groups * of_rows * of_lanes
        fetched = FETCH * (rows + plan.vectors) if slab > NEAR_BYTES else 0.0
        cycles = p.groups * tiles * steps * (step + fetched)
        cycles *= 1 + 0.2 * max(0.0, slab / SLAB_BYTES - 1) + left_idle(tasks, cycles)
        far = 1 + (size * plan.lanes * sums / (p.groups * of_rows * of_lanes) > SUM_BYTES)
        cycles += sums * blocks * SUM_VECTOR * far + sums * (1 + 2 * (chunks - 1)) * plan.lanes * MOVE
        cycles += x_moved * of_lanes + y_moved * of_rows + CLAIM * tasks
        cycles += (of_rows - 1) * of_lanes * x_lines + (of_lanes - 1) * of_rows * y_lines
        if cycles < best[0]:
            best = cycles, (chunks, of_rows, of_lanes)
    cycles, (chunks, of_rows, of_lanes) = best
    return cycles, replace(plan, chunks=chunks, row_shares=of_rows, lane_shares=of_lanes)


def _slabs_by_shares(plan: WindowLanesPlan) -> dict[tuple[int, int], int]:
    """Bytes of the slabs of a task, by how many tasks divide the rows and the lanes."""
    row_tiles, found = -(-plan.row_count // plan.row_channels), {}
    for of_rows, of_lanes in product(
        [n for n in SHARES if _divides(n, row_tiles)], [n for n in SHARES if _divides(n, plan.lane_blocks)]
    ):
        shared = replace(plan, row_shares=of_rows, lane_shares=of_lanes)
        found[of_rows, of_lanes] = SIZES[plan.compute] * (shared.row_slab_size + shared.lane_slab_size)
    return found


def _divides(shares: int, units: int) -> bool:
    each = -(-units // shares)
    return shares <= units and -(-units // each) == shares


def _packing(plan: WindowLanesPlan) -> tuple[float, float]:
    """Predicted cycles to pack all of x and all of y once."""
    p, blocks = plan.problem, prod(plan.block_grid)

    def cost(name: str, taken: float, run: int) -> float:
        strides = p.strides[name]
        side_by_side = abs(strides[-1]) == 1
        each = MOVE if side_by_side else TURN if p.groups == 1 and abs(strides[2]) == 1 else SCALAR
        stride = plan.axes[-1].stride if name == "x" else 1
        return taken * (each + (MOVE if stride > 1 else 0.0) + ROW * stride / max(1, run))

    of_x = blocks * prod(min(extent, axis.image) for extent, axis in zip(_met(plan), plan.axes, strict=True))
    of_y = blocks * prod(plan.block)
    return (
        cost("x", p.groups * p.x_channels * of_x, min(_met(plan)[-1], plan.axes[-1].image)),
        cost("y", p.groups * p.y_channels * of_y, plan.block[-1]),
    )


def _lines(p: ConvProblem, name: str) -> float:
    """Cycles to read a tensor that L2 does not hold, if a share of its channels takes lines of all of them."""
    size = p.bytes_of(name)
    return size / MEMORY_BYTES if size > BEYOND_L2 and abs(p.strides[name][2]) < abs(p.strides[name][-1]) else 0.0


def _met(plan: WindowLanesPlan) -> Ints:
    """Elements of x per axis that a block meets."""
    return tuple(
        axis.stride * (block - 1) + axis.dilation * (axis.taps - 1) + 1
        for axis, block in zip(plan.axes, plan.block, strict=True)
    )
