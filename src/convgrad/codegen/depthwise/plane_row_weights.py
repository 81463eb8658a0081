"""Lowering of a PlaneRowWeightsPlan: sums of windows, a vector for every tap, of rows that are read where they lie."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import product

from convgrad.codegen.copies.zeroing import emit_zero
from convgrad.codegen.depthwise.plane_reads import Columns, RowReads, ask_for
from convgrad.codegen.depthwise.plane_weights import PlaneSums
from convgrad.codegen.ir import Builder
from convgrad.codegen.ir_module import Index, Value
from convgrad.codegen.isa.base import BYTES, STORAGE
from convgrad.codegen.module import round64
from convgrad.codegen.stages import Places
from convgrad.plan.depthwise.plane_row_weights import PlaneRowWeightsPlan
from convgrad.plan.depthwise.plane_rows import BEFORE_ZEROS

Sums = dict[tuple[int, int], Value]  # of row and column of taps


class PlaneRowSums(PlaneSums):
    """The stages. Scratch memory of a task: a row of zeros, its sums by vectors, and their lanes added up."""

    plan: PlaneRowWeightsPlan

    def __init__(self, plan: PlaneRowWeightsPlan):
        PlaneSums.__init__(self, plan)
        p, inner = plan.problem, plan.axes[-1]
        every = sorted({offset + half for offset in plan.column_offsets for half in range(plan.together)})
        self.x_reads = RowReads(
            isa=self.isa, compute=plan.compute, dtype=p.dtype, step=inner.stride * plan.together, image=inner.image,
            offsets=tuple(every),
        )  # fmt: skip
        self.y_reads = RowReads(
            isa=self.isa, compute=plan.compute, dtype=p.dtype, step=plan.together, image=inner.windows,
            offsets=tuple(range(plan.together)),
        )  # fmt: skip
        self.in_turn = self.isa.assembly and self.isa.few_registers  # rows of x, or LLVM reads all first
        self.halves = range(plan.together)  # of a lane, that are multiplied one after the other
        self.x_strides, self.y_strides = ((s[0], *s[3:]) for s in (p.x_strides, p.y_strides))

    def _slabs_end(self) -> int:
        return round64(self.plan.slab_bytes)

    def _clear_slabs(self, b: Builder, at: Places) -> None:
        self.zeros = b.at(at.scratch, BEFORE_ZEROS, "i8")
        emit_zero(b, self.isa, self.plan.compute, self.zeros, self.plan.axes[-1].image)

    def _plane(self, b: Builder, at: Places, group: Index, starts: list[Index], sums: Value) -> None:
        """What a block of a plane adds to the sums of its group."""
        plan, p = self.plan, self.plan.problem
        self.starts = starts
        self.counts = [
            b.minimum(b.sub(axis.windows, start), block)
            for axis, start, block in zip(plan.axes, starts, plan.block, strict=True)
        ]
        self.x, self.y = (b.at(at.of(name), b.mul(group, p.strides[name][1]), STORAGE[p.dtype]) for name in ("x", "y"))
        outer = len(plan.axes) - 2

        def nest(n: int, taps: list[Index], number: Index) -> None:
            """Taps of the axes around a row."""
            if n == outer:
                self._tiles(b, taps, number, sums)
                return
            axis = plan.axes[n]
            b.loop(0, axis.taps, lambda r, _: nest(n + 1, [*taps, r], b.add(b.mul(number, axis.taps), r)), name="tap")

        nest(0, [], 0)

    def _tiles(self, b: Builder, taps: list[Index], number: Index, sums: Value) -> None:
        """Some rows of taps after the other, those before them being given, over all windows of the block."""
        plan, (row, inner) = self.plan, self.plan.axes[-2:]
        first = 0
        for tap_rows, many in plan.tap_pieces:
            for _ in range(many):
                place = b.mul(b.add(b.mul(number, row.taps), first), inner.taps * plan.lanes)
                here = b.at(sums, place, self.kind)
                spots = {
                    (r, c): b.at(here, (r * inner.taps + c) * plan.lanes, self.kind)
                    for r in range(tap_rows) for c in range(inner.taps)
                }  # fmt: skip
                now = {tap: self.isa.load(b, plan.compute, spot, plan.lanes) for tap, spot in spots.items()}
                now = self._outer(b, taps, (0, 0), range(first, first + tap_rows), now)
                for tap, spot in spots.items():
                    self.isa.store(b, plan.compute, now[tap], spot)
                first += tap_rows

    def _outer(self, b: Builder, taps: list[Index], bases: tuple[Index, Index], rows: range, sums: Sums) -> Sums:
        """Windows of the axes around a row that meet the image at these taps; offsets in x and y so far."""
        plan, n = self.plan, len(self.plan.axes) - 2 - len(taps)
        if not taps:
            return self._rows(b, bases, rows, sums)
        axis, (tap, *others) = plan.axes[n], taps

        def window(j: Index, now: Sums) -> Sums:
            j = b.add(self.starts[n], j)
            place = b.add(b.mul(j, axis.stride), b.sub(b.mul(tap, axis.dilation), axis.low))
            there = (
                b.add(bases[0], b.mul(place, self.x_strides[n])), b.add(bases[1], b.mul(j, self.y_strides[n]))
            )  # fmt: skip
            if not axis.clipped:
                return self._outer(b, others, there, rows, now)
            then = b.one_of(
                b.compare("ult", place, axis.image),
                lambda: list(self._outer(b, others, there, rows, now).values()),
                lambda: list(now.values()),
            )
            return dict(zip(now, then, strict=True))

        return b.loop(0, self.counts[n], window, carried=sums, name="windows")

    def _rows(self, b: Builder, bases: tuple[Index, Index], taps: range, sums: Sums) -> Sums:
        """Tiles of `rows` rows of windows, and one of what is left."""
        plan, (row, inner) = self.plan, self.plan.axes[-2:]
        start, rest = self.starts[-2], row.windows % plan.rows
        stop = b.add(start, self.counts[-2])
        whole = b.minimum(stop, row.windows - rest)

        def of(rows: int):
            def tile(j: Index, now: Sums) -> Sums:
                count, least = -(-inner.windows // plan.together), inner.windows // plan.together
                for columns in self.x_reads.columns(count, least):
                    last = columns.first + columns.many * plan.lanes
                    now = b.loop(
                        columns.first, last,
                        lambda i, now, columns=columns: self._tile_sums(b, bases, taps, rows, j, i, columns, now),
                        step=plan.lanes, carried=now, name="column",
                    )  # fmt: skip
                return now

            return tile

        sums = b.loop(start, whole, of(plan.rows), step=plan.rows, carried=sums, name="row")
        return b.loop(whole, stop, of(rest), step=plan.rows, carried=sums, name="rest") if rest else sums

    def _tile_sums(
        self, b: Builder, bases: tuple[Index, Index], taps: range, rows: int, j: Index, i: Index, columns: Columns,
        sums: Sums,
    ) -> Sums:  # fmt: skip
        """Row by row of x, each vector of it with all rows of windows that meet it."""
        plan, row, kind = self.plan, self.plan.axes[-2], STORAGE[self.plan.problem.dtype]
        sums, first = dict(sums), b.mul(j, row.stride)
        windows: dict[int, dict[int, Value]] = {}

        def window(n: int, half: int) -> Value:
            if n not in windows:
                place = b.add(bases[1], b.mul(b.add(j, n), self.y_strides[-2]))
                there = b.at(self.y, place, kind)
                if plan.fetches_ahead and taps.start == 0:
                    self._fetch(b, "y", there, i)
                windows[n] = self.read_y(b, there, i, columns, taps.start)
            return windows[n][half]

        offsets = plan.row_offsets(rows, taps.start, len(taps))
        new = range(max(offsets) + 1 - rows * row.stride, max(offsets) + 1)  # that no tile before this one met
        for offset, met in offsets.items():
            if self.in_turn:
                sums = {tap: b.here(total) for tap, total in sums.items()}
            place = b.add(first, offset)
            there = b.at(self.x, b.add(bases[0], b.mul(place, self.x_strides[-2])), kind)
            if row.clipped:
                there = b.select(b.compare("ult", place, row.image), there, self.zeros)
            if plan.fetches_ahead and taps.start == 0 and offset in new:
                self._fetch(b, "x", there, i)
            vectors = self.read_x(b, there, i, columns, [taps.start + r for _, r in met])
            for (c, at), half in product(enumerate(plan.column_offsets), self.halves):
                for n, r in met if at + half in vectors else ():
                    sums[r, c] = self.adds(b, vectors[at + half], window(n, half), sums[r, c])
        return sums

    def adds(self, b: Builder, x: Value, y: Value, total: Value) -> Value:
        """Products of a vector of x and one of y."""
        return self.isa.multiply_add(b, x, y, total)

    def read_x(self, b: Builder, row: Value, i: Index, columns: Columns, taps: Sequence[int]) -> dict[int, Value]:
        """Vectors of a row of x, by offset; it is met at these rows of taps."""
        return self.x_reads.vectors(b, row, i, columns)

    def read_y(self, b: Builder, row: Value, i: Index, columns: Columns, first: int) -> dict[int, Value]:
        """Vectors of a row of windows, for a tile whose first row of taps is this one."""
        return self.y_reads.vectors(b, row, i, columns)

    def _fetch(self, b: Builder, name: str, row: Value, i: Index) -> None:
        """Of a row of a tensor what lies by windows i on some tiles further on, into L2."""
        plan = self.plan
        size = BYTES[plan.problem.dtype] * plan.together * (plan.axes[-1].stride if name == "x" else 1)
        ask_for(b, row, plan.bytes_ahead(name), b.mul(i, size), size * plan.lanes)
