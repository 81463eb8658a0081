"""Lowering of an InPlaceDotsPlan: an InPlaceWeightsPlan whose products are dot products of pairs of windows."""

from __future__ import annotations

from convgrad.codegen.in_place.in_place_weights import InPlaceSums
from convgrad.codegen.ir import Builder
from convgrad.codegen.ir_module import Index, Value, index
from convgrad.codegen.isa.base import STORAGE
from convgrad.codegen.isa.dots import PAIR, WORDS
from convgrad.codegen.microkernels.contract import Tile
from convgrad.codegen.stages import Places
from convgrad.codegen.watch.pair_watch import WatchedPairs
from convgrad.plan.by_dots.in_place_dots import InPlaceDotsPlan, RowDotsPlan
from convgrad.values import replace


class WatchedSums(WatchedPairs, InPlaceSums):
    """Stages whose first one looks at the numbers of a block before it multiplies them."""

    plan: InPlaceDotsPlan | RowDotsPlan

    def _in_place(self, b: Builder, at: Places, starts: list[Index]) -> None:
        for name in "xy":
            self._look(b, at, name, starts)
        super()._in_place(b, at, starts)

    def _look(self, b: Builder, at: Places, name: str, starts: list[Index]) -> None:
        """At a block of a tensor, of planes that its windows meet; what they meet beside it is of other blocks."""
        plan, p, outer = self.plan, self.plan.problem, len(self.plan.outer)
        strides = (p.strides[name][0], *p.strides[name][3:])
        channels, kind = p.shapes[name][2], STORAGE[p.dtype]
        first, count = self._block_of(b, name, starts[outer])
        row = p.shapes[name][-1] if len(plan.flat) > 1 else 1
        if strides[outer] == row:  # one run
            count, row = 1, b.mul(count, row)
        base = b.at(at.of(name), b.add(b.mul(self.bundle, p.strides[name][1]), b.mul(first, strides[outer])), kind)

        def channel(c: Index, plane: Value) -> None:
            here = b.at(plane, b.mul(c, p.strides[name][2]), kind)
            b.loop(0, count, lambda j, _: self._look_along(b, name, b.at(here, b.mul(j, strides[outer]), kind), row),
                   name="row")  # fmt: skip

        def planes(n: int, plane: Value) -> None:
            """Of outer axes from the nth on."""
            if n == outer:
                b.loop(0, channels, lambda c, _: channel(c, plane), name="channel")
                return
            axis, start = plan.axes[n], starts[n]
            if name == "y" or n == 0:
                planes(n + 1, b.at(plane, b.mul(start, strides[n]), kind))
                return

            def of_tap(r: Index, _: object) -> None:
                place = b.add(b.mul(start, axis.stride), b.sub(b.mul(r, axis.dilation), axis.low))
                with b.when(b.compare("ult", place, axis.image)):
                    planes(n + 1, b.at(plane, b.mul(place, strides[n]), kind))

            b.loop(0, axis.taps, of_tap, name="tap")

        planes(0, base)

    def _block_of(self, b: Builder, name: str, start: Index) -> tuple[Index, Index]:
        """The first element of the first flat axis that belongs to a block, and how many do: all are of one block."""
        plan, n = self.plan, len(self.plan.outer)
        axis, stop = plan.axes[n], b.add(start, plan.block[n])
        if name == "y":
            return start, b.sub(b.minimum(stop, axis.windows), start)
        first = b.minimum(b.mul(start, axis.stride), axis.image)
        last = b.minimum(b.mul(stop, axis.stride), axis.image)
        if axis.windows * axis.stride < axis.image:
            last = b.select(b.compare("sge", index(stop), axis.windows), index(axis.image), index(last))
        return first, b.sub(last, first)

    def _look_along(self, b: Builder, name: str, run: Value, many: Index) -> None:
        lanes, dtype = self.plan.window_lanes, self.plan.problem.dtype
        whole = b.mul(b.floor_div(many, lanes), lanes)

        def note(i: Index, count: Value | None) -> None:
            self.watch.note(b, name, self.isa.load_bits(b, dtype, b.at(run, i, STORAGE[dtype]), lanes, count))

        b.loop(0, whole, lambda i, _: note(i, None), step=lanes, name="look")
        left = b.sub(many, whole)
        if left != 0:
            with b.when(b.compare("sgt", left, 0)):
                note(whole, index(left))


class InPlaceDotSums(WatchedSums):
    """The same of vectors that are read as they lie."""

    def _tile_of_taps(self, first: int) -> Tile:
        return replace(InPlaceSums._tile_of_taps(self, first), loads=self._load, adds=self.unit.multiply_add)

    def _load(self, b: Builder, dtype: str, address: Value, lanes: int, *, mask: Value | None = None) -> Value:
        """Pairs, of which a mask holds either half."""
        return b.cast("bitcast", self.isa.load_bits(b, dtype, address, PAIR * lanes, mask=mask), WORDS)
