"""The plan of a problem that solves for W with vectors along the windows of a row, by predicted cycles."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from math import prod

from convgrad.dtypes import COMPUTE, SIZES
from convgrad.plan.costs import LINE, MOVE
from convgrad.plan.depthwise.plane_costs import (
    FAR,
    MOST_PHASES,
    MOST_PRODUCTS,
    MOST_SLAB_BYTES,
    ROW,
    SLAB_BYTES,
    WHOLE,
    crossing_cycles,
    even_rows,
    plane_blocks,
    rows_met,
    slides_pay,
)
from convgrad.plan.depthwise.plane_weights import PlaneWeightsPlan
from convgrad.plan.general.room import planes_with_room
from convgrad.plan.machine import Machine
from convgrad.plan.steps import FMA_PER_CYCLE, LATENCY
from convgrad.plan.window_axes import WindowAxis, window_axes
from convgrad.problem.conv import ConvProblem, Ints
from convgrad.values import replace

MOST_ROWS = 14  # of windows, written out together
STEP = 2.0  # cycles of a turn of the loop around a tile
PLANE = 30.0  # cycles of a plane besides, for every tile
SUM = 1.0  # cycles for a vector of sums that a plane fetches and stores
ROW_WIDENED, SHORT_WIDENED = 24.0, 6.0  # cycles of a row of 16-bit numbers besides, that is taken apart into phases
LEAST_TASKS, MOST_TASKS = 16, 32
MOST_CHUNKS = 16
LINE_CYCLES = 8.0  # of arithmetic for every line that is fetched meanwhile: with less, loads wait


def plane_weights_candidates(problem: ConvProblem, machine: Machine) -> Iterator[tuple[float, PlaneWeightsPlan]]:
    """Predicted cycles and the plan of single channels, where rows lie side by side in memory."""
    if not problem.x_strides[-1] == problem.y_strides[-1] == 1:
        return
    if problem.stride[-1] > MOST_PHASES or 0 in problem.shapes["x"] + problem.shapes["y"]:
        return
    compute = COMPUTE[problem.dtype]
    lanes = machine.lanes_f32 * 4 // SIZES[compute]
    axes = window_axes(problem)
    plan = PlaneWeightsPlan(
        problem=problem, isa=machine.isa, compute=compute, lanes=lanes, axes=axes, tap_rows=1,
        tap_columns=axes[-1].taps, rows=1, slid=(), block=(1,) * (len(axes) - 1) + (lanes,), chunks=1, run=1,
    )  # fmt: skip
    plan = _with_tile(plan, machine.registers)
    unit = (*(1,) * (len(axes) - 2), plan.rows, lanes)
    blocks = plane_blocks([axis.windows for axis in axes], unit)
    plans = (one for one in (replace(plan, block=block) for block in blocks) if one.slab_bytes <= MOST_SLAB_BYTES)
    best = min(((_cycles(plan), plan) for plan in plans), key=lambda candidate: candidate[0], default=None)
    if best is not None:
        yield best[0], _shared(best[1])


def _with_tile(plan: PlaneWeightsPlan, registers: int) -> PlaneWeightsPlan:
    """The plan with the tile, and as many places slid, that are fastest in L1."""
    row = plan.axes[-2]
    places = sorted({plan.place(tap) % plan.lanes for tap in range(plan.axes[-1].taps)} - {0})
    slid = [tuple(places[:n]) for n in range(1 + len(places) * slides_pay(SIZES[plan.compute] * plan.lanes))]
    best, least = plan, float("inf")
    for tap_rows, tap_columns, rows in _tiles(plan.axes, registers):
        row_blocks = -(-row.windows // rows)
        tile = replace(plan, tap_rows=tap_rows, tap_columns=tap_columns, rows=rows)
        for choice, step in zip(slid, _step_cycles(tile, slid), strict=True):
            if row_blocks * step < least:
                best, least = replace(tile, slid=choice), row_blocks * step
    return best


def _tiles(axes: tuple[WindowAxis, ...], registers: int) -> Iterator[tuple[int, int, int]]:
    """Rows and columns of taps, and rows of windows, whose sums and numbers fit the registers."""
    *_, row, innermost = axes
    taps, inner = row.taps, innermost.taps
    most = registers - 4
    columns = inner if inner <= most else -(-inner // -(-inner // most))
    for tap_rows in range(1, (min(taps, most // columns) if columns == inner else 1) + 1):
        count = tap_rows * columns
        for rows in even_rows(row.windows, max(1, min(MOST_ROWS, registers - count - 2))):
            if rows == 1 or (len(axes) > 2 and rows * count <= MOST_PRODUCTS):
                yield tap_rows, columns, rows


def _step_cycles(plan: PlaneWeightsPlan, choices: Sequence[Ints]) -> list[float]:
    """Of all tiles, for so many rows of windows and one vector of each, by places that are slid."""
    row, inner, columns = plan.axes[-2], plan.axes[-1], plan.tap_columns
    crossing = crossing_cycles(SIZES[plan.compute] * plan.lanes)
    places = [plan.place(tap) % plan.lanes for tap in range(inner.taps)]
    parts = [places[left : left + columns] for left in range(0, inner.taps, columns)]
    met = {rows: rows_met(row.stride, plan.rows, tuple(row.dilation * r for r in range(rows)))
           for rows, _ in plan.tap_pieces}  # fmt: skip
    found = []
    for choice in choices:
        cycles = 0.0
        for part in parts:
            slid = sum(place in choice for place in part)
            crossed = sum(place != 0 for place in part) - slid
            for tap_rows, many in plan.tap_pieces:
                rows = met[tap_rows]
                sums = (tap_rows * len(part) * plan.rows + rows * slid) / FMA_PER_CYCLE
                loads = WHOLE * (rows * (len(part) - crossed) + plan.rows) + crossing * rows * crossed
                cycles += many * (max(sums, loads, LATENCY * plan.rows) + STEP)
        found.append(cycles)
    return found


def _arithmetic(plan: PlaneWeightsPlan) -> float:
    """Cycles of all tiles of a plane."""
    row, inner = plan.axes[-2], plan.axes[-1]
    vectors = -(-inner.windows // plan.lanes)
    row_blocks = -(-row.windows // plan.rows) if len(plan.axes) > 2 else 1  # else rows are images
    outer_taps, outer_windows = prod(axis.taps for axis in plan.axes[:-2]), prod(a.windows for a in plan.axes[1:-2])
    far = FAR if plan.slab_bytes > SLAB_BYTES else 0.0
    (step,) = _step_cycles(plan, [plan.slid])
    return step * outer_taps * outer_windows * row_blocks * vectors * (1 + far)


def _cycles(plan: PlaneWeightsPlan) -> float:
    """Of all planes."""
    p = plan.problem
    inner, outer_taps = plan.axes[-1], prod(axis.taps for axis in plan.axes[:-2])
    blocks = prod(plan.block_grid[1:])
    arithmetic = _arithmetic(plan)
    tiles = sum(many for _, many in plan.tap_pieces) * -(-inner.taps // plan.tap_columns)
    besides = blocks * (tiles * outer_taps * PLANE + SUM * plan.taps)
    x = plan.x_slab
    widening = SHORT_WIDENED if SIZES[plan.compute] * plan.lanes < LINE else ROW_WIDENED
    widened = widening if inner.stride > 1 and p.dtype != plan.compute else 0.0
    x_moved = blocks * x.rows * (ROW + widened + MOVE * x.held[-1])
    y_rows = prod(axis.windows for axis in plan.axes[1:-1])
    y_moved = y_rows * (ROW + MOVE * inner.windows)
    return p.groups * p.batch * (arithmetic + besides + x_moved + y_moved)


def _shared(plan: PlaneWeightsPlan) -> PlaneWeightsPlan:
    """With runs of groups, and chunks where there are few groups."""
    groups, blocks = plan.problem.groups, prod(plan.block_grid)
    size = SIZES[plan.compute] * plan.lanes * plan.taps
    run = max(1, min(groups // MOST_TASKS, planes_with_room(size)))
    runs = -(-groups // run)
    chunks = max(1, min(MOST_CHUNKS, blocks, -(-LEAST_TASKS // runs))) if runs < LEAST_TASKS else 1
    ahead = plan.planes_follow and _arithmetic(plan) > LINE_CYCLES * sum(plan.plane_lines) * prod(plan.block_grid[1:])
    return replace(plan, run=run, chunks=chunks, fetches_ahead=ahead)
