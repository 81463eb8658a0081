"""What plans with vectors along a row of a plane have in common: blocks, and cycles as measured."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import cache

from convgrad.plan.costs import LINE
from convgrad.plan.machine import Machine
from convgrad.problem.conv import Ints

SLAB_BYTES = 40 * 1024  # of the rows that are multiplied at a time, which stay in L1
MOST_SLAB_BYTES = 512 * 1024
MOST_PRODUCTS = 256  # multiply-adds of a register tile that are written out together
MOST_PHASES = 4  # of a row, which vectors are taken apart into
WHOLE, CROSSING = 0.5, 1.9  # cycles of a vector from L1 that lies in one line, or in two
ROW = 3.5  # cycles to begin to copy a row
FAR = 0.8  # of the arithmetic, more where slabs outgrow L1


def has_masks(machine: Machine) -> bool:
    """Whether instructions take masks: those whose vectors are as long as lines."""
    return machine.lanes_f32 * 4 == LINE


def slides_pay(vector_bytes: int) -> bool:
    """Whether a vector may be put together from two neighbours by one instruction, and often crosses lines else."""
    return vector_bytes >= LINE


def crossing_cycles(vector_bytes: int) -> float:
    """Of a vector from L1 that does not begin with one: shorter ones cross lines less often."""
    return WHOLE + (CROSSING - WHOLE) * min(1.0, vector_bytes / LINE)


def plane_blocks(extents: Sequence[int], unit: Ints) -> Iterator[Ints]:
    """Multiples of `unit` that hold an image, then fewer and fewer of the outermost axis that has several."""
    counts = [-(-extent // one) for extent, one in zip(extents, unit, strict=True)]
    counts[0] = min(1, counts[0])  # with one axis, images are its rows
    while True:
        yield tuple(count * one for count, one in zip(counts, unit, strict=True))
        n = next((n for n, count in enumerate(counts) if count > 1), None)
        if n is None:
            return
        counts[n] = -(-counts[n] // 2)


def tap_pieces(taps: int, most: int) -> tuple[tuple[int, int], ...]:
    """Rows of taps of a tile, at most so many, and how many such tiles follow each other: all rows, cut evenly."""
    pieces = max(1, -(-taps // most))
    fewer, rest = divmod(taps, pieces)
    return tuple((rows, many) for rows, many in ((fewer + 1, rest), (fewer, pieces - rest)) if rows and many)


@cache
def rows_met(step: int, rows: int, offsets: Ints) -> int:
    """Rows of the input that so many rows meet, `step` apart, each at all of the offsets."""
    return len({step * j + offset for j in range(rows) for offset in offsets})


def even_rows(count: int, most: int) -> list[int]:
    """Rows of a tile, at most so many, that cut a count into equal pieces up to rounding."""
    return sorted({-(-count // pieces) for pieces in range(-(-count // most), count + 1)}) or [1]
