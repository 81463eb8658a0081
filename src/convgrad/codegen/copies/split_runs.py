"""Weights whose taps lie between channels, in pieces for a matrix unit: put in order and split 16 lanes at a time.

What becomes of 32 channels of 16 lanes is turned once, in the order in which it lies, and stays in L1 until it is
split. Lines of the next ones are asked for meanwhile: they are runs of a few hundred bytes, which end before a
processor has found out that they are.
"""

from __future__ import annotations

from math import prod

from convgrad.codegen.copies.asking import ask
from convgrad.codegen.copies.halves import HalvesCopy
from convgrad.codegen.copies.split_weights import PAIRS, SplitPanel
from convgrad.codegen.copies.squares import Dim
from convgrad.codegen.copies.zeroing import emit_zero
from convgrad.codegen.ir import Builder
from convgrad.codegen.ir_module import Index, Value
from convgrad.codegen.isa.base import BYTES
from convgrad.plan.by_matrix.matrix import COLUMNS, halves_of
from convgrad.plan.costs import LINE
from convgrad.values import frozen, replace


@frozen(kw_only=True)
class SplitRuns(SplitPanel):
    """The same, where the taps of a channel are one run, and so are those of the channels of a lane, or of the lanes.

    staging     room for a block of channels of 16 lanes, as f32
    """

    staging: Value

    @property
    def _every(self) -> int:
        """Taps."""
        return prod(extent for extent, _ in self.taps)

    def _tile(
        self, b: Builder, source: Value, target: Value, tile: int, lanes: tuple[Index, int], channels: tuple[int, int]
    ) -> None:
        (_, lane_step), (size, step) = lanes, channels
        behind = self.depth * step if self.room > self.depth else self.next_panel
        further = COLUMNS * lane_step if tile + 1 < self.tiles else behind - tile * COLUMNS * lane_step
        later = self._lines(b.beyond(source, further * BYTES[self.copy.src_dtype]), lane_step, step)
        self._stage(b, source, lanes, channels)
        self._split(b, target, size, later)

    def _stage(self, b: Builder, source: Value, lanes: tuple[Index, int], channels: tuple[int, int]) -> None:
        """staging[channel, tap, lane] = source."""
        (some, lane_step), (size, step) = lanes, channels
        if some != COLUMNS:
            with b.when(b.compare("ne", some, COLUMNS)):
                emit_zero(b, self.copy.isa, "f32", self.staging, size * self._every * COLUMNS)
        plain = replace(self.copy, dst_dtype="f32", pieces=None, source_order=True)
        of_channel = Dim(size, step, self._every * COLUMNS)
        plain.emit(b, source, self.staging, [Dim(some, lane_step, 1), of_channel, Dim(self._every, 1, COLUMNS)])

    def _split(self, b: Builder, target: Value, size: int, later: AskFor) -> None:
        """Pairs of channels, tap by tap."""
        first, _ = runs = halves_of(size)
        row = self._every * COLUMNS
        pairs = HalvesCopy(
            copy=replace(self.copy, src_dtype="f32"), lanes=(COLUMNS, COLUMNS), lane_step=1, apart=first * row
        )  # fmt: skip

        def tap(t: Index, _: object) -> None:
            of, to = b.at(self.staging, b.mul(t, COLUMNS), "float"), b.at(target, b.mul(t, self._tap_steps[-1]), "i16")
            pairs.emit(b, of, to, [], Dim(first, row, PAIRS), runs, lambda q, _: later.ask(b, q, t))

        b.loop(0, self._every, tap, name="tap")

    def _lines(self, source: Value, lane_step: int, step: int) -> AskFor:
        """Those that the next 16 lanes and 32 channels are in."""
        size = BYTES[self.copy.src_dtype]
        if step == self._every:  # a run for every lane
            at_tap = self.depth * size
            return AskFor(source, lane_step * size, at_tap, tuple(range(0, at_tap, LINE)))
        return AskFor(source, step * size, COLUMNS * size, (0, self.depth // 2 * step * size))


@frozen
class AskFor:
    """Lines at source + pair · of_pair + tap · of_tap + each of `places`, in bytes."""

    source: Value
    of_pair: int
    of_tap: int
    places: tuple[int, ...]

    def ask(self, b: Builder, pair: Index, tap: Index) -> None:
        """For those of a pair and a tap."""
        ask(b, b.beyond(self.source, b.dot([(pair, self.of_pair), (tap, self.of_tap)])), self.places)
