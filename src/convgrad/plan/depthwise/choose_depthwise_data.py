"""Plans of depthwise problems with tiles of several rows, by predicted cycles."""

from __future__ import annotations

from collections.abc import Iterator
from math import prod
from typing import TYPE_CHECKING, TypeVar

from convgrad.dtypes import SIZES
from convgrad.plan.costs import LINE
from convgrad.plan.depthwise.depthwise_data import DepthwiseDataPlan
from convgrad.plan.depthwise.plane_rows import is_narrow
from convgrad.plan.general.data import KEPT_BYTES, DataPlan
from convgrad.plan.general.data_in_place import lines_of_l1
from convgrad.plan.kinds import as_kind
from convgrad.plan.machine import Machine
from convgrad.plan.shares import even_share
from convgrad.plan.steps import FMA_PER_CYCLE, TILE_OVERHEAD
from convgrad.problem.conv import ConvProblem
from convgrad.values import replace

if TYPE_CHECKING:
    from convgrad.plan.depthwise.copied_rows import CopiedRowsPlan

Depthwise = TypeVar("Depthwise", bound=DepthwiseDataPlan)

MOST_ROWS = 14  # of a tile
SPARE = 5  # one register of so many is not for sums and taps, or a widened row: what is read next waits there
MOST_PRODUCTS = 700  # multiply-adds of a tile that are written out, and of all tiles
MOST_WRITTEN = 2100
MOST_BODIES = 4
MOST_STREAMS = 13  # rows of the input that strides keep apart, side by side: a core follows no more of them
SHORT_STREAMS = 9  # likewise, where vectors shorter than lines wait for memory, in tiles of one column
FAR_PLANES = 4 * 1024 * 1024  # bytes of the input, from which on rows of several planes count, of two rows at least
LOAD = 0.7  # cycles for a vector of the input, or of weights
ACROSS_LINES = 1.2  # of those, for one that does not begin with a cache line
APART = 4.0  # cycles, not hidden, for a line of the input that L2 does not hold, for each column of the tile but one
FAR_BYTES, LESS_APART = 2 * KEPT_BYTES, 0.5  # of both tensors, up to which most of them is there, and those cycles then
NARROW = 0.25  # of that, with strides and 16 bits, half a line for a whole one: more instructions hide it
BY_DOTS = 0.05  # of that, by dot products
FAR_ROW = 16 * 1024 * 1024  # bytes of a row of both tensors that comes from memory anew for every block of lanes
FETCH = 0.5  # cycles, not hidden, for a vector of the input from L2
WIDEN, SPILL = 1.0, 1.0  # cycles to widen a vector of 16 bits, and for one of a row that registers do not hold
COUNTED = 0.8  # of cycles that leave out less than those of vectors do, with which they are compared
LEAST_PAIRED, LEAST_APART = 2, 5  # taps of a row that dot products are for, and of one with gaps between them
MOST_PAIRED_BODIES = 5
STORE = 1.0  # to begin and to store a sum
COLLIDE = 2.0  # and for one whose line takes the place of another of the tile
CROWDED = 4  # lines for each that has room, from more than which on that is twice as much, where lines come from far
SHORT_WEIGHT = 0.5  # of vectors shorter than lines, in products: for a vector of weights
SHORT_TILE, SHORT_COLLIDE = 30.0, 2.5  # for a tile, and for each of its lines that has no place in L1
SHORT_SPILL = 2.0  # for each sum from half of the registers on, at every row of the input
SHORT_APART = 0.4  # for a sum that L2 does not hold, for each column of the tile but one
SHORT_FAR, SHORT_FETCH = 0.9, 0.4  # likewise, where more bytes than these are moved, and then for a vector of the input
SHORT_FAR_BYTES = 15 * 512 * 1024
TASKS = 32  # of a block of rows each
LEAST_TASKS, FEW_ROWS = 16, 4  # for which groups are divided, and rows from which on that is worse than fewer rows
NEAR_BLOCKS = 8  # of groups, that should stay together
FEW_PLACES, MORE_PLACES, MANY_TAPS = 8, 16, 20  # of L1, for positions that are copied, and for those of many taps
COPIED_TILE = 2, 3  # rows and columns, of which products hide how long sums take, and registers hold what they meet
COPIED_TILES, COPIED_BLOCKS, COPIED_BYTES = 7, 8, 128 * 1024  # of rows and of groups, at most, that a task copies
ALIKE = 0.99  # of the cycles of tiles of one row, which wait for memory as long


def depthwise_data_candidates(
    base: DataPlan, cycles: float, machine: Machine
) -> Iterator[tuple[float, DepthwiseDataPlan]]:
    """Predicted cycles and the plan, where tiles can be written out; `base` has tiles of one row and takes `cycles`.

    The same by dot products, where there are any.
    """
    p, axes = base.problem, base.axes
    if p.groups < base.lanes or any(not axis.taps or not axis.count for axis in axes):
        return
    if p.groups > base.lanes and _moved_bytes(p) > FAR_ROW * p.batch * prod(axis.count for axis in axes[1:-1]):
        return
    plain = as_kind(
        DepthwiseDataPlan, base, width=base.lanes, lane_groups=base.lanes, unroll=0, packs_weights=False,
        reads_in_place=True, writes_in_place=True,
    )  # fmt: skip
    best = _best_tile(plain, machine)
    if best is None:
        return
    own = _cycles(best, machine.registers)
    counted = min(own, ALIKE * cycles)
    yield counted, _shared(best)
    if _is_worth_copying(plain):
        from convgrad.plan.depthwise.copied_rows import CopiedRowsPlan

        yield ALIKE * counted, _copied(as_kind(CopiedRowsPlan, plain))
    inner = axes[-1]
    least = LEAST_PAIRED if abs(inner.offset_step) == 1 else LEAST_APART
    if machine.has_dots and p.dtype == "bf16" and inner.taps >= least and p.groups > base.lanes:
        from convgrad.plan.by_dots.dot_depthwise import DotDepthwisePlan

        width = 2 * base.lanes
        by_dots = _best_tile(as_kind(DotDepthwisePlan, plain, width=width, lane_groups=min(width, p.groups)), machine)
        if by_dots is not None:
            less = _cycles(by_dots, machine.registers) / own  # what is counted of one has to hold for the other
            yield less * counted, _shared(by_dots)


def _best_tile(plain: Depthwise, machine: Machine) -> Depthwise | None:
    """With the tile of the fewest cycles, if one can be written out."""
    axes = plain.axes
    ones = (1,) * (len(axes) - 2)
    found: list[Depthwise] = []
    images = prod(axis.count for axis in axes[:-2])
    many = plain.width // plain.lanes
    shares = max(1, plain.lane_blocks * many // NEAR_BLOCKS)
    phases, others = (len(axis.phases) for axis in axes[-2:])
    taps, other_taps = (sum(phase.taps for phase in axis.phases) for axis in axes[-2:])
    outer = prod(len(axis.phases) for axis in axes[:-2])
    waits = not plain.fills_lines and axes[-2].in_step > 1 < axes[-2].count and _is_far(plain)
    planes, most_streams = _streams(plain, SHORT_STREAMS if waits else MOST_STREAMS)
    few = 1 if plain.past_caches else FEW_ROWS
    most_bodies = MOST_PAIRED_BODIES if plain.ON_UNITS else MOST_BODIES
    for rows in range(1, min(MOST_ROWS // phases, axes[-2].count) + 1):
        if rows > few and images * -(-axes[-2].count // rows) * shares < LEAST_TASKS:
            break
        if axes[-2].in_step > 1 and planes * (axes[-2].in_step * (rows - 1) + axes[-2].taps) > most_streams:
            break
        room = machine.registers - machine.registers // SPARE - (other_taps if plain.fills_lines else 0)
        most = room // (rows * phases * others * many)
        alone = rows == many == 1 < axes[-1].count  # whose multiply-adds wait for each other, or meet weights once
        single = waits and (rows > 1 or planes > 1)  # column, whose rows come one after the other
        for columns in range(1 + alone, min(1 if single else most, axes[-1].count) + 1):
            plan = replace(plain, tile=(*ones, rows, columns), block=(*ones, rows, axes[-1].count))
            products = rows * taps * plan.row_products
            if products > MOST_PRODUCTS:
                break
            if plan.body_count <= most_bodies and outer * plan.body_count * products <= MOST_WRITTEN:
                found.append(plan)
    return min(found, key=lambda plan: _cycles(plan, machine.registers)) if found else None


def _is_worth_copying(plan: DepthwiseDataPlan) -> bool:
    """Whether positions of the input, of one image each, share so few places of L1 that rows are copied first.

    Of vectors shorter than lines, and of f32; not with strides, which leave little arithmetic to a number. Nobody has
    measured others.
    """
    p, (places, _) = plan.problem, _room(plan)
    plain = len(plan.axes) == 3 and p.dtype == plan.compute == "f32" and set(p.stride) == {1} != set(p.taps)
    plain = plain and prod(COPIED_TILE) * prod(p.taps) <= MOST_PRODUCTS
    few = places <= FEW_PLACES or (places <= MORE_PLACES and prod(p.taps) >= MANY_TAPS)
    return plain and few and not plan.fills_lines


def _copied(plan: CopiedRowsPlan) -> CopiedRowsPlan:
    """With a tile, and the rows and channels of a task, of which the copy stays in L2."""
    rows, columns = (min(size, axis.count) for size, axis in zip(COPIED_TILE, plan.axes[-2:], strict=True))
    plan = replace(plan, tile=(1, rows, columns), blocks_per_task=even_share(plan.lane_blocks, COPIED_BLOCKS))
    tiles = min(COPIED_TILES, -(-plan.rows.count // rows))
    blocks = [replace(plan, block=(1, n * rows, plan.columns.count)) for n in range(tiles, 0, -1)]
    near = (block for block in blocks if SIZES[plan.problem.dtype] * block.copied_size <= COPIED_BYTES)
    return next(near, blocks[-1])


def _is_far(plan: DepthwiseDataPlan) -> bool:
    """Whether tiles of vectors shorter than lines wait for memory."""
    return _moved_bytes(plan.problem) > SHORT_FAR_BYTES


def _streams(plain: DepthwiseDataPlan, most: int) -> tuple[int, int]:
    """Planes whose rows strides keep apart, and how many such rows a tile may have: no fewer than for one output."""
    rows = plain.axes[-2]
    far = plain.problem.bytes_of(plain.problem.given) > FAR_PLANES
    planes = prod(axis.taps for axis in plain.axes[:-2]) if far else 1
    return planes, max(most, planes * (rows.taps + (rows.in_step if planes > 1 else 0)))


def _cycles(plan: DepthwiseDataPlan, registers: int) -> float:
    """Of all tiles."""
    if plan.ON_UNITS:
        from convgrad.plan.by_dots.dot_depthwise import DotDepthwisePlan, cycles_by_dots

        assert isinstance(plan, DotDepthwisePlan)
        return COUNTED * cycles_by_dots(plan) / FMA_PER_CYCLE + _far(plan)
    if not plan.fills_lines:
        return _cycles_of_short(plan, registers)
    outer, rows = plan.axes[:-2], plan.tile[-2]
    read = len(plan.column_steps())  # columns of the input
    again = (1.0 if plan.whole_vectors else ACROSS_LINES) * read * plan.reads_again
    loads = LOAD * (again + plan.row_weights)
    pairs = rows * sum(phase.taps for phase in plan.rows.phases)
    at_a_tap = pairs * max(plan.row_products / FMA_PER_CYCLE, loads)
    at_a_tap += FETCH * len(plan.row_steps) * read + _widening(plan, read, registers)
    visits = prod(axis.visits(1) for axis in outer)
    each = TILE_OVERHEAD + STORE * plan.sums + _colliding(plan)
    sums = prod(axis.count for axis in outer) * each
    return plan.lane_blocks * plan.tiles * (visits * at_a_tap + sums) + _far(plan)


def _cycles_of_short(plan: DepthwiseDataPlan, registers: int) -> float:
    """Likewise of vectors shorter than lines: what they multiply, and what products do not hide.

    That is what each row meets of weights, what registers do not hold of sums, and the input where it comes from far.
    """
    outer, rows = prod(axis.count for axis in plan.axes[:-2]), plan.tile[-2]
    visits, of_row, of_column = (
        prod(axis.visits(1) / axis.count for axis in axes) for axes in (plan.axes[:-2], [plan.rows], [plan.columns])
    )
    at_a_tap = plan.tile[-1] * of_column + SHORT_WEIGHT * plan.row_weights
    met = SHORT_SPILL * max(0, plan.sums - registers // 2 + 1)  # for every row of the input
    apart = SHORT_APART * (_moved_bytes(plan.problem) > KEPT_BYTES)
    if _is_far(plan):
        met += SHORT_FETCH * of_row * of_column * len(plan.column_steps()) / (plan.rows.taps * plan.row_weights)
        apart = SHORT_FAR * plan.rows.in_step
    each = SHORT_TILE + apart * plan.sums * (plan.tile[-1] - 1)
    room, lines = _room(plan)
    each += SHORT_COLLIDE * max(0, lines - room)
    at_all = rows * of_row * at_a_tap + len(plan.row_steps) * met
    return plan.lane_blocks * plan.tiles * outer * (visits * at_all + each)


def _far(plan: DepthwiseDataPlan) -> float:
    """Cycles of all tiles in which they wait for lines that L2 does not hold."""
    p, (rows, columns), inner = plan.problem, plan.tile[-2:], plan.columns
    size = _moved_bytes(p)
    if size <= (FAR_BYTES if plan.ON_UNITS else KEPT_BYTES):  # found out about along a row
        return 0.0
    lines = rows * plan.rows.in_step * columns * inner.in_step * (1 if plan.whole_vectors else 2)
    narrow = is_narrow(p) and inner.in_step > 1
    less = BY_DOTS if plan.ON_UNITS else NARROW if narrow else 1.0
    each = (APART if size > FAR_BYTES else LESS_APART) * less * lines * (columns - 1)
    return plan.lane_blocks * plan.tiles * prod(axis.count for axis in plan.axes[:-2]) * each


def _moved_bytes(p: ConvProblem) -> int:
    """Of what is read and what is written."""
    return SIZES[p.dtype] * (prod(p.shapes["x"]) + prod(p.shapes["y"]))


def _widening(plan: DepthwiseDataPlan, read: int, registers: int) -> float:
    """Cycles of a tile that widens so many vectors of each row of the input, and keeps them for its rows."""
    if not is_narrow(plan.problem):
        return 0.0
    kept = any(len(met) > 1 for _, met in plan.row_steps)
    spilled = max(0, plan.sums + read - (registers - registers // SPARE)) if kept else 0
    return len(plan.row_steps) * (WIDEN * read + SPILL * spilled)


def _colliding(plan: DepthwiseDataPlan) -> float:
    """Cycles of a tile whose lines push each other out of L1, since positions a power of two apart share its sets."""
    room, lines = _room(plan)
    if lines <= room:
        return 0.0
    return COLLIDE * plan.sums * (2 if lines > CROWDED * room and _moved_bytes(plan.problem) > FAR_BYTES else 1)


def _room(plan: DepthwiseDataPlan) -> tuple[int, int]:
    """Lines of L1 that what a tile reads and writes may have, as positions lie, and how many these are."""
    room = lines_of_l1(SIZES[plan.problem.dtype] * plan.result_strides[0][-1][0])
    return room, plan.sums + len(plan.row_steps) * len(plan.column_steps())


def _shared(plan: Depthwise) -> Depthwise:
    """With rows enough for some tasks, or all groups divided among them."""
    outer = prod(axis.count for axis in plan.axes[:-2])
    rows, count = plan.tile[-2], plan.rows.count
    tiles = -(-count // rows)
    wanted = -(-TASKS // outer)
    block = min(tiles, -(-tiles // min(tiles, wanted))) * rows
    shared = replace(plan, block=(*plan.block[:-2], block, plan.block[-1]), blocks_per_task=plan.lane_blocks)
    pieces = -(-LEAST_TASKS // prod(shared.grid))
    whole = 1 if plan.fills_lines else -(-LINE // (SIZES[plan.problem.dtype] * plan.width))  # blocks that are lines
    return replace(shared, blocks_per_task=even_share(plan.lane_blocks, max(whole, plan.lane_blocks // pieces)))
