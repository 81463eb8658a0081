"""Who owns which elements of an axis: contiguous ranges, one per part, given by their boundaries.

Boundaries b[0] = 0 <= b[1] <= ... <= b[parts] = extent say that part i owns the elements b[i] <= e < b[i + 1].
"""

from __future__ import annotations

from collections.abc import Sequence
from fractions import Fraction
from itertools import pairwise

from convgrad.errors import AttributeRuleError, ShapeError
from convgrad.spec.attributes import integer, integers
from convgrad.values import frozen

Ints = tuple[int, ...]


@frozen
class Proportions:
    """Where the parts of an axis end, as fractions of its extent: ownership of axes of any extent.

    Part i of an axis of `extent` elements ends before element floor(extent * ends[i]). Axes of equal extent are thus
    cut alike wherever in a network they appear, and an axis that a stride makes S times shorter is cut where its
    windows lie, to within one window.
    """

    ends: tuple[Fraction, ...]

    @classmethod
    def even(cls, parts: int) -> Proportions:
        """Equal shares."""
        count = integer("balanced", "parts", parts, least=1)
        return cls(tuple(Fraction(i + 1, count) for i in range(count)))

    @classmethod
    def of(cls, boundaries: Sequence[int]) -> Proportions:
        """The shares that these boundaries are of their own extent, which must not be 0."""
        bounds = checked_boundaries("Proportions", "boundaries", boundaries)
        if not bounds[-1]:
            raise ShapeError(
                f"Proportions: boundaries {list(bounds)} are of an axis without elements, which has no proportions; "
                "give those of an axis with elements"
            )
        return cls(tuple(Fraction(bound, bounds[-1]) for bound in bounds[1:]))

    @property
    def parts(self) -> int:
        """How many there are."""
        return len(self.ends)

    def boundaries(self, extent: int) -> Ints:
        """Of an axis of this extent."""
        return (0, *(extent * end.numerator // end.denominator for end in self.ends))

    def __str__(self) -> str:
        return "parts that end at " + ", ".join(map(str, self.ends))


def balanced(extent: int, parts: int, *, multiple: int = 1) -> Ints:
    """The boundaries of equal shares: part i owns i * extent // parts <= e < (i + 1) * extent // parts.

    With more parts than elements some parts are empty. With `multiple`, every boundary but the last is a multiple of
    it, as layers without halos need: pooling by 2 three times over wants multiples of 8.
    """
    extent, multiple = integer("balanced", "extent", extent), integer("balanced", "multiple", multiple, least=1)
    blocks = Proportions.even(parts).boundaries(-(-extent // multiple))
    return tuple(min(extent, multiple * block) for block in blocks)


def checked_boundaries(
    op: str, name: str, boundaries: Sequence[int], *, extent: int | None = None, parts: int | None = None
) -> Ints:
    """The boundaries as a tuple; what is no partition of the extent into so many parts is refused."""
    bounds = integers(op, name, boundaries)
    if len(bounds) < 2 or (parts is not None and len(bounds) != parts + 1):
        wanted = "2 entries or more" if parts is None else f"{parts} parts have {parts + 1}"
        raise AttributeRuleError(
            f"{op}: {name} {list(bounds)} has {len(bounds)} entries, but {wanted}; give 0, where each part ends, and "
            "so the extent"
        )
    if bounds[0] != 0 or any(a > b for a, b in pairwise(bounds)):
        raise AttributeRuleError(f"{op}: {name} {list(bounds)} must begin with 0 and never fall; sort them")
    if extent is not None and bounds[-1] != extent:
        raise ShapeError(
            f"{op}: {name} {list(bounds)} end at {bounds[-1]}, but the axis has {extent} elements; the last entry must "
            "be the extent"
        )
    return bounds


def owners(boundaries: Ints, start: int, stop: int) -> list[tuple[int, int, int]]:
    """The parts that own elements start <= e < stop, each with its first and its last + 1 of them."""
    found = []
    for part, (low, high) in enumerate(pairwise(boundaries)):
        low, high = max(low, start), min(high, stop)
        if low < high:
            found.append((part, low, high))
    return found
