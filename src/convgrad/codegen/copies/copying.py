"""Copies between a tensor in the caller's strides and a packed buffer, either way, converting as they go.

Which axis is contiguous where decides how: the same axis on both sides is copied by vectors, two different axes are
transposed in registers, and anything else goes number by number. Where src has every second, third or fourth number
of an axis, whole vectors are loaded and what is wanted is picked. Nothing is written outside the box, nor read beyond
its ends.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from itertools import permutations
from typing import TYPE_CHECKING, TypeGuard

from convgrad.codegen.copies.contiguous import LEAST_RUN, ContiguousRuns
from convgrad.codegen.copies.interleave import FEW_PLANES, MOST_PLANES, factors, load_every, overlapping
from convgrad.codegen.copies.squares import Dim, Squares
from convgrad.codegen.copies.turned_squares import TurnedSquares
from convgrad.codegen.ir import Builder
from convgrad.codegen.ir_module import Index, Value, index
from convgrad.codegen.isa.base import STORAGE, Isa, shuffle
from convgrad.codegen.outputs.runs import Run, rounds_together
from convgrad.plan.costs import MOST_SKIPPED
from convgrad.values import frozen

if TYPE_CHECKING:
    from convgrad.codegen.copies.interleaved_copies import InterleavedCopy
    from convgrad.codegen.copies.splitting import Pieces


@frozen(kw_only=True)
class Copy:
    """The two sides of a copy. `accumulate` adds to what dst holds, before the one rounding.

    With `pieces`, dst holds bf16 and gets the pieces of every number. Of `ordinary` numbers none is denormal, and what
    becomes of a NaN does not matter: the processor may round them in its own way.
    """

    isa: Isa
    compute: str
    src_dtype: str
    dst_dtype: str
    accumulate: bool = False
    pieces: Pieces | None = None
    ordinary: bool = False
    past_caches: bool = False  # whole lines of dst go to memory at once; see `Isa.end_streams`
    of_results: bool = False  # dst is what the caller gets, in his strides, and src is near
    source_order: bool = False  # visit src from one end to the other, rather than dst

    def emit(self, b: Builder, src: Value, dst: Value, dims: Sequence[Dim]) -> None:
        """dst[Σ i · dst step] = src[Σ i · src step] over the box."""
        dims = self.merged(b, dims)
        along_dst = next((d for d in dims if d.dst == 1), None)
        along_src = next((d for d in dims if d.src == 1), None) or nearly_contiguous(dims, along_dst)
        if along_dst is not None and along_dst is along_src:
            runs = ContiguousRuns(self)
            inner, body = [along_dst], runs.vectors if along_dst.src == 1 else runs.every
        elif along_dst is not None and along_dst.src == 0 and not self.accumulate:
            inner, body = [along_dst], ContiguousRuns(self).fill
        elif along_dst is not None and along_src is not None:
            inner, body = [along_dst, along_src], self._squares(along_dst, along_src).emit
            one, other = along_dst.extent, along_src.extent
            if along_src.src == 1 and self.interleaves(one, other) and along_src.dst == one:
                body = self._interleaved().interleave_axes
            elif along_src.src == 1 and self.interleaves(other, one) and along_dst.src == other:
                body = self._interleaved().deinterleave_axes
        else:
            inner, body = [], self.scalar
        outer = [d for d in dims if all(d is not other for other in inner)]
        self.nest(b, src, dst, self.in_order(outer), lambda s, d: body(b, s, d, *inner))

    def _squares(self, across: Dim, along: Dim) -> Squares:
        """Of rows that are rounded two at a time, if they may be and there are enough."""
        few_rows = isinstance(across.extent, int) and across.extent <= self.isa.lanes(self.compute)
        if self.rounds_by_processor and along.src == 1 and not few_rows:
            from convgrad.codegen.copies.rounded_squares import RoundedSquares

            return RoundedSquares(self)
        return TurnedSquares(self)

    def _interleaved(self) -> InterleavedCopy:
        from convgrad.codegen.copies.interleaved_copies import InterleavedCopy

        return InterleavedCopy(self)

    def emit_planes(
        self, b: Builder, src: Value, dst: Value, dims: Sequence[Dim], inner: Dim, planes: int, pitch: int
    ) -> None:
        """Like `emit`, with element q of the inner axis at (q mod planes) · pitch + q div planes in dst."""
        if inner.src == 1:
            vectors = self._interleaved()
            self.nest(b, src, dst, dims, lambda s, d: vectors.deinterleave(b, s, d, planes, pitch, inner.extent))
            return

        def plane(r: Index, _: object) -> None:
            count = b.floor_div(b.add(b.sub(inner.extent, r), planes - 1), planes)
            source, target = self.src_at(b, src, b.mul(r, inner.src)), self.dst_at(b, dst, b.mul(r, pitch))
            self.emit(b, source, target, [*dims, Dim(count, inner.src * planes, 1)])

        b.loop(0, planes, plane, name="plane")

    def emit_phases(
        self, b: Builder, src: Value, dst: Value, dims: Sequence[Dim], inner: Dim, planes: int, pitch: int
    ) -> None:
        """Like `emit`, with element q of the inner axis at (q mod planes) · pitch + q div planes in src."""
        beside = next((d for d in dims if d.dst == 1 and few(d.extent)), Dim(1, 0, 1))
        assert isinstance(beside.extent, int)
        if inner.dst == beside.extent and planes * beside.extent <= MOST_PLANES:  # phases, of a few channels each
            axes, vectors = [(planes, pitch), (beside.extent, beside.src)], self._interleaved()
            run, outer = b.mul(inner.extent, beside.extent), [d for d in dims if d is not beside]
            self.nest(b, src, dst, outer, lambda s, d: vectors.interleave(b, s, d, axes, run))
            return

        def plane(r: Index, _: object) -> None:
            count = b.floor_div(b.add(b.sub(inner.extent, r), planes - 1), planes)
            source, target = self.src_at(b, src, b.mul(r, pitch)), self.dst_at(b, dst, b.mul(r, inner.dst))
            self.emit(b, source, target, [*dims, Dim(count, 1, inner.dst * planes)])

        b.loop(0, planes, plane, name="plane")

    def interleaves(self, planes: Index, numbers: Index = 0) -> TypeGuard[int]:
        """Whether planes are few enough: no more than registers hold twice, if they go a few at a time.

        Else each vector of the run is picked from all of them. Of planes of so few `numbers` that they are one vector
        and a part, or less, parts of squares take less.
        """
        if not isinstance(planes, int) or few(planes):
            return few(planes)
        lanes = self.isa.lanes(self.compute)
        short = isinstance(numbers, int) and numbers < 2 * lanes and numbers % lanes > 0
        room = self.isa.registers >= 2 * MOST_PLANES and 1 < planes < lanes
        return room and not short and max(factors(planes)) <= FEW_PLANES

    @property
    def own_squares(self) -> bool:
        """Whether squares are written out where they are turned: what becomes of their numbers is of that place."""
        return self.pieces is not None

    @property
    def converts(self) -> bool:
        """Whether numbers change as they are read."""
        return self.src_dtype != self.compute

    @property
    def square_room(self) -> Value | None:
        """Memory for one, if there is some."""
        return self.pieces.room if self.pieces is not None else None

    @property
    def stores_together(self) -> bool:
        """Whether vectors that are stored together take less than one by one."""
        return rounds_together(self.dst_dtype) and not self.accumulate and self.pieces is None

    @property
    def rounds_by_processor(self) -> bool:
        """Whether two vectors of sums become one of bf16 by one instruction."""
        sums = self.ordinary and self.stores_together and self.isa.bfloat
        return sums and self.src_dtype == self.compute == "f32"

    def store_runs(self, b: Builder, runs: Iterable[Run]) -> None:
        """Round and store several vectors."""
        from convgrad.codegen.outputs.results import store_exactly, store_ordinary

        (store_ordinary if self.ordinary else store_exactly)(b, self.isa, self.dst_dtype, runs)

    def stream_runs(self, b: Builder, runs: Iterable[Run]) -> None:
        """Likewise, past the caches."""
        from convgrad.codegen.outputs.results import stream_runs

        stream_runs(b, self.isa, self.dst_dtype, runs, ordinary=self.ordinary)

    @property
    def streams(self) -> bool:
        """Whether `past_caches` is something that this instruction set does."""
        return self.past_caches and self.isa.streams

    # --- loops

    def merged(self, b: Builder, dims: Sequence[Dim]) -> list[Dim]:
        """The same box with fewer axes: single elements dropped, axes that continue each other joined."""
        kept = [d for d in dims if d.extent != 1]
        while pair := next((pair for pair in permutations(kept, 2) if self._continue(*pair)), None):
            outer, inner = pair
            kept = [d for d in kept if d is not outer and d is not inner]
            kept.append(Dim(b.mul(outer.extent, inner.extent), inner.src, inner.dst))
        return kept

    def _continue(self, outer: Dim, inner: Dim) -> bool:
        """Whether two axes are one.

        Of a number of runs that is not known before: if runs are not whole vectors, and where vectors turn, if they
        are no more than a half.
        """
        if not isinstance(inner.extent, int) or (inner.src * inner.extent, inner.dst * inner.extent) != (
            outer.src,
            outer.dst,
        ):
            return False
        lanes = self.isa.lanes(self.compute)
        parts = inner.src == inner.dst == 1 and inner.extent % lanes != 0
        few_of_square = 1 in (inner.src, inner.dst) and 2 * inner.extent <= lanes
        return isinstance(outer.extent, int) or parts or few_of_square

    def in_order(self, dims: Sequence[Dim]) -> list[Dim]:
        """From one end of a side to the other, outermost first: what lies together there is met together."""
        return sorted(dims, key=lambda d: -abs(d.src if self.source_order else d.dst))

    def nest(
        self, b: Builder, src: Value, dst: Value, dims: Sequence[Dim], body: Callable[[Value, Value], None], *,
        inside: bool = False,
    ) -> None:  # fmt: skip
        """`body(src, dst)` at every position of the axes, the first outermost."""
        if not dims:
            body(src, dst)
            return
        dim = dims[0]
        if inside and len(dims) == 1:  # whose addresses LLVM would trace through all loops around it
            src, dst = b.hidden(src), b.hidden(dst)

        def step(i: Index, _: object) -> None:
            here, there = self.src_at(b, src, b.mul(i, dim.src)), self.dst_at(b, dst, b.mul(i, dim.dst))
            self.nest(b, here, there, dims[1:], body, inside=True)

        b.loop(0, dim.extent, step, name="copy")

    def src_at(self, b: Builder, base: Value, offset: Index) -> Value:
        """The address of a number of src."""
        return b.at(base, offset, STORAGE[self.src_dtype])

    def dst_at(self, b: Builder, base: Value, offset: Index) -> Value:
        """The address of a number of dst."""
        return b.at(base, offset, STORAGE[self.dst_dtype])

    def src_run(self, b: Builder, base: Value, q: Index) -> Value:
        """The address of element q of a run that `load_row` takes by step 1."""
        return self.src_at(b, base, q)

    # --- one innermost piece

    def load_row(self, b: Builder, src: Value, step: int, lanes: int, count: Index | None = None) -> Value:
        """`lanes` numbers of src, or the first `count`, that lie `step` apart; anything in the other lanes."""

        def load(q: Index, count: Value | None) -> Value:
            return self.isa.load(b, self.src_dtype, self.src_at(b, src, q), lanes, count)

        def load_few(q: int, few: int) -> Value:
            return self.isa.load(b, self.src_dtype, self.src_at(b, src, q), few)

        if step == 1 and (count is None or self.isa.masks):
            return load(0, None if count is None else index(count))
        return load_every(b, lanes, step, lanes if count is None else count, load, None if self.isa.masks else load_few)

    def scalar(self, b: Builder, src: Value, dst: Value) -> None:
        """One number."""
        self.store(b, self.isa.load(b, self.src_dtype, src), dst)

    def store(self, b: Builder, value: Value, dst: Value, count: Value | None = None) -> None:
        """A number or a vector, or its first `count` lanes, as this copy writes them."""
        if self.pieces is not None:
            self.pieces.store(b, self.isa, value, dst, count)
            return
        if self.accumulate:
            lanes = int(value.type[1:].split()[0]) if value.type.startswith("<") else 1
            value = b.binary("fadd", self.isa.load(b, self.dst_dtype, dst, lanes, count), value)
        self.isa.store(b, self.dst_dtype, value, dst, count)

    def store_few(self, b: Builder, value: Value, dst: Value, count: int) -> None:
        """The first `count` lanes of a vector, without a mask: some of them twice."""
        few, starts = overlapping(count)
        for start in starts:
            part = shuffle(b, value, value, list(range(start, start + few)))
            self.store(b, part, self.dst_at(b, dst, start))


def nearly_contiguous(dims: Sequence[Dim], along_dst: Dim | None) -> Dim | None:
    """An axis of which vectors of the source hold several numbers, at best the one that is contiguous in dst."""
    found = [
        d for d in dims
        if 1 < d.src <= MOST_SKIPPED and not (isinstance(d.extent, int) and d.extent < LEAST_RUN)
    ]  # fmt: skip
    return min(found, key=lambda d: (d is not along_dst, d.src), default=None)


def few(extent: Index) -> TypeGuard[int]:
    """Whether an extent is known, and as few planes as are moved together in any order."""
    return isinstance(extent, int) and 1 < extent <= FEW_PLANES
