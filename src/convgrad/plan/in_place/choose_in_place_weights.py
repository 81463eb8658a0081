"""Plans that read planes of x and y as they lie, by predicted cycles: tiles, blocks of rows, and chunks."""

from __future__ import annotations

from collections.abc import Iterator
from math import prod
from typing import TypeVar

from convgrad.dtypes import COMPUTE, SIZES
from convgrad.plan.costs import CLAIM, LINE, LOOK, MOVE
from convgrad.plan.few_channels.choose_window_lanes import MOST_BODIES, MOST_ROWS, SLAB_BYTES
from convgrad.plan.general.window_blocks import CHUNK_BYTES, MOST_CHUNKS, SUM_VECTOR, left_idle
from convgrad.plan.in_place.in_place_weights import InPlaceWeightsPlan, alike
from convgrad.plan.in_place.row_weights import RowWeightsPlan, rows_in_memory, written_out
from convgrad.plan.kinds import as_kind
from convgrad.plan.machine import Machine
from convgrad.plan.steps import FMA_PER_CYCLE, LATENCY
from convgrad.plan.window_axes import window_axes
from convgrad.problem.conv import ConvProblem, Ints
from convgrad.values import replace

Plan = TypeVar("Plan", bound=InPlaceWeightsPlan)
Rows = TypeVar("Rows", bound=RowWeightsPlan)

MOVED, STILL = 1.7, 1.0  # cycles for a vector of the side that moves, across lines, and of the other
READ, CROSSING = 2.0, 1.7  # cycles for a vector of x that is read to pick from, and for one of y of rows of any length
PICK = 2.5  # cycles of the ports that multiply, for what a tap of a row meets, where phases are picked once
STREAM = 0.5  # cycles of a step for each channel of x
STEP, MASK = 0.3, 0.5  # cycles of a step besides, and for each mask that it fetches
IN_PLACE = 0.8  # of the cycles predicted of steps: copies, which others make, take longer than is predicted of them
BY_DOTS = 0.7  # of those of dot products, but for single channels: what others are predicted to take is too little
TAIL, ROW_TAIL = 80.0, 20.0  # cycles of a tile besides, with a last, masked vector of its own, and without
PICKED_TAIL = 60.0  # cycles of a tile besides, where phases are picked once
PICKED_BYTES = 96 * 1024  # of the rows that such a tile reads of a block, which are as good as in L1
FAR = 0.27  # cycles, not hidden, for a number of large tensors
FAR_BYTES = 8 * 1024 * 1024  # of both, that caches do not hold by themselves
NEAR_BYTES = 24 * 1024  # of the rows that the tiles of a block of channels read together, in L1
LOOKED = 2.2  # cycles to look at a vector
FETCH = 0.35  # cycles, not hidden, for a vector from L2
MOST_WRITTEN = 1024  # multiply-adds of a row, written out
MOST_PIECES = 64  # blocks of rows of an image
CHUNKS = (1, 2, 4, 8, MOST_CHUNKS)


def in_place_candidates(problem: ConvProblem, machine: Machine) -> Iterator[tuple[float, InPlaceWeightsPlan]]:
    """Predicted cycles, and a plan, where rows lie side by side."""
    compute = COMPUTE[problem.dtype]
    lanes = machine.lanes_f32 * 4 // SIZES[compute]
    weights = problem.x_channels * problem.y_channels * prod(problem.taps)
    masked = machine.lanes_f32 * 4 == LINE  # as instruction sets with masks are
    if not masked or not weights or not (alike(problem) or rows_in_memory(problem)):
        return
    axes = window_axes(problem)
    plan = InPlaceWeightsPlan(
        problem=problem, isa=machine.isa, compute=compute, lanes=lanes, axes=axes, lane_side="y", vectors=1,
        lane_groups=1, spread=False, row_channels=1, tile_taps=1, block=(1,) * len(axes), chunks=1, lane_shares=1,
        row_shares=1, x_pixel_major=False, direct=True,
    )  # fmt: skip
    if not prod(axis.windows for axis in axes):
        return
    if not alike(problem):
        yield from _by_rows(plan, machine)
        return
    if axes[-1].dilation * (axes[-1].taps - 1) >= min(plan.row_slab[1], plan.lane_channel):
        return  # places of two channels would be one
    for found in _best(plan, machine):
        yield found
        if _may_be_dots(problem, machine):
            from convgrad.plan.by_dots.in_place_dots import InPlaceDotsPlan

            for cycles, by_dots in _best(as_kind(InPlaceDotsPlan, plan, fallback=found[1]), machine):
                less = 1.0 if problem.x_channels == problem.y_channels == 1 else BY_DOTS
                yield less * cycles + _looking(by_dots), by_dots


def _may_be_dots(problem: ConvProblem, machine: Machine) -> bool:
    return problem.dtype == "bf16" and machine.has_dots and not problem.accumulate


def _best(plan: Plan, machine: Machine) -> Iterator[tuple[float, Plan]]:
    """Of its kind, with tiles, blocks and chunks."""
    tiles = [tile for side in "yx" for tile in _tiles(replace(plan, lane_side=side), machine.registers)]
    best = min(tiles, key=lambda tile: _tile_cycles(tile) * prod(axis.windows for axis in plan.axes), default=None)
    if best is not None:
        blocked = [replace(best, block=_block(best), chunks=chunks) for chunks in CHUNKS]
        yield min(((_cycles(one), one) for one in blocked if _few(one)), key=lambda found: found[0])


def _looking(plan: InPlaceWeightsPlan | RowWeightsPlan) -> float:
    """At all numbers; at those of x once for every tap of outer axes."""
    p = plan.problem
    x, y = prod(p.shapes["x"]) * prod(axis.taps for axis in plan.outer), prod(p.shapes["y"])
    return LOOKED * (x + y) / plan.window_lanes + LOOK


def _tiles(plan: Plan, registers: int) -> Iterator[Plan]:
    """Tiles that fit, of as many channels as divide them: there is no room for others."""
    taps = plan.axes[-1].taps
    for together in (t for t in range(1, taps + 1) if taps % t == 0 and taps // t <= MOST_BODIES):
        for channels in (c for c in range(1, MOST_ROWS // together + 1) if plan.row_count % c == 0):
            rows = together * channels
            for vectors in (v for v in range(1, registers // rows + 1) if plan.lane_count % v == 0):
                if rows * vectors + min(rows, vectors) < registers:
                    yield replace(plan, tile_taps=together, row_channels=channels, vectors=vectors)


def _step_cycles(plan: InPlaceWeightsPlan) -> float:
    rows = plan.tile_taps * plan.row_channels
    loads = MOVED * rows + STILL * plan.vectors
    masks = plan.tile_taps * sum(plan.shift(-1, r) != 0 for r in range(plan.axes[-1].taps)) / plan.axes[-1].taps
    return max(rows * plan.vectors / FMA_PER_CYCLE, loads, LATENCY) + STEP + MASK * masks


def _tile_cycles(plan: InPlaceWeightsPlan) -> float:
    """Of all tiles of a group, per vector of windows."""
    tiles = plan.row_count // plan.row_channels * plan.lane_blocks * plan.taps // plan.tile_taps
    return tiles * _step_cycles(plan)


def _block(plan: InPlaceWeightsPlan) -> Ints:
    """Rows that stay in L1 with all channels of the moving side; of an only axis, whole vectors."""
    ones = (1,) * len(plan.outer)
    number = SIZES[plan.compute] * (plan.row_count + plan.vectors)
    if len(plan.flat) == 1:
        windows = -(-plan.pitch // plan.window_lanes)
        most = max(1, NEAR_BYTES // (number * plan.window_lanes))
        return (*ones, -(-windows // -(-windows // most)) * plan.window_lanes)
    rows = plan.flat[0].windows
    least = -(-8 * plan.window_lanes // plan.pitch)
    most = max(least, NEAR_BYTES // (number * plan.pitch))
    return (*ones, -(-rows // -(-rows // most)), plan.pitch)


def _few(plan: InPlaceWeightsPlan) -> bool:
    """Whether chunks are no more than blocks, and their sums little to keep."""
    sums = SIZES[plan.compute] * plan.sum_size * (plan.chunks - 1)
    return plan.chunks <= prod(plan.block_grid) and sums <= CHUNK_BYTES


def _cycles(plan: InPlaceWeightsPlan) -> float:
    p, blocks = plan.problem, prod(plan.block_grid)
    rows = plan.tile_taps * plan.row_channels
    tiles = p.groups * (plan.row_count // plan.row_channels) * plan.lane_blocks * plan.taps // plan.tile_taps
    windows = prod(plan.block[len(plan.outer) :])
    read = SIZES[plan.compute] * (plan.row_count + plan.vectors) * windows
    step = _step_cycles(plan) + (FETCH * (rows + plan.vectors) if read > 2 * NEAR_BYTES else 0.0)
    total = p.batch * prod(axis.windows for axis in plan.axes[1:])
    cycles = tiles * (total / plan.window_lanes * step * IN_PLACE + blocks * TAIL)
    tasks = plan.chunks * p.groups
    cycles *= 1 + left_idle(tasks, cycles)
    sums = tiles * rows * plan.vectors
    return cycles + sums * (blocks * SUM_VECTOR + (1 + 2 * (plan.chunks - 1)) * plan.lanes * MOVE) + CLAIM * tasks


# --- rows that are not alike


def _by_rows(plan: InPlaceWeightsPlan, machine: Machine) -> Iterator[tuple[float, RowWeightsPlan]]:
    """Predicted cycles, and a plan whose steps are rows of windows."""
    for found in _best_of_rows(as_kind(RowWeightsPlan, plan), machine):
        yield found
        if _may_be_dots(plan.problem, machine):
            from convgrad.plan.by_dots.in_place_dots import RowDotsPlan

            for cycles, by_dots in _best_of_rows(as_kind(RowDotsPlan, plan, fallback=found[1]), machine):
                yield cycles + _looking(by_dots), by_dots


def _best_of_rows(base: Rows, machine: Machine) -> Iterator[tuple[float, Rows]]:
    """Of its kind, with tiles, blocks and chunks."""
    tiles = [one for one in _tiles(base, machine.registers - 4) if written_out(one) <= MOST_WRITTEN]  # what picks, too
    best = min(tiles, key=_row_tile_cycles, default=None)
    if best is None:
        return
    rows = best.axes[-2].windows
    ones = (1,) * len(best.outer)
    blocked = [
        replace(best, block=(*ones, block, best.pitch), chunks=chunks)
        for block in dict.fromkeys(-(-rows // pieces) for pieces in range(1, MOST_PIECES + 1))
        for chunks in CHUNKS
    ]
    yield min(((_row_cycles(one), one) for one in blocked if _few(one)), key=lambda found: found[0])


def _row_step_cycles(plan: RowWeightsPlan) -> float:
    """Of a vector of windows."""
    rows, stride = plan.tile_taps * plan.row_channels, plan.axes[-1].stride
    picked = PICK * rows if plan.picks_once else rows * (stride - 1)
    products = (rows * plan.vectors + picked) / FMA_PER_CYCLE
    read = READ * (plan.row_channels if plan.picks_once else rows) * stride
    if plan.ON_UNITS:
        from convgrad.plan.by_dots.in_place_dots import RowDotsPlan

        assert isinstance(plan, RowDotsPlan)
        read = CROSSING * plan.row_channels * plan.runs_of_row * stride
    loads = read + (CROSSING if plan.pitch % plan.lanes else STILL) * plan.vectors
    return max(products, loads, LATENCY) + STEP + STREAM * plan.row_channels


def _row_tile_cycles(plan: RowWeightsPlan) -> float:
    tiles = plan.row_count // plan.row_channels * plan.lane_blocks * plan.taps // plan.tile_taps
    return tiles * _row_step_cycles(plan)


def _row_cycles(plan: RowWeightsPlan) -> float:
    p, blocks, rows = plan.problem, prod(plan.block_grid), plan.tile_taps * plan.row_channels
    tiles = p.groups * (plan.row_count // plan.row_channels) * plan.lane_blocks * plan.taps // plan.tile_taps
    of_row = plan.row_count * prod(axis.stride for axis in plan.flat) + plan.vectors
    read = SIZES[plan.compute] * of_row * prod(plan.block)
    near = 2 * NEAR_BYTES
    if plan.picks_once:  # so few rows at a time that what they come from is hidden
        of_row, near = plan.row_channels * prod(axis.stride for axis in plan.flat) + plan.vectors, PICKED_BYTES
        read = SIZES[plan.compute] * of_row * prod(plan.block)
    step = _row_step_cycles(plan)
    far = FETCH if read <= SLAB_BYTES else 4 * FETCH  # beyond a task's share of L2
    step += far * (rows * plan.axes[-1].stride + plan.vectors) if read > near else 0.0
    steps = p.batch * prod(axis.windows for axis in plan.axes[1:-1]) * plan.vectors_of_row
    cycles = tiles * (steps * step + blocks * (PICKED_TAIL if plan.picks_once else ROW_TAIL))
    if plan.picks_once and p.bytes_of("x") + p.bytes_of("y") > FAR_BYTES:
        cycles += FAR * (prod(p.shapes["x"]) + prod(p.shapes["y"]))
    tasks = plan.chunks * p.groups
    cycles *= 1 + left_idle(tasks, cycles)
    sums = tiles * rows * plan.vectors
    return cycles + sums * (blocks * SUM_VECTOR + (1 + 2 * (plan.chunks - 1)) * plan.lanes * MOVE) + CLAIM * tasks
