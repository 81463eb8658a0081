"""What a task of weights gradients packs: slabs of x and of y, a block of windows at a time; or where they lie."""

from __future__ import annotations

from collections.abc import Callable

from convgrad.codegen.copies.copying import Copy, Dim
from convgrad.codegen.copies.packing import can_spread_by_vectors, spread_groups
from convgrad.codegen.copies.zeroing import emit_zero
from convgrad.codegen.ir import Builder
from convgrad.codegen.ir_module import Index, Value
from convgrad.codegen.isa.base import STORAGE, Isa
from convgrad.codegen.stages import Places
from convgrad.plan.general.weights import WeightsPlan

Bands = dict[int, Index]  # tap, by axis


class WindowSlabs:
    """Packing, for the stage that sums; that says which channels a task has."""

    plan: WeightsPlan
    isa: Isa
    kind: str  # LLVM's type of a packed number
    lane_tensor: str
    row_tensor: str
    tensor_strides: dict[str, tuple[int, ...]]
    bundle: Index
    first_row: Index
    first_block: Index
    last_block: Index

    def _each_band(self, b: Builder, tensor: str, body: Callable[[Bands], None]) -> None:
        """`body` for every way to choose a tap of each axis of which a slab holds bands."""
        banded = [n for n in range(len(self.plan.axes)) if tensor == "x" and self.plan.banded(n)]

        def nest(chosen: Bands) -> None:
            if len(chosen) == len(banded):
                body(chosen)
                return
            n = banded[len(chosen)]
            b.loop(0, self.plan.axes[n].taps, lambda tap, _: nest(chosen | {n: tap}), name="band")

        nest({})

    def _box(
        self, b: Builder, starts: list[Index], tensor: str, strides: tuple[int, ...], bands: Bands
    ) -> tuple[list[Dim], Index, Index]:
        """The elements of a block, or of some of its bands, in one tensor: axes, origins in the tensor and the slab."""
        plan = self.plan
        steps = (self.tensor_strides[tensor][0], *self.tensor_strides[tensor][3:])
        dims, source, target = [], 0, 0
        for n, (start, step, slab) in enumerate(zip(starts, steps, strides, strict=True)):
            if tensor == "y":
                dims.append(Dim(self.windows(b, n, start), step, slab))
                source = b.add(source, b.mul(start, step))
                continue
            tap = bands.get(n, 0)
            origin, low, high = self._on_x(b, n, start, tap)
            dims.append(Dim(b.sub(high, low), step, slab))
            source = b.add(source, b.mul(b.add(origin, low), step))
            target = b.add(target, b.mul(b.add(b.mul(tap, plan.tap_step(n)), low), slab))
        return dims, source, target

    def _on_x(self, b: Builder, n: int, start: Index, tap: Index) -> tuple[Index, Index, Index]:
        """Where what a slab holds of axis n begins in x, or the band of a tap, and which of its elements x has."""
        plan, axis = self.plan, self.plan.axes[n]
        extent, first = (plan.band(n) if plan.banded(n) else plan.x_extent[n]), plan.x_start[n]
        origin = b.add(b.add(b.mul(start, axis.stride), first), b.mul(tap, axis.dilation))
        if not (axis.clipped or plan.whole(n)) and self._even(n):
            return origin, 0, extent
        low = b.minimum(b.maximum(b.sub(0, origin), 0), extent) if first < 0 else 0
        return origin, low, b.maximum(b.minimum(b.sub(axis.image, origin), extent), low)

    def windows(self, b: Builder, n: int, start: Index) -> Index:
        """Of a block, on one axis; known beforehand where blocks divide it."""
        windows, block = self.plan.axes[n].windows, self.plan.block[n]
        return block if self._even(n) else b.minimum(b.sub(windows, start), block)

    def _even(self, n: int) -> bool:
        """Whether all blocks of an axis are whole; without windows there may be one for the sums of x, which is not."""
        windows = self.plan.axes[n].windows
        return windows > 0 and windows % self.plan.block[n] == 0

    def _copy(self) -> Copy:
        plan = self.plan
        return Copy(
            isa=self.isa, compute=plan.compute, src_dtype=plan.problem.dtype, dst_dtype=plan.compute, source_order=True
        )

    def _pack_rows(self, b: Builder, at: Places, starts: list[Index]) -> None:
        plan = self.plan
        self._zero_border(b, at.scratch, plan.row_slab_size, self.row_tensor, starts)
        self._each_band(b, self.row_tensor, lambda bands: self._pack_row_bands(b, at, starts, bands))

    def pack_tile_rows(self, b: Builder, at: Places, starts: list[Index], row: Index, count: Index) -> None:
        """Some rows of the task, to where those of every tile are."""
        self._pack_row_bands(b, at, starts, {}, (b.add(self.first_row, row), count))

    def _pack_row_bands(
        self, b: Builder, at: Places, starts: list[Index], bands: Bands, some: tuple[Index, Index] | None = None
    ) -> None:
        """All rows of the task, or from a row on so many."""
        plan = self.plan
        strides, channel_step = plan.row_slab
        group, channel = self.tensor_strides[self.row_tensor][1:3]
        dims, source, target = self._box(b, starts, self.row_tensor, strides, bands)
        all_rows = self.first_row, b.minimum(b.sub(plan.row_count, self.first_row), plan.share_rows)
        first, count = some or all_rows
        source = b.add(source, b.dot([(self.bundle, plan.lane_groups * group), (first, channel)]))
        tensor = b.at(at.of(self.row_tensor), source, STORAGE[plan.problem.dtype])
        packed = b.at(at.scratch, target, self.kind)
        copy = self._copy()
        if plan.spread:
            groups = self._groups(b)
            if can_spread_by_vectors(copy, groups, plan.row_count, plan.lane_count, channel, group):
                spread_groups(
                    b, copy, tensor, packed, dims, groups=groups, channels=plan.row_count,
                    lanes_per_group=plan.lane_count, width=plan.width,
                )  # fmt: skip
                return
            dims += [Dim(groups, group, plan.lane_count), Dim(plan.lane_count, 0, 1)]
        whole = b.floor_div(count, plan.row_run) if plan.row_run < plan.share_rows else 0
        if whole != 0:
            runs = Dim(whole, plan.row_run * channel, plan.row_step)
            self.move(b, self.row_tensor, tensor, packed, [*dims, runs, Dim(plan.row_run, channel, channel_step)])
        rest = b.sub(count, b.mul(whole, plan.row_run))
        tensor = b.at(tensor, b.mul(whole, plan.row_run * channel), STORAGE[plan.problem.dtype])
        packed = b.at(packed, b.mul(whole, plan.row_step), self.kind)
        self.move(b, self.row_tensor, tensor, packed, [*dims, Dim(rest, channel, channel_step)])

    def _pack_lanes(self, b: Builder, at: Places, slab: Value, starts: list[Index]) -> None:
        self._zero_border(b, slab, self.plan.lane_slab_size, self.lane_tensor, starts)
        self._each_band(b, self.lane_tensor, lambda bands: self._pack_lane_bands(b, at, slab, starts, bands))

    def _pack_lane_bands(self, b: Builder, at: Places, slab: Value, starts: list[Index], bands: Bands) -> None:
        plan = self.plan
        group, channel = self.tensor_strides[self.lane_tensor][1:3]
        dims, source, target = self._box(b, starts, self.lane_tensor, plan.lane_slab, bands)
        source = b.add(source, b.mul(self.bundle, plan.lane_groups * group))

        def of_block(lane_block: Index, _: object) -> None:
            if plan.spread:
                lanes = [Dim(self._groups(b), group, plan.lane_count), Dim(plan.lane_count, channel, 1)]
            else:
                count = b.minimum(b.sub(plan.lane_count, b.mul(lane_block, plan.width)), plan.width)
                lanes = [Dim(count, channel, 1)]
            here = b.add(source, b.mul(lane_block, plan.width * channel))
            there = b.add(target, b.mul(b.sub(lane_block, self.first_block), plan.lane_slab_block))
            tensor = b.at(at.of(self.lane_tensor), here, STORAGE[plan.problem.dtype])
            self.move(b, self.lane_tensor, tensor, b.at(slab, there, self.kind), [*dims, *lanes])

        b.loop(self.first_block, self.last_block, of_block, name="pack")

    def _groups(self, b: Builder) -> Index:
        """Groups of the bundle that there are."""
        plan, groups = self.plan, self.plan.problem.groups
        if groups % plan.lane_groups == 0:
            return plan.lane_groups
        return b.minimum(b.sub(groups, b.mul(self.bundle, plan.lane_groups)), plan.lane_groups)

    def move(self, b: Builder, tensor: str, source: Value, slab: Value, dims: list[Dim]) -> None:
        """Numbers of a tensor to its slab; the first axes are those of windows."""
        self._copy().emit(b, source, slab, dims)

    def _rows_of_task(self, b: Builder, at: Places) -> Value:
        """Where the first row channel of a task lies, if it is read from there."""
        plan, tensor = self.plan, self.row_tensor
        _, group, channel, *_ = self.tensor_strides[tensor]
        place = b.dot([(self.bundle, plan.lane_groups * group), (self.first_row, channel)])
        return b.at(at.of(tensor), place, STORAGE[plan.problem.dtype])

    def _lanes_of_block(self, b: Builder, at: Places, lane_block: Index) -> Value:
        """Where the first lane of a block lies; that of the last one is early, so that vectors end with the tensor."""
        plan, tensor = self.plan, self.lane_tensor
        first = b.minimum(b.mul(lane_block, plan.width), plan.lane_count - plan.width)
        place = b.dot([(self.bundle, plan.lane_groups * self.tensor_strides[tensor][1]), (first, 1)])
        return b.at(at.of(tensor), place, STORAGE[plan.problem.dtype])

    def _zero_border(self, b: Builder, slab: Value, size: int, tensor: str, starts: list[Index]) -> None:
        """Taps side by side in a tile read around x: zeros, where a block of the innermost axis reaches there."""
        plan, n = self.plan, len(self.plan.axes) - 1
        if tensor == "x" and plan.axes[n].clipped and plan.tile_taps > 1 and not plan.in_segments:
            _, low, high = self._on_x(b, n, starts[n], 0)
            with b.when(b.compare("ne", b.sub(high, low), plan.x_extent[n])):
                emit_zero(b, self.isa, plan.compute, slab, size)
