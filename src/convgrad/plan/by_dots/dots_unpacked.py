"""Y of a few images with weights whose channels of y lie side by side: neither side of a dot product is packed."""

from __future__ import annotations

from collections.abc import Iterator

from convgrad.dtypes import SIZES
from convgrad.plan.axes import gather_axes
from convgrad.plan.by_dots.dots import LANES, REGISTERS, DotDataPlan
from convgrad.plan.by_dots.dots_in_place import DotsInPlacePlan, in_place
from convgrad.plan.costs import SETS_BYTES
from convgrad.plan.general.data import KEPT_BYTES
from convgrad.plan.general.data_in_place import rows_of_l1
from convgrad.plan.kinds import as_kind
from convgrad.plan.steps import FMA_PER_CYCLE, LATENCY, LOADS_PER_CYCLE
from convgrad.problem.conv import ConvProblem, Unknown
from convgrad.problem.simplify import simplify, with_taps_merged
from convgrad.values import frozen, replace

MOST_VECTORS = 4  # side by side in a tile
TAKEN = 6  # registers: two rows of weights, words of them, and what looking at them takes
MOST_TILES = 2  # of all outputs, each of which makes words of all weights
CROSSING, LOOK = 4.0, 1.5  # loads of two rows that cross lines; cycles to make words of them, and to look at these
PACKED = 6.0  # cycles to pack two vectors of weights before
SHARE_ROWS = 512  # of weights, that stay in L2 while all tiles of a task meet them
CROWDED_ROWS = 8  # outputs for which that is still less than packing takes
TIE = 0.9  # of the cycles of tiles whose weights are packed, each of which these meet once


@frozen(kw_only=True)
class DotsUnpackedPlan(DotsInPlacePlan):
    """A DotsInPlacePlan of few outputs, whose tiles make words of two rows of weights as they meet them.

    To pack a weight would take longer than all that it is multiplied with. Where there are more weights than stay near,
    a task goes over some rows of them with all of its tiles, block of lanes by block of lanes, before it goes on.
    """

    KIND = "by dot products, in place, weights too"

    @property
    def may_pack_weights(self) -> bool:
        """No."""
        return False

    @property
    def may_read_weights(self) -> bool:
        """Nothing else."""
        return True

    def validate(self) -> None:
        """Assert what the emitter relies on."""
        assert self.reads_in_place
        assert self.writes_in_place == (self.i_blocks == 1)
        assert self.i_block % self.channel_unit == 0
        assert self.writes_in_place or self.block[-1] % self.tile[-1] == 0 == self.axes[-1].count % self.tile[-1]
        self.validate_operands()
        assert self.reads_weights
        assert self.solves_y
        assert self.problem.w_strides[1] == 1


def unpacked(plan: DotDataPlan, cycles: float) -> Iterator[tuple[float, DotsUnpackedPlan]]:
    """Cycles that count as fewer than those of a plan for dot products, and the plan, if there are so few outputs."""
    p = _of_one_tap(plan.problem)
    axes = gather_axes(p)
    count, found = axes[-1].count, replace(plan, problem=p, axes=axes, block=(), tile=())
    most = min(rows_of_l1(found), REGISTERS - TAKEN - 1)
    tiles = MOST_TILES
    if SIZES[p.dtype] * p.w_strides[2] % SETS_BYTES == 0:  # rows push each other out of L1
        most, tiles = min(most, CROWDED_ROWS), 1
    few = 0 < count <= tiles * most and all(axis.count == 1 for axis in axes[:-1])
    if not few or not plan.solves_y or p.w_strides[1] != 1 or p.accumulate:
        return
    shapes = [
        (rows, vectors)
        for rows in dict.fromkeys(-(-count // many) for many in range(1, tiles + 1))
        for vectors in range(1, min(MOST_VECTORS, plan.out_channels // LANES) + 1)
        if rows <= most and (rows + 1) * vectors + TAKEN <= REGISTERS
    ]
    if not shapes:
        return
    rows, vectors = min(shapes, key=lambda shape: _cycles(count, plan.out_channels, *shape))
    packed = -(-plan.out_channels // LANES) * (count / FMA_PER_CYCLE + PACKED)
    if _cycles(count, plan.out_channels, rows, vectors) > packed:
        return
    tile = (*[1] * (len(axes) - 1), rows)
    for one in in_place(replace(found, tile=tile, block=tile, width=vectors * LANES)):
        yield TIE * cycles, _in_shares(as_kind(DotsUnpackedPlan, one, reads_weights=True))


def _in_shares(plan: DotsUnpackedPlan) -> DotsUnpackedPlan:
    """With a share of the rows of weights at a time, if all of them are far and met by several tiles or in parts."""
    count, rows = plan.axes[-1].count, plan.tile[-1]
    share = SHARE_ROWS // plan.channel_unit * plan.channel_unit
    again = count > rows or plan.lane_blocks > 1
    if not again or plan.problem.bytes_of("w") <= KEPT_BYTES or count % rows or share >= plan.in_channels:
        return plan
    return replace(plan, writes_in_place=False, i_block=share)


def _cycles(count: int, channels: int, rows: int, vectors: int) -> float:
    """Of a pair of numbers of all rows, in tiles of so many."""
    products, loads = rows * vectors / FMA_PER_CYCLE, (rows + CROSSING * vectors) / LOADS_PER_CYCLE
    return -(-count // rows) * -(-channels // (vectors * LANES)) * (max(products, loads, LATENCY) + LOOK * vectors)


def _of_one_tap(problem: ConvProblem) -> ConvProblem:
    """With the taps of windows that are whole images as channels."""
    if problem.unknown is not Unknown.Y or max(problem.taps) == 1:
        return problem
    return simplify(with_taps_merged(problem), merges=False)
