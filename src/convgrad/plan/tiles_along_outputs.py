"""Shapes of register tiles with vectors along outputs, compared by the cycles that they are predicted to take."""

from __future__ import annotations

from math import prod

from convgrad.plan.axes import GatherAxis
from convgrad.plan.general.data_slab import FEW_ROWS, MOST_PARTS, loads_again
from convgrad.plan.shares import cuts, splits
from convgrad.plan.steps import FMA_PER_CYCLE, LATENCY, NUMBER, SHORT, SHORT_LATENCY, VECTOR, step_bound
from convgrad.plan.tiles import TileShape, sweep_cycles

ASKED_FOR = 0.1  # cycles, not hidden, for a vector that was asked for some steps before
UNALIGNED = 5.0  # loads that a vector along outputs counts for where it crosses cache lines
UNALIGNED_PLANES = 3.5  # likewise against vectors along channels, where both sides are planes; some processors take two
ROWS_FAR = 0.35  # cycles, not hidden, for a vector along outputs: rows of the input are not one stream
PART = 1.0  # cycles of a step besides, where every tap has a loop of its own
VECTOR_BYTES = 64  # or less
PART_ROWS = 1.1  # cycles, as a multiple, of tiles of parts of several rows: those that they read are many streams
ROWS_NEAR_BYTES = 10 * 1024  # of such rows, that are in L1 all the time


def best_pixel_tile(
    axes: tuple[GatherAxis, ...], channels: tuple[int, int], lanes: int, registers: int, *, lines: bool
) -> TileShape:  # fmt: skip
    """The cheapest tile with vectors along the innermost axis, which are cache `lines` or not."""
    _, solved = channels
    best: TileShape | None = None
    *outer, inner = (axis.count for axis in axes)
    in_parts = axes[-1].in_step == len(axes[-1].phases) == 1  # tiles may be parts of several rows
    for width in cuts(solved, registers // 2):
        most = (registers - 2) // (width + 1)  # a row of B, a splat
        for vectors in range(1, most + 1):
            if vectors > 1 and (vectors - 1) * lanes >= inner:
                break
            whole = vectors * lanes >= inner
            rests = splits(tuple(outer), most // vectors) if whole or (in_parts and width > 1) else ()
            if not whole:
                rests = [(1,) * len(outer), *(rest for rest in rests if rest[0] == 1 < prod(rest))]
            for rest in rests:
                tile = (*rest, vectors * lanes)
                cycles = pixel_cycles(axes, channels, lanes, TileShape(tile, width, 0.0), lines=lines)
                if best is None or cycles < best.cycles:
                    best = TileShape(tile, width, cycles)
    assert best is not None
    return best


def pixel_cycles(
    axes: tuple[GatherAxis, ...], channels: tuple[int, int], lanes: int, shape: TileShape, *, lines: bool,
    unaligned: float = UNALIGNED,
) -> float:  # fmt: skip
    """Of all tiles of that shape, of which a vector that crosses lines counts for so many loads."""
    (given, solved), tile, width = channels, shape.tile, shape.width
    row, columns, crossing = axes[-1], prod(tile) // lanes, _crossing(axes[-1], lanes)
    rows_read = given * prod(axis.taps for axis in axes[:-1])
    far = ROWS_FAR if rows_read * columns * VECTOR_BYTES > ROWS_NEAR_BYTES else 0.0
    if not lines:  # of which half as many cross one
        loads = SHORT * (width + columns * (1 + crossing / 2))
        step = max(width * columns / FMA_PER_CYCLE, loads, SHORT_LATENCY) + 1.5 * far * columns
    elif all(axis.taps == 1 for axis in axes) and not crossing and width >= FEW_ROWS:
        step = max(width * columns / FMA_PER_CYCLE, NUMBER * width + VECTOR * columns, LATENCY)
        step += ASKED_FOR * columns
    elif loads_again(width, columns) and row.in_step == 1 < row.taps <= MOST_PARTS:
        step = step_bound(width * columns, width, columns, far * columns + PART, columns * crossing)
    else:
        loads = 1 + (unaligned - 1) * crossing
        step = step_bound(width * columns, width, columns * loads, far * columns)
    cycles = -(-solved // width) * sweep_cycles(axes, tile, given * step, width * columns)
    whole = tile[-1] >= row.count
    return cycles * (1.0 if whole or columns * lanes == tile[-1] else PART_ROWS)


def _crossing(axis: GatherAxis, lanes: int) -> float:
    """The share of taps whose vectors along an axis begin inside a line; those of the first one begin with it."""
    start = axis.reach[0] - axis.reach[0] % axis.in_step
    places = [
        (phase.offset + t * axis.offset_step - start) // axis.in_step
        for phase in axis.phases
        for t in range(phase.taps)
    ]
    return sum(place % lanes != 0 for place in places) / max(1, len(places))
