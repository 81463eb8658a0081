"""`convgrad roofline`: what this machine can do at most, and where each operation stands below it."""

from __future__ import annotations

import argparse

from convgrad.cli import bench, plots, problem_string, racing, roofs, work
from convgrad.cli.display import Table, natural, positive, progress, seconds, show
from convgrad.cli.racing import OURS, Race, Result

EXAMPLES = f"""\
examples:
  convgrad roofline
  convgrad roofline --json > peaks.json
  convgrad roofline dcgan --plot roofline.svg
  convgrad roofline --deconv --dir BWD_D,BWD_W --threads 2 mb16ic512ih8oc256kh4sh2ph1

{work.HELP}
problems:
{problem_string.HELP}

ceilings:
  Arithmetic is that of independent multiply-adds on whole vectors; bandwidth that of reading memory of half the size of
  a cache of one core, of 8 MiB per thread (L3), and of 256 MiB (memory). All are kernels of convgrad's own code
  generator, on as many threads as are measured. The bound of an operation is the longer of its arithmetic at the peak
  and of reading its inputs and result once from the nearest memory that holds them.
"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """What the command takes."""
    work.add_arguments(parser, many=True, directions=work.GRADIENTS, nargs="*")
    parser.add_argument("--ops", type=work.operations, metavar="OP", help="only these operations, by their names")
    parser.add_argument("--threads", type=positive, default=1, help="of the ceilings and of the calls (default 1)")
    parser.add_argument("--budget", type=bench.duration, default=0.2, help="seconds per problem (default 0.2)")
    parser.add_argument("--seed", type=natural, default=0, help="of the random inputs (default 0)")
    roofs.add_arguments(parser)
    plots.add_arguments(parser)


def command(args: argparse.Namespace) -> int:
    """Measure the ceilings of this machine, and each operation below them."""
    plots.require(args.plot)
    roofs.check_threads(args.threads)
    jobs = bench.chosen(args) if args.work else []
    results: list[Result] = []
    with progress(len(jobs) + 1, quiet=args.json) as shown:
        shown.step("measuring the ceilings")
        ceilings = roofs.ceilings(args, args.threads)
        if jobs:
            with Race([OURS], args.threads) as race:
                run = race.run(jobs, ceilings, budget=args.budget, seed=args.seed, checked=False, shown=shown)
                results = list(run)
    if args.plot:
        what = " ".join(args.work) or f"Ceilings of {ceilings.machine}"
        plots.roofline(args.plot, ceilings, results, title=f"{what}, {bench.describe(args)}")
    report = {"ceilings": ceilings.as_dict(), "results": [result.as_dict() for result in results]}
    text: list[str | Table] = [roofs.table(ceilings)]
    if ceilings.advice:
        text += ["", ceilings.advice]
    if results:
        text += ["", _table(results), f"GF/s, {bench.describe(args)}"]
        shares = [share for result in results if (share := result.roof(OURS))]
        if shares:
            text.append(f"{racing.geometric_mean(shares):.0%} of what the machine allows (geometric mean)")
    show(report, as_json=args.json, text=text)
    return 0


def _table(results: list[Result]) -> Table:
    headings = ["layer", "operation", "intensity", "bound by", "least time", "time", "GF/s", "roof"]
    rows = []
    for result in results:
        job, timing = result.job, result.timings[OURS]
        intensity = f"{job.problem.flops / job.bytes_moved:.3g}"
        row = [job.label, job.op, intensity, result.limit, seconds(result.bound)]
        speed, share = result.gflops(OURS), result.roof(OURS)
        failed = speed is None or share is None
        rows.append(
            [*row, *([timing.status, "", ""] if failed else [seconds(timing.seconds), f"{speed:.1f}", f"{share:.0%}"])]
        )
    numbers = ["intensity", "least time", "time", "GF/s", "roof"]
    return Table(headings, rows, numbers=numbers, folded=["layer", "bound by"], spare=["intensity"])
