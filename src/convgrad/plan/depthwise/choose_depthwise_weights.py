"""The plan of a weights gradient of single channels, with what they meet side by side, by predicted cycles."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import product
from math import prod
from typing import TYPE_CHECKING, TypeVar

from convgrad.dtypes import SIZES
from convgrad.plan.costs import LINE, LOOK
from convgrad.plan.depthwise.depthwise_weights import AHEAD_FROM, DepthwiseWeightsPlan, met_on, with_images_as_rows
from convgrad.plan.depthwise.plane_rows import is_large
from convgrad.plan.general.data_in_place import lines_of_l1
from convgrad.plan.general.weights import WeightsPlan
from convgrad.plan.general.window_blocks import SUM_BYTES, most_chunks, rows_of_windows
from convgrad.plan.kinds import as_kind
from convgrad.plan.machine import Machine
from convgrad.plan.shares import even_share
from convgrad.plan.steps import FMA_PER_CYCLE
from convgrad.plan.window_axes import window_axes
from convgrad.problem.conv import ConvProblem
from convgrad.values import replace

if TYPE_CHECKING:
    from convgrad.plan.by_dots.depthwise_dots import DepthwiseDotsPlan

Plan = TypeVar("Plan", bound=DepthwiseWeightsPlan)

ROWS, MORE_ROWS = 2, 4  # of windows of a tile; more where sums of all taps leave registers for them
COLUMNS, SHORT, SHORT_WINDOWS = 4, 8, 32  # windows of a row of a tile, and where rows are short
LONG_ROWS = (28, 20, 14)  # likewise, of vectors shorter than lines, where sums of other taps come and go
WIDENED_ROWS = 4  # of windows of 16 bits in a tile; half as many next to half as many registers
MOST_WIDENED = 9  # taps of such a tile
DOT_ROWS, DOT_COLUMNS = (2, 4), (4, 6, 8, 14)  # of windows of a tile of dot products
LEAST_DOT_TAPS = 20  # of a plane: fewer gain hardly anything by what is interleaved for them
TURNED, READ, LOOKED = 0.8, 0.5, 0.5  # cycles to interleave two vectors, to read one or a sum, to look at one of x or y
LEAST_ROWS, ROW_TILES = 16, 16  # of windows, of fewer of which parts are blocks of their own, of so many tiles
SPARE = 4  # registers besides sums and windows
MOST_TAPS = 49  # of a plane, that are written out; of more, those of one row
MOST_IN_ROW = 16  # sums of taps of a row together, beside windows; of fewer taps of one axis sums never leave registers
FEWEST_IN_ROW = 8  # taps of a row, of which those of other rows are too many to be written out
MOST_PIECES = 8  # tiles of a row, that are written out for what lies beside it
MOST_ZEROS = 64 * 1024  # numbers of a row that a tile may reach over
LOAD = 0.6  # cycles of a vector that begins with a cache line, and of a sum, either way
AGAIN = 2.0  # likewise, of tiles of some taps of a row, where L1 does not hold what they meet, or L2 all sums
WIDENED = 1.0  # cycles more for a vector of 16 bits, or for one number in all lanes, beside what could be packed once
SUM = 6.0  # cycles, measured, for a vector of sums of each chunk: cleared, fetched, stored and added up
LEAST_SPREAD, LEAST = 4, 2  # so many times the groups, or the channels, that there are fill a vector at least
LOOPED = 1.36  # times the cycles of tiles of a row of taps, whose sums come and go, of numbers that meet long vectors
ALIKE = 0.95  # of the cycles of tiles of one row of taps, at most
FEW_PLACES, COLLIDED = 8, 1.05  # of L1, for positions, and those cycles, at least, of such tiles of short vectors


def depthwise_weights_candidates(
    base: WeightsPlan, cycles: float, machine: Machine
) -> Iterator[tuple[float, DepthwiseWeightsPlan]]:
    """Predicted cycles and the plan; `base` has the same lanes, in tiles of one row of taps, and takes `cycles`."""
    if base.problem.rank == 1:
        if base.problem.taps[0] <= MOST_IN_ROW:
            return
        problem = with_images_as_rows(base.problem)
        base = replace(base, problem=problem, axes=window_axes(problem), block=(1, *base.block))
    plan = _tiled(base, machine) if _has_lanes(base, machine) else None
    if plan is None:
        return
    if _fits(plan):
        predicted = _cycles(plan)
        plan = _blocked(plan, predicted)
        row_by_row = plan.rows == plan.tap_rows == 1 < plan.axes[-2].taps  # whose sums come and go as often
        if row_by_row and _collides(plan):
            predicted = max(predicted, COLLIDED * cycles)
        yield (predicted if plan.in_pieces or row_by_row else min(predicted, ALIKE * cycles)), plan
        yield from _by_dots(plan, machine)


def _collides(plan: DepthwiseWeightsPlan) -> bool:
    """Whether positions share so few places of L1 that tiles read all from L2 again; of vectors shorter than lines."""
    short = not plan.fills_lines and plan.problem.dtype == plan.compute
    return short and lines_of_l1(_step(plan.problem)) <= FEW_PLACES


def _has_lanes(base: WeightsPlan, machine: Machine) -> bool:
    """Whether single channels meet numbers that lie side by side, enough of them, or whole vectors."""
    p, side = base.problem, base.lane_side
    if base.row_count != 1 or not (base.lane_count == 1 if base.spread else p.groups == 1):
        return False
    lanes, steps = _lanes(base), [p.strides[n][1] for n in "xy"]
    if set(steps if base.spread else [p.strides[side][2]]) != {1}:
        return False
    if lanes % base.lanes and machine.lanes_f32 * 4 != LINE:
        return False
    some = p.x_strides[-1] > 0 and 0 not in (*p.shapes["x"], *p.shapes["y"])
    return some and lanes * (LEAST_SPREAD if base.spread else LEAST) >= base.lanes


def _lanes(base: WeightsPlan) -> int:
    return base.problem.groups if base.spread else base.lane_count


def _tiled(base: WeightsPlan, machine: Machine) -> DepthwiseWeightsPlan | None:
    """In tiles that registers hold: of all taps, of some rows of them, or of some of a row."""
    taps, windows = base.problem.taps, base.axes[-1].windows
    looped = prod(taps[-2:]) > MOST_TAPS and taps[-2] > 1
    if looped and taps[-1] < FEWEST_IN_ROW:
        return None
    rows = 1 if looped else _rows(base, machine)
    tap_rows, tap_columns = min(taps[-2], _rows_of_taps(base, machine, rows)), taps[-1]
    columns = SHORT if windows <= SHORT_WINDOWS else COLUMNS
    if looped or tap_rows < 1:
        tap_rows, columns = 1, _longest_row(base, machine)
        rows, tap_columns = min(
            ((many, _some_of_a_row(base, machine, many)) for many in dict.fromkeys((rows, 1))),
            key=lambda tile: -(-taps[-1] // tile[1]),
        )
    elif (wider := _wider(base, machine)) >= rows:
        rows, columns, tap_rows = wider, SHORT, taps[-2]
    return as_kind(
        DepthwiseWeightsPlan, base, vectors=-(-_lanes(base) // base.lanes), lane_groups=base.problem.groups,
        row_channels=1, tile_taps=1, unroll=1, direct=True, rows=rows, columns=even_share(windows, columns),
        tap_rows=tap_rows, tap_columns=tap_columns, looped=looped,
    )  # fmt: skip


def _longest_row(base: WeightsPlan, machine: Machine) -> int:
    """Windows of a row of a tile whose sums come and go, which shorter vectors have less arithmetic to make up for.

    As far as what they meet has places in L1.
    """
    inner = base.axes[-1]
    room = lines_of_l1(_step(base.problem))
    for columns in () if machine.lanes_f32 * 4 == LINE else LONG_ROWS:
        columns = even_share(inner.windows, columns)
        if columns + inner.stride * (columns - 1) + inner.dilation * (inner.taps - 1) + 1 <= room:
            return columns
    return SHORT


def _step(p: ConvProblem) -> int:
    """Bytes from an element of a row, of x or y, to the next."""
    return max(SIZES[p.dtype] * abs(p.strides[name][-1]) for name in "xy")


def _rows_of_taps(base: WeightsPlan, machine: Machine, rows: int) -> int:
    """Whose sums fit the registers beside so many rows of windows."""
    return (machine.registers - SPARE) // base.problem.taps[-1] - rows


def _some_of_a_row(base: WeightsPlan, machine: Machine, rows: int) -> int:
    """Taps of a row, all or even shares, whose sums fit the registers beside some windows of so many rows."""
    return even_share(base.problem.taps[-1], min(MOST_IN_ROW, machine.registers - SPARE - rows * COLUMNS))


def _rows(base: WeightsPlan, machine: Machine) -> int:
    """Of windows of a tile."""
    row, taps = base.axes[-2], base.problem.taps[-2]
    streams = row.stride > 1 and is_large(base.problem, AHEAD_FROM)  # of memory: of more rows they are too many
    if row.windows >= MORE_ROWS and not streams and _rows_of_taps(base, machine, MORE_ROWS) >= taps:
        return MORE_ROWS
    one, several = (_rows_of_taps(base, machine, rows) for rows in (1, ROWS))
    return 1 if one >= taps > several or row.windows == 1 else ROWS


def _fits(plan: DepthwiseWeightsPlan) -> bool:
    tiles, first, last = plan.whole_tiles
    return plan.zeros <= MOST_ZEROS and tiles - last + first <= MOST_PIECES


def _blocked(plan: Plan, cycles: float) -> Plan:
    """With blocks of whole tiles, and chunks: as many as are worth their sums; `cycles` are those of all tiles."""
    blocked = rows_of_windows(plan)
    *outer, rows, row = blocked.block
    rows = max(plan.rows, rows // plan.rows * plan.rows)
    *lines, windows = (axis.windows for axis in plan.axes)
    if prod(lines) < LEAST_ROWS * rows:  # too few for threads to share
        row = min(row, even_share(-(-windows // plan.columns), ROW_TILES) * plan.columns)
    plan = replace(plan, block=(*outer, rows, row))
    blocked = replace(plan, chunks=most_chunks(plan))
    blocks, sums = prod(plan.block_grid), plan.sum_size / plan.lanes

    def cost(chunks: int) -> float:
        # a thread waits for the last, or largest
        late = 1 / chunks + -(-blocks // chunks) * chunks / max(1, blocks) - 1
        return cycles * late + SUM * sums * chunks

    return replace(plan, chunks=min(range(1, min(blocked.chunks, blocks) + 1), key=cost))


def _by_dots(plan: DepthwiseWeightsPlan, machine: Machine) -> Iterator[tuple[float, DepthwiseDotsPlan]]:
    """Predicted cycles and the plan of dot products, with that plan to take over."""
    p, (row, inner) = plan.problem, plan.axes[-2:]
    if p.dtype != "bf16" or not machine.has_dots or not plan.spread or p.accumulate:
        return
    if inner.stride > 1 or not LEAST_DOT_TAPS <= plan.plane_taps <= MOST_TAPS or plan.in_pieces:
        return
    from convgrad.plan.by_dots.depthwise_dots import DepthwiseDotsPlan

    base = as_kind(DepthwiseDotsPlan, plan, vectors=-(-plan.vectors // 2) * 2, fallback=plan)
    found = []
    for rows, columns, tap_rows in product(DOT_ROWS, DOT_COLUMNS, range(1, row.taps + 1)):
        columns = -(-even_share(inner.windows, columns) // 2) * 2
        if tap_rows * inner.taps + rows * columns // 2 <= machine.registers - SPARE + 1:
            dots = replace(base, rows=min(rows, row.windows), columns=columns, tap_rows=tap_rows)
            found += [(_dot_cycles(dots), dots)] if _fits(dots) else []
    if found:
        cycles, dots = min(found, key=lambda candidate: candidate[0])
        yield cycles + LOOK, _blocked(dots, cycles)


def _wider(base: WeightsPlan, machine: Machine) -> int:
    """Rows of windows of a tile of 16 bits, which widens what it reads for all of them; 0 where that would not pay."""
    p, row = base.problem, base.axes[-2]
    whole = machine.lanes_f32 * 4 == LINE
    if p.dtype not in ("bf16", "f16") or row.stride > 1 or prod(p.taps[-2:]) > MOST_WIDENED:
        return 0
    rows = WIDENED_ROWS if whole else WIDENED_ROWS // 2
    return rows if (p.taps[-2] + rows) * p.taps[-1] < machine.registers and rows * 2 <= row.windows else 0


def _cycles(plan: DepthwiseWeightsPlan) -> float:
    """Of all tiles."""
    row, inner = plan.axes[-2:]
    met = sum(last - first for first, last in map(row.met, range(row.taps))) / row.windows  # by a window
    of_tile, load, of_sum = 0.0, LOAD, LOAD
    if plan.in_pieces:
        load = LOAD if plan.x_columns + plan.columns <= lines_of_l1(_step(plan.problem)) else AGAIN
        of_sum = max(load, LOAD if SIZES[plan.compute] * plan.sum_size <= SUM_BYTES else AGAIN)
    widened = WIDENED if plan.problem.dtype != plan.compute and not plan.spread else 0.0
    for (tap_rows, many), taps in product(((1, met),) if plan.looped else plan.tap_pieces, plan.column_pieces):
        x_rows = row.stride * (plan.rows - 1) + tap_rows if row.stride < tap_rows else plan.rows * tap_rows
        between = inner.stride * (plan.columns - 1) + inner.dilation * (len(taps) - 1) + 1
        sums = tap_rows * len(taps)
        read = x_rows * min(between, plan.columns * len(taps)) + plan.rows * plan.columns
        loads = load * read + of_sum * 2 * sums
        of_tile += many * (max(sums * plan.rows * plan.columns / FMA_PER_CYCLE, loads) + widened * read)
    looped = plan.looped and not plan.spread and plan.lanes * SIZES[plan.compute] == LINE
    return _tiles(plan) * plan.vectors * of_tile * (LOOPED if looped else 1.0)


def _tiles(plan: DepthwiseWeightsPlan) -> int:
    row, inner = plan.axes[-2:]
    planes = prod(sum(last - first for first, last in map(axis.met, range(axis.taps))) for axis in plan.axes[:-2])
    return planes * -(-row.windows // plan.rows) * -(-inner.windows // plan.columns)


def _dot_cycles(plan: DepthwiseDotsPlan) -> float:
    """Likewise of pairs of windows, for every vector of sums."""
    from convgrad.plan.by_dots.depthwise_dots import pairs_met_on

    (row, inner), pairs = plan.axes[-2:], plan.rows * plan.columns // 2
    of_tile = LOOKED * plan.rows * plan.columns
    for tap_rows, many in plan.tap_pieces:
        x_rows = len(met_on(row, plan.rows, range(tap_rows)))
        turned = x_rows * len(pairs_met_on(inner, plan.columns)) + pairs
        loads = x_rows * plan.x_columns + 2 * pairs + 2 * tap_rows * inner.taps
        of_tile += many * (tap_rows * inner.taps * pairs + TURNED * turned + READ * loads)
    return _tiles(plan) * plan.vectors * of_tile / FMA_PER_CYCLE  # the measure of what f32 takes
