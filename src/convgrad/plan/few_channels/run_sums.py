"""Y of channels that would leave lanes empty: lanes multiply runs of taps and channels, and are added at the end."""

from __future__ import annotations

from collections.abc import Iterator
from math import prod

from convgrad.plan.along import ADDED
from convgrad.plan.axes import Phase
from convgrad.plan.few_channels.lane_sums import LaneSumsPlan
from convgrad.plan.general.blocks import best_blocks
from convgrad.plan.general.data import DataPlan
from convgrad.plan.kinds import as_kind
from convgrad.plan.machine import Machine
from convgrad.plan.shares import even_share
from convgrad.plan.steps import FMA_PER_CYCLE, LATENCY, LOADS_PER_CYCLE, TILE_OVERHEAD
from convgrad.plan.strides import row_major
from convgrad.problem.conv import Ints
from convgrad.values import frozen, replace

MOST_WIDE = 8  # channels of a tile
CROSSED = 2.0  # loads that a vector of the slab counts for: it begins anywhere
MOST_PRODUCTS = 50  # of a number of the input, that take no longer than it takes to come
FETCH = 0.25  # cycles, not hidden, for a vector of either side, which come from L2


@frozen(kw_only=True)
class RunSumsPlan(LaneSumsPlan):
    """A LaneSumsPlan whose vectors hold what a row of taps meets: channels of the first tap, of the second, and so on.

    In a slab with channels innermost that is one run for every output, as long as taps follow each other; of the last
    vector as many lanes are read as there are. Tiles are outputs of a row against some of the channels solved for.
    """

    KIND = "along runs of taps and channels, added at the end"

    @property
    def channel_unit(self) -> int:
        """All of them."""
        return max(1, self.in_channels)

    @property
    def run(self) -> int:
        """Numbers that a row of taps meets."""
        return self.problem.taps[-1] * self.in_channels

    @property
    def vectors(self) -> int:
        """Of a run."""
        return -(-self.run // self.lanes)

    @property
    def tap_steps(self) -> Ints:
        """From one tap of each axis to the next, in packed weights; those of the innermost one follow each other."""
        outputs = self.problem.groups * self.lane_blocks * self.width
        return (*row_major(self.problem.taps[:-1], outputs * self.pitch), self.in_channels)

    @property
    def panel(self) -> int:
        """Packed weights of a block of channels, order (outer taps, output, innermost tap, channel of the input)."""
        return prod(self.problem.taps[:-1]) * self.panel_step

    @property
    def panel_step(self) -> int:
        """Blocks lie side by side at each of the outer taps."""
        return self.width * self.pitch

    @property
    def weights_size(self) -> int:
        """All packed weights, order (outer taps, group, output, innermost tap, channel of the input)."""
        return self.problem.groups * self.lane_blocks * self.panel

    @property
    def last_vectors(self) -> range | None:
        """Channels of the last block, if these are fewer."""
        rest = self.out_channels % self.width
        return range(rest) if 0 < rest < self.width < self.out_channels else None

    @property
    def fetches_rows(self) -> bool:
        """No: a slab is packed."""
        return False

    @property
    def fetches_slab(self) -> bool:
        """Whether the next slab is asked for meanwhile: of inputs that take longer to come than to multiply."""
        p = self.problem
        return super().fetches_slab and p.flops <= 2 * MOST_PRODUCTS * prod(p.shapes[p.given])

    @property
    def steps_inside(self) -> int:
        """Vectors of a run."""
        return self.vectors

    @property
    def hides_weights(self) -> bool:
        """Yes, or it is counted."""
        return True

    def validate(self) -> None:
        """Assert what the emitter relies on."""
        DataPlan.validate(self)
        assert self.solves_y
        assert self.pixel_major
        assert self.i_block == self.in_channels
        assert not any((self.reads_in_place, self.writes_in_place, self.spread, self.pixels))
        assert max(self.tile[:-1]) == 1
        (phase,) = self.axes[-1].phases
        assert self.axes[-1].offset_step == 1
        assert (phase.tap, phase.taps) == (0, self.problem.taps[-1])

    def __str__(self) -> str:
        return DataPlan.__str__(self).replace("along channels,", f"{self.KIND},", 1)


def run_sums_candidates(base: DataPlan, machine: Machine) -> Iterator[tuple[float, RunSumsPlan]]:
    """Predicted cycles and the plan, of a problem whose order of sums is that; see `along.adds_runs`."""
    p, inner = base.problem, base.axes[-1]
    if p.dilation[-1] != 1 or not all(axis.count and axis.taps for axis in base.axes):
        return
    whole = Phase(0, inner.count, p.taps[-1], -p.pad_low[-1], 0)  # lanes do not depend on which taps meet the image
    axes = (*base.axes[:-1], replace(inner, phases=(whole,)))
    plan = as_kind(RunSumsPlan, base, axes=axes, i_block=base.in_channels, pixel_major=True, unroll=1)

    def tiled(rows: int, width: int) -> RunSumsPlan:
        tile = (*[1] * (len(axes) - 1), rows)
        return replace(plan, tile=tile, block=tile, width=width)

    room = machine.registers - 1
    shapes = {
        (even_share(inner.count, rows), min(width, base.out_channels))
        for width in range(1, MOST_WIDE + 1)
        for rows in range(1, (room - width) // width + 1)
        if rows * width + min(rows, width) <= room
    }
    best = min((tiled(*shape) for shape in sorted(shapes)), key=_cycles)
    cycles = _cycles(best)
    yield cycles, best_blocks(best, cycles)


def _cycles(plan: RunSumsPlan) -> float:
    """Of all tiles of all groups."""
    *outer, inner = plan.axes
    rows = plan.tile[-1]
    visits = prod(axis.visits(1) for axis in outer) * inner.tiles(rows)
    tiles = prod(axis.tiles(1) for axis in outer) * inner.tiles(rows)
    blocks, rest = divmod(plan.out_channels, plan.width)
    cycles = 0.0
    for count, width in ((blocks, plan.width), (1, rest)):
        if width:
            step = max(rows * width / FMA_PER_CYCLE, (CROSSED * rows + width) / LOADS_PER_CYCLE, LATENCY)
            step += FETCH * (rows + width)
            cycles += count * (visits * plan.vectors * step + tiles * (TILE_OVERHEAD + ADDED * rows * width))
    return plan.problem.groups * cycles
