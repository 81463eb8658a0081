"""Weights of bf16 whose taps lie between channels: words of pairs of channels, tap by tap, made as they are read.

Of every lane the channels and taps are one run of numbers. Sixteen words of it that follow each other, tap by tap and
pair by pair, are of so few neighbouring numbers that one shuffle makes them of two vectors; squares of them are turned.
"""

from __future__ import annotations

from math import gcd

from convgrad.codegen.copies.paired_copies import PairedCopy
from convgrad.codegen.copies.squares import Dim
from convgrad.codegen.copies.words import PAIR, load_bf16
from convgrad.codegen.ir import Builder
from convgrad.codegen.ir_module import Index, Value, vector_of
from convgrad.plan.by_matrix.matrix import COLUMNS
from convgrad.values import frozen

NUMBERS = PAIR * COLUMNS  # of a vector
KIND = vector_of(NUMBERS, "i16")


@frozen(kw_only=True)
class PairedRun:
    """target[tap · step + pair · beside + lane] = pair of the run of a lane, with `every` taps of each channel."""

    copy: PairedCopy
    every: int
    step: int
    beside: int = COLUMNS

    @property
    def period(self) -> int:
        """Vectors of words after which all begins again, with a pair."""
        return self.every // gcd(self.every, COLUMNS)

    def _place(self, word: int) -> int:
        """Where the first number of a word is in the run."""
        pair, tap = divmod(word, self.every)
        return PAIR * self.every * pair + tap

    def _pattern(self, vector: int) -> list[int]:
        """Where numbers of the words of a vector are, from the first one on."""
        words = range(vector * COLUMNS, (vector + 1) * COLUMNS)
        first = self._place(words[0])
        return [self._place(word) + part * self.every - first for word in words for part in range(PAIR)]

    @property
    def reach(self) -> int:
        """Numbers from the first to the last of a vector of words, at most."""
        return 1 + max(max(self._pattern(vector)) for vector in range(self.period))

    @property
    def takes(self) -> bool:
        """Whether two vectors hold these, and there is an instruction that picks from them."""
        isa, copy = self.copy.isa, self.copy
        wide = isa.assembly and isa.masks and isa.lanes("f32") == COLUMNS and copy.src_dtype == "bf16"
        return wide and self.every > 1 and self.reach <= PAIR * NUMBERS

    def emit(self, b: Builder, source: Value, target: Value, pairs: Index, lane: Dim) -> None:
        """All words of so many pairs; lanes that there are not get those of the last one."""
        words = b.mul(pairs, self.every)
        whole = b.floor_div(words, COLUMNS)
        square = _Square(self, b, source, target, b.mul(words, PAIR), lane)
        b.loop(0, whole, lambda v, _: square.emit(v, None), name="words")
        rest = b.sub(words, b.mul(whole, COLUMNS))
        if rest != 0:
            with b.when(b.compare("sgt", rest, 0)):
                square.emit(whole, rest)


class _Square:
    """Sixteen words of every lane, turned."""

    def __init__(self, run: PairedRun, b: Builder, source: Value, target: Value, numbers: Index, lane: Dim):
        self.run, self.b, self.source, self.target, self.numbers, self.lane = run, b, source, target, numbers, lane
        period, firsts = run.period, [run._place(v * COLUMNS) for v in range(run.period)]
        places = [divmod(word, run.every) for word in range(period * COLUMNS)]
        self.firsts = b.module.table(firsts)
        self.places = b.module.table([tap * run.step + pair * run.beside for pair, tap in places])
        patterns = [place for v in range(period) for place in run._pattern(v)]
        self.patterns = b.module.bytes(b"".join(place.to_bytes(2, "little") for place in patterns))

    def emit(self, vector: Index, count: Index | None) -> None:
        """Those of one vector, or the first so many."""
        run, b, period = self.run, self.b, self.run.period
        turn = b.floor_div(vector, period)
        phase = b.sub(vector, b.mul(turn, period))
        first = b.add(b.mul(turn, period * NUMBERS), b.lookup(self.firsts, phase))
        rows = [b.cast("bitcast", row, vector_of(COLUMNS, "float")) for row in self._rows(first, phase)]
        there = b.mul(turn, period * COLUMNS // run.every * run.beside)
        for j, words in enumerate(run.copy.isa.transpose(b, rows)):
            place = b.add(there, b.lookup(self.places, b.add(b.mul(phase, COLUMNS), j)))
            if count is None:
                b.store(words, b.at(self.target, place, "i32"), 64)
            else:
                with b.when(b.compare("slt", j, count)):
                    b.store(words, b.at(self.target, place, "i32"), 64)

    def _rows(self, first: Index, phase: Index) -> list[Value]:
        """Words of every lane, of numbers from `first` on."""
        b, copy = self.b, self.run.copy
        pattern = b.load(KIND, b.at(self.patterns, b.mul(phase, NUMBERS), "i16"), 64)
        left = b.sub(self.numbers, first)
        counts = [b.minimum(b.maximum(b.sub(left, n * NUMBERS), 0), NUMBERS) for n in range(PAIR)]
        rows = []
        for i in range(COLUMNS):
            here = b.add(first, b.mul(b.minimum(i, b.sub(self.lane.extent, 1)), self.lane.src))
            low, high = (
                load_bf16(b, copy.isa, copy.src_at(b, self.source, b.add(here, n * NUMBERS)), NUMBERS, counts[n])
                if n * NUMBERS < self.run.reach else Value(KIND, "zeroinitializer")
                for n in range(PAIR)
            )  # fmt: skip
            words = b.call(KIND, "llvm.x86.avx512.vpermi2var.hi.512", low, pattern, high)
            copy.note(b, words)
            rows.append(words)
        return rows
