"""Blocking of a problem that solves for X or Y: what one task computes at a time, and how much of it there is."""

from __future__ import annotations

from dataclasses import field
from math import prod

from convgrad.dtypes import SIZES
from convgrad.plan.axes import GatherAxis
from convgrad.plan.order import channels_in_turn
from convgrad.problem.conv import ConvProblem, Ints, Unknown
from convgrad.values import frozen


@frozen(kw_only=True)
class DataBlocks:
    """The numbers that a `DataPlan` is made of, and what follows from them by counting.

    One task computes `block` outputs per axis and phase, for `blocks_per_task` blocks of `width` output channels.
    Vectors run along one of three things:
    * output channels of one group; outputs are the rows of the register tile;
    * output channels of several groups (`spread`), where every lane meets the input channels of its own group;
    * outputs of the innermost axis (`pixels`); output channels are the rows.
    Sizes count numbers of the arithmetic type.
    """

    problem: ConvProblem
    isa: str
    compute: str
    lanes: int  # numbers in one vector
    axes: tuple[GatherAxis, ...]  # batch first
    block: Ints  # outputs j per axis of one task, a multiple of tile
    tile: Ints  # outputs j per axis of one register tile
    width: int  # output channels of one block, those that only fill it up included
    lane_groups: int  # groups that share a block of lanes
    spread: bool  # vectors run across groups
    pixels: bool  # vectors run along the innermost axis
    i_block: int  # input channels packed at a time
    blocks_per_task: int  # blocks of lanes, of a group
    pixel_major: bool  # of the slab: channels innermost
    bundle: int = 1  # groups of a task, one after the other; a slab has the channels of all of them
    unroll: int = 0  # innermost axes whose taps are written out; zeros pad them
    reads_in_place: bool = False  # the input itself serves as slab; implies writes_in_place
    writes_in_place: bool = False  # the output itself serves as result; tiles shift back rather than reach beyond it
    packs_weights: bool = False  # a task packs each panel right before its sweep; else tasks of a stage before do
    reads_weights: bool = False  # vectors of weights are read where they lie, and nobody packs any
    reasons: tuple[str, ...] = ()
    known: dict[str, Ints] = field(init=False, default_factory=dict, compare=False, repr=False)  # what was asked before

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
    def taps(self) -> int:
        """Of the whole kernel."""
        return prod(self.problem.taps)

    def unrolls(self, axis: GatherAxis) -> bool:
        """Whether the taps of an axis are written out."""
        return any(axis is one for one in self.axes[len(self.axes) - self.unroll :])

    # --- blocks

    @property
    def group_blocks(self) -> int:
        """Groups that are computed one by one."""
        return 1 if self.spread else self.problem.groups

    @property
    def bundles(self) -> int:
        """Of groups, the last of which may have fewer."""
        return -(-self.group_blocks // self.bundle)

    @property
    def lane_blocks(self) -> int:
        """Blocks of lanes of a group; of all groups, where vectors run across them."""
        if self.spread:
            return -(-self.problem.groups // self.lane_groups)
        return -(-self.out_channels // self.width)

    @property
    def i_blocks(self) -> int:
        """How often a slab is packed."""
        return max(1, -(-self.in_channels // self.i_block))

    @property
    def grid(self) -> Ints:
        """Tasks: blocks per axis, bundles of groups, shares of the lane blocks."""
        per_axis = (-(-axis.count // block) for axis, block in zip(self.axes, self.block, strict=True))
        return (*per_axis, self.bundles, -(-self.lane_blocks // self.blocks_per_task))

    @property
    def tasks_alike(self) -> bool:
        """Whether all tasks compute as much: no last block, nor share of the lane blocks, is smaller than others."""
        whole = all(axis.count % block == 0 for axis, block in zip(self.axes, self.block, strict=True))
        return whole and self.lane_blocks % self.blocks_per_task == 0 == self.group_blocks % self.bundle

    @property
    def even_tasks(self) -> float:
        """Tasks as large as the largest one that would compute as much: the last block may have few outputs."""
        blocks = (
            axis.count / max(1, min(block, axis.count)) for axis, block in zip(self.axes, self.block, strict=True)
        )
        return prod(blocks) * self.group_blocks / self.bundle * self.lane_blocks / self.blocks_per_task

    @property
    def rows_at_once(self) -> float:
        """Rows of a register tile that meet what is read along outputs, on average."""
        return self.width

    # --- input channels and packed weights

    @property
    def channel_unit(self) -> int:
        """Input channels are packed in multiples of this: in whole runs, see `order`."""
        return channels_in_turn(self.problem)

    def packable(self, channels: int) -> int:
        """The next number of input channels that may be packed at a time: whole runs, or a run if they differ."""
        if self.in_channels % self.channel_unit:
            return self.channel_unit
        return -(-channels // self.channel_unit) * self.channel_unit

    @property
    def runs(self) -> int:
        """Of the input channels that are packed at a time."""
        return 1 if self.taps == 1 or self.spread else -(-self.i_block // self.channel_unit)

    @property
    def packed_bytes(self) -> int:
        """Of a number in the slab and in the panels."""
        return SIZES[self.compute]

    @property
    def panel(self) -> int:
        """Packed weights of one block of lanes and one block of input channels, order (run, taps, i, lane)."""
        return self.taps * self.i_block * self.width

    @property
    def row_width(self) -> int:
        """From the packed weights of an input channel at a tap to those of the next."""
        return self.width

    @property
    def panel_rows(self) -> int:
        """From the packed weights of one block of input channels to those of the next."""
        return self.panel

    @property
    def panel_step(self) -> int:
        """From the packed weights of one block of lanes, or of input channels, to the next."""
        return self.panel

    @property
    def panels(self) -> int:
        """Of packed weights, in the order (group, lane block, i block)."""
        return self.group_blocks * self.lane_blocks * self.i_blocks

    @property
    def weights_size(self) -> int:
        """All packed weights."""
        return 0 if self.reads_weights else self.panels * self.panel

    @property
    def hides_weights(self) -> bool:
        """Whether a tile takes as long, whichever cache its weights come from."""
        return False

    @property
    def bias_size(self) -> int:
        """The packed bias."""
        return self.group_blocks * self.lane_blocks * self.width if self.problem.bias else 0
