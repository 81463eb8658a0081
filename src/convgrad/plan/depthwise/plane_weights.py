"""How W is computed where one channel of x meets one of y: vectors run along the windows of a row.

Every tap has a vector of partial sums of its own, which stays in a register over the rows of a plane; the lanes of all
of them are added at the very end. A vector of x serves every row of windows that meets it.
"""

from __future__ import annotations

from math import prod
from typing import ClassVar

from convgrad.dtypes import SIZES
from convgrad.plan.costs import LINE
from convgrad.plan.depthwise.plane_costs import tap_pieces
from convgrad.plan.depthwise.plane_slab import PlaneSlab
from convgrad.plan.general.room import Room
from convgrad.plan.general.weights import BIAS_UNIT, KEPT_BYTES
from convgrad.plan.strides import row_major
from convgrad.plan.window_axes import WindowAxis
from convgrad.problem.conv import ConvProblem, Ints
from convgrad.values import frozen


@frozen(kw_only=True)
class PlaneWeightsPlan:
    """Blocking of a problem that solves for W, of one channel per group on either side.

    A task sums the windows of one chunk for a run of groups, block by block; in each block plane by plane, as planes
    lie in memory. Slabs hold a block of one plane: rows of y behind each other, and rows of x between zeros, each as
    many planes as the stride has phases, so that what the lanes of a tap meet lies side by side. Which windows form a
    chunk follows from the shape alone. Sizes count numbers of the arithmetic type.
    """

    KIND: ClassVar[str] = "along windows"
    ON_UNITS: ClassVar[bool] = False
    FINISHED: ClassVar[bool] = True
    order: ClassVar[str] = ""  # of sums: they run over extents
    ALONG_WINDOWS: ClassVar[bool] = True

    problem: ConvProblem
    isa: str
    compute: str
    lanes: int
    axes: tuple[WindowAxis, ...]  # batch first
    tap_rows: int  # taps of the last axis but one in a register tile
    tap_columns: int  # of the innermost axis; all of them, or one row of taps
    rows: int  # rows of windows that are written out together
    slid: Ints  # places in a vector, of first windows, of taps whose numbers are put together from two vectors
    block: Ints  # windows per axis that are packed at a time: one image, whole `rows` and whole vectors
    chunks: int
    run: int  # groups of a task
    fetches_ahead: bool = False  # the next plane is asked for while the present one is multiplied
    reasons: tuple[str, ...] = ()

    lane_groups = 1  # a slab holds one group

    @property
    def asked(self) -> ConvProblem:
        """What is solved."""
        return self.problem

    @property
    def kind(self) -> str:
        """How vectors lie, in words."""
        return self.KIND

    @property
    def taps(self) -> int:
        """Of the whole kernel."""
        return prod(self.problem.taps)

    @property
    def tap_pieces(self) -> tuple[tuple[int, int], ...]:
        """Rows of taps of a tile and how many such tiles follow each other, which cut all rows evenly."""
        return tap_pieces(self.axes[-2].taps, self.tap_rows)

    # --- slabs

    @property
    def x_slab(self) -> PlaneSlab:
        """Of x."""
        return PlaneSlab(
            steps=tuple(axis.stride for axis in self.axes), firsts=tuple(-axis.low for axis in self.axes),
            lasts=tuple(axis.dilation * (axis.taps - 1) - axis.low for axis in self.axes),
            images=tuple(axis.image for axis in self.axes), block=self.block, lanes=self.lanes,
        )  # fmt: skip

    def place(self, tap: int) -> int:
        """Where the first window of a row finds what a tap of the innermost axis meets."""
        axis = self.axes[-1]
        return self.x_slab.place(axis.dilation * tap - axis.low)

    @property
    def y_slab(self) -> Ints:
        """Strides of all axes."""
        return row_major(self.block, 1)

    @property
    def y_slab_size(self) -> int:
        """All of it."""
        return prod(self.block)

    @property
    def slab_bytes(self) -> int:
        """Of both."""
        return SIZES[self.compute] * (self.x_slab.size + self.y_slab_size)

    @property
    def plane_lines(self) -> tuple[int, int]:
        """Cache lines of x, and of y, that a block of a plane is made of."""
        size = SIZES[self.problem.dtype]
        x = prod(self.x_slab.held)
        y = prod(min(block, axis.windows) for block, axis in zip(self.block, self.axes, strict=True))
        return -(-x * size // LINE), -(-y * size // LINE)

    @property
    def planes_follow(self) -> bool:
        """Whether the plane of the next group lies behind that of the present one, and caches do not hold them all."""
        p = self.problem
        size = SIZES[p.dtype] * (prod(p.shapes["x"]) + prod(p.shapes["y"]))
        behind = all(p.strides[name][1] == prod(p.shapes[name][3:]) for name in "xy")
        return behind and size > KEPT_BYTES

    # --- tasks and sums

    @property
    def block_grid(self) -> Ints:
        """Blocks of windows per axis; where x is summed per channel, it is seen even if no window is."""
        least = 1 if self.problem.bias_gradient == "x" else 0
        return tuple(max(least, -(-axis.windows // block)) for axis, block in zip(self.axes, self.block, strict=True))

    @property
    def runs(self) -> int:
        """Of groups."""
        return -(-self.problem.groups // self.run)

    @property
    def grid(self) -> Ints:
        """Tasks of the first stage."""
        return (self.chunks, self.runs)

    @property
    def run_sums(self) -> int:
        """Sums of a task, in the order (group, taps), in whole vectors."""
        return -(-self.run * self.taps // self.lanes) * self.lanes

    @property
    def chunk_sums(self) -> int:
        """Sums of all groups, of one chunk; those of a chunk begin on a cache line."""
        return -(-self.problem.groups * self.taps // BIAS_UNIT) * BIAS_UNIT

    @property
    def shared_sums(self) -> int:
        """Those of all chunks, if there are several."""
        return self.chunks * self.chunk_sums if self.chunks > 1 else 0

    @property
    def work_bytes(self) -> Room:
        """Besides the sums that become weights: those of other chunks; slabs, and vectors of sums."""
        size, others = SIZES[self.compute], self.chunk_sums * (self.chunks - 1)
        return size * others, self.slab_bytes + size * self.run_sums * self.lanes

    @property
    def weights_bytes(self) -> Room:
        """Of sums that become weights: those that all tasks share, and those that a task has to itself."""
        own = self.run_sums if self.chunks == 1 else 0
        return SIZES[self.compute] * min(self.shared_sums, self.chunk_sums), SIZES[self.compute] * own

    @property
    def bias_size(self) -> int:
        """Sums per channel of one chunk, which are the bias gradient; those of a chunk begin on a cache line."""
        return -(-self.problem.bias_length // BIAS_UNIT) * BIAS_UNIT

    def validate(self) -> None:
        """Assert what the emitter relies on."""
        p = self.problem
        assert p.x_channels == p.y_channels == 1
        assert self.block[-2] % self.rows == 0
        assert self.block[-1] % self.lanes == 0
        assert len(self.block) == 2 or self.block[0] == 1
        assert self.tap_columns == self.axes[-1].taps or self.tap_rows == 1

    def __str__(self) -> str:
        return self._told("vectors along windows", f"{len(self.slid)} slid, ")

    def _told(self, kind: str, more: str = "") -> str:
        return (
            f"weights plan on {self.isa}: {kind}, tile {self.tap_rows} x {self.tap_columns} taps of {self.lanes}, "
            f"{more}{self.rows} rows at once, block {self.block}, runs of {self.run} groups, {self.chunks} chunks, "
            f"{prod(self.grid)} tasks"
            + (f", with sums of {self.problem.bias_gradient}\n" if self.problem.bias_gradient else "\n")
            + "\n".join(f"  {reason}" for reason in self.reasons)
        )
