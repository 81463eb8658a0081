"""The operations under JAX: results, types, and the words of their errors."""

import subprocess
import sys

import numpy as np
import pytest

import convgrad
import jax_cases as cases
from convgrad.dtypes import FLOATING, numpy_dtype
from convgrad.errors import ArrayError, AttributeRuleError, ConvError, DtypeError, ShapeError

jax, jnp, cj = cases.jax, cases.jnp, cases.cj


@pytest.mark.parametrize("name", cases.CASES)
def test_results_are_those_of_the_definition(name, rng):
    op, attributes, shapes, told = cases.CASES[name]
    inputs = [cases.integers(rng, shape) for shape in shapes]
    result = cases.call(op, attributes, inputs, told)
    np.testing.assert_array_equal(result, cases.defined(op, attributes, inputs, told))
    assert isinstance(result, jax.Array)


@pytest.mark.parametrize("dtype", FLOATING)
@pytest.mark.parametrize("out_dtype", [None, "f32"])
def test_types(dtype, out_dtype, rng):
    if dtype == "f64" and out_dtype:
        pytest.skip("f64 gives f64 alone")
    op, attributes, shapes, _ = cases.CASES["convolution with bias"]
    with jax.enable_x64(True):
        inputs = [cases.integers(rng, shape, dtype) for shape in shapes]
        result = cases.call(op, attributes, inputs, out_dtype=out_dtype)
    assert result.dtype == numpy_dtype(out_dtype or dtype)
    np.testing.assert_array_equal(np.asarray(result, np.float64), cases.defined(op, attributes, inputs))


def test_sixteen_bits_are_rounded_once():
    """257 values of 1 + 2^-7 with a bias of 1/4: a sum that bf16 does not hold before the bias is added."""
    src, bias = jnp.full((1, 1, 257), 1 + 2**-7, jnp.bfloat16), jnp.full((1,), 0.25, jnp.bfloat16)
    weights = jnp.ones((1, 257, 1), jnp.bfloat16)
    exact = 257 * (1 + 2**-7) + 0.25
    assert float(cj.convolution(src, weights, bias)[0, 0, 0]) == float(jnp.bfloat16(exact))
    assert float(cj.convolution(src, weights, bias, out_dtype="f32")[0, 0, 0]) == exact


def test_arrays_of_numpy_are_taken(rng):
    op, attributes, shapes, _ = cases.CASES["convolution"]
    inputs = [rng.integers(-3, 4, shape).astype(np.float32) for shape in shapes]
    np.testing.assert_array_equal(cases.call(op, attributes, inputs), convgrad.convolution(*inputs, **attributes))


def test_the_fpmath_mode_reaches_kernels_and_their_gradients():
    """By keyword, or from the surroundings of tracing; gradients are computed like what they belong to."""
    x, w = jnp.ones((1, 6, 2)), jnp.ones((3, 2, 4))

    def modes(convolve):
        text = jax.jit(jax.grad(lambda x, w: (convolve(x, w) ** 2).sum(), (0, 1))).lower(x, w).as_text()
        return text.count(r"\22fpmath_mode\22:\22bf16\22"), text.count("custom_call @convgrad_")

    assert modes(cj.convolution) == (0, 3)
    assert modes(lambda x, w: cj.convolution(x, w, fpmath_mode="bf16")) == (3, 3)
    with convgrad.fpmath_mode("bf16"):
        assert modes(lambda x, w: cj.convolution(x, w)) == (3, 3)
        assert modes(lambda x, w: cj.conv_general_dilated(x.swapaxes(1, 2), w.T, (1,), "SAME")) == (3, 3)
        assert modes(lambda x, w: cj.convolution(x, w, fpmath_mode="strict")) == (0, 3)
        assert modes(lambda x, w: cj.convolution(x.astype("bfloat16"), w.astype("bfloat16"))) == (0, 3)


def image(*shape, dtype=jnp.float32):
    return jnp.zeros(shape, dtype)


MISTAKES = {
    "types": (
        lambda: cj.convolution(image(1, 5, 2), image(3, 2, 4, dtype=jnp.bfloat16)), DtypeError,
        "Convolution: src holds f32, but weights holds bf16; convert one",
    ),
    "integers": (
        lambda: cj.bias_add_backward(image(1, 5, dtype=jnp.int32)), DtypeError,
        "BiasAddBackward: diff_dst holds int32, but must hold one of f32, bf16, f16, f64",
    ),
    "type of the result": (
        lambda: cj.convolution(image(1, 5, 2), image(3, 2, 4), out_dtype="bf16"), DtypeError,
        "Convolution: out_dtype is bf16, but inputs of f32 give f32; change",
    ),
    "no type": (
        lambda: cj.convolution(image(1, 5, 2), image(3, 2, 4), out_dtype="f31"), DtypeError,
        "Convolution: out_dtype is 'f31', but inputs of f32 give f32",
    ),
    "no array": (
        lambda: cj.convolution("picture", image(3, 2, 4)), ArrayError, "Convolution: src is of type str: .*; give",
    ),
    "channels": (
        lambda: cj.convolution(image(1, 5, 2), image(3, 3, 4)), ShapeError, "src has 2 channels in groups = 1",
    ),
    "told shape": (
        lambda: cj.convolution_backward_data(image(1, 3, 4), image(3, 2, 4)), ShapeError,
        "the shape of diff_src cannot be inferred; give dst_shape",
    ),
    "traced shape": (
        lambda: jax.jit(lambda n: cj.convolution_backward_data(image(1, 3, 4), image(3, 2, 4), (1, n, 2)))(5),
        AttributeRuleError, "dst_shape holds .*; give an integer",
    ),
    "attribute": (
        lambda: cj.convolution(image(1, 5, 2), image(3, 2, 4), auto_pad="equal"), AttributeRuleError,
        "auto_pad is 'equal', but must be one of NONE",
    ),
    "mode": (
        lambda: cj.convolution(image(1, 5, 2), image(3, 2, 4), fpmath_mode="loose"), AttributeRuleError,
        "Convolution: fpmath_mode is 'loose'; it must be one of strict, tf32",
    ),
    "bias": (
        lambda: cj.convolution(image(1, 5, 2), image(3, 2, 4), image(3)), ShapeError, r"give a bias of shape \[4\]",
    ),
}  # fmt: skip


@pytest.mark.parametrize("traced", [False, True], ids=["eager", "jit"])
@pytest.mark.parametrize("name", MISTAKES)
def test_mistakes_are_explained_while_tracing(name, traced):
    wrong, kind, words = MISTAKES[name]
    with pytest.raises(kind, match=words):
        jax.jit(wrong).trace() if traced else wrong()


def test_symbols_for_extents_are_refused():
    (batch,) = jax.export.symbolic_shape("b")
    exported = jax.export.export(jax.jit(lambda x: cj.convolution(x, image(3, 2, 4))))
    with pytest.raises(ShapeError, match=r"src has the shape \(b, 5, 2\), part of which is a symbol"):
        exported(jax.ShapeDtypeStruct((batch, 5, 2), jnp.float32))


def test_other_platforms_are_refused():
    traced = jax.jit(lambda x: cj.convolution(x, image(3, 2, 4))).trace(image(1, 5, 2))
    with pytest.raises(ConvError, match=r"solve y: n1 .* the program is lowered for tpu, but kernels are compiled for"):
        traced.lower(lowering_platforms=("tpu",))


def test_without_jax_the_import_says_what_to_install():
    program = "import sys; sys.modules['jax'] = None; import convgrad; import convgrad.jax"
    found = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True)
    assert "ImportError: convgrad.jax needs JAX" in found.stderr
    assert "pip install 'convgrad[jax]'" in found.stderr
