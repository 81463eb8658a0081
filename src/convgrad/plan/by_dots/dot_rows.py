"""Plans for one channel per group by dot products: rows of bf16 read where they lie, by words of two neighbours."""

from __future__ import annotations

from itertools import product
from math import prod
from typing import NamedTuple

from convgrad.plan.by_matrix.matrix import watched
from convgrad.plan.depthwise.plane_rows import PlaneRowsPlan
from convgrad.values import frozen

PairOfTaps = tuple[int | None, int | None]  # that meet a word, None beside the taps
PAIR = 2


class Words(NamedTuple):
    """What the outputs of a vector, of all phases of the innermost axis, read of a row."""

    met: dict[int, list[tuple[int, int]]]  # by offset of a word from output 0: phases, and which pair of taps it meets
    pairs: tuple[PairOfTaps, ...]  # all of them


@frozen(kw_only=True)
class DotRowsPlan(PlaneRowsPlan):
    """A PlaneRowsPlan whose outputs j read a row two numbers apart: neighbours meet two taps by one dot product.

    Where an axis has no stride, outputs of even and of odd places are phases. Tasks look at all that they read, and
    where dot products would take numbers for what they are not, `fallback` computes everything again.
    """

    KIND = "along outputs of planes, rows in place, by dot products"
    ON_UNITS = True
    IN_ORDER = False

    fallback: PlaneRowsPlan

    @property
    def together(self) -> int:
        """Planes whose rows share a vector."""
        return 1

    @property
    def words(self) -> Words:
        """As few products as can be, of as few words."""
        axis, found = self.axes[-1], []
        phases = [dict(self.offsets(axis, phase)) for phase in axis.phases]
        for odd in product((0, 1), repeat=len(phases)):
            met: dict[int, list[tuple[int, PairOfTaps]]] = {}
            for f, (taps, rest) in enumerate(zip(phases, odd, strict=True)):
                for base in sorted({(offset - rest) // PAIR * PAIR + rest for offset in taps}):
                    met.setdefault(base, []).append((f, (taps.get(base), taps.get(base + 1))))
            found.append((sum(map(len, met.values())), len(met), sum(base % PAIR for base in met), met))
        *_, best = min(found, key=lambda one: one[:-1])
        pairs = tuple(sorted({pair for every in best.values() for _, pair in every}, key=str))
        numbered = {base: [(f, pairs.index(pair)) for f, pair in best[base]] for base in sorted(best)}
        return Words(numbered, pairs)

    @property
    def pair_rows(self) -> tuple[int, ...]:
        """Extents of packed weights of a group: taps of the outer axes, pairs of taps of a row."""
        return (*self.problem.taps[:-1], len(self.words.pairs))

    @property
    def products(self) -> int:
        """Dot products of a tile."""
        return sum(map(len, self.row_offsets.values())) * sum(map(len, self.words.met.values()))

    def validate(self) -> None:
        """Assert what the emitter relies on."""
        PlaneRowsPlan.validate(self)
        assert self.problem.dtype == "bf16"
        assert self.axes[-1].in_step == PAIR
        assert abs(self.axes[-1].offset_step) == 1
        assert prod(self.pair_rows)

    def __str__(self) -> str:
        said = PlaneRowsPlan.__str__(self).replace("rows in place", "rows in place by dot products", 1)
        return "\n".join([said, *watched(self.fallback)])


@frozen(kw_only=True)
class DotRowsTogetherPlan(DotRowsPlan):
    """A DotRowsPlan of rows that fill half of a vector or less: those of some `planes` share it, part by part."""

    KIND = "along outputs of several planes, rows in place, by dot products"

    planes: int

    @property
    def order_kind(self) -> str:
        """As those of a plane alone."""
        return DotRowsPlan.KIND

    @property
    def together(self) -> int:
        """As said."""
        return self.planes

    @property
    def part(self) -> int:
        """Lanes of a plane."""
        return self.lanes // self.planes

    def validate(self) -> None:
        """Assert what the emitter relies on."""
        DotRowsPlan.validate(self)
        assert max(self.axes[-1].count, -(-self.axes[-1].in_extent // PAIR)) <= self.part
        assert self.planes <= self.run <= self.problem.groups
        assert self.problem.out_dtype == "bf16"

    def __str__(self) -> str:
        return DotRowsPlan.__str__(self).replace("dot products", f"dot products, {self.planes} planes in a vector", 1)
