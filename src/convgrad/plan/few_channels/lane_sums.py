"""X or Y of few channels, channels last: lanes multiply channels of the input as they lie, and are added at the end."""

from __future__ import annotations

from collections.abc import Iterator
from math import prod

from convgrad.dtypes import SIZES
from convgrad.plan.along import MOST_SUMS, MOST_WRITTEN, most_together
from convgrad.plan.costs import LINE
from convgrad.plan.general.data import KEPT_BYTES, DataPlan
from convgrad.plan.kinds import as_kind
from convgrad.plan.machine import Machine
from convgrad.plan.shares import even_share
from convgrad.plan.steps import FMA_PER_CYCLE, LATENCY, LOADS_PER_CYCLE, TILE_OVERHEAD
from convgrad.plan.strides import row_major
from convgrad.problem.conv import Ints
from convgrad.values import frozen, replace

SUMS = 16  # of a tile whose channels are so few that others would not gain
MOST_ROWS = 6  # of a tile whose channels are summed in lots
LEAST_SUMS = 8  # that hide how long a multiply-add takes
TASKS = 64
NEAR = 0.8  # of L1, for weights that stay there
FAR, FAR_ROW = 1.75, 0.28  # cycles, measured, for a line of weights from L2, and for each row that meets a vector
WIDENED = 2  # multiply-adds that widening a vector of 16 bits takes as long as
STORING = 2.0  # cycles for a row of results of some channels, which is stored for itself
ADDING = 1.5  # cycles for the lanes of a sum, of as many as a vector has


@frozen(kw_only=True)
class LaneSumsPlan(DataPlan):
    """A DataPlan whose tiles are outputs of a row against all channels that are solved for, each sum a vector.

    Vectors hold channels of the input, of which a position has many; nothing is packed but weights. When all taps are
    in it, the lanes of a sum are added, those of several sums at a time, and results lie side by side as in memory.
    """

    KIND = "along channels of the input, added at the end"
    FINISHED = True

    at_once: int = 0  # channels solved for whose sums a tile makes at once, one lot after the other; 0: all of them

    @property
    def leaves_out_borders(self) -> bool:
        """Yes, if nothing is packed."""
        return self.reads_in_place

    @property
    def runs(self) -> int:
        """One: vectors are what comes one after the other."""
        return 1

    @property
    def run(self) -> int:
        """Numbers that lie side by side and are summed by lanes."""
        return self.in_channels

    @property
    def all_vectors(self) -> range:
        """Which channels solved for a block has, each of which is a vector."""
        return range(self.width)

    @property
    def vectors(self) -> int:
        """Of the input, at a position."""
        return self.i_block // self.lanes

    @property
    def pitch(self) -> int:
        """Packed weights of a tap and an output: an odd number of vectors, so that neighbours do not collide."""
        return (self.vectors | 1) * self.lanes

    @property
    def tap_steps(self) -> Ints:
        """From one tap of each axis to the next, in packed weights."""
        return row_major(self.problem.taps, self.width * self.pitch)

    @property
    def panel(self) -> int:
        """Packed weights, order (tap, output, channel of the input)."""
        return self.taps * self.width * self.pitch

    @property
    def fetches_rows(self) -> bool:
        """Whether tiles ask for what later ones read: of an input that L2 does not hold, in many short runs."""
        p = self.problem
        return p.bytes_of(p.given) > KEPT_BYTES

    @property
    def may_pack_weights(self) -> bool:
        """No: a stage does."""
        return False

    @property
    def fetches_weights(self) -> bool:
        """No."""
        return False

    @property
    def past_caches(self) -> bool:
        """No: results are few."""
        return False

    def validate(self) -> None:
        """Assert what the emitter relies on."""
        super().validate()
        assert self.reads_in_place
        assert self.width == self.out_channels
        assert 0 <= self.at_once <= min(self.width - 1, self.lanes)
        assert self.i_block % self.lanes == 0
        assert self.tile[-1] <= self.axes[-1].count
        assert len(self.axes[-1].phases) == 1
        assert self.tile[-1] == 1 or self.result_strides[0][-1][1] == self.out_channels

    def __str__(self) -> str:
        text = super().__str__()
        lots = f" for {self.at_once} of {self.width} at once" if self.at_once else ""
        return text.replace("along channels,", f"along channels of the input, added at the end{lots},", 1)


def lane_sums_candidates(base: DataPlan, machine: Machine) -> Iterator[tuple[float, LaneSumsPlan]]:
    """Predicted cycles and the plan, of a problem whose order of sums is that; see `along.adds_lanes`."""
    p, axes, lanes = base.problem, base.axes, base.lanes
    row = p.strides[p.solved][-1]
    dense = row == base.out_channels or axes[-1].count == 1
    if not dense or len(axes[-1].phases) > 1 or not all(axis.count and axis.taps for axis in axes):
        return
    plan = as_kind(
        LaneSumsPlan, base, width=base.out_channels, i_block=-(-base.in_channels // lanes) * lanes, pixel_major=True,
        reads_in_place=True, writes_in_place=True,
    )  # fmt: skip

    def tiled(rows: int, at_once: int = 0) -> LaneSumsPlan:
        size = even_share(axes[-1].count, rows)
        known = (MOST_SUMS if at_once else rows * base.out_channels) * p.taps[-1] <= MOST_WRITTEN
        tile = (*[1] * (len(axes) - 1), size)
        return replace(plan, tile=tile, block=_block(base, size), at_once=at_once, unroll=int(known))

    if base.out_channels <= most_together(machine.registers):
        room = _room(base, machine)
        best = tiled(max(1, min(SUMS // base.out_channels, room) if base.out_channels <= SUMS // 4 else room))
    else:
        best = min((tiled(*shape) for shape in _lots(base, machine)), key=lambda plan: _cycles(plan, machine))
    yield _cycles(best, machine), best


def _lots(base: DataPlan, machine: Machine) -> Iterator[tuple[int, int]]:
    """Rows of a tile, and channels at once: registers hold their sums, and what is read of either side."""
    room = machine.registers - (2 if base.compute == base.problem.dtype else 4)
    for columns in range(2, min(base.out_channels, base.lanes + 1)):
        for rows in range(1, min(MOST_ROWS, room // columns - 1, room // (columns + 1)) + 1):
            if rows * columns >= LEAST_SUMS:
                yield rows, columns


def _room(base: DataPlan, machine: Machine) -> int:
    """Rows of a tile, next to whose sums there are registers for what it reads.

    What is widened takes two more; if they leave sums enough, the weights of a row of taps stay, too.
    """
    solved = base.out_channels
    if base.compute == base.problem.dtype:
        return (machine.registers - 2 - solved) // solved
    held = (machine.registers - 2 - solved * base.axes[-1].taps) // solved
    return held if held * solved >= LEAST_SUMS else (machine.registers - 4 - solved) // solved


def _block(base: DataPlan, size: int) -> tuple[int, ...]:
    """Of some rows of an image, or a part of one, so that there are some tasks."""
    *outer, rows, inner = (axis.count for axis in base.axes)
    tiles = -(-inner // size)
    pieces = -(-TASKS // max(1, prod(outer)))
    if rows >= pieces or rows >= tiles:
        return (*[1] * len(outer), -(-rows // min(rows, pieces)), tiles * size)
    return (*[1] * len(outer), 1, -(-tiles // min(tiles, -(-pieces // rows))) * size)


def _cycles(plan: LaneSumsPlan, machine: Machine) -> float:
    """Of all tiles; of weights that L1 does not hold every vector is read from L2 by every tile."""
    *outer, inner = plan.axes
    rows, taps = plan.tile[-1], inner.taps if plan.unroll else 1
    read = min(rows * taps, inner.in_step * (rows - 1) + abs(inner.offset_step) * (taps - 1) + 1)
    far = SIZES[plan.compute] * plan.panel > NEAR * machine.l1_bytes
    visits = prod(axis.visits(1) for axis in outer) * inner.tiles(rows) * inner.taps / taps
    tiles = prod(axis.tiles(1) for axis in outer) * inner.tiles(rows)
    columns = plan.at_once or plan.width
    loads = (read + columns * taps) / LOADS_PER_CYCLE
    if far:
        loads = columns * taps * (FAR * plan.lanes * SIZES[plan.compute] / LINE + FAR_ROW * rows)
    widened = 0 if plan.compute == plan.problem.dtype else WIDENED * read
    step = max((rows * columns * taps + widened) / FMA_PER_CYCLE, loads, LATENCY * taps)
    vectors = -(-rows // max(1, plan.lanes // columns)) if plan.at_once else -(-rows * columns // plan.lanes)
    added = ADDING * plan.lanes * vectors + (STORING * rows if plan.at_once else 0.0)
    return -(-plan.width // columns) * (visits * plan.vectors * step + tiles * (TILE_OVERHEAD + added))
