"""Plans for dot products of pairs of bf16: those for matrix units, with register tiles as the arithmetic.

Packing, and the watch over numbers that are multiplied differently from f32, are the same.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache
from math import prod

from convgrad.dtypes import SIZES
from convgrad.plan.data import PAST_CACHES_BYTES
from convgrad.plan.matrix import DEPTH, MatrixDataPlan, watched
from convgrad.plan.matrix_weights import MatrixWeightsPlan
from convgrad.plan.strides import row_major
from convgrad.problem.conv import Ints

LANES, PAIR = 16, 2
WINDOWS = 8  # that a step of a sum over windows takes
REGISTERS = 32
MOST_PAIRS = 24  # in a block of channels of a slab


@cache
def depth_of(channels: int) -> int:
    """Channels of a block of a slab, all of which have as many: near those of matrix units, but nearly none in vain."""
    pairs = -(-max(1, channels) // PAIR)
    like = DEPTH // PAIR
    counts = range(-(-pairs // MOST_PAIRS), 2 * -(-pairs // like) + 1)
    sizes = ((-(-pairs // count), count) for count in counts)
    size, _ = min(sizes, key=lambda size: (size[0] * size[1], abs(size[0] - like)))
    return PAIR * size


@dataclass(frozen=True, slots=True, kw_only=True)
class DotDataPlan(MatrixDataPlan):
    """Blocking of a problem that solves for X or Y by dot products: tiles of any outputs times vectors of channels."""

    @property
    def hides_weights(self) -> bool:
        """Yes: see `tiles.dot_cycles`."""
        return True

    @property
    def past_caches(self) -> bool:
        """Likewise lines of bf16, of two vectors of sums, where tiles write them."""
        p = self.problem
        if p.out_dtype != "bf16":
            return super(DotDataPlan, self).past_caches
        batch, _, _, *spatial = p.strides["y" if self.solves_y else "x"]
        lines = self.watch and self.writes_in_place and self.width % (2 * LANES) == 0
        aligned = all(step % (2 * LANES) == 0 for step in (batch, *spatial))
        size = SIZES[p.out_dtype] * prod(p.shapes["y" if self.solves_y else "x"])
        return lines and aligned and size >= PAST_CACHES_BYTES

    @property
    def channel_unit(self) -> int:
        """Channels of a block of the slab."""
        return depth_of(self.in_channels)

    @property
    def last_pairs(self) -> int:
        """Pairs of channels in the last block of the input, if it is not whole."""
        return -(-(self.in_channels % self.channel_unit) // PAIR)

    def validate(self) -> None:
        """Assert what the emitter relies on."""
        assert self.unroll == 0
        assert self.i_block % self.channel_unit == 0 == self.channel_unit % PAIR
        self.validate_tile()

    def validate_tile(self) -> None:
        """What has nothing to do with how channels lie in the slab."""
        vectors = self.width // LANES
        assert not any((self.spread, self.pixels, self.reads_in_place))
        assert self.width % LANES == 0
        assert self.rows == self.pieces == len(self.products) == 1
        assert vectors * (prod(self.tile) + 1) < REGISTERS
        assert all(block % tile == 0 for block, tile in zip(self.block, self.tile, strict=True))
        assert not self.watch or (self.fallback is not None and not self.problem.accumulate)
        assert not self.writes_in_place or self.i_blocks == 1

    def __str__(self) -> str:
        lines = [
            f"data plan on {self.isa}, dot products: tile {self.tile} x {self.width}, block {self.block}, "
            f"i {self.i_block} of {self.in_channels}, {prod(self.grid)} tasks, slab of {self.slab_size} numbers"
            + (", written in place" if self.writes_in_place else ""),
            *(f"  {reason}" for reason in self.reasons),
        ]
        return "\n".join([*lines, *watched(self.fallback)])


@dataclass(frozen=True, slots=True, kw_only=True)
class DotRunPlan(DotDataPlan):
    """Blocking of a problem that solves for Y from few channels, which lie together in the slab, position by position.

    So what the taps of the innermost axis meet is one run of numbers, and pairs of it are summed, whatever channels
    they are of. The last pair of an odd run meets a weight that is zero.
    """

    @property
    def inner_taps(self) -> int:
        """Of the innermost axis."""
        return self.axes[-1].taps

    @property
    def run(self) -> int:
        """Numbers of the input that one output meets at a tap of the other axes."""
        return self.inner_taps * self.in_channels

    @property
    def run_pairs(self) -> int:
        """Pairs of them."""
        return -(-self.run // PAIR)

    @property
    def channel_unit(self) -> int:
        """They all come together."""
        return self.in_channels

    @property
    def panel(self) -> int:
        """Packed weights of one block of lanes: outer taps, pairs, lanes, numbers of a pair."""
        return self.taps // self.inner_taps * self.run_pairs * PAIR * self.width

    @property
    def slab_strides(self) -> tuple[Ints, int]:
        """Per axis, and of the input channel."""
        return row_major(self.slab_extent, self.in_channels), 1

    @property
    def slab_numbers(self) -> int:
        """Per position."""
        return self.in_channels

    @property
    def slab_size(self) -> int:
        """Even, with room for what an odd run reads at the end."""
        numbers = prod(self.slab_extent) * self.in_channels
        return numbers + PAIR + numbers % PAIR

    def validate(self) -> None:
        """Assert what the emitter relies on."""
        inner = self.axes[-1]
        assert self.solves_y
        assert inner.offset_step == inner.tap_step == len(inner.phases) == 1
        assert inner.taps == self.problem.taps[-1]
        assert self.unroll == 1
        assert self.i_block == self.in_channels
        self.validate_tile()

    def __str__(self) -> str:
        return DotDataPlan.__str__(self).replace("dot products", "dot products along runs of taps", 1)


@dataclass(frozen=True, slots=True, kw_only=True)
class DotWeightsPlan(MatrixWeightsPlan):
    """Blocking of a problem that solves for W by dot products: pairs of windows of channels of x times vectors of y.

    With `rows_apart` each row of windows is a sum of its own: nothing between rows is multiplied, and no row that a tap
    does not meet x in.
    """

    rows_apart: bool = False

    @property
    def flat_axes(self) -> int:
        """Only rows are, if each is summed for itself."""
        return 1 if self.rows_apart else 2

    @property
    def depth_unit(self) -> int:
        """Windows of a step: a few, or a row, in pairs."""
        return -(-self.block[-1] // PAIR) * PAIR if self.rows_apart else WINDOWS

    def validate(self) -> None:
        """Assert what the emitter relies on."""
        assert self.lane_side == "y"
        assert not any((self.spread, self.direct))
        assert self.tile_taps == self.lane_groups == self.unroll == self.pieces == len(self.products) == 1
        assert self.vectors * (self.row_channels + 1) < REGISTERS
        assert not self.watch or self.fallback is not None

    def __str__(self) -> str:
        rows = f"rows of {self.pitch}{' apart' if self.rows_apart else ''}"
        lines = [
            f"weights plan on {self.isa}, dot products: tile {self.row_channels} x {self.width}, block {self.block} "
            f"with {rows}, {self.chunks} chunks, {prod(self.grid)} tasks",
            *(f"  {reason}" for reason in self.reasons),
        ]
        return "\n".join([*lines, *watched(self.fallback)])
