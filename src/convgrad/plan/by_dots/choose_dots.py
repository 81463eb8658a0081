"""Plans for dot products of pairs of bf16, with the cycles that they are predicted to take."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from math import prod

from convgrad.dtypes import SIZES
from convgrad.plan.axes import GatherAxis, gather_axes
from convgrad.plan.by_dots.choose_dot_pointwise import dot_pointwise_candidates
from convgrad.plan.by_dots.dot_pointwise import DotPointwisePlan
from convgrad.plan.by_dots.dots import LANES, PAIR, DotDataPlan, DotWeightsPlan, depth_of, taps_together
from convgrad.plan.by_dots.dots_in_place import in_place
from convgrad.plan.by_dots.dots_unpacked import unpacked
from convgrad.plan.by_dots.paired_outputs import PairedFoldedPlan, PairedOutputsPlan, PairedPlan, paired
from convgrad.plan.by_dots.turned_dots import TurnedDotPlan
from convgrad.plan.by_matrix.matrix_blocks import PIECE, best_window_blocks
from convgrad.plan.by_matrix.runs import MOST_CHANNELS, DotRunPlan, all_in_a_row
from convgrad.plan.costs import LOOK, MOVE, SPLIT, TURN, TURN_BACK
from convgrad.plan.data_candidates import WORTH_IMAGES, DataCandidates, whole_blocks
from convgrad.plan.few_channels.folded import FoldedPlan
from convgrad.plan.general.block_costs import PANEL_BYTES, in_planes
from convgrad.plan.general.blocks import best_blocks, packing_cost
from convgrad.plan.general.data_in_place import rows_of_l1
from convgrad.plan.groups.turned_data import axes_of_few_taps, can_turn
from convgrad.plan.kinds import as_kind
from convgrad.plan.machine import Machine
from convgrad.plan.shares import cuts, even_share
from convgrad.plan.steps import dot_cycles, most_rows
from convgrad.plan.tiles import TileShape, best_tile, best_turned_tile, bursts_of
from convgrad.plan.units import Products, needs_watch, products_on
from convgrad.plan.unrolling import unrolled_axes
from convgrad.plan.window_axes import window_axes
from convgrad.problem.conv import ConvProblem, Unknown
from convgrad.values import replace

Predicted = tuple[float, DotDataPlan]
MOST_PLANES = 16  # strides up to which x is worth packing in planes
MOST_VECTORS = 4  # side by side in a tile
MOST_SOLVED = 15  # channels that are solved for, beside which vectors along outputs are looked at; half vectors hold 8
ROUNDED = 0.5  # cycles of a weight that is rounded as it is packed, beyond a plain copy
ROUNDED_PAIR = 0.2  # likewise of one that lies beside its partner
MOST_OF_ROWS = 1.1  # of the cycles of tiles of neighbours in an image, that those of rows may take
PACKED_MORE = 1.3  # times the cycles, packing included, that tiles of several images may be predicted to take
ODD_BYTES = 2**21  # of words of an odd number of channels, which are packed all at once
PARTS = 0.03  # cycles of a number of weights of whose line another block of lanes has the rest
HALF_LINE = 0.65  # cycles of an output whose part of a line, of bf16, is written alone
IN_PLACE = 1.03  # of the cycles of tiles that read in place: rows that they read push each other out of L1
BEGINS, WIDEST = 4.0, 8  # cycles, measured, to begin a position of those, for each block of lanes; their vectors
AT_ONCE = 1.06  # of the cycles of words where all phases are computed at once: they take longer than predicted
MOST_TURNED = (
    8  # channels of a group that are worth turning: 16 leave room for one position, which loads as it multiplies
)
TIE = 0.87  # of the cycles of weights: where vectors are predicted to take hardly less, they take longer
HALF_EMPTY = 1.4  # likewise of groups that leave half of the lanes empty: plans across groups fill them
PARTED = 1.2  # cycles of a number of x: 0.9 to 1.35 of 3 to 8 channels, 0.1 of 16
TIE_IN_ROWS = 0.9  # likewise of X and Y with channels first, against vectors of f32 along rows
RUNS = 0.9  # of the cycles of taps and channels as one run, with strides: others, counted alike, take longer there
SEVERAL = 1.25  # of the cycles of a tile of several taps: less than that is no reason for one


def dot_data_candidates(
    problem: ConvProblem, machine: Machine
) -> Iterator[tuple[float, DotDataPlan | DotPointwisePlan]]:  # fmt: skip
    """Predicted cycles, and a plan of one tile per task, if numbers are bf16 or may be taken for such."""
    products = _products(problem, machine)
    if products is None:
        return
    axes = gather_axes(problem)
    given, solved = problem.given, problem.solved
    channels_in, channels_out = problem.shapes[given][2], problem.shapes[solved][2]
    taps = prod(problem.taps) / prod(len(axis.phases) for axis in axes)
    pairs = max(1, -(-channels_in // PAIR))
    two = 2 if channels_in > 1 else 1  # at a time
    depth = depth_of(channels_in)
    padded = -(-max(1, channels_in) // depth) * depth
    cost = _moving(problem, given, solved, two) + LOOK * needs_watch(problem.dtype, 1)
    if problem.dtype == "f32":
        beside = problem.w_strides[2 if problem.unknown is Unknown.Y else 1] == 1
        cost += (ROUNDED_PAIR if beside else ROUNDED) * prod(problem.shapes["w"])

    def planned(shape: TileShape) -> Predicted:
        most = max(depth, PANEL_BYTES // round(max(1, PAIR * taps * shape.width)))
        plan = DotDataPlan(
            problem=problem, isa=machine.isa, compute="f32", lanes=LANES, axes=axes, block=shape.tile, tile=shape.tile,
            width=shape.width, lane_groups=1, spread=False, pixels=False,
            i_block=-(-even_share(padded, most) // depth) * depth, blocks_per_task=1, pixel_major=True, rows=1,
            pieces=1, products=products, watch=needs_watch(problem.dtype, 1),
        )  # fmt: skip
        return problem.groups * shape.cycles + cost, replace(plan, blocks_per_task=plan.lane_blocks)

    halves = _halves(problem, axes)
    tiles = _best_tiles(axes, (pairs, channels_out), machine, parts=_parts(problem), halves=halves)
    cycles, plan = _cheapest(map(planned, tiles))
    yield cycles, plan
    yield from unpacked(plan, cycles)
    if taps == 1:
        shape = best_tile(
            axes, (pairs, channels_out), LANES, machine.registers, first=len(axes) - 1, inside=True, dots=True,
            most=rows_of_l1(plan), halves=halves, bursts=bursts_of(problem), begins=BEGINS, widest=WIDEST,
        )  # fmt: skip
        row = IN_PLACE * problem.groups * shape.cycles + LOOK
        yield from ((row, found) for found in in_place(planned(shape)[1]))
        yield from dot_pointwise_candidates(plan, cycles, machine)
    if plan.solves_y and 0 < channels_in <= MOST_CHANNELS and all_in_a_row(plan):
        yield _along_runs(plan, machine, cost, halves)
    few = channels_in <= MOST_TURNED and can_turn(channels_in, channels_out, LANES)
    if few and problem.groups * channels_in >= PAIR * LANES:
        yield _across_groups(plan, machine)


def paired_outputs_candidates(
    problem: ConvProblem, machine: Machine
) -> Iterator[tuple[float, PairedPlan]]:  # fmt: skip
    """Likewise, with vectors along outputs, of plans that are complete but for their blocks."""
    given, solved = problem.given, problem.solved
    channels_in, channels_out = problem.shapes[given][2], problem.shapes[solved][2]
    few = channels_in > 1 and 0 < channels_out <= MOST_SOLVED and channels_out != LANES // 2
    if not few or _products(problem, machine) is None:
        return
    watch = needs_watch(problem.dtype, 1)
    for cycles, words in DataCandidates(paired(problem), machine).packed_along_outputs(words=True):
        kind: type[PairedPlan] = PairedFoldedPlan if isinstance(words, FoldedPlan) else PairedOutputsPlan
        plan = as_kind(kind, words, numbers=problem, watch=watch)
        if plan.odd:
            plan = replace(plan, i_block=plan.in_channels)
        plan = whole_blocks(plan)
        if plan.odd and SIZES[plan.compute] * (plan.slab_size + plan.panel) > ODD_BYTES:
            continue
        cycles *= AT_ONCE if kind is PairedFoldedPlan else 1.0
        yield cycles + LOOK * watch, replace(plan, unroll=unrolled_axes(plan, machine))


def _best_tiles(
    axes: tuple[GatherAxis, ...], channels: tuple[float, int], machine: Machine, *, parts: float = 0.0,
    halves: float = 0.0,
) -> Iterator[TileShape]:  # fmt: skip
    """Of neighbours of a row, in an image, and across images."""
    for first in (len(axes) - 1, 1, 0):
        yield best_tile(axes, channels, LANES, machine.registers, first=first, dots=True, parts=parts, halves=halves)


def _cheapest(candidates: Iterable[Predicted]) -> Predicted:
    """Of tiles of an image, and of several: a task that holds several images has less of each, and packs more.

    Packing is predicted dearer than it is, and hides no difference of tiles that is not far larger.
    """
    row, image, images = candidates
    image = _of_rows(row, image)
    if images[0] >= image[0]:
        return image
    one, several = (cycles + packing_cost(plan, cycles) for cycles, plan in (image, images))
    return image if several > (1.0 if images[0] > WORTH_IMAGES * image[0] else PACKED_MORE) * one else images


def _of_rows(row: Predicted, image: Predicted) -> Predicted:
    """The tile of neighbours of a row instead, if that of an image leaves parts of rows, which take long to turn."""
    blocked = best_blocks(image[1], image[0])
    parts = blocked.block[-1] < min(LANES, blocked.axes[-1].count) and in_planes(blocked, given=False)
    if not parts or row[0] > MOST_OF_ROWS * image[0]:
        return image
    short, long = (cycles + packing_cost(plan, cycles) for cycles, plan in (image, row))
    return row if long < short else image


def _parts(problem: ConvProblem) -> float:
    """Cycles to pack the weights of a group by parts of lines, if lanes lie side by side in them, beyond whole ones."""
    side_by_side = problem.dtype == "bf16" and problem.w_strides[1 if problem.unknown is Unknown.Y else 2] == 1
    return PARTS * prod(problem.shapes["w"][1:]) if side_by_side else 0.0


def _halves(problem: ConvProblem, axes: tuple[GatherAxis, ...]) -> float:
    """Cycles of an output of which parts of lines are written, if channels are whole vectors, side by side in results.

    Results of several phases are put together elsewhere.
    """
    p, channels = problem, problem.shapes[problem.solved][2]
    side_by_side = p.out_dtype == "bf16" and p.strides[p.solved][2] == 1 and channels % LANES == 0
    return HALF_LINE if side_by_side and all(len(axis.phases) == 1 for axis in axes) else 0.0


def _along_runs(base: DotDataPlan, machine: Machine, cost: float, halves: float) -> Predicted:
    """With the taps of the innermost axis, and the few channels of each, as one run."""
    pairs = -(-base.axes[-1].taps * base.in_channels // PAIR) / base.axes[-1].taps
    strided = base.problem.groups == 1 and max(base.problem.stride) > 1

    def planned(shape: TileShape) -> tuple[float, DotRunPlan]:
        plan = as_kind(
            DotRunPlan, base, block=shape.tile, tile=shape.tile, width=shape.width, i_block=base.in_channels, unroll=1
        )
        cycles = base.problem.groups * shape.cycles + cost
        return (RUNS if strided else 1.0) * cycles, replace(plan, blocks_per_task=plan.lane_blocks)

    return _cheapest(map(planned, _best_tiles(base.axes, (pairs, base.out_channels), machine, halves=halves)))


def _across_groups(base: DotDataPlan, machine: Machine) -> tuple[float, TurnedDotPlan]:
    """With vectors of whole groups, whose sums are turned at the end."""
    p, counts = base.problem, tuple(axis.count for axis in base.axes)
    phases = prod(len(axis.phases) for axis in base.axes)
    shape = best_turned_tile(
        counts, p.groups, base.out_channels, base.taps / phases, PAIR * LANES, machine.registers
    )  # fmt: skip
    plan = as_kind(
        TurnedDotPlan, base, block=shape.tile, tile=shape.tile, width=shape.width, spread=True,
        lane_groups=shape.width // base.out_channels, i_block=base.in_channels,
    )  # fmt: skip
    given, solved = p.given, p.solved
    cycles = phases * shape.cycles + LOOK * plan.watch
    for name, move, turn in ((given, MOVE / PAIR, TURN / PAIR), (solved, MOVE, TURN_BACK)):
        cycles += prod(p.shapes[name]) * (turn if abs(p.strides[name][2]) > abs(p.strides[name][-1]) else move)
    if abs(p.strides[solved][2]) > abs(p.strides[solved][-1]):
        cycles *= TIE_IN_ROWS
    return cycles, replace(plan, unroll=axes_of_few_taps(plan), blocks_per_task=plan.lane_blocks)


def _moving(problem: ConvProblem, given: str, solved: str, two: int) -> float:
    """Cycles to pack what is given, pairs of bf16 as one, and to unpack the result.

    Where the channels of a group at a position are alone in memory, it takes as long to find few of them as many.
    """
    cost = 0.0
    for tensor, move, turn in ((given, MOVE / two, TURN / two), (solved, MOVE, TURN_BACK)):
        channels, strides = problem.shapes[tensor][2], problem.strides[tensor]
        apart = problem.groups > 1 or (tensor == solved and channels < LANES)
        move = max(move, PIECE / max(1, channels)) if apart else move
        cost += prod(problem.shapes[tensor]) * (turn if abs(strides[2]) > abs(strides[-1]) else move)
    return cost + (SPLIT * prod(problem.shapes[given]) if two == 1 else 0.0)


def dot_weights_candidates(problem: ConvProblem, machine: Machine) -> Iterator[tuple[float, DotWeightsPlan]]:
    """Predicted cycles, and a plan, likewise."""
    products = _products(problem, machine)
    axes = window_axes(problem)
    if products is None or max(axis.stride for axis in axes[-2:]) > MOST_PLANES:
        return
    vectors, rows, taps = _tile(problem.x_channels, problem.y_channels, taps_together(axes[-1]), machine.registers)
    plan = DotWeightsPlan(
        problem=problem, isa=machine.isa, compute="f32", lanes=LANES, axes=axes, lane_side="y", vectors=vectors,
        lane_groups=1, spread=False, row_channels=rows, tile_taps=taps, block=(1,) * len(axes), chunks=1,
        lane_shares=1, row_shares=1, x_pixel_major=False, pieces=1, products=products,
        watch=needs_watch(problem.dtype, 1),
    )  # fmt: skip
    saved = _joined(problem) if problem.dtype == "bf16" else 0.0
    saved -= _parted(problem)
    tie = HALF_EMPTY if problem.groups > 1 and 2 * problem.y_channels <= LANES else TIE
    for apart in (False, True) if len(axes) > 2 else (False,):
        cycles, blocked = best_window_blocks(replace(plan, rows_apart=apart))
        yield tie * (cycles - saved), blocked


def _joined(problem: ConvProblem) -> float:
    """What blocks count for numbers that are split, and moved one by one, beyond what pairs of bf16 take.

    It keeps tasks from packing the same again and again for the sake of threads, which costs more than one packing.
    """
    saved = 0.0
    for tensor, turned in (("x", True), ("y", False)):
        shape, strides = problem.shapes[tensor], problem.strides[tensor]
        last = abs(strides[2]) < abs(strides[-1])
        saved += prod(shape) * (SPLIT + (TURN if last == turned else MOVE) / PAIR)
    return saved


def _parted(problem: ConvProblem) -> float:
    """Cycles of what strides part, a few channels at a time, beyond what blocks count for it; groups count `PIECE`."""
    x = problem.x_strides
    few = problem.groups == 1 and problem.x_channels < LANES and abs(x[2]) < abs(x[-1])
    return PARTED * prod(problem.shapes["x"]) if few and problem.stride[-1] > 1 else 0.0


def _products(problem: ConvProblem, machine: Machine) -> Products | None:
    """The product of pieces that one instruction sums; None if that does not do, or what is added could not go back."""
    found = products_on(problem, machine) if machine.has_dots else None
    if found is None or (problem.accumulate and needs_watch(problem.dtype, 1)):
        return None
    return found[1]


def _tile(rows: int, lanes: int, together: list[int], registers: int) -> tuple[int, int, int]:
    """Vectors, channels of x and taps of the tile that covers the channels of y and of x in the fewest cycles."""

    def cycles(shape: tuple[int, int, int]) -> float:
        vectors, size, taps = shape
        tiles = -(-lanes // (LANES * vectors)) * -(-rows // size)
        return tiles * dot_cycles(size * taps, vectors) / taps * (SEVERAL if taps > 1 else 1.0)

    return min(
        (
            (vectors, size, taps)
            for vectors in range(1, min(MOST_VECTORS, max(1, -(-lanes // LANES))) + 1)
            for taps in together
            if taps <= most_rows(registers, vectors)
            for size in cuts(rows, most_rows(registers, vectors) // taps) or [1]
        ),
        key=cycles,
    )
