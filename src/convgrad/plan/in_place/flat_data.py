"""X or Y where rows of input and output are alike: outputs of a plane are one run, and a tap is a mere shift of it."""

from __future__ import annotations

from convgrad.plan.axes import GatherAxis
from convgrad.plan.general.data import KEPT_BYTES, DataPlan
from convgrad.problem.conv import Ints
from convgrad.values import frozen


@frozen(kw_only=True)
class FlatDataPlan(DataPlan):
    """A DataPlan with vectors along outputs, those of the innermost two axes being numbered through, read in place.

    Planes lie in memory without gaps and are of one extent on both sides, so what a tap of output p reads lies at p and
    a shift. A vector reaches from one row into the next: lanes whose tap falls beside the image are masked. A task
    computes whole rows, tile by tile of `vectors` of them; the last tile begins early and repeats some outputs.
    """

    KIND = "along outputs, in place"
    FINISHED = True

    vectors: int  # side by side in a tile

    @property
    def rows(self) -> GatherAxis:
        """The outer one of the flat axes; of a single axis, that one, its elements being rows of one."""
        return self.axes[max(1, len(self.axes) - 2)]

    @property
    def columns(self) -> GatherAxis | None:
        """The inner one, if there are two."""
        return self.axes[-1] if len(self.axes) > 2 else None

    @property
    def outer(self) -> int:
        """Axes that are not flat, the batch among them."""
        return max(1, len(self.axes) - 2)

    @property
    def pitch(self) -> int:
        """From one row to the next."""
        return self.columns.count if self.columns else 1

    @property
    def positions(self) -> int:
        """Of a plane."""
        return self.rows.count * self.pitch

    @property
    def run(self) -> int:
        """Outputs of a tile."""
        return self.vectors * self.lanes

    @property
    def column_shifts(self) -> Ints:
        """How far the taps of a row move what is read."""
        return shifts(self.columns) if self.columns else (0,)

    @property
    def inside(self) -> tuple[int, int]:
        """First and last output with which a tile may begin, so that all that it reads is in the plane."""
        of_rows, of_columns = shifts(self.rows), self.column_shifts
        least = self.pitch * min(0, *of_rows) + min(0, *of_columns)
        most = self.pitch * max(0, *of_rows) + max(0, *of_columns)
        return -least, self.positions - self.run - most

    @property
    def separate_taps(self) -> bool:
        """Yes: each has lanes of its own."""
        return True

    @property
    def aligned(self) -> bool:
        """No: who knows where planes begin."""
        return False

    @property
    def fetches_weights(self) -> bool:
        """No: they are few."""
        return False

    @property
    def fetches_ahead(self) -> bool:
        """Whether tiles ask for what a later one reads first: planes that L2 does not keep by itself."""
        p = self.problem
        return p.bytes_of(p.given) > KEPT_BYTES

    def validate(self) -> None:
        """Assert what the emitter relies on."""
        p = self.problem
        assert self.pixels
        assert self.reads_in_place
        assert self.writes_in_place
        assert self.i_blocks == 1
        assert not any((self.spread, self.unroll, p.accumulate))
        assert self.positions >= self.run
        assert self.out_channels >= self.width
        assert flat(self)

    def __str__(self) -> str:
        return DataPlan.__str__(self).replace(
            "along outputs,", f"along outputs of planes of {self.positions}, {self.vectors} side by side,", 1
        )


def shifts(axis: GatherAxis) -> Ints:
    """How far the taps of an axis move what is read."""
    (phase,) = axis.phases
    return tuple(phase.offset + t * axis.offset_step for t in range(phase.taps))


def flat(plan: DataPlan) -> bool:
    """Whether planes of input and output are alike and lie in memory without gaps."""
    p = plan.problem
    flat_axes = plan.axes[max(1, len(plan.axes) - 2) :]
    step = 1
    for axis, x_step, y_step in zip(reversed(flat_axes), reversed(p.x_strides), reversed(p.y_strides), strict=False):
        if not (axis.in_step == axis.out_step == 1 and axis.in_extent == axis.out_extent):
            return False
        if not x_step == y_step == step:
            return False
        step *= axis.out_extent
    return all(len(axis.phases) == 1 and axis.phases[0].taps for axis in plan.axes)
