"""Plans on matrix units that put together what two tiles of outputs meet, multiply it, and write, all of it in L1."""

from __future__ import annotations

from convgrad.plan.by_matrix.across_rows import GatheredDataPlan
from convgrad.plan.by_matrix.matrix import COLUMNS, ROWS
from convgrad.plan.general.data import KEPT_BYTES
from convgrad.problem.conv import Ints
from convgrad.values import frozen


@frozen(kw_only=True)
class TileByTilePlan(GatheredDataPlan):
    """A GatheredDataPlan whose tasks take one block of tiles of outputs after the other, each with all lanes.

    Outputs of a block lie equally far apart in the tensor, so that those of a block of tiles are written as a row; or
    anywhere, if their channels lie side by side.
    """

    KIND = ""

    @property
    def may_pack_weights(self) -> bool:
        """No: they would be packed again for every block of tiles."""
        return False

    @property
    def shared_rows(self) -> int:
        """Of a block of tiles, that are seen to while one block of lanes of a task is multiplied in one phase."""
        return -(-self.together // (self.blocks_per_task * self.phases))

    @property
    def moves_again(self) -> float:
        """Of `moves`, those of numbers that an earlier window had, which are far away since."""
        return 0.0

    @property
    def row_step(self) -> int:
        """Of A, from an output to the next."""
        raise NotImplementedError

    @property
    def output_step(self) -> int | None:
        """From one output of a block to the next, in the tensor; None where steps differ."""
        p = self.problem
        strides = p.strides[p.solved]
        steps = [stride * axis.out_step for stride, axis in zip((strides[0], *strides[3:]), self.axes, strict=True)]
        return step_of_numbers(self.block, tuple(steps))

    @property
    def output_places(self) -> Ints:
        """Of all outputs of a block, in the tensor."""
        p = self.problem
        strides = p.strides[p.solved]
        places = [0]
        for size, stride, axis in zip(self.block, (strides[0], *strides[3:]), self.axes, strict=True):
            places = [place + j * stride * axis.out_step for place in places for j in range(size)]
        return tuple(places)

    @property
    def asks_for_results(self) -> bool:
        """Whether lines of results are asked for before they are written: a row of them, beyond L2."""
        p = self.problem
        row = p.strides[p.solved][2] == 1 and self.output_step is not None
        return row and not self.past_caches and p.bytes_of(p.solved) > KEPT_BYTES

    @property
    def can_write(self) -> bool:
        """Whether outputs of a block lie so that tiles of them can be written."""
        return self.output_step is not None or self.problem.strides[self.problem.solved][2] == 1

    @property
    def result_size(self) -> int:
        """Of one block of tiles and of lanes."""
        return self.together * self.width

    @property
    def result_block(self) -> int:
        """Likewise."""
        return self.result_size

    def validate(self) -> None:
        """Assert what the emitter relies on."""
        assert not any((self.spread, self.pixels, self.reads_in_place, self.writes_in_place, self.packs_weights))
        assert self.unroll == 0
        assert self.width in (COLUMNS, 2 * COLUMNS)
        assert self.rows == ROWS
        assert set(self.tile) == {1}
        assert self.i_blocks == 1
        assert self.can_write
        assert self.watch
        assert self.fallback is not None
        assert not self.problem.accumulate
        self._validate_rows()


def step_of_numbers(extents: Ints, strides: Ints) -> int | None:
    """From one element of a box to the next, numbered through with the last axis fastest; None where steps differ."""
    step, many = 0, 1
    for extent, stride in zip(reversed(extents), reversed(strides), strict=True):
        if extent > 1 and many > 1 and stride != many * step:
            return None
        if extent > 1 and many == 1:
            step = stride
        many *= extent
    return step
