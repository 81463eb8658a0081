"""`convgrad verify`: compare an operation with its definition."""

from __future__ import annotations

import argparse
from typing import Any

from convgrad.cli import problem_string
from convgrad.cli.display import Progress, Table, natural, progress, seconds, show
from convgrad.cli.execution import Run, random_inputs, run_graph, shape_and_type
from convgrad.cli.problem_graph import DIRECTIONS, Formats, build
from convgrad.dtypes import FLOATING
from convgrad.spec.schemas import DATA_FORMATS, WEIGHTS_FORMATS

EXAMPLES = f"""\
examples:
  convgrad verify --conv --dir BWD_D mb2_ic16ih14oc32oh14kh3ph1
  convgrad verify --deconv --dir BWD_W g2mb4_ic8ih10iw12_oc6kh3kw3_sh2sw2_ph1pw1
  convgrad verify --deconv --dtype bf16 --data-format NXC ic100ih1oc1024kh4 ic1024ih4oc512kh4sh2ph1

problems:
{problem_string.HELP}

The error is told in units of the bound that rounding alone explains: up to 1 is correct.
"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """What the command takes."""
    family = parser.add_mutually_exclusive_group()
    family.add_argument("--conv", dest="transposed", action="store_false", help="convolutions (default)")
    family.add_argument("--deconv", dest="transposed", action="store_true", help="transposed convolutions")
    parser.set_defaults(transposed=False)
    parser.add_argument(
        "--dir", type=str.upper, choices=DIRECTIONS, default="BWD_W",
        help="forward with (FWD_B) or without bias, gradient of data (BWD_D), of weights, of weights and bias (BWD_WB)",
    )  # fmt: skip
    parser.add_argument("--mb", type=natural, help="batch, instead of that of the problem")
    parser.add_argument("--dtype", choices=FLOATING, default="f32", help="of all tensors (default f32)")
    parser.add_argument("--data-format", type=str.upper, choices=DATA_FORMATS, default="NCX", help="(default NCX)")
    parser.add_argument(
        "--weights-format", type=str.upper, choices=WEIGHTS_FORMATS, help="(default OIX, and IOX with --deconv)"
    )
    parser.add_argument("--seed", type=natural, default=0, help="of the random inputs (default 0)")
    parser.add_argument("problems", metavar="PROBLEM", nargs="+", help="in the notation of benchdnn")


def command(args: argparse.Namespace) -> int:
    """Compare operations with their definition."""
    problems = [problem_string.parse(text, transposed=args.transposed, batch=args.mb) for text in args.problems]
    per_problem = 3 if args.dir == "BWD_WB" else 2
    with progress(per_problem * len(problems), quiet=args.json) as shown:
        runs = [(problem, _verify(args, problem, shown)) for problem in problems]
    rows = [
        [problem.text, step.partition.op.kind, shape_and_type(step), str(step.check), seconds(step.seconds)]
        for problem, run in runs
        for step in run.steps
    ]
    passed = all(run.passed for _, run in runs)
    table = Table(["problem", "operation", "result", "check", "time"], rows, numbers=["time"])
    show(_report(args, runs, passed), as_json=args.json, text=[table, "passed" if passed else "FAILED"])
    return 0 if passed else 1


def _verify(args: argparse.Namespace, problem: problem_string.ProblemString, shown: Progress) -> Run:
    shown.step(f"compiling {problem.text}")
    graph = build(problem, args.dir, args.dtype, Formats(args.data_format, args.weights_format))
    graph.finalize()
    return run_graph(graph.compile(), random_inputs(graph, args.seed), repeat=1, with_check=True, progress=shown)


def _report(
    args: argparse.Namespace, runs: list[tuple[problem_string.ProblemString, Run]], passed: bool
) -> dict[str, Any]:
    problems = [
        {"problem": problem.text, "operations": [step.as_dict() for step in run.steps], "passed": run.passed}
        for problem, run in runs
    ]
    return {"direction": args.dir, "dtype": args.dtype, "problems": problems, "passed": passed}
