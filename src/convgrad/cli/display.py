"""What commands show: tables, and progress where it is seen; with rich on a terminal, plainly everywhere else."""

from __future__ import annotations

import argparse
import importlib.util
import json
import shutil
import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

from convgrad.cli import layout
from convgrad.errors import ConvError

_OBEYED = {code: f"\\x{code:02x}" for code in (*range(32), *range(127, 160)) if chr(code) not in "\n\t"}


class UsageError(ConvError):
    """A command line that asks for something that cannot be done."""


class Verbatim(str):
    """Text that is printed as it is however narrow the terminal: code, and commands to copy."""


def show(report: Mapping[str, Any], *, as_json: bool, text: Sequence[str | Table]) -> None:
    """Print one report, whole as JSON or as text for people."""
    if as_json:
        print(json.dumps(report, indent=2))
        return
    for part in text:
        part.print() if isinstance(part, Table) else _print_text(part)


def _print_text(text: str) -> None:
    """As it is, but on a terminal in lines that fit it."""
    text = text if isinstance(text, Verbatim) else visible(text)
    if isinstance(text, Verbatim) or not sys.stdout.isatty():
        print(text)
        return
    for line in text.split("\n"):
        print("\n".join(layout.lines(line, _width())))


def _width() -> int:
    """Of the terminal, which tells it or has it in COLUMNS."""
    return shutil.get_terminal_size().columns


def visible(text: str) -> str:
    """With what a terminal would obey, such as in names of a graph file, as escapes."""
    return text.translate(_OBEYED)


class Table:
    """Rows under headings; columns of numbers are flush right."""

    def __init__(
        self,
        headings: Sequence[str],
        rows: Sequence[Sequence[str]],
        *,
        numbers: Sequence[str] = (),
        folded: Sequence[str] = (),
        spare: Sequence[str] = (),
    ) -> None:
        """`numbers` names the headings of columns that hold numbers.

        On a terminal too narrow for all columns those in `folded` are broken into lines, and those in `spare` left out.
        """
        self.headings = headings
        self.rows = [[visible(cell.replace("\n", " ")) for cell in row] for row in rows]
        self.folded = folded
        self.spare = spare
        self.numbers = set(numbers)

    def print(self) -> None:
        """With a rule and colours, to fit, if somebody looks; else one line for each row."""
        if sys.stdout.isatty():
            self._print_fitting(_width())
            return
        widths = [max(map(len, column)) for column in zip(self.headings, *self.rows, strict=True)]
        for row in (self.headings, *self.rows):
            cells = [
                _aligned(cell, width, heading in self.numbers)
                for cell, width, heading in zip(row, widths, self.headings, strict=True)
            ]
            print("  ".join(cells).rstrip())

    def _print_fitting(self, width: int) -> None:
        grid = layout.fit(self.headings, self.rows, width, spare=self.spare, folded=self.folded)
        right = [name in self.numbers for name in self.headings if name not in grid.left_out]
        for number, row in enumerate(grid.rows):
            style = "bold" if not number else ""
            for y in range(max(map(len, row))):
                cells = [(cell[y] if y < len(cell) else "", " ".join(cell)) for cell in row]
                line = (
                    (_aligned(text, column, flush), style or _style(whole))
                    for (text, whole), column, flush in zip(cells, grid.widths, right, strict=True)
                )
                _print_styled(line, " " * grid.gap)
            if not number:
                _print_styled([(_dash() * min(width, grid.width), "dim")], "")
        if grid.left_out:
            print(f"a wider terminal shows {' and '.join(grid.left_out)}, too; so does a pipe")


def _dash() -> str:
    try:
        "─".encode(sys.stdout.encoding)
    except UnicodeEncodeError:
        return "-"
    return "─"


def _aligned(text: str, width: int, right: bool) -> str:
    return text.rjust(width) if right else text.ljust(width)


def _style(cell: str) -> str:
    return "bold red" if cell.startswith("FAILED") else ""


def _print_styled(parts: Iterable[tuple[str, str]], gap: str) -> None:
    """One line; rich knows which terminals have colours, and that NO_COLOR forbids them."""
    if not _has_rich():
        print(gap.join(text for text, _ in parts).rstrip())
        return
    from rich.console import Console
    from rich.text import Text

    line = Text(gap).join(Text(text, style=style) for text, style in parts)
    line.rstrip()
    Console(soft_wrap=True).print(line)


class Progress:
    """How far a long piece of work is; `step` is called before each of its parts."""

    def __init__(self, total: int) -> None:
        """Progress that nobody sees."""
        self.total = total
        self.done = 0

    def step(self, what: str) -> None:
        """Say what is worked on now."""
        self.done += 1


@contextmanager
def progress(total: int, *, quiet: bool = False) -> Iterator[Progress]:
    """Progress on stderr while the work lasts; nothing is shown to files and pipes."""
    if quiet or not sys.stderr.isatty():
        yield Progress(total)
    elif _has_rich():
        with _rich_progress(total) as shown:
            yield shown
    else:
        try:
            yield _PlainProgress(total)
        finally:
            print("\r\033[K", end="", file=sys.stderr, flush=True)


class _PlainProgress(Progress):
    def step(self, what: str) -> None:
        super().step(what)
        print(f"\r\033[K[{self.done}/{self.total}] {visible(what)[:60]}", end="", file=sys.stderr, flush=True)


@contextmanager
def _rich_progress(total: int) -> Iterator[Progress]:
    from rich.console import Console
    from rich.markup import escape
    from rich.progress import BarColumn, MofNCompleteColumn, SpinnerColumn, TextColumn, TimeElapsedColumn
    from rich.progress import Progress as RichProgress

    columns = (
        SpinnerColumn(), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn(), TextColumn("{task.description}")
    )  # fmt: skip
    with RichProgress(*columns, console=Console(stderr=True), transient=True) as bar:
        task = bar.add_task("", total=total)

        class Shown(Progress):
            def step(self, what: str) -> None:
                bar.update(task, completed=self.done, description=escape(visible(what)))
                super().step(what)

        yield Shown(total)


def _has_rich() -> bool:
    return importlib.util.find_spec("rich") is not None


def natural(text: str) -> int:
    """An argument that is 0 or more."""
    if not (text.isascii() and text.isdigit() and len(text) <= 18):
        raise argparse.ArgumentTypeError(f"{text!r} is not a whole number, 0 or more")
    return int(text)


def positive(text: str) -> int:
    """An argument that is 1 or more."""
    if not natural(text):
        raise argparse.ArgumentTypeError("0 is too few")
    return int(text)


def seconds(value: float) -> str:
    """A time with three digits and its unit."""
    for unit, scale in (("s", 1.0), ("ms", 1e-3), ("us", 1e-6)):
        number = value / scale
        if number >= 1 or unit == "us":
            break
    return f"{number:.3g} {unit}" if number < 999.5 else f"{number:.0f} {unit}"


def extents(shape: Sequence[int]) -> str:
    """A shape in one word."""
    return "x".join(map(str, shape)) or "scalar"
