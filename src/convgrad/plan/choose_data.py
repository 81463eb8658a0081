"""The plan of a problem that solves for X or Y."""

from __future__ import annotations

from collections.abc import Iterator
from math import prod
from typing import TYPE_CHECKING, Any

from convgrad.plan.along import Along
from convgrad.plan.costs import FAR_INPUT
from convgrad.plan.data_candidates import DataCandidates, fills_half, whole_blocks
from convgrad.plan.general.blocks import best_blocks, best_outputs
from convgrad.plan.general.data import DataPlan
from convgrad.plan.general.data_in_place import (
    is_mostly_border,
    reads_in_place,
    widened,
    widens_again,
    writes_in_place,
)
from convgrad.plan.general.room import roomy_first
from convgrad.plan.general.weights_in_place import with_weights_in_place
from convgrad.plan.machine import Machine
from convgrad.plan.order import kind_and_run
from convgrad.plan.shares import even_share
from convgrad.plan.units import products_on
from convgrad.plan.unrolling import unrolled_axes
from convgrad.problem.conv import ConvProblem, Unknown
from convgrad.values import replace

if TYPE_CHECKING:
    from convgrad.plan.depthwise.plane_data import PlaneDataPlan
    from convgrad.plan.in_place.row_data import RowDataPlan

Predicted = tuple[float, Any]
WIDENED = 1.25  # times the cycles of vectors of bf16 that several taps meet; words of two are taken as they are
FAR_PLANE = 0.25  # cycles more to pack a number of planes from memory, than a tile that reads them there waits for it
OPENLY, OPENLY_BESIDE = 1.3, 1.15  # times the cycles of tiles along outputs against those along channels, see `_openly`
COPIED_ROWS = 1.67  # likewise of those of rows that are copied, against rows in place
FILLED = 0.9  # of the lanes of a row's vectors
PACKED_WEIGHT = 0.15  # cycles of a weight in such words, where vectors might read it as it lies


def data_variants(
    problem: ConvProblem, machine: Machine, along: Along | None = None
) -> Iterator[DataPlan | PlaneDataPlan]:  # fmt: skip
    """Blocking for X or Y, by ways to lay out vectors; those of the fewest predicted cycles first.

    If lanes sum `along` something, the first one is made for that.
    """
    by_planes = _by_planes(problem, machine)
    ways = DataCandidates(problem, machine)
    by_vectors = [*ways.all()]
    if fills_half(problem, machine):
        by_vectors.append(DataCandidates(problem, machine.halved).along_channels())
    by_vectors.sort(key=lambda candidate: candidate[0])
    if by_planes:  # the same vectors, with tiles and copies made for one channel
        by_vectors = [(cycles, plan) for cycles, plan in by_vectors if not plan.pixels]
    added: list[tuple[float, Any]] = _summed_by_lanes(ways.base, machine, along) if along else []
    least = max((cycles for cycles, _ in added), default=0.0)
    on_units = _on_units(problem, machine, [plan for _, plan in by_planes])
    others = [(max(cycles, least), plan) for cycles, plan in [*by_vectors, *by_planes]]
    if along is Along.ROWS and problem.dtype != "f32":  # dot products either way, whose order nobody relies on
        from convgrad.plan.in_place.row_products import against_rows

        on_units = against_rows(on_units, *added[0])
    elif problem.dtype != "f32":  # whose order units keep nowhere: which of the two it is may not depend on extents
        on_units = [(max(cycles, least), plan) for cycles, plan in on_units]
    planned: list[Predicted] = [*added, *others, *on_units]
    compared = [cycles for cycles, _ in planned]
    if on_units and not added:
        compared = _against_words(planned, problem, machine)
    elif not added and not by_planes and _are_far_planes(ways):
        far = FAR_PLANE * ways.elements_in
        compared = [cycles + (0.0 if plan.reads_in_place else far) for cycles, plan in planned]
    if machine.multiplies_alone and not added:
        compared = _products_alone(compared, [plan for _, plan in planned], ways)
    candidates = sorted(zip(compared, planned, strict=True), key=lambda candidate: candidate[0])
    if problem.order:  # none of which a part may have that is made of something else
        asked, _ = kind_and_run(problem.order)
        candidates = [candidate for candidate in candidates if candidate[1][1].order_kind == asked] or candidates
    reasons = tuple(
        f"{other.kind}: {cycles / 1e6:.3f} Mcycles predicted, tile {_shape(other)}" for cycles, (_, other) in candidates
    )

    def finished() -> Iterator[DataPlan | PlaneDataPlan]:
        for _, (cycles, plan) in candidates:
            plan = replace(plan, reasons=reasons)
            if plan.OF_PLANES:
                yield plan
            elif plan.ON_UNITS:
                from convgrad.plan.by_matrix.choose_matrix import finished_on_units

                spare, other = next(candidate for candidate in by_vectors if type(candidate[1]) is DataPlan)
                yield finished_on_units(plan, cycles, _finished(other, spare, machine))
            else:
                yield _finished(plan, cycles, machine)

    return roomy_first(finished(), tuple({type(plan) for _, plan in added}))


def _are_far_planes(ways: DataCandidates) -> bool:
    """Whether the input is made of planes that come from memory, for vectors as long as lines."""
    p = ways.problem
    return ways.lines and not ways.pixel_major and p.bytes_of(p.given) > FAR_INPUT


def _products_alone(compared: list[float], plans: list[Any], ways: DataCandidates) -> list[float]:
    """Cycles to be compared where one multiply-add is done a cycle, not two: products hide more of the loads.

    Each two ways of which that holds are measured against each other, and neither against a third.
    """
    from convgrad.plan.in_place.row_data import RowDataPlan

    tiles = [n for n, plan in enumerate(plans) if not plan.OF_PLANES]
    for on_units in (False, True):
        alike = [n for n in tiles if plans[n].ON_UNITS is on_units]
        outputs = [n for n in alike if plans[n].pixels]
        for rows in [n for n in outputs if isinstance(plans[n], RowDataPlan) and _are_worth_it(plans[n])]:
            compared = _behind(compared, rows, [n for n in outputs if n != rows], COPIED_ROWS)
        along = next((n for n in alike if plans[n].kind in ("along channels", "by dot products")), None)
        if along is not None and 4 * ways.channels_out >= ways.lanes:
            compared = _behind(compared, along, outputs, _openly(ways, plans[along]))
    return compared


def _are_worth_it(rows: RowDataPlan) -> bool:
    """Whether that holds for rows in place: without a stride, longer than half a vector, of numbers as they are."""
    row = rows.axes[-1]
    return row.in_step == 1 and 2 * row.count > rows.lanes and rows.problem.dtype == rows.compute


def _openly(ways: DataCandidates, along: DataPlan) -> float:
    """How much longer tiles along outputs take than predicted, against one along channels, whose products hide.

    Of planes, only those whose rows leave lanes empty.
    """
    one = along.width == along.lanes
    if not ways.out_channels_first:
        return OPENLY if one else OPENLY_BESIDE
    row = ways.axes[-1].count
    return OPENLY if one and row < FILLED * -(-row // ways.lanes) * ways.lanes else 1.0


def _behind(compared: list[float], first: int, others: list[int], times: float) -> list[float]:
    """Likewise: others that, at so many times their cycles, take longer than the first one are put just behind it."""
    least = compared[first]
    return [max(c, least + 1) if n in others and times * c > least else c for n, c in enumerate(compared)]


def _against_words(planned: list[Predicted], p: ConvProblem, machine: Machine) -> list[float]:
    """Cycles to be compared, of bf16 that dot products take two by two, if there are two channels.

    Not of vectors across groups, nor of half ones, which dot products would leave half empty.
    """
    if not machine.has_dots or p.dtype != "bf16" or p.shapes[p.given][2] < 2:
        return [cycles for cycles, _ in planned]
    as_it_lies = p.w_strides[1 if p.unknown is Unknown.Y else 2] == 1
    packing = PACKED_WEIGHT * prod(p.shapes["w"]) if as_it_lies else 0.0
    again = WIDENED if prod(p.taps) > 1 else 1.0
    compared = []
    for cycles, plan in planned:
        packs = plan.ON_UNITS and not plan.reads_weights
        vectors = not (plan.ON_UNITS or plan.OF_PLANES or plan.spread) and plan.isa == machine.isa
        compared.append(cycles * (again if vectors else 1.0) + packing * packs)
    return compared


def _by_planes(problem: ConvProblem, machine: Machine) -> list[tuple[float, PlaneDataPlan]]:
    """Predicted cycles and plans of a single channel per group, rows in place first, if they can be."""
    if problem.x_channels != 1 or problem.y_channels != 1:
        return []
    from convgrad.plan.depthwise.choose_plane_data import plane_data_candidates
    from convgrad.plan.depthwise.choose_plane_rows import plane_rows_candidates

    found = [*plane_rows_candidates(problem, machine), *plane_data_candidates(problem, machine)]
    return [(max(cycles, found[0][0]), plan) for cycles, plan in found]


def _summed_by_lanes(base: DataPlan, machine: Machine, along: Along) -> list[tuple[float, Any]]:
    """Likewise of those whose lanes sum along something."""
    if along is Along.CHANNELS:
        from convgrad.plan.few_channels.lane_sums import lane_sums_candidates as candidates
    elif along is Along.RUNS:
        from convgrad.plan.few_channels.run_sums import run_sums_candidates as candidates
    else:
        from convgrad.plan.in_place.row_products import row_products_candidates as candidates
    return [*candidates(base, machine)]


def _on_units(problem: ConvProblem, machine: Machine, by_planes: list[PlaneDataPlan]) -> list[tuple[float, Any]]:
    """Predicted cycles and plans by matrix tiles and dot products, where there are any."""
    if products_on(problem, machine) is None:
        return []
    from convgrad.plan.by_matrix.choose_matrix import data_candidates_on_units

    found: list[tuple[float, Any]] = list(data_candidates_on_units(problem, machine))
    if by_planes:
        from convgrad.plan.by_dots.choose_dot_rows import dot_rows_candidates
        from convgrad.plan.depthwise.plane_rows import PlaneRowsPlan

        for plan in [plan for plan in by_planes if isinstance(plan, PlaneRowsPlan)][:1]:
            found += dot_rows_candidates(plan, machine)
    return found


def _finished(plan: DataPlan, cycles: float, machine: Machine) -> DataPlan:
    """With blocks, and in place where that can be."""
    machine = machine if plan.isa == machine.isa else machine.halved
    if plan.FINISHED:
        return plan
    if plan.OUTPUTS_ALONE:
        return best_outputs(plan, cycles)
    plan = whole_blocks(plan)
    if reads_in_place(plan) and not (is_mostly_border(plan) or widens_again(plan)):
        plan = widened(plan, cycles, machine)
        inner = plan.axes[-1]
        inside = min(high - low for low, high in map(inner.inside, inner.phases))
        tile = (*plan.tile[:-1], even_share(inside, plan.tile[-1]) if inside else 1)
        plan = replace(plan, reads_in_place=True, writes_in_place=True, tile=tile, block=tile)
    plan = best_blocks(replace(plan, unroll=unrolled_axes(plan, machine)), cycles)
    plan = with_weights_in_place(plan)
    return replace(plan, writes_in_place=True) if writes_in_place(plan) else plan


def _shape(plan: DataPlan | PlaneDataPlan) -> str:
    return f"{plan.tile} x {1 if plan.OF_PLANES else plan.width}"
