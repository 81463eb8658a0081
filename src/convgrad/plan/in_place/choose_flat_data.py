"""Plans that read and write planes as they lie in memory, by predicted cycles."""

from __future__ import annotations

from collections.abc import Iterator
from math import prod

from convgrad.dtypes import SIZES
from convgrad.plan.costs import LEAST_TASKS
from convgrad.plan.general.block_costs import ROWS_BYTES
from convgrad.plan.general.blocks import packing_cost
from convgrad.plan.general.data import DataPlan
from convgrad.plan.in_place.flat_data import FlatDataPlan, flat
from convgrad.plan.kinds import as_kind
from convgrad.plan.machine import Machine
from convgrad.plan.shares import cuts
from convgrad.plan.steps import BROADCAST, FMA_PER_CYCLE, LATENCY, TILE_OVERHEAD
from convgrad.values import replace

MOST_CHANNELS = 16  # of the input: as many planes are read at a time
MOST_TAPS = 9  # of a row, which are written out
MOST_COLUMNS = 1024  # of which each has an entry in tables of masks; longer rows are as well read one by one
LOAD, FAR_LOAD = 2.0, 4.0  # cycles for a vector, most of which cross cache lines, from L1 and from L2
STEP = 1.5  # cycles of a step besides
CONVERT = 1.0  # cycles of the ports that multiply, to convert a vector of 16-bit numbers
MASKS = 8  # that registers nearly hold
MASK = 4.0  # cycles to fetch one more
ALIKE = 0.99  # of the cycles of a plan that packs, where packing makes that one slower
BORDER = 3.0  # cycles for the masks of a vector and a tap of the rows, in tiles that reach beyond a plane


def flat_data_candidates(base: DataPlan, cycles: float, machine: Machine) -> Iterator[tuple[float, FlatDataPlan]]:
    """Predicted cycles and the plan, where planes are alike.

    `base` is the plan with vectors along outputs that packs what it reads, and takes so many cycles besides that.
    """
    p = base.problem
    masked = base.fills_lines  # as instruction sets with masks are
    if not masked or p.accumulate or not flat(base):
        return
    if not 0 < base.in_channels <= MOST_CHANNELS or base.axes[-1].taps > MOST_TAPS:
        return
    if len(base.axes) > 2 and base.axes[-1].count > MOST_COLUMNS:
        return
    plan = as_kind(
        FlatDataPlan, base, pixels=True, spread=False, pixel_major=False, unroll=0, lane_groups=1, packs_weights=False,
        reads_in_place=True, writes_in_place=True, i_block=base.in_channels, vectors=1,
    )  # fmt: skip
    found = [
        replace(plan, width=width, vectors=vectors)
        for width in cuts(plan.out_channels, machine.registers // 2)
        for vectors in range(1, _most_vectors(width, machine.registers) + 1)
        if vectors * plan.lanes <= plan.positions
    ]
    if found:
        best = min(found, key=_cycles)
        own = p.groups * _cycles(best)
        if own < cycles + packing_cost(base, cycles):
            yield min(own, ALIKE * cycles), _shared(best)


def _most_vectors(width: int, registers: int) -> int:
    """Of a tile; each takes two registers besides sums, one with those of a single channel, or LLVM spills some."""
    return (registers - 2) // (width + 1) if width == 1 else registers // (width + 2)


def _cycles(plan: FlatDataPlan) -> float:
    """Of all planes of a group."""
    near = plan.in_channels * prod(axis.taps for axis in plan.axes[: plan.outer]) * plan.positions
    apart = any(axis.taps > 1 for axis in plan.axes[: plan.outer])  # taps whose planes are far from each other
    load = FAR_LOAD if apart and SIZES[plan.compute] * near > ROWS_BYTES else LOAD
    convert = CONVERT if plan.problem.dtype != plan.compute else 0.0
    products = plan.vectors * (plan.width / FMA_PER_CYCLE + convert)
    step = max(products, BROADCAST * plan.width + load * plan.vectors, LATENCY) + STEP
    masks = plan.vectors * sum(shift != 0 for shift in plan.column_shifts)
    if masks > MASKS:
        step += MASK * plan.vectors / plan.channel_unit
    taps = plan.rows.taps * (plan.columns.taps if plan.columns else 1)
    outer = prod(axis.visits(1) for axis in plan.axes[: plan.outer])
    low, high = plan.inside
    tiles = -(-plan.positions // plan.run)
    borders = min(tiles, -(-low // plan.run) + -(-(plan.positions - plan.run - high) // plan.run))
    cycles = outer * (
        tiles * plan.in_channels * taps * step + borders * plan.runs * plan.rows.taps * plan.vectors * BORDER
    )
    cycles += prod(axis.count for axis in plan.axes[: plan.outer]) * tiles * (TILE_OVERHEAD + plan.width * plan.vectors)
    return cycles * plan.lane_blocks


def _shared(plan: FlatDataPlan) -> FlatDataPlan:
    """With blocks of rows, smaller ones if tasks are few or if several blocks of channels read the same planes."""
    count, inner = plan.rows.count, (plan.pitch,) if plan.columns else ()
    ones = (1,) * plan.outer

    def blocked(rows: int) -> FlatDataPlan:
        tile = (*(1 for _ in plan.axes[:-1]), plan.run)
        return replace(plan, block=(*ones, rows, *inner), tile=tile, blocks_per_task=plan.lane_blocks)

    rows = count
    while rows > 1 and rows * plan.pitch >= 4 * plan.run:
        read = SIZES[plan.compute] * plan.in_channels * rows * plan.pitch
        if prod(blocked(rows).grid) >= LEAST_TASKS and (plan.lane_blocks == 1 or read <= ROWS_BYTES):
            break
        rows = -(-rows // 2)
    shared = blocked(rows)
    pieces = -(-LEAST_TASKS // prod(shared.grid))
    shared = replace(shared, blocks_per_task=max(1, -(-plan.lane_blocks // pieces)))
    return replace(shared, packs_weights=prod(shared.grid) == shared.group_blocks)
