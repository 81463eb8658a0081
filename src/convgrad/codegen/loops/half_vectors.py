"""Vectors of a register tile of which one half is all that is wanted, and only that half computed.

Channels, or outputs of a row, seldom fill their last vector. Where half of it holds them, that half is multiplied:
processors that pass vectors of 64 bytes through units of 32 take half the time, others the same. Sums and their order
do not change.
"""

from __future__ import annotations

from convgrad.codegen.isa import ISAS
from convgrad.plan.by_dots.dots import DotDataPlan, DotWeightsPlan
from convgrad.plan.by_dots.far_pairs import FarPairsPlan
from convgrad.plan.general.data import DataPlan
from convgrad.plan.general.weights import WeightsPlan

Columns = tuple[tuple[int, ...], frozenset[int]]  # where vectors begin, and which of them are halves


def may_halve(plan: DataPlan) -> bool:
    """Whether tiles of a plan may have such vectors: those that store sums as they are, or dot products that round."""
    out = plan.problem.out_dtype if plan.writes_in_place else plan.compute
    dots = isinstance(plan, DotDataPlan)
    plain = (dots or type(plan) is DataPlan) and not (plan.spread or plan.aligned or plan.past_caches)
    stores = out == plan.compute or (dots and plan.watch and out == "bf16")
    return plain and ISAS[plan.isa].halves and stores


def lane_columns(plan: DataPlan, *, last: bool) -> Columns:
    """Vectors of a block of lanes that are computed; `last`, of the last one, of which others compute a part."""
    vectors = tuple((last and plan.last_vectors) or plan.all_vectors)
    rest = plan.out_channels % plan.lanes if last and may_halve(plan) else 0
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


def weights_halves(plan: WeightsPlan) -> frozenset[int]:
    """Columns of a tile of weights, in the order (tap, vector), that are halves: where one block has all lanes."""
    rest = plan.lane_count % plan.lanes
    plain = type(plan) in (WeightsPlan, DotWeightsPlan, FarPairsPlan)
    alone = plain and ISAS[plan.isa].halves and not plan.spread and plan.lane_blocks == 1
    if not (alone and 0 < rest <= plan.lanes // 2):
        return frozenset()
    taps = 1 if plan.rows_shift else plan.tile_taps
    return frozenset(range(plan.vectors - 1, taps * plan.vectors, plan.vectors))
