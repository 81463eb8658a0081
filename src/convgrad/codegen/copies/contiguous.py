"""An axis that is contiguous where a copy writes it, by vectors: all numbers of a run, every other one, or one."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING

from convgrad.codegen.copies.interleave import overlapping
from convgrad.codegen.copies.squares import Dim
from convgrad.codegen.ir import Builder
from convgrad.codegen.ir_module import Index, Value, index
from convgrad.codegen.outputs.runs import Run
from convgrad.values import frozen

if TYPE_CHECKING:
    from convgrad.codegen.copies.copying import Copy

LEAST_RUN = 4  # numbers of a run for which vectors are worth while that are partly dropped


@frozen
class ContiguousRuns:
    """How `copy` moves such an axis; where there are no masks, shorter vectors move what is left."""

    copy: Copy

    def fill(self, b: Builder, src: Value, dst: Value, dim: Dim) -> None:
        """One number, many times; not even read where there is nothing to fill."""
        copy = self.copy
        lanes = copy.isa.lanes(copy.compute)
        with b.when(b.compare("sgt", dim.extent, 0)):
            one = copy.isa.load(b, copy.src_dtype, src)
            every = copy.isa.splat(b, one, lanes)
            whole = b.mul(b.floor_div(dim.extent, lanes), lanes)
            b.loop(0, whole, lambda i, _: copy.store(b, every, copy.dst_at(b, dst, i)), step=lanes, name="fill")
            rest = b.sub(dim.extent, whole)
            if isinstance(rest, int) and rest > 1 and copy.pieces is None:
                copy.store_few(b, every, copy.dst_at(b, dst, whole), rest)
            elif rest != 0:
                b.loop(whole, dim.extent, lambda i, _: copy.store(b, one, copy.dst_at(b, dst, i)), name="fill")

    def vectors(self, b: Builder, src: Value, dst: Value, dim: Dim) -> None:
        """All numbers, side by side on both sides."""
        copy = self.copy
        lanes = copy.isa.lanes(copy.compute)
        whole = b.mul(b.floor_div(dim.extent, lanes), lanes)

        def vector(i: Index, count: Value | None = None) -> None:
            value = copy.isa.load(b, copy.src_dtype, copy.src_at(b, src, i), lanes, count)
            copy.store(b, value, copy.dst_at(b, dst, i), count)

        def streamed(i: Index, _: object) -> None:
            copy.isa.stream(b, copy.isa.load(b, copy.src_dtype, copy.src_at(b, src, i), lanes), copy.dst_at(b, dst, i))

        def two(i: Index, _: object, *, streamed: bool = False) -> None:
            places = (b.add(i, n * lanes) for n in range(2))
            values = [copy.isa.load(b, copy.src_dtype, copy.src_at(b, src, place), lanes) for place in places]
            (copy.stream_runs if streamed else copy.store_runs)(b, [Run(values, copy.dst_at(b, dst, i))])

        def all_pairs(body: Callable[[Index, object], None], name: str) -> Index:
            pairs = b.mul(b.floor_div(dim.extent, 2 * lanes), 2 * lanes)
            b.loop(0, pairs, body, step=2 * lanes, name=name)
            return pairs

        def all_whole() -> None:
            pairs = all_pairs(two, "vectors") if copy.stores_together else 0
            b.loop(pairs, whole, lambda i, _: vector(i), step=lanes, name="vector")

        def all_streamed() -> None:
            if not copy.stores_together:
                b.loop(0, whole, streamed, step=lanes, name="stream")
                return
            pairs = all_pairs(partial(two, streamed=True), "stream")
            b.loop(pairs, whole, lambda i, _: vector(i), step=lanes, name="vector")

        if copy.streams:
            b.either(copy.isa.is_aligned(b, dst), all_streamed, all_whole)
        else:
            all_whole()
        rest = b.sub(dim.extent, whole)
        if rest == 0:
            return
        if isinstance(dim.extent, int) and dim.extent >= lanes and not copy.accumulate:
            vector(dim.extent - lanes)  # some numbers twice cost less than a mask
            return
        if not copy.isa.masks and isinstance(rest, int) and not copy.accumulate and copy.pieces is None:
            few, starts = overlapping(rest)
            for place in (b.add(whole, start) for start in starts):
                value = copy.isa.load(b, copy.src_dtype, copy.src_at(b, src, place), few)
                copy.store(b, value, copy.dst_at(b, dst, place))
        elif not copy.isa.masks:
            b.loop(whole, dim.extent, lambda i, _: copy.scalar(b, copy.src_at(b, src, i), copy.dst_at(b, dst, i)))
        elif isinstance(rest, int):
            vector(whole, index(rest))
        else:
            with b.when(b.compare("sgt", rest, 0)):
                vector(whole, rest)

    def every(self, b: Builder, src: Value, dst: Value, dim: Dim) -> None:
        """Like `vectors`, from every second, third or fourth number."""
        copy = self.copy
        lanes, extent = copy.isa.lanes(copy.compute), dim.extent
        whole = b.mul(b.floor_div(extent, lanes), lanes)

        def vector(i: Index, lanes: int = lanes, count: Index | None = None) -> None:
            value = copy.load_row(b, copy.src_at(b, src, b.mul(i, dim.src)), dim.src, lanes, count)
            copy.store(b, value, copy.dst_at(b, dst, i), None if count is None else index(count))

        def one(i: Index, _: object) -> None:
            copy.scalar(b, copy.src_at(b, src, b.mul(i, dim.src)), copy.dst_at(b, dst, i))

        def last() -> None:
            vector(b.sub(extent, lanes))

        def few() -> None:
            b.loop(whole, extent, one, name="rest")

        b.loop(0, whole, lambda i, _: vector(i), step=lanes, name="every")
        rest = b.sub(extent, whole)
        if rest == 0:
            return
        if isinstance(extent, int) and extent >= lanes and not copy.accumulate:
            last()
        elif copy.isa.masks and isinstance(rest, int):
            vector(whole, count=rest)
        elif copy.isa.masks:
            with b.when(b.compare("sgt", rest, 0)):
                vector(whole, count=rest)
        elif isinstance(extent, int) and isinstance(whole, int):
            part = lanes // 2
            while part >= LEAST_RUN:
                if extent - whole >= part:
                    vector(whole, part)
                    whole += part
                part //= 2
            few()
        elif copy.accumulate:
            few()
        else:
            b.either(b.compare("sge", extent, lanes), last, few)
