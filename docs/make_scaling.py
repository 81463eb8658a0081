"""Measure how time grows with the batch and with the extent of an image, and write docs/scaling.md.

    python docs/make_scaling.py

One layer from a few million operations to a trillion, which needs 6 GiB of memory and some minutes. Figures are those
of the machine that this runs on; nothing else should run there.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable
from datetime import date
from pathlib import Path

import numpy as np

import convgrad
from convgrad.plan.machine import current_machine

PAGE = Path(__file__).parent / "scaling.md"
CHANNELS, TAPS, PAD = 128, 3, 1
EXTENTS = (2, 6, 18, 58, 184, 582, 1841)  # of one square image; operations grow tenfold
BATCHES = (1, 3, 30, 300, 3_000, 30_000, 310_000)  # of images of this extent:
SMALL = 4
PERIOD = 1 << 20  # numbers after which random data repeat
ENOUGH = 0.3  # seconds of samples
LONG = 4.0  # seconds after which a first call, compilation included, is sample enough
ATTRIBUTES = {"pads_begin": [PAD, PAD], "pads_end": [PAD, PAD], "data_format": "NCX", "weights_format": "OIX"}
Call = Callable[[], object]


def operations(batch: int, extent: int) -> int:
    """Two for each product; those with padding do not count."""
    pairs = TAPS * extent - 2 * PAD
    return 2 * batch * CHANNELS * CHANNELS * pairs * pairs


def numbers(*shape: int) -> np.ndarray:
    """Normally distributed, repeated where there are many."""
    array = np.empty(shape, np.float32)
    flat, some = array.reshape(-1), np.random.default_rng(0).standard_normal(min(array.size, PERIOD), np.float32)
    for first in range(0, flat.size, PERIOD):
        part = flat[first : first + PERIOD]
        part[...] = some[: part.size]
    return array


def calls(batch: int, extent: int) -> dict[str, Call]:
    """The three operations of the layer; two of them write over what they no longer need."""
    image, weights = (batch, CHANNELS, extent, extent), numbers(CHANNELS, CHANNELS, TAPS, TAPS)
    src, dst = numbers(*image), numbers(*image)
    gradient = np.empty_like(weights)
    return {
        "ConvolutionBackwardWeights": lambda: convgrad.convolution_backward_weights(
            src, dst, out=gradient, **ATTRIBUTES
        ),
        "Convolution": lambda: convgrad.convolution(src, weights, out=dst, **ATTRIBUTES),
        "ConvolutionBackwardData": lambda: convgrad.convolution_backward_data(dst, weights, out=src, **ATTRIBUTES),
    }


def seconds(call: Call) -> float:
    """Of the fastest call."""
    best = first = _once(call)
    if first > LONG:
        return best
    end = time.perf_counter() + ENOUGH
    best = _once(call)
    while time.perf_counter() < end:
        best = min(best, _once(call))
    return best


def _once(call: Call) -> float:
    start = time.perf_counter()
    call()
    return time.perf_counter() - start


def table(title: str, sizes: list[tuple[int, int]]) -> list[str]:
    """Rows of growing work."""
    lines, names = [], list(calls(1, SMALL))
    for batch, extent in sizes:
        work, cells = operations(batch, extent), []
        for call in calls(batch, extent).values():
            took = seconds(call)
            cells.append(f"{_time(took)} | {work / took / 1e9:.0f}")
        lines.append(f"| {batch} | {extent}x{extent} | {_work(work)} | {' | '.join(cells)} |")
        print(lines[-1], flush=True)
    head = " | ".join(f"{name}, time | GF/s" for name in names)
    return [
        f"## {title}",
        "",
        f"| batch | image | operations | {head} |",
        f"|{'---:|' * (3 + 2 * len(names))}",
        *lines,
        "",
    ]


def _work(count: int) -> str:
    for unit, name in ((1e12, "T"), (1e9, "G"), (1e6, "M")):
        if count >= 0.95 * unit:
            return f"{count / unit:.3g} {name}FLOP"
    return f"{count / 1e6:.2g} MFLOP"


def _time(took: float) -> str:
    return f"{took:.3g} s" if took >= 1 else f"{took * 1e3:.3g} ms" if took >= 1e-3 else f"{took * 1e6:.3g} µs"


def main() -> int:
    """Write the page."""
    lines = [
        "# Time grows with work, and not faster",
        "",
        f"Written by `python docs/make_scaling.py` on {date.today()}: {current_machine().isa}, "
        f"{convgrad.num_threads()} threads; convgrad {convgrad.__version__}.",
        "",
        f"A {TAPS}x{TAPS} convolution of {CHANNELS} to {CHANNELS} channels, NCX, f32: seconds of the fastest call, and "
        "operations per second. Calls of some microseconds carry what a call costs; products with padding, most of "
        "those of a 2x2 image, are not counted.",
        "",
        *table("With the extent", [(1, extent) for extent in EXTENTS]),
        *table("With the batch", [(batch, SMALL) for batch in BATCHES]),
    ]
    PAGE.write_text("\n".join(lines[:-1]) + "\n", encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
