"""How much memory threads may work in, and what is chosen where the cheapest plan would take more."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any, TypeVar

from convgrad.problem.conv import Ints

Candidate = TypeVar("Candidate")
Room = tuple[int, int]  # bytes: of memory that all tasks share, and of what each has to itself

MOST_BYTES = 4 * 1024 * 1024  # of each thread, and that all share, besides packed weights
STAGED_BYTES = 20 * 1024  # of weights that are put in order at a time: they and what becomes of them stay in L1
MOST_STAGED_BYTES = 1024 * 1024  # likewise, where a channel takes more, or they are f32 on the way to pieces


def roomy(
    candidates: Sequence[Candidate], cost: Callable[[Candidate], float], room: Callable[[Candidate], int]
) -> Candidate:  # fmt: skip
    """The cheapest candidate whose tasks have room for what they work with; if none has, the one that takes least."""
    best = min(candidates, key=cost)
    if room(best) <= MOST_BYTES:
        return best
    return min(candidates, key=lambda candidate: (max(MOST_BYTES, room(candidate)), cost(candidate)))


def roomy_first(plans: Iterable[Any], stay: tuple[type, ...] = ()) -> Iterator[Any]:
    """The same plans, those that would take more memory than a thread is to have after all others.

    Those of kinds that `stay` are where they were: no others order their sums as they do.
    """
    much: list[Any] = []
    for plan in plans:
        if isinstance(plan, stay) or has_room(plan):
            yield plan
        else:
            much.append(plan)
    yield from much


def has_room(plan: Any) -> bool:
    """Whether there is memory for a plan and for what may take over from it, both of which work in the same."""
    fallback = getattr(plan, "fallback", None) or plan
    return max(*plan.work_bytes, *fallback.work_bytes) <= MOST_BYTES


def planes_with_room(size: int) -> int:
    """How many planes a task may have the weights of, or sums, which take `size` bytes each; slabs are small."""
    return max(1, MOST_BYTES // 2 // max(1, size))


def staged_channels(taps: int, width: int, room: int, size: int) -> int:
    """Channels, of the `room` in a panel, that are put in order at a time."""
    most = max(1, min(room, STAGED_BYTES // max(1, taps * width * size)))
    return next((n for n in range(most, most // 2, -1) if room % n == 0), most)


def staged_taps(taps: Ints, size: int) -> Ints:
    """Taps of each axis that are put in order at a time, of `size` bytes each: all of inner axes, if they may be."""
    some, room = [], max(1, MOST_STAGED_BYTES // max(1, size))
    for extent in reversed(taps):
        some.insert(0, min(extent, room))
        room = max(1, room // max(1, extent))
    return tuple(some)
