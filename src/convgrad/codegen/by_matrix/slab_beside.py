"""Packing of a slab beside products: what the next tiles meet, while a matrix unit is busy with those before."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import product
from math import prod

from convgrad.codegen.copies.halves import HalvesCopy
from convgrad.codegen.ir import Builder
from convgrad.codegen.ir_module import Index, Value, index
from convgrad.codegen.isa.base import BYTES
from convgrad.plan.by_matrix.matrix import COLUMNS, DEPTH, MatrixDataPlan
from convgrad.plan.costs import LINE
from convgrad.plan.general.data import KEPT_BYTES
from convgrad.plan.strides import row_major

RUNS_AHEAD = 2  # of all channels, that are asked for


class SlabBeside:
    """The slab of a task: runs of a few positions and 32 channels, each with zeros where there is no image.

    Made at the start of a function, since it counts on the stack how many runs there are. All blocks of channels of a
    run of positions come before the next ones.
    """

    def __init__(self, b: Builder, plan: MatrixDataPlan):
        self._plan, self._done = plan, b.emit("ptr", "alloca i64")

    def begin(self, b: Builder, copy: HalvesCopy, tensor: Value, slab: Value, origins: Sequence[Index]) -> None:
        """An empty slab of what a tensor has from some place of each axis on, perhaps before its first one."""
        plan, p = self._plan, self._plan.problem
        batch, _, _, *spatial = p.strides[p.given]
        self._copy, self._slab, self._strides = copy, slab, (batch, *spatial)
        self._size = BYTES[p.dtype]
        first = b.dot([(origin, step * self._size) for origin, step in zip(origins, self._strides, strict=True)])
        self._tensor = b.beyond(tensor, first)
        self._checked = [n for n in range(len(plan.axes)) if self._leaves_image(n)]
        self._origins = [origins[n] for n in self._checked]
        self._table = b.module.table(self._entries())
        b.store(index(0), self._done, 8)

    def _leaves_image(self, n: int) -> bool:
        """Whether some slab has positions of an axis that the image has not."""
        plan, axis = self._plan, self._plan.axes[n]
        last = max(0, axis.count - 1) // plan.block[n] * plan.block[n] * axis.in_step
        return plan.slab_start[n] < 0 or last + plan.slab_start[n] + plan.slab_extent[n] > axis.in_extent

    def _entries(self) -> list[int]:
        """Of each run: its first position, how many bytes it is from the first of all, places on the checked axes."""
        plan = self._plan
        *outer, inner = plan.slab_extent
        starts = [min(start, inner - plan.run_beside) for start in range(0, inner, plan.run_beside)]
        runs = [(*row, start) for row in product(*map(range, outer)) for start in starts]
        runs += runs[-1:] * RUNS_AHEAD
        positions = row_major(plan.slab_extent, 1)
        return [
            entry
            for run in runs
            for entry in (
                sum(at * step for at, step in zip(run, positions, strict=True)),
                sum(at * step for at, step in zip(run, self._strides, strict=True)) * self._size,
                *(run[n] for n in self._checked),
            )
        ]

    def up_to(self, b: Builder, place: Index) -> None:
        """What is missing of all positions before one."""
        plan, done = self._plan, b.load("i64", self._done, 8)
        inner = plan.slab_extent[-1]
        last = b.sub(b.maximum(b.minimum(place, prod(plan.slab_extent)), 1), 1)  # of a tile that meets zeros alone, too
        row, last = b.split(last, (-1, inner))
        of_row = -(-inner // plan.run_beside)
        before = b.add(b.mul(row, of_row), b.split(last, (-1, plan.run_beside))[0])
        wanted = b.mul(b.add(before, 1), plan.deep_blocks)
        b.loop(done, wanted, lambda run, _: self._run(b, run), name="missing")
        b.store(index(b.maximum(done, wanted)), self._done, 8)

    def after(self, b: Builder, number: int) -> None:
        """After a product: its share of runs, if there are any left."""
        count, done = self._plan.beside_products[number], b.load("i64", self._done, 8)
        if not count:
            return
        following = b.minimum(b.add(done, count), self._plan.runs_beside)
        b.loop(done, following, lambda run, _: self._run(b, run), name="beside")
        b.store(index(following), self._done, 8)

    def _run(self, b: Builder, number: Index) -> None:
        """32 channels of some positions, as pieces."""
        plan, size = self._plan, self._size
        number, deep = b.split(number, (-1, plan.deep_blocks))
        at = b.mul(number, 2 + len(self._checked))
        of_channels = b.mul(deep, DEPTH * size)
        here = b.beyond(self._tensor, b.add(b.lookup(self._table, b.add(at, 1)), of_channels))
        there = b.add(b.mul(b.lookup(self._table, at), DEPTH), b.mul(deep, plan.slab_strides[1]))
        target = b.at(self._slab, there, "i16")
        outer, inner = self._inside(b, b.add(at, 2))
        for n in range(plan.run_beside):
            line = b.beyond(here, n * self._strides[-1] * size)
            self._line(b, line, b.at(target, n * DEPTH, "i16"), self._mask(b, outer, inner, n))
        if plan.problem.bytes_of(plan.problem.given) > KEPT_BYTES:
            ahead = b.add(at, RUNS_AHEAD * (2 + len(self._checked)) + 1)
            later = b.beyond(self._tensor, b.add(b.lookup(self._table, ahead), of_channels))
            for n in range(plan.run_beside):
                for byte in range(0, DEPTH * size, LINE):
                    b.prefetch(b.beyond(later, n * self._strides[-1] * size + byte), keep=2)

    def _line(self, b: Builder, here: Value, there: Value, mask: Value | None) -> None:
        """32 channels of a position."""
        numbers, dtype = self._copy.copy.isa, self._plan.problem.dtype
        first, second = (
            numbers.load(b, dtype, b.beyond(here, half * COLUMNS * self._size), COLUMNS, mask=mask) for half in range(2)
        )
        self._copy.store(b, first, second, there)

    def _inside(self, b: Builder, at: Index) -> tuple[Value | None, Index | None]:
        """Whether a run is in the image on all axes but the last, and its place on that; nothing if all are."""
        outer: Value | None = None
        for number, (n, origin) in enumerate(zip(self._checked, self._origins, strict=True)):
            place = b.add(origin, b.lookup(self._table, b.add(at, number)))
            if n == len(self._plan.axes) - 1:
                return outer, place
            met = b.compare("ult", place, self._plan.axes[n].in_extent)
            outer = met if outer is None else b.both(outer, met)
        return outer, None

    def _mask(self, b: Builder, outer: Value | None, inner: Index | None, n: int) -> Value | None:
        """Every lane of position n of a run, if it is in the image, or none; nothing if all are."""
        inside = outer
        if inner is not None:
            met = b.compare("ult", b.add(inner, n), self._plan.axes[-1].in_extent)
            inside = met if outer is None else b.both(outer, met)
        return b.emit("i16", f"select {inside}, i16 -1, i16 0") if inside is not None else None
