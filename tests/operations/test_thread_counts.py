"""Results do not depend on the number of threads."""

import numpy as np
import pytest

from cases import FUNCTIONS
from convgrad.dtypes import FLOATING, numpy_dtype
from convgrad.runtime.threads import num_threads, set_num_threads

ATTRIBUTES = {"strides": [2, 1], "pads_begin": [1, 0], "pads_end": [0, 2], "dilations": [1, 2], "data_format": "NCX"}
X, Y = (3, 10, 13, 21), (3, 20, 6, 19)  # the kernel is 3 x 3, groups 2
PROBLEMS = {
    "Convolution": (X, (20, 5, 3, 3), "OIX", None),
    "ConvolutionBackwardData": (Y, (20, 5, 3, 3), "OIX", X),
    "ConvolutionBackwardWeights": (X, Y, "OIX", (20, 5, 3, 3)),
    "ConvTranspose": (Y, (20, 5, 3, 3), "IOX", None),
    "ConvTransposeBackwardData": (X, (20, 5, 3, 3), "IOX", None),
    "ConvTransposeBackwardWeights": (Y, X, "IOX", (20, 5, 3, 3)),
    "BiasAddBackward": (Y, None, None, None),
}


@pytest.fixture
def threads():
    before = num_threads()
    yield set_num_threads
    set_num_threads(before)


@pytest.mark.parametrize("dtype", FLOATING)
@pytest.mark.parametrize("op", PROBLEMS)
def test_bits_are_the_same_for_any_number_of_threads(op, dtype, threads, rng):
    first, second, weights_format, shape = PROBLEMS[op]
    shapes = [first] if second is None else [first, second]
    inputs = [rng.standard_normal(s).astype(numpy_dtype(dtype)) for s in shapes]
    attributes = {"data_format": "NCX"}
    if second is not None:
        attributes = ATTRIBUTES | {"groups": 2, "weights_format": weights_format}
    results = []
    for count in (1, 2, 3, 7):
        threads(count)
        results.append(FUNCTIONS[op](*inputs, *([shape] if shape else []), **attributes))
    assert np.isfinite(results[0].astype(np.float64)).all()
    for other in results[1:]:
        np.testing.assert_array_equal(results[0].view(np.uint8), other.view(np.uint8))
