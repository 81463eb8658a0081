"""Shapes of register tiles, compared by the cycles that they are predicted to take."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from math import prod

from convgrad.plan.axes import GatherAxis, Phase
from convgrad.plan.shares import cuts, splits
from convgrad.plan.steps import (
    FMA_PER_CYCLE,
    LATENCY,
    NUMBER,
    SHUFFLES_PER_CYCLE,
    TILE_OVERHEAD,
    VECTOR,
    dot_cycles,
    most_rows,
    step_bound,
    step_inside,
)
from convgrad.problem.conv import ConvProblem, Ints
from convgrad.values import frozen

MOST_VECTORS = 6  # side by side in a tile
UNEVEN, SHORT_UNEVEN = 1.05, 1.02  # cycles, as a multiple, of blocks of lanes of which the last one has fewer vectors
SPARE = 4  # registers for elements of A that several taps share, which LLVM reads early
MOST_SHARING = 120  # multiply-adds of a step whose taps share what they read
BURST = 0.1  # cycles, times the square of the vectors that a tile writes in place: cores look no further ahead
TURNED_OVERHEAD = 6.0  # of one that begins with zeros, and whose results are stored as they are turned


@frozen
class TileShape:
    """Outputs per axis, channels per block, and predicted cycles for all outputs of one group (or all, if spread)."""

    tile: Ints
    width: int
    cycles: float


def bursts_of(problem: ConvProblem) -> float:
    """What `best_tile` is told of tiles that write in place: nothing where weights outweigh the results.

    Small tiles read them more often.
    """
    return BURST if problem.bytes_of(problem.solved) > problem.bytes_of("w") else 0.0


def best_tile(
    axes: tuple[GatherAxis, ...], channels: tuple[float, int], lanes: int, registers: int, *, first: int = 0,
    inside: bool = False, lines: bool = False, dots: bool = False, most: int | None = None, parts: float = 0.0,
    halves: float = 0.0, bursts: float = 0.0, begins: float = 0.0, widest: int = MOST_VECTORS, alone: bool = False,
    short: bool = False,
) -> TileShape:  # fmt: skip
    """The cheapest tile with vectors along channels, given and solved for, of neighbours on the axes from `first`.

    `inside`, channels fill a vector at least: the last one begins early. `lines`, vectors are as long as lines:
    it may be crowded, see `most_rows`, unless vectors are loaded `alone`, see `Machine.loads_alone`. `short`, vectors
    are less than lines. `dots`, it
    multiplies pairs of channels given. It has `most` rows. `parts`, cycles of those whose blocks of lanes are an odd
    number of vectors, where two of these are a line of weights; `halves`, of each row of their results, likewise;
    `bursts`, of the square of the vectors of results of a tile, and `begins`, of each row of them, which tell tiles
    apart and are not predicted. It has `widest` vectors side by side at most.
    """
    given, solved = channels
    best, least = None, 0.0
    most = most or registers
    crowded = lines and not alone
    in_kernel = partial(step_inside, alone=alone, short=short)
    sizes = range(1, min(most, most_rows(registers, 1, crowded=crowded)) + 1)
    tables = [
        [(size, axis.visits(size), axis.tiles(size)) for size in (sizes if n >= first else sizes[:1])]
        for n, axis in enumerate(axes)
    ]
    useful = solved // lanes if inside and dots else -(-solved // lanes)
    for vectors in range(1, min(max(1, useful), widest) + 1):
        blocks, rest = divmod(-(-solved // lanes), vectors)
        if dots or not blocks:
            blocks, rest = -(-solved // (vectors * lanes)), 0
        room = most_rows(registers, vectors)
        for tile, visits, tiles in _boxes(tables, min(most, most_rows(registers, vectors, crowded=crowded))):
            rows = prod(tile)
            step = dot_cycles(rows, vectors) if dots else in_kernel(rows, vectors, crowded=rows > room)
            sums = rows * vectors
            cycles = blocks * (visits * given * step + tiles * (TILE_OVERHEAD + sums))
            if rest:  # the last block of lanes
                cycles += visits * given * in_kernel(rows, rest) + tiles * (TILE_OVERHEAD + rows * rest)
                cycles *= SHORT_UNEVEN if short else UNEVEN
            if vectors % 2 and vectors * lanes < solved:
                cycles += parts + halves * blocks * tiles * rows
            felt = cycles + blocks * tiles * (bursts * sums**2 + begins * rows)
            if best is None or felt < least:
                best, least = TileShape(tile, vectors * lanes, cycles), felt
    assert best is not None
    return best


def best_sharing_tile(
    axes: tuple[GatherAxis, ...], channels: tuple[int, int], lanes: int, registers: int, *, first: int,
    most: int | None = None,
) -> TileShape:  # fmt: skip
    """The cheapest tile of up to `most` neighbours on the axes from `first`, where taps of a row share what they read.

    Those of the innermost axis are written out, beside the image, too; see `order.taps_inside`.
    """
    given, solved = channels
    vectors = -(-solved // lanes)
    *outer, inner = axes
    room = (registers - inner.taps * vectors - SPARE) // vectors
    most = max(1, min(most or room, room, MOST_SHARING // max(1, inner.taps * vectors)))
    best: TileShape | None = None
    for rest in splits(tuple(axis.count for axis in axes[first:]), most):
        tile = (*[1] * first, *rest)
        rows, size = prod(tile), tile[-1]
        beside = prod(axis.visits(n) for axis, n in zip(outer, tile, strict=False))
        tiles = prod(axis.tiles(n) for axis, n in zip(outer, tile, strict=False))
        cycles = tiles * inner.tiles(size) * (TILE_OVERHEAD + rows * vectors)
        for phase in inner.phases:
            cycles += beside * given * _row_of_sharing(inner, phase, size, rows // size, vectors)
        if best is None or cycles < best.cycles:
            best = TileShape(tile, vectors * lanes, cycles)
    assert best is not None
    return best


def _row_of_sharing(axis: GatherAxis, phase: Phase, size: int, rows: int, vectors: int) -> float:
    """Cycles, for a channel of the input, of all tiles of so many outputs of some rows whose taps share reads.

    Products with padding are left out where tiles are known one by one.
    """
    starts = range(0, phase.count, size)
    if axis.apart(phase, size):
        tiles = [axis.met(phase, first, size) for first in starts]
    else:
        tiles = [(range(size),) * phase.taps] * len(starts)
    cycles = 0.0
    for met in tiles:
        places = {axis.in_step * m + axis.offset_step * t for t, of in enumerate(met) for m in of}
        products = rows * vectors * sum(map(len, met)) / FMA_PER_CYCLE
        loads = NUMBER * rows * len(places) + VECTOR * vectors * sum(map(bool, met))
        most = max((sum(m in of for of in met) for m in range(size)), default=0)
        cycles += max(products, loads, LATENCY * most)
    return cycles


def _boxes(tables: list[list[tuple[int, int, int]]], most: int) -> Iterator[tuple[Ints, int, int]]:
    """Tiles of at most so many outputs, how many taps all of them meet and how many there are, given both per axis."""
    if not tables:
        yield (), 1, 1
        return
    table, *inner = tables
    for size, visits, tiles in table[:most]:
        for tile, of_visits, of_tiles in _boxes(inner, most // size):
            yield (size, *tile), visits * of_visits, tiles * of_tiles
        if tiles == 1:
            break


def best_spread_tile(
    counts: Ints, groups: int, channels: tuple[int, int], depth: float, taps: int, stride: int, lanes: int,
    registers: int, whole: bool = False,
) -> TileShape:  # fmt: skip
    """The cheapest tile with vectors across groups of so many input and output channels; `whole`, full ones only.

    Neighbours share inputs among `taps` taps in registers; lanes pick theirs by a shuffle, on a port of multiply-adds.
    """
    given, solved = channels
    best: tuple[float, TileShape] | None = None
    *outer, inner = counts
    per_vector = lanes // solved
    parts = -(-per_vector * given // lanes)  # vectors that hold the inputs of one
    shuffles = 0 if given == solved == 1 else parts
    for vectors in range(1, 5):
        needed = vectors * per_vector if whole else (vectors - 1) * per_vector + 1
        if vectors > 1 and (needed > groups or lanes % solved):
            break
        blocks = -(-groups // (vectors * per_vector))
        kept = taps if registers > taps * vectors + 4 * vectors else 1
        most = most_rows(registers, vectors, kept)
        if shuffles:  # what is read stays in registers as well, from one channel of a group to the next
            most = min(most, max(4, (registers - vectors * (3 + kept - stride)) // (vectors * (1 + stride))))
        for rows in cuts(inner, most):
            reads = ((rows - 1) * stride + taps if kept > 1 else rows * taps) / taps * vectors
            loads = reads * parts + vectors
            tile = (*[1] * len(outer), rows)
            step = step_bound(rows * vectors, 0, loads, shuffles=reads * shuffles)
            tiles = _tiles(counts, tile) * blocks
            cycles = tiles * (depth * step + TILE_OVERHEAD + rows * vectors)
            if best is None or cycles < best[0]:
                late = max(0.0, reads * shuffles / SHUFFLES_PER_CYCLE - step)
                best = cycles, TileShape(tile, vectors * lanes, cycles + tiles * depth * late)
    assert best is not None
    return best[1]


def best_turned_tile(
    counts: Ints, groups: int, channels: int, taps: float, lanes: int, registers: int
) -> TileShape:  # fmt: skip
    """The cheapest tile of sums that are turned at the end, as many of a position as a group has channels.

    Positions of a row, or the same one of several images, where that leaves fewer over.
    """
    images, *rest, inner = counts
    blocks = -(-groups * channels // lanes)
    most = max(1, (registers - 1) // (channels + 1) - 1)  # sums, all that a tap reads, and two for turning
    tiles = [(1, *(1 for _ in rest), n) for n in range(1, min(most, max(1, inner)) + 1)]
    tiles += [(n, *(1 for _ in rest), 1) for n in range(2, min(most, images) + 1)]

    def cycles(tile: Ints) -> float:
        positions = prod(tile)
        step = step_bound(positions * channels, 0, positions + channels)
        turn = positions * 2 * channels / FMA_PER_CYCLE  # shuffles and sums
        return _tiles(counts, tile) * blocks * (taps * step + TURNED_OVERHEAD + turn)

    tile = min(tiles, key=cycles)
    return TileShape(tile, lanes, cycles(tile))


def _tiles(counts: Ints, tile: Ints) -> int:
    return prod(-(-count // size) for count, size in zip(counts, tile, strict=True))


def sweep_cycles(axes: tuple[GatherAxis, ...], tile: Ints, at_a_tap: float, products: int) -> float:
    """Of all tiles of a block of channels, of which each takes so many cycles at every tap that it meets."""
    visits = prod(axis.visits(size) for axis, size in zip(axes, tile, strict=True))
    tiles = prod(axis.tiles(size) for axis, size in zip(axes, tile, strict=True))
    return visits * at_a_tap + tiles * (TILE_OVERHEAD + products)
