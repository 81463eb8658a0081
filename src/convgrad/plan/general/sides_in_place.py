"""Which sides of a weights gradient are read where they lie, instead of from slabs, and what that costs.

Rows are read number by number, so they need not lie in any order; a tile reads runs of windows, or of channels. Lanes
are read by vectors, of channels that lie side by side. What is read in place is not spread over the sets of a cache as
a slab is: windows a power of two apart drive each other out.
"""

from __future__ import annotations

from collections.abc import Iterator
from math import gcd, prod

from convgrad.dtypes import SIZES
from convgrad.plan.costs import LINE
from convgrad.plan.costs import WAYS as LEAST_WAYS
from convgrad.plan.general.weights import WeightsPlan
from convgrad.plan.row_tiles import step_cycles

PAGE = 4096  # bytes; what lies so far apart falls into the same set of L1
WAYS = 12  # lines of a set; of those of smaller caches LEAST_WAYS
MOST_PAGES = 40  # that a tile may read from without looking for them again
ROW_NEAR, ROW_FAR = 0.15, 1.5  # cycles, not hidden, for the numbers of a step that are in L1, or come from L2
LANE_NEAR = 0.12  # likewise for a vector of lanes
RUN = 4.0  # cycles, not hidden, to begin a run of a row's windows
CROWDED_ROW = 0.2  # likewise, for a number of one of more rows than such a set holds, and for each beyond LEAST_WAYS
PAGES_AGAIN = 2.5  # cycles of a step whose page has to be found again
WIDENED = 0.05  # cycles, not hidden, for a number of 16 bits in a vector of lanes, each time that a tile meets it
WIDENED_F16 = 0.02  # likewise of f16 in vectors shorter than lines, by an instruction that hides better
WIDENED_NARROW = 1.75  # times as much in tiles of fewer than so many vectors
HIDING_VECTORS = 3
WIDENED_ROW = 3.0  # likewise for one of a row, which is widened in all lanes
WIDENING_BYTES = 32  # of a vector: sets of shorter ones may have no instruction for it


def ways_in_place(plan: WeightsPlan) -> Iterator[tuple[bool, bool]]:
    """Whether rows are read where they lie, and lanes."""
    p = plan.problem
    reads = not _narrow(plan) or plan.lanes * SIZES[plan.compute] >= WIDENING_BYTES
    may = reads and not (plan.spread or plan.direct or plan.along_windows or plan.ON_UNITS)
    beside = plan.tile_taps > 1 and plan.axes[-1].clipped and not plan.in_segments  # taps that need zeros around x
    rows = may and plan.row_count >= plan.row_channels and not (beside and plan.rows_shift)
    lane_step = (p.y_strides if plan.rows_shift else p.x_strides)[2]
    lanes = may and plan.lane_count >= plan.width and lane_step == 1 and not (beside and not plan.rows_shift)
    yield False, False
    if rows:
        yield True, False
    if lanes:
        yield False, True
    if rows and lanes:
        yield True, True


def crowding(plan: WeightsPlan) -> float:
    """Room in L1 that lanes in place take, as a multiple of their size."""
    if not plan.lanes_in_place:
        return 1.0
    lines = -(-SIZES[plan.compute] * plan.width // LINE)
    return PAGE / LINE / _sets(_step(plan, rows=False), lines)


def places_of_rows(plan: WeightsPlan) -> int:
    """Sets of L1 that the numbers of a window, one of each channel of the row side, fall into."""
    p = plan.problem
    return _sets(SIZES[p.dtype] * abs((p.x_strides if plan.rows_shift else p.y_strides)[2]), 1)


def in_place_cycles(plan: WeightsPlan) -> float:
    """Not hidden, in all steps of all tiles."""
    windows, cycles, pages = prod(plan.block), _widening_cycles(plan), 0.0
    if plan.rows_in_place:
        step = _step(plan, rows=True)
        near = step < LINE or windows <= WAYS * _sets(step, 1) / 2
        cycles += ROW_NEAR if near else ROW_FAR
        if step < LINE:
            cycles += RUN * plan.row_channels / _run(plan)
            if plan.row_channels > WAYS * places_of_rows(plan):
                cycles += CROWDED_ROW * plan.row_channels * (plan.row_channels - LEAST_WAYS)
        pages += windows * min(step / PAGE, 1.0)
    if plan.lanes_in_place:
        cycles += LANE_NEAR * plan.vectors + _crossing_cycles(plan)
        pages += windows * min(_step(plan, rows=False) / PAGE, 1.0)
    if pages > MOST_PAGES:
        cycles += PAGES_AGAIN
    tiles = -(-plan.row_count // plan.row_channels) * plan.lane_blocks * plan.taps // plan.tile_taps * plan.bundles
    return cycles * tiles * prod(axis.windows for axis in plan.axes)


def _narrow(plan: WeightsPlan) -> bool:
    """Whether what is read in place has to be widened, each time that a tile meets it."""
    return SIZES[plan.problem.dtype] < SIZES[plan.compute]


def _met(plan: WeightsPlan) -> tuple[int, int]:
    """Numbers of rows that a step meets, and vectors of lanes."""
    taps_of_rows, taps_of_lanes = (plan.tile_taps, 1) if plan.rows_shift else (1, plan.tile_taps)
    return plan.row_channels * taps_of_rows, plan.vectors * taps_of_lanes


def _widening_cycles(plan: WeightsPlan) -> float:
    """Of a step, for numbers of 16 bits."""
    rows, columns = _met(plan) if _narrow(plan) else (0, 0)
    of_rows = WIDENED_ROW * rows if plan.rows_in_place else 0.0
    number = WIDENED_F16 if plan.problem.dtype == "f16" and not plan.fills_lines else WIDENED
    of_lanes = number * plan.lanes * columns * (1 if columns >= HIDING_VECTORS else WIDENED_NARROW)
    return of_rows + (of_lanes if plan.lanes_in_place else 0.0)


def _crossing_cycles(plan: WeightsPlan) -> float:
    """Of a step, for vectors of lanes that lie across cache lines, as those of channels that do not fill lines do."""
    p, size = plan.problem, SIZES[plan.problem.dtype]
    window = size * abs((p.y_strides if plan.rows_shift else p.x_strides)[-1])
    rows, columns = _met(plan)
    vector = LINE * size // SIZES[plan.compute]
    crossing = max(0, vector - gcd(window, LINE)) / LINE
    packed, there = (step_cycles(rows, columns, a_vector=False, crossing=share) for share in (0.0, crossing))
    return there - packed


def _run(plan: WeightsPlan) -> int:
    """Windows of a block that lie side by side on the row side."""
    p, run = plan.problem, 1
    strides = p.x_strides if plan.rows_shift else p.y_strides
    steps = [
        s * (axis.stride if plan.rows_shift else 1)
        for s, axis in zip((strides[0], *strides[3:]), plan.axes, strict=True)
    ]
    for n in reversed(range(len(plan.axes))):
        if run > 1 and abs(steps[n]) != abs(steps[-1]) * run:
            break
        run *= plan.block[n]
        if plan.block[n] < plan.axes[n].windows:
            break
    return run


def _step(plan: WeightsPlan, *, rows: bool) -> int:
    """Bytes from a window to the next, of a side."""
    p = plan.problem
    of_x = plan.rows_shift == rows
    strides = p.x_strides if of_x else p.y_strides
    return SIZES[p.dtype] * abs(strides[-1]) * (plan.axes[-1].stride if of_x else 1)


def _sets(step: int, lines: int) -> int:
    """Sets of L1, of 64, that windows `step` bytes apart fall into, each of which takes so many lines."""
    return min(PAGE // LINE, max(1, PAGE // gcd(max(LINE, step), PAGE)) * lines)
