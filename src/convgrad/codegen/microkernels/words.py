"""bf16 read as words of two numbers, either of which is f32 with the other one's bits gone.

One instruction makes a vector of every second number, where two make one of numbers side by side.
"""

from __future__ import annotations

from collections.abc import Sequence

from convgrad.codegen.ir import Builder
from convgrad.codegen.ir_module import Value, vector_of
from convgrad.codegen.isa.base import BYTES, STORAGE, shuffle
from convgrad.codegen.isa.conversions import number_of_words
from convgrad.codegen.loops.ahead import Fetch
from convgrad.codegen.microkernels.contract import Read, Tile
from convgrad.codegen.microkernels.products import Taps
from convgrad.codegen.microkernels.reduction import Reduction
from convgrad.plan.kinds import as_kind
from convgrad.values import frozen, replace

ODD = 1 << 44  # in offsets of columns of odd places


def pairs_reader(lanes: int) -> Read:
    """How columns of even and of odd places are read: each word once, and remembered."""
    words = vector_of(lanes, "i32")
    read: dict[tuple[str, int], Value] = {}

    def vector(b: Builder, x: Value, offset: int) -> Value:
        odd = offset > ODD // 2
        place = offset - ODD * odd
        if (x.text, place) not in read:
            read[x.text, place] = b.load(words, b.at(x, place, STORAGE["bf16"]), BYTES["bf16"])
        return number_of_words(b, read[x.text, place], odd=odd)

    return vector


@frozen(kw_only=True)
class WordsTile(Tile):
    """A tile whose vectors of B, bf16 side by side two by two, are of even and of odd places while it is summed."""

    def sum(
        self, b: Builder, a: Value, x: Value, first: Sequence[Value], reductions: Sequence[Reduction],
        taps: Taps = ((0, 0),), walks: Sequence[Fetch] = (),
    ) -> list[Value]:  # fmt: skip
        """The tile, in the order in which it is stored."""
        lanes = self.isa.lanes(self.compute)
        columns = tuple(v + odd for v in self.columns[::2] for odd in (0, ODD))
        apart = [[2 * lane + odd for lane in range(lanes)] for odd in range(2)]
        beside = [[place // 2 + place % 2 * lanes for place in range(n, n + lanes)] for n in (0, lanes)]
        tile = replace(self, columns=columns, b_read=pairs_reader(lanes))
        sums = Tile.sum(tile, b, a, x, _by_twos(b, first, apart), reductions, taps, walks)
        return _by_twos(b, sums, beside)


def in_words(tile: Tile) -> Tile:
    """The tile as a `WordsTile` where it can be: on x86, which has no instruction to widen bf16."""
    lanes = tile.isa.lanes(tile.compute)
    by_twos = all(odd == even + lanes for even, odd in zip(tile.columns[::2], tile.columns[1::2], strict=False))
    plain = not (tile.a_vector or tile.halves or tile.loads or tile.adds or tile.groups)
    words = tile.b_dtype == "bf16" and tile.isa.assembly and plain and by_twos and len(tile.columns) % 2 == 0
    return as_kind(WordsTile, tile) if words else tile


def _by_twos(b: Builder, vectors: Sequence[Value], orders: Sequence[list[int]]) -> list[Value]:
    """Of every two vectors, laid end to end, two of other orders."""
    pairs = zip(vectors[::2], vectors[1::2], strict=True)
    return [shuffle(b, one, other, order) for one, other in pairs for order in orders]
