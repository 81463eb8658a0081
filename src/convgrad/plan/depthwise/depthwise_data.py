"""X or Y of one channel per group, channels side by side and read in place: tiles of several rows of positions."""

from __future__ import annotations

from typing import ClassVar

from convgrad.plan.axes import GatherAxis, Phase
from convgrad.plan.general.data import DataPlan
from convgrad.values import frozen

Row = tuple[int, int, int]  # place of a row of the input, row of the tile that meets it, and at which tap


@frozen(kw_only=True)
class DepthwiseDataPlan(DataPlan):
    """A DataPlan with vectors across groups, whose tile of rows × columns reads a number once for each of its rows.

    Nothing is packed. A tile has its outputs of all phases of the innermost two axes, so that lines side by side are
    written together. Taps of these axes are written out, those of the innermost one without what falls beside the
    image: tiles that meet a border have code of their own. Rows beside the image are skipped. The last tile of an axis
    begins early and repeats some outputs.
    """

    KIND = "across groups, rows together"
    FINISHED = True
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
        return self.tile[-1] * self.row_weights

    @property
    def row_weights(self) -> int:
        """Vectors of weights that they meet."""
        return sum(phase.taps for phase in self.columns.phases)

    @property
    def kernel(self) -> tuple[int, int]:
        """Taps of the innermost two axes."""
        rows, columns = (1, *self.problem.taps)[-2:]
        return rows, columns

    @property
    def tiles(self) -> int:
        """Of the innermost two axes, for a block of lanes."""
        return -(-self.rows.count // self.tile[-2]) * -(-self.columns.count // self.tile[-1])

    @property
    def whole_vectors(self) -> bool:
        """Whether vectors of the input begin with cache lines, if one does."""
        return all(step % self.width == 0 for step in self.slab_strides[0])

    def outputs(self, n: int) -> list[tuple[int, Phase]]:
        """Of a tile on an axis, in the order in which they lie: which one of which phase."""
        return [(m, phase) for m in range(self.tile[n]) for phase in self.axes[n].phases]

    @property
    def sums(self) -> int:
        """Of a tile."""
        return len(self.outputs(-2)) * len(self.outputs(-1))

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
        ends = [self.columns.inside(phase) for phase in self.columns.phases]
        low, high = max(low for low, _ in ends), min(high for _, high in ends)
        first, last = -(-max(low, 0) // size) * size, min(high // size * size, stop)
        if first >= last:
            return range(0), range(0, stop, size), range(0)
        return range(first, last, size), range(0, first, size), range(last, stop, size)

    @property
    def _shifts(self) -> int:
        """Whether the last tile begins early."""
        return 1 if self.columns.count % self.tile[-1] else 0

    def column_steps(self, first: int | None = None) -> dict[int, list[tuple[int, int]]]:
        """Columns of the input, from a tile's first one, and for each which columns of the tile meet it at which tap.

        Of the tile that begins with `first`, what there is; else of one inside the image. In the order of taps.
        """
        axis, found = self.columns, {}
        for n, (m, phase) in enumerate(self.outputs(-1)):
            for t in range(phase.taps) if first is None or first + m < phase.count else ():
                place = m * axis.in_step + phase.offset + t * axis.offset_step
                if first is None or 0 <= first * axis.in_step + place < axis.in_extent:
                    found.setdefault(place, []).append((n, phase.tap + t * axis.tap_step))
        return dict(sorted(found.items(), reverse=axis.offset_step < 0))

    def stored(self, first: int) -> list[int]:
        """Columns that there are of the tile that begins with `first`."""
        return [n for n, (m, phase) in enumerate(self.outputs(-1)) if first + m < phase.count]

    @property
    def always_stored(self) -> list[int]:
        """Rows that every tile has: the last output of a tile may be one that shorter phases lack."""
        axis, last = self.rows, self.tile[-2] - 1
        return [n for n, (m, phase) in enumerate(self.outputs(-2)) if m < last or phase.count == axis.count]

    @property
    def row_steps(self) -> tuple[tuple[int, tuple[tuple[int, int], ...]], ...]:
        """Rows of the input, from the tile's first one, and for each which of its rows meet it at which tap.

        In an order in which every row of the tile comes to its taps one after the other.
        """
        axis, outputs = self.rows, self.outputs(-2)
        found: dict[int, list[tuple[int, int]]] = {}
        for t in range(axis.taps):
            for n, (m, phase) in enumerate(outputs):
                if t < phase.taps:
                    place = m * axis.in_step + phase.offset + t * axis.offset_step
                    found.setdefault(place, []).append((n, phase.tap + t * axis.tap_step))
        places = sorted(found, reverse=axis.offset_step < 0)
        return tuple((place, tuple(found[place])) for place in places)

    def sure(self, place: int) -> bool:
        """Whether a row of the input, of `row_steps`, is in the image for every tile."""
        axis = self.rows
        return place >= 0 and (axis.count - self.tile[-2]) * axis.in_step + place < axis.in_extent

    @property
    def may_pack_weights(self) -> bool:
        """No: every task needs those of all groups."""
        return False

    def validate(self) -> None:
        """Assert what the emitter relies on."""
        self.validate_tiles()
        assert self.width == self.lane_groups == self.lanes <= self.problem.groups

    def validate_tiles(self) -> None:
        """The same, whatever a block of lanes is."""
        p = self.problem
        assert self.spread
        assert self.reads_in_place
        assert self.writes_in_place
        assert self.in_channels == self.out_channels == 1
        assert not p.accumulate
        assert all(size <= axis.count for size, axis in zip(self.tile, self.axes, strict=True))
        assert set(self.tile[:-2]) <= {1}
        assert self.block[-1] == self.columns.count
        assert p.x_strides[1] == p.y_strides[1] == 1

    def __str__(self) -> str:
        text = DataPlan.__str__(self)
        return text.replace("channels of several groups,", "channels of several groups, rows together,", 1)
