"""The canonical problem against the definition: Φ written out, element by element, over the strides it carries."""

from itertools import product

import numpy as np
import pytest

from cases import exact_cases, expected, tensors
from convgrad.arrays.view import dense_strides
from convgrad.problem.canonicalize import ROLES, canonicalize
from convgrad.spec.resolve import resolve


def solve_over_strides(problem, memory, bias):
    """The unknown of Φ, with nothing but flat memory and the strides of the problem."""
    out = memory[problem.unknown.value]

    def at(name, *index):
        return sum(i * stride for i, stride in zip(index, problem.strides[name], strict=True))

    if problem.bias:
        n, g, c, *extent = problem.shapes[problem.unknown.value]
        for i in product(*map(range, (n, g, c, *extent))):
            out[at(problem.unknown.value, *i)] = bias[(i[1] * c + i[2]) * problem.bias_stride]
    loops = (problem.batch, problem.groups, problem.x_channels, problem.y_channels, *problem.y_extent, *problem.taps)
    for n, g, c, k, *rest in product(*map(range, loops)):
        p, r = rest[: problem.rank], rest[problem.rank :]
        geometry = zip(p, r, problem.stride, problem.dilation, problem.pad_low, strict=True)
        x = [s * p + d * r - low for p, r, s, d, low in geometry]
        if all(0 <= i < extent for i, extent in zip(x, problem.x_extent, strict=True)):
            places = {"x": at("x", n, g, c, *x), "w": at("w", g, k, c, *r), "y": at("y", n, g, k, *p)}
            given = [memory[name][place] for name, place in places.items() if name != problem.unknown.value]
            out[places[problem.unknown.value]] += given[0] * given[1]


@pytest.mark.parametrize("case", exact_cases()[::3] + exact_cases()[-3:], ids=lambda case: case["name"])
def test_phi_over_the_strides_is_the_operation(case):
    inputs = tensors(case, "f64")
    resolved = resolve(case["op"], case["attrs"], [i.shape for i in inputs])
    problem = canonicalize(
        resolved,
        input_strides=[dense_strides(i.shape) for i in inputs[:2]],
        output_strides=dense_strides(resolved.output_shape),
        dtype="f64",
        out_dtype="f64",
        bias_stride=1 if len(inputs) == 3 else None,
    )
    out = np.zeros(resolved.output_shape)
    given = [*inputs[:2], np.ones(1)][:2] if case["op"] == "BiasAddBackward" else inputs[:2]
    memory = {role: array.reshape(-1) for role, array in zip(ROLES[case["op"]], (*given, out), strict=True)}
    solve_over_strides(problem, memory, inputs[2] if len(inputs) == 3 else None)
    np.testing.assert_array_equal(out, expected(case, "f64"))


def test_equal_calls_are_equal_problems():
    attributes = {"strides": [1], "dilations": [1], "data_format": "NCX", "weights_format": "OIX"}
    as_ncx = resolve("Convolution", attributes, [(2, 3, 8), (4, 3, 3)])
    as_nxc = resolve("Convolution", attributes | {"data_format": "nxc"}, [(2, 8, 3), (4, 3, 3)])
    common = {"dtype": "f32", "out_dtype": "f32"}
    one = canonicalize(as_ncx, input_strides=[(24, 1, 3), (9, 3, 1)], output_strides=(24, 1, 4), **common)
    two = canonicalize(as_nxc, input_strides=[(24, 3, 1), (9, 3, 1)], output_strides=(24, 4, 1), **common)
    assert one == two
    assert hash(one) == hash(two)


@pytest.mark.parametrize(
    ("op", "of", "channels"), [("ConvolutionBackwardWeights", "y", 6), ("ConvTransposeBackwardWeights", "x", 4)]
)
def test_the_bias_of_a_weights_gradient_is_a_result_summed_from_diff_dst(op, of, channels):
    attributes = {"strides": [1], "dilations": [1], "groups": 2, "data_format": "NCX"}
    attributes["weights_format"] = "OIX" if op.startswith("Convolution") else "IOX"
    shapes = {"x": (2, 4, 8), "y": (2, 6, 6)}
    inputs = [shapes["x"], shapes["y"]] if of == "y" else [shapes["y"], shapes["x"]]
    resolved = resolve(op, attributes, inputs, shape_input=(6, 2, 3))
    common = {
        "input_strides": [dense_strides(shape) for shape in inputs],
        "output_strides": dense_strides(resolved.output_shape),
        "dtype": "f32",
        "out_dtype": "f32",
    }
    alone, both = canonicalize(resolved, **common), canonicalize(resolved, **common, bias_stride=3)
    assert (alone.bias_gradient, alone.bias_length) == ("", 0)
    assert (both.bias, both.bias_gradient, both.bias_stride, both.bias_length) == (False, of, 3, channels)
    assert f"sums-of-{of}" in str(both)
    assert "sums" not in str(alone)
    assert both != alone
