"""Plans that compute all phases of a row at once, by predicted cycles."""

from __future__ import annotations

from collections.abc import Iterator
from math import prod

from convgrad.plan.axes import gather_axes
from convgrad.plan.few_channels.folded import FoldedPlan, folded
from convgrad.plan.general.data import DataPlan
from convgrad.plan.kinds import as_kind
from convgrad.plan.machine import Machine
from convgrad.plan.shares import splits
from convgrad.plan.steps import BROADCAST, FMA_PER_CYCLE, LATENCY, LOADS_PER_CYCLE, SHORT, TILE_OVERHEAD
from convgrad.plan.tiles_along_outputs import PART, ROWS_FAR, ROWS_NEAR_BYTES, VECTOR_BYTES
from convgrad.problem.conv import ConvProblem, Unknown
from convgrad.values import replace

MOST_CHANNELS = 4
MOST_PHASES = 8
MOST_ROWS = 16


def folded_candidates(problem: ConvProblem, machine: Machine, base: DataPlan) -> Iterator[tuple[float, FoldedPlan]]:
    """Predicted cycles of the arithmetic, and a plan of one tile per task, if phases can be computed side by side."""
    s = problem.stride[-1]
    rows = s * problem.x_channels
    fits = problem.unknown is Unknown.X and problem.groups == 1 and problem.dilation[-1] == 1
    if not (fits and 1 < s <= MOST_PHASES and 0 < rows <= MOST_ROWS and problem.x_channels <= MOST_CHANNELS):
        return
    if not (s <= problem.taps[-1] and problem.pad_low[-1] >= 0 and s <= problem.x_extent[-1]):
        return
    inner = folded(problem)
    axes = gather_axes(inner)
    if len(axes[-1].phases) != 1 or not axes[-1].taps or any(not phase.count for axis in axes for phase in axis.phases):
        return
    plan = as_kind(
        FoldedPlan, base, problem=inner, axes=axes, width=rows, pixels=True, pixel_major=False, unfolded=problem
    )
    best: tuple[float, FoldedPlan] | None = None
    *outer, count = (axis.count for axis in axes)
    most = (machine.registers - 2) // (rows + 1)
    for vectors in range(1, most + 1):
        if vectors > 1 and (vectors - 1) * plan.lanes >= count:
            break
        whole = vectors * plan.lanes >= count
        for rest in splits(tuple(outer), most // vectors) if whole else [(1,) * len(outer)]:
            tile = (*rest, vectors * plan.lanes)
            cycles = _cycles(replace(plan, tile=tile, block=tile), prod(rest) * vectors)
            if best is None or cycles < best[0]:
                best = cycles, replace(plan, tile=tile, block=tile)
    if best is not None:
        yield best


def _cycles(plan: FoldedPlan, columns: int) -> float:
    """Of all tiles: every tap of the innermost axis has rows of its own."""
    axes = plan.axes
    channels = max(1, plan.in_channels)
    far = ROWS_FAR if channels * prod(a.taps for a in axes[:-1]) * columns * VECTOR_BYTES > ROWS_NEAR_BYTES else 0.0
    start, lines = axes[-1].reach[0], plan.fills_lines
    (phase,) = axes[-1].phases
    step = 0.0
    for n, rows in enumerate(map(plan.part_rows, plan.met)):
        crosses = (phase.offset + n * axes[-1].offset_step - start) % plan.lanes != 0
        between = columns if crosses else 0  # vectors made of two
        loads = BROADCAST * len(rows) + columns / LOADS_PER_CYCLE if lines else SHORT * (len(rows) + columns)
        step += max((len(rows) * columns + between) / FMA_PER_CYCLE, loads, LATENCY) + far * columns + PART
    visits = prod(axis.visits(size) for axis, size in zip(axes[:-1], plan.tile, strict=False))
    tiles = prod(axis.tiles(size) for axis, size in zip(axes, plan.tile, strict=True))
    visits *= axes[-1].tiles(plan.tile[-1])
    return visits * channels * step + tiles * (TILE_OVERHEAD + plan.width * columns)
