"""X or Y of one channel per group by dot products, channels side by side: neighbours are paired in registers."""

from __future__ import annotations

from functools import cache
from math import prod

from convgrad.plan.axes import GatherAxis
from convgrad.plan.by_dots.dot_rows import PAIR, PairOfTaps
from convgrad.plan.by_matrix.matrix import watched
from convgrad.plan.costs import LINE
from convgrad.plan.depthwise.depthwise_data import DepthwiseDataPlan
from convgrad.plan.general.data import DataPlan
from convgrad.values import frozen

REGISTERS, WAITING = 32, 3  # of vectors, and those of them for what is read
TOGETHER = 1.56  # dot products and other instructions in a cycle, of which one is a dot product
UNPACK, LOOK = 0.4, 4.0  # instructions, in effect, to put a vector of words together, and to look at one of numbers
LOAD, LOAD_WEIGHTS = 0.45, 0.85  # cycles for a vector that begins with a cache line, and for one of weights
NEAR_BYTES, FETCH = 32 * 1024, 2.0  # of L1, and cycles for a line from L2
OVERLAP = 0.1  # of what all of that takes, that is not hidden
LATENCY = 8.0  # cycles of a dot product
ROOM, WORD_ROOM, SPILL = 16, 1.8, 0.37  # registers for sums and words of a row, and cycles of a row for each too many
TILE, STORE = 8.5, 1.6  # cycles to begin a tile, and to store an output
Met = dict[int, tuple[tuple[int, int], ...]]  # by place of a word in a row: columns of a tile, and pairs of taps
WORD = 0.3  # of a product, to put a word together


@frozen(kw_only=True)
class DotDepthwisePlan(DepthwiseDataPlan):
    """A DepthwiseDataPlan whose tiles put two neighbours of a row together, which meet two taps at once.

    A block of lanes is two vectors: numbers of 32 groups at a place, as they lie, and those beside them become two
    vectors of words. Packed weights are pairs of taps, a word for every lane. Tasks look at all that they read, and
    where dot products would take numbers for what they are not, `fallback` computes everything again.
    """

    KIND = "across groups, rows together, by dot products"
    ON_UNITS = True
    reads_again = False
    watch = True

    fallback: DataPlan | None = None

    @property
    def met(self) -> Met:
        """By place of a word in a row, from what output 0 meets at tap 0: columns that meet it, at which pair."""
        return _words(self.columns, self.tile[-1])[0]

    @property
    def partner(self) -> int:
        """From a column of a word to the other one."""
        return abs(self.columns.offset_step)

    @property
    def pairs(self) -> tuple[PairOfTaps, ...]:
        """Of taps of a row."""
        return _words(self.columns, self.tile[-1])[1]

    @property
    def row_products(self) -> int:
        """Dot products of a row of a tile, at a tap of the rows."""
        return PAIR * sum(map(len, self.met.values()))

    @property
    def row_weights(self) -> int:
        """Vectors that they meet."""
        return PAIR * len(self.pairs)

    @property
    def sums(self) -> int:
        """Of a tile."""
        return PAIR * len(self.outputs(-2)) * len(self.outputs(-1))

    @property
    def holds_weights(self) -> bool:
        """Whether registers hold all weights of a plane of taps next to the sums."""
        return self.kernel[0] * self.row_weights + self.sums + WAITING <= REGISTERS

    @property
    def panel(self) -> int:
        """Packed weights of a block of lanes, in words."""
        return prod(self.problem.taps[:-1]) * len(self.pairs) * self.width

    @property
    def new_columns(self) -> frozenset[int]:
        """Of `column_steps`, columns that no tile before has met; all of them, if there are irregular gaps."""
        met, step = set(self.column_steps()), self.columns.in_step
        last = {place % step: max(other for other in met if (other - place) % step == 0) for place in met}
        if any(place + step not in met for place in met if place != last[place % step]):
            return frozenset(met)
        return frozenset(place for place in met if place + self.tile[-1] * step not in met)

    @property
    def new_rows(self) -> frozenset[int]:
        """Of `row_steps`, rows that no tile before has met; all of them, if there are gaps between them."""
        met = {place for place, _ in self.row_steps}
        step = self.tile[-2] * self.rows.in_step
        together = len(met) == max(met) - min(met) + 1
        return frozenset(place for place in met if not together or place + step not in met)

    def validate(self) -> None:
        """Assert what the emitter relies on."""
        self.validate_tiles()
        assert self.width == PAIR * self.lanes
        assert self.lanes < self.problem.groups
        assert self.lane_groups == min(self.width, self.problem.groups)
        assert self.problem.dtype == "bf16"
        assert self.fallback is not None

    def __str__(self) -> str:
        said = DepthwiseDataPlan.__str__(self).replace("rows together,", "rows together, by dot products,", 1)
        return "\n".join([said, *watched(self.fallback)])


def cycles_by_dots(plan: DotDepthwisePlan) -> float:
    """Of all tiles, as far as caches hold what they read, at one multiply-add a cycle."""
    outer, columns = plan.axes[:-2], len(plan.column_steps())
    rows, visits = len(plan.row_steps), sum(len(met) for _, met in plan.row_steps)
    words, products = len(plan.met), visits * plan.row_products
    looks = len(plan.new_rows) * len(plan.new_columns)
    beside = UNPACK * PAIR * rows * words + LOOK * looks
    weights = plan.kernel[0] * plan.row_weights
    loads = LOAD * rows * columns * (1 if plan.whole_vectors else 2)
    loads += LOAD_WEIGHTS * (weights if plan.holds_weights else visits * plan.row_weights)
    lines = rows * columns + weights  # which the other blocks of lanes take the place of, from tile to tile
    fetches = FETCH * lines if plan.lane_blocks * lines * LINE > NEAR_BYTES else 0.0
    work = max(products, (products + beside) / TOGETHER, loads, fetches, LATENCY * products / plan.sums)
    work += OVERLAP * (products + beside + loads)
    work += SPILL * rows * max(0, plan.sums + WORD_ROOM * words - ROOM)
    sums = prod(axis.count for axis in outer) * (TILE + STORE * plan.sums / PAIR)
    return plan.lane_blocks * plan.tiles * (prod(axis.visits(1) for axis in outer) * work + sums)


@cache
def _words(axis: GatherAxis, columns: int) -> tuple[Met, tuple[PairOfTaps, ...]]:
    """Few products, of few words: such as begin at every other place that taps are apart, or at any."""
    outputs, step = [(m, phase) for m in range(columns) for phase in axis.phases], abs(axis.offset_step)
    found = []
    for rest in (0, 1, None):
        met: dict[int, list[tuple[int, PairOfTaps]]] = {}
        for n, (m, phase) in enumerate(outputs):
            first = m * axis.in_step + phase.offset
            taps = {first + t * axis.offset_step: phase.tap + t * axis.tap_step for t in range(phase.taps)}
            bases = sorted(taps)[::PAIR]
            if rest is not None:
                bases = sorted({(at // step - rest) // PAIR * PAIR * step + rest * step + at % step for at in taps})
            for base in bases:
                met.setdefault(base, []).append((n, (taps.get(base), taps.get(base + step))))
        pairs = {pair for every in met.values() for _, pair in every}
        products = sum(map(len, met.values()))
        found.append((products + WORD * len(met), len(pairs), str(rest), met))
    *_, best = min(found, key=lambda one: one[:-1])
    pairs = tuple(sorted({pair for every in best.values() for _, pair in every}, key=str))
    return {base: tuple((n, pairs.index(pair)) for n, pair in best[base]) for base in sorted(best)}, pairs
