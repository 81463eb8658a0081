"""The ceilings that commands compare with: measured now, or read from a file."""

from __future__ import annotations

import argparse
import json
from pathlib import Path

from convgrad.cli.display import Table, UsageError
from convgrad.engines.ceilings import Ceilings, from_dict, measure, name_of
from convgrad.errors import FileFormatError
from convgrad.plan.host import available_cpus

LARGEST_FILE = 1 << 20  # bytes


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Where ceilings come from."""
    parser.add_argument(
        "--peaks", metavar="FILE", help="ceilings, as `convgrad roofline --json` writes them; measured if not given"
    )


def check_threads(threads: int) -> None:
    """Refuse more threads than CPUs: they would wait for each other, and thousands of them for hours."""
    if threads > available_cpus()[0]:
        raise UsageError(f"--threads {threads}: this process may use {available_cpus()[0]} CPUs")


def ceilings(args: argparse.Namespace, threads: int | None) -> Ceilings:
    """Of so many threads, or as many as calls use."""
    if args.peaks is None:
        return measure(threads)
    with Path(args.peaks).open("rb") as file:
        text = file.read(LARGEST_FILE + 1)
    if len(text) > LARGEST_FILE:
        raise FileFormatError(f"{args.peaks}: more than {LARGEST_FILE} bytes; ceilings take a few hundred")
    try:
        found = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise FileFormatError(f"{args.peaks}: not JSON: {error}") from error
    read = from_dict(found, args.peaks)
    if threads is not None and read.threads != threads:
        raise FileFormatError(f"{args.peaks}: ceilings of {read.threads} threads, but {threads} are asked for")
    return read


def table(found: Ceilings) -> Table:
    """What was measured."""
    rows = [[name_of(kind), f"{value:.0f} GF/s", ""] for kind, value in found.gflops.items()]
    for level in found.levels:
        holds = "" if level is found.levels[-1] else f"up to {size(level.holds_bytes)}"
        rows.append([f"reading from {level.name}", f"{level.gb_per_s:.0f} GB/s", holds])
    return Table(["ceiling", "measured", "for"], rows, numbers=["measured"])


def size(count: float) -> str:
    """Bytes with three digits and their unit."""
    for unit, scale in (("GiB", 2**30), ("MiB", 2**20), ("KiB", 2**10)):
        if count >= scale:
            return f"{count / scale:.3g} {unit}"
    return f"{count:.0f} bytes"
