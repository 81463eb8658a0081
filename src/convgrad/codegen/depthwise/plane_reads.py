"""Vectors along a row of a plane as it lies in memory: what outputs or windows side by side meet at each offset."""

from __future__ import annotations

from collections.abc import Iterator

from convgrad.codegen.copies.interleave import pick
from convgrad.codegen.ir import Builder
from convgrad.codegen.ir_module import Index, Value, vector_of
from convgrad.codegen.isa.base import STORAGE, Isa, shuffle
from convgrad.codegen.isa.conversions import number_of_words
from convgrad.plan.costs import LINE
from convgrad.plan.depthwise.plane_rows import run_bases, whole_vectors
from convgrad.values import frozen

MOST_TURNS = 3  # lanes by which vectors of a phase are slid one by one
LOOPED = 2  # vectors of a row that are alike, from which on they are a loop


def ask_for(b: Builder, row: Value, ahead: int, first: Index, size: int) -> None:
    """A vector's `size` bytes, those that lie `ahead` of the one that begins with byte `first` of a row, into L2."""
    there = b.beyond(row, b.add(ahead, first))
    for line in range(0, size, LINE):
        b.prefetch(b.beyond(there, line), keep=2)


@frozen
class Columns:
    """Vectors of a row that are written out once: the first number of the first one, how many, and lanes of each."""

    first: int
    many: int
    lanes: int
    whole: bool  # all that they read is in the row, and no lane is left over


@frozen(kw_only=True)
class RowReads:
    """Elements step · i + offset of a row, for i side by side.

    Those of a stride are picked from as many vectors as it is long. What lies beside the row, or
    belongs to lanes that nobody wants, is not read but zero: anything may be there.
    """

    isa: Isa
    compute: str
    dtype: str
    step: int
    image: int  # elements of a row
    offsets: tuple[int, ...]
    slides: bool = False  # lanes that nobody wants may be anything
    ends_early: bool = False  # the last vector begins where it is whole, and repeats some outputs

    @property
    def lanes(self) -> int:
        """Of a vector."""
        return self.isa.lanes(self.compute)

    @property
    def bases(self) -> list[int]:
        """Offsets at which runs of `step` vectors begin."""
        return run_bases(self.step, self.dtype, self.offsets)

    def columns(self, count: int, least: int) -> Iterator[Columns]:
        """All vectors of a row of so many outputs, of the longest phase and of the shortest one, or windows."""
        lanes = self.lanes
        bases = self.bases if self.step == 1 or self.halves else [*self.bases, 0]  # phases are picked from that one
        vectors, first, last = whole_vectors(count, least, lanes, self.step, self.image, bases)
        whole = [(first, last - first)] if last - first >= LOOPED else [(n, 1) for n in range(first, last)]
        pieces = [(n, 1, False) for n in range(first)] + [(n, many, True) for n, many in whole]
        for n, many, there in pieces + [(n, 1, False) for n in range(last, vectors)]:
            start = n * lanes
            if self.ends_early and not there:
                start = max(0, min(start, count - lanes))
            yield Columns(start, many, lanes if there else min(lanes, count - start), there)

    @property
    def _all(self) -> int:
        return (1 << self.lanes) - 1

    @property
    def _turns_few(self) -> bool:
        """Whether few lanes lie between the offsets of a phase."""
        return all(-MOST_TURNS <= offset // self.step <= MOST_TURNS for offset in self.offsets)

    def _masks(self, base: int, first: int, lanes: int) -> list[int]:
        """Lanes, a bit each, that are read of every vector of a run."""
        start = self.step * first + base
        wanted = [place // self.step < lanes and 0 <= start + place < self.image
                  for place in range(self.step * self.lanes)]  # fmt: skip
        runs = (wanted[at : at + self.lanes] for at in range(0, len(wanted), self.lanes))
        return [sum(want << lane for lane, want in enumerate(run)) for run in runs]

    def vectors(self, b: Builder, row: Value, first: Index, columns: Columns) -> dict[int, Value]:
        """By offset, of the vector that begins with output `first`; those that are nothing but zeros are left out."""
        if self.step == 1 and self.slides and not columns.whole:
            return self._slid(b, row, first, columns)
        if self.step > 1 and self.isa.masks and not self.halves:
            if self._turns_few and (self.slides or columns.lanes == self.lanes):
                return self._picked_and_slid(b, row, first, columns)
            if columns.first == 0 and self.image <= self.step * self.lanes:
                return self._picked(b, row, columns)
        start, kind = b.at(row, b.mul(first, self.step), STORAGE[self.dtype]), STORAGE[self.dtype]
        zeros, found = Value(self.isa.vector(self.compute), "zeroinitializer"), {}
        before = self.step * columns.first
        if self.halves:
            return self._halves(b, start, columns)
        for base in self.bases:
            masks = [None] * self.step if columns.whole else self._masks(base, columns.first, columns.lanes)
            if not any(mask is None or mask for mask in masks):
                continue
            if self.step == 2 and not self.isa.masks and all(mask in (None, self._all) for mask in masks):
                found |= self._crossed(b, b.at(start, base, kind), base)
                continue
            parts = [
                zeros if mask == 0 else self._load(b, b.at(start, place, kind), mask, before + place)
                for place, mask in zip(range(base, base + self.step * self.lanes, self.lanes), masks, strict=True)
            ]
            for offset in self.offsets:
                if offset // self.step * self.step == base:
                    wanted = [lane * self.step + offset - base for lane in range(self.lanes)]
                    found[offset] = parts[0] if self.step == 1 else pick(b, parts, wanted)
        return found

    def _crossed(self, b: Builder, run: Value, base: int) -> dict[int, Value]:
        """Both phases of a run of two vectors, of which each is a half of either: a shuffle keeps within halves."""
        lanes, half, kind = self.lanes, self.lanes // 2, STORAGE[self.dtype]
        raw = [self.isa.load_bits(b, self.dtype, b.at(run, n * half, kind), half) for n in range(4)]
        both = [shuffle(b, raw[n], raw[n + 2], list(range(lanes))) for n in range(2)]
        low, high = (self.isa.widen(b, self.dtype, numbers) for numbers in both)
        found = {}
        for offset in self.offsets:
            if offset // 2 * 2 == base:
                pairs = range(offset - base, half, 2)
                wanted = [part * lanes + first + n for first in (0, half) for part in range(2) for n in pairs]
                found[offset] = shuffle(b, low, high, wanted)
        return found

    @property
    def halves(self) -> bool:
        """Whether a number of a pair is half of a word, which is f32 once it is the upper one."""
        return self.step == 2 and self.dtype == "bf16"

    def _halves(self, b: Builder, start: Value, columns: Columns) -> dict[int, Value]:
        """Both numbers of each pair out of one vector, as x86 orders them."""
        found = {}
        for base, pair in self.words(b, start, columns).items():
            for offset in self.offsets:
                if offset in (base, base + 1):
                    found[offset] = number_of_words(b, pair, odd=offset > base)
        return found

    def words(self, b: Builder, start: Value, columns: Columns) -> dict[int, Value]:
        """Pairs of bf16 side by side, by the offset at which they begin; those of nothing but zeros are left out."""
        lanes, kind, found = self.lanes, STORAGE[self.dtype], {}
        for base in self.bases:
            low, high = (self._all,) * 2 if columns.whole else self._masks(base, columns.first, columns.lanes)
            bits, address = low | high << lanes, b.at(start, base, kind)
            if not bits:
                continue
            every = bits == (1 << 2 * lanes) - 1
            mask = None if every else Value(f"i{2 * lanes}", str(bits))
            near = self._near(self.step * columns.first + base, 2 * lanes)
            raw = self.isa.load_bits(b, self.dtype, address, 2 * lanes, mask=mask, near=near)
            found[base] = b.cast("bitcast", raw, vector_of(lanes, "i32"))
        return found

    def _slid(self, b: Builder, row: Value, first: Index, columns: Columns) -> dict[int, Value]:
        """Out of the vector that begins with output `first` and its neighbours, which take a mask each."""
        zeros, kind = Value(self.isa.vector(self.compute), "zeroinitializer"), STORAGE[self.dtype]
        start, blocks, found = b.at(row, first, kind), {}, {}

        def block(base: int) -> Value:
            if base not in blocks:
                inside = (0 <= columns.first + base + lane < self.image for lane in range(self.lanes))
                mask = sum(here << lane for lane, here in enumerate(inside))
                blocks[base] = self._load(b, b.at(start, base, kind), mask) if mask else zeros
            return blocks[base]

        for offset in self.offsets:
            rest = offset % self.lanes
            one, other = block(offset - rest), block(offset - rest + self.lanes) if rest else zeros
            if one is not zeros or other is not zeros:
                found[offset] = self.isa.slide(b, one, other, rest) if rest else one
        return found

    def _picked(self, b: Builder, row: Value, columns: Columns) -> dict[int, Value]:
        """Out of one run that holds the row, whatever the offset."""
        starts, found = range(0, self.step * self.lanes, self.lanes), {}
        masks = [(1 << max(0, min(self.lanes, self.image - start))) - 1 for start in starts]
        zeros, kind = Value(self.isa.vector(self.compute), "zeroinitializer"), STORAGE[self.dtype]
        parts = [
            self._load(b, b.at(row, start, kind), mask) if mask else zeros
            for start, mask in zip(starts, masks, strict=True)
        ] + [zeros]  # fmt: skip
        for offset in self.offsets:
            places = (offset + lane * self.step for lane in range(columns.lanes))
            wanted = [place if 0 <= place < self.image else self.image for place in places]  # there is zero
            wanted += [self.image] * (self.lanes - columns.lanes)
            if any(place < self.image for place in wanted):
                found[offset] = pick(b, parts, wanted)
        return found

    def _picked_and_slid(self, b: Builder, row: Value, first: Index, columns: Columns) -> dict[int, Value]:
        """Numbers of each phase out of one run, and for other offsets the same by one place further, and a number."""
        lanes, step, kind = self.lanes, self.step, STORAGE[self.dtype]
        zeros, before = Value(self.isa.vector(self.compute), "zeroinitializer"), step * columns.first
        start, found = b.at(row, b.mul(first, step), kind), {}

        def inside(place: int) -> bool:
            return columns.whole or 0 <= before + place < self.image

        def part(base: int) -> Value:
            mask = sum(inside(base + lane) << lane for lane in range(lanes))
            return self._load(b, b.at(start, base, kind), mask) if mask else zeros

        def number(place: int) -> Value:
            if not inside(place):
                return zeros
            return self.isa.splat(b, self.isa.load(b, self.dtype, b.at(start, place, kind)), lanes)

        parts = [*(part(base) for base in range(0, step * lanes, lanes)), zeros]
        for phase in sorted({offset % step for offset in self.offsets}):
            wanted = [offset // step for offset in self.offsets if offset % step == phase]
            places = range(phase, step * lanes, step)
            picked = [at if inside(at) else self.image - before for at in places]  # there is zero
            by_turns = {0: pick(b, parts, picked) if any(map(inside, places)) else zeros}
            for n in range(1, max(wanted) + 1):
                by_turns[n] = self.isa.slide(b, by_turns[n - 1], number((lanes + n - 1) * step + phase), 1)
            for n in range(-1, min(wanted) - 1, -1):
                by_turns[n] = self.isa.slide(b, number(n * step + phase), by_turns[n + 1], lanes - 1)
            met = {n: range(phase + n * step, phase + (n + columns.lanes) * step, step) for n in wanted}
            found |= {n * step + phase: by_turns[n] for n in wanted if any(map(inside, met[n]))}
        return found

    def _load(self, b: Builder, address: Value, mask: int | None, place: int = 0) -> Value:
        """The lanes of a mask, of the vector at a place of the row."""
        some = None if mask in (None, self._all) else Value(f"i{self.lanes}", str(mask))
        return self.isa.load(b, self.dtype, address, self.lanes, mask=some, near=self._near(place, self.lanes))

    def _near(self, place: int, many: int) -> tuple[int, int]:
        """Numbers of the row before so many from a place on, and behind."""
        return max(0, place), max(0, self.image - place - many)


@frozen(kw_only=True)
class WordReads(RowReads):
    """Words of two bf16 side by side, at offsets that are bases each; lanes that nobody wants may be anything."""

    @property
    def bases(self) -> list[int]:
        """All offsets."""
        return list(self.offsets)

    def _masks(self, base: int, first: int, lanes: int) -> list[int]:
        """All lanes that lie in the row."""
        return RowReads._masks(self, base, first, self.lanes)

    def places(self, base: int, first: int) -> set[int]:
        """What a vector from output `first` on reads at an offset."""
        start = self.step * first + base
        return set(range(max(0, start), min(self.image, start + self.step * self.lanes)))

    def vectors(self, b: Builder, row: Value, first: Index, columns: Columns) -> dict[int, Value]:
        """By offset, of the vector that begins with output `first`."""
        return self.words(b, b.at(row, b.mul(first, self.step), STORAGE[self.dtype]), columns)
