"""Equal pieces of a total, up to rounding."""

from __future__ import annotations

from collections.abc import Iterator

from convgrad.problem.conv import Ints

CUTS = 12  # ways to cut an axis that are tried


def even_share(total: int, most: int) -> int:
    """The largest equal share of a total, up to rounding, that is at most `most`."""
    return max(1, -(-total // max(1, -(-total // most))))


def cuts(total: int, most: int) -> list[int]:
    """Sizes of at most `most` that cut a total into equal pieces, up to rounding; the fewest pieces first."""
    if total < 1 or most < 1:
        return []
    fewest = -(-total // most)
    return list(dict.fromkeys(-(-total // pieces) for pieces in range(fewest, min(total, fewest + CUTS) + 1)))


def splits(counts: Ints, most: int) -> Iterator[Ints]:
    """Ways to cut the innermost axes into tiles of at most `most` outputs; only axes inside of which all is whole."""
    if not counts:
        yield ()
        return
    *outer, inner = counts
    for size in cuts(inner, most):
        if size == inner:
            yield from ((*tile, size) for tile in splits(tuple(outer), max(1, most // size)))
        else:
            yield (*([1] * len(outer)), size)
