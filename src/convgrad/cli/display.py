"""What commands show: tables, and progress where it is seen; with rich on a terminal, plainly everywhere else."""

from __future__ import annotations

import argparse
import importlib.util
import json
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

from convgrad.errors import ConvError


class UsageError(ConvError):
    """A command line that asks for something that cannot be done."""


def show(report: Mapping[str, Any], *, as_json: bool, text: Sequence[str | Table]) -> None:
    """Print one report, whole as JSON or as text for people."""
    if as_json:
        print(json.dumps(report, indent=2))
        return
    for part in text:
        print(part) if isinstance(part, str) else part.print()


class Table:
    """Rows under headings; columns of numbers are flush right."""

    def __init__(self, headings: Sequence[str], rows: Sequence[Sequence[str]], *, numbers: Sequence[str] = ()) -> None:
        """`numbers` names the headings of columns that hold numbers."""
        self.headings = headings
        self.rows = rows
        self.right = [heading in numbers for heading in headings]

    def print(self) -> None:
        """With rules and colours of rich if it is there and somebody looks, else as aligned words."""
        if sys.stdout.isatty() and _has_rich():
            self._print_rich()
            return
        widths = [max(map(len, column)) for column in zip(self.headings, *self.rows, strict=True)]
        for row in (self.headings, *self.rows):
            cells = [
                cell.rjust(width) if right else cell.ljust(width)
                for cell, width, right in zip(row, widths, self.right, strict=True)
            ]
            print("  ".join(cells).rstrip())

    def _print_rich(self) -> None:
        from rich import box
        from rich.console import Console
        from rich.table import Table as RichTable
        from rich.text import Text

        table = RichTable(box=box.SIMPLE_HEAD)
        for heading, right in zip(self.headings, self.right, strict=True):
            table.add_column(heading, justify="right" if right else "left", overflow="fold")
        for row in self.rows:
            table.add_row(*[Text(cell, style="bold red" if cell.startswith("FAILED") else "") for cell in row])
        Console().print(table)


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
        print(f"\r\033[K[{self.done}/{self.total}] {what[:60]}", end="", file=sys.stderr, flush=True)


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
                bar.update(task, completed=self.done, description=escape(what))
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
