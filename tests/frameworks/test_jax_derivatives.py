"""Derivatives of every order and mode stay in the family, and are those of JAX's own convolution."""

import numpy as np
import pytest

import jax_cases as cases
from convgrad.dtypes import numpy_dtype

check_grads = pytest.importorskip("jax.test_util", reason="JAX is not installed").check_grads
jax, jnp, cj = cases.jax, cases.jnp, cases.cj
DIFFERENTIABLE = [name for name in cases.CASES if "no batch" not in name]


def loss_of(name):
    """A function of the inputs that is linear in the result, so that its derivatives are exact in integers."""
    op, attributes, shapes, told = cases.CASES[name]
    return op, shapes, lambda *inputs: cases.call(op, attributes, inputs, told)


@pytest.mark.parametrize("name", DIFFERENTIABLE)
def test_gradients_are_adjoint_in_exact_integers(name, rng):
    """⟨∂f(t), y⟩ = ⟨t, fᵀ(y)⟩ for each input; f itself is checked against its definition elsewhere."""
    _, shapes, function = loss_of(name)
    inputs, tangents = ([cases.integers(rng, shape) + 3.0 for shape in shapes] for _ in range(2))
    result, pull = jax.vjp(function, *inputs)
    y = cases.integers(rng, result.shape) + 3.0  # all positive: no product of sums is zero
    for place, (tangent, gradient) in enumerate(zip(tangents, pull(y), strict=True)):
        alone = [t if i == place else jnp.zeros_like(t) for i, t in enumerate(tangents)]
        _, pushed = jax.jvp(function, tuple(inputs), tuple(alone))
        assert np.vdot(pushed, y) == np.vdot(tangent, gradient) != 0


@pytest.mark.parametrize("name", ["convolution with bias", "transpose NCX, groups, bias", "backward weights"])
def test_second_order_by_finite_differences(name, rng):
    """Forward and reverse, over one another, in f64."""
    _, shapes, function = loss_of(name)
    with jax.enable_x64(True):
        inputs = [jnp.asarray(rng.normal(size=shape)) for shape in shapes]
        check_grads(function, tuple(inputs), order=2, modes=("fwd", "rev"))


def test_third_order_in_reverse(rng):
    with jax.enable_x64(True):
        inputs = [jnp.asarray(rng.normal(size=shape)) for shape in ((1, 5, 2), (2, 2, 3))]
        check_grads(lambda x, w: jnp.sin(cj.convolution(x, w)), tuple(inputs), order=3, modes=("rev",))


@pytest.mark.parametrize("name", ["convolution NCX, groups, bias", "transpose NCX, groups, bias"])
def test_weights_and_bias_gradients_come_from_one_kernel(name, rng):
    """And are those that the operations of their own compute."""
    _, shapes, function = loss_of(name)
    inputs = [cases.integers(rng, shape) for shape in shapes]
    result, pull = jax.vjp(function, *inputs)
    y = cases.integers(rng, result.shape)
    _, of_weights, of_bias = pull(y)
    np.testing.assert_array_equal(of_weights, jax.vjp(lambda w: function(inputs[0], w, inputs[2]), inputs[1])[1](y)[0])
    np.testing.assert_array_equal(of_bias, cj.bias_add_backward(y, data_format="NCX"))
    both = jax.jit(lambda w, b, y: jax.vjp(lambda w, b: function(inputs[0], w, b), w, b)[1](y))
    assert both.lower(inputs[1], inputs[2], y).as_text().count("custom_call @convgrad_w_") == 1


@pytest.mark.parametrize("moving", [(0,), (1,), (2,), (0, 2), (1, 2), (0, 1, 2)])
def test_derivatives_of_the_gradients_of_weights_and_bias(moving, rng):
    """In exact integers: each order, forward over reverse and reverse over reverse, whichever inputs take part."""
    _, shapes, function = loss_of("convolution with bias")
    inputs, tangents = ([cases.integers(rng, shape) for shape in shapes] for _ in range(2))
    places = tuple(range(3))

    def gradients(*moved):
        given = [moved[moving.index(n)] if n in moving else inputs[n] for n in places]
        return jax.grad(lambda *a: (function(*a) ** 2).sum(), places)(*given)

    points, directions = ([all_[n] for n in moving] for all_ in (inputs, tangents))
    values, pushed = jax.jvp(gradients, points, directions)
    weights = [cases.integers(rng, value.shape) for value in values]
    pulled = jax.vjp(gradients, *points)[1](tuple(weights))
    product = sum(np.vdot(p, w) for p, w in zip(pushed, weights, strict=True))
    assert product == sum(np.vdot(d, p) for d, p in zip(directions, pulled, strict=True)) != 0
    for n in range(3):  # the difference of a quadratic form, exactly
        steps = [gradients(*(p + s * d for p, d in zip(points, directions, strict=True)))[n] for s in (1, -1)]
        if moving != (0, 1, 2) and moving != (0, 1):
            np.testing.assert_array_equal((steps[0] - steps[1]) / 2, pushed[n])


def test_gradient_of_the_bias_gradient_alone(rng):
    """The bias gradient of Σ dst² is 2·Σ dst over each channel; its squares have a gradient that is easily told."""
    op, attributes, shapes, _ = cases.CASES["convolution with bias"]
    x, w, b = (cases.integers(rng, shape) for shape in shapes)

    def forward(*inputs):
        return cases.call(op, attributes, inputs)

    def penalty(*inputs):
        _, of_bias = jax.grad(lambda *a: (forward(*a) ** 2).sum(), (1, 2))(*inputs)
        return (of_bias**2).sum()

    dst, pull = jax.vjp(forward, x, w, b)
    told = pull(jnp.broadcast_to(8 * dst.sum((0, 1, 2)), dst.shape))
    for mine, wanted in zip(jax.grad(penalty, (0, 1, 2))(x, w, b), told, strict=True):
        np.testing.assert_array_equal(mine, wanted)


def test_weights_without_elements_have_a_bias_gradient_beside_them():
    """No input channels: the result is the bias, and its gradient the sum of the cotangent."""
    result, pull = jax.vjp(cj.convolution, jnp.ones((2, 5, 0)), jnp.ones((3, 0, 4)), jnp.arange(4.0))
    np.testing.assert_array_equal(result, np.broadcast_to(np.arange(4.0), (2, 3, 4)))
    of_src, of_weights, of_bias = pull(jnp.ones((2, 3, 4)))
    assert (of_src.shape, of_weights.shape) == ((2, 5, 0), (3, 0, 4))
    np.testing.assert_array_equal(of_bias, np.full(4, 6.0))


def test_gradient_of_a_gradient_is_that_of_jax(rng):
    """A gradient penalty, as some losses of adversarial training have it, in exact integers."""
    x, w, v = (cases.integers(rng, shape) for shape in ((2, 6, 5, 3), (3, 2, 3, 4), (2, 6, 5, 3)))

    def penalty(convolve):
        def inner(x, w):
            return jax.grad(lambda x: (convolve(x, w) ** 2).sum())(x)

        return jax.jit(jax.grad(lambda x, w: (inner(x, w) * v).sum(), (0, 1)))

    pads = [(1, 1), (0, 1)]
    ours = penalty(lambda x, w: cj.convolution(x, w, strides=[2, 1], pads_begin=[1, 0], pads_end=[1, 1]))
    letters = ("NHWC", "HWIO", "NHWC")
    theirs = penalty(lambda x, w: jax.lax.conv_general_dilated(x, w, (2, 1), pads, dimension_numbers=letters))
    for mine, wanted in zip(ours(x, w), theirs(x, w), strict=True):
        assert np.any(wanted)
        np.testing.assert_array_equal(mine, wanted)


@pytest.mark.parametrize("dtype", ["bf16", "f16"])
@pytest.mark.parametrize("out_dtype", [None, "f32"])
def test_sixteen_bits(dtype, out_dtype, rng):
    """Gradients come in the type of what they belong to, also those of a result of f32."""
    op, attributes, shapes, _ = cases.CASES["convolution with bias"]
    inputs = [cases.integers(rng, shape, dtype) for shape in shapes]
    result, pull = jax.vjp(lambda *a: cases.call(op, attributes, a, out_dtype=out_dtype), *inputs)
    wide, wide_pull = jax.vjp(lambda *a: cases.call(op, attributes, a), *[i.astype(jnp.float32) for i in inputs])
    assert result.dtype == numpy_dtype(out_dtype or dtype)
    np.testing.assert_array_equal(result.astype(jnp.float32), wide)
    y = cases.integers(rng, result.shape)
    for mine, wanted in zip(pull(y.astype(result.dtype)), wide_pull(y), strict=True):
        assert mine.dtype == numpy_dtype(dtype)
        np.testing.assert_array_equal(mine, wanted.astype(mine.dtype))


def test_a_gradient_of_f32_is_rounded_once(rng):
    """The cotangent of an f32 result is not cut down to 16 bits before it is summed."""
    src, weights = jnp.ones((1, 1, 1), jnp.bfloat16), jnp.array([[[1, -1]]], jnp.bfloat16)
    _, pull = jax.vjp(lambda src: cj.convolution(src, weights, out_dtype="f32"), src)
    cotangent = jnp.array([[[1 + 2**-12, 1]]], jnp.float32)
    assert float(pull(cotangent)[0][0, 0, 0]) == 2**-12


def test_what_is_not_asked_for_is_not_computed():
    """The gradient of the weights alone calls two kernels: none for that of the image."""
    x, w = jnp.ones((1, 6, 2)), jnp.ones((3, 2, 4))
    lowered = jax.jit(jax.grad(lambda w: (cj.convolution(x, w) ** 2).sum())).lower(w)
    assert lowered.as_text().count("stablehlo.custom_call @convgrad_") == 2


def test_programs_that_recompute(rng):
    """jax.checkpoint, and a scan over layers with shared weights."""
    x, w = cases.integers(rng, (1, 6, 3)), cases.integers(rng, (3, 3, 3))

    def layer(x, _):
        return cj.convolution(x, w, auto_pad="same_upper"), None

    def deep(x, wrap):
        return jax.lax.scan(wrap(layer), x, None, length=3)[0].sum()

    plain = jax.grad(lambda x: sum_of_three(layer, x))(x)
    np.testing.assert_array_equal(jax.grad(lambda x: deep(x, lambda f: f))(x), plain)
    np.testing.assert_array_equal(jax.grad(lambda x: deep(x, jax.checkpoint))(x), plain)


def sum_of_three(layer, x):
    for _ in range(3):
        x, _ = layer(x, None)
    return x.sum()
