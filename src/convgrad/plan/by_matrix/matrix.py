"""Plans for matrix units: the blocking of a DataPlan, with tiles of 16 outputs and 16 channels as its numbers.

Operands are packed as the bf16 pieces of `plan/units.py`.
"""

from __future__ import annotations

from math import prod

from convgrad.dtypes import SIZES
from convgrad.plan.costs import LINE, SETS_BYTES, SPLIT
from convgrad.plan.general.data import DataPlan
from convgrad.plan.general.room import MOST_STAGED_BYTES, staged_taps
from convgrad.plan.strides import row_major
from convgrad.plan.units import WHOLE, Products
from convgrad.problem.conv import Ints
from convgrad.values import frozen

ROWS = 16  # outputs, or channels, of a tile
COLUMNS = 16  # channels of a tile
DEPTH = 32  # terms of the sum that one instruction takes; in pairs where they are the rows of an operand
MOST_PLACES = 8192  # of a slab that is packed beside products, of which runs have entries in tables
MOST_OF_RUN = 2  # positions that are packed at a time: the fewer, the more evenly they lie among products
APART = 1024  # numbers more from piece to piece of such a slab, where pieces would share places of L1
FAR_BYTES = 8 * 1024 * 1024  # of tensors of bf16 that come from memory, or from a part of L3 that is far
FAR_TILES_BYTES = 12 * 1024 * 1024  # of outputs of f32 whose tiles are moved, to go past the caches


def halves_of(channels: int) -> tuple[int, int]:
    """How many of up to 32 channels are the first of a pair, and how many the second."""
    return -(-channels // 2), channels // 2


@frozen
class Limits:
    """Bits of the magnitudes of f32 from which, and exponents, with their bias, below which the unit is not to be used.

    A product is judged by the least magnitudes of both operands, as the sum of their exponents.
    """

    large: int
    least: int
    least_product: int


INFINITY, BIAS, LEAST_NORMAL = 0x7F800000, 127, -126
# From 2^127 on a rounded piece may be infinite; the last of 24 bits of a number, or of a product, is to be normal.
OF_PIECES = Limits(0x7F000000, BIAS + LEAST_NORMAL + 24, 2 * BIAS + LEAST_NORMAL + 24)
# The 16 bits of a product of two bf16 are to be normal: then all sums are multiples of the least normal number, and
# nothing is ever a denormal. Infinity would meet the zeros that fill up tiles of weights gradients.
OF_BF16 = Limits(INFINITY, BIAS + LEAST_NORMAL, 2 * BIAS + LEAST_NORMAL + 14)


def limits_of(dtype: str) -> Limits:
    """Of a plan whose data are watched."""
    return OF_BF16 if dtype == "bf16" else OF_PIECES


@frozen(kw_only=True)
class MatrixDataPlan(DataPlan):
    """Blocking of a problem that solves for X or Y on a matrix unit.

    Outputs of the innermost axis are the rows of A, `rows` at a time; output channels are the columns of B; input
    channels, padded to whole tiles, are summed, block by block of 32: what the taps of a block meet overlaps, and stays
    in L1. The slab is in the order (block of 32 channels, piece, position, channel), a panel in the order (block of 32
    channels, tap, piece, block of 16 lanes, pair of channels, lane, channel of the pair). Partners are as far
    apart as a block has pairs; bf16 that are moved two by two are neighbours instead.

    If `watch` is set, tasks look for numbers that pieces cannot stand for, and where there are any, `fallback` computes
    everything again.
    """

    KIND = "on matrix tiles"
    ON_UNITS = True

    rows: int
    pieces: int
    products: Products
    watch: bool
    fallback: DataPlan | None = None

    @property
    def fetches_slab(self) -> bool:
        """As of vectors, between taps, of which there are some; pieces of f32 take so long that nothing waits."""
        some = type(self) is MatrixDataPlan and self.pieces == 1 and self.taps > 1
        return some and super().fetches_slab

    @property
    def past_caches(self) -> bool:
        """Likewise lines of bf16 whose channels lie together: of a whole block of lanes."""
        p = self.problem
        if p.out_dtype != "bf16":
            return super().past_caches
        batch, group, channel, *spatial = p.strides[p.solved]
        steps = (batch, group, *spatial) if p.groups > 1 else (batch, *spatial)
        lines = channel == 1 and self.width == DEPTH and all(step % DEPTH == 0 for step in steps)
        return lines and not p.accumulate and p.bytes_of(p.solved) >= FAR_BYTES

    @property
    def fetches_weights(self) -> bool:
        """No."""
        return False

    @property
    def splitting(self) -> float:
        """Into several pieces."""
        return SPLIT * self.pieces if self.pieces > 1 else 0.0

    @property
    def moves_tiles(self) -> bool:
        """Whether vectors move tiles to the output: the unit stores f32 alone, and never past the caches."""
        p = self.problem
        far = self.past_caches and p.bytes_of(p.solved) >= FAR_TILES_BYTES
        return self.writes_in_place and (far or p.out_dtype != self.compute)

    @property
    def tile_bytes(self) -> int:
        """Of a block of tiles that is."""
        return SIZES[self.compute] * prod(self.tile) * self.width if self.moves_tiles else 0

    @property
    def exact(self) -> bool:
        """Whether the pieces hold all of a number."""
        return self.pieces >= WHOLE[self.problem.dtype]

    @property
    def packed_bytes(self) -> int:
        """Of a number in the slab and in the panels."""
        return 2

    @property
    def channel_unit(self) -> int:
        """Input channels come in multiples of this."""
        return DEPTH

    @property
    def runs(self) -> int:
        """Blocks of channels, each of which is summed tap by tap."""
        return 1 if self.taps == 1 else self.deep_blocks

    @property
    def run_channels(self) -> int:
        """Input channels whose weights are packed at a time."""
        return self.i_block // self.runs

    @property
    def deep_blocks(self) -> int:
        """Blocks of `channel_unit` input channels in a slab."""
        return -(-self.i_block // self.channel_unit)

    @property
    def lane_tiles(self) -> int:
        """Tiles side by side in a block of lanes."""
        return self.width // COLUMNS

    @property
    def panel(self) -> int:
        """Packed weights of one block of lanes and one block of input channels, all pieces."""
        return self.taps * self.deep_blocks * self.channel_unit * self.width * self.pieces

    # --- to pack the input while it is multiplied

    @property
    def packs_beside(self) -> bool:
        """Whether a tile's positions of the slab are packed beside the products of those before.

        Products of pieces keep the unit busy for hundreds of cycles a step, in which a core splits some lines.
        """
        p = self.problem
        lines = p.strides[p.given][2] == 1 and self.in_channels % self.i_block == self.i_block % DEPTH == 0
        few = not self.has_bands and prod(self.slab_extent) <= MOST_PLACES
        return self._goes_on and self.pieces > 1 and lines and few

    @property
    def _goes_on(self) -> bool:
        """Whether tiles meet the slab from its begin on."""
        return type(self) is MatrixDataPlan

    @property
    def places_of_tile(self) -> int:
        """Positions of the slab from the first that a block of tiles meets to the last, at most."""
        steps = row_major(self.slab_extent, 1)
        outputs = sum((n - 1) * axis.in_step * step for n, axis, step in zip(self.tile, self.axes, steps, strict=True))
        return 1 + outputs + self._places_of_taps(steps)

    def _places_of_taps(self, steps: Ints) -> int:
        """From the first tap on."""
        return sum(
            max(0, (axis.taps - 1) * axis.offset_step) * step for axis, step in zip(self.axes, steps, strict=True)
        )

    @property
    def first_steps(self) -> int:
        """Of the sums of a block of lanes, until every position has been met: phases of an outer axis come later."""
        steps, alone = self.deep_blocks, True
        for axis, block, tile in zip(self.axes, self.block, self.tile, strict=True):
            each = [-(-min(block, phase.count) // tile) * phase.taps for phase in axis.phases]
            steps *= each[0] if alone and len(each) > 1 else sum(each)
            alone = alone and len(each) == 1
        return steps

    @property
    def run_beside(self) -> int:
        """Positions of a row that are packed at a time."""
        return min(MOST_OF_RUN, self.slab_extent[-1])

    @property
    def runs_beside(self) -> int:
        """All, of 32 channels each."""
        return prod(self.slab_extent[:-1]) * -(-self.slab_extent[-1] // self.run_beside) * self.deep_blocks

    @property
    def beside_products(self) -> Ints:
        """Runs that are packed after each product of a step: all of them in time."""
        runs, many = -(-self.runs_beside // max(1, self.first_steps)), len(self.products)
        return tuple(runs // many + (n < runs % many) for n in range(many))

    # --- to pack weights

    @property
    def packs_pairs(self) -> bool:
        """Whether weights are moved two by two: numbers are one bf16, and there are two channels at least."""
        return self.pieces == 1 and self.in_channels > 1

    @property
    def stages_weights(self) -> bool:
        """Whether weights of neither side lie side by side, so that a panel is put in order before it is split."""
        return not self.packs_pairs and 1 not in self.problem.w_strides[1:3]

    @property
    def splits_runs(self) -> bool:
        """Whether taps, and the channels or lanes between which they lie, are one run: 16 lanes are split at a time."""
        p, every = self.problem, prod(self.problem.taps)
        dense = every in p.w_strides[1:3] and all(
            extent == 1 or step == place
            for extent, step, place in zip(p.taps, p.w_strides[3:], row_major(p.taps, 1), strict=True)
        )
        few = 1 < every <= MOST_STAGED_BYTES // (4 * COLUMNS * DEPTH)
        return self.pieces > 1 and self.stages_weights and dense and few

    @property
    def taps_staged(self) -> Ints:
        """Taps of a panel that are put in order at a time."""
        return staged_taps(self.problem.taps, 4 * self.run_channels * self.width)

    @property
    def pairs_staged(self) -> int:
        """Pairs of channels, with all their taps, that are words in scratch at a time; 0 if none are."""
        return min(self.channel_unit // 2, MOST_STAGED_BYTES // (4 * max(1, self.taps) * COLUMNS))

    @property
    def f32_panel_bytes(self) -> int:
        """Of the taps that are put in order at a time, as f32."""
        return 4 * prod(self.taps_staged) * self.run_channels * self.width

    @property
    def staged_bytes(self) -> int:
        """To pack a panel: some of it as f32, and room to stage that, or none; of bf16, room for pairs."""
        if self.packs_pairs:
            return 4 * self.taps * COLUMNS * self.pairs_staged
        if self.splits_runs:
            return 4 * self.taps * COLUMNS * DEPTH
        return 2 * (self.f32_panel_bytes + -self.f32_panel_bytes % LINE) if self.stages_weights else 0

    @property
    def piece_step(self) -> int:
        """From one piece of the slab to the next; not as far as places of L1 repeat, if they are written in turn."""
        numbers = prod(self.slab_extent) * self.channel_unit
        return numbers + APART if self.packs_beside and self.packed_bytes * numbers % SETS_BYTES == 0 else numbers

    @property
    def slab_strides(self) -> tuple[Ints, int]:
        """Per axis, and of a block of input channels."""
        return row_major(self.slab_extent, self.channel_unit), self.pieces * self.piece_step

    @property
    def slab_size(self) -> int:
        """All pieces."""
        return self.deep_blocks * self.pieces * self.piece_step

    def validate(self) -> None:
        """Assert what the emitter relies on."""
        assert not any((self.spread, self.pixels, self.reads_in_place))
        assert self.unroll == 0
        assert self.width in (COLUMNS, 2 * COLUMNS)
        assert 1 <= self.rows <= ROWS
        assert self.tile[-1] % self.rows == 0
        assert prod(self.tile) in (self.rows, 2 * self.rows)
        assert all(block % tile == 0 for block, tile in zip(self.block, self.tile, strict=True))
        assert self.i_block % DEPTH == 0
        assert not self.watch or (self.fallback is not None and not self.problem.accumulate)
        assert not self.writes_in_place or self.i_blocks == 1

    def __str__(self) -> str:
        lines = [
            f"data plan on {self.isa}, matrix tiles: {self.rows} outputs x {COLUMNS} channels, "
            f"tile {self.tile} x {self.width}, {len(self.products)} products of {self.pieces} bf16 pieces, "
            f"block {self.block}, i {self.i_block} of {self.in_channels}, {prod(self.grid)} tasks, "
            f"slab of {self.slab_size} numbers"
            + (", written in place" if self.writes_in_place else "")
            + (", own weights" if self.packs_weights else ""),
            *(f"  {reason}" for reason in self.reasons),
        ]
        return "\n".join([*lines, *watched(self.fallback)])


def watched(fallback: object) -> list[str]:
    """What a plan says of the one that takes over where pieces fail."""
    return [] if fallback is None else [f"  for numbers that pieces cannot stand for: {str(fallback).splitlines()[0]}"]
