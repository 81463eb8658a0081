"""Plans for dot products of pairs of bf16: those for matrix units, with register tiles as the arithmetic.

Packing, and the watch over numbers that are multiplied differently from f32, are the same.
"""

from __future__ import annotations

from functools import cache
from math import prod

from convgrad.plan.by_matrix.matrix import DEPTH, MatrixDataPlan, watched
from convgrad.plan.by_matrix.matrix_weights import MatrixWeightsPlan
from convgrad.plan.general.data import LITTLE, PAST_CACHES_BYTES
from convgrad.plan.window_axes import WindowAxis
from convgrad.problem.conv import Ints
from convgrad.values import frozen

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


def taps_together(axis: WindowAxis) -> list[int]:
    """Numbers of taps that divide all of an axis, into tiles whose taps lie alike in planes of x."""
    lead, step = -axis.low % axis.stride, axis.dilation

    def alike(count: int) -> bool:
        begins = {(lead + r * step) % axis.stride for r in range(0, axis.taps, count)}
        return len({tuple((rest + t * step) // axis.stride for t in range(count)) for rest in begins}) <= 1

    return [n for n in range(1, max(1, axis.taps) + 1) if axis.taps % n == 0 and alike(n)]


@frozen(kw_only=True)
class DotDataPlan(MatrixDataPlan):
    """Blocking of a problem that solves for X or Y by dot products: tiles of any outputs times vectors of channels."""

    KIND = "by dot products"
    BY_DOTS = True

    @property
    def plain_tiles(self) -> bool:
        """Whether tiles may begin anywhere."""
        return type(self) is DotDataPlan

    @property
    def half_types(self) -> tuple[str, ...]:
        """Sums as they are, and those that dot products round."""
        return (self.compute, "bf16") if self.watch else (self.compute,)

    @property
    def runs(self) -> int:
        """One: taps come first."""
        return 1

    @property
    def hides_weights(self) -> bool:
        """Yes: see `steps.dot_cycles`."""
        return True

    @property
    def fetches_slab(self) -> bool:
        """As of f32: tiles have time to ask for lines."""
        return super(MatrixDataPlan, self).fetches_slab

    @property
    def past_caches(self) -> bool:
        """Likewise lines of bf16, of two vectors of sums, where tiles write them."""
        p = self.problem
        if p.out_dtype != "bf16":
            return super().past_caches
        batch, _, _, *spatial = p.strides[p.solved]
        lines = self.watch and self.writes_in_place and self.width % (2 * LANES) == 0
        aligned = all(step % (2 * LANES) == 0 for step in (batch, *spatial))
        return lines and aligned and p.bytes_of(p.solved) >= PAST_CACHES_BYTES

    @property
    def hidden_products(self) -> int:
        """Twice as many as of f32. Tiles do not ask for lines, half as many, before they sum: that took longer."""
        return PAIR * LITTLE

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
        assert not self.reads_in_place
        assert self.i_block % self.channel_unit == 0 == self.channel_unit % PAIR
        self.validate_tile()

    def validate_tile(self) -> None:
        """What has nothing to do with how channels lie in the slab."""
        vectors = self.width // LANES
        assert not any((self.spread, self.pixels))
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


@frozen(kw_only=True)
class DotWeightsPlan(MatrixWeightsPlan):
    """Blocking of a problem that solves for W by dot products: pairs of windows of channels of x times vectors of y.

    With `rows_apart` each row of windows is a sum of its own: nothing between rows is multiplied, and no row that a tap
    does not meet x in. Rows of a tile are channels of x and, with `tile_taps`, what several taps meet: few channels
    would leave a tile with fewer sums than a dot product takes cycles.
    """

    KIND = "by dot products"

    rows_apart: bool = False

    @property
    def asks_ahead(self) -> int:
        """None: tiles do."""
        return 0

    @property
    def may_halve(self) -> bool:
        """Not of kinds derived from this one."""
        return type(self) is DotWeightsPlan

    @property
    def flat_axes(self) -> int:
        """Only rows are, if each is summed for itself."""
        return 1 if self.rows_apart else 2

    @property
    def depth_unit(self) -> int:
        """Windows of a step: a few, or a row, in pairs."""
        return -(-self.block[-1] // PAIR) * PAIR if self.rows_apart else WINDOWS

    @property
    def fetches_ahead(self) -> bool:
        """As of vectors of f32: there is half the time to wait."""
        return super(MatrixWeightsPlan, self).fetches_ahead

    @property
    def rounds(self) -> bool:
        """Tiles are vectors."""
        return True

    @property
    def by_rows(self) -> bool:
        """No, likewise."""
        return False

    @property
    def steps_of_row(self) -> int:
        """Of the flat axes."""
        return self.depth // self.depth_unit

    @property
    def tile_steps(self) -> int:
        """Of several windows each."""
        return prod(self.outer_block) * self.steps_of_row

    @property
    def row_places(self) -> Ints:
        """Where the slab has the rows of a tile: taps, and the channels of each."""
        n, step = len(self.axes) - 1, self.row_slab[1]
        first = self.tap_place(n, 0)
        taps = (self.tap_place(n, r) - first for r in range(self.tile_taps))
        return tuple(place + c * step for place in taps for c in range(self.row_channels))

    def validate(self) -> None:
        """Assert what the emitter relies on."""
        assert self.lane_side == "y"
        assert not any((self.spread, self.direct))
        assert self.lane_groups == self.unroll == self.pieces == len(self.products) == 1
        assert self.tile_taps in taps_together(self.axes[-1])
        assert self.vectors * (len(self.row_places) + 1) < REGISTERS
        assert not self.watch or self.fallback is not None

    def __str__(self) -> str:
        rows = f"rows of {self.pitch}{' apart' if self.rows_apart else ''}"
        lines = [
            f"weights plan on {self.isa}, dot products: tile {self.tile_taps * self.row_channels} x {self.width}, "
            f"block {self.block} with {rows}, {self.chunks} chunks, {prod(self.grid)} tasks",
            *(f"  {reason}" for reason in self.reasons),
        ]
        return "\n".join([*lines, *watched(self.fallback)])
