"""The bias gradient that comes with a weights gradient: every channel of diff_dst, summed over all else."""

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import convgrad
from cases import assert_within_bound, error_bound
from convgrad.dtypes import FLOATING, numpy_dtype
from convgrad.runtime.threads import num_threads, set_num_threads
from strategies import geometries

FUNCTIONS = {
    "convolution": convgrad.convolution_backward_weights,
    "transposed": convgrad.conv_transpose_backward_weights,
}
each_family = pytest.mark.parametrize("family", FUNCTIONS)


def channel_sums(diff_dst, data_format):
    """In float64, where all whole numbers of these tests are exact."""
    axis = 1 if data_format == "NCX" else diff_dst.ndim - 1
    return diff_dst.astype(np.float64).sum(tuple(n for n in range(diff_dst.ndim) if n != axis))


@each_family
@settings(max_examples=25, deadline=None, derandomize=True, suppress_health_check=[HealthCheck.too_slow])
@given(data=st.data())
def test_both_gradients_are_exact_in_integers(family, data):
    """Any strides, pads, dilations, groups and formats; gaps between windows and what is left behind them count."""
    geometry = data.draw(geometries(family))
    dtype, accumulate = data.draw(st.sampled_from(FLOATING)), data.draw(st.booleans())
    rng = np.random.default_rng(11)

    def integers(shape):
        return rng.integers(-2, 3, shape).astype(numpy_dtype(dtype))

    shapes = geometry.image_shape, geometry.window_shape
    src, diff_dst = map(integers, shapes if family == "convolution" else shapes[::-1])
    out_dtype = "f32" if dtype in ("bf16", "f16") else dtype  # sums of more bits than 16-bit types hold
    plain = FUNCTIONS[family](src, diff_dst, geometry.weights_shape, **geometry.attributes, out_dtype=out_dtype)
    sums = channel_sums(diff_dst, geometry.attributes["data_format"])
    if not accumulate:
        found = FUNCTIONS[family](
            src, diff_dst, geometry.weights_shape, **geometry.attributes, out_dtype=out_dtype, diff_bias=True
        )
        assert [result.dtype for result in found] == [plain.dtype] * 2
        np.testing.assert_array_equal(found[0], plain)
        np.testing.assert_array_equal(found[1], sums)
        return
    before, room = integers(plain.shape), integers((3 * len(sums),))
    out, diff_bias = before.astype(plain.dtype), room.astype(plain.dtype)
    at = np.s_[1::3] if data.draw(st.booleans()) else np.s_[-2::-3]
    found = FUNCTIONS[family](src, diff_dst, **geometry.attributes, out=out, diff_bias=diff_bias[at], accumulate=True)
    assert found[0] is out
    np.testing.assert_array_equal(out, plain + before.astype(plain.dtype))
    np.testing.assert_array_equal(diff_bias[at], room[at].astype(np.float64) + sums)
    beside = np.ones(len(room), bool)
    beside[at] = False
    np.testing.assert_array_equal(diff_bias[beside], room[beside].astype(np.float64))


LAYERS = {  # src, diff_dst and weights of NCX and OIX, or IOX where transposed, and attributes
    "3x3": (
        "convolution",
        (2, 40, 17, 19),
        (2, 33, 17, 19),
        (33, 40, 3, 3),
        {"pads_begin": [1, 1], "pads_end": [1, 1]},
    ),
    "1x1": ("convolution", (2, 300, 16, 16), (2, 70, 16, 16), (70, 300, 1, 1), {}),
    "depthwise": (
        "convolution",
        (2, 70, 11, 30),
        (2, 70, 11, 30),
        (70, 1, 3, 3),
        {"groups": 70, "pads_begin": [1, 1], "pads_end": [1, 1]},
    ),
    "groups of 4": ("convolution", (1, 48, 9, 31), (1, 48, 4, 15), (48, 4, 3, 3), {"groups": 12, "strides": [2, 2]}),
    "one channel": ("convolution", (1, 1, 4000), (1, 24, 799), (24, 1, 10), {"strides": [5]}),
    "one output": ("convolution", (1, 20, 40, 40), (1, 1, 40, 40), (1, 20, 1, 1), {}),
    "generator": (
        "transposed",
        (2, 40, 8, 8),
        (2, 20, 16, 16),
        (40, 20, 4, 4),
        {"strides": [2, 2], "pads_begin": [1, 1], "pads_end": [1, 1]},
    ),
    "three colours": (
        "transposed",
        (2, 33, 16, 16),
        (2, 3, 32, 32),
        (33, 3, 4, 4),
        {"strides": [2, 2], "pads_begin": [1, 1], "pads_end": [1, 1]},
    ),
    "gaps": (
        "transposed",
        (2, 20, 9, 9),
        (2, 17, 42, 27),
        (20, 17, 2, 2),
        {"strides": [5, 3], "output_padding": [0, 1]},
    ),
    "transposed depthwise": (
        "transposed",
        (2, 40, 9, 15),
        (2, 40, 18, 30),
        (40, 1, 3, 3),
        {"groups": 40, "strides": [2, 2], "pads_begin": [1, 1], "pads_end": [1, 1], "output_padding": [1, 1]},
    ),
}


def layer(name, channels_last):
    """Shapes and attributes in either layout."""
    family, src, diff_dst, weights, attributes = LAYERS[name]
    rank = len(src) - 2
    if channels_last:
        src, diff_dst = ((shape[0], *shape[2:], shape[1]) for shape in (src, diff_dst))
        weights = (*weights[2:], weights[1], weights[0])
    attributes = {"strides": [1] * rank} | attributes
    attributes["data_format"] = "NXC" if channels_last else "NCX"
    formats = ("OIX", "XIO") if family == "convolution" else ("IOX", "XOI")
    return family, src, diff_dst, weights, attributes | {"weights_format": formats[channels_last]}


@pytest.fixture
def threads():
    before = num_threads()
    yield set_num_threads
    set_num_threads(before)


@pytest.mark.parametrize("channels_last", [False, True], ids=["NCX", "NXC"])
@pytest.mark.parametrize("name", LAYERS)
def test_layers_are_within_the_bound_and_equal_on_any_number_of_threads(name, channels_last, threads, rng):
    family, *shapes, weights, attributes = layer(name, channels_last)
    for dtype in ("f32", "bf16"):
        src, diff_dst = (rng.standard_normal(shape).astype(numpy_dtype(dtype)) for shape in shapes)
        results = []
        for count in (1, 2, 3, 7):
            threads(count)
            results.append(FUNCTIONS[family](src, diff_dst, weights, **attributes, diff_bias=True))
        for others in results[1:]:
            for one, other in zip(results[0], others, strict=True):
                np.testing.assert_array_equal(one.view(np.uint8), other.view(np.uint8))
        sums = results[0][1]
        exact, magnitudes = (channel_sums(tensor, attributes["data_format"]) for tensor in (diff_dst, abs(diff_dst)))
        terms = diff_dst.size // len(sums)
        assert_within_bound(sums, exact, error_bound(terms, magnitudes, exact, dtype, dtype), f"{name} {dtype}")


EMPTY = {  # family, src, diff_dst, diff_weights, keywords; channels last
    "no batch": ("convolution", (0, 8, 3), (0, 6, 4), (3, 3, 4), {}),
    "no windows": ("convolution", (2, 2, 3), (2, 0, 4), (3, 3, 4), {}),
    "no input channels": ("convolution", (2, 8, 0), (2, 6, 4), (3, 0, 4), {}),
    "no output channels": ("convolution", (2, 8, 3), (2, 6, 0), (3, 3, 0), {}),
    "no windows, transposed": ("transposed", (2, 0, 4), (2, 2, 3), (3, 3, 4), {}),
    "no input channels, transposed": ("transposed", (2, 4, 0), (2, 6, 3), (3, 3, 0), {}),
    "no batch, transposed": ("transposed", (0, 4, 2), (0, 6, 3), (3, 3, 2), {}),
}


@pytest.mark.parametrize(("family", "src", "diff_dst", "weights", "keywords"), EMPTY.values(), ids=EMPTY)
def test_where_one_result_is_empty_the_other_is_right(family, src, diff_dst, weights, keywords):
    given_src, given_dst = np.ones(src, np.float32), np.ones(diff_dst, np.float32)
    sums = np.full(diff_dst[-1:], diff_dst[0] * diff_dst[1], np.float32)
    for diff_bias in (True, np.full(sums.shape, np.nan, np.float32)):
        out, found = FUNCTIONS[family](given_src, given_dst, weights, **keywords, diff_bias=diff_bias)
        np.testing.assert_array_equal(out, FUNCTIONS[family](given_src, given_dst, weights, **keywords))
        np.testing.assert_array_equal(found, sums)
        assert diff_bias is True or found is diff_bias


def test_false_and_none_ask_for_the_weights_alone():
    src, diff_dst = np.ones((1, 8, 2), np.float32), np.ones((1, 6, 4), np.float32)
    for asked in (None, False):
        found = convgrad.convolution_backward_weights(src, diff_dst, (3, 2, 4), diff_bias=asked)
        np.testing.assert_array_equal(found, np.full((3, 2, 4), 6))
