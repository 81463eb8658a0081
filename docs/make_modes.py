"""Measure the error of every fpmath_mode on matrix tiles, and write docs/performance/modes.md.

    python docs/make_modes.py

Tiles are emulated to the last bit, so errors need no processor that has them; times would mean nothing and are not
taken. The emulation itself needs AVX-512.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from datetime import date
from pathlib import Path

import numpy as np

from convgrad.plan.choose import variants
from convgrad.plan.machine import machine_for
from convgrad.problem.conv import ConvProblem, Unknown
from convgrad.runtime.kernel import kernel_of_variant

PAGE = Path(__file__).parent / "performance" / "modes.md"
CHANNELS = (32, 128, 512)
EXTENT, TAPS = 14, 3
DATA: dict[str, Callable[[np.random.Generator, tuple[int, ...]], np.ndarray]] = {
    "normal": lambda rng, shape: rng.standard_normal(shape),
    "uniform": lambda rng, shape: rng.uniform(-1, 1, shape),
    "one sign": lambda rng, shape: rng.uniform(0, 1, shape),
    "log-uniform, 2^-20 to 2^20": lambda rng, shape: np.exp2(rng.uniform(-20, 20, shape)) * rng.choice([-1, 1], shape),
}


def problem_of(unknown: Unknown, channels: int) -> ConvProblem:
    """A layer that keeps the extent, channels first."""
    image, kernel = EXTENT * EXTENT, TAPS * TAPS
    return ConvProblem(
        unknown=unknown, batch=1, groups=1, x_channels=channels, y_channels=channels,
        x_extent=(EXTENT, EXTENT), y_extent=(EXTENT, EXTENT), taps=(TAPS, TAPS), stride=(1, 1), dilation=(1, 1),
        pad_low=(1, 1), x_strides=(0, 0, image, EXTENT, 1), y_strides=(0, 0, image, EXTENT, 1),
        w_strides=(0, channels * kernel, kernel, TAPS, 1),
    )  # fmt: skip


def contract(unknown: Unknown, given: dict[str, np.ndarray]) -> np.ndarray:
    """The operation in the precision of its arguments, tap by tap."""
    c = CHANNEL_AXES[unknown]
    total = 0.0
    parts = {}
    for r in range(TAPS):
        for q in range(TAPS):
            if unknown is Unknown.Y:
                x = np.pad(given["x"], ((0, 0), (1, 1), (1, 1)))[:, r : r + EXTENT, q : q + EXTENT]
                total = total + np.einsum(c, given["w"][:, :, r, q], x)
            elif unknown is Unknown.X:
                y = np.pad(given["y"], ((0, 0), (1, 1), (1, 1)))[:, 2 - r : 2 - r + EXTENT, 2 - q : 2 - q + EXTENT]
                total = total + np.einsum(c, given["w"][:, :, r, q], y)
            else:
                x = np.pad(given["x"], ((0, 0), (1, 1), (1, 1)))[:, r : r + EXTENT, q : q + EXTENT]
                parts[r, q] = np.einsum(c, given["y"], x)
    if unknown is Unknown.W:
        return np.stack([np.stack([parts[r, q] for q in range(TAPS)], -1) for r in range(TAPS)], -2)
    return np.asarray(total)


CHANNEL_AXES = {Unknown.Y: "kc,cpq->kpq", Unknown.X: "kc,kpq->cpq", Unknown.W: "kpq,cpq->kc"}


def error(problem: ConvProblem, given: dict[str, np.ndarray], isa: str, tiles: bool) -> float:
    """The largest |error| / Σ |a| |b|."""
    machine = machine_for(isa)
    plans = list(variants(problem, machine))
    number = next(n for n, plan in enumerate(plans) if ("matrix" in str(plan).splitlines()[0]) == tiles)
    out = np.empty([n for n in problem.shapes[problem.unknown.value] if n != 1], np.float32)
    arrays = given | {problem.unknown.value: out}
    kernel_of_variant(problem, machine, number)(*(arrays[name].ctypes.data for name in "xwy"))
    wide = {name: array.astype(np.float64) for name, array in given.items()}
    scale = contract(problem.unknown, {name: np.abs(array) for name, array in wide.items()})
    return float(np.max(np.abs(out - contract(problem.unknown, wide)) / scale))


def rows() -> list[str]:
    """Lines of the table."""
    lines = []
    for unknown in (Unknown.Y, Unknown.X, Unknown.W):
        for channels in CHANNELS:
            for kind, make in DATA.items():
                problem = problem_of(unknown, channels)
                rng = np.random.default_rng(0)
                given = {
                    name: make(rng, tuple(n for n in shape if n != 1)).astype(np.float32)
                    for name, shape in problem.shapes.items()
                    if name != unknown.value
                }
                errors = [error(problem, given, "avx512", tiles=False)]
                for mode in ("strict", "tf32", "bf16"):
                    errors.append(error(replace(problem, fpmath_mode=mode), given, "amx_emulated", tiles=True))
                cells = " | ".join(f"{value:.1e}" for value in errors)
                lines.append(f"| {unknown.value} | {channels} | {kind} | {cells} |")
                print(lines[-1], flush=True)
    return lines


HEAD = """# Error of each fpmath_mode

The largest |error| / Σ |a| |b| over the results of a 3x3 layer of 14x14 pixels with as many channels on both sides,
solved for y (Convolution), x (ConvolutionBackwardData) and w (ConvolutionBackwardWeights). *Vectors* is f32
arithmetic of AVX-512 in the order of its plan; the other columns are matrix tiles, emulated to the last bit. `f16`
computes like `tf32`, and `any` like `bf16`. Written on {date} by `python docs/make_modes.py`.

| unknown | channels | data | vectors | strict | tf32 | bf16 |
|---|---|---|---|---|---|---|
"""


def main() -> None:
    """Measure and write."""
    table = "\n".join(rows())
    PAGE.write_text(HEAD.format(date=date.today()) + table + "\n")


if __name__ == "__main__":
    main()
