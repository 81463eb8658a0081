"""Shapes of register tiles for sums of outer products, compared by the cycles that they are predicted to take."""

from __future__ import annotations

from dataclasses import dataclass

from convgrad.plan.tiles import FAR, FMA_PER_CYCLE, LATENCY, LOADS_PER_CYCLE, NUMBER, VECTOR, cuts, most_rows

MOST_VECTORS = 4  # side by side in a tile; five and six were slower
FETCH = 0.35  # cycles, not hidden, for a vector of B where A is vectors too
STREAM = 0.05  # cycles, not hidden, for a row of its own in memory that numbers are taken from
STEP = 0.1  # cycles of a step besides


@dataclass(frozen=True, slots=True)
class RowTile:
    """Row channels, taps of the innermost axis and vectors of lanes, and predicted cycles per window."""

    row_channels: int
    taps: int
    vectors: int
    cycles: float


def best_row_tile(
    rows: int, most_taps: int, taps: int, lane_channels: int, lanes: int, registers: int, *, rows_shift: bool,
    a_vector: bool = False,
) -> RowTile:  # fmt: skip
    """The cheapest tile for so many row and lane channels; taps multiply the rows where these shift, else columns.

    A tile holds a divisor of `taps`, at most `most_taps`. With `a_vector` rows are vectors, else numbers.
    """
    best: RowTile | None = None
    for vectors in range(1, MOST_VECTORS + 1):
        if vectors > 1 and (vectors - 1) * lanes >= lane_channels:
            break
        blocks = -(-lane_channels // (vectors * lanes))
        for together in (t for t in range(1, most_taps + 1) if taps % t == 0):
            columns = vectors if rows_shift else vectors * together
            most = most_rows(registers, columns) // (together if rows_shift else 1)
            for channels in cuts(rows, most):
                pieces = -(-rows // channels)
                count = channels * (together if rows_shift else 1)
                step = _step_cycles(count, columns, a_vector=a_vector) + STREAM * channels
                cycles = pieces * blocks * taps // together * (step + STEP)
                if best is None or cycles < best.cycles:
                    best = RowTile(channels, together, vectors, cycles)
    assert best is not None
    return best


def _step_cycles(rows: int, columns: int, *, a_vector: bool) -> float:
    """The slowest of multiply-adds, loads and the latency of a chain of sums, and what nothing hides."""
    products = rows * columns / FMA_PER_CYCLE
    if a_vector:
        return max(products, (columns + rows * columns) / LOADS_PER_CYCLE, LATENCY) + FETCH * columns
    return max(products, NUMBER * rows + (VECTOR + FAR) * columns, LATENCY)
