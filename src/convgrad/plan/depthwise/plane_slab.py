"""Where a slab holds a block of one plane: rows between zeros, each taken apart into the phases of a stride."""

from __future__ import annotations

from math import prod

from convgrad.plan.strides import row_major
from convgrad.problem.conv import Ints
from convgrad.values import frozen


@frozen(kw_only=True)
class PlaneSlab:
    """What windows or outputs j of a block read of one channel: elements step · j + offset on each axis, batch first.

    Of the innermost axis elements step · i + f lie side by side for each phase f, behind `margin` zeros, so that a
    vector of j meets whatever is at an offset as a vector. Sizes count numbers of the arithmetic type.
    """

    steps: Ints
    firsts: Ints  # least offset per axis
    lasts: Ints  # largest
    images: Ints  # extents of the tensor
    block: Ints  # j per axis
    lanes: int

    @property
    def margin(self) -> int:
        """Zeros of every phase before the first element of a row."""
        return max(0, -(self.firsts[-1] // self.steps[-1]))

    def place(self, offset: int) -> int:
        """Where j = 0 finds the element at an offset on the innermost axis."""
        shift, phase = divmod(offset, self.steps[-1])
        return phase * self.pitch + self.margin + shift

    @property
    def columns(self) -> int:
        """Numbers of each phase of a row that may be read."""
        return self.block[-1] + self.margin + self.lasts[-1] // self.steps[-1]

    @property
    def pitch(self) -> int:
        """From a phase to the next: whole vectors."""
        return -(-self.columns // self.lanes) * self.lanes

    @property
    def extent(self) -> Ints:
        """Elements per axis but the innermost."""
        axes = zip(self.steps[:-1], self.firsts[:-1], self.lasts[:-1], self.block[:-1], strict=True)
        return tuple(step * (block - 1) + last - first + 1 for step, first, last, block in axes)

    @property
    def strides(self) -> Ints:
        """Of all axes but the innermost."""
        return row_major(self.extent, self.steps[-1] * self.pitch)

    @property
    def size(self) -> int:
        """All of it."""
        return self.strides[0] * self.extent[0]

    @property
    def held(self) -> Ints:
        """Elements of the tensor per axis, at most."""
        *outer, inner = self.images
        rows = (min(extent, image) for extent, image in zip(self.extent, outer, strict=True))
        return (*rows, min(self.columns * self.steps[-1], inner))

    @property
    def rows(self) -> int:
        """Of the tensor, at most."""
        return prod(self.held[:-1])
