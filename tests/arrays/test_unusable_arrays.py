"""Arrays that cannot be used: each message is reached and read, and the output stays as it was."""

import numpy as np
import pytest

import convgrad
from convgrad.dtypes import numpy_dtype
from convgrad.errors import ArrayError, AttributeRuleError, ConvError, DtypeError, ShapeError

X, W = np.ones((1, 6, 2), np.float32), np.ones((3, 2, 4), np.float32)
OUT = (1, 4, 4)


def readonly(shape):
    array = np.zeros(shape, np.float32)
    array.flags.writeable = False
    return array


def unaligned(shape):
    return np.zeros(4 * int(np.prod(shape)) + 1, np.uint8)[1:].view(np.float32).reshape(shape)


MISTAKES = {  # (src, weights), keywords, error, message
    "a list": (([[1.0]], W), {}, ArrayError, r"src is of type list, which is neither a NumPy array nor speaks DLPack"),
    "nothing": ((None, W), {}, ArrayError, r"src is of type NoneType"),
    "nothing for weights": ((X, None), {}, ArrayError, r"weights is of type NoneType"),
    "masked": ((np.ma.masked_array(X), W), {}, ArrayError, r"src is a masked array, whose mask would be lost"),
    "integers": ((X.astype(np.int32), W), {}, DtypeError, r"src holds int32, but must hold one of f32, bf16, f16, f64"),
    "complex": ((X, W.astype(np.complex64)), {}, DtypeError, r"weights holds complex64"),
    "objects": ((X.astype(object), W), {}, DtypeError, r"src holds object"),
    "byte order": ((X.astype(">f4"), W), {}, DtypeError, r"src holds >f4, .*; convert it to native byte order"),
    "two types": ((X, W.astype(np.float64)), {}, DtypeError, r"src holds f32, but weights holds f64; convert one"),
    "bf16 and f16": (
        (X.astype(numpy_dtype("bf16")), W.astype(np.float16)),
        {},
        DtypeError,
        r"src holds bf16, but weights holds f16",
    ),
    "type of the bias": ((X, W, np.ones(4)), {}, DtypeError, r"src holds f32, but bias holds f64"),
    "read-only out": ((X, W), {"out": readonly(OUT)}, ArrayError, r"out is read-only, but the result is to be written"),
    "broadcast out": (
        (X, W),
        {"out": np.lib.stride_tricks.as_strided(np.zeros(4, np.float32), OUT, (0, 0, 4))},
        ArrayError,
        r"elements of out with shape \[1, 4, 4\] and strides \[0, 0, 1\] may share memory",
    ),
    "unaligned out": ((X, W), {"out": unaligned(OUT)}, ArrayError, r"out is not aligned to its elements of 4 bytes"),
    "a list for out": ((X, W), {"out": [0.0]}, ArrayError, r"out is of type list"),
    "shape of out": (
        (X, W),
        {"out": np.zeros((1, 4, 3), np.float32)},
        ShapeError,
        r"dst is given with shape \[1, 4, 3\]",
    ),
    "type of out": ((X, W), {"out": np.zeros(OUT)}, DtypeError, r"out holds f64, but inputs of f32 give f32; change"),
    "16-bit out of f32": (
        (X, W),
        {"out": np.zeros(OUT, np.float16)},
        DtypeError,
        r"out holds f16, but inputs of f32 give f32",
    ),
    "out_dtype": ((X, W), {"out_dtype": "f64"}, DtypeError, r"out_dtype is f64, but inputs of f32 give f32"),
    "out_dtype of 16 bits": (
        (X.astype(np.float16), W.astype(np.float16)),
        {"out_dtype": "bf16"},
        DtypeError,
        r"out_dtype is bf16, but inputs of f16 give f16 or f32",
    ),
    "unknown out_dtype": ((X, W), {"out_dtype": "f8"}, DtypeError, r"out_dtype is 'f8', but must be one of f32, bf16"),
    "integer out_dtype": (
        (X, W),
        {"out_dtype": np.int8},
        DtypeError,
        r"out_dtype is <class 'numpy.int8'>, but must be",
    ),
    "out_dtype against out": (
        (X, W),
        {"out": np.zeros(OUT, np.float32), "out_dtype": "f16"},
        DtypeError,
        r"out holds f32, but out_dtype is f16; give only one of them",
    ),
    "accumulate into nothing": (
        (X, W),
        {"accumulate": True},
        ArrayError,
        r"accumulate = True .* no out is given; give",
    ),
    "accumulate a number": ((X, W), {"accumulate": 1}, AttributeRuleError, r"accumulate is 1; give True or False"),
    "float strides": ((X, W), {"strides": [1.0]}, AttributeRuleError, r"strides holds 1.0, which is of type float"),
    "bool strides": ((X, W), {"strides": [True]}, AttributeRuleError, r"strides holds True, which is a truth value"),
    "pads_begin": ((X, W), {"pads_begin": [-1]}, AttributeRuleError, r"pads_begin holds -1, but must be at least 0"),
    "groups": ((X, W), {"groups": 3}, ShapeError, r"src has 2 channels, which groups = 3 does not divide"),
    "a long integer": ((X, W), {"groups": 10**5000}, AttributeRuleError, r"groups holds an integer of 16610 bits, but"),
    "long integers": ((X, W), {"groups": [10**5000]}, AttributeRuleError, r"groups holds a list that cannot be shown"),
    "a long integer as a truth": ((X, W), {"accumulate": 10**5000}, AttributeRuleError, r"accumulate is an integer of"),
    "a long list": ((X, W), {"strides": range(10**12)}, AttributeRuleError, r"strides has 1000000000000 entries, more"),
    "a long word": (
        (X, W),
        {"auto_pad": "a" * 10**6},
        AttributeRuleError,
        r"auto_pad is 'a{199}\.\.\., but must be one",
    ),
    "no word for a type": ((X, W), {"out_dtype": "\ud800"}, DtypeError, r"out_dtype is '\\ud800', but must be one of"),
    "numbers as a mode": (
        (X, W),
        {"fpmath_mode": np.ones(2)},
        AttributeRuleError,
        r"fpmath_mode is array\(\[1., 1.\]\)",
    ),
    "an empty mode": ((X, W), {"fpmath_mode": ""}, AttributeRuleError, r"fpmath_mode is ''; it must be one of strict"),
    "auto_pad": ((X, W), {"auto_pad": "sane"}, AttributeRuleError, r"auto_pad is 'sane', but must be one of NONE"),
}


@pytest.mark.parametrize(("inputs", "keywords", "kind", "message"), MISTAKES.values(), ids=MISTAKES)
def test_a_mistake_is_explained(inputs, keywords, kind, message):
    convgrad.convolution(X, W, strides=[1])  # the right call comes first: what it leaves behind must not let others in
    with pytest.raises(kind, match="^Convolution: " + message) as raised:
        convgrad.convolution(*inputs, **keywords)
    assert isinstance(raised.value, ConvError)
    assert isinstance(raised.value, ValueError)


def test_a_mistake_leaves_the_output_untouched():
    for inputs, keywords, _, _ in MISTAKES.values():
        out = np.full(OUT, 5, np.float32)
        with pytest.raises(ConvError):
            convgrad.convolution(*inputs, **({"out": out} | keywords), pads_end=[0], dilations=[1, 1])
        np.testing.assert_array_equal(out, 5)


@pytest.mark.parametrize("position", [0, 1, 2])
def test_an_output_that_shares_memory_with_an_input_is_refused_untouched(position):
    memory = np.ones(64, np.float32)
    places = [memory[0:12].reshape(1, 6, 2), memory[12:36].reshape(3, 2, 4), memory[36:40]]
    lowest = (0, 12, 36)[position]
    out = memory[lowest + 3 : lowest + 19].reshape(OUT)
    names = ("src", "weights", "bias")
    inputs = [place if i == position else place.copy() for i, place in enumerate(places)]
    for _ in range(2):
        with pytest.raises(ArrayError, match=rf"out and {names[position]} share memory, but out is written while"):
            convgrad.convolution(*inputs, out=out)
    np.testing.assert_array_equal(memory, 1)


def test_a_tangle_of_strides_that_takes_too_long_counts_as_sharing(monkeypatch):
    monkeypatch.setattr("convgrad.arrays.view.SHARING_EFFORT", 1)
    memory = np.zeros(1000, np.float32)
    one = np.lib.stride_tricks.as_strided(memory, (1, 5, 6), (0, 4 * 7, 4 * 11))
    out = np.lib.stride_tricks.as_strided(memory[1:], (1, 5, 6), (0, 4 * 40, 4 * 6))
    with pytest.raises(ArrayError, match="out and src share memory"):
        convgrad.convolution(one, np.ones((1, 6, 6), np.float32), out=out)


@pytest.mark.parametrize("stride", [2**44, 2**57])
def test_a_result_that_no_memory_holds_is_refused_before_anything_is_compiled(stride, monkeypatch):
    monkeypatch.setattr("convgrad.arrays.record.kernel_for", None)
    with pytest.raises(
        ShapeError, match=r"^ConvTranspose: dst \[1, \d+, 4\] of f32 does not fit into memory \(.*\); make"
    ):
        convgrad.conv_transpose(X, W.reshape(3, 4, 2), strides=[stride])
