"""X of channels that would leave lanes empty: phases of the innermost stride fill vectors beside the channels."""

from __future__ import annotations

from collections.abc import Iterator
from math import prod

from convgrad.plan.axes import gather_axes
from convgrad.plan.general.data import DataPlan
from convgrad.plan.kinds import as_kind
from convgrad.plan.machine import Machine
from convgrad.plan.order import channels_in_turn
from convgrad.plan.strides import row_major
from convgrad.plan.tiles import best_tile
from convgrad.problem.conv import ConvProblem, Ints, Unknown
from convgrad.values import frozen, replace

WORTH = 1.05  # cycles, as a multiple, of tiles that are to be worth it
THROUGH = 0.25  # cycles of a result, not counted for others, to pass through memory
TURNED, SCATTERED = 0.5, 4.0  # cycles to pack a number of w beyond those of other plans


@frozen(kw_only=True)
class PhaseLanesPlan(DataPlan):
    """Of `problem`, which is `unfolded` with phases as channels.

    Channel f · channels + c of group j is element phases · j + f - lead. So lanes are what lies side by side where
    channels are last, and every number of y meets all phases of a row. Tap t of phase f is tap phases · t + f of the
    kernel; of the last one some phases may have none, and meet zeros. The order of every sum is that of `unfolded`.
    """

    KIND = "along channels of all phases"
    OUTPUTS_ALONE = True

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
    def lead(self) -> int:
        """Elements of the first group of phases that lie before x."""
        return self.unfolded.pad_low[-1] % self.phases

    @property
    def some_lack_taps(self) -> bool:
        """Whether the last tap is one of some phases only."""
        return self.unfolded.taps[-1] % self.phases > 0

    @property
    def channel_unit(self) -> int:
        """As without phases."""
        return channels_in_turn(self.unfolded)

    @property
    def row_width(self) -> int:
        """All channels, in whole vectors: those of all blocks lie side by side."""
        return -(-self.out_channels // self.lanes) * self.lanes

    @property
    def panel_step(self) -> int:
        """Likewise."""
        return self.width

    @property
    def panel_rows(self) -> int:
        """Packed weights of all blocks, order (run, taps, i, lane)."""
        return self.taps * self.i_block * self.row_width

    @property
    def weights_size(self) -> int:
        """Likewise."""
        return self.panel_rows

    @property
    def may_pack_weights(self) -> bool:
        """No: a stage does."""
        return False

    @property
    def fetches_weights(self) -> bool:
        """No."""
        return False

    @property
    def fetches_slab(self) -> bool:
        """No."""
        return False

    @property
    def past_caches(self) -> bool:
        """No."""
        return False

    @property
    def last_vectors(self) -> range | None:
        """Those of the last block that hold channels; the last one begins early, so as to write nothing beside them."""
        if self.lane_blocks == 1 or self.out_channels % self.width == 0:
            return None
        return range(0, self.row_width - (self.lane_blocks - 1) * self.width, self.lanes)

    @property
    def all_vectors(self) -> range:
        """Of a block."""
        return range(0, min(self.width, self.row_width), self.lanes)

    @property
    def result_strides(self) -> tuple[tuple[Ints, ...], int]:
        """As of any DataPlan, of the channels of all blocks."""
        strides = row_major(self.result_extent, self.out_channels)
        return tuple((step, step * axis.out_step) for axis, step in zip(self.axes, strides, strict=True)), 1

    @property
    def result_size(self) -> int:
        """Results of one task."""
        return prod(self.result_extent) * self.out_channels

    def validate(self) -> None:
        """Assert what the emitter relies on."""
        super().validate()
        assert not any((self.pixels, self.spread, self.unroll, self.reads_in_place, self.writes_in_place))
        assert self.blocks_per_task == self.lane_blocks
        assert self.i_blocks == 1
        assert self.out_channels >= self.lanes

    def __str__(self) -> str:
        return super().__str__().replace("along channels,", f"{self.KIND},", 1)


def with_phases(p: ConvProblem) -> ConvProblem:
    """With the phases of the innermost stride as channels; see `PhaseLanesPlan`."""
    s, low = p.stride[-1], p.pad_low[-1]
    return replace(
        p,
        x_channels=s * p.x_channels,
        x_extent=(*p.x_extent[:-1], -(-(p.x_extent[-1] + low % s) // s)),
        taps=(*p.taps[:-1], -(-p.taps[-1] // s)),
        stride=(*p.stride[:-1], 1),
        pad_low=(*p.pad_low[:-1], low // s),
        x_strides=(*p.x_strides[:-1], s * p.x_strides[-1]),
        w_strides=(*p.w_strides[:-1], s * p.w_strides[-1]),
    )


def phase_lanes_candidates(base: DataPlan, machine: Machine, cost: float) -> Iterator[tuple[float, PhaseLanesPlan]]:
    """Predicted cycles and the plan, if phases fill lanes; `cost` are those of moving the numbers of both sides."""
    p = base.problem
    s = p.stride[-1]
    plain = p.unknown is Unknown.X and p.groups == 1 and p.dilation[-1] == 1 < s <= p.taps[-1] and 0 not in p.x_extent
    many = base.lanes <= s * p.x_channels and p.y_channels > 0
    fuller = -(-s * p.x_channels // base.lanes) < s * -(-p.x_channels // base.lanes)
    if not (plain and many and fuller and p.y_channels % channels_in_turn(p) == 0):
        return
    inner = with_phases(p)
    axes = gather_axes(inner)
    if not all(axis.taps for axis in axes):
        return
    plan = as_kind(PhaseLanesPlan, base, problem=inner, axes=axes, unfolded=p, i_block=p.y_channels, pixel_major=True)
    together = p.w_strides[-1] == p.x_channels * p.w_strides[2]  # lanes, a step apart in the weights
    cost += THROUGH * prod(p.shapes["x"])
    cost += (TURNED if together else SCATTERED) * prod(p.shapes["w"])
    for first in (1, 0):
        shape = best_tile(
            axes, (p.y_channels, inner.x_channels), base.lanes, machine.tile_registers, first=first,
            lines=base.fills_lines, alone=machine.loads_alone, short=not base.fills_lines,
        )  # fmt: skip
        tiled = replace(plan, tile=shape.tile, block=shape.tile, width=shape.width)
        yield WORTH * shape.cycles + cost, replace(tiled, blocks_per_task=tiled.lane_blocks)
