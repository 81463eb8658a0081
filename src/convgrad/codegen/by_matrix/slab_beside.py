"""Packing of a slab beside products: what the next tiles meet, while a matrix unit is busy with those before."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import product
from math import prod

from convgrad.codegen.copies.asking import PLACES_AHEAD
from convgrad.codegen.copies.halves import HalvesCopy
from convgrad.codegen.ir import Builder
from convgrad.codegen.ir_module import Index, Value, index
from convgrad.codegen.isa.base import BYTES
from convgrad.plan.by_matrix.matrix import COLUMNS, DEPTH, MatrixDataPlan
from convgrad.plan.costs import LINE
from convgrad.plan.general.data import KEPT_BYTES


class SlabBeside:
    """The slab of a task: lines of 32 channels in the order of positions, each with zeros where there is no image.

    Made at the start of a function, since it counts on the stack how many lines there are.
    """

    def __init__(self, b: Builder, plan: MatrixDataPlan):
        self._plan, self._done = plan, b.emit("ptr", "alloca i64")
        self._lines = prod(plan.slab_extent) * plan.deep_blocks

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
        """Of each position: how many bytes from the first it is in the tensor, and its place on the checked axes."""
        plan = self._plan
        places = list(product(*map(range, plan.slab_extent)))
        places += places[-1:] * PLACES_AHEAD
        return [
            entry
            for place in places
            for entry in (
                sum(at * step for at, step in zip(place, self._strides, strict=True)) * self._size,
                *(place[n] for n in self._checked),
            )
        ]

    def up_to(self, b: Builder, place: Index) -> None:
        """What is missing of all positions before one."""
        plan, done = self._plan, b.load("i64", self._done, 8)
        wanted = b.minimum(b.mul(place, plan.deep_blocks), self._lines)
        b.loop(done, wanted, lambda line, _: self._line(b, line), name="missing")
        b.store(index(b.maximum(done, wanted)), self._done, 8)

    def after(self, b: Builder, number: int) -> None:
        """After a product: its share of lines, if there are any left."""
        count, done = self._plan.lines_beside[number], b.load("i64", self._done, 8)
        if not count:
            return
        with b.when(b.compare("slt", done, self._lines)):
            b.loop(
                0, count, lambda i, _: self._line(b, b.minimum(b.add(done, i), self._lines - 1)), name="beside"
            )  # the last one again where there are no more
            b.store(index(b.add(done, count)), self._done, 8)

    def _line(self, b: Builder, line: Index) -> None:
        """32 channels of a position, as pieces."""
        plan, copy, entry = self._plan, self._copy, 1 + len(self._checked)
        place = b.floor_div(line, plan.deep_blocks)
        deep = b.sub(line, b.mul(place, plan.deep_blocks))
        of_channels = b.mul(deep, DEPTH * self._size)
        at = b.mul(place, entry)
        here = b.beyond(self._tensor, b.add(b.lookup(self._table, at), of_channels))
        mask = self._mask(b, at)
        halves = [
            copy.copy.isa.load(b, plan.problem.dtype, b.beyond(here, half * COLUMNS * self._size), COLUMNS, mask=mask)
            for half in range(2)
        ]
        steps, of_block = plan.slab_strides
        there = b.add(b.mul(place, steps[-1]), b.mul(deep, of_block))
        copy.store(b, halves[0], halves[1], b.at(self._slab, there, "i16"))
        if plan.problem.bytes_of(plan.problem.given) > KEPT_BYTES:
            later = b.lookup(self._table, b.add(at, PLACES_AHEAD * entry))
            for ahead in range(0, DEPTH * self._size, LINE):
                b.prefetch(b.beyond(self._tensor, b.add(b.add(later, of_channels), ahead)), keep=2)

    def _mask(self, b: Builder, at: Index) -> Value | None:
        """Every lane of a position in the image, none of others; nothing if all are."""
        inside: Value | None = None
        for number, (n, origin) in enumerate(zip(self._checked, self._origins, strict=True)):
            there = b.add(origin, b.lookup(self._table, b.add(at, 1 + number)))
            met = b.compare("ult", there, self._plan.axes[n].in_extent)
            inside = met if inside is None else b.both(inside, met)
        if inside is None:
            return None
        return b.emit("i16", f"select {inside}, i16 -1, i16 0")
