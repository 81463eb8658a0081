"""What vectors across groups take besides their multiply-adds: lanes pick numbers, and planes are turned."""

from __future__ import annotations

from convgrad.plan.costs import LINE, TURN, TURN_PLANES, Moves

PART_BYTES = 16  # of vectors inside of which any lanes are picked at once; out of two of these they are one by one
PICKED, PICKED_OF_SOME = 1.5, 1.3  # times the cycles of vectors that pick so; of a few times as many channels


def picking(channels: tuple[int, int], lanes: int, size: int) -> float:
    """Times the cycles of vectors, of so many lanes and bytes of each, for channels given and solved for in a group.

    Those longer than a part, and shorter than lines, have instructions only for picks inside of parts, or of a number
    for all lanes.
    """
    given, solved = channels
    in_parts, whole = PART_BYTES < lanes * size < LINE, lanes % solved == 0
    if not in_parts or solved == lanes or (given == solved and whole):
        return 1.0
    return PICKED_OF_SOME if whole and given % solved == 0 else PICKED


def turned_once(channels: tuple[int, int], step: int, moves: Moves) -> float:
    """Cycles for a number that goes between planes and positions; a stride above 1 parts neighbours."""
    turn = TURN_PLANES if channels == (1, 1) else TURN
    return max(turn, moves.apart) if step > 1 else turn
