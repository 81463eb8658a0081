"""How much of a problem that solves for X or Y one task packs and computes: blocks to choose from.

Sizes are of a core's share of L2 on the machines that matter, not read from the machine: blocks decide the order of
sums, and equal instruction sets are to give equal bits.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import product
from math import prod
from typing import TypeVar

from convgrad.plan.costs import LEAST_CHANNELS, LEAST_TASKS
from convgrad.plan.general.block_costs import (
    EVEN_TASKS,
    LONG_CYCLES,
    block_cost,
    comes_whole,
    in_planes,
    rows_of_whole,
)
from convgrad.plan.general.bundles import bundled
from convgrad.plan.general.data import DataPlan
from convgrad.plan.general.data_in_place import outputs_near, writes_in_place
from convgrad.plan.general.data_slab import FEW_ROWS
from convgrad.plan.general.room import MOST_BYTES, roomy
from convgrad.plan.general.weights_in_place import with_weights_in_place
from convgrad.plan.shares import even_share
from convgrad.problem.conv import Ints
from convgrad.values import replace

Plan = TypeVar("Plan", bound=DataPlan)

FEW_TILES = 8  # of a block read in place, below which it is a whole row
MOST_PACKINGS = 2  # of the same weights that may be worth while


def best_blocks(plan: Plan, cycles: float) -> Plan:
    """The plan with the blocks, and the share of input channels, of the lowest cost; `cycles` are its arithmetic's."""
    whole = type(plan) is DataPlan and comes_whole(plan) and plan.tile[-1] <= rows_of_whole(plan)
    shares = [plan.in_channels if whole else plan.i_block]
    least = max(LEAST_CHANNELS, plan.channel_unit)
    while not (plan.spread or plan.reads_in_place or plan.run_asked_for or whole) and shares[-1] >= 2 * least:
        half = even_share(plan.in_channels, -(-shares[-1] // 2))
        shares.append(-(-half // plan.channel_unit) * plan.channel_unit)
    near = outputs_near(plan, cycles) if plan.reads_in_place else None
    outputs: list[Ints] = [(*plan.tile[:-1], near)] if near else []
    if plan.problem.groups > 1 or not near:
        outputs += _blocks(plan)
    blocks = [replace(plan, i_block=share, block=block) for block in outputs for share in shares]
    wanted = (LEAST_TASKS, EVEN_TASKS) if cycles > LONG_CYCLES else (LEAST_TASKS,)
    candidates = [shared for block in blocks for shared in lanes_shared(block, wanted)]
    if plan.may_pack_weights:
        candidates += [own for candidate in candidates for own in own_weights(candidate)]
    candidates += [more for candidate in candidates for more in bundled(candidate)]
    if plan.spread and not plan.reads_in_place:
        candidates = [fewer for candidate in candidates for fewer in _halved(candidate)]
    best = roomy(candidates, lambda candidate: block_cost(candidate, cycles), _work_bytes)
    if _work_bytes(best) > MOST_BYTES and (tile := _smaller_tile(plan)):
        return best_blocks(replace(plan, tile=tile, block=tile), cycles)
    return best


def _smaller_tile(plan: DataPlan) -> Ints | None:
    """Half of a tile whose windows reach too far, if it need not be whole."""
    counts = plan.tile[:-1] if plan.pixels else plan.tile
    if type(plan) is not DataPlan or plan.reads_in_place or max(counts) == 1:
        return None
    longest = counts.index(max(counts))
    return tuple(size // 2 if n == longest else size for n, size in enumerate(plan.tile))


def best_outputs(plan: Plan, cycles: float) -> Plan:
    """The plan with the blocks of outputs of the lowest cost, and all else as it is."""
    blocks = [replace(plan, block=block) for block in _blocks(plan)]
    return roomy(blocks, lambda candidate: block_cost(candidate, cycles), _work_bytes)


def _work_bytes(plan: DataPlan) -> int:
    """Of a task, of the plan that becomes of this one: with weights and output in place, if they can be."""
    plan = with_weights_in_place(plan)
    return replace(plan, writes_in_place=plan.writes_in_place or writes_in_place(plan)).work_bytes[1]


def packing_cost(plan: DataPlan, cycles: float) -> float:
    """Predicted cycles that the best blocks take beyond those of the arithmetic."""
    return block_cost(best_blocks(plan, cycles), cycles)


def _halved(plan: Plan) -> Iterator[Plan]:
    """With fewer and fewer groups per task: all of a position at once, or a few planes."""
    if in_planes(plan):
        plan = replace(plan, blocks_per_task=1)
    while True:
        yield plan
        if plan.blocks_per_task == 1:
            return
        plan = replace(plan, blocks_per_task=even_share(plan.lane_blocks, -(-plan.blocks_per_task // 2)))


def lanes_shared(plan: Plan, wanted: Ints) -> Iterator[Plan]:
    """With the lane blocks divided among tasks where blocks of outputs alone are fewer than wanted."""
    tasks = prod(plan.grid)
    shares = (-(-plan.lane_blocks // -(-least // tasks)) for least in wanted)
    for blocks_per_task in dict.fromkeys(max(1, share) for share in shares):
        yield replace(plan, blocks_per_task=blocks_per_task)


def own_weights(plan: Plan) -> Iterator[Plan]:
    """With tasks that pack their own weights, if few tasks need the same: as many lane blocks each, or one."""
    if prod(plan.grid) > MOST_PACKINGS * plan.group_blocks * -(-plan.lane_blocks // plan.blocks_per_task):
        return
    yield replace(plan, packs_weights=True)
    if plan.blocks_per_task > 1 and not plan.spread:
        yield replace(plan, packs_weights=True, blocks_per_task=1)


def _blocks(plan: DataPlan) -> Iterator[Ints]:
    """Blocks to try: the innermost two axes in some sizes each, outer axes only once those are whole."""
    counts = [axis.count for axis in plan.axes]
    whole = [-(-count // tile) * tile for count, tile in zip(counts, plan.tile, strict=True)]
    inner = min(2, len(counts))
    few, long = plan.pixels and plan.width <= FEW_ROWS, 32 if plan.BY_DOTS else 64
    sizes = [_sizes(plan.tile[n], whole[n], pixels=plan.pixels, few=few, long=long) for n in range(len(counts))]
    if plan.reads_in_place and plan.problem.groups == 1:
        # Borders are outputs of their own, and the last tile of a block repeats some.
        sizes[-1] = [size for size in sizes[-1] if size >= FEW_TILES * plan.tile[-1] or size == whole[-1]]
    for chosen in product(*sizes[-inner:]):
        yield (*plan.tile[:-inner], *chosen)
    for n in reversed(range(len(counts) - inner)):
        for size in sizes[n][1:]:
            yield (*plan.tile[:n], size, *whole[n + 1 :])


def _sizes(tile: int, whole: int, *, pixels: bool, few: bool, long: int) -> list[int]:
    sizes = [tile]
    fine = 16 if few else 8  # what few rows read again and again is to fit L1
    while sizes[-1] < whole:
        by = 2 if sizes[-1] * fine >= whole or (not pixels and sizes[-1] >= long) else 4
        sizes.append(min(whole, sizes[-1] * by))
    return sizes
