"""`convgrad verify`: compare an operation, by any engine, with its definition."""

from __future__ import annotations

import argparse
import contextlib
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from convgrad import engines
from convgrad.cli import findings, problem_string, work
from convgrad.cli.bounds import Check, check
from convgrad.cli.display import Progress, Table, UsageError, Verbatim, extents, natural, progress, seconds, show
from convgrad.cli.execution import checksum
from convgrad.engines.interface import EngineError, Unsupported
from convgrad.engines.own import Convgrad
from convgrad.engines.remote import Remote
from convgrad.graph import LogicalTensor, memory
from convgrad.runtime import num_threads
from convgrad.values import replace

EXAMPLES = f"""\
examples:
  convgrad verify --conv --dir BWD_D mb2_ic16ih14oc32oh14kh3ph1
  convgrad verify --deconv --dir BWD_W g2mb4_ic8ih10iw12_oc6kh3kw3_sh2sw2_ph1pw1
  convgrad verify --deconv --dtype bf16 --data-format NXC ic100ih1oc1024kh4 ic1024ih4oc512kh4sh2ph1
  convgrad verify --engine torch --deconv --dir BWD_D ic16ih8oc8kh4sh2ph1
  convgrad verify --dir BWD_D,BWD_W --mb 1 dcgan

{work.HELP}
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
    report: dict[str, Any] = field(default_factory=dict)
    lines: list[str | Table] = field(default_factory=list)

    def settle(self, *, single: bool, as_json: bool) -> Verdict:
        """Write down what is to be told, and let the arrays go: of a whole network they would fill the memory."""
        if as_json:
            self.report = self.as_dict()
        elif single or not self.passed:
            self.lines = list(self.details(named=not single))
        self.inputs, self.result = [], None
        if self.check is not None:
            self.check = replace(self.check, errors=np.zeros(0))
        return self

    @property
    def passed(self) -> bool:
        """Whether there is a result, and it is right."""
        return self.check is not None and self.check.passed

    def row(self) -> list[str]:
        """Of the table."""
        verdict = str(self.check) if self.check else f"FAILED, no result: {self.refusal:.50}"
        shape = f"{extents(self.job.task.resolved.output_shape)} {self.job.task.out_dtype}"
        return [self.job.label, self.job.op, shape, verdict, seconds(self.seconds) if self.check else ""]

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
    work.add_arguments(parser, many=True, directions=("BWD_W",))
    parser.add_argument("--ops", type=work.operations, metavar="OP", help="only these operations, by their names")
    parser.add_argument("--seed", type=natural, default=0, help="of the random inputs (default 0)")


def command(args: argparse.Namespace) -> int:
    """Compare operations, by convgrad or another engine, with their definition."""
    jobs = [job for job in work.jobs_of(args) if args.ops is None or job.op in args.ops]
    if not jobs:
        raise UsageError("no operation is left to verify")
    with progress(2 * len(jobs), quiet=args.json) as shown, contextlib.ExitStack() as stack:
        remote = None
        if args.engine != "convgrad":
            remote = stack.enter_context(Remote(args.engine, 1))
            remote.ask("describe")  # absent: a mistake of the command line
        single = len(jobs) == 1
        every = [_verify(args, job, remote, shown).settle(single=single, as_json=args.json) for job in jobs]
    rows = [one.row() for one in every]
    passed = all(one.passed for one in every)
    text = [_table(rows), *(line for one in every for line in one.lines)]
    show(_report(args, every, passed), as_json=args.json, text=[*text, "passed" if passed else "FAILED"])
    return 0 if passed else 1


def _table(rows: list[list[str]]) -> Table:
    headings = ["problem", "operation", "result", "check", "time"]
    return Table(headings, rows, numbers=["time"], folded=["problem", "result", "check"])


def _verify(args: argparse.Namespace, job: work.Job, remote: Remote | None, shown: Progress) -> Verdict:
    """One operation on random inputs; what another library cannot do, and what kills it, is a finding."""
    engine = [] if args.engine == "convgrad" else ["--engine", args.engine]
    seed = ["--seed", str(args.seed)] * bool(args.seed)
    _check_size(job)
    inputs = job.task.random_inputs(args.seed)
    verdict = Verdict(job, inputs, " ".join(["convgrad verify", *engine, *seed, job.again]))
    shown.step(f"{args.engine}: {job.label} {job.op}")
    try:
        verdict.result, verdict.seconds = _by_ourselves(job, inputs) if remote is None else _by(remote, job, inputs)
    except (Unsupported, EngineError) as error:
        verdict.refusal = str(error)
        return verdict
    shown.step(f"checking {job.label}")
    if verdict.result.shape != job.task.resolved.output_shape:
        verdict.refusal = f"the result has the shape {list(verdict.result.shape)}"
        return verdict
    verdict.check = check(job.task.resolved, job.problem, inputs, verdict.result)
    return verdict


def _check_size(job: work.Job) -> None:
    """Complain before arrays are made that no memory holds."""
    resolved, task = job.task.resolved, job.task
    tensors = [LogicalTensor(i, task.dtype, shape) for i, shape in enumerate(resolved.input_shapes)]
    memory.check_size([*tensors, LogicalTensor(len(tensors), task.out_dtype, resolved.output_shape)], job.label)


def _by_ourselves(job: work.Job, inputs: list[np.ndarray]) -> tuple[np.ndarray, float]:
    """The result, and the seconds of a call that need not compile."""
    engine = Convgrad(job.task, num_threads())
    engine.load(inputs)
    engine.call()
    start = time.perf_counter()
    engine.call()
    return engine.output(), time.perf_counter() - start


def _by(remote: Remote, job: work.Job, inputs: list[np.ndarray]) -> tuple[np.ndarray, float]:
    """The result of a library in a process of its own."""
    spent = remote.ask("prepare", job.task, inputs)["call_seconds"]
    return remote.ask("output"), spent


def _report(args: argparse.Namespace, every: list[Verdict], passed: bool) -> dict[str, Any]:
    problems: dict[str, list[Verdict]] = {}
    for one in every:
        problems.setdefault(one.job.label, []).append(one)
    return {
        "engine": args.engine,
        "directions": list(args.dir),
        "dtype": args.dtype or "f32",
        "problems": [
            {
                "problem": label,
                "operations": [one.report for one in found],
                "passed": all(one.passed for one in found),
            }
            for label, found in problems.items()
        ],
        "passed": passed,
    }
