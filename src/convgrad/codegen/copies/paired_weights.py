"""Weights of bf16 as a matrix unit reads them: pairs of input channels, side by side for every lane."""

from __future__ import annotations

from collections.abc import Sequence

from convgrad.codegen.copies.asking import WORDS_AHEAD, PanelSteps, ask, by_far_taps
from convgrad.codegen.copies.paired_copies import PairedCopy
from convgrad.codegen.copies.paired_runs import PairedRun
from convgrad.codegen.copies.squares import Dim
from convgrad.codegen.copies.words import PAIR
from convgrad.codegen.ir import Builder
from convgrad.codegen.ir_module import Index, Value, constant
from convgrad.codegen.isa.base import BYTES, shuffle
from convgrad.codegen.isa.conversions import HIGH
from convgrad.plan.by_matrix.matrix import COLUMNS
from convgrad.plan.costs import SETS_BYTES
from convgrad.values import frozen

ROW_WORDS = COLUMNS  # of a pair of channels, in one tile
WORD = 4  # bytes
MOST_TOGETHER = 12  # taps, whose lines of a pair may share a set of L1


@frozen(kw_only=True)
class PairedPanel:
    """target[taps, block of channels, tile of 16 lanes, pair, lane] = pairs of the channels of `source`.

    depth       channels of a block
    room        channels that a panel holds
    lanes       (extent, source step), `tiles` of them side by side in the panel
    channels    (how many there are, source step)
    taps        as in the source, in words of the target
    ahead       pairs by which rows are asked for before they are read, where lanes lie side by side; 0: not at all
    far         whether L2 may not keep the source, and what is read next is asked for where channels lie side by side
    next_panel  numbers of the source from here to what is packed next
    staging     room for `staged` pairs of a tile at all taps, where these lie between channels: the channels and taps
                of a lane are one run
    """

    copy: PairedCopy
    tiles: int
    depth: int
    taps: Sequence[Dim]
    staging: Value
    staged: int
    room: int
    far: bool
    next_panel: int
    ahead: int = 0

    def emit(
        self, b: Builder, source: Value, target: Value, lanes: tuple[Index, int], channels: tuple[Index, int]
    ) -> None:
        """All of it, but for what lies beyond the lanes and channels that there are."""
        (many, lane_step), (count, step) = lanes, channels
        whole, lanes_in_all = b.floor_div(count, self.depth), self.tiles * COLUMNS
        rest = b.floor_div(b.sub(count, b.mul(whole, self.depth)), PAIR)

        def block(n: Index, pairs: Index) -> None:
            if lane_step == 1 and many == lanes_in_all:
                in_rows(n, pairs)
            elif lane_step == 1 and not isinstance(many, int):
                some = b.compare("ne", many, lanes_in_all)
                b.either(some, lambda: by_tiles(n, pairs), lambda: in_rows(n, pairs))
            else:
                by_tiles(n, pairs)

        def in_rows(n: Index, pairs: Index) -> None:
            of, to = self.copy.src_at(b, source, b.mul(n, self.depth * step)), b.at(target, b.mul(n, self.block), "i32")
            self._rows(b, of, to, pairs, step, list(self.taps))

        def by_tiles(n: Index, pairs: Index) -> None:
            def tile(t: Index, _: object) -> None:
                of = self.copy.src_at(b, source, b.add(b.mul(n, self.depth * step), b.mul(t, COLUMNS * lane_step)))
                to = b.at(target, b.add(b.mul(n, self.block), b.mul(t, self._tile_words)), "i32")
                some = COLUMNS if many == lanes_in_all else b.minimum(b.sub(many, b.mul(t, COLUMNS)), COLUMNS)
                if self._runs(lane_step, step):
                    self._run_by_run(b, of, to, pairs, step, Dim(some, lane_step, 1))
                else:
                    self._squares(b, of, to, Dim(pairs, PAIR * step, ROW_WORDS), Dim(some, lane_step, 1))

            # not those without a lane, which has no last one to read again
            tiles = self.tiles if many == lanes_in_all else b.floor_div(b.add(many, COLUMNS - 1), COLUMNS)
            b.loop(0, tiles, tile, name="tile")

        b.loop(0, whole, lambda n, _: block(n, self.depth // PAIR), name="block")
        if rest != 0:
            with b.when(b.compare("sgt", rest, 0)):
                block(whole, rest)

    def emit_odd(
        self, b: Builder, source: Value, target: Value, lanes: tuple[Index, int], channels: tuple[Index, int]
    ) -> None:
        """The last channel of an odd number, next to zeros."""
        (many, lane_step), (count, step) = lanes, channels
        pair = b.floor_div(count, PAIR)
        whole = b.floor_div(pair, self.depth // PAIR)
        there = b.dot([(whole, self.block), (b.sub(pair, b.mul(whole, self.depth // PAIR)), ROW_WORDS)])
        last = b.mul(b.mul(pair, PAIR), step)

        def tile(t: Index, _: object) -> None:
            of = self.copy.src_at(b, source, b.add(last, b.mul(t, COLUMNS * lane_step)))
            to = b.at(target, b.add(there, b.mul(t, self._tile_words)), "i32")
            some = b.minimum(b.maximum(b.sub(many, b.mul(t, COLUMNS)), 0), COLUMNS)
            self.copy.with_partner(None).emit(b, of, to, [*self.taps, Dim(some, lane_step, 1)])

        b.loop(0, self.tiles, tile, name="tile")

    @property
    def block(self) -> int:
        """Words of the channels of a block in all tiles."""
        return self.tiles * self._tile_words

    @property
    def _tile_words(self) -> int:
        return self.depth // PAIR * ROW_WORDS

    @property
    def _every(self) -> int:
        """Taps."""
        total = 1
        for tap in self.taps:
            assert isinstance(tap.extent, int)
            total *= tap.extent
        return total

    def _runs(self, lane_step: int, step: int) -> bool:
        """Whether the taps of a channel, and channels, follow each other in the source."""
        if 1 in (lane_step, step) or step != self._every or not self.staged:
            return False
        place = 1
        for tap in reversed(self.taps):
            assert isinstance(tap.extent, int)
            if tap.extent > 1 and tap.src != place:
                return False
            place *= tap.extent
        return True

    def _squares(self, b: Builder, source: Value, target: Value, pairs: Dim, lanes: Dim) -> None:
        """Whatever lies side by side, turned or not; if it is `far`, rows that are read later are asked for."""
        row = lanes.src * BYTES[self.copy.src_dtype]

        def tap(of: Value, to: Value, further: Index) -> None:
            ask(b, b.beyond(of, further), (lane * row for lane in range(COLUMNS)))
            self.copy.emit(b, of, to, [pairs, lanes])

        far = self.far and pairs.src == PAIR
        steps, ahead = (
            PanelSteps(-(-self.room // self.depth), self.depth, self.next_panel),
            PAIR * WORDS_AHEAD // self.depth,
        )
        if not (far and by_far_taps(b, self.copy, source, target, self.taps, steps, ahead, tap)):
            self.copy.emit(b, source, target, [*self.taps, pairs, lanes])

    def _rows(self, b: Builder, source: Value, target: Value, pairs: Index, step: int, taps: list[Dim]) -> None:
        """All lanes of two channels at a time, so that lines of weights are met once."""
        if taps:
            tap, *rest = taps

            def of_tap(t: Index, _: object) -> None:
                there = b.at(target, b.mul(t, tap.dst), "i32")
                self._rows(b, self.copy.src_at(b, source, b.mul(t, tap.src)), there, pairs, step, rest)

            b.loop(0, tap.extent, of_tap, name="tap")
            return
        copy, isa = self.copy, self.copy.isa

        def pair(p: Index, _: object) -> None:
            row, to = copy.src_at(b, source, b.mul(p, PAIR * step)), b.at(target, b.mul(p, ROW_WORDS), "i32")
            for t in range(0, self.tiles, PAIR):
                lanes = min(PAIR, self.tiles - t) * COLUMNS
                places = [copy.src_at(b, row, n * step + t * COLUMNS) for n in range(PAIR)]
                for place in places if self.ahead else ():
                    b.prefetch(b.beyond(place, self.ahead * PAIR * step * BYTES[copy.src_dtype]), keep=3)
                even, odd = (copy.load_numbers(b, place, lanes) for place in places)
                for m in range(lanes // COLUMNS):
                    wanted = [lane + n * lanes for lane in range(m * COLUMNS, (m + 1) * COLUMNS) for n in range(PAIR)]
                    words = shuffle(b, even, odd, wanted)
                    self.copy.note(b, words)
                    isa.store_bits(b, words, b.at(to, (t + m) * self._tile_words, "i32"))

        b.loop(0, pairs, pair, name="pair")

    def _run_by_run(self, b: Builder, source: Value, target: Value, pairs: Index, step: int, lane: Dim) -> None:
        """As many pairs at a time as there is room for, or words as they are to be at once."""
        run = PairedRun(copy=self.copy, every=self._every, step=self.taps_step)
        collide = self._every > MOST_TOGETHER and WORD * self.taps_step % SETS_BYTES == 0
        if run.takes and not collide:
            run.emit(b, source, target, pairs, lane)
            return
        if self.staged >= self.depth // PAIR:
            self._run(b, source, target, pairs, lane)
            return

        def some(first: Index, _: object) -> None:
            of = self.copy.src_at(b, source, b.mul(first, PAIR * step))
            to = b.at(target, b.mul(first, ROW_WORDS), "i32")
            self._run(b, of, to, b.minimum(b.sub(pairs, first), self.staged), lane)

        b.loop(0, pairs, some, step=self.staged, name="pairs")

    def _run(self, b: Builder, source: Value, target: Value, pairs: Index, lane: Dim) -> None:
        """By way of staging: words of whatever numbers lie side by side, then the halves that belong together."""
        every = self._every
        run = PairedRun(copy=self.copy, every=every, step=COLUMNS, beside=every * COLUMNS)
        if run.takes:
            run.emit(b, source, self.staging, pairs, lane)
            self._spread(b, target, pairs)
            return
        self.copy.with_partner(1).emit(
            b, source, self.staging, [Dim(b.mul(pairs, every), PAIR, ROW_WORDS), Dim(lane.extent, lane.src, 1)]
        )
        step = self.taps_step

        def pair(p: Index, tap: Index, odd: int) -> None:
            first = b.mul(p, PAIR * every)
            words = []
            for number in range(PAIR):
                run = b.add(b.add(first, number * every), tap)
                place = b.floor_div(run, PAIR)
                words.append(b.load(f"<{ROW_WORDS} x i32>", b.at(self.staging, b.mul(place, ROW_WORDS), "i32"), 64))
            even, other = words
            kind = even.type
            high = (odd + every) % PAIR
            low = b.binary("lshr", even, constant(kind, 16)) if odd else b.binary("and", even, constant(kind, 65535))
            top = b.binary("and", other, constant(kind, HIGH)) if high else b.binary("shl", other, constant(kind, 16))
            there = b.add(b.mul(tap, step), b.mul(p, ROW_WORDS))
            b.store(b.binary("or", low, top), b.at(target, there, "i32"), 64)

        for odd in range(min(PAIR, every)):
            b.loop(
                odd, every, lambda tap, _, odd=odd: b.loop(0, pairs, lambda p, _: pair(p, tap, odd), name="pair"),
                step=PAIR, name="tap",
            )  # fmt: skip

    def _spread(self, b: Builder, target: Value, pairs: Index) -> None:
        """From staging, where taps lie side by side, to where they are far apart, one after the other."""
        kind = f"<{ROW_WORDS} x i32>"

        def pair(tap: Index, p: Index) -> None:
            place = b.mul(b.add(b.mul(p, self._every), tap), ROW_WORDS)
            words = b.load(kind, b.at(self.staging, place, "i32"), 64)
            b.store(words, b.at(target, b.add(b.mul(tap, self.taps_step), b.mul(p, ROW_WORDS)), "i32"), 64)

        b.loop(0, self._every, lambda tap, _: b.loop(0, pairs, lambda p, _: pair(tap, p), name="pair"), name="tap")

    @property
    def taps_step(self) -> int:
        """Words of the target from a tap to the next."""
        return min((tap.dst for tap in self.taps), default=0)
