"""Slabs of a FlatWeightsPlan: x in planes, each of which holds the elements of one remainder of the strides."""

from __future__ import annotations

from collections.abc import Callable

from convgrad.codegen.copies.copying import Copy, Dim
from convgrad.codegen.copies.paired_windows import PairedRuns, each_plane
from convgrad.codegen.copies.zeroing import emit_zero
from convgrad.codegen.general.weights import SumsStage
from convgrad.codegen.ir import Builder
from convgrad.codegen.ir_module import Index, Value
from convgrad.codegen.isa.base import STORAGE
from convgrad.codegen.stages import Places
from convgrad.plan.general.flat import FlatWeightsPlan
from convgrad.plan.window_axes import WindowAxis
from convgrad.problem.conv import Ints


class FlatSums(SumsStage):
    """The stages of a plan. What lies between numbers is multiplied, by zeros on the other side: numbers, too."""

    plan: FlatWeightsPlan
    slab_kind: str  # LLVM's type of a packed number

    def clear_slabs(self, b: Builder, at: Places) -> None:
        """Zeros, once per task."""
        emit_zero(b, self.isa, "f32", at.scratch, self.slab_bytes // 4)

    def row_copy(self) -> Copy | PairedRuns:
        """From x to its slab."""
        raise NotImplementedError

    def _pack_rows(self, b: Builder, at: Places, starts: list[Index]) -> None:
        """Channels of x, the elements of each flat axis in planes."""
        plan = self.plan
        group, channel = self.tensor_strides["x"][1:3]
        self.clear_around(b, starts, at.scratch, self.row_slab_bytes // 4)
        count: Index = plan.share_rows
        if plan.row_count % plan.share_rows:
            count = b.minimum(b.sub(plan.row_count, self.first_row), count)
        source = b.dot([(self.bundle, group), (self.first_row, channel)])
        copy, planes, pitch = self.row_copy(), plan.axes[-1].stride, plan.plane_strides[0][-1]

        def pack(place: Index, there: Index, dims: list[Dim], columns: Dim) -> None:
            tensor = b.at(at.of("x"), place, STORAGE[plan.problem.dtype])
            packed = b.at(at.scratch, there, self.slab_kind)
            if planes == 1:
                copy.emit(b, tensor, packed, [*dims, columns])
            else:
                copy.emit_planes(b, tensor, packed, dims, columns, planes, pitch)

        self.parts_of_x(b, starts, source, [Dim(count, channel, plan.row_slab[1])], 1, pack)

    def clear_around(self, b: Builder, starts: list[Index], slab: Value, words: int) -> None:
        """Zeros, where a block reaches beyond x and other blocks left their own there: not on axes that one covers."""
        plan = self.plan
        missing: Index = 0
        for n, axis in enumerate(plan.axes):
            if axis.clipped and axis.windows > plan.block[n]:
                lead, extent = self._reach(n)
                _, low, high = self._inside(b, axis, starts[n], lead, extent)
                missing = b.add(missing, b.sub(extent, b.sub(high, low)))
        self.clear_if(b, missing, slab, words)

    def clear_if(self, b: Builder, missing: Index, slab: Value, words: int) -> None:
        """Zeros, where something is missing."""
        if missing != 0:
            with b.when(b.compare("ne", missing, 0)):
                emit_zero(b, self.isa, "f32", slab, words)

    def _reach(self, n: int) -> tuple[int, int]:
        """Elements of the slab on an axis, those before the first that tap 0 meets and all."""
        plan, flat = self.plan, n - len(self.plan.outer)
        if flat < 0:
            return 0, plan.outer_extent[n]
        return plan.lead(n), plan.planes[flat] * plan.plane_extent[flat]

    def parts_of_x(
        self, b: Builder, starts: list[Index], source: Index, dims: list[Dim], unit: int,
        pack: Callable[[Index, Index, list[Dim], Dim], None],
    ) -> None:  # fmt: skip
        """Let `pack` what x has of a block, plane by plane of rows, in a slab whose elements are `unit` numbers.

        It is told where to begin in x, from `source` on, and in the slab, which axes there are besides `dims`, and
        columns, whose elements belong to planes in turn.
        """
        plan, steps = self.plan, self.tensor_strides["x"]
        outer = len(plan.outer)
        target: Index = 0
        for axis, start, extent, step, slab in zip(
            plan.outer, starts, plan.outer_extent, (steps[0], *steps[3:]), plan.x_outer_strides, strict=False
        ):
            origin, low, high = self._inside(b, axis, start, 0, extent)
            dims = [*dims, Dim(b.sub(high, low), step, unit * slab)]
            source, target = b.add(source, b.mul(b.add(origin, low), step)), b.add(target, b.mul(low, unit * slab))
        plane_steps, element_steps = plan.plane_strides
        flat_steps = steps[2 + outer :] if outer > 0 else steps[3:]
        *rows, columns = zip(plan.flat, starts[outer:], flat_steps, strict=True)

        def of_plane(place: Index, there: Index, dims: list[Dim]) -> None:
            axis, start, step = columns
            origin, low, high = self._inside(b, axis, start, *self._reach(len(plan.axes) - 1))
            place = b.add(place, b.mul(b.add(origin, low), step))
            there = b.add(there, b.mul(b.floor_div(low, axis.stride), unit))
            pack(place, there, dims, Dim(b.sub(high, low), step, 1))

        if not rows:
            of_plane(source, target, dims)
            return
        axis, start, step = rows[0]
        origin, low, high = self._inside(b, axis, start, *self._reach(outer))

        def plane(remainder: Index, many: Index) -> None:
            first = b.add(low, remainder)  # low is a multiple of the stride
            place = b.add(source, b.mul(b.add(origin, first), step))
            there = b.add(target, b.mul(remainder, unit * plane_steps[0]))
            there = b.add(there, b.mul(b.floor_div(low, axis.stride), unit * element_steps[0]))
            of_plane(place, there, [*dims, Dim(many, axis.stride * step, unit * element_steps[0])])

        each_plane(b, b.sub(high, low), axis.stride, plane)

    def clear_behind(self, b: Builder, starts: list[Index], slab: Value, words: int) -> None:
        """Zeros for windows of y, where a block has fewer than others, which left their own there."""
        missing: Index = 0
        for axis, start, block in zip(self.plan.axes, starts, self.plan.block, strict=True):
            if axis.windows % block:
                missing = b.add(missing, b.sub(block, b.minimum(b.sub(axis.windows, start), block)))
        self.clear_if(b, missing, slab, words)

    def windows_of_y(
        self, b: Builder, starts: list[Index], source: Index, strides: Ints
    ) -> tuple[Index, list[Dim]]:  # fmt: skip
        """Where a block begins in y, from `source` on, and its axes, in a slab of these strides."""
        steps, dims = self.tensor_strides["y"], []
        for axis, start, block, step, there in zip(
            self.plan.axes, starts, self.plan.block, (steps[0], *steps[3:]), strides, strict=True
        ):
            dims.append(Dim(b.minimum(b.sub(axis.windows, start), block), step, there))
            source = b.add(source, b.mul(start, step))
        return source, dims

    def _inside(self, b: Builder, axis: WindowAxis, start: Index, lead: int, extent: int) -> tuple[Index, Index, Index]:
        """Where the slab begins in x, and the part of it, from a multiple of the stride on, that x has."""
        origin = b.sub(b.mul(start, axis.stride), axis.low + lead)
        low: Index = 0
        if axis.low + lead > 0:
            before = b.maximum(b.sub(0, origin), 0)
            low = b.minimum(before, extent)
        high = b.maximum(b.minimum(b.sub(axis.image, origin), extent), low)
        return origin, low, high

    def tap_place(self, b: Builder, n: int, r: Index) -> Index:
        """How far tap r of axis n, one of those that are flat, moves windows in the slab: to a plane, and in it."""
        plan, axis, flat = self.plan, self.plan.axes[n], n - len(self.plan.outer)
        place = b.add(b.mul(r, axis.dilation), plan.lead(n))
        whole = b.floor_div(place, axis.stride)
        rest = b.sub(place, b.mul(whole, axis.stride))
        planes, within = plan.plane_strides
        return b.add(b.mul(whole, within[flat]), b.mul(rest, planes[flat]))
