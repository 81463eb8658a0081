"""One axis of a weights gradient: windows, each of whose taps meets an element of x or none."""

from __future__ import annotations

from collections import Counter
from itertools import pairwise

from convgrad.problem.conv import ConvProblem
from convgrad.values import frozen


@frozen
class WindowAxis:
    """One axis: windows p and taps r meet x at stride·p + dilation·r − low."""

    windows: int
    image: int
    taps: int
    stride: int
    dilation: int
    low: int

    @property
    def inside(self) -> tuple[int, int]:
        """Windows first <= p < last all of whose taps meet x."""
        first = max(0, -(-self.low // self.stride))
        last = (self.image - 1 - self.dilation * (self.taps - 1) + self.low) // self.stride + 1
        last = min(self.windows, last)
        return (first, last) if last > first else (0, 0)

    @property
    def clipped(self) -> bool:
        """Whether some tap of some window falls outside x."""
        highest = self.stride * (self.windows - 1) + self.dilation * (self.taps - 1) - self.low
        return self.low > 0 or highest >= self.image

    def meeting(self, together: int) -> dict[int, int]:
        """How many windows so many of `together` neighbouring taps meet x in, over all taps and by that number."""
        found: Counter[int] = Counter()
        for block in range(0, self.taps, together):
            changes: Counter[int] = Counter()  # of the number of taps that meet x, from one window to the next
            for first, last in map(self.met, range(block, block + together)):
                changes[first] += 1
                changes[last] -= 1
            number = 0
            for low, high in pairwise(sorted(changes)):
                number += changes[low]
                found[number] += high - low
        return {number: windows for number, windows in found.items() if number and windows}

    def met(self, r: int) -> tuple[int, int]:
        """Windows first <= p < last whose tap r meets x; none: an empty range inside the axis."""
        offset = self.dilation * r - self.low
        first = min(self.windows, max(0, -(offset // self.stride)))
        last = min(self.windows, (self.image - 1 - offset) // self.stride + 1)
        return first, max(first, last)


def window_axes(problem: ConvProblem) -> tuple[WindowAxis, ...]:
    """The batch, an axis with one tap, and the spatial axes."""
    spatial = zip(
        problem.y_extent, problem.x_extent, problem.taps, problem.stride, problem.dilation, problem.pad_low, strict=True
    )
    return (WindowAxis(problem.batch, problem.batch, 1, 1, 1, 0), *(WindowAxis(*axis) for axis in spatial))
