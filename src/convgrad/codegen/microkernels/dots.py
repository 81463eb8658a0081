"""The register tile of dot products: outputs times channels, like `contract.Tile`, two terms of the sum at a time."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial

from convgrad.codegen.ir import Builder
from convgrad.codegen.ir_module import Index, Value
from convgrad.codegen.isa.base import apart
from convgrad.codegen.isa.dots import LANES, PAIR, DotUnit
from convgrad.codegen.isa.halves import lower_half, with_lower_half
from convgrad.codegen.loops.ahead import Fetch
from convgrad.codegen.microkernels.reduction import Reduction
from convgrad.values import frozen

Place = tuple[int, int]
WRITTEN_OUT = 4  # pairs


@frozen
class Steps:
    """The innermost axis of a sum, or a part of it, whose steps are so many pairs each."""

    axis: Reduction
    pairs: int


@frozen(kw_only=True)
class DotTile:
    """C[r, v] += Σ A[rows[r] + 2 k] · B[columns[v] + k · b_step], pairs, over the reductions and the pairs k of a step.

    Places and steps count bf16. A pair of A meets all lanes; one of B is there for every lane, side by side. C stays in
    registers: rows · columns + columns + 1 of them.
    """

    unit: DotUnit
    rows: Sequence[int]
    columns: Sequence[int]
    b_step: int
    in_place: bool = False  # pairs of A are read by every product: LLVM would keep those that several rows share
    ahead: int = 0  # bytes by which B is fetched into L1 before it is read
    halves: frozenset[int] = frozenset()  # columns of which the first half of the lanes is computed

    def sum(
        self, b: Builder, a: Value, x: Value, first: Sequence[Value], outer: Sequence[Reduction],
        inner: Sequence[Steps], walks: Sequence[Fetch] = (),
    ) -> list[Value]:  # fmt: skip
        """The tile, which starts from `first`, per row and column; `inner` are parts of one axis, in turn.

        Lines of `walks` are asked for on the way.
        """
        places = [(r, v) for r in range(len(self.rows)) for v in range(len(self.columns))]
        tile, parts = dict(zip(places, first, strict=True)), [place for place in places if place[1] in self.halves]
        for walk in walks:
            walk.begin(b)
        tile |= {place: lower_half(b, tile[place]) for place in parts}
        tile = self._reduce(b, a, x, tile, outer, inner, walks, 0)
        tile |= {place: with_lower_half(b, tile[place]) for place in parts}
        return [tile[place] for place in places]

    def narrowed(
        self, b: Builder, sums: Sequence[Value], lanes: Sequence[int]
    ) -> list[tuple[int, int, Value]]:  # fmt: skip
        """The tile as bf16: the row of each vector, its first lane, and what two vectors of sums become, or one.

        `lanes` are the first ones of the columns.
        """
        vectors, found = len(self.columns), []
        for n, row in enumerate(range(0, len(sums), vectors)):
            for together in self._together(lanes):
                parts = [lower_half(b, sums[row + v]) if v in self.halves else sums[row + v] for v in together]
                found.append((n, lanes[together[0]], self.unit.narrow(b, parts)))
        return found

    def _together(self, lanes: Sequence[int]) -> list[list[int]]:
        """Columns by two, side by side, or one by one; halves are alone."""
        found: list[list[int]] = []
        for v, lane in enumerate(lanes):
            last = found[-1] if found else []
            beside = len(last) == 1 and not {v, *last} & self.halves and lane == lanes[last[0]] + LANES
            if beside:
                last.append(v)
            else:
                found.append([v])
        return found

    def _reduce(
        self, b: Builder, a: Value, x: Value, tile: dict[Place, Value], outer: Sequence[Reduction],
        inner: Sequence[Steps], walks: Sequence[Fetch], done: Index,
    ) -> dict[Place, Value]:  # fmt: skip
        axes = [*outer, *(steps.axis for steps in inner[:1])]
        if not axes[0].pace:
            for walk in walks:
                walk.go_on(b, done)
            walks = ()

        def moved(i: Index, now: dict[Place, Value], axis: Reduction) -> tuple[Value, Value, dict[Place, Value]]:
            assert isinstance(axis.b_step, int)
            return b.at(a, b.mul(i, axis.a_step), "i16"), b.at(x, b.mul(i, axis.b_step), "i16"), now

        if outer:
            axis, *rest = outer

            def of_axis(i: Index, now: dict[Place, Value]) -> dict[Place, Value]:
                return self._reduce(b, *moved(i, now, axis), rest, inner, walks, b.add(done, b.mul(i, axis.pace)))

            return b.loop(axis.start, axis.stop, of_axis, carried=tile, name="k")
        for steps in inner:
            step = partial(self._step, b, steps.pairs)
            axis = steps.axis

            def of_step(
                i: Index,
                now: dict[Place, Value],
                axis: Reduction = axis,
                step: Callable[..., dict[Place, Value]] = step,
            ) -> dict[Place, Value]:
                for walk in walks:
                    walk.go_on(b, b.add(done, b.mul(i, axis.pace)))
                return step(*moved(i, now, axis))

            tile = b.loop(axis.start, axis.stop, of_step, carried=tile, name="k")
        return tile

    def _step(self, b: Builder, pairs: int, a: Value, x: Value, tile: dict[Place, Value]) -> dict[Place, Value]:
        """All pairs of a step, a few of them written out together."""
        whole = pairs - pairs % WRITTEN_OUT

        def some(k: Index, now: dict[Place, Value], count: int) -> dict[Place, Value]:
            here, there = b.at(a, b.mul(k, PAIR), "i16"), b.at(x, b.mul(k, self.b_step), "i16")
            here, there = b.hidden(here), b.hidden(there)
            for n in range(count):
                now = self._pair(b, b.at(here, n * PAIR, "i16"), b.at(there, n * self.b_step, "i16"), now)
            return now

        tile = b.loop(0, whole, lambda k, now: some(k, now, WRITTEN_OUT), step=WRITTEN_OUT, carried=tile, name="pair")
        return some(whole, tile, pairs - whole) if pairs > whole else tile

    def of_b(self, b: Builder, lines: list[Value]) -> list[Value]:
        """The pairs of each column at these places."""
        lanes = [LANES // 2 if v in self.halves else LANES for v in range(len(lines))]
        return [self.unit.load(b, line, many) for line, many in zip(lines, lanes, strict=True)]

    def _pair(self, b: Builder, a: Value, x: Value, tile: dict[Place, Value]) -> dict[Place, Value]:
        lines = [b.at(x, column, "i16") for column in self.columns]
        for line in lines if self.ahead else ():
            b.prefetch(b.beyond(line, self.ahead), keep=3)
        of_b = self.of_b(b, lines)
        tile = dict(tile)
        for r, row in enumerate(self.rows):
            place = b.at(a, row, "i16")
            if self.in_place or len(of_b) == 1:
                for v, vector in enumerate(of_b):
                    tile[r, v] = self.unit.multiply_add_one(b, place, vector, tile[r, v])
                continue
            of_a = self.unit.splat(b, place)
            of_a = apart(b, of_a) if self.halves else of_a  # LLVM would broadcast it twice
            for v, vector in enumerate(of_b):
                pair = lower_half(b, of_a) if v in self.halves else of_a
                tile[r, v] = self.unit.multiply_add(b, pair, vector, tile[r, v])
        return tile


def columns_of(width: int, step: int) -> range:
    """Where the vectors of a block of lanes begin, `step` numbers apart."""
    return range(0, width // LANES * step, step)
