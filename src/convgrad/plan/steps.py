"""What one step of the sum of a register tile is predicted to take: products, loads, the latency of a chain of sums."""

from __future__ import annotations

FMA_PER_CYCLE = 2.0
LOADS_PER_CYCLE = 2.0  # of vectors
SHUFFLES_PER_CYCLE = 1.0  # where they are many; tiles of more rows, which have fewer for each product, spill
BROADCAST = 0.95  # cycles, measured, to load a number into all lanes
LATENCY = 4.0  # cycles from a multiply-add to the next on the same sum
DOT_LATENCY = 6.0  # likewise of dot products
NUMBER, VECTOR = 1.0, 1.1  # cycles, measured, of the ports that load, for a number of A and a vector of B from L2
ALONE, STREAM = 1.3, 2.3  # of such a vector where they load one vector a cycle, numbers apart; and of nothing but that
FAR = 0.25  # cycles, not hidden by anything, for a vector of B from there
SHORT, SHORT_FAR = 0.6, 0.15  # of a load of either, and not hidden for a vector of B, of vectors shorter than lines
SHORT_LATENCY = 4.4  # between sums of those, which nothing else delays
HIDING, INSIDE = (3, 4), 1.1  # vectors side by side of tiles that hide it; their cycles in a kernel, as a multiple
TILE_OVERHEAD = 12.0  # cycles to set up, and for the loads and stores of C, per register tile and row


def step_cycles(
    rows: int, vectors: int, *, near: bool = False, crowded: bool = False, short: bool = False
) -> float:  # fmt: skip
    """Of a tile with vectors along channels, for a step of its sum; B comes from L2, or from L1.

    Where sums leave no register for the last vector of B, every row after the first one loads it again. `short`,
    vectors are less than lines, of which processors load two in a cycle, and which are far.
    """
    if short:
        return max(rows * vectors / FMA_PER_CYCLE, SHORT * (rows + vectors), SHORT_LATENCY) + SHORT_FAR * vectors
    loads, late = (VECTOR / 2, 0.0) if near else (VECTOR, FAR)
    again = (rows - 1) / LOADS_PER_CYCLE if crowded else 0.0
    return max(rows * vectors / FMA_PER_CYCLE, NUMBER * rows + loads * vectors + again, LATENCY) + late * vectors


def step_inside(
    rows: int, vectors: int, *, crowded: bool = False, alone: bool = False, short: bool = False
) -> float:  # fmt: skip
    """The same in a kernel, of a tile that may hide how far B is; `alone`, see `Machine.loads_alone`."""
    step = step_cycles(rows, vectors, crowded=crowded, short=short)
    if short:
        return step
    if alone and vectors >= HIDING[0]:
        return INSIDE * max(step - FAR * vectors, NUMBER * rows + ALONE * vectors, STREAM * vectors)
    return INSIDE * (step - FAR * vectors) if vectors in HIDING else step


def dot_cycles(rows: int, vectors: int, *, near: bool = False) -> float:
    """The same of a tile of dot products, a pair at a time: what they load takes no more ports than they have."""
    loads, late = (VECTOR / 2, 0.0) if near else (VECTOR, FAR)
    loaded = (rows + loads * vectors) / LOADS_PER_CYCLE
    return max(rows * vectors / FMA_PER_CYCLE, loaded, DOT_LATENCY) + late * vectors


def step_bound(
    products: int, broadcasts: int, loads: float, fetch: float = 0.0, shuffles: float = 0.0
) -> float:  # fmt: skip
    """Of one step of a sum: the slowest of multiply-adds, loads and the latency of a chain of sums."""
    return max((products + shuffles) / FMA_PER_CYCLE, BROADCAST * broadcasts + loads / LOADS_PER_CYCLE, LATENCY) + fetch


def most_rows(registers: int, vectors: int, taps: int = 1, *, crowded: bool = False) -> int:
    """Rows of a tile that leave room for a row of B per tap in registers, and for an element of A.

    `crowded`, the last vector of B may stay in memory.
    """
    return (registers - taps * vectors - (0 if crowded else 1)) // vectors
