"""Calls that came often, by compiled code: it runs what it was shown, and hands on all else."""

import sys

import ml_dtypes
import numpy as np
import pytest

import convgrad
from arrays.counted import Counted, W, X, arguments, attributes
from convgrad import operations
from convgrad.arrays import inline_cache, patterns
from convgrad.arrays.call import OFTEN, Operation
from convgrad.arrays.patterns import layout_holds
from convgrad.errors import ArrayError, AttributeRuleError, ConvError
from convgrad.operations import _GEOMETRY

pytestmark = pytest.mark.skipif(not layout_holds(), reason="objects of this interpreter lie in memory in another way")


def test_what_came_often_is_admitted_and_no_sooner():
    operation = Counted()
    operation.call(*arguments())
    for count in range(1, OFTEN + 1):
        assert operation.call == operation.plain, count
        operation.call(*arguments())
    slow, result = operation.took_python(*arguments())
    assert not slow
    np.testing.assert_array_equal(result, operation(*arguments()))


def test_the_same_call_needs_no_python_and_gives_the_same(known):
    expected = known(*arguments())
    x = np.array(X + 1)
    out = np.empty_like(expected)
    for given, to in ((X, None), (X, out), (x, out), (x, None)):
        slow, result = known.took_python(*arguments(given, out=to))
        assert not slow
        assert to is None or result is to
        np.testing.assert_array_equal(result, known(*arguments(given)))


def test_new_results_are_arrays_of_their_own(known):
    one, other = known.call(*arguments()), known.call(*arguments())
    assert not np.shares_memory(one, other)
    assert sys.getrefcount(one) == 2
    assert one.flags.writeable


@pytest.mark.parametrize("other", [
    arguments(np.ones((1, 8, 2), np.float32)),
    arguments(np.ones((2, 7, 2), np.float32)),
    arguments(np.ones((1, 7, 3, 2), np.float32)[:, :, 0]),
    arguments(np.ones((1, 7, 4), np.float32)[..., ::2]),
    arguments(X[:, ::-1]),
    arguments(X.astype(np.float64), W.astype(np.float64)),
    arguments(X.astype(np.float16), W.astype(np.float16)),
    arguments(X.astype(ml_dtypes.bfloat16), W.astype(ml_dtypes.bfloat16)),
    arguments(w=np.ones((2, 2, 4), np.float32)),
    arguments(bias=np.ones(4, np.float32)),
    arguments(given=attributes(strides=[2])),
    arguments(given=attributes(pads_begin=(1,))),
    arguments(given=attributes(auto_pad="same_upper")),
    arguments(given=attributes(fpmath_mode="tf32")),
    arguments(out=np.empty((1, 4, 5), np.float32).transpose(0, 2, 1)),
    arguments(X.astype(np.float16), W.astype(np.float16), out_dtype="f32"),
], ids=lambda given: None)  # fmt: skip
def test_whatever_differs_is_checked_by_python(known, other):
    slow, result = known.took_python(*other)
    assert slow
    np.testing.assert_array_equal(result, Operation("Convolution", *_GEOMETRY)(*other[:5], None, *other[6:]))


def test_attributes_match_by_kind_and_number():
    operation = Counted()
    for given in ([2], (2,), [1000], (1000,)):
        for _ in range(OFTEN + 1):
            operation(*arguments(given=attributes(strides=given)))
    for number in (2, 1000):
        for given in ([number], (number,), [int(str(number))], tuple([int(str(number))])):
            assert not operation.took_python(*arguments(given=attributes(strides=given)))[0], given
    for given in ([3], (1001,), [2**70], [2, 2], ()):
        slow = operation.slow_calls
        try:
            operation.call(*arguments(given=attributes(strides=given)))
        except ConvError:
            assert given not in ([3], (1001,))
        assert operation.slow_calls > slow, given
    for given in ([True], [2.0], [np.True_]):
        with pytest.raises(AttributeRuleError, match="strides holds"):
            operation.call(*arguments(given=attributes(strides=given)))


def test_a_number_beyond_all_words_is_no_other(known):
    """What overflows is -1, which no attribute is."""
    record = next(iter(known.records.values()))
    function = inline_cache.InlineCache("Convolution", lambda *given: "slow").admit(
        (*arguments(given=attributes(pads_end=[-1])), "code"), record
    )
    assert isinstance(function(*arguments(given=attributes(pads_end=[-1]))), np.ndarray)
    for huge in (2**63, -(2**63) - 1, 2**64 - 1, 2**70):
        assert function(*arguments(given=attributes(pads_end=[huge]))) == "slow"


def test_a_list_that_changes_is_read_anew():
    operation, strides = Counted(), [1]
    for _ in range(OFTEN + 2):
        operation.call(*arguments(given=attributes(strides=strides)))
    assert operation.call(*arguments(given=attributes(strides=strides))).shape == (1, 5, 4)
    strides[0] = 2
    assert operation.call(*arguments(given=attributes(strides=strides))).shape == (1, 3, 4)
    strides.append(1)
    with pytest.raises(ConvError, match="strides"):
        operation.call(*arguments(given=attributes(strides=strides)))


def test_a_result_that_cannot_be_written_stays_untouched(known):
    locked = np.full((1, 5, 4), 7, np.float32)
    locked.flags.writeable = False
    with pytest.raises(ArrayError, match="read-only"):
        known.call(*arguments(out=locked))
    np.testing.assert_array_equal(locked, np.full((1, 5, 4), 7, np.float32))


def test_a_result_that_lies_in_an_input_is_refused(known):
    memory = np.arange(40, dtype=np.float32)
    x, before = memory[10:24].reshape(1, 7, 2), memory.copy()
    for start in (0, 5, 10, 15, 20):
        out = memory[start : start + 20].reshape(1, 5, 4)
        with pytest.raises(ArrayError, match="share"):
            known.call(*arguments(x, out=out))
        np.testing.assert_array_equal(memory, before)
    for x, out in ((memory[20:34], memory[:20]), (memory[:14], memory[14:34])):  # side by side
        slow, _ = known.took_python(*arguments(x.reshape(1, 7, 2), out=out.reshape(1, 5, 4)))
        assert not slow


def test_arrays_at_odd_addresses_are_left_to_python(known):
    raw = np.zeros(4 * 20 + 1, np.uint8)[1:]
    x = raw[:56].view(np.float32).reshape(1, 7, 2)
    x[...] = X
    slow, result = known.took_python(*arguments(x))
    assert slow
    np.testing.assert_array_equal(result, known(*arguments()))
    slow = known.slow_calls
    with pytest.raises(ArrayError, match="aligned"):
        known.call(*arguments(out=raw.view(np.float32).reshape(1, 5, 4)))
    assert known.slow_calls > slow


def test_things_that_are_no_plain_arrays_are_left_to_python(known):
    class Mine(np.ndarray):
        """A kind of its own."""

    for x in (X.view(Mine), memoryview(X), None, 3, "x", X.tolist()):
        slow = known.slow_calls
        try:
            known.call(*arguments(x))
        except ConvError:
            assert not isinstance(x, np.ndarray)
        assert known.slow_calls > slow


def test_a_bias_and_what_out_holds_are_added():
    operation, bias = Counted(), np.arange(4, dtype=np.float32)
    expected = operation(*arguments()) + bias
    out = np.zeros((1, 5, 4), np.float32)
    for _ in range(OFTEN + 2):
        np.testing.assert_array_equal(operation.call(*arguments(bias=bias)), expected)
        operation.call(*arguments(bias=bias, out=out, accumulate=True))
    assert len(operation.inline_cache._entries) == 2
    out[...] = 3
    slow, result = operation.took_python(*arguments(bias=bias, out=out, accumulate=True))
    assert not slow
    np.testing.assert_array_equal(result, expected + 3)
    memory = np.zeros(24, np.float32)
    out, bias = memory[:20].reshape(1, 5, 4), memory[18:22]
    with pytest.raises(ArrayError, match="share"):
        operation.call(*arguments(bias=bias, out=out, accumulate=True))


@pytest.mark.parametrize("special", [np.inf, np.nan])
def test_numbers_that_need_the_fallback_of_a_kernel_get_it(special):
    """Taps beyond the border meet zeros there only in the fallback, which the first such call has to make."""
    operation, given = Counted(), attributes(pads_begin=[1], pads_end=[1])
    for out in (None, np.empty((1, 7, 4), np.float32)):
        for _ in range(OFTEN + 2):
            operation.call(*arguments(given=given, out=out))
    w = W.copy()
    w[0, 0, 0] = special
    expected = Counted()(*arguments(w=w, given=given))
    assert np.isfinite(expected[0, 0]).all()
    for _ in range(2):
        for out in (None, np.empty((1, 7, 4), np.float32)):
            slow, result = operation.took_python(*arguments(w=w, given=given, out=out))
            assert not slow
            np.testing.assert_array_equal(result, expected)


def test_types_of_one_size_are_told_apart():
    operation = Counted()
    halves = X.astype(np.float16), W.astype(np.float16)
    for _ in range(OFTEN + 2):
        operation.call(*arguments(*halves))
    brain = X.astype(ml_dtypes.bfloat16), W.astype(ml_dtypes.bfloat16)
    slow, result = operation.took_python(*arguments(*brain))
    assert slow
    assert result.dtype == ml_dtypes.bfloat16
    np.testing.assert_array_equal(result, Counted()(*arguments(*brain)))


def test_kernels_of_several_tasks_use_the_team():
    x, w = np.ones((2, 66, 66, 16), np.float32), np.ones((3, 3, 16, 16), np.float32)
    before = convgrad.num_threads()
    try:
        for threads in (1, 2):
            convgrad.set_num_threads(threads)
            for _ in range(OFTEN + 2):
                result = convgrad.convolution(x, w)
                np.testing.assert_array_equal(result, np.full((2, 64, 64, 16), 144))
    finally:
        convgrad.set_num_threads(before)
    record = next(r for r in operations._convolution.records.values() if r.shape == (2, 64, 64, 16))
    assert record.kernel is not None
    assert record.kernel.most_tasks > 1


def test_elsewhere_nothing_is_admitted(monkeypatch):
    monkeypatch.setattr(inline_cache, "layout_holds", lambda: False)
    operation = Counted()
    for _ in range(OFTEN + 10):
        assert operation.took_python(*arguments())[0]
    assert operation.call == operation.plain
    monkeypatch.undo()
    monkeypatch.setattr(patterns, "HEAD", 24)
    layout_holds.cache_clear()
    assert not layout_holds()
    monkeypatch.undo()
    layout_holds.cache_clear()
    assert layout_holds()


@pytest.mark.parametrize("function", [
    "convolution", "convolution_backward_data", "convolution_backward_weights", "conv_transpose",
    "conv_transpose_backward_data", "conv_transpose_backward_weights", "bias_add_backward",
])  # fmt: skip
def test_public_functions_come_to_need_no_python(function, monkeypatch):
    x, y, w = (np.ones(shape, np.float32) for shape in ((2, 5, 3), (2, 3, 4), (3, 3, 4)))
    given = {
        "convolution": (x, w), "convolution_backward_data": (y, w, x.shape),
        "convolution_backward_weights": (x, y, w.shape), "conv_transpose": (y, w),
        "conv_transpose_backward_data": (x, w), "conv_transpose_backward_weights": (y, x, w.shape),
        "bias_add_backward": (y,),
    }[function]  # fmt: skip
    public = getattr(convgrad, function)
    expected = public(*given)
    for _ in range(OFTEN + 2):
        np.testing.assert_array_equal(public(*given), expected)
    operation = getattr(operations, f"_{function}")
    assert "built-in" in repr(operation.call)
    monkeypatch.setattr(operation, "records", None)  # which Python would look into
    np.testing.assert_array_equal(public(*given), expected)
