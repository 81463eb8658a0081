"""Weights as a matrix unit reads them, in pieces: two input channels side by side for every lane."""

from __future__ import annotations

from collections.abc import Sequence

from convgrad.codegen.copies.asking import SPLIT_AHEAD, PanelSteps, ask, by_far_taps
from convgrad.codegen.copies.copying import Copy
from convgrad.codegen.copies.halves import HalvesCopy
from convgrad.codegen.copies.squares import Dim
from convgrad.codegen.copies.zeroing import emit_zero
from convgrad.codegen.ir import Builder
from convgrad.codegen.ir_module import Index, Value
from convgrad.codegen.isa.base import BYTES
from convgrad.plan.by_matrix.matrix import COLUMNS, halves_of
from convgrad.plan.costs import LINE
from convgrad.plan.strides import row_major
from convgrad.problem.conv import Ints
from convgrad.values import frozen

PAIRS = 2 * COLUMNS  # numbers of a row of pairs


@frozen(kw_only=True)
class SplitPanel:
    """target[taps, block of channels, piece, tile of 16 lanes, pair, lane, number of the pair] = pieces of source.

    Partners are half a block of channels apart.

    tiles       side by side in a block of lanes
    depth       channels of a block
    taps        (extent, source step) per spatial axis
    room        channels that a panel holds
    last        channels of a block that is not whole
    far         whether L2 may not keep the source, of which lines are asked for before they are read
    next_panel  numbers of the source from here to what is packed next
    """

    copy: Copy
    tiles: int
    depth: int
    taps: Sequence[tuple[int, int]]
    room: int
    last: int
    far: bool
    next_panel: int

    def emit(
        self, b: Builder, source: Value, target: Value, lanes: tuple[Index, int], channels: tuple[Index, int]
    ) -> None:
        """`lanes` and `channels` are (how many there are, source step); what a panel holds besides becomes zero."""
        (many, lane_step), (count, step) = lanes, channels
        if not (many == self.tiles * COLUMNS and count == self.room and self.room % self.depth == 0):
            size = self._tap_steps[0] * self.taps[0][0]
            emit_zero(b, self.copy.isa, "f32", target, size // 2)  # two bf16 per f32

        def block(n: Index, size: int) -> None:
            for tile in range(self.tiles):
                of = self.copy.src_at(b, source, b.add(b.mul(n, self.depth * step), tile * COLUMNS * lane_step))
                to = b.at(target, b.add(b.mul(n, self._block_step), tile * self.depth * COLUMNS), "i16")
                some = b.minimum(b.sub(many, tile * COLUMNS), COLUMNS)
                if isinstance(some, int):
                    if some > 0:
                        self._tile(b, of, to, tile, (some, lane_step), (size, step))
                    continue
                with b.when(b.compare("sgt", some, 0)):
                    self._tile(b, of, to, tile, (some, lane_step), (size, step))

        whole = b.floor_div(count, self.depth)
        b.loop(0, whole, lambda n, _: block(n, self.depth), name="block")
        if self.last:
            with b.when(b.compare("ne", b.mul(whole, self.depth), count)):
                block(whole, self.last)

    def _tile(
        self, b: Builder, source: Value, target: Value, tile: int, lanes: tuple[Index, int], channels: tuple[int, int]
    ) -> None:
        """A block of channels at all taps; if weights are `far`, lines are asked for that are read some time later."""
        (some, lane_step), (size, step) = lanes, channels
        first, _ = runs = halves_of(size)
        pairs = HalvesCopy(copy=self.copy, lanes=(some, some), lane_step=lane_step, apart=first * step)
        run, number = Dim(first, step, PAIRS), BYTES[self.copy.src_dtype]
        places = (0, pairs.apart * number if lane_step == 1 else LINE)

        def tap(of: Value, to: Value, further: Index) -> None:
            pairs.emit(b, of, to, [], run, runs, lambda _, here: ask(b, b.beyond(here, further), places))

        taps = [Dim(extent, src, dst) for (extent, src), dst in zip(self.taps, self._tap_steps, strict=True)]
        ahead = 2 * SPLIT_AHEAD // self.depth
        steps = PanelSteps(self.room // self.depth, self.depth * step, self.next_panel)
        if not (self.far and by_far_taps(b, self.copy, source, target, taps, steps, ahead, tap)):
            pairs.emit(b, source, target, taps, run, runs)

    @property
    def _block_step(self) -> int:
        """Of the target, from a block of channels to the next."""
        assert self.copy.pieces is not None
        return self.copy.pieces.count * self.tiles * self.depth * COLUMNS

    @property
    def _tap_steps(self) -> Ints:
        """Of the target."""
        return row_major(tuple(extent for extent, _ in self.taps), self.room // self.depth * self._block_step)
