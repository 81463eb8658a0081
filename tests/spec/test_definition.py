import numpy as np
import pytest

from cases import exact_cases, expected, shared, tensors
from convgrad.spec.definition import define, magnitude
from convgrad.spec.resolve import resolve


@pytest.mark.parametrize("case", exact_cases(), ids=lambda case: case["name"])
def test_the_definition_gives_the_exact_cases(case):
    inputs = tensors(case)
    resolved = resolve(case["op"], case["attrs"], [i.shape for i in inputs])
    np.testing.assert_array_equal(define(resolved, inputs), expected(case, "f64"))
    if "effective_pads" in case:
        assert list(resolved.pads_begin) == case["effective_pads"]["pads_begin"]
        assert list(resolved.pads_end) == case["effective_pads"]["pads_end"]


def test_the_definition_gives_the_golden_cases_of_onednn():
    for case in shared("onednn_goldens.json"):
        inputs = tensors(case)
        resolved = resolve(case["op"], case["attrs"], [i.shape for i in inputs])
        np.testing.assert_array_equal(define(resolved, inputs), expected(case, "f64"), err_msg=case["name"])


def test_the_magnitude_sums_absolute_values():
    x, w = np.array([[[1.0, -2.0, 3.0]]]), np.array([[[1.0, -1.0]]])
    attributes = {"strides": [1], "dilations": [1], "data_format": "NCX", "weights_format": "OIX"}
    resolved = resolve("Convolution", attributes, [x.shape, w.shape, (1,)])
    np.testing.assert_array_equal(define(resolved, [x, w, np.array([-1.0])]), [[[2.0, -6.0]]])
    np.testing.assert_array_equal(magnitude(resolved, [x, w, np.array([-1.0])]), [[[4.0, 6.0]]])
