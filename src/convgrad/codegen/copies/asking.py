"""Asking for lines before they are read, where processors do not find out what is read next: many short runs."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence

from convgrad.codegen.copies.copying import Copy
from convgrad.codegen.copies.squares import Dim
from convgrad.codegen.ir import Builder
from convgrad.codegen.ir_module import Index, Value, index
from convgrad.codegen.isa.base import BYTES
from convgrad.values import frozen

SPLIT_AHEAD, WORDS_AHEAD = 32, 64  # pairs of weights that lie tap by tap, in pieces and as they are
PLACES_AHEAD = 16  # positions of an image whose channels lie together
LINES_AHEAD = 2  # of a run
L2 = 2  # where lines go


def ask(b: Builder, address: Value, places: Iterable[Index]) -> None:
    """For the lines so many bytes beyond an address, wherever these are."""
    for place in places:
        b.prefetch(b.beyond(address, place), L2)


@frozen
class TapsAhead:
    """How many bytes further weights lie that are read `ahead` taps later, or in the next panel if this one is over.

    A panel is packed block by block of channels, each tap by tap. `step`, `block` and `panel` are the bytes from a tap,
    a block or a panel to the next.
    """

    taps: int
    step: int
    blocks: int
    block: int
    panel: int
    ahead: int

    def further(self, b: Builder, tap: Index) -> Index:
        """Than those of a tap."""
        if self.ahead >= self.blocks * self.taps:
            return self.panel
        block = self.block if self.blocks > 1 else self.panel
        blocks, rest = divmod(self.ahead, self.taps)
        same = blocks * block + rest * self.step
        if not rest:
            return same
        after = same + block - self.taps * self.step
        if isinstance(tap, int):
            return same if tap < self.taps - rest else after
        return b.select(b.compare("slt", tap, self.taps - rest), index(same), index(after))


@frozen
class PanelSteps:
    """Of weights that are packed panel by panel: blocks of channels of one, and how far the next of either lies.

    That is in numbers of the source.
    """

    blocks: int
    block: int
    panel: int


def by_far_taps(
    b: Builder, copy: Copy, source: Value, target: Value, taps: Sequence[Dim], steps: PanelSteps, ahead: int,
    emit: Callable[[Value, Value, Index], None],
) -> bool:  # fmt: skip
    """Each tap by itself, and how many bytes further that lies which is read `ahead` taps later.

    Returns whether taps are one run; if not, nothing is emitted.
    """
    one, *others = copy.merged(b, taps) or [Dim(1, 0, 0)]
    if others:
        return False
    assert isinstance(one.extent, int)
    size = BYTES[copy.src_dtype]
    later = TapsAhead(
        taps=one.extent, step=one.src * size, blocks=steps.blocks, block=steps.block * size, panel=steps.panel * size,
        ahead=ahead,
    )  # fmt: skip

    def tap(t: Index, _: object) -> None:
        of, to = copy.src_at(b, source, b.mul(t, one.src)), copy.dst_at(b, target, b.mul(t, one.dst))
        emit(of, to, later.further(b, t))

    b.loop(0, one.extent, tap, name="tap")
    return True
