"""Weights gradients whose windows are numbered through, so that a tap is a mere shift of x."""

from __future__ import annotations

from math import prod

from convgrad.plan.general.weights import WeightsPlan
from convgrad.plan.strides import row_major
from convgrad.plan.window_axes import WindowAxis
from convgrad.problem.conv import Ints
from convgrad.values import frozen


@frozen(kw_only=True)
class FlatWeightsPlan(WeightsPlan):
    """Windows of the innermost two axes (the flat ones) are numbered as if every row had `pitch` of them.

    Where x has a row of that length, y has a window or, behind the last window of a row, zero. The slab of x is in the
    order (channel, outer axes, planes of the flat axes, rows, columns), one plane for each remainder of a stride.
    """

    @property
    def flat_axes(self) -> int:
        """How many axes are flat, if there are so many."""
        return 2

    @property
    def flat(self) -> tuple[WindowAxis, ...]:
        """The axes that windows are numbered through."""
        return self.axes[max(1, len(self.axes) - self.flat_axes) :]

    @property
    def outer(self) -> tuple[WindowAxis, ...]:
        """The others, batch first."""
        return self.axes[: len(self.axes) - len(self.flat)]

    @property
    def outer_block(self) -> Ints:
        """Windows per outer axis that are packed at a time."""
        return self.block[: len(self.outer)]

    @property
    def flat_block(self) -> Ints:
        """Windows per flat axis that are packed at a time."""
        return self.block[len(self.outer) :]

    @property
    def outer_extent(self) -> Ints:
        """Elements of x per outer axis that a block meets."""
        return tuple(
            axis.stride * (block - 1) + axis.dilation * (axis.taps - 1) + 1
            for axis, block in zip(self.outer, self.outer_block, strict=True)
        )

    def lead(self, n: int) -> int:
        """Elements of the slab before the first that tap 0 of a block meets, so that planes begin with remainder 0."""
        return -self.axes[n].low % self.axes[n].stride

    @property
    def pitch_unit(self) -> int:
        """Of which the pitch is a multiple."""
        return 1

    @property
    def plane_extent(self) -> Ints:
        """Elements per flat axis of one plane; the innermost is the pitch."""
        extents = [
            block + (axis.dilation * (axis.taps - 1) + self.lead(n)) // axis.stride
            for n, (axis, block) in enumerate(zip(self.flat, self.flat_block, strict=True), len(self.outer))
        ]
        return (*extents[:-1], extents[-1] + -extents[-1] % self.pitch_unit)

    @property
    def pitch(self) -> int:
        """From one row of windows to the next."""
        return self.plane_extent[-1]

    @property
    def planes(self) -> Ints:
        """Per flat axis."""
        return tuple(axis.stride for axis in self.flat)

    @property
    def plane_strides(self) -> tuple[Ints, Ints]:
        """Of x per flat axis: from plane to plane, and from element to element of a plane."""
        elements = row_major(self.plane_extent, 1)
        return row_major(self.planes, prod(self.plane_extent)), elements

    @property
    def depth_unit(self) -> int:
        """Windows that are summed at a time."""
        return self.lanes

    @property
    def depth(self) -> int:
        """Windows of the flat axes in a block, those between rows included, in whole units."""
        *rows, columns = self.flat_block
        return -(-((prod(rows) - 1) * self.pitch + columns) // self.depth_unit) * self.depth_unit

    @property
    def x_outer_strides(self) -> Ints:
        """Of x per outer axis."""
        return row_major(self.outer_extent, prod(self.planes) * prod(self.plane_extent))

    def tap_place(self, n: int, r: int) -> int:
        """Where the slab has what tap r of axis n, a flat one, meets for window 0."""
        axis, m = self.axes[n], n - len(self.outer)
        whole, rest = divmod(r * axis.dilation + self.lead(n), axis.stride)
        return whole * self.plane_strides[1][m] + rest * self.plane_strides[0][m]
