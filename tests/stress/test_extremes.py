"""Tensors beyond 2^31 elements, extents of one and none, and every number of channels around the lengths of vectors."""

import mmap
import sys

import numpy as np
import pytest

from cases import FUNCTIONS
from convgrad.dtypes import numpy_dtype
from convgrad.spec.definition import define
from convgrad.spec.resolve import resolve

FAR = 2**31 + 7  # elements
BASE = {"strides": [1], "dilations": [1], "data_format": "NCX", "weights_format": "OIX"}
X, W, Y = (2, 3, 9), (4, 3, 3), (2, 4, 7)
PROBLEMS = {  # the inputs, the output and what tells its shape
    "Convolution": (X, W, Y, None),
    "ConvolutionBackwardData": (Y, W, X, X),
    "ConvolutionBackwardWeights": (X, Y, W, W),
    "ConvTranspose": ((2, 4, 7), (3, 4, 3), (2, 3, 9), None),
    "ConvTransposeBackwardData": ((2, 3, 9), (3, 4, 3), (2, 4, 7), None),
    "ConvTransposeBackwardWeights": ((2, 4, 7), (2, 3, 9), (3, 4, 3), (3, 4, 3)),
}
sparse = pytest.mark.skipif(not sys.platform.startswith("linux"), reason="memory without pages behind it, as Linux has")


def sparse_array(count, dtype):
    """That many zeros, for which there is memory only where they are touched."""
    no_reserve = 0x4000
    flags = mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS | no_reserve
    return np.frombuffer(mmap.mmap(-1, count * dtype.itemsize, flags=flags), dtype)


def far_apart(shape, axis, dtype, sign=1):
    """An array whose elements along one axis are 2^31 elements from each other."""
    flat = sparse_array(FAR * (shape[axis] - 1) + 4096, dtype)
    rest = [extent for i, extent in enumerate(shape) if i != axis]
    strides = [int(np.prod(rest[i + 1 :])) for i in range(len(rest))]
    strides.insert(axis, FAR)
    view = np.lib.stride_tricks.as_strided(flat, shape, [stride * dtype.itemsize for stride in strides])
    return np.flip(view, axis) if sign < 0 else view


def exact(op, inputs, attributes, shape=None, dtype=np.float32):
    return define(resolve(op, attributes, [i.shape for i in inputs], shape_input=shape), inputs).astype(dtype)


@sparse
@pytest.mark.parametrize("axis", [0, 1, 2])
@pytest.mark.parametrize("op", PROBLEMS)
def test_elements_beyond_two_to_the_31_of_any_tensor(op, axis, rng):
    """Every tensor in turn, the output included, forwards and backwards."""
    first, second, out_shape, told = PROBLEMS[op]
    dtype = numpy_dtype("bf16")
    for which, sign in ((0, 1), (1, -1), (2, 1)):
        shapes = [first, second, out_shape]
        arrays = [far_apart(s, axis, dtype, sign) if i == which else np.empty(s, dtype) for i, s in enumerate(shapes)]
        for array in arrays[:2]:
            array[...] = rng.integers(-2, 3, array.shape)
        arrays[2][...] = np.nan
        FUNCTIONS[op](*arrays[:2], **BASE, out=arrays[2])
        wanted = exact(op, arrays[:2], BASE, told, dtype)
        np.testing.assert_array_equal(arrays[2].astype(np.float64), wanted.astype(np.float64))


@sparse
def test_an_extent_beyond_two_to_the_31(rng):
    """3 · 2^30 numbers of 16 bits, of which every 2^20th meets a window."""
    count, step = 3 << 30, 1 << 20
    x = sparse_array(count, numpy_dtype("bf16")).reshape(1, 1, count, 1)
    numbers = rng.integers(-4, 5, count // step)
    x[0, 0, ::step, 0] = numbers
    attributes = BASE | {"strides": [step, 1], "dilations": [1, 1]}
    dst = FUNCTIONS["Convolution"](x, np.full((1, 1, 1, 1), 3, x.dtype), **attributes)
    np.testing.assert_array_equal(dst[0, 0, :, 0].astype(np.float64), 3 * numbers)
    weights = FUNCTIONS["ConvolutionBackwardWeights"](x, dst, (1, 1, 1, 1), **attributes, out_dtype="f32")
    assert weights.item() == np.sum(3.0 * numbers * numbers)


@sparse
def test_a_file_of_more_than_two_to_the_31_numbers(rng, tmp_path):
    """With blocks behind a few of them."""
    count, step = 3 << 30, 1 << 26
    x = np.memmap(tmp_path / "sparse", numpy_dtype("bf16"), "w+", shape=(1, 1, count))[:, :, ::step]
    x[...] = rng.integers(-4, 5, x.shape)
    w = rng.integers(-4, 5, (5, 1, 3)).astype(x.dtype)
    dst = FUNCTIONS["Convolution"](x, w, **BASE)
    np.testing.assert_array_equal(dst.astype(np.float64), exact("Convolution", [x, w], BASE))


def test_a_sum_of_more_than_two_to_the_31_numbers():
    """The same element again and again, which needs no memory."""
    diff_dst = np.broadcast_to(np.array(3, np.float64), (1, 1, FAR))
    assert FUNCTIONS["BiasAddBackward"](diff_dst, data_format="NCX").item() == 3 * FAR


LENGTHS = range(1, 66)


@pytest.mark.parametrize("count", LENGTHS)
def test_every_number_of_channels(count, rng):
    """On the side of the vectors and on the other one, for the image, the windows and the weights."""
    op = tuple(PROBLEMS)[count % 6]
    for image, window in ((count, 3), (2, count)):
        transposed = op.startswith("ConvTranspose")
        x, y = (2, image, 7), (2, window, 5)
        w = (image, window, 3) if transposed else (window, image, 3)
        source, other = (y, x) if transposed else (x, y)
        shapes, told = {
            "": ([source, w], None),
            "BackwardData": ([other, w], None if transposed else x),
            "BackwardWeights": ([source, other], w),
        }[op.removeprefix("ConvTranspose").removeprefix("Convolution")]
        inputs = [rng.integers(-3, 4, shape).astype(np.float32) for shape in shapes]
        wanted = exact(op, inputs, BASE, told)
        out = np.full(wanted.shape, np.nan, np.float32)
        FUNCTIONS[op](*inputs, **BASE, out=out)
        np.testing.assert_array_equal(out, wanted)


@pytest.mark.parametrize("rank", [1, 2, 3])
@pytest.mark.parametrize("empty", [None, "batch", "window", "image channels", "window channels"])
@pytest.mark.parametrize("op", PROBLEMS)
def test_extents_of_one_and_of_none(op, rank, empty, rng):
    """All extents are one, or one of them is zero; sums over nothing are zero."""
    n = 0 if empty == "batch" else 1
    image, window = (0 if empty == f"{side} channels" else 1 for side in ("image", "window"))
    p = (0 if empty == "window" else 1,) * rank
    taps, x = (2,) * rank, tuple(1 + e for e in p)
    transposed = op.startswith("ConvTranspose")
    w = (image, window, *taps) if transposed else (window, image, *taps)
    x, y = (n, image, *x), (n, window, *p)
    source, other = (y, x) if transposed else (x, y)
    shapes, told, out_shape = {
        "": ([source, w], None, other),
        "BackwardData": ([other, w], None if transposed else x, source),
        "BackwardWeights": ([source, other], w, w),
    }[op.removeprefix("ConvTranspose").removeprefix("Convolution")]
    inputs = [rng.integers(1, 4, shape).astype(np.float32) for shape in shapes]
    attributes = BASE | {"strides": [1] * rank, "dilations": [1] * rank}
    out = np.full(out_shape, np.nan, np.float32)
    FUNCTIONS[op](*inputs, **attributes, out=out)
    np.testing.assert_array_equal(out, exact(op, inputs, attributes, told))
