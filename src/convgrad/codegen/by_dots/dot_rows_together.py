"""Lowering of a DotRowsTogetherPlan: rows of several planes in a vector, each in a part of the lanes."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence

from convgrad.codegen.by_dots.dot_rows import WORD, DotRowOutputs
from convgrad.codegen.depthwise.plane_reads import Columns, WordReads
from convgrad.codegen.depthwise.plane_rows import Row, Span, Sums
from convgrad.codegen.ir import Builder
from convgrad.codegen.ir_module import Index, Value, constant, lanes_of, vector_of
from convgrad.codegen.isa.base import shuffle
from convgrad.codegen.isa.dots import LANES, PAIR, WORDS
from convgrad.codegen.module import round64
from convgrad.codegen.outputs.runs import Run
from convgrad.codegen.stages import Places
from convgrad.plan.by_dots.dot_rows import DotRowsTogetherPlan
from convgrad.values import frozen, replace

HELD = 14  # pairs of taps, a vector each, that stay in registers
WRITTEN = 32  # of which code is written out that spreads them


@frozen(kw_only=True)
class PartReads(WordReads):
    """Words of rows that are a part of a vector each, and made of it in registers: one instruction for an offset."""

    part: int

    def row(self, b: Builder, rows: Sequence[Value]) -> Value:
        """As many rows, one in each part."""
        size = PAIR * self.part
        mask = None if self.image == size else Value(f"i{size}", str((1 << self.image) - 1))
        found = [self.isa.load_bits(b, self.dtype, row, size, mask=mask) for row in rows]
        while len(found) > 1:
            lanes = list(range(2 * lanes_of(found[0])))
            found = [shuffle(b, *found[n : n + 2], lanes) for n in range(0, len(found), 2)]
        return found[0]

    def words_at(self, b: Builder, numbers: Value, base: int) -> Value | None:
        """Of such a vector; zeros beside a row."""
        size, lanes = PAIR * self.part, range(PAIR * LANES)
        inside = [0 <= base + lane % size < self.image for lane in lanes]
        if not any(inside):
            return None
        zero = self.image if self.image < size else None  # a place that holds one
        if base:
            from_places = [lane + base if there else zero or 0 for lane, there in zip(lanes, inside, strict=True)]
            places = ", ".join(f"i16 {place}" for place in from_places)
            order = b.load(numbers.type, b.module.opaque(numbers.type, f"<{places}>"), 64)
            numbers = b.call(numbers.type, "llvm.x86.avx512.permvar.hi.512", numbers, order)
        if zero is None and not all(inside):
            bits = sum(there << lane for lane, there in zip(lanes, inside, strict=True))
            one = b.load("i32", b.module.opaque("i32", str(bits)), 4)  # else LLVM would have a vector of ones and zeros
            numbers = b.select(b.cast("bitcast", one, vector_of(len(lanes), "i1")), numbers, constant(numbers.type, 0))
        return b.cast("bitcast", numbers, WORDS)


class OutputsTogether(DotRowOutputs):
    """The stage. Scratch memory of a task has pairs of taps of the planes of a vector, too, in the lanes of each."""

    plan: DotRowsTogetherPlan
    reads: PartReads
    numbers: Value  # of the row that was read last

    def __init__(self, plan: DotRowsTogetherPlan):
        DotRowOutputs.__init__(self, plan)
        inner, words = plan.axes[-1], plan.words
        self.planes = plan.planes
        self.vectors_start, self.scratch_bytes = (
            self.scratch_bytes, self.scratch_bytes + round64(WORD * LANES * self.group_step),
        )  # fmt: skip
        self.steps_of_taps = tuple(step * LANES for step in self.steps_of_taps)
        self.column_offsets = {
            base: [(phase, pair * LANES) for phase, pair in met] for base, met in words.met.items()
        }  # fmt: skip
        self.reads = PartReads(
            isa=self.isa, compute=plan.compute, dtype=plan.problem.dtype, step=inner.in_step, image=inner.in_extent,
            offsets=tuple(words.met), part=plan.part,
        )  # fmt: skip
        self.reads_again, self.early = self.group_step > HELD, True
        row = plan.axes[-2]
        self.beside = row.clipped or any(phase.count < row.count for phase in row.phases)

    def task(self, b: Builder, at: Places, task: Value) -> None:
        """As of one plane at a time."""
        self.vectors = b.at(at.scratch, self.vectors_start, "i8")
        DotRowOutputs.task(self, b, at, task)

    def _groups(self, b: Builder, run: Index) -> tuple[Index, Index]:
        """The last task begins early, too."""
        size = self.plan.run
        return b.minimum(b.mul(run, size), self.plan.problem.groups - size), size

    def _in_parts(self, b: Builder, values: Iterable[Value]) -> Value:
        """Of each of some vectors the lanes of its plane."""
        result, *others = values
        for n, value in enumerate(others, start=1):
            lanes = ", ".join(f"i1 {int(lane >= n * self.plan.part)}" for lane in range(LANES))
            result = b.emit(value.type, f"select <{LANES} x i1> <{lanes}>, {value}, {result}")
        return result

    def _weights_of(self, b: Builder, weights: Value, g: Index) -> Value:
        first = DotRowOutputs._weights_of(self, b, weights, g)

        def vector(n: Index, _: object) -> None:
            words = (b.at(first, b.add(n, self.group_step * plane), "i32") for plane in range(self.planes))
            spread = self._in_parts(b, (self.unit.splat(b, word) for word in words))
            b.store(spread, b.at(self.vectors, b.mul(n, LANES), "i32"), 64)

        if self.group_step > WRITTEN:
            b.loop(0, self.group_step, vector, name="pairs")
        else:
            for n in range(self.group_step):
                vector(n, None)
        return self.vectors

    def _bias(self, b: Builder, at: Places, group: Index) -> Value:
        biases = [DotRowOutputs._bias(self, b, at, b.add(group, plane)) for plane in range(self.planes)]
        return self._in_parts(b, biases) if self.plan.problem.bias else biases[0]

    def _weight(self, b: Builder, address: Value) -> Value:
        return self.unit.load(b, address)

    def _multiply_add(self, b: Builder, x: Value, weight: Value, total: Value) -> Value:
        return self.unit.multiply_add(b, x, weight, total)

    def _vectors(self, b: Builder, row: Value, i: Index, columns: Columns) -> dict[int, Value]:
        """Part by part: whoever reads the zeros beside an image does so for all planes."""
        step: Index = self.plan.problem.strides[self.plan.problem.given][1]
        if self.beside:
            step = b.select(
                b.emit("i1", f"icmp eq {row}, {self.zeros.text}"), Value("i64", "0"), Value("i64", str(step))
            )
        rows = [b.beyond(row, b.mul(step, PAIR * plane)) for plane in range(self.planes)]
        self.numbers = self.reads.row(b, rows)
        words = {base: self.reads.words_at(b, self.numbers, base) for base in self.reads.offsets}
        return {base: word for base, word in words.items() if word is not None}

    def _note(self, b: Builder, vectors: dict[int, Value], columns: Columns) -> None:
        """Rows as they were read last."""
        self.given.note_bf16(b, self.numbers)

    def _fetch(self, b: Builder, name: str, row: Value, i: Index, vectors: int) -> None:
        """Of every plane."""
        for plane in range(self.planes):
            there = b.beyond(row, PAIR * plane * self.plan.problem.strides[name][1])
            DotRowOutputs._fetch(self, b, name, there, i, vectors)

    def _runs(
        self, b: Builder, j: Index, spans: Sequence[Span], sums: Sums, done: Iterable[list[Row]], written: Index
    ) -> Iterator[Run]:
        step = self.plan.problem.strides[self.plan.problem.solved][1]
        for run in DotRowOutputs._runs(self, b, j, spans, sums, done, written):
            parts = [b.at(run.address, plane * step, "i16") for plane in range(self.planes)]
            yield replace(run, parts=parts)
