"""Measure the errors of strict f32 on some fifty layers and kinds of data, and write docs/performance/errors.md.

    python docs/make_errors.py

Tiles are emulated to the last bit, so no processor that has them is needed. The emulation itself needs AVX-512.
"""

from __future__ import annotations

from collections.abc import Callable
from datetime import date
from itertools import product
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from convgrad.plan.choose import variants
from convgrad.plan.machine import machine_for
from convgrad.problem.canonicalize import ROLES, canonicalize
from convgrad.problem.conv import ConvProblem
from convgrad.runtime.kernel import kernel_of_variant
from convgrad.spec.definition import define, magnitude
from convgrad.spec.resolve import Resolved, resolve

Array = np.ndarray
Make = Callable[[np.random.Generator, tuple[int, ...]], Array]

PAGE = Path(__file__).parent / "performance" / "errors.md"
LARGEST = float(np.finfo(np.float32).max)
UNIT, LEAST = 2.0**-24, 2.0**-126
LEVELS = {"vectors": ("avx512", False), "tiles": ("amx_emulated", True)}


def signs(rng: np.random.Generator, shape: tuple[int, ...]) -> Array:
    """One of either, at random."""
    return rng.choice([-1.0, 1.0], shape)


def spread(low: float, high: float) -> Make:
    """Magnitudes whose logarithms are uniform, of both signs."""
    return lambda rng, shape: np.exp2(rng.uniform(low, high, shape)) * signs(rng, shape)


def large(low: float, high: float) -> Make:
    """Shares of the largest number, of both signs."""
    return lambda rng, shape: LARGEST * rng.uniform(low, high, shape) * signs(rng, shape)


LARGE = "near the largest", "near half of the largest"  # whose second operand is divided by the terms of a sum
DATA: dict[str, tuple[Make, Make]] = {  # of the first operand, and of the second
    "normal": (lambda rng, shape: rng.standard_normal(shape),) * 2,
    "uniform": (lambda rng, shape: rng.uniform(-1, 1, shape),) * 2,
    "one sign": (lambda rng, shape: rng.uniform(0, 1, shape),) * 2,
    "log-uniform, 2^-60 to 2^60": (spread(-60, 60),) * 2,
    "log-uniform, 2^-20 to 2^20": (spread(-20, 20),) * 2,
    LARGE[0]: (large(0.5, 1), lambda rng, shape: rng.uniform(-1, 1, shape)),
    LARGE[1]: (large(0.1, 0.49), lambda rng, shape: rng.uniform(-1, 1, shape)),
}


class Layer(NamedTuple):
    """A layer of equal extents on all axes, channels first."""

    rank: int
    batch: int
    channels: tuple[int, int]  # of the image, of the windows
    extent: int
    taps: int
    stride: int = 1
    dilation: int = 1
    pad: int = 0
    groups: int = 1

    def __str__(self) -> str:
        c, k = self.channels
        text = f"{self.batch}x{c}x{'x'.join([str(self.extent)] * self.rank)} to {k}, {self.taps} taps an axis"
        words = {"stride": (self.stride, 1), "dilation": (self.dilation, 1), "groups": (self.groups, 1)}
        return text + "".join(f", {word} {value}" for word, (value, usual) in words.items() if value != usual)


GEOMETRIES = [
    Layer(2, 1, (64, 64), 20, 3, pad=1),
    Layer(2, 2, (32, 48), 17, 3, pad=1),
    Layer(2, 1, (128, 64), 14, 3, pad=1),
    Layer(2, 4, (96, 80), 7, 3, pad=1),
    Layer(2, 1, (256, 128), 14, 1),
    Layer(2, 2, (64, 96), 15, 1, stride=2),
    Layer(2, 1, (48, 64), 21, 3, stride=2, pad=1),
    Layer(2, 1, (40, 32), 24, 4, stride=2, pad=1),
    Layer(2, 1, (64, 32), 20, 3, dilation=2, pad=2),
    Layer(2, 2, (64, 64), 12, 5, pad=2),
    Layer(2, 1, (96, 64), 16, 3, pad=1, groups=2),
    Layer(1, 2, (64, 80), 200, 5, stride=2, pad=2),
    Layer(1, 1, (48, 64), 300, 11, pad=5),
    Layer(1, 4, (128, 64), 64, 3, dilation=4, pad=4),
    Layer(3, 1, (32, 32), 8, 3, pad=1),
    Layer(3, 1, (48, 32), 8, 2, stride=2),
    Layer(2, 1, (37, 53), 13, 3, pad=1),
]
FEW = [Layer(2, 1, (3, 64), 40, 7, stride=2, pad=3), Layer(2, 1, (8, 48), 24, 3, pad=1)]
OPS = ("Convolution", "ConvolutionBackwardData", "ConvolutionBackwardWeights")


def layers() -> list[tuple[str, Layer]]:
    """Each with an operation: all, and dst only of few channels."""
    return [*product(OPS, GEOMETRIES), *product(OPS[:1], FEW)]


def resolved(op: str, layer: Layer) -> Resolved:
    """The operation."""
    words: dict[str, Any] = {
        "strides": [layer.stride] * layer.rank, "dilations": [layer.dilation] * layer.rank,
        "pads_begin": [layer.pad] * layer.rank, "pads_end": [layer.pad] * layer.rank, "groups": layer.groups,
        "data_format": "NCX", "weights_format": "OIX",
    }  # fmt: skip
    c, k = layer.channels
    image = (layer.batch, c, *[layer.extent] * layer.rank)
    weights = (k, c // layer.groups, *[layer.taps] * layer.rank)
    forward = resolve("Convolution", words, [image, weights])
    if op == "Convolution":
        return forward
    if op == "ConvolutionBackwardData":
        return resolve(op, words, [forward.output_shape, weights], shape_input=image)
    return resolve(op, words, [image, forward.output_shape], shape_input=weights)


def problem_of(what: Resolved) -> ConvProblem:
    """On dense arrays."""
    strides = [tuple(np.empty(shape, bool).strides) for shape in (*what.input_shapes, what.output_shape)]
    return canonicalize(what, input_strides=strides[:2], output_strides=strides[2], dtype="f32", out_dtype="f32")


def computed(what: Resolved, inputs: list[Array], isa: str, *, tiles: bool) -> Array:
    """By the first plan of its kind."""
    problem, machine = problem_of(what), machine_for(isa)
    number = next(n for n, p in enumerate(variants(problem, machine)) if ("matrix" in str(p).split("\n")[0]) is tiles)
    out = np.empty(what.output_shape, np.float32)
    at = {role: array.ctypes.data for role, array in zip(ROLES[what.op], (*inputs, out), strict=True)}
    kernel_of_variant(problem, machine, number)(at["x"], at["w"], at["y"])
    return out


class Worst(NamedTuple):
    """Over results of one kind of data: errors as shares of the bound and of Σ |a| |b|, and what is not finite."""

    of_bound: float = 0.0
    relative: float = 0.0
    not_finite: int = 0
    results: int = 0

    def and_also(self, other: Worst) -> Worst:
        """Of both."""
        return Worst(
            max(self.of_bound, other.of_bound), max(self.relative, other.relative),
            self.not_finite + other.not_finite, self.results + other.results,
        )  # fmt: skip


def errors(op: str, layer: Layer, kind: str) -> dict[str, Worst]:
    """By level."""
    what, rng = resolved(op, layer), np.random.default_rng(0)
    ones = [np.ones(shape) for shape in what.input_shapes]
    terms = define(what, ones)  # of every result
    first, second = (make(rng, shape) for make, shape in zip(DATA[kind], what.input_shapes, strict=True))
    if kind in LARGE:
        second = second / terms.max()
    inputs = [array.astype(np.float32) for array in (first, second)]
    exact, size = define(what, inputs), magnitude(what, inputs)
    found = {}
    for level, (isa, tiles) in LEVELS.items():
        result = computed(what, inputs, isa, tiles=tiles).astype(np.float64)
        finite = np.isfinite(result)
        lost = ~finite & (np.abs(exact) <= LARGEST)
        error = np.where(finite, np.abs(result - exact), 0)
        bound = terms * UNIT / (1 - terms * UNIT) * size + UNIT * np.abs(exact) + LEAST
        found[level] = Worst(
            float((error / bound).max()), float((error / np.maximum(size, LEAST)).max()),
            int(lost.sum()), int(exact.size),
        )  # fmt: skip
    return found


HEAD = """# Errors of strict f32

{count} layers (`GEOMETRIES` in `docs/make_errors.py`, by operation: one to three axes, 3 to 256 channels, strides,
dilation, groups; dst, diff_src and diff_weights), each with {kinds} kinds of data, against the definition in float64.
*Vectors* is f32 arithmetic of AVX-512 in the order of its plan, *tiles* is `strict` on matrix tiles, in three pieces of
bf16, emulated to the last bit, with what takes over where data demand it. Near the largest f32, or half of it, is the
first operand, within a factor of a few; the second is as small as keeps sums in range. Written on {date} by
`python docs/make_errors.py`.

The largest error of all results of all layers, as a share of the [bound](../semantics.md#accuracy), and of Σ |a| |b|;
and how many results are not finite whose exact value is a number that f32 holds.

| data | results | of the bound: vectors | tiles | of Σ \\|a\\| \\|b\\|: vectors | tiles | not finite: vectors | tiles |
|---|---|---|---|---|---|---|---|
"""


def main() -> None:
    """Measure and write."""
    lines = []
    for kind in DATA:
        worst = dict.fromkeys(LEVELS, Worst())
        for op, layer in layers():
            for level, found in errors(op, layer, kind).items():
                worst[level] = worst[level].and_also(found)
        v, t = worst["vectors"], worst["tiles"]
        lines.append(
            f"| {kind} | {v.results} | {v.of_bound:.3f} | {t.of_bound:.3f} | {v.relative:.1e} | {t.relative:.1e} "
            f"| {v.not_finite} | {t.not_finite} |"
        )
        print(lines[-1], flush=True)
    PAGE.write_text(HEAD.format(date=date.today(), count=len(layers()), kinds=len(DATA)) + "\n".join(lines) + "\n")


if __name__ == "__main__":
    main()
