"""How far a result may be from the definition, and how far it is.

A sum of n products in arithmetic of unit roundoff u, in any order, is off by at most γ · Σ|a||b| with
γ = n·u / (1 - n·u). Storing it in a narrower type adds half a unit in the last place. Results are told in units of
this bound: up to 1 is correct, and most results are far below.
"""

from __future__ import annotations

from dataclasses import field
from math import gcd, isfinite, prod

import numpy as np

from convgrad.cli.sampling import define_at, sample
from convgrad.dtypes import COMPUTE
from convgrad.problem.conv import ConvProblem, Unknown
from convgrad.spec.definition import define, magnitude
from convgrad.spec.resolve import Resolved
from convgrad.values import frozen

FULL_FLOPS = 4e9  # above this the definition takes more than some seconds, and elements are sampled
FULL_ELEMENTS = 2**27  # of all tensors together; the definition holds several copies of them in float64
SAMPLES = 4096

_ROUNDOFF = {"f32": 2.0**-24, "f64": 2.0**-53, "f16": 2.0**-11, "bf16": 2.0**-8}
_SMALLEST = {"f32": 2.0**-126, "f64": 2.0**-1022, "f16": 2.0**-24, "bf16": 2.0**-126}  # steps near zero


@frozen
class Check:
    """One result against the definition."""

    error: float  # the largest, in units of the bound; 1 or less is correct
    checked: int  # elements
    elements: int  # of the result
    worst: tuple[int, ...]  # index of the largest error
    errors: np.ndarray = field(default_factory=lambda: np.zeros(0), repr=False, compare=False)  # of all checked

    @property
    def passed(self) -> bool:
        """Whether every checked element is within its bound."""
        return self.error <= 1.0  # false for NaN

    def as_dict(self) -> dict:
        """For JSON, which has no infinity."""
        error = self.error if isfinite(self.error) else None
        return {
            "passed": self.passed,
            "error_in_bounds": error,
            "checked": self.checked,
            "elements": self.elements,
            "worst": list(self.worst),
        }

    def __str__(self) -> str:
        some = "" if self.checked == self.elements else f", {self.checked} of {self.elements} elements"
        verdict = "ok" if self.passed else f"FAILED at {list(self.worst)}"
        return f"{verdict}, error {self.error:.2g} of the bound{some}"


def check(resolved: Resolved, problem: ConvProblem, inputs: list[np.ndarray], result: np.ndarray) -> Check:
    """Compare a result with the definition: every element, or a sample where that would take too long."""
    if not result.size:
        return Check(0.0, 0, 0, ())
    elements = sum(array.size for array in (*inputs, result))
    if resolved.op == "BiasAddBackward" or (problem.flops <= FULL_FLOPS and elements <= FULL_ELEMENTS):
        expected, sizes = define(resolved, inputs), magnitude(resolved, inputs)
        got = result
        indices = None
    else:
        indices = sample(result.shape, SAMPLES)
        expected, sizes = define_at(resolved, inputs, indices)
        got = result[tuple(indices.T)]
    error = errors_in_bounds(got, expected, sizes, terms=reduction_length(problem), problem=problem)
    place = int(np.argmax(np.where(np.isnan(error), np.inf, error)))
    worst = np.unravel_index(place, result.shape) if indices is None else indices[place]
    return Check(float(error.flat[place]), error.size, result.size, tuple(int(i) for i in worst), error.ravel())


def errors_in_bounds(
    got: np.ndarray, expected: np.ndarray, sizes: np.ndarray, *, terms: int, problem: ConvProblem
) -> np.ndarray:
    """Distance of every element from its exact value, in units of what rounding can explain; NaN where only one is."""
    compute, stored = COMPUTE[problem.dtype], problem.out_dtype
    roundings = (terms + 1) * _ROUNDOFF[compute]  # one more for the bias
    if compute == "f64":
        roundings *= 2  # the definition rounds as much
    bound = roundings / (1 - min(roundings, 0.5)) * sizes + terms * _SMALLEST[compute]
    if _ROUNDOFF[stored] > _ROUNDOFF[compute]:
        bound += _ROUNDOFF[stored] * (np.abs(expected) + bound) + _SMALLEST[stored] / 2
    with np.errstate(over="ignore", invalid="ignore", divide="ignore"):
        wide, rounded = got.astype(np.float64), expected.astype(got.dtype).astype(np.float64)
        same = (wide == expected) | (np.isinf(rounded) & (wide == rounded))  # an overflow is what rounding makes of it
        same |= np.isnan(expected) & np.isnan(wide)
        return np.where(same, 0.0, np.abs(wide - expected) / bound)


def reduction_length(problem: ConvProblem) -> int:
    """The most products that any element of the result is a sum of."""
    match problem.unknown:
        case Unknown.Y:
            return problem.x_channels * prod(problem.taps)
        case Unknown.W:
            return problem.batch * prod(problem.y_extent)
        case Unknown.X:
            per_axis = [
                -(-r // (s // gcd(s, d)))
                for r, s, d in zip(problem.taps, problem.stride, problem.dilation, strict=True)
            ]
            return problem.y_channels * prod(per_axis)
