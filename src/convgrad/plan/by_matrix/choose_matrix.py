"""Plans for matrix units, with the cycles that they are predicted to take."""

from __future__ import annotations

from collections.abc import Iterator
from math import prod
from typing import TypeVar

from convgrad.dtypes import SIZES
from convgrad.plan.axes import GatherAxis, gather_axes
from convgrad.plan.by_dots.choose_dots import dot_data_candidates, paired_outputs_candidates
from convgrad.plan.by_dots.dot_depthwise import DotDepthwisePlan
from convgrad.plan.by_dots.dot_pointwise import DotPointwisePlan
from convgrad.plan.by_dots.dot_row_products import DotRowProductsPlan
from convgrad.plan.by_dots.paired_outputs import PairedPlan
from convgrad.plan.by_matrix.across_rows import AcrossRowsPlan
from convgrad.plan.by_matrix.choose_across_rows import across_rows_candidates
from convgrad.plan.by_matrix.choose_tile_by_tile import (
    MOST_PIECES,
    gathered_rows_candidates,
    gathered_run_candidates,
)
from convgrad.plan.by_matrix.gathered_weights import GatheredWeightsPlan
from convgrad.plan.by_matrix.matrix import COLUMNS, DEPTH, ROWS, MatrixDataPlan
from convgrad.plan.by_matrix.matrix_blocks import (
    LOAD_ROWS,
    NEAR_ROW,
    TILE_OVERHEAD,
    VERDICT,
    best_window_blocks,
    gathering,
    step_cycles,
)
from convgrad.plan.by_matrix.matrix_weights import MatrixWeightsPlan
from convgrad.plan.by_matrix.shifted_pairs import ShiftedPairsPlan, shifts_pairs
from convgrad.plan.by_matrix.window_weights import ROWS_TOGETHER, WindowWeightsPlan
from convgrad.plan.costs import MOVE, SPLIT, TURN
from convgrad.plan.general.block_costs import NEAR_BYTES, PANEL_BYTES
from convgrad.plan.general.blocks import best_blocks
from convgrad.plan.general.data import KEPT_BYTES, DataPlan
from convgrad.plan.general.data_in_place import writes_in_place
from convgrad.plan.kinds import as_kind
from convgrad.plan.machine import Machine
from convgrad.plan.shares import cuts, even_share
from convgrad.plan.units import Products, loads_of, needs_watch, products_on
from convgrad.plan.window_axes import window_axes
from convgrad.problem.conv import ConvProblem, Ints
from convgrad.values import frozen, replace

OnUnit = TypeVar("OnUnit", bound=MatrixDataPlan | PairedPlan)
FAR_ROW = 3.5  # cycles for a row of weights from beyond L2
PIECES = 20000.0  # cycles of VERDICT, and of borders and ends of all that is cut into pieces
SHARED = 1.1  # times the cycles: others on a core slow tiles, and what comes from L2, more than they do vectors
RESULT = 0.3  # cycles for a result that goes to memory and back before it is moved
PARTS = 1.2  # cycles more for a result that tiles store, channels last, if outputs begin anywhere in lines beyond L2
NEAR_WEIGHT, FAR_WEIGHT = 0.2, 0.4  # cycles more than vectors take to pack a weight, for every piece but the first
FAR_WEIGHTS = 1024 * 1024  # bytes of weights from which they are
FAR_PANEL = 1024 * 1024  # bytes of weights of one block of tiles that no L2 keeps
MOST_OF_WINDOWS = 16  # channels of x whose taps share blocks of tiles
WINDOWS_FIRST, WINDOWS_LAST = 1.05, 1.4  # times the cycles: of such, channels of y being first or last
COPIED = 0.5  # of what copies for taps are taken to cost, more, against plans that do without
STRIDED = 1.08  # times the cycles of plans that deal columns of x to planes, against those that move whole columns
MOST_PLANES = 16  # strides up to which x is worth packing in planes


@frozen
class MatrixTileShape:
    """Outputs per axis, rows of a tile register, channels of a block, and predicted cycles for one group."""

    tile: Ints
    rows: int
    width: int
    cycles: float


def matrix_data_candidates(problem: ConvProblem, machine: Machine) -> Iterator[tuple[float, MatrixDataPlan]]:
    """Predicted cycles, and a plan of one tile per task, if a matrix unit can compute the problem at all."""
    found = products_on(problem, machine) if machine.has_tiles else None
    if found is None:
        return
    pieces, products = found
    watch = needs_watch(problem.dtype, pieces)
    if watch and problem.accumulate:
        return  # what was added could not be taken back
    axes = gather_axes(problem)
    given, solved = problem.given, problem.solved
    channels_in, channels_out = problem.shapes[given][2], problem.shapes[solved][2]
    phases = prod(len(axis.phases) for axis in axes)
    taps = prod(problem.taps) / phases
    in_strides, out_strides = problem.strides[given], problem.strides[solved]
    shape = best_matrix_tile(axes, channels_out, channels_in, taps, products)
    channels_first = abs(in_strides[2]) > abs(in_strides[-1])
    out_channels_first = abs(out_strides[2]) > abs(out_strides[-1])
    padded = -(-max(1, channels_in) // DEPTH) * DEPTH
    most = max(DEPTH, PANEL_BYTES // round(max(1, 2 * pieces * taps * shape.width)))
    i_block = -(-even_share(padded, most) // DEPTH) * DEPTH
    plan = MatrixDataPlan(
        problem=problem, isa=machine.isa, compute="f32", lanes=COLUMNS, axes=axes, block=shape.tile, tile=shape.tile,
        width=shape.width, lane_groups=1, spread=False, pixels=False, i_block=i_block, blocks_per_task=1,
        pixel_major=True, rows=shape.rows, pieces=pieces, products=products, watch=watch,
    )  # fmt: skip
    packing = prod(problem.shapes[given]) * ((TURN if channels_first else MOVE) + SPLIT * pieces)
    cost = prod(problem.shapes[solved]) * (RESULT + (TURN if out_channels_first else MOVE))
    parts = problem.out_dtype == "f32" and not out_channels_first and out_strides[-1] % COLUMNS > 0
    if parts and problem.bytes_of(solved) > KEPT_BYTES:
        cost += PARTS * prod(problem.shapes[solved])
    cost += (PIECES if problem.dtype == "f32" else VERDICT) if watch else 0
    far = SIZES[problem.dtype] * prod(problem.shapes["w"]) > FAR_WEIGHTS
    cost += prod(problem.shapes["w"]) * (pieces - 1) * (FAR_WEIGHT if far else NEAR_WEIGHT)
    dense, packing = packing, packing * padded / max(1, channels_in)  # with the zeros that fill up lines
    yield _felt(problem, problem.groups * shape.cycles + cost + packing), plan
    for cycles, flat in across_rows_candidates(plan, packing):
        yield _felt(problem, cycles + cost + packing), flat
    near = RESULT * prod(problem.shapes[solved])  # results that are moved while L1 holds them
    for cycles, windows in gathered_run_candidates(plan, dense):
        yield _felt(problem, cycles + cost - near + dense), windows
    for cycles, rows in gathered_rows_candidates(plan):
        yield _felt(problem, cycles + cost - near), rows


def _felt(problem: ConvProblem, cycles: float) -> float:
    """Cycles on a core that others have a part of, against those of vectors, which are many more for 16 bits."""
    return cycles * (SHARED if problem.dtype == "f32" else 1.0)


def best_matrix_tile(
    axes: tuple[GatherAxis, ...], channels: int, channels_in: int, taps: float, products: Products
) -> MatrixTileShape:
    """The cheapest block of one or two tiles of outputs by one or two of channels, for sums over taps and input.

    `taps` are those of a phase, on average; which of them a tile meets is counted.
    """
    a_loads, b_loads = loads_of(products)
    pieces = 1 + max(piece for piece, _ in products)
    deep = -(-channels_in // DEPTH)
    best: MatrixTileShape | None = None
    *outer, inner = axes
    for lane_tiles in (1, 2) if channels > COLUMNS else (1,):
        blocks = -(-channels // (lane_tiles * COLUMNS))
        deepest = max(2 * pieces * taps * DEPTH * lane_tiles * COLUMNS, PANEL_BYTES)  # more is not packed at a time
        panel = min(deepest, 2 * pieces * deep * taps * DEPTH * lane_tiles * COLUMNS)
        b_row = 1 / LOAD_ROWS if panel < NEAR_BYTES else NEAR_ROW if panel < FAR_PANEL else FAR_ROW
        for rows in cuts(inner.count, ROWS) or [1]:
            shapes = [(*[1] * len(outer), rows), (*[1] * len(outer), 2 * rows)]
            if outer:
                shapes.append((*[1] * (len(outer) - 1), 2, rows))
            for tile in shapes:
                tiles = prod(axis.tiles(size) for axis, size in zip(axes, tile, strict=True))
                visits = prod(axis.visits(size) for axis, size in zip(outer, tile, strict=False))
                visits *= inner.visits(tile[-1])
                row_tiles = prod(tile) // rows
                loads = a_loads * row_tiles * rows / LOAD_ROWS + b_loads * lane_tiles * ROWS * b_row
                step = step_cycles(len(products) * row_tiles * lane_tiles, loads)
                cycles = blocks * (visits * deep * step + tiles * TILE_OVERHEAD)
                if best is None or cycles < best.cycles:
                    best = MatrixTileShape(tile, rows, lane_tiles * COLUMNS, cycles)
    assert best is not None
    return best


def data_candidates_on_units(
    problem: ConvProblem, machine: Machine
) -> list[tuple[float, MatrixDataPlan | PairedPlan | DotPointwisePlan]]:  # fmt: skip
    """Likewise, by matrix tiles and by dot products."""
    along_outputs = paired_outputs_candidates(problem, machine)
    return [*matrix_data_candidates(problem, machine), *dot_data_candidates(problem, machine), *along_outputs]


def finished_on_units(plan: OnUnit, cycles: float, fallback: DataPlan) -> OnUnit:
    """With blocks, written in place where that can be, and with what computes it where pieces cannot."""
    if isinstance(plan, DotDepthwisePlan | DotPointwisePlan | DotRowProductsPlan):  # which have both
        return replace(plan, fallback=fallback)
    if not isinstance(plan, AcrossRowsPlan):
        plan = replace(plan, i_block=plan.run_asked_for or plan.i_block)
        plan = best_blocks(replace(plan, blocks_per_task=plan.lane_blocks), cycles)
    plan = replace(plan, fallback=fallback) if plan.watch else plan
    together = isinstance(plan, AcrossRowsPlan)
    return plan if together else replace(plan, writes_in_place=writes_in_place(plan))


# --- weights


def matrix_weights_candidates(problem: ConvProblem, machine: Machine) -> Iterator[tuple[float, MatrixWeightsPlan]]:
    """Predicted cycles, and a plan, if a matrix unit can compute the problem at all."""
    found = products_on(problem, machine) if machine.has_tiles else None
    axes = window_axes(problem)
    if found is None or max(axis.stride for axis in axes[-2:]) > MOST_PLANES:
        return
    pieces, products = found
    watch = needs_watch(problem.dtype, pieces)
    c, k = problem.x_channels, problem.y_channels

    def blocked(kind: type[MatrixWeightsPlan]) -> tuple[float, MatrixWeightsPlan]:
        side = kind.LANES_OF
        rows, lanes = (c, k) if side == "y" else (k, c)
        plan = kind(
            problem=problem, isa=machine.isa, compute="f32", lanes=COLUMNS, axes=axes, lane_side=side,
            vectors=2 if lanes > COLUMNS else 1, lane_groups=1, spread=False,
            row_channels=(2 if rows > ROWS else 1) * ROWS, tile_taps=1, block=(1,) * len(axes), chunks=1,
            lane_shares=1, row_shares=1, x_pixel_major=False, pieces=pieces, products=products, watch=watch,
        )  # fmt: skip
        return best_window_blocks(plan)

    flat, gathered = (blocked(kind) for kind in (MatrixWeightsPlan, GatheredWeightsPlan))
    if shifts_pairs(problem, pieces):
        cycles, plan = blocked(ShiftedPairsPlan)
        dealt = STRIDED if problem.stride[-1] > 1 else 1.0
        counted = dealt * min(flat[0], gathered[0] + COPIED * gathering(gathered[1]))
        yield _felt(problem, _credited(cycles, min(flat[0], gathered[0]), counted)), plan
    for cycles, plan in (flat, gathered):
        yield _felt(problem, cycles), plan
    if 0 < c <= MOST_OF_WINDOWS and prod(problem.taps) > 1 and pieces <= MOST_PIECES:
        plan = as_kind(WindowWeightsPlan, plan, row_channels=ROWS_TOGETHER, row_shares=1, chunks=1, lane_shares=1)
        cycles, plan = best_window_blocks(plan)
        first = abs(problem.y_strides[2]) > abs(problem.y_strides[-1])
        yield _felt(problem, cycles) * (WINDOWS_FIRST if first else WINDOWS_LAST), plan


def _credited(cycles: float, others: float, counted: float) -> float:
    """What a plan of shifted pairs counts, with the cycles of others on tiles, and what those count against it.

    Where it outdoes them, it is no worse than they are, and half of what it gains is believed: against vectors, which
    do not pack, multiply and store alike, that is not known as well.
    """
    return min(others, (cycles + others) / 2) if cycles < counted else cycles
