"""How X or Y is computed: a task packs a slab of the input, sweeps register tiles over it, and unpacks the result."""

from __future__ import annotations

from dataclasses import dataclass
from math import prod

from convgrad.plan.axes import GatherAxis
from convgrad.plan.strides import row_major
from convgrad.problem.conv import ConvProblem, Ints, Unknown


@dataclass(frozen=True, slots=True, kw_only=True)
class DataPlan:
    """Blocking of a problem that solves for X or Y, with vectors along the output channels.

    One task computes `block` outputs per axis and phase, for `tasks_width` blocks of output lanes. A block of lanes is
    `vectors` vectors: the channels of one group, or, where `lane_groups` > 1, the channels of several groups, in
    which case the input is spread so that every lane meets the channel of its own group.
    Sizes count numbers of the arithmetic type.
    """

    problem: ConvProblem
    isa: str
    compute: str
    lanes: int  # numbers in one vector
    axes: tuple[GatherAxis, ...]  # batch first
    block: Ints  # outputs j per axis of one task, a multiple of tile
    tile: Ints  # outputs j per axis of one register tile
    vectors: int
    lane_groups: int  # groups that share a block of lanes
    spread: bool  # vectors of the input differ lane by lane
    i_block: int  # input channels packed at a time
    blocks_per_task: int  # blocks of lanes
    pixel_major: bool  # of the slab: channels innermost
    reasons: tuple[str, ...] = ()

    @property
    def solves_y(self) -> bool:
        """Else for X."""
        return self.problem.unknown is Unknown.Y

    @property
    def in_channels(self) -> int:
        """Of one group."""
        return self.problem.x_channels if self.solves_y else self.problem.y_channels

    @property
    def out_channels(self) -> int:
        """Of one group."""
        return self.problem.y_channels if self.solves_y else self.problem.x_channels

    @property
    def width(self) -> int:
        """Lanes of one block, those without a channel included."""
        return self.vectors * self.lanes

    @property
    def group_blocks(self) -> int:
        """Bundles of `lane_groups` groups."""
        return -(-self.problem.groups // self.lane_groups)

    @property
    def lane_blocks(self) -> int:
        """Blocks of lanes of one bundle of groups."""
        return 1 if self.spread else -(-self.out_channels // self.width)

    @property
    def i_blocks(self) -> int:
        """How often a slab is packed."""
        return max(1, -(-self.in_channels // self.i_block))

    @property
    def taps(self) -> int:
        """Of the whole kernel."""
        return prod(self.problem.taps)

    # --- sizes, in numbers

    @property
    def panel(self) -> int:
        """Packed weights of one block of lanes and one block of input channels, order (taps, i, lane)."""
        return self.taps * self.i_block * self.width

    @property
    def weights_size(self) -> int:
        """All packed weights, order (bundle, lane block, i block, panel)."""
        return self.group_blocks * self.lane_blocks * self.i_blocks * self.panel

    @property
    def bias_size(self) -> int:
        """The packed bias."""
        return self.group_blocks * self.lane_blocks * self.width if self.problem.bias else 0

    @property
    def slab_extent(self) -> Ints:
        """Input elements per axis that one block reads."""
        return tuple(
            axis.in_step * (block - 1) + axis.reach[1] - axis.reach[0] + 1
            for axis, block in zip(self.axes, self.block, strict=True)
        )

    @property
    def slab_numbers(self) -> int:
        """Numbers per position and input channel."""
        return self.width if self.spread else 1

    @property
    def slab_strides(self) -> tuple[Ints, int]:
        """Per axis, and of the input channel."""
        channels = self.i_block * self.slab_numbers
        if self.pixel_major:
            return row_major(self.slab_extent, channels), self.slab_numbers
        strides = row_major(self.slab_extent, 1)
        plane = strides[0] * self.slab_extent[0]
        return strides, plane + (-plane % 16) + 16  # an odd number of cache lines, so that planes do not collide

    @property
    def slab_size(self) -> int:
        """All of it."""
        strides, channel = self.slab_strides
        if self.pixel_major:
            return strides[0] * self.slab_extent[0]
        return channel * self.i_block

    @property
    def result_extent(self) -> Ints:
        """Output elements per axis of one task."""
        return tuple(block * axis.out_step for axis, block in zip(self.axes, self.block, strict=True))

    @property
    def result_strides(self) -> Ints:
        """Per axis; a position holds one block of lanes."""
        return row_major(self.result_extent, self.width)

    @property
    def result_block(self) -> int:
        """Results of one block of lanes."""
        return prod(self.result_extent) * self.width

    @property
    def result_size(self) -> int:
        """Results of one task."""
        return self.result_block * (self.blocks_per_task if self.i_blocks > 1 else 1)

    @property
    def grid(self) -> Ints:
        """Tasks: bundles of groups, blocks per axis, shares of the lane blocks."""
        per_axis = (-(-axis.count // block) for axis, block in zip(self.axes, self.block, strict=True))
        return (self.group_blocks, *per_axis, -(-self.lane_blocks // self.blocks_per_task))

    def validate(self) -> None:
        """Assert what the emitter relies on."""
        assert all(block % tile == 0 for block, tile in zip(self.block, self.tile, strict=True))
        assert self.spread or self.lane_groups == 1
        assert not self.spread or (self.lane_groups * self.out_channels <= self.width and self.pixel_major)

    def __str__(self) -> str:
        rows = prod(self.tile)
        return (
            f"data plan on {self.isa}: tile {rows} x {self.vectors}·{self.lanes}, block {self.block}, "
            f"i {self.i_block} of {self.in_channels}, {prod(self.grid)} tasks, "
            f"slab {self.slab_size} numbers {'pixel' if self.pixel_major else 'channel'}-major\n"
            + "\n".join(f"  {reason}" for reason in self.reasons)
        )

