"""X or Y with vectors along the outputs of a row, and rows of the input that are read where they lie."""

from __future__ import annotations

from math import prod

from convgrad.plan.few_channels.folded import FoldedPlan
from convgrad.plan.general.data import KEPT_BYTES, PAST_CACHES_BYTES, DataPlan
from convgrad.plan.order import channels_in_turn
from convgrad.plan.strides import row_major
from convgrad.problem.conv import Ints
from convgrad.values import frozen

ASKED_BYTES = 6 * 1024 * 1024  # of a result in phases, from which its lines are asked for before they are written
ROWS_AHEAD = 2  # of a phase


@frozen(kw_only=True)
class RowDataPlan(FoldedPlan):
    """A FoldedPlan without a slab; of a problem that solves for Y, or has no stride there, with a single phase.

    Rows lie in memory without gaps. A tile computes a piece of a row, for one output of every other axis, so taps that
    miss the input in those are skipped, and in the row itself lanes that do are masked: where a tile begins is known
    when code is written, but for those between the first and the last one, which need no masks. Where the innermost
    axis of the input is strided, lanes are picked from as many vectors as the stride is long.
    """

    KIND = "along outputs, rows in place"
    FINISHED = True

    @property
    def phases(self) -> int:
        """Of the innermost axis."""
        return 1 if self.solves_y else self.unfolded.stride[-1]

    @property
    def lead(self) -> int:
        """As of any FoldedPlan; with a single phase no tap is missing."""
        return self.unfolded.pad_low[-1] - self.phases * self.problem.pad_low[-1]

    @property
    def met(self) -> range:
        """Taps of the innermost axis that meet the input."""
        (phase,) = self.axes[-1].phases
        return range(phase.tap, phase.tap + phase.taps)

    @property
    def channel_unit(self) -> int:
        """As without phases."""
        return channels_in_turn(self.unfolded)

    @property
    def planes(self) -> int:
        """None: nothing is packed."""
        return 1

    @property
    def aligned(self) -> bool:
        """No: see `slides`."""
        return False

    @property
    def fetches_slab(self) -> bool:
        """No."""
        return False

    @property
    def deals(self) -> bool:
        """Whether lanes are outputs in another order until they are stored, in which rows of stride 2 are picked."""
        return self.axes[-1].in_step == 2 and self.problem.dtype == "f32" and self.i_blocks == 1

    @property
    def fetches_rows(self) -> bool:
        """Whether tiles ask for what the next ones read: of rows apart from each other, which L2 does not hold."""
        p = self.problem
        large = p.bytes_of(p.given) > KEPT_BYTES
        return large and (self.axes[-1].in_step > 1 or len(self.axes) == 2)

    @property
    def ahead_of_results(self) -> int:
        """Numbers by which tiles ask for lines of the result before they write them; 0: caches have them."""
        p = self.unfolded
        if p.out_dtype != self.compute or p.bytes_of("x") < ASKED_BYTES or not self.writes_in_place:
            return 0
        steps, _ = self.result_strides
        return ROWS_AHEAD * (steps[-2][1] * self.tile[-2] if len(self.axes) > 2 else self.tile[-1] * self.phases)

    @property
    def slides(self) -> bool:
        """Whether vectors that would cross cache lines are made of the two around them: where rows begin with lines."""
        p = self.problem
        given = p.strides[p.given]
        lines = p.dtype == self.compute and self.fills_lines
        row = self.axes[-1]
        even = all(n % self.lanes == 0 for n in (*given[:-1], row.in_extent))
        return lines and row.in_step == 1 and even

    @property
    def columns(self) -> Ints:
        """Outputs of a row with which the vectors of a tile begin; written in place, they end with the row."""
        span = self.span(len(self.axes) - 1)
        early = self.writes_in_place and self.phases == 1
        return tuple(
            min(at, span - self.lanes) if early else at
            for at in range(0, self.tile[-1], self.lanes)
            if at < span or not early
        )

    @property
    def channel_step(self) -> int:
        """Numbers of the input from a channel to the next."""
        return self.slab_strides[1]

    @property
    def written_phases(self) -> int:
        """That meet in registers, rather than in a copy: not where sums are fetched again."""
        return self.phases if self.i_blocks == 1 else 1

    @property
    def row_extent(self) -> int:
        """Elements of a row that a task computes at most."""
        return min(self.block[-1] * self.phases, self.unfolded.x_extent[-1] if self.phases > 1 else self.block[-1])

    @property
    def result_strides(self) -> tuple[tuple[Ints, ...], int]:
        """As of any DataPlan, but for phases that have met."""
        if self.writes_in_place or self.written_phases == 1:
            return super(FoldedPlan, self).result_strides
        *outer, _ = self.result_extent
        *steps, _ = row_major((*outer, self.row_extent), 1)
        of_axes = ((step, step * axis.out_step) for axis, step in zip(self.axes, steps, strict=False))
        return (*of_axes, (1, self.phases)), prod(outer) * self.row_extent

    @property
    def past_caches(self) -> bool:
        """As of any DataPlan; rows without gaps are one run."""
        p = self.unfolded
        if self.written_phases == 1 or self.writes_in_place or p.accumulate or p.out_dtype != self.compute:
            return super(FoldedPlan, self).past_caches
        batch, _, channel, *spatial = p.x_strides
        large = p.bytes_of("x") >= PAST_CACHES_BYTES
        dense = tuple(spatial) == row_major(p.x_extent, 1)
        return large and dense and batch % self.lanes == channel % self.lanes == 0 and self.fills_lines

    @property
    def row_tiles(self) -> int:
        """Tiles of a row."""
        return -(-self.axes[-1].count // self.tile[-1])

    def tile_start(self, number: int) -> int:
        """The output with which a tile of a row begins; written in place, the last one begins early."""
        count, tile = self.axes[-1].count, self.tile[-1]
        last = max(0, count - tile) if self.writes_in_place and self.phases == 1 else count
        return min(number * tile, last)

    @property
    def middle_inside(self) -> bool:
        """Whether the first and the last tile of a row are the only ones that read beyond it."""
        middle = range(1, self.row_tiles - 1)
        return not middle or (self.inside(self.tile_start(middle[0])) and self.inside(self.tile_start(middle[-1])))

    def inside(self, start: int) -> bool:
        """Whether all that a tile reads is in the row."""
        axis = self.axes[-1]
        low, high = axis.reach
        last = (start + self.tile[-1] - 1) * axis.in_step + axis.in_step - 1
        return start * axis.in_step + low >= 0 and last + high < axis.in_extent

    def validate(self) -> None:
        """Assert what the emitter relies on."""
        p = self.problem
        assert self.pixels
        assert self.reads_in_place
        assert not any((self.spread, self.unroll, self.pixel_major))
        assert all(tile == 1 for tile in self.tile[:-2])
        assert self.block[-1] % self.tile[-1] == 0
        assert len(self.axes[-1].phases) == 1
        assert self.axes[-1].phases[0].taps
        assert p.strides[p.given][-1] == 1
        assert self.phases == 1 or not self.writes_in_place or self.written_phases > 1
        assert self.phases == 1 or not self.writes_in_place or self.unfolded.x_strides[-1] == 1
        assert self.phases == 1 or (self.width % self.phases == 0 == self.out_channels % self.width)
        assert not self.writes_in_place or (
            self.i_blocks == 1 and (self.phases > 1 or self.axes[-1].count >= self.lanes)
        )
        assert self.middle_inside
        assert self.tile[-1] % self.lanes == 0
        assert self.runs == 1 or self.in_channels % self.channel_unit == 0 == self.i_block % self.channel_unit

    def __str__(self) -> str:
        of = f" of {self.phases} phases" if self.phases > 1 else ""
        return DataPlan.__str__(self).replace("along outputs,", f"along outputs{of}, rows in place,", 1)
