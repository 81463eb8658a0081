"""What is done in every step of a sum beside its products, which leave the rest of a core with little to do."""

from __future__ import annotations

from collections.abc import Callable

from convgrad.codegen.ir import Builder
from convgrad.codegen.ir_module import Index, Value
from convgrad.plan.costs import LINE
from convgrad.values import frozen


@frozen
class LineByLine:
    """What `see` does to a line of each of some rows in every step of a sum, if they are `wanted`, an i1, or always."""

    see: Callable[[Index], None]
    wanted: Value | None = None

    def begin(self, b: Builder) -> None:
        """Nothing."""

    def go_on(self, b: Builder, done: Index) -> None:
        """The next line."""
        if self.wanted is None:
            self.see(done)
            return
        with b.when(self.wanted):
            self.see(done)


@frozen
class ResultLines:
    """Lines that are asked for before results are written: `each` of so many rows of one size in every step."""

    first: Value
    rows: int
    step: int  # bytes, from row to row
    size: int
    each: int

    def begin(self, b: Builder) -> None:
        """Nothing."""

    def go_on(self, b: Builder, done: Index) -> None:
        """The next rows."""
        for more in range(self.each):
            row = b.mul(b.minimum(b.add(b.mul(done, self.each), more), self.rows - 1), self.step)
            for line in range(0, self.size, LINE):
                b.prefetch(b.beyond(self.first, b.add(row, line)), keep=3, write=True)
