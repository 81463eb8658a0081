"""Plans for data on matrix units whose rows of A are outputs of several rows of the image, numbered through."""

from __future__ import annotations

from math import prod

from convgrad.plan.by_matrix.matrix import COLUMNS, DEPTH, ROWS, MatrixDataPlan
from convgrad.plan.general.room import Room
from convgrad.plan.strides import row_major
from convgrad.problem.conv import Ints
from convgrad.values import frozen

PER_TILE = 2  # tiles of rows in a block of tiles
MOST_PHASES = 4  # each of which has loops of its own


@frozen(kw_only=True)
class AcrossRowsPlan(MatrixDataPlan):
    """A MatrixDataPlan whose tiles have fewer empty rows.

    Rows of A lie equally far apart, so that those of a MatrixDataPlan are outputs of one row of the image: of 7 or 17
    of those nearly half of a tile is empty, and the unit takes as long. Here all positions of a plane of the slab are
    numbered through, those around the image, too, which hold zeros: what they yield lies between results, and nobody
    asks for it. A plane is made of the innermost two axes, of which the last one is whole. Results of phases of columns
    alternate, as in the tensor; those of phases of rows have a plane each.
    """

    KIND = "on matrix tiles, across rows"

    @property
    def order_kind(self) -> str:
        """As those of other tiles."""
        return MatrixDataPlan.KIND

    @property
    def phases(self) -> int:
        """Of all axes together."""
        return prod(len(axis.phases) for axis in self.axes)

    @property
    def planes_of_outputs(self) -> int:
        """Of a block and phase, each of which is numbered by itself."""
        return prod(self.block[:-2])

    @property
    def row_pitch(self) -> int:
        """From the outputs of a row to those of the next."""
        return self.slab_extent[-1]

    @property
    def outputs(self) -> int:
        """Of a plane, with what lies between them."""
        return (self.block[-2] - 1) * self.row_pitch + self.block[-1]

    @property
    def together(self) -> int:
        """Outputs of a block of tiles, of which a plane may end with half of one."""
        return PER_TILE * self.rows

    @property
    def blocks_of_tiles(self) -> int:
        """Of a plane."""
        return -(-self.outputs // self.together)

    @property
    def steps(self) -> int:
        """Tiles of A that a tile of outputs of every phase is made of: taps times blocks of channels."""
        deep = -(-self.in_channels // DEPTH)
        return deep * prod(sum(phase.taps for phase in axis.phases) for axis in self.axes)

    @property
    def tap_steps(self) -> Ints:
        """Of A, per axis, from tap to tap."""
        return tuple(axis.offset_step * step for axis, step in zip(self.axes, self.slab_strides[0], strict=True))

    @property
    def a_steps(self) -> tuple[int, int, int]:
        """Of A: from a piece, from a block of 32 channels, and from a block of tiles to the next."""
        return self.piece_step, self.slab_strides[1], self.together * DEPTH

    @property
    def _goes_on(self) -> bool:
        return type(self) is AcrossRowsPlan

    @property
    def places_of_tile(self) -> int:
        """Likewise: outputs are positions."""
        return self.together + self._places_of_taps(row_major(self.slab_extent, 1))

    @property
    def first_steps(self) -> int:
        """Of the first phase of all axes."""
        taps = prod(axis.phases[0].taps for axis in self.axes)
        return self.planes_of_outputs * self.blocks_of_tiles * taps * self.deep_blocks

    @property
    def c_step(self) -> int:
        """From one output to the next, in results."""
        return self.axes[-1].out_step * self.width

    @property
    def result_plane(self) -> int:
        """Of one block of lanes and one phase of rows, with what fills up tiles."""
        return self.blocks_of_tiles * self.together * self.c_step

    @property
    def result_strides(self) -> tuple[tuple[Ints, ...], int]:
        """Likewise, with rows as far apart as they are numbered."""
        plane = self.result_plane
        steps = row_major(self.result_extent[:-2], plane * self.axes[-2].out_step)
        outer = ((step, step * axis.out_step) for step, axis in zip(steps, self.axes, strict=False))
        return (*outer, (plane, self.row_pitch * self.c_step), (self.width, self.c_step)), 1

    @property
    def result_block(self) -> int:
        """Of one block of lanes, all planes."""
        return prod(self.result_extent[:-2]) * self.axes[-2].out_step * self.result_plane

    def padded(self, n: int) -> bool:
        """Wherever some tap reads beyond the image."""
        return self.axes[n].clipped

    def _may_band(self, n: int) -> bool:
        return False

    def validate(self) -> None:
        """Assert what the emitter relies on."""
        assert not any((self.spread, self.pixels, self.reads_in_place, self.writes_in_place))
        assert self.unroll == 0
        assert self.width in (COLUMNS, 2 * COLUMNS)
        assert self.rows == ROWS
        assert set(self.tile) == {1}
        assert self.i_block % DEPTH == 0
        assert not self.watch or (self.fallback is not None and not self.problem.accumulate)
        self._validate_rows()

    def _validate_rows(self) -> None:
        assert self.axes[-2].in_step == self.axes[-1].in_step == 1
        assert self.block[-1] == self.axes[-1].count
        assert self.phases <= MOST_PHASES

    def __str__(self) -> str:
        first, *lines = MatrixDataPlan.__str__(self).split("\n")
        through = f"{self.planes_of_outputs} times {self.outputs} rows"
        return "\n".join([first.replace(f"tile {self.tile}", through), *lines])


@frozen(kw_only=True)
class GatheredDataPlan(AcrossRowsPlan):
    """A AcrossRowsPlan whose tiles have next to no empty rows, of windows with any strides, for the price of copies.

    The outputs of a block are numbered through, across rows and images, and a task copies for each tap what they meet
    from the slab, once for all lanes, in the order (outputs of a block of tiles, tap, block of 32 channels, piece,
    output, channel).
    """

    KIND = "on matrix tiles, gathered for each tap"

    @property
    def planes_of_outputs(self) -> int:
        """All are one."""
        return 1

    @property
    def row_pitch(self) -> int:
        """Nothing lies between rows."""
        return self.block[-1]

    @property
    def outputs(self) -> int:
        """Of a block."""
        return prod(self.block)

    @property
    def tap_steps(self) -> Ints:
        """In what was gathered."""
        return row_major(tuple(axis.taps for axis in self.axes), self.deep_blocks * self.a_steps[1])

    @property
    def a_steps(self) -> tuple[int, int, int]:
        """Likewise."""
        piece = self.together * DEPTH
        taps = prod(axis.taps for axis in self.axes)
        return piece, self.pieces * piece, taps * self.deep_blocks * self.pieces * piece

    @property
    def moves(self) -> int:
        """Lines that are copied for every output."""
        return self.pieces * self.steps

    @property
    def gathered_size(self) -> int:
        """Numbers."""
        return self.blocks_of_tiles * self.a_steps[2]

    @property
    def result_strides(self) -> tuple[tuple[Ints, ...], int]:
        """Output by output."""
        return tuple((step, step) for step in row_major(self.block, self.width)), 1

    @property
    def work_bytes(self) -> Room:
        """With what is gathered."""
        shared, own = super().work_bytes
        return shared, own + self.packed_bytes * self.gathered_size

    def _validate_rows(self) -> None:
        assert all(len(axis.phases) == axis.out_step == 1 <= axis.taps for axis in self.axes)
        inner = next((n for n, size in enumerate(self.block) if size > 1), len(self.block))
        whole = zip(self.block[inner + 1 :], self.axes[inner + 1 :], strict=True)
        assert all(size == axis.count for size, axis in whole), "a smaller last block has the first of all numbers"
