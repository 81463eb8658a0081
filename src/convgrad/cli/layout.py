"""Making tables and lines fit a terminal: what is wide is broken between words, and what can be spared is left out."""

from __future__ import annotations

import re
import textwrap
from collections.abc import Sequence

from convgrad.values import frozen, replace

GAPS = (3, 2)  # blanks between columns, where there is room and where there is little
READABLE, NARROWEST = 24, 10  # letters of a column that is broken into lines: while there is a choice, and at least
_INSIDE_NAMES = re.compile(r"(?<=[a-z])(?=Back(?:ward|prop))")  # of operations
_COLUMNS = re.compile(r"(?:.*\S)?\s{2,}(?=\S)")  # of a line: what stands before the last of them

Cell = tuple[str, ...]  # lines


@frozen
class Grid:
    """Rows of cells, the first of them the headings."""

    rows: tuple[tuple[Cell, ...], ...]
    gap: int
    left_out: tuple[str, ...] = ()  # headings of columns that had no room

    @property
    def widths(self) -> list[int]:
        """Of the columns."""
        return [max(len(line) for cell in column for line in cell) for column in zip(*self.rows, strict=True)]

    @property
    def width(self) -> int:
        """Of the whole."""
        return sum(self.widths) + self.gap * (len(self.widths) - 1)

    def map(self, change, column: int | None = None) -> Grid:
        """With every cell changed, or those of one column."""
        rows = tuple(
            tuple(change(cell) if column in (None, i) else cell for i, cell in enumerate(row)) for row in self.rows
        )
        return replace(self, rows=rows)

    def without(self, column: int) -> Grid:
        """With one column less."""
        heading = " ".join(self.rows[0][column])
        rows = tuple(row[:column] + row[column + 1 :] for row in self.rows)
        return replace(self, rows=rows, left_out=(*self.left_out, heading))


def fit(
    headings: Sequence[str],
    rows: Sequence[Sequence[str]],
    width: int,
    *,
    spare: Sequence[str] = (),
    folded: Sequence[str] = (),
) -> Grid:
    """The cells, broken into lines so that they fit `width` letters, if that can be done.

    As far as it takes, in this order: columns stand closer; names of operations are broken before Backward; columns in
    `folded` are broken between words, which leaves them readable; those in `spare` are left out, the first of them
    first; the columns in `folded` become narrow, and are broken inside words, too.
    """
    whole = Grid(tuple(tuple((cell,) for cell in row) for row in (headings, *rows)), GAPS[0])
    if whole.width > width:
        whole = replace(whole, gap=GAPS[1])
    if whole.width > width:
        whole = whole.map(lambda cell: tuple(part for line in cell for part in _INSIDE_NAMES.split(line)))
    names = list(headings)

    def fold(least: int, *, inside_words: bool = False) -> Grid:
        columns = [names.index(name) for name in folded if name in names]
        return _fold(whole, columns, width, least=least, inside_words=inside_words)

    grid = fold(READABLE)
    for name in spare:
        if grid.width > width:
            whole = whole.without(names.index(name))
            names.remove(name)
            grid = fold(READABLE)
    if grid.width > width:
        grid = fold(NARROWEST)
    return grid if grid.width <= width else fold(NARROWEST, inside_words=True)


def _fold(whole: Grid, columns: Sequence[int], width: int, *, least: int, inside_words: bool) -> Grid:
    """Make the widest of some columns narrower, letter by letter, until all fit or none can be narrower."""
    goals = {i: whole.widths[i] for i in columns}
    grid, left = whole, set(columns)
    while grid.width > width and left:
        widest = max(left, key=goals.__getitem__)
        narrower = whole
        for column, goal in (goals | {widest: goals[widest] - 1}).items():
            if goal < whole.widths[column]:
                narrower = narrower.map(lambda cell, goal=goal: _wrapped(cell, goal, inside_words), column)
        if goals[widest] <= least or narrower.widths[widest] >= goals[widest]:
            left.remove(widest)
        else:
            goals[widest] = narrower.widths[widest]
            grid = narrower
    return grid


def _wrapped(cell: Cell, width: int, inside_words: bool) -> Cell:
    wrap = {"break_long_words": inside_words, "break_on_hyphens": False}
    return tuple(line for text in cell for line in textwrap.wrap(text, width, **wrap) or [""])


def lines(text: str, width: int) -> list[str]:
    """A line in lines of at most `width` letters, broken between words; all begin below its last column."""
    if len(text) <= width:
        return [text]
    columns = _COLUMNS.match(text[: width // 2])
    indent = " " * columns.end() if columns else ""
    return textwrap.wrap(text, width, subsequent_indent=indent, break_long_words=False, break_on_hyphens=False)
