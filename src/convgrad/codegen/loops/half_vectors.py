"""Vectors of a register tile of which one half is all that is wanted, and only that half computed.

Channels, or outputs of a row, seldom fill their last vector. Where half of it holds them, that half is multiplied:
processors that pass vectors of 64 bytes through units of 32 take half the time, others the same. Sums and their order
do not change.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from convgrad.codegen.isa import ISAS

if TYPE_CHECKING:
    from convgrad.plan.general.data import DataPlan
    from convgrad.plan.general.weights import WeightsPlan

Columns = tuple[tuple[int, ...], frozenset[int]]  # where vectors begin, and which of them are halves


def may_halve(plan: DataPlan) -> bool:
    """Whether tiles of a plan may have such vectors: those that store sums as they are, or dot products that round."""
    out = plan.problem.out_dtype if plan.writes_in_place else plan.compute
    plain = not (plan.spread or plan.aligned or plan.past_caches)
    return plain and out in plan.half_types and ISAS[plan.isa].halves


def lane_columns(plan: DataPlan, *, last: bool) -> Columns:
    """Vectors of a block of lanes that are computed; `last`, of the last one, of which others compute a part."""
    vectors = tuple((last and plan.last_vectors) or plan.all_vectors)
    rest = plan.out_channels % plan.lanes if last and may_halve(plan) else 0
    if plan.lanes_begin_early and plan.out_channels < plan.width and not (plan.spread or plan.pixels):
        half = 0 < rest <= plan.lanes // 2
        place = plan.out_channels - (plan.lanes // 2 if half else plan.lanes)
        return (*vectors[:-1], place), frozenset({len(vectors) - 1} if half else ())
    if not 0 < rest <= plan.lanes // 2:
        return vectors, frozenset()
    if not plan.lanes_begin_early:
        return vectors, frozenset({len(vectors) - 1})
    if not plan.writes_in_place:  # all results of a block are copied
        return vectors, frozenset()
    first, *others = vectors  # channels before those have been computed
    return (first + plan.lanes // 2, *others), frozenset({0})


def row_columns(plan: DataPlan, places: list[int]) -> Columns:
    """Vectors along the outputs of a row, which begin at these, if they hold all of a row."""
    counts = [phase.count for phase in plan.axes[-1].phases]
    end = (min if plan.writes_in_place else max)(counts)
    *before, place = places
    done = before[-1] + plan.lanes if before else 0
    if not may_halve(plan) or max(counts) > plan.tile[-1] or not 0 < end - done <= plan.lanes // 2:
        return tuple(places), frozenset()
    half = end - plan.lanes // 2 if plan.writes_in_place else place
    return (*before, half), frozenset({len(before)})


def weights_columns(plan: WeightsPlan, *, last: bool) -> Columns:
    """Vectors of a tap in a tile of weights that are computed; `last`, in the last block of lanes."""
    every = tuple(range(0, plan.width, plan.lanes))
    if not last or not plan.may_halve:
        return every, frozenset()
    vectors, rest = tuple(plan.last_vectors or every), plan.lane_count % plan.lanes
    if plan.spread or not ISAS[plan.isa].halves or not 0 < rest <= plan.lanes // 2:
        return vectors, frozenset()
    if plan.ON_UNITS and plan.lane_blocks > 1:  # LLVM spills more sums of dot products than that saves
        return vectors, frozenset()
    if not plan.lanes_in_place:
        return vectors, frozenset({len(vectors) - 1})
    if plan.problem.out_dtype not in (plan.compute, "f16"):
        return vectors, frozenset()
    first, *others = vectors  # channels before those have been computed
    return (first + plan.lanes // 2, *others), frozenset({0})


def of_taps(columns: Columns, taps: int, tap_step: int) -> Columns:
    """The same of several taps."""
    vectors, halves = columns
    places = tuple(t * tap_step + v for t in range(taps) for v in vectors)
    return places, frozenset(t * len(vectors) + half for t in range(taps) for half in halves)
