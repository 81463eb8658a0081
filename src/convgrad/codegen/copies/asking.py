"""Asking for lines before they are read, where processors do not find out what is read next: many short runs."""

from __future__ import annotations

from collections.abc import Iterable

from convgrad.codegen.ir import Builder
from convgrad.codegen.ir_module import Index, Value

FAR_BYTES = 1024 * 1024  # of a tensor of which L2 may not keep what is read again
TAPS_AHEAD = 2  # weights that lie tap by tap, each in short runs
PLACES_AHEAD = 16  # positions of an image whose channels lie together
LINES_AHEAD = 2  # of a run
L2 = 2  # where lines go


def ask(b: Builder, address: Value, places: Iterable[Index]) -> None:
    """For the lines so many bytes beyond an address, wherever these are."""
    for place in places:
        b.prefetch(b.beyond(address, place), L2)
