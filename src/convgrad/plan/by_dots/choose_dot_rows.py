"""Plans that read the rows of planes in place by dot products, with the cycles that they are predicted to take."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import product
from math import prod

from convgrad.plan.axes import in_pairs
from convgrad.plan.by_dots.dot_rows import PAIR, DotRowsPlan, DotRowsTogetherPlan
from convgrad.plan.costs import MOVE
from convgrad.plan.depthwise.choose_plane_rows import MOST_WRITTEN, READ, is_spread, pieces_of, rows_of, shared
from convgrad.plan.depthwise.plane_costs import even_rows
from convgrad.plan.depthwise.plane_rows import PlaneRowsPlan, whole_vectors
from convgrad.plan.kinds import as_kind
from convgrad.plan.machine import Machine
from convgrad.values import replace

MOST_ROWS, MOST_SUMS = 14, 16  # of outputs of a tile; sums, of which there are several where a row has phases
WIDE, STREAMS = 128, 22  # bytes of a row, from which on so many rows at a time are more than a core follows
DOT, LOAD = 0.62, 1.05  # cycles as those of other plans are predicted: of a product, of a vector of the input,
LOOK, STORE, PACK = 0.57, 0.67, 2.0  # of one that is looked at, of one of results, of a pair of taps
TOGETHER = (1, 2, 4)  # planes whose rows share a vector
MERGE, APART, SPREAD = 0.25, 0.5, 1.0  # of a load, for a plane more; to store its part of a row; of a pair of taps then


def dot_rows_candidates(base: PlaneRowsPlan, machine: Machine) -> Iterator[tuple[float, DotRowsPlan]]:
    """Predicted cycles and the plan for X or Y, of a plan for f32 that takes over where data are odd."""
    p, row, inner = base.problem, *base.axes[-2:]
    if not machine.has_dots or p.dtype != "bf16" or not inner.taps or not base.row_offsets:
        return
    inner = inner if inner.in_step > 1 else in_pairs(inner)
    if inner.in_step != PAIR or abs(inner.offset_step) != 1 or not inner.phases[-1].count:
        return
    width = -(-inner.count // base.lanes) * base.lanes
    plan = as_kind(DotRowsPlan, base, axes=(*base.axes[:-1], inner), fallback=base)
    longest = max(inner.count, -(-inner.in_extent // PAIR))
    found = []
    for rows, planes in product(even_rows(row.count, MOST_ROWS), TOGETHER):
        if planes > 1 and (planes * longest > base.lanes or planes > p.groups or p.out_dtype != "bf16"):
            continue
        whole = -(-row.count // rows) * rows
        one = replace(plan, rows=rows, block=(*base.block[:-2], whole, width))
        one = as_kind(DotRowsTogetherPlan, one, planes=planes) if planes > 1 else one
        written, cycles = _cycles(one)
        if (
            (rows == 1 or one.sums <= MOST_SUMS)
            and written <= MOST_WRITTEN
            and not is_spread(one, rows_of(one), WIDE, STREAMS)
        ):
            found.append((cycles, one))
    if found:
        cycles, best = min(found, key=lambda candidate: candidate[0])
        best = shared(best)
        yield cycles, replace(best, run=min(p.groups, -(-best.run // best.together) * best.together))


def _cycles(plan: DotRowsPlan) -> tuple[int, float]:
    """Dot products that are written out, and cycles of all planes."""
    p, (row, inner) = plan.problem, plan.axes[-2:]
    bases = list(plan.words.met)
    met, new = len(plan.row_offsets), min(len(plan.row_offsets), plan.rows * row.in_step)
    shortest = min(phase.count for phase in inner.phases)
    vectors, first, last = whole_vectors(inner.count, shortest, plan.lanes, PAIR, inner.in_extent, bases)
    deep = prod(axis.taps for axis in plan.axes[:-2])
    reads = len(bases) * (1.0 + MERGE * (plan.together - 1))
    of_tile = deep * (DOT * plan.products + LOAD * met * reads + LOOK * new) + STORE * plan.sums
    of_tile += APART * (plan.together - 1) * plan.rows * len(row.phases)
    rows = -(-row.count // plan.rows) * prod(axis.count * len(axis.phases) for axis in plan.axes[1:-2])
    of_planes = rows * vectors * of_tile + (PACK if plan.together == 1 else SPREAD) * plan.together * prod(
        plan.pair_rows
    )
    read = READ * MOVE / PAIR * (prod(p.shapes["x"]) + prod(p.shapes["y"]))
    blocks = -(-p.groups // plan.together) * p.batch
    return plan.products * pieces_of(vectors, first, last), blocks * of_planes + read
