"""`convgrad bench`: convgrad, PyTorch, oneDNN and JAX side by side."""

from __future__ import annotations

import argparse
import csv
import os
import sys
from collections.abc import Iterator, Sequence
from typing import Any

from convgrad import engines
from convgrad.cli import plots, problem_string, racing, roofs, work
from convgrad.cli.display import Table, UsageError, natural, positive, progress, show
from convgrad.cli.racing import OURS, Race, Result, Timing, geometric_mean
from convgrad.plan.host import available_cpus

EXAMPLES = f"""\
examples:
  convgrad bench dcgan --plot dcgan.svg
  convgrad bench --deconv --dir BWD_D,BWD_W mb16ic512ih8oc256kh4sh2ph1
  convgrad bench resnet50 --mb 8 --dtype bf16 --data-format NXC --engines convgrad,onednn --csv > resnet50.csv
  convgrad bench examples/dcgan_generator_backward.json --threads 2 --check

{work.HELP}
problems:
{problem_string.HELP}

how it is measured:
  Every engine has a process of its own, bound to the same CPUs, and only one of them runs at a time. For each problem
  all of them compile and run it once, and then take turns in {racing.TURNS} batches. GF/s is 10^9 operations per second
  of the fastest sample; a multiply-add is two, and taps on padding are none. ratio is the time of the fastest other
  engine over that of convgrad: above 1, convgrad is faster. roof is the least time that the machine allows over that of
  convgrad, by its measured peak of f32 (or f64) multiply-adds and the bandwidth of its memories; what multiplies 16-bit
  numbers directly may exceed it.
"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """What the command takes."""
    work.add_arguments(parser, many=True, directions=work.GRADIENTS)
    parser.add_argument("--ops", type=work.operations, metavar="OP", help="only these operations, by their names")
    parser.add_argument(
        "--engines", type=_engines, default=engines.NAMES, help=f"(default {','.join(engines.NAMES)}, if installed)"
    )
    parser.add_argument("--threads", type=positive, default=1, help="of every engine (default 1)")
    parser.add_argument("--budget", type=duration, default=0.2, help="seconds per engine and problem (default 0.2)")
    parser.add_argument("--check", action="store_true", help="compare every result with the definition")
    parser.add_argument("--seed", type=natural, default=0, help="of the random inputs (default 0)")
    parser.add_argument("--csv", action="store_true", help="print a table of commas and nothing else")
    roofs.add_arguments(parser)
    plots.add_arguments(parser)


def command(args: argparse.Namespace) -> int:
    """Measure convgrad, PyTorch, oneDNN and JAX side by side."""
    if args.csv and args.json:
        raise UsageError("--csv and --json are two forms of one report; give one of them")
    plots.require(args.plot)
    roofs.check_threads(args.threads)
    jobs = chosen(args)
    quiet = args.json or args.csv
    with progress(len(jobs) + 2, quiet=quiet) as shown:
        shown.step("measuring the ceilings")
        ceilings = roofs.ceilings(args, args.threads)
        shown.step(f"loading {', '.join(args.engines)}")
        with Race(args.engines, args.threads) as race:
            if not race.versions:
                raise UsageError("; ".join(race.absent.values()))
            run = race.run(jobs, ceilings, budget=args.budget, seed=args.seed, checked=args.check, shown=shown)
            results = list(run)
    names = list(race.versions)
    report = {
        "threads": args.threads,
        "ceilings": ceilings.as_dict(),
        "versions": race.versions,
        "absent": race.absent,
        "load_average": load(),
        "results": [result.as_dict() for result in results],
        "summary": summary(results),
    }
    if args.plot:
        plots.race(args.plot, results, names, title=f"{' '.join(args.work)}, {describe(args)}")
    if args.csv:
        _print_csv(results, names)
    else:
        show(report, as_json=args.json, text=list(_text(args, results, names, race)))
    return 1 if any(_is_fault(name, timing) for result in results for name, timing in result.timings.items()) else 0


def _is_fault(name: str, timing: Timing) -> bool:
    """A wrong result of anybody, or none of ours; what other engines cannot do is a finding."""
    return timing.status == "wrong" or (name == OURS and timing.status != "ok")


def chosen(args: argparse.Namespace) -> list[work.Job]:
    """The operations to measure."""
    jobs = [job for job in work.jobs_of(args) if args.ops is None or job.op in args.ops]
    jobs = [job for job in jobs if job.problem.flops]
    if not jobs:
        raise UsageError("there is nothing to measure: no operation is left, or none of them multiplies anything")
    return jobs


def describe(args: argparse.Namespace) -> str:
    """The circumstances in some words."""
    batch = [] if args.mb is None else [f"batch {args.mb}"]
    threads = "1 thread" if args.threads == 1 else f"{args.threads} threads"
    return ", ".join([*batch, args.dtype or "f32", args.data_format, threads])


def load() -> float | None:
    """Average number of busy threads on this machine in the last minute."""
    return os.getloadavg()[0] if hasattr(os, "getloadavg") else None


def summary(results: Sequence[Result]) -> list[dict[str, Any]]:
    """For each operation the geometric mean of the ratios, and how often convgrad is ahead."""
    found = []
    for op in dict.fromkeys(result.job.op for result in results):
        ratios = [ratio for result in results if result.job.op == op and (ratio := result.ratio) is not None]
        mean = geometric_mean(ratios) if ratios else None
        found.append(
            {"operation": op, "ratio": mean, "ahead": sum(ratio >= 1 for ratio in ratios), "compared": len(ratios)}
        )
    return found


def _text(args: argparse.Namespace, results: Sequence[Result], names: list[str], race: Race) -> Iterator[str | Table]:
    rows = [
        [result.job.label, result.job.op, *(_cell(result, name) for name in names), _ratio(result), _roof(result)]
        for result in results
    ]
    headings = ["layer", "operation", *names, "ratio", "roof"]
    yield Table(headings, rows, numbers=[*names, "ratio", "roof"], folded=["layer"])
    yield f"GF/s, {describe(args)}; " + ", ".join(f"{name} {version}" for name, version in race.versions.items())
    for row in summary(results):
        if row["compared"]:
            yield (
                f"{row['operation']}: {row['ratio']:.2f} times as fast as the best other (geometric mean), "
                f"ahead in {row['ahead']} of {row['compared']}"
            )
    details = {
        f"{result.job.label} {result.job.op}: {name} {timing.status}: {timing.detail}": None
        for result in results
        for name, timing in result.timings.items()
        if timing.status != "ok"
    }
    yield from details
    yield from (f"not measured: {reason}" for reason in race.absent.values())
    busy = load()
    if busy is not None and busy > available_cpus()[0] + 0.5:
        yield f"the machine was busy (load average {busy:.1f}): measure again on an idle one"


def _cell(result: Result, name: str) -> str:
    speed = result.gflops(name)
    return result.timings[name].status if speed is None else f"{speed:.1f}"


def _ratio(result: Result) -> str:
    return "" if result.ratio is None else f"{result.ratio:.2f}"


def _roof(result: Result) -> str:
    share = result.roof(OURS) if OURS in result.timings else None
    return "" if share is None else f"{share:.0%}"


def _print_csv(results: Sequence[Result], names: Sequence[str]) -> None:
    per_engine = ("status", "seconds", "gflops", "roof")
    columns = ["layer", "work", "operation", "dtype", "flops", "bytes", "bound_seconds", "bound_by", "ratio"]
    writer = csv.writer(sys.stdout, lineterminator="\n")
    writer.writerow([*columns, *(f"{name}_{what}" for name in names for what in per_engine)])
    for result in results:
        report = result.as_dict()
        figures = [report["engines"][name] | {"roof": report["roof"][name]} for name in names]
        cells = [one.get(what) for one in figures for what in per_engine]
        writer.writerow([*(report[column] for column in columns), *cells])


def _engines(text: str) -> tuple[str, ...]:
    for name in text.split(","):
        if name not in engines.NAMES:
            raise argparse.ArgumentTypeError(f"{name!r} is not one of {', '.join(engines.NAMES)}")
    return tuple(dict.fromkeys(text.split(",")))


def duration(text: str) -> float:
    """An argument of some seconds."""
    try:
        value = float(text)
    except ValueError:
        value = -1.0
    if not 0 < value < 3600:
        raise argparse.ArgumentTypeError(f"{text!r} is not a number of seconds above 0")
    return value
