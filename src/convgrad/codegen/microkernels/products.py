"""The products that a register tile adds at one step of its sums, and their order: what several of them read, once."""

from __future__ import annotations

from collections.abc import Sequence
from graphlib import CycleError, TopologicalSorter
from heapq import heappop, heappush
from itertools import pairwise

from convgrad.values import frozen

TOGETHER = 128  # numbers, 512 bytes of f32, within which LLVM reads neighbours one after the other
FEW_KEPT = 6  # vectors that memory keeps between two taps as fast as they are read again
Product = tuple[int, int, int, int]  # offsets of A and B, row, column
Taps = Sequence[tuple[int, int]]  # offsets of A and B


@frozen(kw_only=True)
class Products:
    """A[rows[r] + v · a_column + a] · B[columns[v] + b] for C[r, v], over the taps (a, b)."""

    rows: tuple[int, ...]
    columns: tuple[int, ...]
    taps: Taps
    a_column: int  # 0: all columns meet the same of A
    by_column: bool  # rather than by row, in one tap
    registers: int  # that C leaves to the operands
    in_rounds: bool  # places that share reads take turns, so that sums wait for each other less
    met: Sequence[Sequence[int]] | None = None  # rows that take part, per tap; else all

    def all(self) -> list[Product]:
        """Tap by tap."""
        return [product for n in range(len(self.taps)) for product in self._of(n)]

    def _of(self, n: int) -> list[Product]:
        a_tap, b_tap = self.taps[n]
        rows = range(len(self.rows)) if self.met is None else self.met[n]
        places = [(r, v) for r in rows for v in range(len(self.columns))]
        if self.by_column:
            places.sort(key=lambda place: place[1])
        return [(self.rows[r] + a_tap + v * self.a_column, self.columns[v] + b_tap, r, v) for r, v in places]

    def shared(self) -> int | None:
        """Which operand, 0 or 1, several taps read at the same place while the other one fits the registers."""
        products = self.all()
        places = [len({product[side] for product in products}) for side in (0, 1)]
        met = [len(self.rows)] * len(self.taps) if self.met is None else [len(rows) for rows in self.met]
        visits = [
            sum(met) * (len(self.columns) if self.a_column else 1),
            sum(map(bool, met)) * len(self.columns),
        ]
        for side in (0, 1):
            if places[side] < visits[side] and places[1 - side] <= self.registers:
                return side
        return None

    @property
    def _outgrows_registers(self) -> bool:
        """Whether places of A that later taps meet again, each of which LLVM reads once, are too many to stay."""
        if self.shared() is not None:
            return False
        places = [{product[0] for product in self._of(n)} for n in range(len(self.taps))]
        later = [set[int]().union(*places[n + 1 :]) for n in range(len(places))]
        return max(len(here & after) for here, after in zip(places, later, strict=True)) > self.registers + FEW_KEPT

    def fills_registers(self, *, a_vector: bool, as_they_lie: bool) -> bool:
        """Whether vectors of A, or of B, read as early as LLVM reads neighbours, would drive sums out of registers.

        Vectors that are read again for each of many taps have to be operands in memory, `as_they_lie`, to cost less.
        """
        full = self.registers <= len(self.columns) + 1
        if not a_vector:
            return full and len(self.taps) > 1 and self.shared() is None
        beside = any(after - before < TOGETHER for before, after in pairwise(sorted(self.rows)))
        alone = len(self.taps) == 1 < len(self.columns) and not self.by_column
        return (full and beside and alone) or (as_they_lie and self._outgrows_registers)

    def steps(self, shared: int | None) -> list[list[Product]]:
        """Products in the order of arithmetic: place by place of the shared operand, else tap by tap.

        The terms of every sum come in the order of the taps; places in an order in which that is so.
        """
        if shared is None:
            return [self._of(n) for n in range(len(self.taps))]
        by_place: dict[int, list[Product]] = {}
        before: dict[int, dict[int, None]] = {}  # places that come before a place
        last: dict[tuple[int, int], int] = {}
        for product in self.all():
            place, of_sum = product[shared], product[2:]
            by_place.setdefault(place, []).append(product)
            earlier = before.setdefault(place, {})
            if of_sum in last:
                earlier[last[of_sum]] = None
            last[of_sum] = place
        order = in_order(before, in_rounds=self.in_rounds)
        return [by_place[place] for place in order] if order else self.steps(None)


def in_order(before: dict[int, dict[int, None]], *, in_rounds: bool) -> list[int]:
    """Numbers after all that come before them, [] if there is no such order.

    Of those that may be next the least one; `in_rounds`, all of them, then all that may follow.
    """
    sorter, ready, order = TopologicalSorter(before), [], []
    try:
        sorter.prepare()
    except CycleError:
        return []
    while sorter.is_active():
        for number in sorter.get_ready():
            heappush(ready, number)
        batch = [heappop(ready) for _ in range(len(ready) if in_rounds else 1)]
        order += batch
        sorter.done(*batch)
    return order
