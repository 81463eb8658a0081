"""The plan of a weights gradient of a few channels per group, lanes along x across groups, by predicted cycles."""

from __future__ import annotations

from collections.abc import Iterator
from math import prod
from typing import TypeVar

from convgrad.dtypes import COMPUTE, SIZES
from convgrad.plan.costs import CLAIM, FAR_BYTES, LINE, LOOK, MOVE, OVERFLOW, ROW, SCALAR, SLAB_BYTES, TURN, TURN_BACK
from convgrad.plan.general.window_blocks import CHUNK_BYTES, MOST_CHUNKS, SUM_MOVE, SUM_VECTOR, left_idle
from convgrad.plan.groups.across_groups import picking
from convgrad.plan.groups.group_weights import GroupWeightsPlan
from convgrad.plan.machine import Machine
from convgrad.plan.shares import even_share
from convgrad.plan.steps import FMA_PER_CYCLE, LATENCY, LOADS_PER_CYCLE
from convgrad.plan.window_axes import window_axes
from convgrad.problem.conv import ConvProblem, Ints
from convgrad.values import replace

Plan = TypeVar("Plan", bound=GroupWeightsPlan)

MOST_PARTS = 2  # vectors of y that a vector is picked from
MOST_TILES = 32  # written out
MOST_WINDOWS = 1024  # of a block
NEAR_BYTES = 24 * 1024  # of a vector of groups of both slabs, in L1
SPARE = 4  # registers besides sums and what they share: y, where its numbers go, x, and one for LLVM to turn around
FETCH = 0.35  # cycles, not hidden, for a vector from L2
HALF = 0.5  # way from what is predicted of planes, blocks and all, to what is predicted of others: most often right
STEP = 0.5  # cycles of a step besides
PICK = 1.0  # and of numbers that are picked out of other parts of vectors


def group_weights_candidates(problem: ConvProblem, machine: Machine) -> Iterator[tuple[float, GroupWeightsPlan]]:
    """Predicted cycles, and a plan, of several groups, where vectors of x hold some of them whole."""
    compute = COMPUTE[problem.dtype]
    lanes = machine.lanes_f32 * 4 // SIZES[compute]
    c, k = problem.x_channels, problem.y_channels
    if c >= lanes or k == 0 or k > MOST_PARTS * c:
        return
    if c == 1 and (k == 1 or not _side_by_side(problem)):
        return  # nothing to pick, or planes that are turned for it
    if lanes % c and not (lanes >= 2 * c and machine.lanes_f32 * 4 == LINE and _side_by_side(problem)):
        return  # parts of vectors are moved under masks, one run at every position; a group alone fills lanes elsewhere
    axes = window_axes(problem)
    if any(axis.dilation * (axis.taps - 1) > 2 * axis.windows * axis.stride for axis in axes):
        return  # mostly zeros between
    if not prod(axis.windows for axis in axes):
        return
    base = GroupWeightsPlan(
        problem=problem, isa=machine.isa, compute=compute, lanes=lanes, axes=axes, lane_side="x", vectors=1,
        lane_groups=lanes // c, spread=True, row_channels=1, tile_taps=1, block=(1,) * len(axes), chunks=1,
        lane_shares=1, row_shares=1, x_pixel_major=False, taps_together=1, tile_rows=1,
    )  # fmt: skip
    fitting = [
        replace(base, taps_together=taps, tile_rows=rows)
        for taps in dict.fromkeys(even_share(base.taps, most) for most in range(1, machine.registers))
        for rows in dict.fromkeys(even_share(k, most) for most in range(1, k + 1))
        if taps * rows + min(taps, rows) + SPARE <= machine.registers
    ]
    best = min((plan for plan in fitting if len(plan.tiles) <= MOST_TILES), key=_window_cycles, default=None)
    if best is None:
        return
    cycles, plan = _best(best)
    yield cycles, plan
    alone = problem.batch < 2 or problem.accumulate or problem.bias_gradient
    if problem.dtype == "bf16" and machine.has_dots and not alone:
        from convgrad.plan.by_dots.group_dots import of_two_images

        cycles, by_dots = _best(of_two_images(plan))
        yield cycles + LOOK, by_dots


def _best(best: Plan) -> tuple[float, Plan]:
    """With bundles, blocks and chunks, and predicted cycles."""
    problem = best.problem
    bundled = [
        replace(best, vectors=vectors, lane_groups=vectors * best.vector_groups)
        for vectors in dict.fromkeys(
            even_share(-(-problem.groups // best.vector_groups), 1 << n) for n in range(8)
        )
    ]  # fmt: skip
    blocked = [replace(plan, block=block) for plan in bundled for block in _blocks(plan)]
    cycles, plan = min((_in_chunks(plan) for plan in blocked), key=lambda found: found[0])
    if all(abs(problem.strides[name][2]) == 1 for name in "xy"):
        cycles = min(cycles, _once(plan, MOVE))
    elif best.lanes * SIZES[best.compute] == LINE and all(abs(problem.strides[name][-1]) == 1 for name in "xy"):
        cycles = HALF * (cycles + _once(plan, TURN))
    return cycles, plan


def _side_by_side(problem: ConvProblem) -> bool:
    """Whether the channels of all groups are one run of memory, of x and of y."""
    return all(problem.strides[name][1:3] == (problem.shapes[name][2], 1) for name in "xy")


def _window_cycles(plan: GroupWeightsPlan) -> float:
    """Of all tiles at a window, for a vector of groups."""
    return sum(_step_cycles(plan, len(taps), len(rows)) for taps, rows in plan.tiles)


def _once(plan: GroupWeightsPlan, each: float) -> float:
    """Of arithmetic, and to move each number: what is predicted of other plans with lanes along channels."""
    vectors, p = -(-plan.problem.groups // plan.vector_groups), plan.problem
    windows = prod(axis.windows for axis in plan.axes)
    of_x, of_y = (positions * prod(plan.block_grid) for positions in _positions(plan))
    moved = p.groups * (of_x * p.x_channels + of_y * p.y_channels)
    return vectors * windows * _window_cycles(plan) + each * moved


def _step_cycles(plan: GroupWeightsPlan, taps: int, rows: int) -> float:
    """Shuffles take the ports of multiply-adds; what they pick from, and their indices, come from L1."""
    parts = -(-plan.row_numbers // plan.lanes)
    loads = (taps + parts + rows) / LOADS_PER_CYCLE
    apart = picking((plan.row_count, plan.lane_count), plan.lanes, SIZES[plan.compute]) > 1
    late = PICK * rows * parts if apart else 0.0
    return max((taps * rows + rows * parts) / FMA_PER_CYCLE, loads, LATENCY) + STEP + late


def _blocks(plan: GroupWeightsPlan) -> Iterator[Ints]:
    """Windows per axis: innermost first, an outer axis only once the inner ones are whole."""
    block = [1] * len(plan.axes)
    for n in reversed(range(len(block))):
        windows = plan.axes[n].windows
        for size in dict.fromkeys(even_share(windows, 1 << m) for m in range(11) if 1 << m < 2 * windows):
            if prod(block) // block[n] * size > MOST_WINDOWS:
                return
            block[n] = size
            yield tuple(block)


def _in_chunks(plan: Plan) -> tuple[float, Plan]:
    """The cheapest number of chunks, and predicted cycles."""
    size, blocks, bundles, sums = SIZES[plan.compute], prod(plan.block_grid), plan.bundles, plan.sum_size
    most = max(1, min(MOST_CHUNKS, blocks, 1 + CHUNK_BYTES // max(1, size * sums)))
    fixed = _fixed_cycles(plan)
    best = float("inf"), 1
    for chunks in sorted({1 << n for n in range(most.bit_length())} | {most}):
        tasks = chunks * bundles
        cycles = fixed * (1 + left_idle(tasks, fixed)) + sums * (SUM_MOVE * 2 * chunks + SCALAR) + CLAIM * tasks
        if cycles < best[0]:
            best = cycles, chunks
    return best[0], replace(plan, chunks=best[1])


def _fixed_cycles(plan: GroupWeightsPlan) -> float:
    """Of arithmetic and packing."""
    size, blocks, steps = SIZES[plan.compute], prod(plan.block_grid), prod(axis.windows for axis in plan.axes)
    all_vectors = -(-plan.problem.groups // plan.vector_groups)
    near = size * (plan.lane_vector + plan.row_vector) <= NEAR_BYTES
    fetched = 0.0 if near else FETCH * sum(_fresh(plan, len(taps)) for taps, _ in plan.tiles)
    slabs = size * (plan.lane_slab_size + plan.row_slab_size)
    far = OVERFLOW * max(0.0, slabs / (2 * SLAB_BYTES) - 1)
    cycles = all_vectors * steps * (_window_cycles(plan) + fetched) * (1 + far)
    cycles += all_vectors * blocks * plan.taps * plan.row_count * SUM_VECTOR
    return cycles + blocks * sum(_packing(plan, *side) for side in zip("xy", _positions(plan), strict=True))


def _positions(plan: GroupWeightsPlan) -> tuple[int, int]:
    """Of x and of y, that a block packs."""
    of_x = prod(min(extent, axis.image) for extent, axis in zip(plan.x_extent, plan.axes, strict=True))
    return of_x, prod(plan.block)


def _fresh(plan: GroupWeightsPlan, taps: int) -> float:
    """Vectors that a tile of so many taps reads at a window, but at none before it: they may come from L2."""
    inner = plan.axes[-1]
    return taps * min(1.0, inner.stride / inner.taps) + -(-plan.row_numbers // plan.lanes)


def _packing(plan: GroupWeightsPlan, tensor: str, positions: int) -> float:
    """Cycles to pack some positions of all bundles."""
    p = plan.problem
    strides, channels = p.strides[tensor], p.shapes[tensor][2]
    if abs(strides[2]) == 1:
        each = MOVE
        run = (plan.lane_groups if abs(strides[1]) == channels else 1) * channels
    else:
        each = TURN_BACK if abs(strides[-1]) == 1 and abs(strides[1]) == channels * abs(strides[2]) else SCALAR
        run = plan.block[-1] * plan.lanes  # squares, of so many rows
    far = 0.0 if plan.fetches_ahead else SIZES[p.dtype] / FAR_BYTES
    return positions * p.groups * channels * (each + far + ROW / run)
