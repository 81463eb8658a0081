"""X or Y of one channel per group by dot products, channels side by side: neighbours are paired in registers."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache
from math import prod

from convgrad.plan.axes import GatherAxis
from convgrad.plan.data import DataPlan
from convgrad.plan.depthwise_data import DepthwiseDataPlan
from convgrad.plan.dot_rows import PAIR, PairOfTaps
from convgrad.plan.matrix import watched


@dataclass(frozen=True, slots=True, kw_only=True)
class DotDepthwisePlan(DepthwiseDataPlan):
    """A DepthwiseDataPlan whose tiles put every two neighbours of a row together, which meet two taps at once.

    Packed weights are pairs of taps, a word for every lane. Tasks look at all that they read, and where dot products
    would take numbers for what they are not, `fallback` computes everything again.
    """

    KIND = "across groups, rows together, by dot products"
    ON_UNITS = True
    reads_again = False
    watch = True

    fallback: DataPlan | None = None

    @property
    def met(self) -> dict[int, tuple[tuple[int, int], ...]]:
        """By place of a word in a row, from what output 0 meets at tap 0: outputs that meet it, at which pair."""
        return _words(self.columns, self.tile[-1])[0]

    @property
    def pairs(self) -> tuple[PairOfTaps, ...]:
        """Of taps of a row."""
        return _words(self.columns, self.tile[-1])[1]

    @property
    def places(self) -> tuple[int, int]:
        """Of a row, likewise, the first and the last that a tile reads."""
        axis = self.columns
        ends = (0, (axis.taps - 1) * axis.offset_step)
        return min(ends), max(ends) + (self.tile[-1] - 1) * axis.in_step

    @property
    def row_products(self) -> int:
        """Dot products of a row of a tile, at a tap of the rows."""
        return sum(map(len, self.met.values()))

    @property
    def row_weights(self) -> int:
        """Vectors that they meet."""
        return len(self.pairs)

    @property
    def panel(self) -> int:
        """Packed weights of a block of lanes, in words."""
        return prod(self.problem.taps[:-1]) * len(self.pairs) * self.width

    @property
    def new_words(self) -> tuple[int, ...]:
        """Words that hold all of a row that the tile before has not read."""
        _, last = self.places
        return tuple(base for base in self.met if base + 1 > last - self.tile[-1] * self.columns.in_step)

    @property
    def new_rows(self) -> frozenset[int]:
        """Of `row_steps`, rows that no tile before has met; all of them, if there are gaps between them."""
        met = {place for place, _ in self.row_steps}
        step = self.tile[-2] * self.rows.in_step
        together = len(met) == max(met) - min(met) + 1
        return frozenset(place for place in met if not together or place + step not in met)

    def validate(self) -> None:
        """Assert what the emitter relies on."""
        DepthwiseDataPlan.validate(self)
        assert self.problem.dtype == "bf16"
        assert abs(self.columns.offset_step) == 1
        assert self.fallback is not None

    def __str__(self) -> str:
        said = DepthwiseDataPlan.__str__(self).replace("rows together,", "rows together, by dot products,", 1)
        return "\n".join([said, *watched(self.fallback)])


@cache
def _words(axis: GatherAxis, columns: int) -> tuple[dict[int, tuple[tuple[int, int], ...]], tuple[PairOfTaps, ...]]:
    """As few products as can be, of words that begin at every other place."""
    (phase,) = axis.phases
    found = []
    for rest in range(PAIR):
        met: dict[int, list[tuple[int, PairOfTaps]]] = {}
        for n in range(columns):
            taps = {n * axis.in_step + r * axis.offset_step: phase.tap + r * axis.tap_step for r in range(phase.taps)}
            for base in sorted({(place - rest) // PAIR * PAIR + rest for place in taps}):
                met.setdefault(base, []).append((n, (taps.get(base), taps.get(base + 1))))
        pairs = {pair for every in met.values() for _, pair in every}
        found.append((sum(map(len, met.values())), len(pairs), rest, met))
    *_, best = min(found, key=lambda one: one[:-1])
    pairs = tuple(sorted({pair for every in best.values() for _, pair in every}, key=str))
    return {base: tuple((n, pairs.index(pair)) for n, pair in best[base]) for base in sorted(best)}, pairs
