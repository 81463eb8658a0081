"""Shapes of register tiles for sums of outer products, compared by the cycles that they are predicted to take."""

from __future__ import annotations

from itertools import product

from convgrad.plan.shares import cuts
from convgrad.plan.steps import FAR, FMA_PER_CYCLE, LATENCY, LOADS_PER_CYCLE, NUMBER, VECTOR, most_rows
from convgrad.plan.window_axes import WindowAxis
from convgrad.values import frozen

MOST_VECTORS = 4  # side by side in a tile; five and six were slower
FETCH = 0.35  # cycles, not hidden, for a vector of B where A is vectors too
STREAM = 0.05  # cycles, not hidden, for a row of its own in memory that numbers are taken from
CROSSING = 1.0  # cycles more, of the ports that load, for a vector that lies across two lines
ONE_VECTOR = 0.95  # cycles, measured, for each row of a tile of one vector, all of it
STEP = 0.1  # cycles of a step besides


@frozen
class RowTile:
    """Row channels, taps of the innermost axis and vectors of lanes, and predicted cycles of a row of windows."""

    row_channels: int
    taps: int
    vectors: int
    cycles: float


def best_row_tile(
    rows: int, axis: WindowAxis, lane_channels: int, lanes: int, registers: int, *, rows_shift: bool,
    a_vector: bool = False, ends_early: bool = False,
) -> RowTile:  # fmt: skip
    """The cheapest tile for so many row and lane channels; taps multiply the rows where these shift, else columns.

    `ends_early`, the last block of lanes and the last rows have no vectors and rows that nobody wants.

    A tile holds a divisor of the taps; where x is met by some of them, these alone are summed. With `a_vector` rows are
    vectors, else numbers, and taps beside x are products with zeros.
    """
    best: RowTile | None = None
    first, last = axis.inside
    most = axis.taps if a_vector or first < last or not axis.clipped else 1
    ways = [
        (t, {t: axis.windows * axis.taps // t} if a_vector else axis.meeting(t))
        for t in range(1, min(most, registers) + 1)  # more sums than that fit no tile
        if axis.taps % t == 0
    ]
    for vectors in range(1, MOST_VECTORS + 1):
        if vectors > 1 and (vectors - 1) * lanes >= lane_channels:
            break
        blocks, rest = divmod(-(-lane_channels // lanes), vectors)
        if not ends_early:
            blocks, rest = blocks + bool(rest), 0
        for together, meeting in ways:
            columns = vectors if rows_shift else vectors * together
            most = most_rows(registers, columns) // (together if rows_shift else 1)
            for channels in cuts(rows, most):
                pieces, left = divmod(rows, channels) if ends_early else (-(-rows // channels), 0)
                cycles = 0.0
                for met, windows in meeting.items():
                    rows_met, columns_met = (met, 1) if rows_shift else (1, met)
                    for (many, size), (tiles, of) in product(
                        ((pieces, channels), (bool(left), left)), ((blocks, vectors), (bool(rest), rest))
                    ):
                        step = step_cycles(size * rows_met, of * columns_met, a_vector=a_vector)
                        streams = 0.0 if columns == 1 and not a_vector else STREAM * size
                        cycles += many * tiles * windows * (step + streams + STEP)
                if best is None or cycles < best.cycles:
                    best = RowTile(channels, together, vectors, cycles)
    assert best is not None
    return best


def step_cycles(rows: int, columns: int, *, a_vector: bool, crossing: float = 0.0) -> float:
    """The slowest of multiply-adds, loads and the latency of a chain of sums, and what nothing hides.

    `crossing` is the share of vectors of B that lie across cache lines.
    """
    products = rows * columns / FMA_PER_CYCLE
    if a_vector:
        return max(products, (columns + rows * columns) / LOADS_PER_CYCLE, LATENCY) + FETCH * columns
    if columns == 1:
        return max(products, ONE_VECTOR * rows + CROSSING * crossing, LATENCY)
    return max(products, NUMBER * rows + (VECTOR + FAR + CROSSING * crossing) * columns, LATENCY)
