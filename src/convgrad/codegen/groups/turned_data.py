"""Lowering of a TurnedDataPlan: that of a DataPlan with sums for each turn of a group, and weights in that order."""

from __future__ import annotations

from collections.abc import Sequence

from convgrad.codegen.copies.panels import pack_bias
from convgrad.codegen.general.data import DataStages
from convgrad.codegen.ir import Builder
from convgrad.codegen.ir_module import Index, Value, lanes_of
from convgrad.codegen.isa.base import STORAGE, shuffle
from convgrad.codegen.loops.ahead import Fetch
from convgrad.codegen.loops.lanes import lane_dims, lane_origin, weights_steps
from convgrad.codegen.loops.sweep import Sweep
from convgrad.codegen.microkernels.contract import Tile
from convgrad.codegen.microkernels.products import Taps
from convgrad.codegen.microkernels.reduction import Reduction
from convgrad.codegen.stages import Places
from convgrad.plan.groups.turned_data import TurnedDataPlan
from convgrad.plan.kinds import as_kind
from convgrad.values import frozen


@frozen(kw_only=True)
class TurnedTile(Tile):
    """A tile of one column, whose sums are `turns` vectors each until they are stored."""

    turns: int

    def emit(
        self, b: Builder, a: Value, x: Value, c: Value, reductions: Sequence[Reduction], first: list[Value] | None,
        taps: Taps = ((0, 0),), walks: Sequence[Fetch] = (),
    ) -> None:  # fmt: skip
        """As of any tile."""
        self.ask(b, c)
        first = self.load(b, c) if first is None else first
        lanes, turns = self.isa.lanes(self.compute), range(self.turns)
        sums = as_kind(Tile, self, columns=tuple(d * lanes for d in turns), c_columns=tuple(0 for _ in turns))
        parts = sums.sum(b, a, x, sums.zeros(), reductions, taps, walks)
        rows = (parts[r : r + self.turns] for r in range(0, len(parts), self.turns))
        tile = [b.binary("fadd", start, turned(b, row)) for start, row in zip(first, rows, strict=True)]
        self.put(b, c, tile)


def turned(b: Builder, parts: Sequence[Value]) -> Value:
    """Their sum, part d turned from lane c to lane c xor d: half of them at a time."""
    parts, half = list(parts), len(parts) // 2
    while half:
        lanes = [lane ^ half for lane in range(lanes_of(parts[0]))]
        parts = [b.binary("fadd", parts[d], shuffle(b, parts[d + half], parts[d + half], lanes)) for d in range(half)]
        half //= 2
    return parts[0]


def exchanged(b: Builder, vectors: Sequence[Value]) -> list[Value]:
    """Lane c of vector d from vector c xor d, bit by bit of d."""
    lanes, bit, vectors = lanes_of(vectors[0]), 1, list(vectors)
    while bit < len(vectors):
        kept = [lane + lanes * bool(lane & bit) for lane in range(lanes)]
        vectors = [shuffle(b, vector, vectors[d ^ bit], kept) for d, vector in enumerate(vectors)]
        bit *= 2
    return vectors


class TurnedSweep(Sweep):
    """All tiles of a task, for one block of groups."""

    plan: TurnedDataPlan

    def _tile(self, shape: tuple[int, ...]) -> Tile:
        return as_kind(TurnedTile, Sweep._tile(self, shape), groups=None, a_shared=True, turns=self.plan.turns)


class TurnedStages(DataStages):
    """The stages of a plan."""

    plan: TurnedDataPlan
    sweep = TurnedSweep

    def _pack(
        self, b: Builder, at: Places, which: tuple[Index, Index, Index], target: Value, bias: Value | None
    ) -> None:  # fmt: skip
        """Lanes are channels of the input: vector k of a tap has the weights of output k, then those of c xor k."""
        plan, (group, block, _) = self.plan, which
        group_step, out_step, in_step = weights_steps(plan)
        origin = lane_origin(plan, b, group, block, group_step, in_step)
        source = b.at(at.w, origin, STORAGE[plan.problem.dtype])
        lanes = lane_dims(plan, block, b, group_step, in_step)
        self.pack_panel(b, at, source, target, lanes=lanes, channels=(plan.turns, plan.turns, out_step))
        b.loop(0, plan.taps, lambda tap, _: self._exchange(b, target, tap), name="tap")
        if bias is not None:
            pack_bias(plan, b, at, group, block, bias)

    def _exchange(self, b: Builder, panel: Value, tap: Index) -> None:
        """Lane c of vector d gets that of vector c xor d."""
        plan = self.plan
        places = [b.at(panel, b.add(b.mul(tap, plan.turns * plan.width), d * plan.width), self.kind)
                  for d in range(plan.turns)]  # fmt: skip
        vectors = [self.isa.load(b, plan.compute, place, plan.lanes) for place in places]
        for place, vector in zip(places, exchanged(b, vectors), strict=True):
            self.isa.store(b, plan.compute, vector, place)
