"""Calls with two results: what the fast path remembers, what it must not, and every message."""

import numpy as np
import pytest

import convgrad
from convgrad.arrays import call, pair
from convgrad.errors import ArrayError, AttributeRuleError, ConvError, DtypeError, ShapeError

SRC = np.arange(32, dtype=np.float32).reshape(2, 8, 2)
DIFF_DST = np.arange(48, dtype=np.float32).reshape(2, 6, 4)
SHAPE, SUMS = (3, 2, 4), DIFF_DST.sum((0, 1))


def both(*given, **keywords):
    return convgrad.convolution_backward_weights(*(given or (SRC, DIFF_DST)), **keywords)


def test_a_repeated_call_infers_nothing(monkeypatch):
    weights, sums = both(weights_shape=SHAPE, diff_bias=True)
    np.testing.assert_array_equal(sums, SUMS)
    out, diff_bias = np.empty_like(weights), np.empty_like(sums)
    both(out=out, diff_bias=diff_bias)
    monkeypatch.setattr(call, "resolve", None)
    monkeypatch.setattr(pair, "view_of", None)
    out[...] = diff_bias[...] = np.nan
    found = both(SRC.copy(), DIFF_DST.copy(), out=out, diff_bias=diff_bias)
    assert found[0] is out
    assert found[1] is diff_bias
    for results in (found, both(weights_shape=SHAPE, diff_bias=True)):
        np.testing.assert_array_equal(results[0], weights)
        np.testing.assert_array_equal(results[1], sums)


def test_one_and_two_results_are_not_taken_for_each_other():
    for _ in range(3):
        assert isinstance(both(weights_shape=SHAPE), np.ndarray)
        assert len(both(weights_shape=SHAPE, diff_bias=True)) == 2


def test_memory_that_is_shared_is_noticed_by_the_fast_path():
    memory = np.zeros(64, np.float32)
    out, apart = memory[:24].reshape(SHAPE), memory[40:44]
    for _ in range(2):
        both(out=out, diff_bias=apart)
    with pytest.raises(ArrayError, match="out and diff_bias share memory"):
        both(out=out, diff_bias=memory[23:27])
    inside = DIFF_DST.copy()
    for _ in range(2):
        both(SRC, inside, out=out, diff_bias=apart)
    with pytest.raises(ArrayError, match="diff_bias and diff_dst share memory"):
        both(SRC, inside, out=out, diff_bias=inside.reshape(-1)[:4])
    readonly = apart.copy()
    readonly.flags.writeable = False
    with pytest.raises(ArrayError, match="diff_bias is read-only"):
        both(out=out, diff_bias=readonly)


def test_a_result_between_the_elements_of_the_other_is_written_there():
    memory = np.full(100, np.nan, np.float32)
    out = memory[::2][:24].reshape(SHAPE)
    for _ in range(2):
        weights, sums = both(out=out, diff_bias=memory[1:9:2])
        np.testing.assert_array_equal(sums, SUMS)
        np.testing.assert_array_equal(weights, both(weights_shape=SHAPE))
    assert np.isnan(memory[9:48:2]).all()


def zeros(*shape, dtype=np.float32):
    return np.zeros(shape, dtype)


MISTAKES = {  # keywords, error, message
    "a number": ({"diff_bias": 1}, AttributeRuleError, r"diff_bias is 1; give True, or an array to write to"),
    "a list": ({"diff_bias": [0.0] * 4}, ArrayError, r"diff_bias is of type list"),
    "another type": (
        {"diff_bias": zeros(4, dtype=np.float64)},
        DtypeError,
        r"diff_bias holds f64, but diff_weights will hold f32; give both the same type",
    ),
    "two axes": ({"diff_bias": zeros(1, 4)}, ShapeError, r"diff_bias is given with shape \[1, 4\], but has one axis"),
    "another length": (
        {"diff_bias": zeros(3)},
        ShapeError,
        r"diff_bias is given with shape \[3\], but diff_dst of shape \[2, 6, 4\] has 4 channels; give a diff_bias of",
    ),
    "elements that share memory": (
        {"diff_bias": np.lib.stride_tricks.as_strided(zeros(1), (4,), (0,))},
        ArrayError,
        r"elements of diff_bias with shape \[4\] and strides \[0\] may share memory",
    ),
    "accumulation into nothing": (
        {"diff_bias": True, "out": zeros(*SHAPE), "accumulate": True},
        ArrayError,
        r"accumulate = True adds to what diff_bias holds, but no array is given as diff_bias; give one",
    ),
    "accumulation of weights into nothing": (
        {"diff_bias": zeros(4), "accumulate": True},
        ArrayError,
        r"accumulate = True adds to what out holds, but no array is given as out; give one",
    ),
    "accumulate": ({"diff_bias": True, "accumulate": 2}, AttributeRuleError, r"accumulate is 2; give True or False"),
}


@pytest.mark.parametrize(("keywords", "error", "message"), MISTAKES.values(), ids=MISTAKES)
def test_mistakes_are_explained_and_nothing_is_written(keywords, error, message):
    given = {"weights_shape": SHAPE} | keywords
    with pytest.raises(error, match="ConvolutionBackwardWeights: " + message) as found:
        both(**given)
    assert isinstance(found.value, ConvError)
    for name in ("out", "diff_bias"):
        assert not isinstance(given.get(name), np.ndarray) or not given[name].any()


def test_tensors_give_tensors():
    torch = pytest.importorskip("torch")
    src, diff_dst = torch.from_numpy(SRC), torch.from_numpy(DIFF_DST)
    weights, sums = both(src, diff_dst, weights_shape=SHAPE, diff_bias=True)
    assert isinstance(weights, torch.Tensor)
    torch.testing.assert_close(sums, diff_dst.sum((0, 1)), rtol=0, atol=0)
    out, diff_bias = torch.zeros(SHAPE, dtype=torch.bfloat16), torch.zeros(4, dtype=torch.bfloat16)
    found = both(src.bfloat16(), diff_dst.bfloat16(), out=out, diff_bias=diff_bias)
    assert found[0] is out
    assert found[1] is diff_bias
    torch.testing.assert_close(diff_bias, diff_dst.sum((0, 1)).bfloat16(), rtol=0, atol=0)
