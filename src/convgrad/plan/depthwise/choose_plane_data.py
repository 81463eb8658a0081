"""The plan of a problem that solves for X or Y with vectors along the outputs of a plane, by predicted cycles."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from math import prod

from convgrad.dtypes import COMPUTE, SIZES
from convgrad.plan.axes import GatherAxis, gather_axes
from convgrad.plan.costs import MOVE
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
    has_masks,
    plane_blocks,
    rows_met,
    slides_pay,
    tap_pieces,
)  # fmt: skip
from convgrad.plan.depthwise.plane_data import PlaneDataPlan
from convgrad.plan.general.room import planes_with_room
from convgrad.plan.machine import Machine
from convgrad.plan.steps import FMA_PER_CYCLE, LATENCY
from convgrad.problem.conv import ConvProblem, Ints
from convgrad.values import replace

MOST_ROWS = 14  # of outputs, in a register tile
VECTORS = (1, 2, 4, 8)
MOST_WRITTEN = 1024  # multiply-adds of all tiles that are written out
TILE = 6.0  # cycles of a tile besides
STORE = 1.0  # cycles of a vector of results
MOST_APART = 8  # sums of a tile whose rows read rows that a stride keeps apart: LLVM makes room for more by spilling
BUFFERED = 4.0  # cycles of a row of a tile that is written by way of a buffer
PLANE = 20.0  # cycles of a block of a plane besides
WAITING = 1.2  # cycles of tiles per predicted one, where sums wait for each other
FULL = 1.3  # likewise, where sums and weights fill the registers
PARTED = (0, 1.18), (12 * 1024 * 1024, 1.8)  # of all cycles, where vectors shorter than lines take apart what a
# stride does, or put it together, by the bytes of the larger tensor
MOST_TASKS = 48


def plane_data_candidates(problem: ConvProblem, machine: Machine) -> Iterator[tuple[float, PlaneDataPlan]]:
    """Predicted cycles and the plan of single channels, where rows of the input lie side by side in memory."""
    if problem.x_strides[-1] != 1 or problem.y_strides[-1] != 1 or 0 in problem.shapes["x"] + problem.shapes["y"]:
        return
    axes = gather_axes(problem)
    inner, phases = axes[-1], prod(len(axis.phases) for axis in axes)
    if inner.in_step > MOST_PHASES or inner.out_step > 2 or len(inner.phases) != inner.out_step:
        return
    if phases > MOST_PHASES or (len(axes) == 2 and inner.taps > MOST_PRODUCTS):
        return
    compute = COMPUTE[problem.dtype]
    lanes = machine.lanes_f32 * 4 // SIZES[compute]
    plan = PlaneDataPlan(
        problem=problem, isa=machine.isa, compute=compute, lanes=lanes, axes=axes, rows=1, vectors=1, tap_rows=1,
        slid=(), block=(*(1,) * (len(axes) - 1), lanes), run=1, masks=has_masks(machine),
    )  # fmt: skip
    found = _with_tile(plan, _tiles(axes, machine.registers, lanes, phases))
    if found is None:
        return
    unit = (*(1,) * (len(axes) - 2), found.rows, found.width)
    blocks = plane_blocks([axis.count for axis in axes], unit)
    plans = (one for one in (replace(found, block=block) for block in blocks) if one.slab_bytes <= MOST_SLAB_BYTES)
    best = min(
        ((_cycles(plan, machine.registers), plan) for plan in plans), key=lambda candidate: candidate[0], default=None
    )
    if best is not None:
        yield best[0], _shared(best[1])


def _with_tile(plan: PlaneDataPlan, tiles: Iterator[tuple[int, int, int]]) -> PlaneDataPlan | None:
    """The plan with the tile, and as many places slid, that are fastest in L1."""
    row, inner = plan.axes[-2], plan.axes[-1]
    found = (plan.slab.place(at) for phase in inner.phases for at, _ in plan.offsets(inner, phase))
    places = sorted({place % plan.lanes for place in found} - {0})
    pays = slides_pay(SIZES[plan.compute] * plan.lanes) and row.in_step == 1
    slid = [tuple(places[:n]) for n in range(1 + len(places) * pays)]
    best, least = None, float("inf")
    for rows, vectors, tap_rows in tiles:
        tile = replace(plan, rows=rows, vectors=vectors, tap_rows=tap_rows)
        many = -(-inner.count // tile.width) * -(-row.count // rows)
        for choice, cycles in zip(slid, _tile_cycles(tile, slid), strict=True):
            if many * cycles < least:
                best, least = replace(tile, slid=choice), many * cycles
    return best


def _tiles(
    axes: tuple[GatherAxis, ...], registers: int, lanes: int, phases: int
) -> Iterator[tuple[int, int, int]]:  # fmt: skip
    """Rows, vectors and rows of taps whose sums and weights fit the registers."""
    row, inner = axes[-2], axes[-1]
    taps = max(1, row.taps if len(axes) > 2 else 1)
    for rows in even_rows(row.count, MOST_ROWS) if len(axes) > 2 else (1,):
        for vectors in VECTORS:
            if vectors > 1 and (vectors - 1) * lanes >= inner.count:
                break
            sums = rows * vectors * len(inner.phases)
            for tap_rows in range(1, taps + 1):
                if row.in_step > 1 and sums > MOST_APART:
                    break
                numbers = tap_rows * max(1, inner.taps)
                written = rows * vectors * numbers * -(-taps // tap_rows)
                fits = sums + numbers + 3 <= registers or (tap_rows == 1 and sums <= registers // 2)
                if fits and rows * vectors * numbers <= MOST_PRODUCTS and written * phases <= MOST_WRITTEN:
                    yield rows, vectors, tap_rows


def _tile_cycles(plan: PlaneDataPlan, choices: Sequence[Ints]) -> list[float]:
    """Of a register tile of all phases, by places that are slid."""
    row, inner, slab = plan.axes[-2], plan.axes[-1], plan.slab
    crossing = crossing_cycles(SIZES[plan.compute] * plan.lanes)
    places = [[slab.place(at) % plan.lanes for at, _ in plan.offsets(inner, phase)] for phase in inner.phases]
    pieces = []  # how often, rows of taps and vectors of the input that they meet
    for outer in plan.outer_phases:
        deep = prod(phase.taps for phase in outer[1:-1])
        offsets = [at for at, _ in plan.offsets(row, outer[-1])] if len(plan.axes) > 2 else [0]
        for tap_rows, many in tap_pieces(len(offsets), plan.tap_rows):
            met = rows_met(row.in_step, plan.rows, tuple(at - offsets[0] for at in offsets[:tap_rows]))
            pieces.append((deep * many, tap_rows, met * plan.vectors))
    results = len(plan.outer_phases) * plan.rows * plan.vectors * inner.out_step
    besides = len(plan.outer_phases) * TILE + STORE * results
    besides += 0 if plan.direct else BUFFERED * plan.rows * len(plan.outer_phases) + STORE * results
    found = []
    for choice in choices:
        cycles = besides
        for of_phase in places:
            slid = sum(place in choice for place in of_phase)
            crossed = sum(place != 0 for place in of_phase) - slid
            for many, tap_rows, read in pieces:
                numbers = tap_rows * len(of_phase)
                sums = (numbers * plan.rows * plan.vectors + read * slid) / FMA_PER_CYCLE
                loads = WHOLE * (read * (len(of_phase) - crossed) + numbers) + crossing * read * crossed
                cycles += many * max(sums, loads, LATENCY * numbers)
        found.append(cycles)
    return found


def _cycles(plan: PlaneDataPlan, registers: int) -> float:
    """Of all planes."""
    held = plan.rows * plan.vectors * plan.axes[-1].out_step + plan.tap_rows * plan.axes[-1].taps
    p, inner, slab = plan.problem, plan.axes[-1], plan.slab
    columns = -(-inner.count // plan.width)
    rows = -(-plan.axes[-2].count // plan.rows) if len(plan.axes) > 2 else 1
    tiles = columns * rows * prod(axis.count for axis in plan.axes[1:-2])
    (of_tile,) = _tile_cycles(plan, [plan.slid])
    arithmetic = (
        (FULL if held + 4 >= registers else 1.0)
        * WAITING
        * tiles
        * of_tile
        * (1 + (FAR if plan.slab_bytes > SLAB_BYTES else 0))
    )
    blocks = prod(plan.grid[1:-1])
    taken_apart = MOVE if inner.in_step > 1 else 0.0
    copied = blocks * (PLANE + slab.rows * (ROW + (MOVE + taken_apart) * slab.held[-1]))
    return _parted(plan) * p.groups * p.batch * (arithmetic + copied)


def _parted(plan: PlaneDataPlan) -> float:
    inner, p = plan.axes[-1], plan.problem
    if plan.masks or inner.in_step == inner.out_step == 1:
        return 1.0
    size = max(p.bytes_of("x"), p.bytes_of("y"))
    return next(times for least, times in reversed(PARTED) if size >= least)


def _shared(plan: PlaneDataPlan) -> PlaneDataPlan:
    """With runs of groups: some tasks for every thread, else as long as can be."""
    groups, others = plan.problem.groups, prod(plan.grid[:-1])
    runs = max(1, min(groups, -(-MOST_TASKS // others)))
    return replace(plan, run=min(-(-groups // runs), planes_with_room(SIZES[plan.compute] * plan.taps)))
