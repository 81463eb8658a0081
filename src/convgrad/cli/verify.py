"""`convgrad verify`: compare an operation, by any engine, with its definition."""

from __future__ import annotations

import argparse
import contextlib
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np

from convgrad import engines
from convgrad.cli import findings, problem_string, work
from convgrad.cli.bounds import Check, check
from convgrad.cli.display import Progress, Table, Verbatim, extents, natural, progress, seconds, show
from convgrad.cli.execution import checksum, random_inputs, run_graph
from convgrad.cli.problem_graph import DIRECTIONS, Formats, build
from convgrad.dtypes import FLOATING
from convgrad.engines.interface import EngineError, Unsupported
from convgrad.engines.remote import Remote
from convgrad.graph import Graph
from convgrad.spec.schemas import DATA_FORMATS, WEIGHTS_FORMATS

EXAMPLES = f"""\
examples:
  convgrad verify --conv --dir BWD_D mb2_ic16ih14oc32oh14kh3ph1
  convgrad verify --deconv --dir BWD_W g2mb4_ic8ih10iw12_oc6kh3kw3_sh2sw2_ph1pw1
  convgrad verify --deconv --dtype bf16 --data-format NXC ic100ih1oc1024kh4 ic1024ih4oc512kh4sh2ph1
  convgrad verify --engine torch --deconv --dir BWD_D ic16ih8oc8kh4sh2ph1

problems:
{problem_string.HELP}

The error is told in units of the bound that rounding alone explains: up to 1 is correct. Of a single problem, and of
whatever fails, the spread of errors and the worst element are shown, and a command that does it again. An engine other
than convgrad runs in a process of its own; one that cannot do a problem has not passed.
"""


@dataclass(slots=True)
class Verdict:
    """What became of one operation."""

    job: work.Job
    inputs: list[np.ndarray]
    again: str
    result: np.ndarray | None = None
    seconds: float = 0.0
    check: Check | None = None
    refusal: str = ""  # why there is no result

    @property
    def passed(self) -> bool:
        """Whether there is a result, and it is right."""
        return self.check is not None and self.check.passed

    def row(self, text: str) -> list[str]:
        """Of the table."""
        verdict = str(self.check) if self.check else f"FAILED, no result: {self.refusal:.50}"
        shape = f"{extents(self.job.task.resolved.output_shape)} {self.job.task.out_dtype}"
        return [text, self.job.op, shape, verdict, seconds(self.seconds) if self.check else ""]

    def as_dict(self) -> dict[str, Any]:
        """For JSON."""
        resolved = self.job.task.resolved
        report = {"kind": resolved.op, "shape": list(resolved.output_shape), "dtype": self.job.task.out_dtype}
        if self.check is None or self.result is None:
            return report | {"passed": False, "refusal": self.refusal, "again": self.again}
        found = findings.worst(self.job.task, self.check, self.inputs, self.result)
        return report | {
            "sha256": checksum(self.result),
            "seconds": self.seconds,
            "gflops": self.job.problem.flops / self.seconds / 1e9,
            "check": self.check.as_dict(),
            "histogram": findings.histogram(self.check),
            "worst": found and found.as_dict(),
            "passed": self.passed,
            "again": self.again,
        }

    def details(self, *, named: bool) -> Iterator[str | Table]:
        """For people: the spread, the worst element, and how to see it again."""
        yield f"\n{self.job.label}: {self.job.op}" if named else ""
        if self.refusal:
            yield f"no result: {self.refusal}"
        if self.check is not None and self.result is not None:
            yield findings.histogram_table(self.check)
            found = findings.worst(self.job.task, self.check, self.inputs, self.result)
            yield from found.lines() if found else []
        if not self.passed:
            yield Verbatim(f"again: {self.again}")


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """What the command takes."""
    parser.add_argument("--engine", choices=engines.NAMES, default="convgrad", help="whose results (default convgrad)")
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
    """Compare operations, by convgrad or another engine, with their definition."""
    problems = [problem_string.parse(text, transposed=args.transposed, batch=args.mb) for text in args.problems]
    per_problem = 3 if args.dir == "BWD_WB" else 2
    with progress(per_problem * len(problems), quiet=args.json) as shown, contextlib.ExitStack() as stack:
        remote = None
        if args.engine != "convgrad":
            remote = stack.enter_context(Remote(args.engine, 1))
            remote.ask("describe")  # absent: a mistake of the command line
        verdicts = [(problem, _verify(args, problem, remote, shown)) for problem in problems]
    rows = [one.row(problem.text) for problem, found in verdicts for one in found]
    every = [one for _, found in verdicts for one in found]
    passed = all(one.passed for one in every)
    text: list[str | Table] = [_table(rows)]
    for one in every:
        text += one.details(named=len(every) > 1) if len(every) == 1 or not one.passed else []
    show(_report(args, verdicts, passed), as_json=args.json, text=[*text, "passed" if passed else "FAILED"])
    return 0 if passed else 1


def _table(rows: list[list[str]]) -> Table:
    headings = ["problem", "operation", "result", "check", "time"]
    return Table(headings, rows, numbers=["time"], folded=["problem", "result", "check"])


def _verify(
    args: argparse.Namespace, problem: problem_string.ProblemString, remote: Remote | None, shown: Progress
) -> list[Verdict]:
    formats = Formats(args.data_format, args.weights_format)
    graph = build(problem, args.dir, args.dtype, formats)
    graph.finalize()
    engine = [] if args.engine == "convgrad" else ["--engine", args.engine]
    seed = ["--seed", str(args.seed)] * bool(args.seed)
    again = " ".join(["convgrad verify", *engine, *seed, work.again_of(problem, args.dir, args.dtype, formats)])
    arrays = random_inputs(graph, args.seed)
    jobs = zip(work.of_graph(graph, problem.text), graph.get_partitions(), strict=True)
    verdicts = [
        Verdict(_named(job, problem.text), [arrays[tensor.id] for tensor in partition.get_input_ports()], again)
        for job, partition in jobs
    ]
    if remote is None:
        _by_ourselves(graph, arrays, verdicts, problem.text, shown)
    else:
        for verdict in verdicts:
            _by_another(remote, verdict, shown)
    return verdicts


def _named(job: work.Job, label: str) -> work.Job:
    return work.Job(label=label, again=job.again, task=job.task, problem=job.problem)


def _by_ourselves(graph: Graph, arrays: dict, verdicts: list[Verdict], text: str, shown: Progress) -> None:
    """The whole graph, as `convgrad run` would."""
    shown.step(f"compiling {text}")
    run = run_graph(graph.compile(), arrays, repeat=1, with_check=True, progress=shown)
    for verdict, step in zip(verdicts, run.steps, strict=True):
        verdict.result, verdict.check, verdict.seconds = step.result, step.check, step.seconds


def _by_another(remote: Remote, verdict: Verdict, shown: Progress) -> None:
    """One operation; what the library cannot do, and what kills it, is a finding."""
    job = verdict.job
    shown.step(f"{remote.name}: {job.label}")
    try:
        verdict.seconds = remote.ask("prepare", job.task, verdict.inputs)["call_seconds"]
        verdict.result = remote.ask("output")
    except (Unsupported, EngineError) as error:
        verdict.refusal = str(error)
        return
    shown.step(f"checking {job.label}")
    if verdict.result.shape != job.task.resolved.output_shape:
        verdict.refusal = f"the result has the shape {list(verdict.result.shape)}"
        return
    verdict.check = check(job.task.resolved, job.problem, verdict.inputs, verdict.result)


def _report(args: argparse.Namespace, verdicts: list, passed: bool) -> dict[str, Any]:
    problems = [
        {
            "problem": problem.text,
            "operations": [one.as_dict() for one in found],
            "passed": all(one.passed for one in found),
        }
        for problem, found in verdicts
    ]
    return {
        "engine": args.engine,
        "direction": args.dir,
        "dtype": args.dtype,
        "problems": problems,
        "passed": passed,
    }
