"""Copies between numbers in turn and planes of them: number q lies in plane q mod planes, at place q div planes."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from math import prod
from typing import TYPE_CHECKING

from convgrad.codegen.copies.interleave import emit_deinterleave, emit_interleave
from convgrad.codegen.copies.squares import Dim
from convgrad.codegen.ir import Builder
from convgrad.codegen.ir_module import Index, Value
from convgrad.values import frozen

if TYPE_CHECKING:
    from convgrad.codegen.copies.copying import Copy

LEAST_LANES = 2  # of vectors


@frozen
class InterleavedCopy:
    """How `copy` moves whole vectors that are interleaved, or taken apart, in registers."""

    copy: Copy

    def _lanes(self, planes: int, run: Index) -> int:
        """Of the vectors that are moved: without masks fewer where whole ones of all planes are more than there is."""
        isa = self.copy.isa
        lanes = isa.lanes(self.copy.compute)
        while isinstance(run, int) and not isa.masks and lanes > LEAST_LANES and planes * lanes > run:
            lanes //= 2
        return lanes

    def interleave(self, b: Builder, src: Value, dst: Value, axes: Sequence[tuple[int, int]], run: Index) -> None:
        """dst[q] = src[place of plane q mod planes + q div planes] for q < run.

        Planes are those of some axes, outermost first, of each of which they are so many and so far apart.
        """
        copy, planes = self.copy, prod(extent for extent, _ in axes)
        lanes = copy.isa.lanes(copy.compute) if copy.streams else self._lanes(planes, run)

        def source(plane: Index, position: Index) -> Value:
            indices = b.split(plane, [extent for extent, _ in axes])
            place = b.dot(list(zip(indices, (step for _, step in axes), strict=True)))
            return copy.src_at(b, src, b.add(position, place))

        def load(plane: int, position: Index, count: Value | None) -> Value:
            return copy.load_row(b, source(plane, position), 1, lanes, count)

        def scalar(q: Index, plane: Index, position: Index) -> None:
            copy.scalar(b, source(plane, position), copy.dst_at(b, dst, q))

        def store(value: Value, q: Index, count: Value | None) -> None:
            copy.store(b, value, copy.dst_at(b, dst, q), count)

        def stream(value: Value, q: Index, count: Value | None) -> None:
            if count is None and (isinstance(q, Value) or q % lanes == 0):  # else of those that begin early
                copy.isa.stream(b, value, copy.dst_at(b, dst, q))
            else:
                store(value, q, count)

        def emit(to: Callable[[Value, Index, Value | None], None]) -> None:
            emit_interleave(b, copy.isa, lanes, planes, run, load, to, scalar, again=not copy.accumulate)

        if copy.streams:
            b.either(copy.isa.is_aligned(b, dst), lambda: emit(stream), lambda: emit(store))
        else:
            emit(store)

    def deinterleave(self, b: Builder, src: Value, dst: Value, planes: int, plane_step: int, run: Index) -> None:
        """dst[(q mod planes) · plane_step + q div planes] = src[q] for q < run."""
        copy = self.copy
        lanes = self._lanes(planes, run)

        def load(q: Index, count: Value | None) -> Value:
            return copy.load_row(b, copy.src_run(b, src, q), 1, lanes, count)

        def scalar(q: Index, plane: Index, position: Index) -> None:
            copy.scalar(b, copy.src_run(b, src, q), target(plane, position))

        def target(plane: Index, position: Index) -> Value:
            return copy.dst_at(b, dst, b.add(position, b.mul(plane, plane_step)))

        def store(value: Value, plane: Index, position: Index, count: Value | None) -> None:
            copy.store(b, value, target(plane, position), count)

        emit_deinterleave(b, copy.isa, lanes, planes, run, load, store, scalar, again=not copy.accumulate)

    def interleave_axes(self, b: Builder, src: Value, dst: Value, across: Dim, along: Dim) -> None:
        """Axes of a box: `across`, of a few planes in src, is contiguous in dst, and goes on with `along`."""
        assert isinstance(across.extent, int)
        self.interleave(b, src, dst, [(across.extent, across.src)], b.mul(along.extent, across.extent))

    def deinterleave_axes(self, b: Builder, src: Value, dst: Value, across: Dim, along: Dim) -> None:
        """Likewise, with `along`, of a few planes in dst, contiguous in src, where it goes on with `across`."""
        assert isinstance(along.extent, int)
        self.deinterleave(b, src, dst, along.extent, along.dst, b.mul(across.extent, along.extent))
