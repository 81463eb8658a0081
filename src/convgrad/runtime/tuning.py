"""Measuring the variants of a plan, for those who would rather know than trust the prediction.

What is measured here is remembered in `decisions`, and taken by every kernel that is made from then on. A decision
does not name a number of threads: results have the same bits for any, tuned or not.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from math import ceil

import numpy as np

from convgrad.dtypes import SIZES, numpy_dtype
from convgrad.plan.choose import variants
from convgrad.plan.machine import Machine, current_machine
from convgrad.problem.conv import ConvProblem, Ints
from convgrad.runtime import decisions
from convgrad.runtime import kernel as kernels
from convgrad.values import frozen

CLEARLY = 0.97  # of the time of the first variant: another has to get by with less to be worth other last bits
LEAST_ROUNDS = 3
HOPELESS = 2.0  # times the best; such a variant is not timed any further
SAMPLE_SECONDS = 100e-6  # calls that take less are timed several at a time
ALIGNMENT = 64
PERIOD = 1 << 18  # random numbers are drawn once and repeated: time depends on there being some, not on which

Addresses = tuple[int, int, int, int]  # of x, w, y and the bias


@frozen(kw_only=True)
class Tuned:
    """What was measured of a problem; one entry per variant, in predicted order."""

    problem: ConvProblem
    plans: tuple[str, ...]  # the first line of each
    seconds: tuple[float, ...]  # of the fastest call
    chosen: int
    remembered: bool  # by the disk cache, and so by later processes

    @property
    def gain(self) -> float:
        """How many times as fast as the prediction's choice."""
        return self.seconds[0] / self.seconds[self.chosen]


def tune(problem: ConvProblem, machine: Machine | None = None, *, seconds: float = 1.0) -> Tuned:
    """Time every variant on random data for about so many seconds, on the threads of this process, and decide.

    Kernels that a caller holds already stay as they are. The unknown must hold at least one number.
    """
    machine = machine or current_machine()
    plans = tuple(str(plan).partition("\n")[0] for plan in variants(problem, machine))
    built = [kernels.kernel_of_variant(problem, machine, variant) for variant in range(len(plans))]
    arrays = Arrays(problem)
    times = race([lambda kernel=kernel: kernel(*arrays.addresses) for kernel in built], seconds)
    chosen = _choose(times)
    remembered = decisions.remember(problem, machine, chosen)
    kernels.forget(problem, machine)
    return Tuned(problem=problem, plans=plans, seconds=times, chosen=chosen, remembered=remembered)


def forget(problem: ConvProblem, machine: Machine | None = None) -> bool:
    """Go back to the prediction for a problem; returns whether there was a decision."""
    machine = machine or current_machine()
    found = decisions.forget(problem, machine)
    kernels.forget(problem, machine)
    return found


def forget_all() -> int:
    """Go back to the prediction for every problem; returns how many decisions there were."""
    found = decisions.forget_all()
    kernels.forget()
    return found


def _choose(times: Sequence[float]) -> int:
    """The fastest, but the first unless another is clearly faster."""
    best = min(range(len(times)), key=times.__getitem__)
    return best if times[best] <= CLEARLY * times[0] else 0


def race(calls: Sequence[Callable[[], None]], seconds: float) -> tuple[float, ...]:
    """The fastest time of each call. They take turns, so that what disturbs one disturbs them all."""
    for call in calls:
        call()  # the first has to get its memory and start the threads
    repeats = [max(1, ceil(SAMPLE_SECONDS / max(_time(call, 1), 1e-9))) for call in calls]
    best = [float("inf")] * len(calls)
    end = time.perf_counter() + seconds
    rounds = 0
    while rounds < LEAST_ROUNDS or time.perf_counter() < end:
        limit = HOPELESS * min(best)
        for n, call in enumerate(calls):
            if rounds < 2 or best[n] <= limit:
                best[n] = min(best[n], _time(call, repeats[n]))
        rounds += 1
    return tuple(best)


def _time(call: Callable[[], None], repeats: int) -> float:
    """Seconds of one of so many calls in a row."""
    start = time.perf_counter()
    for _ in range(repeats):
        call()
    return (time.perf_counter() - start) / repeats


class Arrays:
    """Memory for every tensor of a problem, with finite random numbers in it."""

    def __init__(self, problem: ConvProblem) -> None:
        strides = problem.strides | {"bias": (problem.bias_stride,)}
        shapes = problem.shapes | {"bias": (problem.bias_length,)}
        results = {problem.solved, "bias" if problem.bias_gradient else ""}
        self.held: list[np.ndarray] = []
        self.addresses: Addresses = tuple(  # type: ignore[assignment]
            self._add(shapes[name], strides[name], problem.out_dtype if name in results else problem.dtype)
            for name in ("x", "w", "y", "bias")
        )

    def _add(self, shape: Ints, strides: Ints, dtype: str) -> int:
        """The address of the element with all indices zero."""
        if 0 in shape:
            return 0
        reach = [(extent - 1) * step for extent, step in zip(shape, strides, strict=True)]
        low, high = sum(step for step in reach if step < 0), sum(step for step in reach if step > 0)
        count, size = high - low + 1, SIZES[dtype]
        raw = np.empty(count * size + ALIGNMENT, np.uint8)
        start = -raw.ctypes.data % ALIGNMENT
        array = raw[start : start + count * size].view(numpy_dtype(dtype))
        some = np.random.default_rng(0).standard_normal(min(count, PERIOD), np.float32).astype(array.dtype)
        for first in range(0, count, PERIOD):
            part = array[first : first + PERIOD]
            part[...] = some[: part.size]
        self.held.append(array)
        return array.ctypes.data - low * size
