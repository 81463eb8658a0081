"""The plan of a problem that solves for W."""

from __future__ import annotations

from collections.abc import Iterator
from math import prod
from typing import TYPE_CHECKING, Any

from convgrad.dtypes import COMPUTE, SIZES
from convgrad.plan.costs import (
    BEYOND_L2,
    FAR_INPUT,
    LINE,
    MOST_SPREAD,
    MOST_SUM_BYTES,
    MOVE,
    SCALAR,
    SCATTERED,
    TURN,
    TURN_PLANES,
)
from convgrad.plan.general.room import roomy_first
from convgrad.plan.general.sides_in_place import LEAST_WAYS, places_of_rows, ways_in_place
from convgrad.plan.general.weights import WeightsPlan
from convgrad.plan.general.window_blocks import best_window_blocks, rows_of_windows
from convgrad.plan.machine import Machine
from convgrad.plan.row_tiles import best_row_tile
from convgrad.plan.units import products_on
from convgrad.plan.window_axes import window_axes
from convgrad.problem.conv import ConvProblem
from convgrad.values import replace

if TYPE_CHECKING:
    from convgrad.plan.depthwise.plane_weights import PlaneWeightsPlan

Predicted = tuple[float, Any]
UNROLLED_WINDOWS = 4
MANY_MORE = 4, 16  # times as many numbers as the other side, per tap and at most: to transpose them waits for memory
MORE_OF_ONE = 2  # likewise where one tap meets them, in vectors as long as lines, if they outnumber the weights
TURN_APART = 0.8  # cycles of a number transposed to vectors as long as lines, between whose neighbours others lie
TURN_AGAIN, TURN_OF_ONE = 0.3, 0.6  # cycles more for each of those, if lanes may be those of the other side
PARTED_BYTES, IN_PARTS = 2**20, 12.0  # of weights; cycles for one of more, whose lines are written in parts, by taps
EVEN, EVEN_OF_ONE = 1.15, 1.5  # times the sums; where one tap meets what is turned, as it takes longer than they do
WIDENED = 1.25  # times the cycles of numbers of 16 bits, which units would take as they are
UNPACKED, UNPACKED_BEYOND = 0.2, 0.25  # cycles fewer, of a number of lanes in place, and of one from beyond L2
PACKED_FAR = 0.45  # cycles that packing a number of lanes from memory takes at least
PARTED = 1.08  # times the cycles of lanes along windows of one group that a stride parts, against those along channels
FAR_TURNED = 0.4  # cycles more to turn a number of planes from memory, than a tile that reads them there waits for it
FAR_AHEAD = 0.3  # likewise to pack one, of planes that are asked for ahead
SPREAD_SHORT = 0.6  # cycles of a number in a slab of them for all lanes of each group, of vectors shorter than lines
FELT = 0.02  # of all cycles: less says nothing about two plans


def weights_variants(problem: ConvProblem, machine: Machine) -> Iterator[WeightsPlan | PlaneWeightsPlan]:
    """Blocking for W, by ways to lay out vectors; those of the fewest predicted cycles first."""
    parted = PARTED if problem.groups == 1 and problem.stride[-1] > 1 else 1.0
    by_windows = _by_windows(problem, machine)
    by_windows = [(cycles if plan.ON_UNITS else parted * cycles, plan) for cycles, plan in by_windows]
    by_vectors = [*_candidates(problem, machine), *by_windows, *_by_runs(problem, machine)]
    by_vectors.sort(key=lambda candidate: candidate[0])
    by_planes = _by_planes(problem, machine)
    on_units = _on_units(problem, machine, [plan for _, plan in by_planes[:1]])
    planned: list[Predicted] = [*by_vectors, *by_planes, *on_units]
    compared = [cycles for cycles, _ in planned]
    if on_units and problem.dtype != "f32":
        compared = _against_units(planned)
    elif not on_units:
        compared = _from_memory(planned)
    candidates = sorted(zip(compared, planned, strict=True), key=lambda candidate: candidate[0])
    reasons = tuple(f"{other.kind}: {cycles / 1e6:.3f} Mcycles predicted" for cycles, (_, other) in candidates)

    def finished() -> Iterator[WeightsPlan | PlaneWeightsPlan]:
        for _, (cycles, plan) in candidates:
            plan = replace(plan, reasons=reasons)
            if plan.ON_UNITS and plan.fallback:
                yield plan
            elif plan.ON_UNITS:
                cost, other = next(candidate for candidate in by_vectors if type(candidate[1]) is WeightsPlan)
                yield replace(plan, fallback=_finished(other, cost)) if plan.watch else plan
            else:
                yield _finished(plan, cycles)

    return roomy_first(finished())


def _from_memory(planned: list[Predicted]) -> list[float]:
    """Cycles to be compared of planes, some of which are packed; which side has the lanes is settled already."""
    first: Any = next((plan for _, plan in planned if type(plan) is WeightsPlan), None)
    return [cycles + _far(first if type(plan) is WeightsPlan else plan) for cycles, plan in planned]


def _far(plan: WeightsPlan) -> float:
    """Cycles more to pack planes that come from memory, for vectors as long as lines."""
    p = plan.problem
    if p.x_channels == p.y_channels == 1 or not plan.fills_lines:  # depthwise: all that are compared pack them
        return 0.0
    planes = (name for name in plan.planes_packed if abs(p.strides[name][2]) > abs(p.strides[name][-1]))
    each = FAR_AHEAD if plan.along_windows else FAR_TURNED
    return each * sum(prod(p.shapes[name]) for name in planes if p.bytes_of(name) > FAR_INPUT)


def _against_units(planned: list[Predicted]) -> list[float]:
    """Cycles to be compared, of a problem of 16 bits: units take numbers as they are, but pack them all.

    Where vectors read lanes where they lie, these are packed for nothing else than a few rows, which waits for caches
    and memory; that of several groups, one at a time, for every line that holds some of them.
    """
    late, compared = 0.0, []
    least = min(cycles for cycles, plan in planned if plan.ON_UNITS)
    for cycles, plan in planned:
        p = plan.problem
        if type(plan) is WeightsPlan and (False, True) in ways_in_place(plan):
            name = "y" if plan.rows_shift else "x"
            numbers, size = prod(p.shapes[name]), p.bytes_of(name)
            parts = 1.0 if p.groups == 1 else max(1.0, LINE / (SIZES[p.dtype] * plan.lane_count)) * (size > FAR_INPUT)
            late = max(late, PACKED_FAR * numbers * parts - least if size > FAR_INPUT else 0.0)
            cycles -= (UNPACKED_BEYOND if size > BEYOND_L2 else UNPACKED) / WIDENED * numbers * parts
        widened = WIDENED if type(plan) is WeightsPlan and p.groups == 1 else 1.0
        compared.append(widened * max(cycles, 0.0))
    return [cycles + late * plan.ON_UNITS for cycles, (_, plan) in zip(compared, planned, strict=True)]


def _by_windows(problem: ConvProblem, machine: Machine) -> list[tuple[float, WeightsPlan]]:
    """Predicted cycles and plans with lanes along windows, of sums of vectors that are few enough."""
    sums = problem.x_channels * problem.y_channels * prod(problem.taps) * machine.lanes_f32
    if SIZES["f32"] * sums > MOST_SUM_BYTES:
        return []
    from convgrad.plan.few_channels.choose_window_lanes import window_lanes_candidates
    from convgrad.plan.in_place.choose_in_place_weights import in_place_candidates

    return [*window_lanes_candidates(problem, machine), *in_place_candidates(problem, machine)]


def _by_runs(problem: ConvProblem, machine: Machine) -> Iterator[tuple[float, WeightsPlan]]:
    """Likewise with lanes along what several groups or taps have side by side."""
    if problem.groups > 1:
        from convgrad.plan.groups.choose_group_weights import group_weights_candidates

        yield from group_weights_candidates(problem, machine)
    in_runs, lines = problem.taps[-1] > 1 == problem.dilation[-1], machine.lanes_f32 * 4 == LINE
    if in_runs and (lines or problem.x_channels == 1 == problem.groups):
        from convgrad.plan.few_channels.choose_run_weights import run_weights_candidates

        yield from run_weights_candidates(problem, machine)


def _by_planes(problem: ConvProblem, machine: Machine) -> list[tuple[float, PlaneWeightsPlan]]:
    """Likewise of a single channel per group, rows in place first, if they can be."""
    if problem.x_channels != 1 or problem.y_channels != 1:
        return []
    from convgrad.plan.depthwise.choose_plane_row_weights import plane_row_weights_candidates
    from convgrad.plan.depthwise.choose_plane_weights import plane_weights_candidates

    found = [*plane_row_weights_candidates(problem, machine), *plane_weights_candidates(problem, machine)]
    return [(max(cycles, found[0][0]), plan) for cycles, plan in found]


def _on_units(problem: ConvProblem, machine: Machine, planes: list[PlaneWeightsPlan]) -> list[tuple[float, Any]]:
    """Predicted cycles and plans by matrix tiles and dot products, where there are any."""
    if products_on(problem, machine) is None:
        return []
    from convgrad.plan.by_dots.choose_dots import dot_weights_candidates
    from convgrad.plan.by_dots.choose_far_pairs import far_pairs_candidates
    from convgrad.plan.by_dots.choose_plane_dots import plane_dots_candidates
    from convgrad.plan.by_matrix.choose_matrix import matrix_weights_candidates

    by_planes = [*plane_dots_candidates(problem, machine, planes[0])] if planes else []
    by_dots = [*dot_weights_candidates(problem, machine), *far_pairs_candidates(problem, machine)]
    return [*by_planes, *matrix_weights_candidates(problem, machine), *by_dots]


def _finished(plan: WeightsPlan, cycles: float) -> WeightsPlan:
    """With blocks and tasks, in place where that can be."""
    if plan.FINISHED:
        return plan
    if _sums_in_place(plan):
        return rows_of_windows(replace(plan, direct=True))
    return best_window_blocks(plan, cycles)


def _candidates(problem: ConvProblem, machine: Machine) -> Iterator[tuple[float, WeightsPlan]]:
    """Predicted cycles, and a plan of one window per block, for each way to lay out vectors."""
    compute = COMPUTE[problem.dtype]
    lanes = machine.lanes_f32 * 4 // SIZES[compute]
    c, k, groups = problem.x_channels, problem.y_channels, problem.groups
    window_rows = problem.batch * prod(problem.y_extent[:-1]) * prod(problem.taps[:-1])
    elements = {name: prod(problem.shapes[name]) for name in "xy"}
    base = WeightsPlan(
        problem=problem, isa=machine.isa, compute=compute, lanes=lanes, axes=window_axes(problem), lane_side="y",
        vectors=1, lane_groups=1, spread=False, row_channels=1, tile_taps=1, block=(1,) * (1 + problem.rank), chunks=1,
        lane_shares=1, row_shares=1, x_pixel_major=False,
    )  # fmt: skip
    yield from _along_channels(base, machine)
    filled = c % lanes == 0 and not base.fills_lines  # by x of one group, which needs no copies of its numbers
    if groups > 1 and k <= MOST_SPREAD and k < lanes and c <= MOST_SPREAD and not filled:  # else each is of one group
        shape = best_row_tile(
            c, base.axes[-1], groups * k, lanes, machine.tile_registers, rows_shift=True, a_vector=True
        )
        side_by_side = problem.x_strides[1] == c and lanes % k == 0
        turn = TURN_PLANES if c == k == 1 else TURN
        move = MOVE if base.fills_lines else SPREAD_SHORT
        each = (move if side_by_side else turn if c == 1 else SCALAR) * k
        cost = elements["x"] * each + elements["y"] * (
            MOVE if problem.y_strides[1] == k else turn if k == 1 else SCALAR
        )
        cycles = window_rows * shape.cycles + cost
        across = replace(
            base, vectors=shape.vectors, lane_groups=shape.vectors * lanes // k, spread=True,
            row_channels=shape.row_channels, tile_taps=shape.taps, unroll=UNROLLED_WINDOWS,
        )  # fmt: skip
        yield cycles, across
        yield from _tiled_in_place(across, cycles, machine)


def _along_channels(base: WeightsPlan, machine: Machine) -> Iterator[tuple[float, WeightsPlan]]:
    """Those with vectors along the channels of either side, of one group."""
    p = base.problem
    window_rows = p.groups * p.batch * prod(p.y_extent[:-1]) * prod(p.taps[:-1])
    elements = {name: prod(p.shapes[name]) for name in "xyw"}
    lanes_first = {name: abs(p.strides[name][2]) <= abs(p.strides[name][-1]) for name in "xy"}
    sides: list[tuple[float, float, WeightsPlan]] = []
    for side, rows, across, other in (("y", p.x_channels, p.y_channels, "x"), ("x", p.y_channels, p.x_channels, "y")):
        shape = best_row_tile(
            rows, base.axes[-1], across, base.lanes, machine.tile_registers, rows_shift=side == "y", ends_early=True
        )
        lane_step, row_step = (abs(p.w_strides[n]) for n in ((1, 2) if side == "y" else (2, 1)))
        turn = TURN_APART if base.fills_lines and abs(p.strides[side][-1]) > 1 else TURN
        cost = elements[other] * MOVE + elements[side] * (MOVE if lanes_first[side] else turn)
        cycles = window_rows * shape.cycles + cost + (0.0 if lane_step == 1 else elements["w"] * TURN)
        along = replace(
            base, lane_side=side, vectors=shape.vectors, row_channels=shape.row_channels, tile_taps=shape.taps,
            x_pixel_major=lanes_first[other],
        )  # fmt: skip
        one = base.fills_lines and prod(p.taps) == 1 and elements["w"] <= elements[side]
        times = MORE_OF_ONE if one else min(MANY_MORE[0] * prod(p.taps), MANY_MORE[1])
        many = not lanes_first[side] and elements[side] >= times * elements[other]
        again = TURN_OF_ONE if one else TURN_AGAIN
        scattered = SCATTERED * elements["w"] if lane_step > row_step > 1 else 0.0
        if lane_step > row_step == 1 < prod(p.taps) and p.bytes_of("w") > PARTED_BYTES:
            scattered = IN_PARTS * elements["w"]
        more = (again * elements[side] if many else 0.0) + (scattered if scattered > FELT * cycles else 0.0)
        sides.append((cycles + _far(along) + more, cycles, along))
        if base.problem.groups == 1:
            yield from _tiled_in_place(along, cycles, machine)
    yield from _in_order(sides)


def _tiled_in_place(base: WeightsPlan, cycles: float, machine: Machine) -> Iterator[tuple[float, WeightsPlan]]:
    """Likewise of the same lanes, with a vector of sums for each tap, where they meet a single channel."""
    if base.row_count == 1:
        from convgrad.plan.depthwise.choose_depthwise_weights import depthwise_weights_candidates

        yield from depthwise_weights_candidates(base, cycles, machine)


def _in_order(sides: list[tuple[float, float, WeightsPlan]]) -> Iterator[tuple[float, WeightsPlan]]:
    """Plans with lanes along either side, and the cycles that come second, the fewest with the one that comes first.

    That is the one that takes fewer cycles by what comes first, unless it computes more beside the weights.
    """
    plans = [plan for _, _, plan in sorted(sides, key=lambda side: side[1])]
    _, preferred = min(((more, plan) for more, _, plan in sides), key=lambda side: side[0])
    if preferred is not plans[0] and _computed(preferred) <= _even(preferred) * _computed(plans[0]):
        plans.reverse()
    yield from zip(sorted(cycles for _, cycles, _ in sides), plans, strict=True)


def _even(plan: WeightsPlan) -> float:
    """How many times the sums of the other side's plan it may compute."""
    crowded = plan.row_channels > LEAST_WAYS * places_of_rows(plan)
    return EVEN_OF_ONE if plan.fills_lines and plan.taps == 1 and not crowded else EVEN


def _computed(plan: WeightsPlan) -> int:
    """Sums of tiles, per tap, the last of which have no more rows, nor vectors of lanes, than there are."""
    return plan.row_count * -(-plan.lane_count // plan.lanes) * plan.lanes


def _sums_in_place(plan: WeightsPlan) -> bool:
    """Whether whole vectors can be read from x and y as they lie in memory."""
    p = plan.problem
    if not (plan.spread and p.x_channels == p.y_channels == 1):
        return False
    return (
        p.x_strides[1] == p.y_strides[1] == 1
        and p.groups >= plan.lane_groups
        and not (p.accumulate and p.groups % plan.lane_groups)
        and plan.tile_taps in (1, plan.axes[-1].taps)
    )
