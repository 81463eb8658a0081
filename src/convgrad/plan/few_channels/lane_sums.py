"""X or Y of few channels, channels last: lanes multiply channels of the input as they lie, and are added at the end."""

from __future__ import annotations

from collections.abc import Iterator
from math import prod

from convgrad.plan.general.blocks import even_share
from convgrad.plan.general.data import KEPT_BYTES, DataPlan
from convgrad.plan.kinds import as_kind
from convgrad.plan.machine import Machine
from convgrad.plan.order import ADDED
from convgrad.plan.strides import row_major
from convgrad.plan.tiles import FMA_PER_CYCLE, LATENCY, LOADS_PER_CYCLE, TILE_OVERHEAD
from convgrad.problem.conv import Ints
from convgrad.values import frozen

SUMS = 16  # of a tile whose channels are so few that others would not gain
LEAST_SUMS = 8  # that hide how long a multiply-add takes
MOST_WRITTEN = 256  # multiply-adds of a step, of all taps of a row
TASKS = 64


@frozen(kw_only=True)
class LaneSumsPlan(DataPlan):
    """A DataPlan whose tiles are outputs of a row against all channels that are solved for, each sum a vector.

    Vectors hold channels of the input, of which a position has many; nothing is packed but weights. When all taps are
    in it, the lanes of a sum are added, those of several sums at a time, and results lie side by side as in memory.
    """

    KIND = "along channels of the input, added at the end"
    FINISHED = True

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
        assert self.i_block % self.lanes == 0
        assert self.tile[-1] <= self.axes[-1].count
        assert len(self.axes[-1].phases) == 1
        assert self.tile[-1] == 1 or self.result_strides[0][-1][1] == self.out_channels

    def __str__(self) -> str:
        text = super().__str__()
        return text.replace("along channels,", "along channels of the input, added at the end,", 1)


def lane_sums_candidates(base: DataPlan, machine: Machine) -> Iterator[tuple[float, LaneSumsPlan]]:
    """Predicted cycles and the plan, of a problem whose order of sums is that; see `order.adds_lanes`."""
    p, axes, lanes = base.problem, base.axes, base.lanes
    row = p.strides[p.solved][-1]
    dense = row == base.out_channels or axes[-1].count == 1
    if not dense or len(axes[-1].phases) > 1 or not all(axis.count and axis.taps for axis in axes):
        return
    solved = base.out_channels
    room = _room(base, machine)
    nominal = max(1, min(SUMS // solved, room) if solved <= SUMS // 4 else room)
    size = even_share(axes[-1].count, nominal)
    known = nominal * solved * p.taps[-1] <= MOST_WRITTEN
    plan = as_kind(
        LaneSumsPlan, base, tile=(*[1] * (len(axes) - 1), size), block=_block(base, size), width=solved,
        i_block=-(-base.in_channels // lanes) * lanes, pixel_major=True, unroll=int(known), reads_in_place=True,
        writes_in_place=True,
    )  # fmt: skip
    yield _cycles(plan), plan


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


def _cycles(plan: LaneSumsPlan) -> float:
    """Of all tiles."""
    *outer, inner = plan.axes
    rows, solved = plan.tile[-1], plan.width
    taps = inner.taps if plan.unroll else 1
    read = min(rows * taps, inner.in_step * (rows - 1) + abs(inner.offset_step) * (taps - 1) + 1)
    step = max(rows * solved * taps / FMA_PER_CYCLE, (read + solved * taps) / LOADS_PER_CYCLE, LATENCY * taps)
    visits = prod(axis.visits(1) for axis in outer) * inner.tiles(rows) * inner.taps / taps
    tiles = prod(axis.tiles(1) for axis in outer) * inner.tiles(rows)
    return visits * plan.vectors * step + tiles * (TILE_OVERHEAD + ADDED * rows * solved)
