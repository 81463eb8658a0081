"""Plans for one tap that read and write planes as they lie in memory, by predicted cycles."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TypeVar

from convgrad.dtypes import SIZES
from convgrad.plan.costs import LEAST_TASKS
from convgrad.plan.general.block_costs import block_cost
from convgrad.plan.general.blocks import lanes_shared, own_weights, packing_cost
from convgrad.plan.general.data import DataPlan
from convgrad.plan.general.data_in_place import lines_of_l1
from convgrad.plan.in_place.choose_flat_data import ALIKE, CONVERT, LOAD, STEP
from convgrad.plan.in_place.flat_data import flat
from convgrad.plan.in_place.pointwise import PointwisePlan
from convgrad.plan.kinds import as_kind
from convgrad.plan.machine import Machine
from convgrad.plan.shares import cuts
from convgrad.plan.steps import BROADCAST, FMA_PER_CYCLE, LATENCY, TILE_OVERHEAD
from convgrad.values import replace

Pointwise = TypeVar("Pointwise", bound=PointwisePlan)
MOST_BYTES = 12 * 1024 * 1024  # of an input that is read again and again: from memory, runs of a few tiles are short
MOST_CROSSING = 6 * 1024 * 1024  # of one whose vectors begin inside lines, and end in others that are as far
LONG_RUN = 8  # vectors of a tile that make up for that, if nothing is read again
MOST_CONVERTED = 8  # blocks of output channels, for each of which 16-bit numbers are converted again


def pointwise_candidates(base: DataPlan, cycles: float, machine: Machine) -> Iterator[tuple[float, PointwisePlan]]:
    """Predicted cycles and the plan, where planes are alike and have no gaps.

    `base` is the plan with vectors along outputs that packs what it reads, and takes so many cycles besides that.
    """
    p = base.problem
    if p.accumulate or not (base.in_channels and base.fills_lines) or len(base.axes) != 2 or not flat(base):
        return
    crossing = any(step % base.lanes for step in p.strides[p.given][:3])
    far = p.bytes_of(p.given) > (MOST_CROSSING if crossing else MOST_BYTES)
    plan = as_kind(
        PointwisePlan, base, pixels=True, spread=False, pixel_major=False, unroll=0, lane_groups=1, packs_weights=False,
        reads_in_place=True, writes_in_place=True, i_block=base.in_channels, vectors=1,
    )  # fmt: skip
    found = []
    together = lines_of_l1(SIZES[p.out_dtype] * abs(p.strides[p.solved][2]))  # of channels, written at a time
    most = (min(machine.registers // share, together) for share in (2, 4))
    widths = (width for room in most for width in cuts(plan.out_channels, room))
    for width in dict.fromkeys(widths):
        for vectors in range(1, (machine.registers - 2) // (width + 1) + 1):
            once = width == plan.out_channels and (vectors >= LONG_RUN or not crossing)
            if vectors * plan.lanes <= plan.positions and (once or not far):
                tile = (1, vectors * plan.lanes)
                found.append(replace(plan, width=width, vectors=vectors, tile=tile, block=tile))
    best = min(found, key=_cycles, default=None)
    if best and (p.dtype == best.compute or best.lane_blocks <= MOST_CONVERTED):
        arithmetic = p.groups * _cycles(best)
        best = min(with_blocks(best), key=lambda candidate: block_cost(candidate, arithmetic))
        own = arithmetic + block_cost(best, arithmetic)
        if own < cycles + packing_cost(base, cycles):
            yield min(own, ALIKE * cycles), best


def _cycles(plan: PointwisePlan) -> float:
    """Of all planes of a group."""
    convert = CONVERT if plan.problem.dtype != plan.compute else 0.0
    products = plan.vectors * (plan.width / FMA_PER_CYCLE + convert)
    step = max(products, BROADCAST * plan.width + LOAD * plan.vectors, LATENCY) + STEP
    tiles = plan.axes[0].count * -(-plan.positions // plan.run)
    return plan.lane_blocks * tiles * (plan.in_channels * step + TILE_OVERHEAD + plan.width * plan.vectors)


def with_blocks(plan: Pointwise) -> Iterator[Pointwise]:
    """With more and more tiles in a task, of an image; and output channels shared by tasks, if these are few."""
    tiles, most = 1, -(-plan.positions // plan.run)
    while True:
        block = (1, min(tiles, most) * plan.run)
        for candidate in lanes_shared(replace(plan, block=block, blocks_per_task=plan.lane_blocks), (LEAST_TASKS,)):
            yield candidate
            yield from own_weights(candidate)
        if tiles >= most:
            return
        tiles *= 2
