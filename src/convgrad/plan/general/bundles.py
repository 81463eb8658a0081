"""Groups with a part of every position of a tensor, channels last: how many a task computes, and what that costs.

A task of one group writes a few lines of each position, and tasks of other groups come back to the same pages. If a
task computes several groups of a few positions, it leaves these pages once, and packs whole lines of the input.
"""

from __future__ import annotations

from collections.abc import Iterator
from math import log2, prod
from typing import TypeVar

from convgrad.dtypes import SIZES
from convgrad.plan.costs import BEHIND, COPIED, MOST_BEYOND, PAGE, PAGE_AGAIN
from convgrad.plan.general.data import KEPT_BYTES, DataPlan
from convgrad.plan.general.data_in_place import LARGE, writes_in_place
from convgrad.problem.conv import Ints
from convgrad.values import replace

Plan = TypeVar("Plan", bound=DataPlan)

MOST_BUNDLES = 8  # of the groups of a position that are worth a try
FEW_PAGES = 10  # of a tensor, up to which a core finds out what comes next in each of them
FAR_AGAIN = 3.0  # as much for an input that comes from memory
COPIES_AGAIN = 0.5  # as much for copies
SWEEP, PHASE = 15.0, 5.0  # cycles to begin with the tiles of a group, and of a phase


def bundled(plan: Plan) -> Iterator[Plan]:
    """With tasks of several groups: all of a position at once, or a part."""
    share = plan.problem.groups
    while plan.may_bundle and share > max(1, plan.problem.groups // MOST_BUNDLES):
        yield replace(plan, bundle=share)
        share = -(-share // 2)


def grouping_cost(plan: DataPlan, cycles: float) -> float:
    """Predicted cycles that groups take because they are apart, `cycles` being those of the arithmetic."""
    p = plan.problem
    if not _by_groups(plan):
        return 0.0
    phases = prod(len(axis.phases) for axis in plan.axes)
    sweeps = (SWEEP + PHASE * phases) * prod(plan.grid) * plan.bundle * plan.blocks_per_task
    again = coming_back(plan)
    if _is_large(plan, p.solved) and not (plan.reads_in_place or writes_in_place(plan)):
        again = COPIES_AGAIN * again + prod(p.shapes[p.solved]) * COPIED
    return sweeps + max(0.0, again - BEHIND * cycles)


def coming_back(plan: DataPlan) -> float:
    """Cycles to come back to pages of an output beyond L2, group by group, and of an input that is read in place."""
    p = plan.problem
    if not _by_groups(plan):
        return 0.0
    cycles = _pages_again(plan, p.solved, plan.result_extent) if _is_large(plan, p.solved) else 0.0
    if plan.reads_in_place and _is_large(plan, p.given):
        far = FAR_AGAIN if p.bytes_of(p.given) > LARGE else 1.0
        cycles += far * _pages_again(plan, p.given, plan.slab_extent)
    return cycles


def _pages_again(plan: DataPlan, tensor: str, extent: Ints) -> float:
    """Of a tensor, of which so many positions are met at a time."""
    p = plan.problem
    *outer, inner = extent
    run = SIZES[p.dtype] * inner * abs(p.strides[tensor][-1]) / PAGE
    beyond = log2(max(1.0, prod(outer) * max(1.0, run) / FEW_PAGES))
    return p.groups * p.bytes_of(tensor) / PAGE * PAGE_AGAIN * min(beyond, MOST_BEYOND)


def _by_groups(plan: DataPlan) -> bool:
    """Whether each task, or each sweep of one, is of a single group."""
    return plan.problem.groups > 1 and not (plan.pixels or plan.spread)


def _is_large(plan: DataPlan, tensor: str) -> bool:
    """Whether each group has a part of every position of a tensor beyond L2."""
    return plan.problem.strides[tensor][2] == 1 and plan.problem.bytes_of(tensor) > KEPT_BYTES
