"""Shape inference against the cases of oneDNN's own tests, deviations listed."""

import pytest

from cases import shared
from convgrad.errors import ConvError, ShapeError
from convgrad.spec.resolve import resolve

# Name of the case, and what our refusal says. docs/semantics.md gives the reasons: these cases echo a weights_shape
# that contradicts the inputs, and no gradient of that shape exists.
DEVIATIONS = {
    "InferConvTransposeBackwardWeightsDilationsShape": r"has O = 4, I = 4, but diff_dst has 1 channels",
    "InferConvTransposeBackwardWeightsAutoPadShape/NONE": r"has O = 4, I = 4, but diff_dst has 1 channels",
    "InferConvTransposeBackwardWeightsAutoPadShape/SAME_UPPER": r"has O = 4, I = 4, but diff_dst has 1 channels",
    "InferConvTransposeBackwardWeightsAutoPadShape/SAME_LOWER": r"has O = 4, I = 4, but diff_dst has 1 channels",
    "InferConvTransposeBackwardWeightsAutoPadShape/VALID": r"has O = 4, I = 4, but diff_dst has 1 channels",
    "InferConvolutionBackwardWeightsAutoPadShape/SAME_LOWER": r"has O = 4, I = 4, but src has 1 channels",
    "InferConvolutionBackwardWeightsDilationsShape": r"has O = 4, I = 4, but src has 1 channels",
}


def test_inference_agrees_with_onednn_but_for_the_listed_deviations():
    cases = shared("shape_inference.json")
    assert DEVIATIONS.keys() <= {case["name"] for case in cases}
    for case in cases:
        arguments = case["op"], case["attrs"], case["input_shapes"]
        if case["name"] in DEVIATIONS:
            with pytest.raises(ShapeError, match=DEVIATIONS[case["name"]]):
                resolve(*arguments)
        elif case["expected_status"] == "success":
            resolved = resolve(*arguments, output_shape=case["given_output_shape"])
            assert list(resolved.output_shape) == case["expected_shape"], case["name"]
            for name in ("pads_begin", "pads_end"):
                assert case[f"expected_{name}"] in (None, list(getattr(resolved, name))), case["name"]
        else:
            with pytest.raises(ConvError):
                resolve(*arguments, output_shape=case["given_output_shape"])
