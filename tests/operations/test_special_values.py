"""Infinities, NaN and the ends of the range, through the public functions, as IEEE arithmetic has the definition."""

import numpy as np
import pytest

import convgrad
from cases import FUNCTIONS
from convgrad.dtypes import FLOATING, numpy_dtype
from convgrad.plan.machine import available_isas
from convgrad.spec.definition import define
from convgrad.spec.resolve import resolve

SPECIAL = (np.inf, -np.inf, np.nan)
FORWARD = {
    "Convolution": "Convolution", "ConvolutionBackwardData": "Convolution", "ConvolutionBackwardWeights": "Convolution",
    "ConvTranspose": "ConvTranspose", "ConvTransposeBackwardData": "ConvTranspose",
    "ConvTransposeBackwardWeights": "ConvTranspose",
}  # fmt: skip
each_op = pytest.mark.parametrize("op", FORWARD)
GEOMETRIES = {
    "padded": ((7, 18), (3, 3), 1, 4, 6),
    "strided": ((9, 20), (3, 5), 2, 3, 17),
    "depthwise": ((6, 20), (3, 3), 1, 1, 1),
}
TYPED = [  # in one layout or the other where it is not f32
    (geometry, data_format, dtype)
    for number, geometry in enumerate(GEOMETRIES)
    for one, data_format in enumerate(("NCX", "NXC"))
    for other, dtype in enumerate(FLOATING)
    if dtype == "f32" or (number + one + other) % 2
]


class Call:
    """An operation on one geometry: its inputs, and what it has to give."""

    def __init__(self, op, geometry, data_format, dtype):
        extent, taps, stride, source, other = GEOMETRIES[geometry]
        groups = 18 if geometry == "depthwise" else 1
        self.op = op
        self.attributes = {
            "strides": [stride] * 2, "dilations": [1, 1], "pads_begin": [1, 2], "pads_end": [1, 1], "groups": groups,
            "data_format": data_format, "weights_format": "OIX",
        }  # fmt: skip

        def data(channels, extent):
            return (2, channels, *extent) if data_format == "NCX" else (2, *extent, channels)

        image, window = data(groups * source, extent), None
        weights = (groups * other, source, *taps)
        if FORWARD[op] == "ConvTranspose":
            weights = (other, groups * source, *taps)
        window = resolve(FORWARD[op], self.attributes, [image, weights]).output_shape
        self.told = {"BackwardWeights": weights, "BackwardData": image}.get(op.removeprefix(FORWARD[op]))
        if op == "ConvTransposeBackwardData":
            self.told = None
        shapes = {"": (image, weights), "BackwardData": (window, weights), "BackwardWeights": (image, window)}
        self.dtype, rng = dtype, np.random.default_rng(4)
        self.inputs = [
            rng.integers(-2, 3, shape).astype(numpy_dtype(dtype)) for shape in shapes[op.removeprefix(FORWARD[op])]
        ]

    def check(self, **others):
        result = FUNCTIONS[self.op](*self.inputs, *([self.told] if self.told else []), **self.attributes, **others)
        resolved = resolve(self.op, self.attributes, [a.shape for a in self.inputs], shape_input=self.told)
        with np.errstate(invalid="ignore", over="ignore"):
            wanted = define(resolved, self.inputs).astype(result.dtype)
        np.testing.assert_array_equal(result.astype(np.float64), wanted.astype(np.float64))
        return result


@each_op
@pytest.mark.parametrize(("geometry", "data_format", "dtype"), TYPED)
def test_they_reach_the_results_of_the_definition_and_no_others(op, geometry, data_format, dtype, rng):
    call = Call(op, geometry, data_format, dtype)
    usual = [array.copy() for array in call.inputs]
    for number in range(2):
        for many in (1, 3):
            for array, before in zip(call.inputs, usual, strict=True):
                array[...] = before
            for _ in range(many):
                array = call.inputs[number]
                array[tuple(rng.integers(0, array.shape))] = rng.choice(SPECIAL)
            call.check()


@each_op
@pytest.mark.parametrize("isa", available_isas())
def test_so_they_do_on_every_instruction_set_whatever_the_number_of_threads(op, isa, monkeypatch, rng):
    monkeypatch.setenv("CONVGRAD_ISA", isa)
    call = Call(op, "padded", "NCX", "f32")
    for array in call.inputs:
        array[tuple(rng.integers(0, array.shape))] = np.inf
    count, found = convgrad.num_threads(), []
    try:
        for threads in (1, 2, 3):
            convgrad.set_num_threads(threads)
            found.append(call.check().tobytes())
    finally:
        convgrad.set_num_threads(count)
    assert len({*found}) == 1


@each_op
@pytest.mark.parametrize("geometry", GEOMETRIES)
def test_they_are_added_to_what_is_there(op, geometry, rng):
    call = Call(op, geometry, "NCX", "f32")
    out = call.check()
    for number in range(2):
        array = call.inputs[number]
        place = tuple(rng.integers(0, array.shape))
        usual, array[place] = array[place], np.inf
        with np.errstate(invalid="ignore"):
            wanted = 5 + call.check()
        out[...] = 5
        told = [call.told] if call.told else []
        FUNCTIONS[op](*call.inputs, *told, **call.attributes, out=out, accumulate=True)
        np.testing.assert_array_equal(out, wanted)
        array[place] = usual


@each_op
def test_weights_or_gradients_that_are_nan_throughout_give_nan(op):
    """As training that has diverged does: each result that has a product."""
    call = Call(op, "padded", "NCX", "f32")
    for array in call.inputs:
        array[...] = np.nan
    assert np.isnan(call.check()).all()


@each_op
def test_zeros_of_either_sign_and_the_least_numbers_are_no_special_case(op):
    call = Call(op, "padded", "NCX", "f32")
    call.inputs[0][...] = -0.0
    assert np.all(call.check() == 0)
    call.inputs[0][...] = 2.0**-149
    call.inputs[1][...] = 1
    assert np.all(call.check() >= 2.0**-149)
