"""The plan of a problem that solves for X or Y."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from math import prod
from typing import Any

from convgrad.dtypes import COMPUTE, SIZES
from convgrad.plan.axes import gather_axes
from convgrad.plan.block_costs import PANEL_BYTES
from convgrad.plan.blocks import best_blocks, even_share, packing_cost
from convgrad.plan.choose_depthwise_data import depthwise_data_candidates
from convgrad.plan.choose_flat_data import flat_data_candidates
from convgrad.plan.choose_folded import folded_candidates
from convgrad.plan.choose_matrix import finished_matrix_data, matrix_data_candidates
from convgrad.plan.choose_plane_data import plane_data_candidates
from convgrad.plan.choose_row_data import row_data_candidates
from convgrad.plan.costs import BEYOND_L2, LINE, MEMORY_BYTES, MOST_SPREAD, MOVE, SCALAR, TURN, TURN_BACK, TURN_PLANES
from convgrad.plan.data import DataPlan
from convgrad.plan.depthwise_data import DepthwiseDataPlan
from convgrad.plan.flat_data import FlatDataPlan
from convgrad.plan.folded import FoldedPlan
from convgrad.plan.machine import Machine
from convgrad.plan.matrix import MatrixDataPlan
from convgrad.plan.order import FEW_CHANNELS, taps_inside
from convgrad.plan.plane_data import PlaneDataPlan
from convgrad.plan.row_data import RowDataPlan
from convgrad.plan.tiles import TileShape, best_pixel_tile, best_sharing_tile, best_spread_tile, best_tile
from convgrad.problem.conv import ConvProblem, Unknown

Predicted = tuple[float, DataPlan]  # cycles of the arithmetic and of moving numbers once

WORTH_IMAGES = 0.97  # of the cycles of a tile of one image, from which one of several is looked at
DEEP_PANEL_BYTES = 512 * 1024  # of weights of all channels of an input that nobody has to pack then: in L2 nevertheless
LARGE = 16 * 2**20  # bytes of tensors that no cache of a core holds
COLLIDING = 512  # bytes from a position to the next, or a multiple, of which a few fill all places of L1 for them
CROWDED = 1024  # bytes from a row of weights to the next, or a multiple, likewise
CROWDED_BYTES = (896 * 1024, 640 * 1024)  # from the first such row to the last that L2 keeps; of several taps
FEW_TILES, FEW_TILES_OF_ROWS = 100, 50  # up to which tiles read weights as they lie; of several taps, or crowded
MOST_KNOWN_PHASES = 4  # phases of an axis that may be emitted one by one
MOST_UNROLLED = 320  # multiply-adds written out
MOST_SHUFFLED = 64  # taps and channels that share what is put together in registers


def data_variants(problem: ConvProblem, machine: Machine) -> Iterator[DataPlan | PlaneDataPlan]:
    """Blocking for X or Y, by ways to lay out vectors; those of the fewest predicted cycles first."""
    by_planes = list(plane_data_candidates(problem, machine))
    by_vectors = sorted(_candidates(problem, machine), key=lambda candidate: candidate[0])
    if by_planes:  # the same vectors, with tiles and copies made for one channel
        by_vectors = [(cycles, plan) for cycles, plan in by_vectors if not plan.pixels]
    by_tiles = matrix_data_candidates(problem, machine)
    candidates = sorted([*by_vectors, *by_planes, *by_tiles], key=lambda candidate: candidate[0])
    reasons = tuple(
        f"{_kind(other)}: {cycles / 1e6:.3f} Mcycles predicted, tile {_shape(other)}" for cycles, other in candidates
    )
    for cycles, plan in candidates:
        plan = replace(plan, reasons=reasons)
        if isinstance(plan, PlaneDataPlan):
            yield plan
        elif isinstance(plan, MatrixDataPlan):
            spare, other = next(candidate for candidate in by_vectors if type(candidate[1]) is DataPlan)
            plan = finished_matrix_data(plan, cycles, _finished(other, spare, machine))
            yield replace(plan, writes_in_place=problem.out_dtype == "f32" and _writes_in_place(plan))
        else:
            yield _finished(plan, cycles, machine)


def _cheapest(row: Predicted, image: Predicted, images: Predicted) -> Predicted:
    """Of tiles of neighbours in a row, in an image, and of several images: a row only if it can be read in place.

    A task that holds several images has less of each, and packs more around it.
    """

    def packed(candidate: Predicted) -> float:
        return candidate[0] + packing_cost(_whole(candidate[1]), candidate[0])

    in_place = _reads_in_place(_whole(row[1]))
    if images[0] > WORTH_IMAGES * image[0]:
        return row if in_place and row[0] <= packed(image) else image
    best = min(image, images, key=packed)
    return row if in_place and row[0] <= packed(best) else best


def _whole(plan: DataPlan) -> DataPlan:
    """With all blocks of lanes in a task, and whole runs of channels."""
    return replace(plan, blocks_per_task=plan.lane_blocks, i_block=plan.packable(plan.i_block))


def _finished(plan: DataPlan, cycles: float, machine: Machine) -> DataPlan:
    """With blocks, and in place where that can be."""
    if isinstance(plan, FlatDataPlan | DepthwiseDataPlan | RowDataPlan):
        return plan
    plan = _whole(plan)
    if _reads_in_place(plan):
        plan = _widened(plan, cycles, machine)
        inner = plan.axes[-1]
        inside = min(high - low for low, high in map(inner.inside, inner.phases))
        tile = (*plan.tile[:-1], even_share(inside, plan.tile[-1]) if inside else 1)
        plan = replace(plan, reads_in_place=True, writes_in_place=True, tile=tile, block=tile)
    plan = best_blocks(replace(plan, unroll=_unrolled_axes(plan, machine)), cycles)
    plan = _with_weights_in_place(plan)
    return replace(plan, writes_in_place=True) if _writes_in_place(plan) else plan


def _with_weights_in_place(plan: DataPlan) -> DataPlan:
    """The plan that reads weights as they lie, if too few tiles read one of them to make up for packing it.

    Not where rows of weights push each other out of caches; shares of a run of channels may be few enough rows.
    """
    if not plan.may_read_weights:
        return plan
    p = plan.problem
    row = SIZES[p.dtype] * p.w_strides[2 if plan.solves_y else 1]
    tiles = prod(axis.tiles(size) for axis, size in zip(plan.axes, plan.tile, strict=True))
    crowded, room = row % CROWDED == 0, CROWDED_BYTES[plan.taps > 1]
    if tiles > (FEW_TILES_OF_ROWS if crowded or plan.taps > 1 else FEW_TILES):
        return plan
    shares = (plan.i_block, plan.channel_unit) if plan.i_blocks > 1 and plan.taps > 1 else (plan.i_block,)
    for share in shares:
        if not crowded or row * plan.taps * share <= room:
            return replace(plan, reads_weights=True, packs_weights=False, i_block=share)
    return plan


def _widened(plan: DataPlan, cycles: float, machine: Machine) -> DataPlan:
    """With many channels side by side in a tile, where memory far away decides: it likes long runs.

    Where strides leave little arithmetic to a number, or vectors of neighbours push each other out of L1, L3 is far.
    """
    p = plan.problem
    moved = SIZES[p.dtype] * (prod(p.shapes["x"]) + prod(p.shapes["y"]))
    share = moved / MEMORY_BYTES / cycles
    step = (p.x_strides if plan.solves_y else p.y_strides)[-1]
    collide = SIZES[p.dtype] * step % COLLIDING == 0
    if not plan.spread or share < 2 or moved < (BEYOND_L2 if collide or share > 2.5 else LARGE):
        return plan
    needed = -(-p.groups // plan.lanes)
    vectors = min(range(min(8, needed), 0, -1), key=lambda many: -(-needed // many) * many)
    width, rows = vectors * plan.lanes, (machine.registers - vectors - 2) // vectors
    if width <= plan.width or p.groups < width:
        return plan
    return replace(plan, width=width, lane_groups=width, tile=(*plan.tile[:-1], rows))


def _reads_in_place(plan: DataPlan) -> bool:
    """Whether whole vectors can be read from the input and written to the output as they lie in memory."""
    p, axes = plan.problem, plan.axes
    given, solved = (p.x_strides, p.y_strides) if plan.solves_y else (p.y_strides, p.x_strides)
    if p.accumulate or plan.pixels or max(plan.tile[:-1]) > 1:
        return False
    if p.dtype != plan.compute and not plan.spread:  # scalars would be converted again and again
        return False
    if plan.i_blocks > 1 or len(axes[-1].phases) > MOST_KNOWN_PHASES or axes[-1].count < plan.tile[-1]:
        return False
    if plan.spread:
        depthwise = plan.in_channels == plan.out_channels == 1
        return depthwise and given[1] == solved[1] == 1 and p.groups >= plan.lane_groups
    return given[2] == solved[2] == 1 and plan.out_channels >= plan.width and not axes[-1].clipped


def _writes_in_place(plan: DataPlan) -> bool:
    """Whether whole vectors can be written to the output as it lies in memory."""
    p = plan.problem
    solved = p.y_strides if plan.solves_y else p.x_strides
    if p.accumulate or plan.i_blocks > 1:
        return False
    for n, axis in enumerate(plan.axes):
        span = plan.span(n)
        rests = [phase.count % plan.block[n] for phase in axis.phases]
        shifts = type(plan) is DataPlan and plan.may_begin_early(n)
        if plan.tile[n] > 1 and any(0 < rest < span for rest in rests) and not shifts:
            return False
        if n < len(plan.axes) - 1 and span < plan.tile[n]:
            return False
    if plan.pixels:
        wide = plan.span(len(plan.axes) - 1) >= plan.lanes and solved[-1] == 1 == plan.axes[-1].out_step
        return wide and plan.out_channels >= plan.width
    if plan.span(len(plan.axes) - 1) < plan.tile[-1]:
        return False
    if plan.spread:
        side_by_side = (plan.out_channels == 1 or solved[2] == 1) and solved[1] == plan.out_channels
        return side_by_side and plan.lane_groups * plan.out_channels == plan.width and p.groups >= plan.lane_groups
    return solved[2] == 1 and plan.out_channels >= plan.width


def _unrolled_axes(plan: DataPlan, machine: Machine) -> int:
    """Innermost axes whose taps are worth writing out: where few input channels leave little to loop over.

    Across groups of several channels the kernel alone decides, because the order of the sum depends on it.
    """
    if isinstance(plan, FoldedPlan):
        return 0
    if not plan.spread and _taps_inside(plan, machine):
        return 1
    if plan.spread and plan.in_channels > 1:
        inner = plan.axes[-1]
        products = plan.in_channels * sum(phase.taps for phase in inner.phases)
        return int(products <= MOST_SHUFFLED and len(inner.phases) <= MOST_KNOWN_PHASES)
    if plan.in_channels > FEW_CHANNELS or plan.channel_unit > 1 or not (plan.spread or plan.pixels):
        return 0
    count, products = 0, prod(plan.tile) * plan.width // plan.lanes // (plan.lanes if plan.pixels else 1)
    for axis in reversed(plan.axes[1:]):
        products *= sum(phase.taps for phase in axis.phases)
        if products > MOST_UNROLLED or len(axis.phases) > MOST_KNOWN_PHASES or (plan.reads_in_place and count == 1):
            break
        count += 1
    return count


def _taps_inside(plan: DataPlan, machine: Machine) -> bool:
    """Whether the order of sums wants that, where registers are many and long."""
    return plan.lanes * SIZES[plan.compute] == LINE and taps_inside(plan.problem, plan.lanes, machine.registers)


def _shape(plan: DataPlan | PlaneDataPlan) -> str:
    if isinstance(plan, PlaneDataPlan):
        return f"({plan.rows}, {plan.width}) x 1"
    return f"{plan.tile} x {plan.width}"


def _kind(plan: DataPlan | PlaneDataPlan) -> str:
    if isinstance(plan, PlaneDataPlan):
        return "along outputs of planes"
    if isinstance(plan, MatrixDataPlan):
        return "on matrix tiles"
    if isinstance(plan, RowDataPlan):
        return "along outputs, rows in place"
    if isinstance(plan, FoldedPlan):
        return "along outputs, phases at once"
    if isinstance(plan, FlatDataPlan):
        return "along outputs, in place"
    if isinstance(plan, DepthwiseDataPlan):
        return "across groups, rows together"
    return "along outputs" if plan.pixels else "across groups" if plan.spread else "along channels"


def _candidates(problem: ConvProblem, machine: Machine) -> Iterator[tuple[float, DataPlan]]:
    """Predicted cycles, and a plan of one tile per task, for each way to lay out vectors."""
    compute = COMPUTE[problem.dtype]
    size = SIZES[compute]
    lanes = machine.lanes_f32 * 4 // size
    axes = gather_axes(problem)
    solves_y = problem.unknown is Unknown.Y
    given, solved = ("x", "y") if solves_y else ("y", "x")
    channels_in, channels_out = problem.shapes[given][2], problem.shapes[solved][2]
    counts = tuple(axis.count for axis in axes)
    phases = prod(len(axis.phases) for axis in axes)
    depth = max(1, channels_in) * prod(problem.taps) / phases
    in_strides, out_strides = problem.strides[given], problem.strides[solved]
    elements_in = prod(problem.shapes[given])
    elements_out = prod(problem.shapes[solved])
    pixel_major = abs(in_strides[2]) < abs(in_strides[-1])
    turned = channels_in >= lanes and abs(in_strides[-1]) == 1
    base = DataPlan(
        problem=problem, isa=machine.isa, compute=compute, lanes=lanes, axes=axes, block=(), tile=(), width=lanes,
        lane_groups=1, spread=False, pixels=False, i_block=max(1, channels_in), blocks_per_task=1,
        pixel_major=pixel_major,
    )  # fmt: skip

    def planned(shape: TileShape, **changes: Any) -> DataPlan:
        return replace(base, block=shape.tile, tile=shape.tile, width=shape.width, **changes)

    out_channels_first = abs(out_strides[2]) > abs(out_strides[-1])
    groups = problem.groups
    channels = max(1, channels_in), channels_out
    cost = elements_in * MOVE + elements_out * (TURN_BACK if out_channels_first else MOVE)

    sharing = _taps_inside(base, machine)

    def along_channels(first: int, *, inside: bool = False) -> Predicted:
        if sharing:
            shape = best_sharing_tile(axes, channels, lanes, machine.registers, first=first)
        else:
            shape = best_tile(axes, channels, lanes, machine.registers, first=first, inside=inside)
        most = max(16, PANEL_BYTES // max(1, round(size * prod(problem.taps) / phases * shape.width)))
        plan = planned(shape, pixel_major=pixel_major or turned, i_block=even_share(channels_in, most))
        deep = replace(plan, i_block=max(1, channels_in))
        if prod(problem.taps) == 1 and size * deep.panel <= DEEP_PANEL_BYTES and _reads_in_place(_whole(deep)):
            plan = deep
        return groups * shape.cycles + cost, plan

    cycles, plan = _cheapest(along_channels(len(axes) - 1, inside=True), along_channels(1), along_channels(0))
    yield (cycles - cost if _reads_in_place(_whole(plan)) else cycles), plan

    shape = best_pixel_tile(axes, channels, lanes, machine.registers, lines=lanes * size == LINE)
    scattered = SCALAR if groups > 1 else TURN  # one group is a small part of every position
    apart = TURN - MOVE if groups == 1 else 0.0  # neighbours in memory that belong to several planes or phases
    cost = elements_in * ((scattered if pixel_major else MOVE) + apart * (axes[-1].in_step > 1))
    cost += elements_out * (
        (MOVE if out_channels_first else max(scattered, TURN_BACK)) + apart * (axes[-1].out_step > 1)
    )
    most = max(16, PANEL_BYTES // max(1, round(size * prod(problem.taps) / phases * shape.width)))
    along_outputs = planned(shape, pixels=True, pixel_major=False, i_block=even_share(channels_in, most))
    yield groups * shape.cycles + cost, along_outputs
    if prod(problem.taps) > 1 and not sharing:
        flat = list(flat_data_candidates(_whole(along_outputs), groups * shape.cycles + cost, machine))
        yield from flat
        if not flat:
            yield from row_data_candidates(problem, machine, planned(shape, i_block=max(1, channels_in)))

    for cycles, plan in folded_candidates(problem, machine, planned(shape, i_block=max(1, channels_in))):
        most = max(16, PANEL_BYTES // max(1, round(size * plan.taps / phases * axes[-1].out_step * plan.width)))
        yield cycles + cost, replace(plan, i_block=even_share(channels_in, most))

    if groups > 1 and channels_out <= min(MOST_SPREAD, lanes) and channels_in <= MOST_SPREAD:
        inner = axes[-1]
        shape = best_spread_tile(
            counts, groups, (channels_in, channels_out), depth, max(1, inner.taps), inner.in_step, lanes,
            machine.registers,
        )  # fmt: skip
        turn = TURN_PLANES if channels_in == channels_out == 1 else TURN
        cost = elements_in * (MOVE if pixel_major else turn) + elements_out * (turn if out_channels_first else MOVE)
        many = shape.width // lanes * (lanes // channels_out)
        across = planned(shape, spread=True, pixel_major=True, lane_groups=many)
        yield phases * shape.cycles + cost, across
        if _reads_in_place(across):
            yield from depthwise_data_candidates(across, phases * shape.cycles, machine)
