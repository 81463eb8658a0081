"""Shapes of register tiles, compared by the cycles that they are predicted to take."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from math import prod

from convgrad.problem.conv import Ints

FMA_PER_CYCLE = 2.0
LOADS_PER_CYCLE = 2.0
TILE_OVERHEAD = 12.0  # cycles to set up, and for the loads and stores of C, per register tile and row


@dataclass(frozen=True, slots=True)
class TileShape:
    """Outputs per axis, vectors of lanes, and predicted cycles for all tiles of all lane blocks."""

    tile: Ints
    vectors: int
    cycles: float


def most_rows(registers: int, vectors: int, a_vector: bool) -> int:
    """Rows of a tile that leave room for one row of B and, with lanes of A, a vector of A."""
    spare = registers - vectors - 1
    return spare // vectors


def splits(counts: Ints, most: int) -> Iterator[Ints]:
    """Ways to cut the innermost axes into tiles of at most `most` outputs; an axis is cut only if all inner are whole."""
    if not counts:
        yield ()
        return
    *outer, inner = counts
    seen = set()
    for pieces in range(1, inner + 1):
        size = -(-inner // pieces)
        if size > most or size in seen:
            continue
        seen.add(size)
        if size == inner:
            yield from ((*tile, size) for tile in splits(tuple(outer), max(1, most // size)))
        else:
            yield (*([1] * len(outer)), size)
        if size == 1:
            break
        if len(seen) > 12:
            break


def best_tile(
    counts: Ints, channels: int, depth: int, lanes: int, registers: int, *, a_vector: bool = False, widest: int = 4
) -> TileShape:
    """The cheapest way to cover `counts` outputs of `channels` lanes with tiles whose sums have `depth` terms."""
    best: TileShape | None = None
    for vectors in range(1, widest + 1):
        if vectors > 1 and (vectors - 1) * lanes >= channels:
            break
        blocks = -(-channels // (vectors * lanes))
        for tile in splits(counts, most_rows(registers, vectors, a_vector)):
            rows = prod(tile)
            loads = vectors + (rows * vectors if a_vector else rows)
            step = max(rows * vectors / FMA_PER_CYCLE, loads / LOADS_PER_CYCLE, 4.0 if rows * vectors < 8 else 0.0)
            tiles = prod(-(-count // size) for count, size in zip(counts, tile, strict=True))
            cycles = tiles * blocks * (depth * step + TILE_OVERHEAD + rows * vectors)
            if best is None or cycles < best.cycles:
                best = TileShape(tile, vectors, cycles)
    assert best is not None
    return best


@dataclass(frozen=True, slots=True)
class RowTile:
    """Row channels, taps of the innermost axis and vectors of lanes, and predicted cycles per window."""

    row_channels: int
    taps: int
    vectors: int
    cycles: float


def best_row_tile(
    rows: int, taps: int, lane_channels: int, lanes: int, registers: int, *, rows_shift: bool, a_vector: bool = False
) -> RowTile:
    """The cheapest tile for sums of outer products; taps multiply the rows where these shift, else the columns."""
    best: RowTile | None = None
    for vectors in range(1, 5):
        if vectors > 1 and (vectors - 1) * lanes >= lane_channels:
            break
        blocks = -(-lane_channels // (vectors * lanes))
        for together in (t for t in range(1, taps + 1) if taps % t == 0):
            columns = vectors if rows_shift else vectors * together
            most = most_rows(registers, columns, a_vector) // (together if rows_shift else 1)
            for pieces in range(1, rows + 1):
                channels = -(-rows // pieces)
                if channels > most:
                    continue
                count = channels * (together if rows_shift else 1)
                loads = columns + (count * columns if a_vector else count)
                step = max(count * columns / FMA_PER_CYCLE, loads / LOADS_PER_CYCLE, 4.0)
                cycles = pieces * blocks * taps // together * (step + 0.1)
                if best is None or cycles < best.cycles:
                    best = RowTile(channels, together, vectors, cycles)
                if pieces > 1 and channels < 4:
                    break
    assert best is not None
    return best
