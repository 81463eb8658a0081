"""X or Y of one channel per group from the rows of planes where they lie: no slabs, no reads beside the image."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from math import prod
from typing import ClassVar

from convgrad.dtypes import COMPUTE, SIZES
from convgrad.plan.axes import Phase
from convgrad.plan.costs import LINE
from convgrad.plan.depthwise.plane_data import PlaneDataPlan, phases_together
from convgrad.problem.conv import ConvProblem
from convgrad.values import frozen

BEFORE_ZEROS = LINE  # bytes: loads take some 300 cycles whose masks leave out what lies where no memory is
AHEAD_BYTES = 16 * 1024  # of what is fetched
AHEAD_FROM = 8 * 1024 * 1024  # bytes of both tensors from which on it is, or of as many numbers that are shorter


def is_large(p: ConvProblem, most: int | None = None) -> bool:
    """Whether x and y take more than so many bytes, and memory is worth asking for before it is read."""
    least = AHEAD_FROM * SIZES[p.dtype] // SIZES[COMPUTE[p.dtype]] if most is None else most
    return SIZES[p.dtype] * (prod(p.shapes["x"]) + prod(p.shapes["y"])) > least


def is_narrow(p: ConvProblem) -> bool:
    """Whether numbers are converted when they are read."""
    return p.dtype != COMPUTE[p.dtype]


def bytes_ahead(size: int) -> int:
    """From a tile to the one for which it asks for memory, of which each takes so many bytes."""
    return max(1, round(AHEAD_BYTES / max(1, abs(size)))) * size


def windows_ahead(p: ConvProblem, name: str, rows: int) -> int:
    """Likewise from a tile of so many rows of windows, in x or y."""
    step = p.stride[-2] if name == "x" else 1
    return bytes_ahead(rows * step * p.strides[name][-2] * SIZES[p.dtype])


def run_bases(step: int, dtype: str, offsets: Iterable[int]) -> list[int]:
    """Offsets at which runs of `step` vectors begin that hold all of these offsets.

    Runs from which lanes are picked begin at multiples of the step, so that taps share them. bf16 of which two are a
    word need not: as few as hold all.
    """
    if step == 2 and dtype == "bf16":
        bases: list[int] = []
        for offset in sorted(offsets):
            if not bases or offset > bases[-1] + 1:
                bases.append(offset)
        return bases
    return sorted({offset // step * step for offset in offsets})


def whole_vectors(
    count: int, least: int, lanes: int, step: int, image: int, bases: Sequence[int]
) -> tuple[int, int, int]:  # fmt: skip
    """How many vectors a row of `count` outputs or windows has, and from which to which all that they read is there.

    They read runs of `step` vectors, that begin at `bases`. The shortest phase of a row has `least` outputs.
    """
    vectors, bases = -(-count // lanes), bases or [0]
    first = -(min(0, min(bases) // step) // lanes)
    last = min(least - lanes, (image - max(bases)) // step - lanes) // lanes + 1
    return vectors, min(first, vectors), max(min(first, vectors), min(last, vectors))


@frozen(kw_only=True)
class PlaneRowsPlan(PlaneDataPlan):
    """A PlaneDataPlan whose tiles read rows in place: `rows` outputs of each phase by `vectors` of each phase of a row.

    All phases of the last two axes meet in a tile, so that each row of the input is read by one tile, or two. Rows
    beside the image are read from zeros, of which a task has one row; lanes beside it are masked. Sets without masks to
    store under have a last vector that begins early, and repeats some outputs.
    """

    KIND = "along outputs of planes, rows in place"
    IN_ORDER: ClassVar[bool] = True  # every sum has the order of its taps

    fetches: tuple[str, ...] = ()  # tensors that are asked for some tiles ahead

    def bytes_ahead(self, name: str) -> int:
        """From a row of a tensor to the one that is asked for."""
        axis = self.axes[-2]
        step = axis.in_step if name == self.problem.given else axis.out_step
        return bytes_ahead(self.rows * step * self.problem.strides[name][-2] * SIZES[self.problem.dtype])

    @property
    def slab_bytes(self) -> int:
        """Of the row of zeros, and of what lies before it."""
        return BEFORE_ZEROS + SIZES[self.compute] * self.axes[-1].in_extent

    @property
    def direct(self) -> bool:
        """Yes."""
        return True

    @property
    def sums(self) -> int:
        """Vectors of results of a tile."""
        row, inner = self.axes[-2:]
        return self.rows * len(row.phases) * len(inner.phases)

    @property
    def outer_phases(self) -> list[tuple[Phase, ...]]:
        """Of the axes around a tile."""
        return phases_together(self.axes[:-2])

    @property
    def row_offsets(self) -> dict[int, list[tuple[int, int, int]]]:
        """Rows of the input that a tile meets, those of first taps first if that matters: what each meets.

        That is phase, output and tap.
        """
        axis, found = self.axes[-2], {}
        for f, phase in enumerate(axis.phases):
            for offset, tap in self.offsets(axis, phase):
                for j in range(self.rows):
                    found.setdefault(axis.in_step * j + offset, []).append((f, j, tap))
        return dict(sorted(found.items(), reverse=self.IN_ORDER and axis.offset_step < 0))

    @property
    def column_offsets(self) -> dict[int, list[tuple[int, int]]]:
        """Elements of a row that output 0 meets: of which phase, at which tap."""
        axis, found = self.axes[-1], {}
        for f, phase in enumerate(axis.phases):
            for offset, tap in self.offsets(axis, phase):
                found.setdefault(offset, []).append((f, tap))
        return dict(sorted(found.items(), reverse=axis.offset_step < 0))  # every sum in the order of its taps

    @property
    def products(self) -> int:
        """Multiply-adds of a tile."""
        return sum(map(len, self.row_offsets.values())) * sum(map(len, self.column_offsets.values()))

    def validate(self) -> None:
        """Assert what the emitter relies on."""
        PlaneDataPlan.validate(self)
        assert not self.problem.accumulate
        assert self.problem.strides[self.problem.solved][-1] == 1
        assert len(self.axes) > 2
        assert self.vectors == 1 or not self.masks
        assert self.grid[-2] == 1

    def __str__(self) -> str:
        return (
            f"data plan on {self.isa}: vectors along outputs of planes, rows in place, "
            f"tile {self.rows} x {self.width}, block {self.block}, runs of {self.run} groups\n"
            + "\n".join(f"  {reason}" for reason in self.reasons)
        )
