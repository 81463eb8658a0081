"""Plans for one tap by dot products that read and write planes as they lie in memory, by predicted cycles."""

from __future__ import annotations

from collections.abc import Iterator
from math import gcd

from convgrad.dtypes import SIZES
from convgrad.plan.by_dots.dot_pointwise import DotPointwisePlan
from convgrad.plan.by_dots.dots import LANES, PAIR, DotDataPlan
from convgrad.plan.by_dots.paired_outputs import paired
from convgrad.plan.costs import FAR_BYTES
from convgrad.plan.general.block_costs import block_cost
from convgrad.plan.general.blocks import packing_cost
from convgrad.plan.in_place.choose_flat_data import ALIKE
from convgrad.plan.in_place.choose_pointwise import MOST_CROSSING, with_blocks
from convgrad.plan.in_place.flat_data import flat
from convgrad.plan.kinds import as_kind
from convgrad.plan.machine import Machine
from convgrad.plan.shares import cuts
from convgrad.plan.steps import FMA_PER_CYCLE, LATENCY, TILE_OVERHEAD
from convgrad.problem.conv import ConvProblem
from convgrad.values import replace

MOST_VECTORS = 4
READ, CROSSING = 0.05, 0.8  # cycles, not hidden, for a vector of the input; and for one that ends in another line
WORTH = 1.05  # times fewer cycles than packing, as predicted, from which on planes are read in place
TAKEN = 3  # registers beside sums and words
WAYS, SETS_BYTES = 8, 128 * 1024  # of L2, or more: lines that far apart, or a multiple, share a place for so many
CROWDED = 0.75  # of the planes that there is room for, from which on hardly a line stays


def dot_pointwise_candidates(
    base: DotDataPlan, cycles: float, machine: Machine
) -> Iterator[tuple[float, DotPointwisePlan]]:
    """Predicted cycles and the plan, where planes are alike and have no gaps; `base` packs, in so many cycles."""
    p = base.problem
    if base.taps != 1 or p.dtype != "bf16" or p.accumulate or base.in_channels < PAIR or len(base.axes) != 2:
        return
    if not flat(base) or (_crosses(p) and p.bytes_of(p.given) > MOST_CROSSING):
        return
    plan = as_kind(
        DotPointwisePlan, base, problem=paired(p), numbers=p, pixels=True, spread=False, pixel_major=False, unroll=0,
        lane_groups=1, packs_weights=False, reads_in_place=True, writes_in_place=True,
        i_block=-(-base.in_channels // PAIR), vectors=PAIR,
    )  # fmt: skip
    found = []
    for vectors in range(PAIR, MOST_VECTORS + 1, PAIR):
        most = (machine.registers - TAKEN - vectors) // vectors
        tile = (1, vectors * LANES)
        if tile[1] <= plan.positions:
            widths = dict.fromkeys((*cuts(plan.out_channels, most), *cuts(plan.out_channels, 2 * most // 3)))
            found += [replace(plan, width=width, vectors=vectors, tile=tile, block=tile) for width in widths]
    best = min(found, key=_cycles, default=None)
    if best:
        arithmetic = p.groups * _cycles(best)
        best = min(with_blocks(best), key=lambda candidate: block_cost(candidate, arithmetic))
        again = _read_again(best)  # if so, the copies that `cycles` has are not counted once more
        own = arithmetic + block_cost(best, arithmetic) + again
        wastes = arithmetic >= cycles  # tiles, of short planes, so many outputs that packing is the lesser evil
        packed = cycles + (0.0 if again else packing_cost(base, cycles))
        if not wastes and WORTH * own < packed:
            yield min(own, ALIKE * cycles), best


def _crosses(p: ConvProblem) -> bool:
    """Whether planes begin inside of lines."""
    return any(step % (PAIR * LANES) for step in p.strides[p.given][:3])


def _read_again(plan: DotPointwisePlan) -> float:
    """Cycles for all blocks of output channels but one, where planes push each other out of L2."""
    p = plan.numbers
    step = SIZES[p.dtype] * abs(p.strides[p.given][2])
    room = WAYS * (SETS_BYTES // gcd(step, SETS_BYTES))
    crowded = p.shapes[p.given][2] > CROWDED * room
    return (plan.lane_blocks - 1) * p.bytes_of(p.given) / FAR_BYTES if crowded else 0.0


def _cycles(plan: DotPointwisePlan) -> float:
    """Of all planes of a group."""
    sums = plan.width * plan.vectors
    tiles = plan.axes[0].count * -(-plan.positions // plan.run)
    read = CROSSING if _crosses(plan.numbers) else READ
    step = max(sums / FMA_PER_CYCLE, LATENCY) + read * plan.vectors
    return plan.lane_blocks * tiles * (plan.in_channels * step + TILE_OVERHEAD + sums)
