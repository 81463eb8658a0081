"""`convgrad repro`: the same bits on any number of threads."""

from __future__ import annotations

import argparse
from typing import Any

from convgrad.cli import problem_string, work
from convgrad.cli.display import Table, natural, positive, progress, show
from convgrad.cli.execution import checksum
from convgrad.engines.own import Convgrad
from convgrad.runtime import num_threads, set_num_threads

EXAMPLES = f"""\
examples:
  convgrad repro --threads 1,2,4 dcgan
  convgrad repro --deconv --dir BWD_D,BWD_W --dtype bf16 mb4ic64ih8oc32kh4sh2ph1
  convgrad repro examples/mixed_nxc_bf16.json --repeat 5

{work.HELP}
problems:
{problem_string.HELP}

The checksum is the first 16 digits of the SHA-256 of the result. The exit status is 1 if any two differ.
"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """What the command takes."""
    work.add_arguments(parser, many=True, directions=work.GRADIENTS)
    parser.add_argument("--threads", type=_counts, default=(1, 2, 4), help="numbers of threads (default 1,2,4)")
    parser.add_argument("--repeat", type=positive, default=2, metavar="N", help="calls of each (default 2)")
    parser.add_argument("--seed", type=natural, default=0, help="of the random inputs (default 0)")


def command(args: argparse.Namespace) -> int:
    """Compare the bits of results on different numbers of threads."""
    jobs = work.jobs_of(args)
    before = num_threads()
    try:
        with progress(len(jobs) * len(args.threads), quiet=args.json) as shown:
            found = []
            for job in jobs:
                hashes = {}
                inputs = job.task.random_inputs(args.seed)
                for threads in args.threads:
                    shown.step(f"{job.label} {job.op}, {threads} threads")
                    hashes[threads] = _hashes(job, inputs, threads, args.repeat)
                found.append((job, hashes))
    finally:
        set_num_threads(before)
    same = [len({one for many in hashes.values() for one in many}) == 1 for _, hashes in found]
    rows = [
        [job.label, job.op, _checksums(hashes), _verdict(good)] for (job, hashes), good in zip(found, same, strict=True)
    ]
    headings = ["layer", "operation", "checksum", f"{args.repeat} calls on {_in_words(args.threads)}"]
    table = Table(headings, rows, folded=["layer", "checksum"])
    report: dict[str, Any] = {
        "threads": list(args.threads),
        "results": [
            {"layer": job.label, "work": job.again, "operation": job.op, "same": good,
             "sha256": {str(count): many for count, many in hashes.items()}}
            for (job, hashes), good in zip(found, same, strict=True)
        ],
        "passed": all(same),
    }  # fmt: skip
    show(report, as_json=args.json, text=[table, "passed" if all(same) else "FAILED"])
    return 0 if all(same) else 1


def _hashes(job: work.Job, inputs: list, threads: int, repeat: int) -> list[str]:
    """Of some calls in a row."""
    engine = Convgrad(job.task, threads)
    engine.load(inputs)
    found = []
    for _ in range(repeat):
        engine.call()
        found.append(checksum(engine.output()))
    return found


def _checksums(hashes: dict[int, list[str]]) -> str:
    """The one that all calls have, or those of each number of threads."""
    every = list(dict.fromkeys(one for many in hashes.values() for one in many))
    if len(every) == 1:
        return every[0]
    return "; ".join(f"{count}: {' '.join(dict.fromkeys(many))}" for count, many in hashes.items())


def _in_words(threads: tuple[int, ...]) -> str:
    return f"{', '.join(map(str, threads))} thread{'s' * (threads != (1,))}"


def _verdict(good: bool) -> str:
    return "equal" if good else "FAILED, they differ"


def _counts(text: str) -> tuple[int, ...]:
    return tuple(dict.fromkeys(positive(word) for word in text.split(",")))
