"""How X or Y is computed: a task packs a slab of the input, sweeps register tiles over it, and unpacks the result."""

from __future__ import annotations

from dataclasses import dataclass
from math import prod

from convgrad.dtypes import SIZES
from convgrad.plan.axes import GatherAxis
from convgrad.plan.costs import LINE
from convgrad.plan.order import channels_in_turn
from convgrad.plan.strides import row_major
from convgrad.problem.conv import ConvProblem, Ints, Unknown

FEW_ROWS = 6  # of a tile, for which vectors along outputs are loaded again and again
FEW_VECTORS, FEW_SUMS = 4, 12  # below which short loops cost more than the loads
MOST_PARTS = 8  # taps that are summed in loops of their own
MOST_PARTED_PHASES = 4
PAST_CACHES_BYTES = 3 * 1024 * 1024  # of outputs, from which their lines are not fetched before they are written
KEPT_BYTES = 1024 * 1024  # of the input, or of weights, that stay in L2 by themselves


def loads_again(rows: int, vectors: int) -> bool:
    """Whether a tile of so many vectors along outputs loads for little arithmetic, but has enough for short loops."""
    return rows <= FEW_ROWS and (vectors >= FEW_VECTORS or rows * vectors >= FEW_SUMS)


@dataclass(frozen=True, slots=True, kw_only=True)
class DataPlan:
    """Blocking of a problem that solves for X or Y.

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
    blocks_per_task: int  # blocks of lanes
    pixel_major: bool  # of the slab: channels innermost
    unroll: int = 0  # innermost axes whose taps are written out; zeros pad them
    reads_in_place: bool = False  # the input itself serves as slab; implies writes_in_place
    writes_in_place: bool = False  # the output itself serves as result; tiles shift back rather than reach beyond it
    packs_weights: bool = False  # a task packs each panel right before its sweep; else tasks of a stage before do
    reads_weights: bool = False  # vectors of weights are read where they lie, and nobody packs any
    reasons: tuple[str, ...] = ()

    def packable(self, channels: int) -> int:
        """The next number of input channels that may be packed at a time: whole runs, or a run if they differ."""
        if self.in_channels % self.channel_unit:
            return self.channel_unit
        return -(-channels // self.channel_unit) * self.channel_unit

    @property
    def may_pack_weights(self) -> bool:
        """Whether `packs_weights` is a choice."""
        return True

    @property
    def may_read_weights(self) -> bool:
        """Whether vectors of lanes can be read from the weights as they lie: whole ones, of channels side by side."""
        p = self.problem
        whole = self.out_channels >= self.width and not p.accumulate
        along_channels = type(self) is DataPlan and not (self.pixels or self.spread)
        return along_channels and whole and p.dtype == self.compute and p.w_strides[1 if self.solves_y else 2] == 1

    @property
    def lanes_begin_early(self) -> bool:
        """Whether the last block of lanes repeats some channels rather than reach beyond them."""
        return self.writes_in_place or self.reads_weights

    def unrolls(self, axis: GatherAxis) -> bool:
        """Whether the taps of an axis are written out."""
        return any(axis is one for one in self.axes[len(self.axes) - self.unroll :])

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
    def group_blocks(self) -> int:
        """Groups that tasks take one by one."""
        return 1 if self.spread else self.problem.groups

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
    def rows_at_once(self) -> float:
        """Rows of a register tile that meet what is read along outputs, on average."""
        return self.width

    @property
    def taps(self) -> int:
        """Of the whole kernel."""
        return prod(self.problem.taps)

    @property
    def packed_bytes(self) -> int:
        """Of a number in the slab and in the panels."""
        return SIZES[self.compute]

    @property
    def channel_unit(self) -> int:
        """Input channels are packed in multiples of this: in whole runs, see `order`."""
        return channels_in_turn(self.problem)

    @property
    def runs(self) -> int:
        """Of the input channels that are packed at a time."""
        return 1 if self.taps == 1 or self.spread else -(-self.i_block // self.channel_unit)

    # --- sizes, in numbers

    @property
    def panel(self) -> int:
        """Packed weights of one block of lanes and one block of input channels, order (run, taps, i, lane)."""
        return self.taps * self.i_block * self.width

    @property
    def weights_size(self) -> int:
        """All packed weights, order (group, lane block, i block, panel)."""
        return 0 if self.reads_weights else self.group_blocks * self.lane_blocks * self.i_blocks * self.panel

    @property
    def bias_size(self) -> int:
        """The packed bias."""
        return self.group_blocks * self.lane_blocks * self.width if self.problem.bias else 0

    def span(self, n: int) -> int:
        """Outputs of every phase that a tile covers on axis n."""
        return min(self.tile[n], *(phase.count for phase in self.axes[n].phases))

    def may_begin_early(self, n: int) -> bool:
        """Whether the last block of axis n could, to hold a whole tile; not where rows of vectors begin with lines."""
        return len(self.axes[n].phases) == 1 and not self.aligned and self.axes[n].count >= self.tile[n]

    def last_start(self, n: int) -> int | None:
        """Of the blocks of axis n, where the rest of it is less than a tile: some outputs are computed twice then."""
        axis, span = self.axes[n], self.span(n)
        early = self.writes_in_place and not self.reads_in_place and 0 < axis.count % self.block[n] < span
        return axis.count - span if early and self.tile[n] > 1 else None

    def padded(self, n: int) -> bool:
        """Whether zeros surround the input in the slab on axis n, because a tile reads beyond it."""
        axis = self.axes[n]
        return axis.clipped and (self.tile[n] > 1 or self.unrolls(axis))

    def whole(self, n: int) -> bool:
        """Whether every slab holds all of the input on axis n, and nothing else."""
        axis = self.axes[n]
        return self.block[n] >= axis.count and self.tile[n] == 1 and not self.padded(n)

    def band(self, n: int) -> int:
        """Input elements on axis n from the first to the last that one tap of a block reads."""
        return self.axes[n].in_step * (self._outputs(n) - 1) + 1

    def banded(self, n: int) -> bool:
        """Whether the slab has a band for each tap of axis n, without what lies between them and nobody reads.

        Zeros that surround an axis fill all bands of the axes inside it at once, so that those have none.
        """
        axis = self.axes[n]
        if self.reads_in_place or len(axis.phases) > 1 or axis.taps == 1 or abs(axis.offset_step) <= self.band(n):
            return False
        in_planes = self.planes > 1 and n == len(self.axes) - 1
        return not (in_planes or self.whole(n) or any(self.padded(outer) for outer in range(n)))

    @property
    def has_bands(self) -> bool:
        """Whether that is so on any axis."""
        return any(self.banded(n) for n in range(len(self.axes)))

    def tap_offset(self, n: int) -> int:
        """From one tap of axis n to the next, in elements of the slab."""
        return self.band(n) if self.banded(n) else self.axes[n].offset_step

    @property
    def slab_start(self) -> Ints:
        """Offsets of the slab's first element per axis; on an axis in planes, a multiple of their number."""
        *outer, inner = (self._start(n) for n in range(len(self.axes)))
        return (*outer, inner - inner % self.planes)

    def _start(self, n: int) -> int:
        if self.reads_in_place or self.whole(n):
            return 0
        return self.axes[n].phases[0].offset if self.banded(n) else self.axes[n].reach[0]

    @property
    def slab_extent(self) -> Ints:
        """Input elements per axis that one block reads."""
        return tuple(
            axis.in_extent
            if self.whole(n)
            else self.band(n) * axis.taps
            if self.banded(n)
            else self.band(n) + axis.reach[1] - self.slab_start[n]
            for n, axis in enumerate(self.axes)
        )

    def _outputs(self, n: int) -> int:
        """Of a block, whose inputs a slab holds: of a single tile along outputs only those that there are."""
        if self.pixels and n == len(self.axes) - 1 and self.block[n] == self.tile[n]:
            return max(1, min(self.block[n], self.axes[n].count))
        return self.block[n]

    @property
    def along_lines(self) -> bool:
        """Whether vectors along outputs are as long as a cache line, and begin a whole number of them into a row."""
        whole = self.axes[-1].count <= self.tile[-1] or not self.writes_in_place  # else the last tile begins early
        return self.pixels and self.lanes * self.packed_bytes == LINE and whole

    @property
    def separate_taps(self) -> bool:
        """Whether the taps of the innermost axis are sums one after the other: so it is known where each begins."""
        inner = self.axes[-1]
        known = 1 < inner.taps <= MOST_PARTS and len(inner.phases) <= MOST_PARTED_PHASES
        few = self.along_lines and loads_again(self.width, prod(self.tile) // self.lanes)
        return known and few and self.planes == 1 and not self.unroll

    @property
    def aligned(self) -> bool:
        """Whether vectors that cross cache lines are made of the two around them; see `Tile.b_aligned`."""
        return self.along_lines and (self.unroll > 0 or self.separate_taps)

    def part_rows(self, t: int) -> tuple[int, ...]:
        """Rows of the register tile that have tap t of a phase of the innermost axis."""
        return tuple(range(self.width))

    @property
    def planes(self) -> int:
        """Parts of the innermost axis of the slab, one per remainder of the input step, each contiguous."""
        return self.axes[-1].in_step if self.pixels else 1

    @property
    def plane_pitch(self) -> int:
        """From one part to the next."""
        extent = -(-self.slab_extent[-1] // self.planes)
        return -(-extent // self.lanes) * self.lanes if self.planes > 1 or self.aligned else extent

    @property
    def slab_numbers(self) -> int:
        """Numbers per position: the input channels that are packed at a time, of all groups of a task."""
        return self.slab_groups * self.i_block

    @property
    def slab_groups(self) -> int:
        """Groups of a task."""
        return min(self.lane_groups * self.blocks_per_task, self.problem.groups) if self.spread else 1

    @property
    def slab_strides(self) -> tuple[Ints, int]:
        """Per axis, and of the input channel."""
        if self.reads_in_place:
            strides = self.problem.x_strides if self.solves_y else self.problem.y_strides
            return (strides[0], *strides[3:]), strides[2]
        if self.pixel_major:
            return row_major(self.slab_extent, self.slab_numbers), 1
        *outer, _ = self.slab_extent
        strides = row_major((*outer, self.planes * self.plane_pitch), 1)
        plane = strides[0] * (self.slab_extent[0] if outer else self.plane_pitch)
        apart = 48 if self.aligned else 16  # an odd number of cache lines, so that planes do not collide
        return strides, plane + (-plane % 16) + apart

    @property
    def slab_size(self) -> int:
        """All of it; read in place, what a task reads."""
        if self.reads_in_place:
            return prod(self.slab_extent) * self.slab_numbers
        strides, channel = self.slab_strides
        if self.pixel_major:  # the last groups may be read by whole vectors
            return strides[0] * self.slab_extent[0] + (self.lanes if self.spread else 0)
        return channel * self.i_block

    @property
    def result_extent(self) -> Ints:
        """Output elements per axis of one task."""
        return tuple(block * axis.out_step for axis, block in zip(self.axes, self.block, strict=True))

    @property
    def result_strides(self) -> tuple[tuple[Ints, ...], int]:
        """Per axis the steps of a phase and of an output j, and the step of the output channel.

        Channels are innermost and phases interleaved as in the tensor; with `pixels`, channels are outermost and each
        phase of the innermost axis is contiguous.
        """
        if self.writes_in_place:
            strides = self.problem.y_strides if self.solves_y else self.problem.x_strides
            steps = zip(self.axes, (strides[0], *strides[3:]), strict=True)
            return tuple((step, step * axis.out_step) for axis, step in steps), strides[2] if self.pixels else 1
        if not self.pixels:
            strides = row_major(self.result_extent, self.width)
            return tuple((step, step * axis.out_step) for axis, step in zip(self.axes, strides, strict=True)), 1
        strides = row_major(self.result_extent, 1)
        *steps, _ = ((step, step * axis.out_step) for axis, step in zip(self.axes, strides, strict=True))
        return (*steps, (self.block[-1], 1)), prod(self.result_extent)

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
        """Tasks: blocks per axis, groups, shares of the lane blocks."""
        per_axis = (-(-axis.count // block) for axis, block in zip(self.axes, self.block, strict=True))
        return (*per_axis, self.group_blocks, -(-self.lane_blocks // self.blocks_per_task))

    @property
    def past_caches(self) -> bool:
        """Whether whole cache lines of the output go to memory at once, where the instruction set can.

        Not those that tiles along outputs write in place: a line or two of every channel, planes apart.
        """
        p = self.problem
        solved = "y" if self.solves_y else "x"
        lines = self.lanes * SIZES[self.compute] == LINE and p.out_dtype == self.compute
        if not lines or p.accumulate or (self.pixels and self.writes_in_place):
            return False
        batch, _, channel, *spatial = p.strides[solved]
        aligned = all(step == 1 or step % self.lanes == 0 for step in (batch, channel, *spatial))
        return aligned and SIZES[p.out_dtype] * prod(p.shapes[solved]) >= PAST_CACHES_BYTES

    @property
    def fetches_slab(self) -> bool:
        """Whether the next slab is asked for while the present one is multiplied: where its numbers lie together."""
        given = "x" if self.solves_y else "y"
        strides = self.problem.strides[given]
        size = SIZES[self.problem.dtype] * prod(self.problem.shapes[given])
        together = abs(strides[2]) <= abs(strides[-1])
        return together and not (self.reads_in_place or self.spread) and size > KEPT_BYTES

    @property
    def fetches_weights(self) -> bool:
        """Whether the packed weights of the next sweep are asked for during one."""
        by_a_stage = not (self.spread or self.packs_weights or self.reads_weights)
        return by_a_stage and self.packed_bytes * self.weights_size > KEPT_BYTES

    def validate(self) -> None:
        """Assert what the emitter relies on."""
        assert all(block % tile == 0 for block, tile in zip(self.block, self.tile, strict=True))
        assert self.spread or self.lane_groups == 1
        assert not self.spread or self.pixel_major
        assert not self.spread or self.lane_groups == self.width // self.lanes * (self.lanes // self.out_channels)
        assert not self.spread or self.width == self.lanes or self.lanes % self.out_channels == 0
        assert not self.pixels or not (self.spread or self.pixel_major)
        assert not self.reads_in_place or (max(self.tile[:-1]) == 1 and self.writes_in_place and not self.pixels)
        assert not self.writes_in_place or self.i_blocks == 1
        assert not self.pixels or self.tile[-1] % self.lanes == 0
        assert not self.reads_weights or (self.may_read_weights and not self.packs_weights)
        assert self.runs == 1 or self.in_channels % self.channel_unit == 0 == self.i_block % self.channel_unit

    @property
    def _weights(self) -> str:
        return "unpacked" if self.reads_weights else "own" if self.packs_weights else "shared"

    def __str__(self) -> str:
        along = "outputs" if self.pixels else "channels of several groups" if self.spread else "channels"
        return (
            f"data plan on {self.isa}: vectors along {along}, tile {self.tile} x {self.width}, block {self.block}, "
            f"i {self.i_block} of {self.in_channels}, {prod(self.grid)} tasks, "
            f"{'read in place' if self.reads_in_place else f'slab of {self.slab_size} numbers'}, "
            f"{'written in place, ' if self.writes_in_place else ''}{self.unroll} axes unrolled, "
            f"{self._weights} weights\n" + "\n".join(f"  {reason}" for reason in self.reasons)
        )
