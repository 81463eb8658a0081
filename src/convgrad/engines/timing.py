"""How long a call takes."""

from __future__ import annotations

import gc
from collections.abc import Callable
from time import perf_counter

SAMPLE_SECONDS = 2e-4  # a sample is as many calls as last at least this long


def sample(call: Callable[[], None], seconds: float, expected: float) -> list[float]:
    """Seconds per call, sample by sample, for about so long; at least one sample. `expected` is one call's."""
    calls = max(1, int(SAMPLE_SECONDS / max(expected, 1e-9)))
    samples: list[float] = []
    collects = gc.isenabled()
    gc.disable()
    try:
        begin = end = perf_counter()
        while not samples or end - begin < seconds:
            start = perf_counter()
            for _ in range(calls):
                call()
            end = perf_counter()
            samples.append((end - start) / calls)
    finally:
        if collects:
            gc.enable()
    return samples
