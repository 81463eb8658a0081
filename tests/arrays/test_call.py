"""The fast path: what it remembers, and what it must not."""

import gc
import subprocess
import sys

import numpy as np
import pytest

import convgrad
from convgrad.arrays import call, record
from convgrad.errors import AttributeRuleError
from convgrad.operations import _convolution

X = np.arange(14, dtype=np.float32).reshape(1, 7, 2)
W = np.ones((3, 2, 4), np.float32)


def test_a_repeated_call_infers_nothing(monkeypatch):
    expected = convgrad.convolution(X, W, strides=[2])
    out = np.empty_like(expected)
    convgrad.convolution(X, W, strides=[2], out=out)
    monkeypatch.setattr(call, "resolve", None)
    monkeypatch.setattr(call, "view", None)
    out[...] = np.nan
    assert convgrad.convolution(X.copy(), W, strides=[2], out=out) is out
    np.testing.assert_array_equal(out, expected)
    np.testing.assert_array_equal(convgrad.convolution(X, W, strides=[2]), expected)


def test_shapes_and_types_in_any_clothes_find_what_is_remembered(monkeypatch):
    class Shape(tuple):
        """Such as a torch.Size."""

    dst = convgrad.convolution(X, W)
    expected = convgrad.convolution_backward_data(dst, W, (1, 7, 2), strides=(1,), groups=1)
    narrow = convgrad.convolution(X.astype(np.float16), W.astype(np.float16), out_dtype="f32")
    monkeypatch.setattr(call, "resolve", None)
    for shape in (np.array([1, 7, 2], np.int32), np.array([1, 7, 2]), Shape((1, 7, 2)), [1, np.int64(7), 2]):
        for groups in (1, np.int32(1)):
            got = convgrad.convolution_backward_data(dst, W, shape, strides=np.array([1]), groups=groups)
            np.testing.assert_array_equal(got, expected)
    for kind in (np.float32, np.dtype(np.float32), "f32"):
        got = convgrad.convolution(X.astype(np.float16), W.astype(np.float16), out_dtype=kind)
        np.testing.assert_array_equal(got, narrow)


def test_values_that_hash_alike_are_not_taken_for_each_other():
    for right in ([1], (1,), np.array([1])):
        convgrad.convolution(X, W, strides=right)
        for wrong in ([1.0], [True], (1.0,), np.array([1.0]), np.array([True])):
            with pytest.raises(AttributeRuleError, match="strides holds"):
                convgrad.convolution(X, W, strides=wrong)


def test_a_list_that_changes_between_calls_is_read_anew():
    strides = [1]
    assert convgrad.convolution(X, W, strides=strides).shape == (1, 5, 4)
    strides[0] = 2
    assert convgrad.convolution(X, W, strides=strides).shape == (1, 3, 4)


def test_addresses_are_found_without_the_layout_of_array_objects(monkeypatch):
    expected = convgrad.convolution(X, W)
    assert record._data_offset() == record._OFFSET
    for offset in (record._OFFSET, 0):
        monkeypatch.setattr(record, "_OFFSET", offset)
        assert record.address(X[:, 2:]) == X.ctypes.data + 16
        np.testing.assert_array_equal(convgrad.convolution(X, W), expected)


def test_records_are_limited(monkeypatch):
    monkeypatch.setattr(call, "MOST_RECORDS", 3)
    monkeypatch.setattr(_convolution, "records", {})
    for extent in range(3, 12):
        dst = convgrad.convolution(np.ones((1, extent, 2), np.float32), W)
        np.testing.assert_array_equal(dst, np.full((1, extent - 2, 4), 6))
        assert len(_convolution.records) <= 3


def test_calls_leave_no_arrays_behind():
    convgrad.convolution(X, W)
    gc.collect()
    before = sys.getrefcount(X)
    for _ in range(50):
        convgrad.convolution(X, W)
    assert sys.getrefcount(X) == before


def test_importing_the_package_loads_no_compiler_and_no_library_of_arrays():
    heavy = "('llvmlite', 'ml_dtypes', 'torch', 'jax')"
    program = f"import sys, convgrad; print([m for m in {heavy} if m in sys.modules], convgrad.__version__)"
    printed = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True).stdout
    assert printed.split() == ["[]", "0.1.0"]


def test_every_public_name_is_there():
    assert all(hasattr(convgrad, name) for name in convgrad.__all__)


def test_large_results_begin_with_a_cache_line():
    x, w = np.ones((1, 8, 200, 200), np.float32), np.ones((8, 8, 1, 1), np.float32)
    for _ in range(3):  # the careful path, and the one of known geometries
        result = convgrad.convolution(x, w, data_format="NCX", weights_format="OIX")
        assert result.nbytes >= record.LARGE_BYTES
        assert result.ctypes.data % record.LINE == 0
        assert result.flags.c_contiguous
        assert result.flags.writeable
        np.testing.assert_array_equal(result, np.full(x.shape, 8, np.float32))
