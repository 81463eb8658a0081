"""One axis of a problem as a gather: which input elements an output element is made of.

Solving for Y reads x at s·p + d·r − lo. Solving for X, output q of phase φ = q mod s reads y at p = (q + lo − d·r) / s,
for the taps r that leave no remainder: s dense problems of stride 1, none of which multiplies by an inserted zero
(Dumoulin & Visin, arXiv:1603.07285, section 4; the sub-pixel view of a transposed convolution).
"""

from __future__ import annotations

from dataclasses import field
from math import gcd

from convgrad.problem.conv import ConvProblem, Unknown
from convgrad.values import frozen, replace

MOST_TILES, WORTH_TILES = 3, 8  # of a row, each of which is written out if one product in so many is with padding


@frozen
class Phase:
    """Outputs first, first + out_step, ... of one axis; output j reads input in_step·j + offset + t·offset_step."""

    first: int
    count: int  # outputs j
    taps: int  # t; those that meet no input element are left out
    offset: int
    tap: int  # index r of t = 0


@frozen(kw_only=True)
class GatherAxis:
    """One axis: its phases and what they share. Tap t is r = phase.tap + t · tap_step."""

    out_extent: int
    in_extent: int
    in_step: int
    out_step: int
    offset_step: int
    tap_step: int
    phases: tuple[Phase, ...]

    # what follows from these, asked for again and again
    count: int = field(init=False, repr=False, compare=False)  # outputs of the longest phase
    taps: int = field(init=False, repr=False, compare=False)  # of the fullest phase
    reach: tuple[int, int] = field(init=False, repr=False, compare=False)  # least and largest offset of any tap
    clipped: bool = field(init=False, repr=False, compare=False)  # whether some tap of some output misses the input

    def __post_init__(self) -> None:
        ends = [self._ends(phase) for phase in self.phases if phase.taps]
        reach = (min(low for low, _ in ends), max(high for _, high in ends)) if ends else (0, 0)
        derived = {
            "count": max((phase.count for phase in self.phases), default=0),
            "taps": max((phase.taps for phase in self.phases), default=0),
            "reach": reach,
            "clipped": any(
                low < 0 or high + self.in_step * (phase.count - 1) >= self.in_extent
                for phase in self.phases
                if phase.taps
                for low, high in [self._ends(phase)]
            ),
        }
        for name, value in derived.items():
            object.__setattr__(self, name, value)

    def _ends(self, phase: Phase) -> tuple[int, int]:
        """Least and largest offset of the taps of a phase."""
        first, last = phase.offset, phase.offset + (phase.taps - 1) * self.offset_step
        return min(first, last), max(first, last)

    def inside(self, phase: Phase) -> tuple[int, int]:
        """Outputs low <= j < high of a phase all of whose taps meet the input."""
        if not phase.taps:
            return 0, phase.count
        least, most = self._ends(phase)
        low = max(0, -(least // self.in_step))
        high = min(phase.count, (self.in_extent - 1 - most) // self.in_step + 1)
        return (low, high) if high > low else (0, 0)

    def skips(self, tile: int) -> bool:
        """Whether some tap meets no input for all of some tile of that many outputs side by side."""
        if tile == 1:
            return self.clipped
        low, high = self.reach
        last = self.in_step * (self.count - 1 - (self.count - 1) % tile)  # of the last tile's first output
        return low + self.in_step * (tile - 1) < 0 or last + high >= self.in_extent

    @property
    def met_taps(self) -> range:
        """Taps r, from the first to the last that meets the input for any output."""
        ends = [(phase.tap, phase.tap + (phase.taps - 1) * self.tap_step) for phase in self.phases if phase.taps]
        return range(min(first for first, _ in ends), max(last for _, last in ends) + 1) if ends else range(0)

    def tiles(self, size: int) -> int:
        """Of so many outputs side by side, of all phases."""
        return sum(-(-phase.count // size) for phase in self.phases)

    def visits(self, size: int) -> int:
        """Taps that tiles of so many outputs meet, one tile after the other: those that miss the input are skipped."""
        return sum(
            last // size - first // size + 1
            for phase in self.phases
            for first, last in (self._meeting(phase, t) for t in range(phase.taps))
            if last >= first
        )

    def _meeting(self, phase: Phase, t: int) -> tuple[int, int]:
        """First and last output of a phase whose tap t meets the input."""
        offset = phase.offset + t * self.offset_step
        return max(0, -(offset // self.in_step)), min(phase.count - 1, (self.in_extent - 1 - offset) // self.in_step)

    def met(self, phase: Phase, first: int, size: int) -> tuple[range, ...]:
        """Per tap, which of so many outputs from `first` on meet the input with it."""
        meeting = (self._meeting(phase, t) for t in range(phase.taps))
        return tuple(range(max(0, low - first), max(0, min(size, high + 1 - first))) for low, high in meeting)

    def apart(self, phase: Phase, size: int) -> bool:
        """Whether tiles of so many outputs of a phase are worth writing out one by one, for what each misses."""
        tiles = -(-phase.count // size)
        products = sum(map(len, self.met(phase, 0, phase.count)))
        every = WORTH_TILES * (phase.count * phase.taps - products)
        return every > 0 and (tiles == 1 or (tiles <= MOST_TILES and phase.count * phase.taps <= every))

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


def in_pairs(axis: GatherAxis) -> GatherAxis:
    """The same outputs, every other one of each phase in a phase of its own, such that two of them read neighbours."""
    phases = [
        replace(
            phase, first=phase.first + half * axis.out_step, count=(phase.count + 1 - half) // 2,
            offset=phase.offset + half * axis.in_step,
        )
        for half in range(2)
        for phase in axis.phases
    ]  # fmt: skip
    return replace(axis, in_step=2 * axis.in_step, out_step=2 * axis.out_step, phases=tuple(phases))


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
