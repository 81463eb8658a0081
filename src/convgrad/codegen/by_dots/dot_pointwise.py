"""Lowering of a DotPointwisePlan: words of two channels are made of two planes in registers."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import Any

from convgrad.codegen.by_dots.depthwise_dots import UNIT
from convgrad.codegen.by_dots.dot_depthwise import paired
from convgrad.codegen.by_dots.paired_outputs import PairedOutputsStages
from convgrad.codegen.copies.splitting import LeastWatch
from convgrad.codegen.general.data import DataStages
from convgrad.codegen.in_place.flat_data import FlatSweep
from convgrad.codegen.ir import Builder
from convgrad.codegen.ir_module import Index, Value, constant, vector_of
from convgrad.codegen.isa.base import STORAGE
from convgrad.codegen.isa.dots import DOT_UNITS, LANES, PAIR, SUMS, WORDS
from convgrad.codegen.microkernels.contract import Read, Tile
from convgrad.codegen.microkernels.words import ODD
from convgrad.codegen.outputs.results import store_ordinary, store_runs
from convgrad.codegen.outputs.runs import Run
from convgrad.codegen.stages import Places
from convgrad.plan.by_dots.dot_pointwise import DotPointwisePlan
from convgrad.plan.kinds import as_kind
from convgrad.values import frozen

NUMBERS = PAIR * LANES  # side by side, that two vectors of a tile hold


class SumsWatch(LeastWatch):
    """The least magnitude of the input, and the largest of some sums: no sum is finite that meets what is not."""

    def __init__(self, b: Builder, lanes: int):
        LeastWatch.__init__(self, b, lanes)
        self._words = vector_of(lanes, "i32")
        self._most = b.emit("ptr", f"alloca {self._words}, align 64")
        b.store(constant(self._words, 0), self._most, 64)

    def note_sum(self, b: Builder, total: Value) -> None:
        """Look at a vector of f32."""
        size = b.binary("and", b.cast("bitcast", total, self._words), constant(self._words, 0x7FFFFFFF))
        before = b.load(self._words, self._most, 64)
        b.store(b.call(self._words, f"llvm.umax.v{LANES}i32", before, size), self._most, 64)

    def extremes(self, b: Builder) -> tuple[Value, Value]:
        """As `Watch` has them."""
        low, _ = LeastWatch.extremes(self, b)
        most = b.load(self._words, self._most, 64)
        return low, b.call("i32", f"llvm.vector.reduce.umax.v{LANES}i32", most)


@frozen(kw_only=True)
class UnpackedTile(Tile):
    """A tile whose columns are, two by two, the outputs of a run in the order of unpacking."""

    watch: SumsWatch | None

    def store(self, b: Builder, c: Value, tile: Sequence[Value]) -> None:
        """No sum is denormal or NaN, or all is written again: those of a channel meet all numbers of the input."""
        if self.watch is not None:
            for total in tile[: len(self.columns)]:
                self.watch.note_sum(b, total)
        dtype = self.c_dtype or self.compute
        places = [row + column for row in self.c_rows for column in self.c_columns[::PAIR]]
        pairs = (tile[n : n + PAIR] for n in range(0, len(tile), PAIR))
        (store_ordinary if dtype == self.b_dtype else store_runs)(b, self.isa, dtype, (
            Run(pair, b.at(c, place, STORAGE[dtype]), in_turn=True, numbers=UNIT // PAIR)
            for pair, place in zip(pairs, places, strict=True)
        ))  # fmt: skip


def unpacked(partner: int | None, watch: SumsWatch | None) -> Read:
    """How columns are read: numbers of a channel, and of another so far behind, word by word; None: with zeros."""
    read: dict[tuple[str, int], list[Value]] = {}
    kind = vector_of(NUMBERS, "i16")

    def vector(b: Builder, x: Value, offset: int) -> Value:
        half = offset > ODD // 2
        place = offset - ODD * half
        if (x.text, place) not in read:
            channels = (0,) if partner is None else (0, partner)
            numbers = [b.load(kind, b.at(x, place + channel, "i16"), PAIR) for channel in channels]
            if watch is not None:
                for several in numbers:
                    watch.note_bf16(b, several)
            read[x.text, place] = paired(b, numbers[0], constant(kind, 0) if partner is None else numbers[1])
        return b.cast("bitcast", read[x.text, place][half], SUMS)

    return vector


def _word(b: Builder, weights: Value, offset: int) -> Value:
    """Where it is: products broadcast it."""
    return b.at(weights, offset, "i32")


class DotPointwiseSweep(FlatSweep):
    """All tiles of a task, for one block of output channels."""

    plan: DotPointwisePlan  # pyright: ignore

    def __init__(self, plan: DotPointwisePlan, *more: Any, watch: SumsWatch | None, **others: Any):
        FlatSweep.__init__(self, plan, *more, **others)
        self.watch = watch
        if plan.odd:
            self.taps.channels = plan.in_channels - 1

    @property
    def _in_pairs(self) -> bool:
        return True

    def _pairs(self) -> Tile:
        return self._unpacking(self.plan.slab_strides[1] // PAIR)

    def _unpacking(self, partner: int | None) -> Tile:
        plan, unit = self.plan, DOT_UNITS[self.plan.isa]()

        def adds(b: Builder, word: Value, y: Value, total: Value) -> Value:
            return unit.multiply_add_one(b, word, b.cast("bitcast", y, WORDS), total)

        columns = tuple(v + half for v in range(0, plan.run, NUMBERS) for half in (0, ODD))
        return as_kind(
            UnpackedTile, self.tile, columns=columns, a_read=_word, b_read=unpacked(partner, self.watch), adds=adds,
            watch=self.watch,
        )  # fmt: skip

    def _begin(self, tile: Tile, weights: Value, x: Value) -> list[Value]:
        """With the last channel, if it has no partner."""
        first, plan, b = self._start(tile), self.plan, self.b
        if not plan.odd:
            return first
        last = plan.in_channels - 1
        w = b.at(weights, last * self.taps.channel_stride, STORAGE[plan.compute])
        there = b.at(x, last * plan.slab_strides[1], "i16")
        return self._unpacking(None).sum(b, w, there, first, [])


class DotPointwiseStages(PairedOutputsStages):
    """The stages of a plan."""

    plan: DotPointwisePlan  # pyright: ignore
    sweep = DotPointwiseSweep
    seen: SumsWatch  # of the task that is being written

    def task(self, b: Builder, at: Places, task: Value) -> None:
        """Watching the input."""
        assert self.verdict is not None
        self.seen = SumsWatch(b, LANES)
        DataStages.task(self, b, at, task)
        self.verdict.note_first(b, at.shared, task, self.seen)

    def _in_place(self, b: Builder, at: Places, block: Index) -> None:
        """Watching the input with the first block of output channels."""

        def swept(watch: SumsWatch | None) -> None:
            self.sweep = partial(DotPointwiseSweep, watch=watch)
            super(DotPointwiseStages, self)._in_place(b, at, block)

        if self.plan.lane_blocks == 1:
            swept(self.seen)
        else:
            b.either(b.compare("eq", block, 0), lambda: swept(self.seen), lambda: swept(None))
