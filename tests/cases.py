"""Cases from files, and what tests share to run them."""

import json
from functools import cache
from pathlib import Path

import numpy as np
import pytest

import convgrad
from convgrad.dtypes import COMPUTE, numpy_dtype
from convgrad.plan.machine import available_isas

DATA = Path(__file__).parent / "data"
SHARED = Path(__file__).parents[2] / "shared" / "vectors"  # test data of others, beside the repository where present

FUNCTIONS = {
    "Convolution": convgrad.convolution,
    "ConvolutionBackwardData": convgrad.convolution_backward_data,
    "ConvolutionBackwardWeights": convgrad.convolution_backward_weights,
    "ConvTranspose": convgrad.conv_transpose,
    "ConvTransposeBackwardData": convgrad.conv_transpose_backward_data,
    "ConvTransposeBackwardWeights": convgrad.conv_transpose_backward_weights,
    "BiasAddBackward": convgrad.bias_add_backward,
}
UNIT = {"f32": 2.0**-24, "bf16": 2.0**-8, "f16": 2.0**-11, "f64": 2.0**-53}  # largest relative error of a rounding
TINY = {"f32": 2.0**-126, "bf16": 2.0**-126, "f16": 2.0**-24, "f64": 2.0**-1022}  # where rounding becomes absolute


@cache
def exact_cases():
    """Single operations on small integers with their exact results."""
    return json.loads((DATA / "exact_cases.json").read_text())["cases"]


@cache
def shared(name):
    """A file of the shared test data, or a skip."""
    path = SHARED / name
    if not path.is_file():
        pytest.skip(f"{name} is not beside the repository, in ../shared/vectors")
    return json.loads(path.read_text())


def tensors(case, dtype="f32"):
    """The inputs of a case, whose values every type holds exactly."""
    arrays = [np.array(i["data"], np.float32).reshape(i["shape"]) for i in case["inputs"]]
    typed = [array.astype(numpy_dtype(dtype)) for array in arrays]
    for array, cast in zip(arrays, typed, strict=True):
        np.testing.assert_array_equal(array, cast.astype(np.float32))
    return typed


def expected(case, dtype="f32"):
    """The result of a case, rounded once to the type."""
    return np.array(case["expected"]["data"]).reshape(case["expected"]["shape"]).astype(numpy_dtype(dtype))


def run(op, inputs, attributes, **keywords):
    """Call the function of an operation."""
    return FUNCTIONS[op](*inputs, **attributes, **keywords)


def error_bound(terms, magnitudes, exact, dtype, out_dtype):
    """How far a result may be from the float64 definition; docs/semantics.md derives it.

    `terms` sums of products, `magnitudes` the sum of their absolute values.
    """
    unit = UNIT[COMPUTE[dtype]]
    gamma = terms * unit / (1 - terms * unit)
    oracle = terms * UNIT["f64"] * 2
    return (gamma + oracle) * magnitudes * (1 + UNIT[out_dtype]) + UNIT[out_dtype] * np.abs(exact) + TINY[out_dtype]


def assert_within_bound(result, exact, bound, where):
    """Every element is within its bound; NaN is not."""
    assert result.shape == exact.shape, where
    wrong = np.argwhere(~(np.abs(result.astype(np.float64) - exact) <= bound))
    first = tuple(wrong[0]) if len(wrong) else ()
    assert not len(wrong), f"{where} at {wrong[0].tolist()}: {result[first]} for {exact[first]}, bound {bound[first]}"


def best_of_vectors():
    """The best level here that has no matrix unit, whose plans, and orders of sums, are others."""
    return next(isa for isa in ("avx512", "avx2", "neon", "portable") if isa in available_isas())
