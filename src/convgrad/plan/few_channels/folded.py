"""Plans for strided problems that solve for few channels of X: phases of the innermost stride beside the channels."""

from __future__ import annotations

from convgrad.plan.general.data import DataPlan
from convgrad.plan.order import channels_in_turn
from convgrad.problem.conv import ConvProblem
from convgrad.values import frozen, replace


@frozen(kw_only=True)
class FoldedPlan(DataPlan):
    """Of `problem`, which is `unfolded` with phases as channels: channel c · phases + f has elements phases · j + f.

    So what a register tile reads of y serves all phases of a row. Tap t of phase f is tap phases · t + lead + f of the
    kernel; where there is none, a phase takes no part. That is why a tile takes the taps of the innermost axis one by
    one, each with rows of its own. The order of every sum is that of `unfolded`.
    """

    KIND = "along outputs, phases at once"

    unfolded: ConvProblem

    @property
    def asked(self) -> ConvProblem:
        """Without phases."""
        return self.unfolded

    @property
    def phases(self) -> int:
        """Of the innermost axis."""
        return self.unfolded.stride[-1]

    @property
    def known_axes(self) -> int | None:
        """None of them: taps are taken one by one in any case."""
        return 0

    @property
    def lead(self) -> int:
        """Tap 0 of phase 0, from which others are counted; negative, if that is none of the kernel."""
        return self.unfolded.pad_low[-1] - self.phases * self.problem.pad_low[-1]

    def has(self, phase: int, t: int) -> bool:
        """Whether a phase has tap t."""
        return 0 <= self.phases * t + self.lead + phase < self.unfolded.taps[-1]

    @property
    def met(self) -> range:
        """Taps of the innermost axis that meet y."""
        (phase,) = self.axes[-1].phases
        return range(phase.tap, phase.tap + phase.taps)

    @property
    def separate_taps(self) -> bool:
        """Yes."""
        return True

    def part_rows(self, t: int) -> tuple[int, ...]:
        """Those of the phases that have the tap."""
        return tuple(row for row in range(self.width) if self.has(row % self.phases, t))

    @property
    def rows_at_once(self) -> float:
        """Those of the phases that have a tap."""
        return sum(len(self.part_rows(t)) for t in self.met) / max(1, len(self.met))

    @property
    def channel_unit(self) -> int:
        """As without phases."""
        return channels_in_turn(self.unfolded)

    def validate(self) -> None:
        """Assert what the emitter relies on."""
        DataPlan.validate(self)
        assert self.pixels
        assert not self.unroll
        assert not self.writes_in_place
        assert self.width % self.phases == 0
        assert self.out_channels % self.width == 0

    def __str__(self) -> str:
        return DataPlan.__str__(self).replace("along outputs,", f"along outputs of {self.phases} phases at once,", 1)


def folded(p: ConvProblem) -> ConvProblem:
    """With the phases of the innermost stride as channels; see `FoldedPlan`. Their strides are those of channels."""
    s, low, taps = p.stride[-1], p.pad_low[-1], p.taps[-1]
    most = (s - 1 + low) // s  # of y, relative to j, that some phase reads
    least = -((taps - 1 - low) // s)
    return replace(
        p,
        x_channels=s * p.x_channels,
        x_extent=(*p.x_extent[:-1], -(-p.x_extent[-1] // s)),
        taps=(*p.taps[:-1], most - least + 1),
        stride=(*p.stride[:-1], 1),
        pad_low=(*p.pad_low[:-1], most),
        x_strides=(*p.x_strides[:-1], s * p.x_strides[-1]),
        w_strides=(*p.w_strides[:-1], s * p.w_strides[-1]),
    )
