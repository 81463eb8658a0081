"""X or Y of one channel per group, channels side by side and read in place: tiles of several rows of positions."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import product
from typing import ClassVar

from convgrad.plan.axes import GatherAxis
from convgrad.plan.data import DataPlan

Row = tuple[int, int, int]  # place of a row of the input, row of the tile that meets it, and at which tap


@dataclass(frozen=True, slots=True, kw_only=True)
class DepthwiseDataPlan(DataPlan):
    """A DataPlan with vectors across groups, whose tile of rows × columns reads a number once for each of its rows.

    Nothing is packed. Taps of the innermost two axes are written out, those of the innermost one without what falls
    beside the image: tiles that meet a border have code of their own. Rows beside the image are skipped. The last tile
    of an axis begins early and repeats some outputs.
    """

    KIND = "across groups, rows together"
    reads_again: ClassVar[bool] = True  # every row of a tile reads what it meets

    @property
    def rows(self) -> GatherAxis:
        """The axis before the innermost, that of the batch if there is no other."""
        return self.axes[-2]

    @property
    def columns(self) -> GatherAxis:
        """The innermost axis."""
        return self.axes[-1]

    @property
    def row_products(self) -> int:
        """Multiply-adds of a row of a tile, at a tap of the rows."""
        return self.tile[-1] * self.columns.taps

    @property
    def row_weights(self) -> int:
        """Vectors of weights that they meet."""
        return self.columns.taps

    @property
    def bodies(self) -> tuple[tuple[int, int], ...]:
        """Columns with which tiles begin: runs of them that share their code, first to last."""
        inside, before, behind = self._starts
        runs = [(inside[0], inside[-1])] if inside else []
        runs += [(j, j) for j in (*before, *behind)]
        if self._shifts:
            last = self.columns.count - self.tile[-1]
            runs.append((last, last))
        return tuple(sorted(runs))

    @property
    def body_count(self) -> int:
        """How many there are, without a look at each column: there may be millions."""
        inside, *alone = self._starts
        return min(1, len(inside)) + sum(map(len, alone)) + self._shifts

    @property
    def _starts(self) -> tuple[range, range, range]:
        """Columns with which tiles begin whose taps all meet the input, and those before and after them."""
        size = self.tile[-1]
        stop = self.columns.count // size * size
        low, high = self.columns.inside(self.columns.phases[0])
        first, last = -(-max(low, 0) // size) * size, min(high // size * size, stop)
        if first >= last:
            return range(0), range(0, stop, size), range(0)
        return range(first, last, size), range(0, first, size), range(last, stop, size)

    @property
    def _shifts(self) -> int:
        """Whether the last tile begins early."""
        return 1 if self.columns.count % self.tile[-1] else 0

    def has(self, column: int, t: int) -> bool:
        """Whether an output of the innermost axis meets the input at a tap."""
        at = self.columns.in_step * column + self.columns.phases[0].offset + t * self.columns.offset_step
        return 0 <= at < self.columns.in_extent

    @property
    def row_steps(self) -> tuple[tuple[int, tuple[tuple[int, int], ...]], ...]:
        """Rows of the input, from the tile's first one, and for each which of its rows meet it at which tap.

        In an order in which every row of the tile comes to its taps one after the other.
        """
        axis, (phase,) = self.rows, self.rows.phases
        found: dict[int, list[tuple[int, int]]] = {}
        for t, m in product(range(phase.taps), range(self.tile[-2])):
            found.setdefault(m * axis.in_step + t * axis.offset_step, []).append((m, t))
        places = sorted(found, reverse=axis.offset_step < 0)
        return tuple((place, tuple(found[place])) for place in places)

    def sure(self, place: int) -> bool:
        """Whether a row of the input, of `row_steps`, is in the image for every tile."""
        axis, (phase,) = self.rows, self.rows.phases
        at = phase.offset + place
        return at >= 0 and (axis.count - self.tile[-2]) * axis.in_step + at < axis.in_extent

    @property
    def may_pack_weights(self) -> bool:
        """No: every task needs those of all groups."""
        return False

    def validate(self) -> None:
        """Assert what the emitter relies on."""
        p = self.problem
        assert self.spread
        assert self.reads_in_place
        assert self.writes_in_place
        assert self.in_channels == self.out_channels == 1
        assert self.width == self.lane_groups == self.lanes <= p.groups
        assert not p.accumulate
        assert all(len(axis.phases) == 1 for axis in self.axes)
        assert all(size <= axis.count for size, axis in zip(self.tile, self.axes, strict=True))
        assert set(self.tile[:-2]) <= {1}
        assert self.block[-1] == self.columns.count
        assert p.x_strides[1] == p.y_strides[1] == 1

    def __str__(self) -> str:
        text = DataPlan.__str__(self)
        return text.replace("channels of several groups,", "channels of several groups, rows together,", 1)
