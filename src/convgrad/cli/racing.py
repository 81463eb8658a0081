"""Engines side by side: each in a process of its own, in turns on the same problem, so that noise hits all alike."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from math import exp, log
from statistics import median
from typing import Any

import numpy as np

from convgrad.cli.bounds import check
from convgrad.cli.display import Progress
from convgrad.cli.work import Job
from convgrad.engines.ceilings import Ceilings
from convgrad.engines.interface import EngineError, Unsupported
from convgrad.engines.remote import Remote
from convgrad.values import frozen

TURNS = 5  # batches of each engine on each problem
OURS = "convgrad"


@dataclass(slots=True)
class Timing:
    """One engine on one problem."""

    status: str = "ok"  # or unsupported, failed, wrong
    detail: str = ""
    times: list[float] = field(default_factory=list)  # seconds per call
    compile_seconds: float = 0.0  # and the first call, in which some libraries compile
    error: float | None = None  # in bounds, where it was checked

    @property
    def seconds(self) -> float:
        """Of the fastest sample."""
        return min(self.times)

    def as_dict(self, flops: int) -> dict[str, Any]:
        """For JSON."""
        if not self.times:
            return {"status": self.status, "detail": self.detail}
        return {
            "status": self.status,
            "detail": self.detail,
            "gflops": flops / self.seconds / 1e9,
            "seconds": self.seconds,
            "median_seconds": median(self.times),
            "samples": len(self.times),
            "compile_and_first_call_seconds": self.compile_seconds,
            "error_in_bounds": self.error,
        }


@frozen
class Result:
    """All engines on one problem."""

    job: Job
    timings: dict[str, Timing]
    bound: float  # seconds, by the roofline
    limit: str  # what sets it

    @property
    def ratio(self) -> float | None:
        """Time of the best other engine over ours; above 1 we are faster. None without both."""
        ours, others = self.timings.get(OURS), [t for name, t in self.timings.items() if name != OURS]
        rivals = [t.seconds for t in others if t.status == "ok"]
        return min(rivals) / ours.seconds if ours and ours.status == "ok" and rivals else None

    def gflops(self, name: str) -> float | None:
        """Of one engine, unless it has no right result."""
        timing = self.timings[name]
        return self.job.problem.flops / timing.seconds / 1e9 if timing.status == "ok" else None

    def roof(self, name: str) -> float | None:
        """The share of what the machine allows that one engine reaches."""
        timing = self.timings[name]
        return self.bound / timing.seconds if timing.status == "ok" else None

    def as_dict(self) -> dict[str, Any]:
        """For JSON."""
        job = self.job
        return {
            "layer": job.label,
            "work": job.again,
            "operation": job.op,
            "dtype": job.task.dtype,
            "flops": job.problem.flops,
            "bytes": job.bytes_moved,
            "bound_seconds": self.bound,
            "bound_by": self.limit,
            "engines": {name: timing.as_dict(job.problem.flops) for name, timing in self.timings.items()},
            "roof": {name: self.roof(name) for name in self.timings},
            "ratio": self.ratio,
        }


class Race:
    """Some engines at one thread count."""

    def __init__(self, names: Sequence[str], threads: int) -> None:
        """Processes start with the first question."""
        self._remotes = {name: Remote(name, threads) for name in names}
        self.versions: dict[str, str] = {}
        self.absent: dict[str, str] = {}  # and why

    def __enter__(self) -> Race:
        """With every library loaded that is there."""
        for name, remote in list(self._remotes.items()):
            try:
                self.versions[name] = remote.ask("describe")
            except EngineError as error:
                self.absent[name] = str(error)
                self._remotes.pop(name).close()
        return self

    def __exit__(self, *_: object) -> None:
        """Ends all processes."""
        for remote in self._remotes.values():
            remote.close()

    def run(
        self, jobs: Sequence[Job], ceilings: Ceilings, *, budget: float, seed: int, checked: bool, shown: Progress
    ) -> Iterator[Result]:
        """Every job by every engine; `budget` is the seconds of timed calls of each."""
        for job in jobs:
            shown.step(f"{job.label} {job.op}")
            timings = self._measure(job, budget, seed)
            if checked:
                self._check(job, timings, seed)
            bound, limit = ceilings.bound(job.problem, job.bytes_moved)
            yield Result(job, timings, bound, limit)

    def _measure(self, job: Job, budget: float, seed: int) -> dict[str, Timing]:
        timings = {name: Timing() for name in self._remotes}
        expected = {}
        for name, timing in timings.items():
            with _noted(timing):
                reply = self._remotes[name].ask("prepare", job.task, seed)
                timing.compile_seconds = reply["compile_seconds"] + reply["first_seconds"]
                expected[name] = reply["call_seconds"]
        for turn in range(TURNS):
            for name, timing in timings.items():
                if timing.status == "ok" and turn < max(1.0, budget / expected[name]):
                    with _noted(timing):
                        timing.times += self._remotes[name].ask("batch", budget / TURNS)
        return timings

    def _check(self, job: Job, timings: dict[str, Timing], seed: int) -> None:
        inputs = job.task.random_inputs(seed)
        for name, timing in timings.items():
            if timing.status == "ok":
                with _noted(timing):
                    result: np.ndarray = self._remotes[name].ask("output")
                    found = check(job.task.resolved, job.problem, inputs, result)
                    timing.error = found.error
                    if not found.passed:
                        timing.status, timing.detail = "wrong", str(found)


@contextlib.contextmanager
def _noted(timing: Timing) -> Iterator[None]:
    """What a library cannot do, and what kills it, is a result."""
    try:
        yield
    except Unsupported as error:
        timing.status, timing.detail, timing.times = "unsupported", str(error), []
    except EngineError as error:
        timing.status, timing.detail, timing.times = "failed", str(error), []


def geometric_mean(values: Sequence[float]) -> float:
    """Of at least one positive number."""
    return exp(sum(map(log, values)) / len(values))
