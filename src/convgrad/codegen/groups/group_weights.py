"""Lowering of a GroupWeightsPlan: slabs of vectors of groups, and tiles of taps by channels of y."""

from __future__ import annotations

from collections.abc import Iterator

from convgrad.codegen.copies.copying import Dim
from convgrad.codegen.copies.interleave import pick
from convgrad.codegen.copies.zeroing import Range, emit_zero, emit_zero_outside
from convgrad.codegen.general.weights import SumsStage
from convgrad.codegen.ir import Builder
from convgrad.codegen.ir_module import Index, Value
from convgrad.codegen.isa.base import BYTES, STORAGE
from convgrad.codegen.loops.ahead import Ahead, Walk
from convgrad.codegen.loops.weights_ahead import MOST_LINES, WeightsAhead
from convgrad.codegen.microkernels.contract import Tile
from convgrad.codegen.microkernels.reduction import Groups, Reduction
from convgrad.codegen.stages import Places
from convgrad.plan.groups.group_weights import GroupWeightsPlan
from convgrad.plan.strides import row_major


class GroupsAhead(WeightsAhead):
    """What tiles fetch ahead: of a bundle, whose groups lie side by side."""

    plan: GroupWeightsPlan

    def of_tile(self, b: Builder, number: Index) -> list[Walk]:
        """What a tile of the block does, by its number: some of x, and some of y."""
        plan, tiles = self.plan, self.plan.vectors * len(self.plan.tiles)
        boxes = tuple(self._lines(tensor, channels) for tensor, _, channels in self._operands(b))
        return [Ahead(boxes, plan.tile_steps, tiles, MOST_LINES).walk(b, number, self.bases)]

    def _operands(self, b: Builder) -> Iterator[tuple[str, Index, int]]:
        for tensor in "xy":
            yield tensor, 0, self.plan.lane_groups * self.plan.problem.shapes[tensor][2]


class GroupSums(SumsStage):
    """The stages of a plan."""

    plan: GroupWeightsPlan
    ahead: GroupsAhead | None

    def task(self, b: Builder, at: Places, task: Value) -> None:
        """As for any WeightsPlan, with zeros around x, where no block of an axis that has but one writes anything."""
        emit_zero(b, self.isa, self.plan.compute, at.scratch, self.slab_bytes // BYTES[self.plan.compute])
        super().task(b, at, task)

    def _ahead(self) -> GroupsAhead:
        return GroupsAhead(self.plan, self.bundle, 0, 0)

    # --- packing

    def _pack_rows(self, b: Builder, at: Places, starts: list[Index]) -> None:
        plan = self.plan
        dims, source, target = self._box(b, starts, "y", plan.row_slab[0], {})
        self._pack(b, "y", b.at(at.of("y"), source, STORAGE[plan.problem.dtype]), b.at(at.scratch, target, self.kind),
                   dims, plan.row_vector)  # fmt: skip

    def _pack_lanes(self, b: Builder, at: Places, slab: Value, starts: list[Index]) -> None:
        plan = self.plan
        ranges = [self._range(b, n, start) for n, start in enumerate(starts)]
        if not all(of.full for of in ranges):

            def clear(v: Index, _: object) -> None:
                place = b.at(slab, b.mul(v, plan.lane_vector), self.kind)
                emit_zero_outside(b, self.isa, plan.compute, place, ranges)

            b.loop(0, plan.vectors, clear, name="zeros")
        dims, source, target = self._box(b, starts, "x", plan.lane_slab, {})
        self._pack(b, "x", b.at(at.of("x"), source, STORAGE[plan.problem.dtype]), b.at(slab, target, self.kind),
                   dims, plan.lane_vector)  # fmt: skip

    def _range(self, b: Builder, n: int, start: Index) -> Range:
        """Which elements of the slab on an axis x has; others are to be zeros, where other blocks left their own."""
        plan, axis = self.plan, self.plan.axes[n]
        _, low, high = self._on_x(b, n, start, 0)
        left = axis.clipped and axis.windows > plan.block[n]
        return Range(low, high, plan.x_extent[n] if left else None, plan.lane_slab[n])

    def _pack(self, b: Builder, tensor: str, source: Value, slab: Value, dims: list[Dim], step: int) -> None:
        """All groups of the bundle, a vector of them after the other; those of the last one may be fewer."""
        plan, kind = self.plan, STORAGE[self.plan.problem.dtype]
        group, channel = self.tensor_strides[tensor][1:3]
        channels = plan.problem.shapes[tensor][2]
        many = plan.vector_groups
        source = b.at(source, b.mul(self.bundle, plan.lane_groups * group), kind)
        groups = self._groups(b)
        whole = b.floor_div(groups, many)
        inner = [Dim(many, group, channels), Dim(channels, channel, 1)]
        self.move(b, tensor, source, slab, [*dims, Dim(whole, many * group, step), *inner])
        if plan.problem.groups % many:
            rest = Dim(b.sub(groups, b.mul(whole, many)), group, channels)
            source = b.at(source, b.mul(whole, many * group), kind)
            self.move(b, tensor, source, b.at(slab, b.mul(whole, step), self.kind), [*dims, rest, inner[1]])

    # --- arithmetic

    def _sweep(self, b: Builder, rows: Value, lanes: Value, lane_block: Index, starts: list[Index]) -> None:
        """Tile after tile for each vector of groups, which stays in L1 for all of them."""
        plan = self.plan
        windows = [
            Reduction(0, self.windows(b, n, start), y, axis.stride * x, pace)
            for n, (axis, start, y, x, pace) in enumerate(
                zip(plan.axes, starts, plan.row_slab[0], plan.lane_slab, row_major(plan.block, 1), strict=True)
            )
        ]

        def of_vector(v: Index, _: object) -> None:
            y, x = (
                b.at(slab, b.mul(v, step), self.kind)
                for slab, step in ((rows, plan.row_vector), (lanes, plan.lane_vector))
            )
            sums = b.at(self.sums_at(b, lane_block), b.mul(v, plan.lanes), self.kind)
            for n, (taps, channels) in enumerate(plan.tiles):
                walks = self.ahead.of_tile(b, b.add(b.mul(v, len(plan.tiles)), n)) if self.ahead else []
                self._tile_of(taps, channels).emit(b, y, x, sums, windows, None, walks=walks)

        groups = self._groups(b)
        b.loop(0, b.floor_div(b.add(groups, plan.vector_groups - 1), plan.vector_groups), of_vector, name="vector")

    def _tile(self) -> Tile:
        return self._tile_of(*self.plan.tiles[0])

    def _tile_of(self, taps: range, channels: range) -> Tile:
        """Rows are numbers of y, columns what taps meet."""
        plan = self.plan
        places = plan.tap_places
        return Tile(
            isa=self.isa, compute=plan.compute, a_vector=True, a_shared=True, a_read=self._picked,
            rows=tuple(channels), c_rows=tuple(k * plan.width for k in channels),
            columns=tuple(places[tap] for tap in taps),
            c_columns=tuple(tap * plan.sum_rows * plan.width for tap in taps),
        )  # fmt: skip

    def _picked(self, b: Builder, y: Value, number: int) -> Value:
        """The vector of one channel of y at a window, a number for all lanes of a group."""
        plan = self.plan
        wanted = Groups(plan.row_count, plan.lane_count).sources(plan.lanes, number)
        starts = range(0, plan.row_numbers, plan.lanes)
        parts = [self.isa.load(b, plan.compute, b.at(y, start, self.kind), plan.lanes) for start in starts]
        return self.isa.pick(b, parts[0], wanted) if len(parts) == 1 else pick(b, parts, wanted)
