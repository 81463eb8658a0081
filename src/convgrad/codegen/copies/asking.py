"""Asking for lines before they are read, where processors do not find out what is read next: many short runs."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from convgrad.codegen.ir import Builder
from convgrad.codegen.ir_module import Index, Value, index

FAR_BYTES = 1024 * 1024  # of a tensor of which L2 may not keep what is read again
SPLIT_AHEAD, WORDS_AHEAD = 32, 64  # pairs of weights that lie tap by tap, in pieces and as they are
PLACES_AHEAD = 16  # positions of an image whose channels lie together
LINES_AHEAD = 2  # of a run
L2 = 2  # where lines go


def ask(b: Builder, address: Value, places: Iterable[Index]) -> None:
    """For the lines so many bytes beyond an address, wherever these are."""
    for place in places:
        b.prefetch(b.beyond(address, place), L2)


@dataclass(frozen=True, slots=True)
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
