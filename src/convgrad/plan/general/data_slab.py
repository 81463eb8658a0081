"""The slab of a task that computes X or Y: which part of the input its tiles read, and where they find it."""

from __future__ import annotations

from math import prod

from convgrad.plan.costs import LINE
from convgrad.plan.general.data_blocks import DataBlocks
from convgrad.plan.general.room import MOST_BYTES
from convgrad.plan.strides import row_major
from convgrad.problem.conv import Ints
from convgrad.values import frozen

FEW_ROWS = 6  # of a tile, for which vectors along outputs are loaded again and again
FEW_VECTORS, FEW_SUMS = 4, 12  # below which short loops cost more than the loads
MOST_PARTS = 8  # taps that are summed in loops of their own
MOST_PARTED_PHASES = 4


def loads_again(rows: int, vectors: int) -> bool:
    """Whether a tile of so many vectors along outputs loads for little arithmetic, but has enough for short loops."""
    return rows <= FEW_ROWS and (vectors >= FEW_VECTORS or rows * vectors >= FEW_SUMS)


@frozen(kw_only=True)
class DataSlab(DataBlocks):
    """Extents and strides of what is packed, or read in place, for one block of outputs."""

    def padded(self, n: int) -> bool:
        """Whether zeros surround the input in the slab on axis n, because a tile reads beyond it."""
        axis = self.axes[n]
        return axis.clipped and (self.tile[n] > 1 or self.unrolls(axis))

    def whole(self, n: int) -> bool:
        """Whether every slab holds all of the input on axis n, and nothing else."""
        axis = self.axes[n]
        if self.block[n] < axis.count or self.tile[n] > 1 or self.padded(n):
            return False
        return not (self._may_band(n) and axis.taps * self.band(n) < axis.in_extent and self._is_large)

    def band(self, n: int) -> int:
        """Input elements on axis n from the first to the last that one tap of a block reads."""
        return self.axes[n].in_step * (self._outputs(n) - 1) + 1

    def banded(self, n: int) -> bool:
        """Whether the slab has a band for each tap of axis n, without what lies between them and nobody reads.

        Zeros that surround an axis fill all bands of the axes inside it at once, so that those have none.
        """
        return self._may_band(n) and not self.whole(n)

    @property
    def _is_large(self) -> bool:
        """Whether whole images are more than a slab may hold."""
        images = self.block[0] * prod(axis.in_extent for axis in self.axes[1:])
        return self.packed_bytes * images * self.slab_numbers > MOST_BYTES

    def _may_band(self, n: int) -> bool:
        axis = self.axes[n]
        if self.reads_in_place or len(axis.phases) > 1 or axis.taps == 1 or abs(axis.offset_step) <= self.band(n):
            return False
        in_planes = self.planes > 1 and n == len(self.axes) - 1
        return not (in_planes or any(self.padded(outer) for outer in range(n)))

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
        """Input elements per axis that one block reads; blocks are compared by what asks for it again and again."""
        extent = self.known.get("slab_extent")
        if extent is None:
            extent = self.known["slab_extent"] = self._slab_extent()
        return extent

    def _slab_extent(self) -> Ints:
        start = self.slab_start
        return tuple(
            axis.in_extent
            if self.whole(n)
            else self.band(n) * axis.taps
            if self.banded(n)
            else self.band(n) + axis.reach[1] - start[n]
            for n, axis in enumerate(self.axes)
        )

    def _outputs(self, n: int) -> int:
        """Of a block, whose inputs a slab holds: of a single tile along outputs only those that there are."""
        if self.pixels and n == len(self.axes) - 1 and self.block[n] == self.tile[n]:
            return max(1, min(self.block[n], self.axes[n].count))
        return self.block[n]

    # --- vectors along outputs

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

    # --- in memory

    @property
    def slab_numbers(self) -> int:
        """Numbers per position: the input channels that are packed at a time, of all groups of a task."""
        return self.slab_groups * self.i_block

    @property
    def slab_groups(self) -> int:
        """Groups of a task."""
        return min(self.lane_groups * self.blocks_per_task, self.problem.groups) if self.spread else self.bundle

    @property
    def slab_strides(self) -> tuple[Ints, int]:
        """Per axis, and of the input channel."""
        if self.reads_in_place:
            strides = self.problem.strides[self.problem.given]
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
