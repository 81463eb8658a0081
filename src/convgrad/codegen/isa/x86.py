"""Squares of numbers turned by the shuffles of AVX2 and AVX-512, as one piece of assembly.

LLVM spends more time on choosing instructions for dozens of shuffles than on the rest of a kernel, and writes more of
them. Here they are text that it has only to translate; it still chooses the registers.

Every round takes pairs of vectors to their interleaved halves. Within parts of 16 bytes: numbers of two rows, then
pairs of numbers (`vunpckl*`, `vunpckh*`). Then whole parts (`vperm2f128`, `vshuff64x2`; Intel 64 and IA-32
Architectures Software Developer's Manual, volume 2).
"""

from __future__ import annotations

from functools import cache

from convgrad.values import frozen

PART_BYTES = 16
WIDEST = 64  # bytes of the vectors of AVX-512


@frozen
class Assembly:
    """Instructions and constraints; output `places[j]` becomes what was lane j of every row.

    There is one output more than rows, since a round needs room for one result.
    """

    text: str
    constraints: str
    places: tuple[int, ...]


class _Rounds:
    """Vectors of a square and the registers, by number of operand, that hold them."""

    def __init__(self, lanes: int, vector_bytes: int):
        self.lanes, self.vector_bytes = lanes, vector_bytes
        self.parts = vector_bytes // PART_BYTES
        self.per_part = lanes // self.parts
        self.lines: list[str] = []
        self.held, self._spare = list(range(lanes)), lanes

    def exchange(self, step: int, low: str, high: str) -> None:
        """Every two vectors `step` apart become what two instructions make of them."""
        for i in range(self.lanes):
            if i // step % 2 == 0:
                x, y = self.held[i], self.held[i + step]
                self.lines += [f"{low}, ${y}, ${x}, ${self._spare}", f"{high}, ${y}, ${x}, ${y}"]
                self.held[i], self.held[i + step], self._spare = self._spare, y, x

    def within_parts(self, unit: int) -> None:
        """Numbers, then pairs of them; vectors that meet are `unit` or twice as far apart."""
        for kind in ("ps", "pd") if self.per_part == 4 else ("pd",):
            self.exchange(unit, f"vunpckl{kind}", f"vunpckh{kind}")
            unit *= 2

    def done(self, columns: list[int], inputs: list[str]) -> Assembly:
        """With the column that each vector has become."""
        places = [0] * self.lanes
        for column, place in zip(columns, self.held, strict=True):
            places[column] = place
        outputs = ["=&v" if self.vector_bytes == 64 else "=&x"] * (self.lanes + 1)
        text = "\\0A".join(
            line.replace(",", " ", 1) if line.startswith(("vunpck", "vpunpck")) else line for line in self.lines
        )
        return Assembly(text, ",".join([*outputs, *inputs]), tuple(places))


@cache
def turn(lanes: int, vector_bytes: int) -> Assembly:
    """Of as many rows as lanes in registers, which are the operands."""
    rounds = _Rounds(lanes, vector_bytes)
    rounds.within_parts(1)
    step = rounds.per_part
    while step < lanes:
        rounds.exchange(step, *_PARTS[vector_bytes])
        step *= 2
    per_part, inside = rounds.per_part, _INSIDE[rounds.per_part]
    columns = [inside[i % per_part] + i // per_part * per_part for i in range(lanes)]
    return rounds.done(columns, [str(i) for i in range(lanes)])


@cache
def turn_words() -> Assembly:
    """Of sixteen vectors of 32 numbers of 16 bits: columns of sixteen, each with its numbers in the order of rows.

    Vector i holds row `first_row(i)`, and the row eight further.
    """
    rounds = _Rounds(16, WIDEST)
    for step in (4, 2, 1):
        rounds.exchange(step, "vpunpcklwd", "vpunpckhwd")
    rounds.exchange(8, *_PARTS[WIDEST])
    return rounds.done(list(range(16)), [str(i) for i in range(16)])


def first_row(i: int) -> int:
    """Of 32, the one that the lower half of vector i is."""
    return i + 8 * (i // 8)


@cache
def turn_from_memory(lanes: int, vector_bytes: int) -> Assembly:
    """Of rows in memory, whose parts meet on their way into registers: half of the shuffles.

    Operands are the addresses of every fourth row, the step between rows and three times the step, in bytes.
    """
    rounds = _Rounds(lanes, vector_bytes)
    bases, first = -(-lanes // 4), lanes + 1
    step, thrice = first + bases, first + bases + 1
    begin, insert = _FROM_MEMORY[vector_bytes]
    for row in range(lanes):  # each once, and all of it: rows may lie where they drive each other out of the cache
        k, j = divmod(row, rounds.per_part)
        base = f"${first + row // 4}"
        place = (f"({base})", f"({base},${step})", f"({base},${step},2)", f"({base},${thrice})")[row % 4]
        for q in range(rounds.parts):
            vector, address = j * rounds.parts + q, f"{q * PART_BYTES or ''}{place}"
            if k == 0:
                rounds.lines.append(f"{begin} {address}, ${vector}")
            else:
                rounds.lines.append(f"{insert} $${k}, {address}, ${vector}, ${vector}")
    rounds.within_parts(rounds.parts)
    inside = _INSIDE[rounds.per_part]
    columns = [i % rounds.parts * rounds.per_part + inside[i // rounds.parts] for i in range(lanes)]
    return rounds.done(columns, ["r"] * (bases + 2) + ["~{memory}"])


_PARTS = {
    32: ("vperm2f128 $$0x20", "vperm2f128 $$0x31"),
    64: ("vshuff64x2 $$0x88", "vshuff64x2 $$0xdd"),
}
_FROM_MEMORY = {  # a part for all places of a vector, which takes no shuffle, and for one
    32: ("vbroadcastf128", "vinsertf128"),
    64: ("vbroadcastf32x4", "vinsertf32x4"),
}
_INSIDE = {2: (0, 1), 4: (0, 2, 1, 3)}  # which place of a part a vector has become, by the halves that it took
