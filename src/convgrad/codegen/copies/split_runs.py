"""Weights whose taps lie between channels, in pieces for a matrix unit: put in order and split 16 lanes at a time.

What becomes of 32 channels of 16 lanes is turned once, in the order in which it lies, and stays in L1 until it is
split. Lines of the next ones are asked for meanwhile: they are runs of a few hundred bytes, which end before a
processor has found out that they are.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from convgrad.codegen.copies.asking import ask
from convgrad.codegen.copies.copying import Copy
from convgrad.codegen.copies.halves import HalvesCopy
from convgrad.codegen.copies.squares import Dim
from convgrad.codegen.copies.zeroing import emit_zero
from convgrad.codegen.ir import Builder
from convgrad.codegen.ir_module import Index, Value
from convgrad.codegen.isa.base import BYTES
from convgrad.plan.by_matrix.matrix import COLUMNS, DEPTH, halves_of
from convgrad.plan.costs import LINE

PAIRS = 2 * COLUMNS  # numbers of a row of pairs


@dataclass(frozen=True, slots=True, kw_only=True)
class SplitRuns:
    """target[tap, block of channels, piece, tile of 16 lanes, pair, lane, number of the pair] = pieces of source.

    Of each channel the taps are one run in the source, and so are those of the channels of a lane, or of the lanes of a
    channel. Partners are half a block of channels apart.

    tiles       side by side in a block of lanes
    every       taps
    room        channels that a panel holds
    last        channels of a block that is not whole
    staging     room for 32 channels of 16 lanes, as f32
    next_panel  numbers of the source from here to what is packed next
    """

    copy: Copy
    tiles: int
    every: int
    room: int
    last: int
    staging: Value
    next_panel: int

    def emit(
        self, b: Builder, source: Value, target: Value, lanes: tuple[Index, int], channels: tuple[Index, int]
    ) -> None:
        """`lanes` and `channels` are (how many there are, source step); what a panel holds besides becomes zero."""
        (many, _), (count, step) = lanes, channels
        if not (many == self.tiles * COLUMNS and count == self.room and self.room % DEPTH == 0):
            emit_zero(b, self.copy.isa, "f32", target, self.every * self._tap // 2)  # two bf16 per f32
        whole = b.floor_div(count, DEPTH)

        def block(n: Index, size: int) -> None:
            of = self.copy.src_at(b, source, b.mul(n, DEPTH * step))
            self._block(b, of, b.at(target, b.mul(n, self._block_numbers), "i16"), lanes, (size, step))

        b.loop(0, whole, lambda n, _: block(n, DEPTH), name="block")
        if self.last:
            with b.when(b.compare("ne", b.mul(whole, DEPTH), count)):
                block(whole, self.last)

    @property
    def _block_numbers(self) -> int:
        """Of the target, per block of channels."""
        assert self.copy.pieces is not None
        return self.copy.pieces.count * self.tiles * DEPTH * COLUMNS

    @property
    def _tap(self) -> int:
        return -(-self.room // DEPTH) * self._block_numbers

    def _block(
        self, b: Builder, source: Value, target: Value, lanes: tuple[Index, int], channels: tuple[int, int]
    ) -> None:  # fmt: skip
        (many, lane_step), (_, step) = lanes, channels
        for tile in range(self.tiles):
            some = b.minimum(b.sub(many, tile * COLUMNS), COLUMNS)
            of = self.copy.src_at(b, source, tile * COLUMNS * lane_step)
            to = b.at(target, tile * DEPTH * COLUMNS, "i16")
            behind = DEPTH * step if self.room > DEPTH else self.next_panel
            further = COLUMNS * lane_step if tile + 1 < self.tiles else behind - tile * COLUMNS * lane_step
            next_one = b.beyond(of, further * BYTES[self.copy.src_dtype])

            def one(of=of, to=to, some=some, next_one=next_one) -> None:
                self._stage(b, of, (some, lane_step), channels)
                self._split(b, to, channels[0], self._lines(next_one, lane_step, step))

            if isinstance(some, int):
                if some > 0:
                    one()
                continue
            with b.when(b.compare("sgt", some, 0)):
                one()

    def _stage(self, b: Builder, source: Value, lanes: tuple[Index, int], channels: tuple[int, int]) -> None:
        """staging[channel, tap, lane] = source."""
        (some, lane_step), (size, step) = lanes, channels
        if some != COLUMNS:
            with b.when(b.compare("ne", some, COLUMNS)):
                emit_zero(b, self.copy.isa, "f32", self.staging, size * self.every * COLUMNS)
        plain = replace(self.copy, dst_dtype="f32", pieces=None, source_order=True)
        of_channel = Dim(size, step, self.every * COLUMNS)
        plain.emit(b, source, self.staging, [Dim(some, lane_step, 1), of_channel, Dim(self.every, 1, COLUMNS)])

    def _split(self, b: Builder, target: Value, size: int, later: AskFor) -> None:
        """Pairs of channels, tap by tap."""
        first, _ = runs = halves_of(size)
        row = self.every * COLUMNS
        pairs = HalvesCopy(
            copy=replace(self.copy, src_dtype="f32"), lanes=(COLUMNS, COLUMNS), lane_step=1, apart=first * row
        )  # fmt: skip

        def tap(t: Index, _: object) -> None:
            of, to = b.at(self.staging, b.mul(t, COLUMNS), "float"), b.at(target, b.mul(t, self._tap), "i16")
            pairs.emit(b, of, to, [], Dim(first, row, PAIRS), runs, lambda q, _: later.ask(b, q, t))

        b.loop(0, self.every, tap, name="tap")

    def _lines(self, source: Value, lane_step: int, step: int) -> AskFor:
        """Those that the next 16 lanes and 32 channels are in."""
        size = BYTES[self.copy.src_dtype]
        if step == self.every:  # a run for every lane
            at_tap = DEPTH * size
            return AskFor(source, lane_step * size, at_tap, tuple(range(0, at_tap, LINE)))
        return AskFor(source, step * size, COLUMNS * size, (0, DEPTH // 2 * step * size))


@dataclass(frozen=True, slots=True)
class AskFor:
    """Lines at source + pair · of_pair + tap · of_tap + each of `places`, in bytes."""

    source: Value
    of_pair: int
    of_tap: int
    places: tuple[int, ...]

    def ask(self, b: Builder, pair: Index, tap: Index) -> None:
        """For those of a pair and a tap."""
        ask(b, b.beyond(self.source, b.dot([(pair, self.of_pair), (tap, self.of_tap)])), self.places)
