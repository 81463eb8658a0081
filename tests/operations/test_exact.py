"""Bit-equal results where every sum is exact."""

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from cases import FUNCTIONS, exact_cases, expected, run, shared, tensors
from convgrad.dtypes import FLOATING, numpy_dtype
from convgrad.spec.definition import define
from convgrad.spec.resolve import resolve
from strategies import geometries

OTHERS = [dtype for dtype in FLOATING if dtype != "f32"]
EXACT = [  # f32, and of the others one each: operations, formats and attributes meet all of them
    pytest.param(case, dtype, id=f"{case['name']}-{dtype}")
    for number, case in enumerate(exact_cases())
    for dtype in ("f32", OTHERS[number % len(OTHERS)])
]


@pytest.mark.parametrize(("case", "dtype"), EXACT)
def test_exact_cases(case, dtype):
    wanted = expected(case, dtype)
    out = np.full(wanted.shape, np.nan, wanted.dtype)
    assert run(case["op"], tensors(case, dtype), case["attrs"], out=out) is out
    np.testing.assert_array_equal(out.astype(np.float64), wanted.astype(np.float64))


def test_golden_cases_of_onednn():
    for case in shared("onednn_goldens.json"):
        result = run(case["op"], tensors(case), case["attrs"])
        np.testing.assert_array_equal(result, expected(case), err_msg=case["name"])


FAMILIES = {
    "convolution": ("Convolution", "ConvolutionBackwardData", "ConvolutionBackwardWeights"),
    "transposed": ("ConvTranspose", "ConvTransposeBackwardData", "ConvTransposeBackwardWeights"),
}


@pytest.mark.parametrize("family", FAMILIES)
@settings(max_examples=25, deadline=None, derandomize=True, suppress_health_check=[HealthCheck.too_slow])
@given(data=st.data())
def test_gradients_are_adjoint_in_exact_integers(family, data):
    """⟨op(x, w), y⟩ = ⟨x, backward_data(y, w)⟩ = ⟨w, backward_weights(x, y)⟩, and each is its definition."""
    geometry = data.draw(geometries(family))
    rng = np.random.default_rng(7)
    forward, backward_data, backward_weights = FAMILIES[family]

    def integers(shape):
        return rng.integers(-3, 4, shape).astype(np.float32)

    shapes = geometry.image_shape, geometry.window_shape
    x, y = map(integers, shapes if family == "convolution" else shapes[::-1])
    w, attributes = integers(geometry.weights_shape), geometry.attributes

    def computed(op, *inputs, shape=None):
        with_shape = (*inputs, shape) if shape else inputs
        result = FUNCTIONS[op](*with_shape, **attributes)
        required = attributes if "output_padding" in attributes or op == forward else dict(attributes)
        resolved = resolve(op, required, [i.shape for i in inputs], shape_input=shape)
        np.testing.assert_array_equal(result, define(resolved, inputs))
        return result.astype(np.float64)

    wants_shape = family == "convolution"
    dst = computed(forward, x, w)
    diff_src = computed(backward_data, y, w, shape=x.shape if wants_shape else None)
    diff_weights = computed(backward_weights, x, y, shape=w.shape)
    assert np.vdot(dst, y) == np.vdot(x, diff_src) == np.vdot(w, diff_weights)


@pytest.mark.parametrize("auto_pad", ["same_upper", "same_lower", "valid"])
@pytest.mark.parametrize("padding", [0, 1, 2])
def test_gradients_of_padded_transposed_convolutions_are_adjoint(auto_pad, padding, rng):
    """The same attributes on all three, output_padding included, whatever the extents."""
    for stride, taps, dilation, extent in [(3, 4, 1, 3), (3, 2, 2, 4), (4, 3, 1, 2), (3, 1, 1, 5)]:
        attributes = {"strides": [stride], "dilations": [dilation], "auto_pad": auto_pad, "data_format": "NCX"}
        if padding:
            attributes["output_padding"] = [padding]
        x, w = (rng.integers(-3, 4, s).astype(np.float32) for s in ((2, 3, extent), (taps, 4, 3)))
        dst = FUNCTIONS["ConvTranspose"](x, w, **attributes)
        y = rng.integers(-3, 4, dst.shape).astype(np.float32)
        diff_src = FUNCTIONS["ConvTransposeBackwardData"](y, w, **attributes)
        diff_weights = FUNCTIONS["ConvTransposeBackwardWeights"](x, y, w.shape, **attributes)
        assert np.vdot(dst, y) == np.vdot(x, diff_src) == np.vdot(w, diff_weights)


@pytest.mark.parametrize("dtype", ["bf16", "f16"])
def test_sums_of_16_bits_can_stay_in_f32(dtype, rng):
    """Results with more bits than the type holds arrive whole in an f32 output."""
    x, y = (rng.integers(-3, 4, shape).astype(numpy_dtype(dtype)) for shape in ((4, 300, 3), (4, 300, 2)))
    exact = np.einsum("nxi,nxo->io", x.astype(np.float64), y.astype(np.float64))
    wide = FUNCTIONS["ConvolutionBackwardWeights"](x + 3, y + 3, (1, 3, 2), out_dtype="f32")
    exact = np.einsum("nxi,nxo->io", (x + 3).astype(np.float64), (y + 3).astype(np.float64))
    assert wide.dtype == np.float32
    np.testing.assert_array_equal(wide[0], exact)
    out = np.ones((1, 3, 2), np.float32)
    FUNCTIONS["ConvolutionBackwardWeights"](x + 3, y + 3, out=out, accumulate=True)
    np.testing.assert_array_equal(out[0], exact + 1)
    narrow = FUNCTIONS["ConvolutionBackwardWeights"](x + 3, y + 3, (1, 3, 2))
    np.testing.assert_array_equal(narrow[0], exact.astype(numpy_dtype(dtype)))


@pytest.mark.parametrize("dtype", FLOATING)
def test_accumulation_adds_to_what_is_there(dtype, rng):
    for case in exact_cases()[::12]:
        wanted = expected(case, "f64")
        before = rng.integers(-2, 3, wanted.shape).astype(numpy_dtype(dtype))
        out = before.copy()
        run(case["op"], tensors(case, dtype), case["attrs"], out=out, accumulate=True)
        total = (wanted + before.astype(np.float64)).astype(numpy_dtype(dtype))
        np.testing.assert_array_equal(out.astype(np.float64), total.astype(np.float64), err_msg=case["name"])


EMPTY = {  # op, shapes of the inputs, keywords, shape of the result
    "no batch": ("Convolution", [(0, 8, 3), (3, 3, 4)], {}, (0, 6, 4)),
    "no batch, weights": ("ConvolutionBackwardWeights", [(0, 8, 3), (0, 6, 4), (3, 3, 4)], {}, (3, 3, 4)),
    "no batch, bias": ("BiasAddBackward", [(0, 8, 3)], {}, (3,)),
    "no output channels": ("Convolution", [(2, 8, 3), (3, 3, 0)], {}, (2, 6, 0)),
    "no input channels": ("Convolution", [(2, 8, 0), (3, 0, 4)], {}, (2, 6, 4)),
    "no windows": ("Convolution", [(2, 2, 3), (3, 3, 4)], {}, (2, 0, 4)),
    "no windows, data": ("ConvolutionBackwardData", [(2, 0, 4), (3, 3, 4), (2, 2, 3)], {}, (2, 2, 3)),
    "no windows, weights": ("ConvTransposeBackwardWeights", [(2, 0, 4), (2, 2, 3), (3, 3, 4)], {}, (3, 3, 4)),
    "no batch, depthwise": (
        "ConvolutionBackwardWeights", [(0, 5, 22), (0, 5, 20), (5, 1, 3)],
        {"groups": 5, "data_format": "NCX", "weights_format": "OIX"}, (5, 1, 3),
    ),
    "no windows, depthwise": (
        "ConvolutionBackwardData", [(2, 5, 0), (5, 1, 3), (2, 5, 2)],
        {"groups": 5, "data_format": "NCX", "weights_format": "OIX"}, (2, 5, 2),
    ),
    "no image": ("ConvTranspose", [(2, 1, 4), (1, 3, 4)], {"pads_begin": [1]}, (2, 0, 3)),
}  # fmt: skip


@pytest.mark.parametrize(("op", "shapes", "keywords", "wanted"), EMPTY.values(), ids=EMPTY)
def test_nothing_to_sum_gives_zeros_or_nothing(op, shapes, keywords, wanted):
    count = 1 if op == "BiasAddBackward" else 2
    inputs = [np.ones(shape, np.float32) for shape in shapes[:count]]
    out = np.full(wanted, np.nan, np.float32)
    FUNCTIONS[op](*inputs, *shapes[count:], **keywords, out=out)
    np.testing.assert_array_equal(out, np.zeros(wanted))
    assert FUNCTIONS[op](*inputs, *shapes[count:], **keywords).shape == wanted


def test_no_input_channels_leave_the_bias():
    dst = FUNCTIONS["Convolution"](np.ones((2, 4, 0), np.float32), np.ones((1, 0, 2), np.float32), np.float32([3, 4]))
    np.testing.assert_array_equal(dst, np.broadcast_to([3, 4], (2, 4, 2)))
