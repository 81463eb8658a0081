"""Lowering of a RowProductsPlan: rows of images times rows of weights, piece by piece, and lanes added at the end."""

from __future__ import annotations

from collections.abc import Sequence

from convgrad.codegen.copies.copying import Copy
from convgrad.codegen.copies.squares import Dim
from convgrad.codegen.few_channels.lane_sums import lanes_added
from convgrad.codegen.general.data import DataStages
from convgrad.codegen.ir import Builder
from convgrad.codegen.ir_module import Index, Value, index, lanes_of
from convgrad.codegen.isa.base import STORAGE, shuffle
from convgrad.codegen.loops.lanes import lane_origin, weights_steps
from convgrad.codegen.microkernels.contract import Tile
from convgrad.codegen.microkernels.reduction import Reduction
from convgrad.codegen.module import round64
from convgrad.codegen.stages import Places
from convgrad.dtypes import SIZES
from convgrad.plan.in_place.row_products import RowProductsPlan
from convgrad.values import replace


class RowProductsStages(DataStages):
    """The stage of a plan. Scratch of a task holds its sums, tile by tile, if rows have several pieces.

    Behind them what is widened of the piece, if anything is: of all images, and of a block of rows of weights.
    """

    plan: RowProductsPlan

    @property
    def main_bytes(self) -> int:
        """Of the sums, and of what is widened."""
        return sum(self._parts())

    def _parts(self) -> list[int]:
        numbers = (self.plan.sums_size, *self.plan.widened_sizes)
        return [round64(SIZES[self.plan.compute] * each) for each in numbers]

    def _task(self, b: Builder, at: Places, task: Value) -> None:
        plan = self.plan
        _, images, group, share = b.split(task, plan.grid)
        first = b.mul(share, plan.blocks_per_task)
        last = b.minimum(b.add(first, plan.blocks_per_task), plan.lane_blocks)
        start, size = b.mul(images, plan.block[-1]), plan.tile[-1]
        tiles = b.minimum(b.floor_div(b.add(b.sub(plan.axes[-1].count, start), size - 1), size), plan.image_tiles)

        def piece(number: Index, ends: bool) -> None:
            if plan.widens_images:
                self._widen_images(b, at, (group, start), number, ends=ends)

            def block(n: Index, _: object) -> None:
                if plan.widens_weights:
                    self._widen_weights(b, at, (group, n), number, ends=ends)

                def tile(t: Index, _: object) -> None:
                    image = b.minimum(b.add(start, b.mul(t, size)), plan.axes[-1].count - size)
                    kept = b.add(b.mul(b.sub(n, first), plan.image_tiles), t)
                    self._tile(b, at, (group, n, image), (start, kept), number, ends=ends)

                b.loop(0, tiles, tile, name="images")
                self.look(b, at, (group, n), (start, number), ends=ends)

            b.loop(first, last, block, name="lanes")

        b.loop(0, plan.pieces - 1, lambda number, _: piece(number, False), name="piece")
        piece(plan.pieces - 1, True)

    def _tile(
        self, b: Builder, at: Places, which: tuple[Index, Index, Index], task: tuple[Index, Index], piece: Index, *,
        ends: bool,
    ) -> None:  # fmt: skip
        """A piece of the sums of some images and channels; `ends`, the last one, and what becomes of them.

        Of the `task`, where its images begin, and which of its tiles this is.
        """
        plan, p, (group, block, image), (start, kept) = self.plan, self.plan.problem, which, task
        tile = self._shape()
        a, x = self._images_at(b, at, group, image, piece), self._weights_at(b, at, group, block, piece)
        sums = b.at(at.scratch, b.mul(kept, len(tile.rows) * plan.width * plan.lanes), self.kind)
        steps = self.steps(ends=ends)
        first = self._begun(b, at, tile, (group, block), sums, piece)
        whole, near_a, near_x = tile, a, x
        if plan.widens_images:
            near = b.mul(b.sub(image, self._first_image(b, start)), self._long)
            near_a = b.at(self._widened(b, at)[0], near, self.kind)
            whole = replace(whole, a_dtype=plan.compute, rows=tuple(n * self._long for n in range(len(tile.rows))))
        if plan.widens_weights:
            near_x, columns = self._widened(b, at)[1], range(len(tile.columns))
            whole = replace(whole, b_dtype=plan.compute, columns=tuple(n * self._long for n in columns))
        values = whole.sum(b, near_a, near_x, first, [Reduction(0, steps, plan.in_vector, plan.in_vector)])
        if not ends:
            tile.store(b, sums, values)
            return
        if plan.rest:
            part = replace(
                tile, b_read=None, a_masks=(self.mask,) * len(tile.rows), b_masks=(self.mask,) * len(tile.columns)
            )
            beyond = steps * plan.in_vector
            a, x = (b.at(side, beyond, STORAGE[p.dtype]) for side in (a, x))
            values = part.sum(b, a, x, values, [])
        strides = p.strides[p.solved]
        place = b.add(lane_origin(plan, b, group, block, *strides[1:3]), b.mul(image, strides[-1]))
        self._finish(b, b.at(at.of(p.solved), place, STORAGE[p.out_dtype]), values)

    def _images_at(self, b: Builder, at: Places, group: Index, image: Index, piece: Index) -> Value:
        """The piece of a row of an image."""
        p = self.plan.problem
        strides = p.strides[p.given]
        row = b.dot([(group, strides[1]), (image, strides[-1])])
        return b.at(at.of(p.given), b.add(row, b.mul(piece, self._long)), STORAGE[p.dtype])

    def _weights_at(self, b: Builder, at: Places, group: Index, block: Index, piece: Index) -> Value:
        """The piece of the first row of weights of a block of lanes."""
        p = self.plan.problem
        row = lane_origin(self.plan, b, group, block, *weights_steps(self.plan)[:2])
        return b.at(at.w, b.add(row, b.mul(piece, self._long)), STORAGE[p.dtype])

    def _widened(self, b: Builder, at: Places) -> tuple[Value, Value]:
        """Where images and weights are once they are widened."""
        sums, images, _ = self._parts()
        return b.at(at.scratch, sums, "i8"), b.at(at.scratch, sums + images, "i8")

    def _first_image(self, b: Builder, start: Index) -> Index:
        """Of a task whose images begin there: where those that are left are fewer than a tile has, it begins early."""
        return b.minimum(start, self.plan.axes[-1].count - self.plan.tile[-1])

    def _widen_images(self, b: Builder, at: Places, which: tuple[Index, Index], piece: Index, *, ends: bool) -> None:
        (group, start), plan = which, self.plan
        first = self._first_image(b, start)
        count = b.minimum(b.sub(plan.axes[-1].count, first), plan.block[-1])
        source = self._images_at(b, at, group, first, piece)
        self._widen(b, source, self._widened(b, at)[0], count, self._image_step, ends=ends)

    def _widen_weights(self, b: Builder, at: Places, which: tuple[Index, Index], piece: Index, *, ends: bool) -> None:
        source = self._weights_at(b, at, *which, piece)
        step = weights_steps(self.plan)[1]
        self._widen(b, source, self._widened(b, at)[1], self.plan.width, step, ends=ends)

    def _widen(self, b: Builder, source: Value, target: Value, rows: Index, step: int, *, ends: bool) -> None:
        """Whole vectors of the piece of some rows."""
        plan = self.plan
        copy = Copy(isa=self.isa, compute=plan.compute, src_dtype=plan.problem.dtype, dst_dtype=plan.compute)
        along = Dim(self.steps(ends=ends) * plan.in_vector, 1, 1)
        copy.emit(b, source, target, [Dim(rows, step, self._long), along])

    @property
    def _image_step(self) -> int:
        """From a row of what is given to the next."""
        p = self.plan.problem
        return p.strides[p.given][-1]

    @property
    def _long(self) -> int:
        """Numbers of a piece, but for the last one."""
        return self.plan.piece * self.plan.in_vector

    def steps(self, *, ends: bool) -> int:
        """Vectors of a piece."""
        plan = self.plan
        return plan.vectors - plan.piece * (plan.pieces - 1) if ends else plan.piece

    @property
    def mask(self) -> Value:
        """Numbers of a row beyond whole vectors, a bit each."""
        return Value(f"i{self.plan.in_vector}", str(2**self.plan.rest - 1))

    def look(
        self, b: Builder, at: Places, which: tuple[Index, Index], piece: tuple[Index, Index], *, ends: bool
    ) -> None:  # fmt: skip
        """What else is done with a piece of the rows of a group and a block of lanes, and of a task's images.

        `piece` is where images begin, and its number.
        """

    def _shape(self) -> Tile:
        plan, p, step = self.plan, self.plan.problem, self._image_step
        rows, columns, column_step = plan.tile[-1], plan.width, weights_steps(self.plan)[1]
        return Tile(
            isa=self.isa, compute=plan.compute, a_vector=True, a_shared=True, ahead=plan.fetched_ahead,
            a_dtype=p.dtype, b_dtype=p.dtype,
            rows=tuple(i * step for i in range(rows)),
            columns=tuple(j * column_step for j in range(columns)),
            c_rows=tuple(range(0, rows * columns * plan.lanes, columns * plan.lanes)),
            c_columns=tuple(range(0, columns * plan.lanes, plan.lanes)),
        )  # fmt: skip

    def _begun(
        self, b: Builder, at: Places, tile: Tile, which: tuple[Index, Index], sums: Value, piece: Index
    ) -> list[Value]:  # fmt: skip
        """What a piece starts from: the bias in the first lane, or what the one before left."""

        def fresh() -> list[Value]:
            return self._start(b, at, tile, which)

        if isinstance(piece, int):
            return tile.load(b, sums) if piece else fresh()
        return b.one_of(b.compare("eq", piece, 0), fresh, lambda: tile.load(b, sums))

    def _start(self, b: Builder, at: Places, tile: Tile, which: tuple[Index, Index]) -> list[Value]:
        plan, p = self.plan, self.plan.problem
        zeros = tile.zeros()
        if not p.bias:
            return zeros
        first = lane_origin(plan, b, *which, plan.out_channels * p.bias_stride, p.bias_stride)
        numbers = [
            self.isa.load(b, p.dtype, b.at(at.bias, b.add(first, j * p.bias_stride), STORAGE[p.dtype]))
            for j in range(plan.width)
        ]
        starts = [b.emit(zeros[0].type, f"insertelement {zeros[0]}, {number}, i64 0") for number in numbers]
        return starts * len(tile.rows)

    def _finish(self, b: Builder, target: Value, sums: Sequence[Value]) -> None:
        """Lanes are added, those of as many images at once as fit a vector; channels lie side by side."""
        plan, p, width = self.plan, self.plan.problem, self.plan.width
        together, step = plan.lanes // width, p.strides[p.solved][-1]
        for row in range(0, plan.tile[-1], together):
            some = sums[row * width : (row + together) * width]
            added = lanes_added(b, some)
            lanes = lanes_of(added)
            for m in range(len(some) // width):
                moved = [min(lane + m * width, lanes - 1) for lane in range(lanes)]
                value = shuffle(b, added, added, moved) if m else added
                count = None if width == lanes else index(width)
                self.isa.store(b, p.out_dtype, value, b.at(target, (row + m) * step, STORAGE[p.out_dtype]), count)
