"""How much memory a thread may work in, and what is chosen where the cheapest plan would take more."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TypeVar

Candidate = TypeVar("Candidate")

MOST_BYTES = 4 * 1024 * 1024  # of a thread, besides weights that are packed once for all
STAGED_BYTES = 20 * 1024  # of weights that are put in order at a time: they and what becomes of them stay in L1
STAGED_PIECES_BYTES = 1024 * 1024  # likewise, as f32, before they are taken to pieces; more goes tap by tap


def roomy(
    candidates: Sequence[Candidate], cost: Callable[[Candidate], float], room: Callable[[Candidate], int]
) -> Candidate:  # fmt: skip
    """The cheapest candidate whose tasks have room for what they work with; if none has, the one that takes least."""
    best = min(candidates, key=cost)
    if room(best) <= MOST_BYTES:
        return best
    return min(candidates, key=lambda candidate: (max(MOST_BYTES, room(candidate)), cost(candidate)))


def staged_channels(taps: int, width: int, room: int, size: int) -> int:
    """Channels, of the `room` in a panel, that are put in order at a time."""
    most = max(1, min(room, STAGED_BYTES // max(1, taps * width * size)))
    return next((n for n in range(most, most // 2, -1) if room % n == 0), most)
