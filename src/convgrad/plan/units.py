"""Which problems matrix tiles and dot products compute, and by which products of bf16 pieces.

Products of pieces are summed in f32, over the whole of a sum the small ones first and those of the two largest pieces
last, since a rounding error of a small product is a small error only as long as nothing large has been added.
"""

from __future__ import annotations

from math import prod

from convgrad.plan.machine import Machine
from convgrad.problem.conv import ConvProblem

Products = tuple[tuple[int, int], ...]  # pieces of either operand, the largest being 0

_TWO: Products = ((1, 0), (0, 1), (0, 0))
PRODUCTS: dict[
    tuple[str, str], tuple[int, Products]
] = {  # by type and mode: pieces of each operand, and what is summed
    ("bf16", "strict"): (1, ((0, 0),)),
    ("f16", "strict"): (2, ((1, 1), *_TWO)),
    ("f32", "strict"): (3, ((2, 0), (1, 0), (1, 1), (0, 1), (0, 2), (0, 0))),
    ("f32", "tf32"): (2, _TWO),
    ("f32", "f16"): (2, _TWO),
    ("f32", "bf16"): (1, ((0, 0),)),
    ("f32", "any"): (1, ((0, 0),)),
}

MOST_ADDED = 4  # of sixteen channels that dot products would solve for, at twice the speed
MOST_OVERLAPPING = 2  # likewise of windows that share what they read: vectors along outputs read it again and again
WHOLE = {"bf16": 1, "f16": 2, "f32": 3}  # pieces of a number that hold all of it


def loads_of(products: Products) -> tuple[int, int]:
    """How often pieces of either operand are loaded for one step of a sum: not again where the next product has it."""
    *small, largest = products
    loads = [0, 0]
    for together in (small, [largest]):
        for side in (0, 1):
            pieces = [product[side] for product in together]
            loads[side] += sum(1 for n, piece in enumerate(pieces) if n == 0 or piece != pieces[n - 1])
    return loads[0], loads[1]


def pieces_of(problem: ConvProblem) -> tuple[int, Products] | None:
    """Pieces of each operand that are bf16, and their products, by which a unit could solve a problem."""
    return PRODUCTS.get((problem.dtype, problem.fpmath_mode if problem.dtype == "f32" else "strict"))


def products_on(problem: ConvProblem, machine: Machine) -> tuple[int, Products] | None:
    """Pieces of each operand, and their products, by which a unit of the machine computes a problem; None without one.

    A dot product takes numbers of one piece: of more it would not be faster than f32.
    """
    found = pieces_of(problem)
    if found is None or not (machine.has_tiles or (machine.has_dots and found[0] == 1)):
        return None
    return found


def most_added(problem: ConvProblem, machine: Machine) -> int | None:
    """Channels of 16 bits that lanes of f32 are added for (`along.adds_lanes`), where a unit has more arithmetic.

    None where it has not, or f32 falls to pieces on it. Dot products have vectors of channels, and along outputs.
    """
    if problem.dtype == "f32" or products_on(problem, machine) is None:
        return None
    if machine.has_tiles:
        return 0
    return MOST_OVERLAPPING if prod(problem.taps) > 1 and set(problem.stride) == {1} else MOST_ADDED


def makes_ordinary(problem: ConvProblem) -> bool:
    """Whether results of a unit are bf16 of which none is denormal, since it watches for data that would make some."""
    return problem.dtype == problem.out_dtype == "bf16" and not problem.accumulate


def needs_watch(dtype: str, pieces: int) -> bool:
    """Whether numbers that the unit would compute with differently from f32 arithmetic must be looked for.

    In several pieces infinity and NaN fall apart, and small pieces of small numbers are denormals, which the unit takes
    for zero, as it does those of bf16. What a mode allows to be rounded to one piece is not looked at.
    """
    return pieces >= WHOLE[dtype] or pieces > 1
