"""`convgrad doctor`: what the machine has and convgrad makes of it."""

from __future__ import annotations

import argparse
from collections.abc import Iterator, Mapping
from typing import Any

from convgrad.cli.display import show

EXAMPLES = """\
examples:
  convgrad doctor
  convgrad doctor --json
"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """What the command takes: nothing of its own."""


def command(args: argparse.Namespace) -> int:
    """Show the machine, instruction sets, threads, caches and versions."""
    from convgrad.runtime import doctor

    report = doctor.report()
    show(report, as_json=args.json, text=list(_lines(report)))
    return 0


def _lines(report: Mapping[str, Any], indent: str = "") -> Iterator[str]:
    width = max((len(key) for key, value in report.items() if not isinstance(value, Mapping)), default=0)
    for key, value in report.items():
        if isinstance(value, Mapping):
            yield f"{indent}{key}"
            yield from _lines(value, indent + "  ")
        else:
            text = ", ".join(map(str, value)) if isinstance(value, list | tuple) else value
            yield f"{indent}{key:{width}}  {text}"
