"""bf16 of channels side by side, turned to runs of windows: 32 windows of 16 channels at a time, in registers."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple

from convgrad.codegen.copies.asking import L2
from convgrad.codegen.copies.copying import Copy
from convgrad.codegen.copies.paired_copies import PairedCopy
from convgrad.codegen.copies.squares import Dim
from convgrad.codegen.copies.words import concatenated, load_bf16
from convgrad.codegen.ir import Builder
from convgrad.codegen.ir_module import Index, Value, index
from convgrad.codegen.isa.base import shuffle
from convgrad.plan.costs import LINE
from convgrad.values import frozen

CHANNELS, WINDOWS = 16, 32
HALF = WINDOWS // 2
LEAST_RUN = 5  # windows for which that is worth while


class _Part(NamedTuple):
    """Windows of a run, or of each of two, that a square holds."""

    windows: int
    apart: Dim | None = None  # the second run, of two of at most `HALF` windows each


@frozen
class TurnedWindows:
    """How `copy`, whose partners do not matter here, moves numbers in such squares; `numbers` moves them one by one."""

    copy: PairedCopy
    numbers: Copy

    def takes(self, rows: Dim, run: Dim) -> bool:
        """Whether it does: of enough channels, and windows, as far as is known."""
        copy = self.copy
        wide = copy.isa.assembly and copy.isa.lanes("f32") == CHANNELS and copy.src_dtype == "bf16"
        return wide and all(isinstance(dim.extent, Value) or dim.extent >= LEAST_RUN for dim in (rows, run))

    def emit(
        self, b: Builder, src: Value, dst: Value, outer: Sequence[Dim], rows: Dim, run: Dim,
        few: Callable[[Value, Value], None],
    ) -> None:  # fmt: skip
        """dst[.. + channel · dst step + window] = src[.. + channel + window · src step]; short runs two at a time.

        What has no square of windows, as only the kernel knows, is left to `few`.
        """
        extent = run.extent
        sides = ((rows.extent, CHANNELS), (extent, WINDOWS))
        enough = [b.compare("sge", extent, least) for extent, least in sides if isinstance(extent, Value)]
        if enough:
            many = b.both(*enough) if len(enough) > 1 else enough[0]
            part = _Part(min(extent, WINDOWS) if isinstance(extent, int) else WINDOWS)

            def either(src: Value, dst: Value) -> None:
                b.either(many, lambda: self._run(b, src, dst, rows, run, part), lambda: few(src, dst))

            self.numbers.nest(b, src, dst, outer, either)
            return
        assert isinstance(extent, int)
        two = next((dim for dim in outer if isinstance(dim.extent, int) and dim.extent > 1), None)
        if extent > HALF or two is None:
            part = _Part(min(extent, WINDOWS))
            self.numbers.nest(b, src, dst, outer, lambda s, d: self._run(b, s, d, rows, run, part))
            return
        assert isinstance(two.extent, int)
        last, others = two.extent - 2, [dim for dim in outer if dim is not two]

        def pairs(src: Value, dst: Value) -> None:
            def pair(i: Index, _: object) -> None:
                i = b.minimum(i, last)
                here, there = b.at(src, b.mul(i, two.src), "i16"), b.at(dst, b.mul(i, two.dst), "i16")
                self._run(b, here, there, rows, run, _Part(extent, two))

            b.loop(0, two.extent, pair, step=2, name="pair")

        self.numbers.nest(b, src, dst, others, pairs)

    def _run(self, b: Builder, src: Value, dst: Value, rows: Dim, run: Dim, part: _Part) -> None:
        """All channels of a run, or of two; last squares begin early."""
        many = min(rows.extent, CHANNELS) if isinstance(rows.extent, int) else CHANNELS
        last, end = b.sub(rows.extent, many), b.sub(run.extent, part.windows)

        def windows(q: Index, _: object) -> None:
            q = b.minimum(q, end)
            here, there = b.at(src, b.mul(q, run.src), "i16"), b.at(dst, q, "i16")

            def channels(c: Index, _: object) -> None:
                c = b.minimum(c, last)
                source, target = b.at(here, c, "i16"), b.at(there, b.mul(c, rows.dst), "i16")
                self._square(b, b.hidden(source), b.hidden(target), many, rows.dst, run.src, part)

            b.loop(0, rows.extent, channels, step=many, name="channels")

        b.loop(0, run.extent, windows, step=part.windows, name="windows")

    def _square(
        self, b: Builder, src: Value, dst: Value, channels: int, dst_step: int, src_step: int, part: _Part
    ) -> None:  # fmt: skip
        isa, zero = self.copy.isa, Value(f"<{CHANNELS} x i16>", "zeroinitializer")

        def row(n: int) -> Value:
            start = 0
            if part.apart is not None:
                start, n = n // HALF * part.apart.src, n % HALF
            if n >= part.windows:
                return zero
            place = b.at(src, start + n * src_step, "i16")
            return load_bf16(b, isa, place, CHANNELS, None if channels == CHANNELS else channels)

        if self.copy.ahead and part.apart is None:
            self._ask(b, src, src_step)
        vectors = []
        for first in (*range(8), *range(HALF, HALF + 8)):
            both = concatenated(b, row(first), row(first + 8))
            self.copy.note(b, both)
            vectors.append(both)
        for n, words in enumerate(isa.transpose_words(b, vectors)[:channels]):
            self._store(b, words, b.at(dst, n * dst_step, "i16"), part)

    def _ask(self, b: Builder, src: Value, src_step: int) -> None:
        """For lines of the windows after these: of every second one, since two squares meet each line."""
        half = b.emit("i64", f"and {b.cast('ptrtoint', src, 'i64')}, {LINE // 2}")
        first = b.select(b.compare("eq", half, 0), index(0), index(src_step * 2))
        for n in range(0, WINDOWS, 2):
            b.prefetch(b.beyond(src, b.add((WINDOWS + n) * src_step * 2, first)), L2)

    def _store(self, b: Builder, words: Value, dst: Value, part: _Part) -> None:
        """A channel."""
        isa, count = self.copy.isa, part.windows
        if part.apart is None:
            isa.store_bits(b, words, dst, None if count == WINDOWS else index(count))
            return
        for n in range(2):
            half = shuffle(b, words, words, [n * HALF + lane for lane in range(HALF)])
            isa.store_bits(b, half, b.at(dst, n * part.apart.dst, "i16"), None if count == HALF else index(count))
