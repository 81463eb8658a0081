"""Lowering of an InPlaceDotsPlan: an InPlaceWeightsPlan whose products are dot products of pairs of windows."""

from __future__ import annotations

from dataclasses import replace

from convgrad.codegen.in_place_weights import InPlaceSums
from convgrad.codegen.ir import Builder
from convgrad.codegen.ir_module import Index, Module, Value, index
from convgrad.codegen.isa.base import STORAGE
from convgrad.codegen.isa.dots import DOT_UNITS, WORDS
from convgrad.codegen.microkernels.contract import Tile
from convgrad.codegen.module import KernelModule
from convgrad.codegen.pair_watch import PairWatch
from convgrad.codegen.stages import Places
from convgrad.codegen.weights import emit_weights
from convgrad.plan.in_place_dots import InPlaceDotsPlan


def lower_in_place_dots(plan: InPlaceDotsPlan) -> KernelModule:
    """Sums of vectors, whose lanes are added on the way to the weights, and what takes over where numbers are bad."""
    module, sums = Module(), InPlaceDotSums(plan)
    stages, shared, scratch = emit_weights(module, sums)
    kernel = KernelModule(ir="", stages=stages, shared_bytes=shared, scratch_bytes=scratch)
    assert plan.fallback is not None
    return sums.watch.complete(module, kernel, InPlaceSums(plan.fallback))


class InPlaceDotSums(InPlaceSums):
    """The first stage."""

    plan: InPlaceDotsPlan

    def __init__(self, plan: InPlaceDotsPlan):
        self.unit = DOT_UNITS[plan.isa]()
        InPlaceSums.__init__(self, plan)
        self.watch = PairWatch(plan, self.shared_bytes)

    def _tile_of_taps(self, first: int) -> Tile:
        return replace(InPlaceSums._tile_of_taps(self, first), loads=self._load, adds=self.unit.multiply_add)

    def _load(self, b: Builder, dtype: str, address: Value, lanes: int, *, mask: Value | None = None) -> Value:
        """Pairs, of which a mask holds either half."""
        return b.cast("bitcast", self.isa.load_bits(b, dtype, address, self.plan.together * lanes, mask=mask), WORDS)

    def task(self, b: Builder, at: Places, task: Value) -> None:
        """Watching both operands."""
        self.watch.begin(b)
        InPlaceSums.task(self, b, at, task)
        self.watch.end(b, at.shared, task)

    def _in_place(self, b: Builder, at: Places, starts: list[Index]) -> None:
        """Look at what is about to be multiplied."""
        for name in "xy":
            self._look(b, at, name, starts)
        InPlaceSums._in_place(self, b, at, starts)

    def _look(self, b: Builder, at: Places, name: str, starts: list[Index]) -> None:
        """At a block of a tensor, of planes that its windows meet; what they meet beside it is of other blocks."""
        plan, p, outer = self.plan, self.plan.problem, len(self.plan.outer)
        strides = (p.strides[name][0], *p.strides[name][3:])
        channels, kind = p.shapes[name][2], STORAGE[p.dtype]
        axis, start = plan.axes[outer], starts[outer]
        rest = b.minimum(b.sub(axis.windows, start), plan.block[outer])
        many, first = (rest, start) if len(plan.flat) == 1 else (b.mul(rest, plan.pitch), b.mul(start, plan.pitch))
        base = b.at(at.of(name), b.add(b.mul(self.bundle, p.strides[name][1]), first), kind)

        def channel(c: Index, plane: Value) -> None:
            run = b.at(plane, b.mul(c, p.strides[name][2]), kind)
            whole = b.mul(b.floor_div(many, plan.window_lanes), plan.window_lanes)
            b.loop(0, whole, lambda i, _: note(b.at(run, i, kind), None), step=plan.window_lanes, name="look")
            left = b.sub(many, whole)
            if left != 0:
                with b.when(b.compare("sgt", left, 0)):
                    note(b.at(run, whole, kind), index(left))

        def note(address: Value, count: Value | None) -> None:
            self.watch.note(b, name, self.isa.load_bits(b, p.dtype, address, plan.window_lanes, count))

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
