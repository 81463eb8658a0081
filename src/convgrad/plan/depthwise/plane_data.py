"""How X or Y is computed where one channel meets one: vectors run along the outputs of a row.

Sums of several rows stay in registers over all taps, so that a vector of the input serves every row that meets it.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import product
from math import prod
from typing import ClassVar

from convgrad.dtypes import SIZES
from convgrad.plan.axes import GatherAxis, Phase
from convgrad.plan.depthwise.plane_slab import PlaneSlab
from convgrad.plan.general.room import Room
from convgrad.plan.order import IN_TURN
from convgrad.problem.conv import ConvProblem, Ints, Unknown
from convgrad.values import frozen


@frozen(kw_only=True)
class PlaneDataPlan:
    """Blocking of a problem that solves for X or Y, of one channel per group on either side.

    A task computes `block` outputs per axis and phase, of one image, for a run of groups: plane by plane, as they lie
    in memory. A slab holds what they read of a plane. Results go from registers to the tensor, or to a buffer of one
    tile on their way; phases of the innermost axis meet in registers. Sizes count numbers of the arithmetic type.
    """

    KIND: ClassVar[str] = "along outputs of planes"
    ON_UNITS: ClassVar[bool] = False
    OF_PLANES: ClassVar[bool] = True
    leaves_out_borders: ClassVar[bool] = False
    some_lack_taps: ClassVar[bool] = False

    problem: ConvProblem
    isa: str
    compute: str
    lanes: int
    axes: tuple[GatherAxis, ...]  # batch first
    rows: int  # of outputs, in a register tile
    vectors: int  # of each
    tap_rows: int  # taps of the last axis but one that are written out together
    slid: Ints  # places in a vector that are put together from two vectors
    block: Ints  # outputs j per axis and phase: one image, whole `rows` and whole `vectors`
    run: int  # groups of a task
    masks: bool  # the last vector of a row is stored under a mask
    reasons: tuple[str, ...] = ()

    @property
    def asked(self) -> ConvProblem:
        """What is solved."""
        return self.problem

    @property
    def kind(self) -> str:
        """How vectors lie, in words."""
        return self.KIND

    @property
    def order(self) -> str:
        """In which order products are added up (`plan.order`), in words."""
        return self.order_kind

    @property
    def order_kind(self) -> str:
        """Likewise: no runs of channels are chosen."""
        return self.kind if self.ON_UNITS else IN_TURN

    @property
    def solves_y(self) -> bool:
        """Else for X."""
        return self.problem.unknown is Unknown.Y

    @property
    def taps(self) -> int:
        """Of the whole kernel."""
        return prod(self.problem.taps)

    @property
    def width(self) -> int:
        """Outputs of a row in a register tile, of each phase."""
        return self.vectors * self.lanes

    @property
    def tile(self) -> Ints:
        """Outputs of a register tile, of each phase, along the last axis but one and the innermost."""
        return self.rows, self.width

    @property
    def slab(self) -> PlaneSlab:
        """Of the input."""
        return PlaneSlab(
            steps=tuple(axis.in_step for axis in self.axes), firsts=tuple(axis.reach[0] for axis in self.axes),
            lasts=tuple(axis.reach[1] for axis in self.axes), images=tuple(axis.in_extent for axis in self.axes),
            block=self.block, lanes=self.lanes,
        )  # fmt: skip

    @property
    def slab_bytes(self) -> int:
        """Of the slab."""
        return SIZES[self.compute] * self.slab.size

    @property
    def work_bytes(self) -> Room:
        """Besides: of each the slab, and results of a tile."""
        return 0, self.slab_bytes + SIZES[self.compute] * self.tile_size

    @property
    def weights_bytes(self) -> Room:
        """Of packed weights: of all tasks none, and of each those of its groups."""
        return 0, SIZES[self.compute] * self.run * self.taps

    def offsets(self, axis: GatherAxis, phase: Phase) -> list[tuple[int, int]]:
        """Of every tap of a phase: what output 0 reads, and the index of the tap in the kernel."""
        return [(phase.offset + t * axis.offset_step, phase.tap + t * axis.tap_step) for t in range(phase.taps)]

    @property
    def outer_phases(self) -> list[tuple[Phase, ...]]:
        """Of all axes but the innermost, together."""
        return phases_together(self.axes[:-1])

    @property
    def direct(self) -> bool:
        """Whether results are written right from registers."""
        return self.masks and self._lie_together

    @property
    def direct_if_whole(self) -> bool:
        """Whether those of whole tiles are, without masks: 16 bits, that take longer to be written piece by piece."""
        return self._lie_together and SIZES[self.problem.out_dtype] < SIZES[self.compute]

    @property
    def _lie_together(self) -> bool:
        p = self.problem
        return not p.accumulate and p.strides[p.solved][-1] == 1 and self.axes[-1].out_step <= 2

    @property
    def runs(self) -> int:
        """Of groups."""
        return -(-self.problem.groups // self.run)

    @property
    def grid(self) -> Ints:
        """Tasks: blocks per axis, runs of groups."""
        return (*(-(-axis.count // block) for axis, block in zip(self.axes, self.block, strict=True)), self.runs)

    @property
    def tile_size(self) -> int:
        """Results of one register tile, of all phases of the innermost axis."""
        return self.rows * self.width * self.axes[-1].out_step

    def validate(self) -> None:
        """Assert what the emitter relies on."""
        p = self.problem
        assert p.x_channels == p.y_channels == 1
        assert self.block[-2] % self.rows == 0
        assert self.block[-1] % self.width == 0
        assert self.axes[-1].out_step in (1, 2, 4)
        assert len(self.block) == 2 or self.block[0] == 1

    def __str__(self) -> str:
        return (
            f"data plan on {self.isa}: vectors along outputs of planes, tile {self.rows} x {self.width}, "
            f"{self.tap_rows} rows of taps at once, {len(self.slid)} slid, block {self.block}, "
            f"runs of {self.run} groups, {prod(self.grid)} tasks, slab of {self.slab.size} numbers, "
            f"{'written in place' if self.direct else 'written tile by tile'}\n"
            + "\n".join(f"  {reason}" for reason in self.reasons)
        )


def phases_together(axes: Sequence[GatherAxis]) -> list[tuple[Phase, ...]]:
    """A phase of each."""
    return list(product(*(axis.phases for axis in axes)))
