"""Groups of a weights gradient that a task sums one after the other in each block of windows.

It is for sides that are read where they lie, channels last: see `bundles`, which does it for the other operations.
"""

from __future__ import annotations

from math import prod
from typing import TypeVar

from convgrad.dtypes import SIZES
from convgrad.plan.costs import BEHIND, BEYOND_L2, MOST_BEYOND, PAGE, PAGE_AGAIN
from convgrad.plan.general.weights import WeightsPlan
from convgrad.values import replace

Plan = TypeVar("Plan", bound=WeightsPlan)

FEW_PAGES = 48  # of a side, that a block of windows may have, and a core finds again for the next group
TASKS = 8  # at least, of chunks and bundles: for a few threads
FEWEST = 3  # groups at once
SUM_BYTES = 160 * 1024  # of the sums of so many chunks, which L2 keeps beside all else
WORTH = 0.3  # of the cycles of the arithmetic, that tasks of one group would take to come back to pages


def grouped(plan: Plan, cycles: float, most_chunks: int) -> Plan:
    """With tasks of all groups, or of a few at once, if those come back to many pages else."""
    if not plan.may_group or plan.problem.groups == 1:
        return plan
    again = sum(_pages(plan, name) for name in "xy") * plan.problem.groups * PAGE_AGAIN * MOST_BEYOND
    if again - BEHIND * cycles < WORTH * cycles:
        return plan
    groups, chunks = plan.problem.groups, plan.chunks
    if SIZES[plan.compute] * plan.sum_size * TASKS <= SUM_BYTES:
        chunks = min(most_chunks, max(chunks, TASKS))
    at_once = -(-groups // max(1, TASKS // chunks))
    if at_once < FEWEST:
        return plan
    return replace(plan, chunks=chunks, at_once=at_once, lane_shares=1, row_shares=1)


def _pages(plan: WeightsPlan, name: str) -> float:
    """Of a side beyond L2 that is read where it lies, if a block of windows has few of them."""
    p, step = plan.problem, abs(plan.problem.strides[name][-1])
    in_place = plan.x_in_place if name == "x" else plan.y_in_place
    apart = in_place and p.strides[name][2] == 1 and p.bytes_of(name) > BEYOND_L2
    positions = prod(plan.block) * (prod(axis.stride for axis in plan.axes) if name == "x" else 1)
    few = positions * SIZES[p.dtype] * step <= FEW_PAGES * PAGE
    return p.bytes_of(name) / PAGE if apart and few else 0.0
