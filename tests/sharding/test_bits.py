"""Parts have the bits of the whole, of numbers whose sums are rounded, too: the order of a sum has nothing to do with
extents, batch and blocks."""

from contextlib import nullcontext

import numpy as np
import pytest
from numpy.testing import assert_array_equal

import convgrad
from cases import FUNCTIONS
from convgrad.dtypes import numpy_dtype
from convgrad.plan.machine import why_not
from convgrad.settings import ordered
from convgrad.sharding import in_order_of, shard_plan

# batch, groups, input and output channels, extents of the image, kernel, stride, dilation, pads
GEOMETRIES = {
    "one channel": (2, 1, 1, 8, (40, 21), 3, 1, 1, 1),
    "few channels, vectors along channels": (1, 1, 3, 32, (31, 29), 7, 2, 1, 3),
    "few channels, vectors along outputs": (2, 1, 3, 4, (20, 40), 3, 1, 1, 1),
    "few channels per group": (1, 8, 32, 32, (20, 29), 3, 1, 1, 1),
    "several channels of a group give several": (1, 16, 48, 16, (12, 30), 3, 1, 1, 1),
    "depthwise": (2, 20, 20, 20, (24, 33), 5, 1, 2, 4),
    "depthwise, strided": (1, 16, 16, 16, (29, 31), 3, 2, 1, 1),
    "one run": (1, 1, 40, 24, (18, 33), 3, 1, 1, 1),
    "two vectors of outputs": (1, 1, 48, 30, (18, 37), 5, 1, 1, 2),
    "a vector of outputs, in phases": (2, 1, 24, 12, (21, 40), 3, 2, 1, 1),
    "several runs": (2, 1, 192, 16, (9, 40), 3, 1, 1, 1),
    "several runs, few outputs": (1, 1, 80, 2, (21, 50), 3, 1, 1, 1),
    "runs of unequal length": (1, 1, 67, 32, (14, 30), 3, 1, 1, 1),
    "several runs, far taps": (1, 1, 96, 16, (25, 25), 3, 1, 6, 6),
    "windows apart by as much as far taps": (1, 1, 24, 30, (31, 34), 3, 3, 3, 2),
    "many taps": (1, 1, 64, 8, (40, 24), 4, 2, 1, 1),
    "one tap": (2, 1, 130, 24, (13, 17), 1, 1, 1, 0),
    "windows apart": (1, 1, 48, 16, (26, 26), 2, 4, 1, 0),
    "windows a little apart": (1, 1, 48, 20, (32, 26), 2, 3, 1, 0),
    "a line": (1, 1, 96, 16, (700,), 11, 1, 1, 5),
    "a line of one channel, in phases": (1, 1, 1, 48, (705,), 10, 5, 1, 0),
    "an image of one channel, in phases": (2, 1, 1, 20, (20, 45), 6, 3, 1, 3),
    "windows side by side": (1, 1, 1, 48, (24, 30), 3, 3, 1, 0),
    "windows of few outputs side by side": (2, 1, 1, 24, (60,), 5, 5, 1, 0),
    "groups of windows side by side": (1, 2, 2, 6, (96,), 16, 16, 1, 0),
    "runs of taps and channels": (2, 1, 19, 21, (14, 45), 5, 2, 1, 2),
    "runs of taps and channels side by side": (1, 1, 33, 18, (12, 39), 7, 3, 1, 3),
    "runs of which parts miss some taps": (1, 1, 21, 20, (9, 8), 8, 3, 1, 5),
    "phases beside channels": (2, 1, 21, 40, (17, 24), 6, 3, 1, 2),
    "vectors of channels, for some after the others": (1, 1, 96, 12, (9, 37), 3, 1, 1, 1),
    "likewise, one tap": (1, 1, 80, 21, (13, 18), 1, 1, 1, 0),
    "a volume": (1, 1, 32, 8, (9, 10, 11), 3, 1, 1, 1),
}  # fmt: skip
TILES, DOTS = "amx_emulated", "avx512_bf16_emulated"
ON_UNITS = {
    "tiles or vectors": (TILES, "f32", (1, 2, 64, 128, (20, 20), 3, 1, 2, 2)),
    "tiles of other runs": (TILES, "f32", (2, 1, 96, 128, (28, 28), 3, 2, 1, 1)),
    "dots of phases at once or not": (DOTS, "bf16", GEOMETRIES["a vector of outputs, in phases"]),
}  # fmt: skip
TYPES = ("f64", "bf16", "f16")
OF_OTHER_TYPES = (
    "several runs", "several runs, few outputs", "few channels per group", "depthwise", "windows a little apart"
)  # fmt: skip


def problems(geometry, data_format):
    """Each operation that sums nothing across parts of an axis: its shapes and attributes."""
    n, groups, c, k, image, taps, stride, dilation, pad = geometry
    rank, reach = len(image), (taps - 1) * dilation + 1
    windows = [(x + 2 * pad - reach) // stride + 1 for x in image]
    grown = [stride * (x - 1) + reach - 2 * pad for x in image]

    def activation(channels, extents):
        return (n, channels, *extents) if data_format == "NCX" else (n, *extents, channels)

    weights = (k, c // groups, *[taps] * rank)
    words = {
        "strides": [stride] * rank, "dilations": [dilation] * rank, "pads_begin": [pad] * rank,
        "pads_end": [pad] * rank, "groups": groups, "data_format": data_format,
    }  # fmt: skip
    plain, transposed = words | {"weights_format": "OIX"}, words | {"weights_format": "IOX"}
    yield "Convolution", (activation(c, image), weights, (k,)), plain
    shape = activation(c, image)
    yield "ConvolutionBackwardData", (activation(k, windows), weights), plain | {"dst_shape": shape}
    yield "ConvTranspose", (activation(k, image), weights, (c,)), transposed
    yield "ConvTransposeBackwardData", (activation(c, grown), weights), transposed


def of_parts(plan, inputs, like):
    """What the parts make, side by side."""
    result = np.full_like(like, np.nan)
    for part in plan.parts:
        if not part.is_empty:
            result[part.output.index] = FUNCTIONS[part.problem.op](*part.select(*inputs), **part.attributes)
    return result


def compare(geometry, data_format, dtype, rng, some, order=nullcontext):
    """The outcome of operations along the innermost axis, and along the batch if there is more than one image."""
    for op, shapes, words in list(problems(geometry, data_format))[some]:
        inputs = [rng.standard_normal(shape).astype(numpy_dtype(dtype)) for shape in shapes]
        whole = FUNCTIONS[op](*inputs, **words)
        for axis in (len(geometry[4]) - 1, "batch")[: geometry[0]]:
            plan = shard_plan(op, axis, 2, shapes=shapes, **words)
            with order(plan.problem):
                assert_array_equal(of_parts(plan, inputs, whole), whole)


def of_one_kind(number):
    """Forward and backward of a convolution, or of a transposed one: windows are solved for, and images."""
    return slice(number % 2 * 2, number % 2 * 2 + 2)


@pytest.mark.usefixtures("vectors")  # matrix units keep orders of their own
@pytest.mark.parametrize(("number", "geometry"), list(enumerate(GEOMETRIES.values())), ids=GEOMETRIES)
def test_parts_have_the_bits_of_the_whole(number, geometry, rng):
    compare(geometry, "NXC" if geometry[0] == 1 else "NCX", "f32", rng, of_one_kind(number))


@pytest.mark.usefixtures("vectors")
@pytest.mark.parametrize("dtype", TYPES)
@pytest.mark.parametrize("name", OF_OTHER_TYPES)
def test_so_do_those_of_other_types(name, dtype, rng):
    compare(GEOMETRIES[name], "NXC", dtype, rng, of_one_kind(OF_OTHER_TYPES.index(name) + TYPES.index(dtype)))


@pytest.mark.parametrize(("isa", "dtype", "geometry"), ON_UNITS.values(), ids=ON_UNITS)
def test_so_do_those_on_units_in_the_order_of_the_whole(isa, dtype, geometry, rng, monkeypatch):
    if why_not(isa):
        pytest.skip(f"this processor cannot act as if it had {isa}")
    monkeypatch.setenv("CONVGRAD_ISA", isa)
    compare(geometry, "NCX", dtype, rng, slice(None), lambda whole: in_order_of(whole, dtype))


def test_a_window_is_no_image_where_the_whole_has_several(rng):
    src, weights = rng.standard_normal((4, 12, 256), np.float32), rng.standard_normal((8, 256, 24), np.float32)
    whole = convgrad.convolution(src, weights)
    plan = shard_plan("Convolution", 0, 5, shapes=[src.shape, weights.shape])
    with in_order_of(plan.problem):
        parts = [convgrad.convolution(*part.select(src, weights), **part.attributes) for part in plan.parts]
    assert all(part.shape[1] == 1 for part in parts)
    assert_array_equal(np.concatenate(parts, 1), whole)


def test_nor_is_it_where_the_whole_adds_lanes_of_channels(rng):
    """Of one position, which is a row of numbers times a matrix."""
    src, weights = rng.standard_normal((3, 5, 256), np.float32), rng.standard_normal((12, 256, 1), np.float32)
    words = {"data_format": "NXC", "weights_format": "OIX"}
    whole = convgrad.convolution(src, weights, **words)
    plan = shard_plan("Convolution", 0, 5, shapes=[src.shape, weights.shape], **words)
    with in_order_of(plan.problem):
        parts = [convgrad.convolution(*part.select(src, weights), **part.attributes) for part in plan.parts]
    assert_array_equal(np.concatenate(parts, 1), whole)


def test_an_order_holds_inside_only(rng, monkeypatch):
    if why_not(TILES):
        pytest.skip("this processor cannot act as if it had tiles")
    monkeypatch.setenv("CONVGRAD_ISA", TILES)
    src, weights = rng.standard_normal((1, 24, 24, 128), np.float32), rng.standard_normal((3, 3, 128, 128), np.float32)

    def whole(extent):
        shapes = [(1, extent, extent, 128), weights.shape]
        return shard_plan("Convolution", "batch", 1, shapes=shapes).problem

    on_tiles = convgrad.convolution(src, weights)
    with in_order_of(whole(4)):
        by_vectors = convgrad.convolution(src, weights)
        with in_order_of(whole(24)):
            assert_array_equal(convgrad.convolution(src, weights), on_tiles)
        assert_array_equal(convgrad.convolution(src, weights, fpmath_mode="strict"), by_vectors)
    assert not np.array_equal(on_tiles, by_vectors)
    assert_array_equal(convgrad.convolution(src, weights), on_tiles)


def test_gradients_in_weights_and_plans_of_another_kind_ask_for_nothing(rng):
    src, diff_dst = rng.standard_normal((2, 9, 9, 8), np.float32), rng.standard_normal((2, 7, 7, 16), np.float32)
    told = dict(weights_shape=(3, 3, 8, 16))
    weights = convgrad.convolution_backward_weights(src, diff_dst, **told)
    plan = shard_plan("ConvolutionBackwardWeights", "batch", 2, shapes=[src.shape, diff_dst.shape], **told)
    with in_order_of(plan.problem):
        assert_array_equal(convgrad.convolution_backward_weights(src, diff_dst, **told), weights)
    dst = convgrad.convolution(src, weights)
    with ordered("an order that no plan has"):
        assert_array_equal(convgrad.convolution(src, weights), dst)
