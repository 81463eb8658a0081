"""The plan of a weights gradient of single channels, with what they meet side by side, by predicted cycles."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from math import prod

from convgrad.plan.costs import LINE
from convgrad.plan.depthwise_weights import DepthwiseWeightsPlan
from convgrad.plan.machine import Machine
from convgrad.plan.tiles import FMA_PER_CYCLE
from convgrad.plan.weights import WeightsPlan
from convgrad.plan.window_blocks import rows_of_windows

ROWS, COLUMNS = 2, 4  # windows of a tile: more gain nothing
SPARE = 2  # registers besides sums and windows
MOST_TAPS = 49
MOST_ZEROS = 64 * 1024  # numbers of a row that a tile may reach over
LOAD = 0.6  # cycles of a vector that begins with a cache line, and of a sum, either way
ALIKE = 0.95  # of the cycles of tiles of one row of taps, at most


def depthwise_weights_candidates(
    base: WeightsPlan, cycles: float, machine: Machine
) -> Iterator[tuple[float, DepthwiseWeightsPlan]]:
    """Predicted cycles and the plan; `base` has the same lanes, in tiles of one row of taps, and takes `cycles`."""
    p, taps, side = base.problem, base.problem.taps, base.lane_side
    if p.rank != 2 or base.row_count != 1 or not (base.lane_count == 1 if base.spread else p.groups == 1):
        return
    lanes, steps = p.groups if base.spread else base.lane_count, [p.strides[n][1] for n in "xy"]
    if set(steps if base.spread else [p.strides[side][2]]) != {1}:
        return
    if lanes < base.lanes or (lanes % base.lanes and machine.lanes_f32 * 4 != LINE):
        return
    if prod(taps) > MOST_TAPS or p.x_strides[-1] <= 0 or 0 in (*p.shapes["x"], *p.shapes["y"]):
        return
    rows = min(ROWS, base.axes[-2].windows)
    fitting = (machine.registers - SPARE - rows * taps[-1]) // taps[-1]
    if fitting < 1:
        return
    fields = {name: getattr(base, name) for name, field in WeightsPlan.__dataclass_fields__.items() if field.init}
    fields |= {"vectors": -(-lanes // base.lanes), "lane_groups": p.groups, "row_channels": 1, "tile_taps": 1}
    plan = DepthwiseWeightsPlan(
        **fields | {"unroll": 1, "direct": True}, rows=rows, columns=COLUMNS, tap_rows=min(taps[-2], fitting)
    )
    if plan.zeros > MOST_ZEROS:
        return
    blocked = rows_of_windows(plan)
    block = (1, max(rows, blocked.block[-2] // rows * rows), blocked.block[-1])
    plan = replace(plan, block=block)
    plan = replace(plan, chunks=min(blocked.chunks, prod(plan.block_grid)))
    yield min(_cycles(plan), ALIKE * cycles), plan


def _cycles(plan: DepthwiseWeightsPlan) -> float:
    """Of all tiles."""
    p, (row, inner) = plan.problem, plan.axes[-2:]
    of_tile = 0.0
    for tap_rows, many in plan.tap_pieces:
        x_rows = row.stride * (plan.rows - 1) + tap_rows if row.stride < tap_rows else plan.rows * tap_rows
        x_columns = min(plan.x_columns, plan.columns * inner.taps)
        sums = tap_rows * inner.taps
        loads = LOAD * (x_rows * x_columns + plan.rows * plan.columns + 2 * sums)
        of_tile += many * max(sums * plan.rows * plan.columns / FMA_PER_CYCLE, loads)
    return p.batch * -(-row.windows // plan.rows) * -(-inner.windows // plan.columns) * plan.vectors * of_tile
