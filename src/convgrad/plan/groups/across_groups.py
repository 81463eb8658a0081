"""What vectors across groups take besides their multiply-adds: lanes pick numbers, and planes are turned."""

from __future__ import annotations

from convgrad.plan.costs import LINE, TURN, TURN_PLANES

PART_BYTES = 16  # of vectors inside of which any lanes are picked at once; out of two of these they are one by one
PICKED = 1.2  # times the cycles of vectors that pick so


def picking(channels: tuple[int, int], lanes: int, size: int) -> float:
    """Times the cycles of vectors, of so many lanes and bytes of each, for channels given and solved for in a group.

    Those longer than a part, and shorter than lines, have instructions only for picks inside of parts, or of a number
    for all lanes.
    """
    given, solved = channels
    in_parts = PART_BYTES < lanes * size < LINE
    inside = solved == lanes or (given == solved and lanes % solved == 0)
    return PICKED if in_parts and not inside else 1.0


def turned_once(channels: tuple[int, int], apart: float) -> float:
    """Cycles for a number that goes between planes and positions; those for one that a stride parts, else 0."""
    return max(TURN_PLANES if channels == (1, 1) else TURN, apart)
