"""Lowering of a ShiftedPairsPlan: that of a MatrixWeightsPlan with y in rows, and x in pairs, of either beginning."""

from __future__ import annotations

from convgrad.codegen.by_matrix.matrix_weights import MatrixSums, Run
from convgrad.codegen.copies.copying import Dim
from convgrad.codegen.copies.paired_windows import each_plane
from convgrad.codegen.ir import Builder
from convgrad.codegen.ir_module import Index, Value, constant, vector_of
from convgrad.codegen.isa.base import STORAGE
from convgrad.codegen.microkernels.reduction import Reduction
from convgrad.codegen.stages import Places
from convgrad.plan.by_matrix.matrix import DEPTH
from convgrad.plan.by_matrix.shifted_pairs import PAIR, ShiftedPairsPlan

HALF_WORD = 16  # bits


class ShiftedSums(MatrixSums):
    """The stages of a plan."""

    plan: ShiftedPairsPlan

    def _pack_rows(self, b: Builder, at: Places, starts: list[Index]) -> None:
        """Channels of y, windows side by side."""
        plan = self.plan
        group, channel = self.tensor_strides["y"][1:3]
        self.clear_behind(b, starts, at.scratch, self.row_slab_bytes // 4)
        strides, channel_step = plan.row_slab
        count = b.minimum(b.sub(plan.row_count, self.first_row), plan.share_rows)
        source = b.dot([(self.bundle, group), (self.first_row, channel)])
        source, dims = self.windows_of_y(b, starts, source, strides)
        tensor = b.at(at.of("y"), source, STORAGE[plan.problem.dtype])
        self.row_copy().emit(b, tensor, at.scratch, [Dim(count, channel, channel_step), *dims])

    def _pack_lanes(self, b: Builder, at: Places, slab: Value, starts: list[Index]) -> None:
        """Channels of x, two windows at a time, and again one window later."""
        plan, kind = self.plan, STORAGE[self.plan.problem.dtype]
        group, channel = self.tensor_strides["x"][1:3]
        self.clear_around(b, starts, slab, plan.odd_step // 2)
        pairs, planes, pitch = self.pair_copy(), plan.axes[-1].stride, plan.plane_strides[0][-1] * plan.width

        def of_block(source: Index, of_lanes: Value, lanes: Dim) -> None:
            def pack(place: Index, there: Index, dims: list[Dim], columns: Dim) -> None:
                def plane(r: Index, many: Index) -> None:
                    here = b.at(at.of("x"), b.add(place, b.mul(r, columns.src)), kind)
                    of_plane = b.at(of_lanes, b.add(there, b.mul(r, pitch)), "i16")
                    pairs.emit(b, here, of_plane, dims, Dim(many, planes * columns.src, 1), lanes)

                each_plane(b, columns.extent, planes, plane)

            self.parts_of_x(b, starts, source, [], plan.width, pack)

        self.each_lane_block(b, b.mul(self.bundle, group), channel, slab, of_block)
        if plan.odd_taps:
            self._pair_later(b, slab)

    def _pair_later(self, b: Builder, slab: Value) -> None:
        """Pairs of the second window of each pair and the first of the next."""
        plan, lanes = self.plan, self.isa.lanes("f32")
        words = vector_of(lanes, "i32")
        half = constant(words, HALF_WORD)
        blocks = b.sub(self.last_block, self.first_block)

        def of_piece(piece: Index, _: object) -> None:
            pairs = b.at(slab, b.mul(piece, plan.lane_piece), "i16")
            later = b.at(pairs, plan.odd_step, "i16")

            def some(n: Index, _: object) -> None:
                first = b.load(words, b.at(pairs, b.mul(n, PAIR), "i16"), 4)
                second = b.load(words, b.at(pairs, b.mul(b.add(n, plan.width), PAIR), "i16"), 4)
                both = b.binary("or", b.binary("lshr", first, half), b.binary("shl", second, half))
                b.store(both, b.at(later, b.mul(n, PAIR), "i16"), 4)

            b.loop(0, b.mul(blocks, plan.lane_slab_block // PAIR), some, step=lanes, name="later")

        b.loop(0, plan.pieces, of_piece, name="piece")

    def _multiply(self, b: Builder, at: Places, rows: Value, lanes: Value, starts: list[Index]) -> None:
        """Every block of tiles of the rows with all lanes, at every tap."""
        plan, outer = self.plan, len(self.plan.outer)
        of_row_axes, channel_step = plan.row_slab
        windows = Reduction(0, plan.depth // DEPTH, DEPTH, DEPTH * plan.width)

        def taps(n: int, place: Index, tap: Index, reductions: list[Reduction], at_tap: list[Index]) -> None:
            if n == len(plan.axes):
                lane_block, row = at_tap
                a, x = b.at(rows, b.mul(row, channel_step), "i16"), b.at(lanes, place, "i16")
                self.add_products(b, a, x, (lane_block, tap, row), [*reductions, windows])
                return
            axis = plan.axes[n]

            def of_tap(r: Index, _: object) -> None:
                following = b.add(b.mul(tap, axis.taps), r)
                if n >= outer:
                    taps(n + 1, b.add(place, self._shift(b, n, r)), following, reductions, at_tap)
                    return
                count = b.minimum(b.sub(axis.windows, starts[n]), plan.block[n])
                first, last = self.bounds(b, axis, starts[n], count, r)
                summed = Reduction(first, last, of_row_axes[n], axis.stride * plan.lane_slab[n])
                moved = b.add(place, b.mul(r, axis.dilation * plan.lane_slab[n]))
                taps(n + 1, moved, following, [*reductions, summed], at_tap)

            b.loop(0, axis.taps, of_tap, name="tap")

        def of_rows(channels: Run) -> None:
            def of_row(row: Index, _: object) -> None:
                def of_lanes(lane_block: Index, _: object) -> None:
                    place = b.mul(b.sub(lane_block, self.first_block), plan.lane_slab_block)
                    taps(0, place, 0, [], [lane_block, row])

                b.loop(self.first_block, self.last_block, of_lanes, name="lanes")

            b.loop(*channels, of_row, step=plan.row_channels, name="row")

        self.by_rows(b, (self.first_block, self.last_block), of_rows)

    def _shift(self, b: Builder, n: int, r: Index) -> Index:
        """How far tap r of a flat axis moves x: lines, and to the pairs that begin with odd windows."""
        plan, windows = self.plan, self.tap_place(b, n, r)
        if n < len(plan.axes) - 1 or not plan.odd_taps:
            return b.mul(windows, plan.width)
        odd = b.sub(windows, b.mul(b.floor_div(windows, PAIR), PAIR))
        return b.add(b.mul(b.sub(windows, odd), plan.width), b.mul(odd, plan.odd_step))
