"""Pairs of windows side by side, read as bf16 lies in a row: sixteen for a vector, which dot products take."""

from __future__ import annotations

from convgrad.codegen.copies.interleave import pick
from convgrad.codegen.depthwise.plane_reads import Columns, RowReads
from convgrad.codegen.ir import Builder
from convgrad.codegen.ir_module import Index, Value, vector_of
from convgrad.codegen.isa.base import STORAGE
from convgrad.codegen.isa.dots import PAIR
from convgrad.values import frozen


@frozen(kw_only=True)
class PairReads(RowReads):
    """Numbers of bf16 as they are stored, two windows for each lane of a sum, `step` numbers of the row apart.

    What no window meets is zero, so that nothing but what was looked at meets the zeros of the other side.
    """

    windows: int  # of a row

    @property
    def stride(self) -> int:
        """From one window to the next."""
        return self.step // PAIR

    @property
    def bases(self) -> list[int]:
        """Of whole windows."""
        return sorted({offset // self.stride * self.stride for offset in self.offsets})

    def vectors(self, b: Builder, row: Value, first: Index, columns: Columns) -> dict[int, Value]:
        """By offset, of the vector that begins with pair `first`; those that are nothing but zeros are left out."""
        return self.picked(b, self.runs(b, row, first, columns))

    def runs(self, b: Builder, row: Value, first: Index, columns: Columns) -> dict[int, list[Value]]:
        """By base, what is read of the row."""
        start, kind = b.at(row, b.mul(first, self.step), STORAGE[self.dtype]), STORAGE[self.dtype]
        many, found = PAIR * self.lanes, {}
        for base in self.bases:
            read = [None] * self.stride if columns.whole else self._masks_of(base, columns)
            if any(mask is None or mask for mask in read):
                found[base] = [self._pairs(b, b.at(start, base + n * many, kind), mask) for n, mask in enumerate(read)]
        return found

    def picked(self, b: Builder, runs: dict[int, list[Value]]) -> dict[int, Value]:
        """By offset, what of these is met."""
        found = {}
        for offset in self.offsets:
            base = offset // self.stride * self.stride
            if base in runs:
                wanted = [lane * self.stride + offset - base for lane in range(PAIR * self.lanes)]
                found[offset] = runs[base][0] if self.stride == 1 else pick(b, runs[base], wanted)
        return found

    def _masks_of(self, base: int, columns: Columns) -> list[int | None]:
        """Numbers, a bit each, that are read of every vector of a run."""
        many, start = PAIR * self.lanes, self.step * columns.first + base
        windows = min(PAIR * columns.lanes, self.windows - PAIR * columns.first)
        wanted = [place // self.stride < windows and 0 <= start + place < self.image
                  for place in range(self.stride * many)]  # fmt: skip
        runs = (wanted[at : at + many] for at in range(0, len(wanted), many))
        return [None if all(run) else sum(want << lane for lane, want in enumerate(run)) for run in runs]

    def _pairs(self, b: Builder, address: Value, mask: int | None) -> Value:
        many = PAIR * self.lanes
        if mask == 0:
            return Value(vector_of(many, STORAGE[self.dtype]), "zeroinitializer")
        some = None if mask is None else Value(f"i{many}", str(mask))
        return self.isa.load_bits(b, self.dtype, address, many, mask=some)
