"""Convolution gradients: run them, check them, measure them, draw them, and see how they are computed."""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Sequence
from contextlib import suppress
from io import TextIOWrapper
from typing import NoReturn

import convgrad
from convgrad.errors import ConvError

EXAMPLES = """\
examples:
  convgrad run examples/dcgan_generator_backward.json --check
  convgrad verify --deconv --dir BWD_D mb2_ic16ih8oc8kh4sh2ph1
  convgrad draw --op ConvTranspose --animate transposed.html ic1ih3oc1oh6kh3sh2ph1
  convgrad explain --deconv --dir BWD_D mb4_ic512ih8oc256kh4sh2ph1
  convgrad bench dcgan

convgrad COMMAND --help explains the options of a command, and shows more examples.
"""
MISTAKE = 2  # exit status for what the user can mend; 1 is a check that failed


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command; a mistake of the user's is one line on stderr. Without a command, help is what is asked for."""
    _open_streams()
    try:
        args = _parser().parse_args((sys.argv[1:] if argv is None else list(argv)) or ["--help"])
        status = args.command(args)
        sys.stdout.flush()
        return status
    except ConvError as error:  # anything else is a fault of ours and keeps its traceback
        return _complain(str(error))
    except BrokenPipeError:  # whoever read our output has seen enough
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 0
    except OSError as error:
        return _complain(f"{error.filename}: {error.strerror}" if error.filename else str(error))
    except KeyboardInterrupt:
        return 130


class _Parser(argparse.ArgumentParser):
    def error(self, message: str) -> NoReturn:
        self.exit(MISTAKE, f"{self.prog}: {message}; see {self.prog} --help\n")


def _parser() -> argparse.ArgumentParser:
    from convgrad.cli import bench, cache, doctor, draw, explain, repro, roofline, run, tune, verify

    parser = _Parser(
        prog="convgrad", description=__doc__, epilog=EXAMPLES, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--version", action="version", version=f"convgrad {convgrad.__version__}")
    commands = parser.add_subparsers(required=True, metavar="COMMAND", parser_class=_Parser)
    for module in (run, verify, explain, draw, bench, roofline, tune, repro, cache, doctor):
        name = module.__name__.rpartition(".")[2]
        command = commands.add_parser(
            name,
            help=module.command.__doc__,
            description=module.command.__doc__,
            epilog=module.EXAMPLES,
            formatter_class=argparse.RawDescriptionHelpFormatter,
        )
        module.add_arguments(command)
        command.add_argument("--json", action="store_true", help="print one JSON object and nothing else")
        command.set_defaults(command=module.command)
    return parser


def _open_streams() -> None:
    """Let output be closed, or of an encoding that lacks some of our letters: those are written as escapes."""
    if sys.stdout is None:
        sys.stdout = open(os.devnull, "w")  # noqa: SIM115
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, TextIOWrapper):
            stream.reconfigure(errors="backslashreplace")


def _complain(text: str) -> int:
    from convgrad.cli.display import visible

    with suppress(OSError):  # nobody to tell; the status still does
        print("convgrad:", visible(" ".join(text.split())), file=sys.stderr, flush=True)
    return MISTAKE
