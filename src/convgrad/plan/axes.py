"""One axis of a problem as a gather: which input elements an output element is made of.

Solving for Y reads x at s·p + d·r − lo. Solving for X, output q of phase φ = q mod s reads y at p = (q + lo − d·r) / s,
for the taps r that leave no remainder: s dense problems of stride 1, none of which multiplies by an inserted zero
(Dumoulin & Visin, arXiv:1603.07285, section 4; the sub-pixel view of a transposed convolution).
"""

from __future__ import annotations

from dataclasses import dataclass
from math import gcd

from convgrad.problem.conv import ConvProblem, Unknown


@dataclass(frozen=True, slots=True)
class Phase:
    """Outputs first, first + out_step, ... of one axis; output j reads input in_step·j + offset + t·offset_step."""

    first: int
    count: int  # outputs j
    taps: int  # t; those that meet no input element are left out
    offset: int
    tap: int  # index r of t = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class GatherAxis:
    """One axis: its phases and what they share. Tap t is r = phase.tap + t · tap_step."""

    out_extent: int
    in_extent: int
    in_step: int
    out_step: int
    offset_step: int
    tap_step: int
    phases: tuple[Phase, ...]

    @property
    def count(self) -> int:
        """Outputs of the longest phase."""
        return max((phase.count for phase in self.phases), default=0)

    @property
    def taps(self) -> int:
        """Taps of the fullest phase."""
        return max((phase.taps for phase in self.phases), default=0)

    @property
    def reach(self) -> tuple[int, int]:
        """Smallest and largest offset of any tap of any phase."""
        ends = [
            end
            for phase in self.phases
            if phase.taps
            for end in (phase.offset, phase.offset + (phase.taps - 1) * self.offset_step)
        ]
        return (min(ends), max(ends)) if ends else (0, 0)

    @property
    def clipped(self) -> bool:
        """Whether some tap of some output falls outside the input."""
        return any(
            phase.taps
            and (
                min(phase.offset, phase.offset + (phase.taps - 1) * self.offset_step) < 0
                or max(phase.offset, phase.offset + (phase.taps - 1) * self.offset_step)
                + self.in_step * (phase.count - 1)
                >= self.in_extent
            )
            for phase in self.phases
        )

    def inside(self, phase: Phase) -> tuple[int, int]:
        """Outputs low <= j < high of a phase all of whose taps meet the input."""
        if not phase.taps:
            return 0, phase.count
        ends = phase.offset, phase.offset + (phase.taps - 1) * self.offset_step
        low = max(0, -(min(ends) // self.in_step))
        high = min(phase.count, (self.in_extent - 1 - max(ends)) // self.in_step + 1)
        return (low, high) if high > low else (0, 0)

    def skips(self, tile: int) -> bool:
        """Whether some tap meets no input for all of some tile of that many outputs side by side."""
        if tile == 1:
            return self.clipped
        low, high = self.reach
        last = self.in_step * (self.count - 1 - (self.count - 1) % tile)  # of the last tile's first output
        return low + self.in_step * (tile - 1) < 0 or last + high >= self.in_extent

    @property
    def even(self) -> bool:
        """Whether every phase has the same number of taps, so that loops over them have known bounds."""
        return len({phase.taps for phase in self.phases}) <= 1


def batch_axis(batch: int) -> GatherAxis:
    """Images, as an axis without taps."""
    return GatherAxis(
        out_extent=batch, in_extent=batch, in_step=1, out_step=1, offset_step=1, tap_step=1,
        phases=(Phase(0, batch, 1, 0, 0),),
    )  # fmt: skip


def gather_axes(problem: ConvProblem) -> tuple[GatherAxis, ...]:
    """The batch and the spatial axes of a problem that solves for X or Y."""
    make = _y_axis if problem.unknown is Unknown.Y else _x_axis
    spatial = zip(
        problem.x_extent, problem.y_extent, problem.taps, problem.stride, problem.dilation, problem.pad_low, strict=True
    )
    return (batch_axis(problem.batch), *(make(*axis) for axis in spatial))


def _y_axis(x: int, y: int, taps: int, stride: int, dilation: int, low: int) -> GatherAxis:
    phase = _trimmed(Phase(0, y, taps, -low, 0), x, stride, dilation, 1)
    return GatherAxis(
        out_extent=y, in_extent=x, in_step=stride, out_step=1, offset_step=dilation, tap_step=1, phases=(phase,)
    )


def _x_axis(x: int, y: int, taps: int, stride: int, dilation: int, low: int) -> GatherAxis:
    common = gcd(stride, dilation)
    tap_step, offset_step = stride // common, -(dilation // common)
    phases = []
    for first in range(min(stride, x)):
        count = -(-(x - first) // stride)
        fitting = [r for r in range(min(tap_step, taps)) if (first + low - dilation * r) % stride == 0]
        if not fitting:
            phases.append(Phase(first, count, 0, 0, 0))
            continue
        tap = fitting[0]
        phase = Phase(first, count, -(-(taps - tap) // tap_step), (first + low - dilation * tap) // stride, tap)
        phases.append(_trimmed(phase, y, 1, offset_step, tap_step))
    return GatherAxis(
        out_extent=x, in_extent=y, in_step=1, out_step=stride, offset_step=offset_step, tap_step=tap_step,
        phases=tuple(phases),
    )  # fmt: skip


def _trimmed(phase: Phase, in_extent: int, in_step: int, offset_step: int, tap_step: int) -> Phase:
    """Without the taps, at either end, that meet no input element for any output."""

    def meets(t: int) -> bool:
        offset = phase.offset + t * offset_step
        first = max(0, -(offset // in_step))  # the first output that reads at or beyond element 0
        return first < phase.count and offset + in_step * first < in_extent

    useful = [t for t in range(phase.taps) if meets(t)]
    if not useful:
        return Phase(phase.first, phase.count, 0, 0, 0)
    t = useful[0]
    return Phase(phase.first, phase.count, useful[-1] - t + 1, phase.offset + t * offset_step, phase.tap + t * tap_step)
