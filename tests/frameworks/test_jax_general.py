"""conv_general_dilated: equal to JAX's, gradients included, wherever it belongs to the family."""

import inspect
import random

import numpy as np
import pytest

import jax_cases as cases
from convgrad.errors import AttributeRuleError, ConvError, DtypeError, ShapeError

jax, jnp, cj = cases.jax, cases.jnp, cases.cj

_DILATED = dict(window_strides=(1, 1), lhs_dilation=(2, 3))
_NHWC = dict(dimension_numbers=("NHWC", "HWIO", "NHWC"))

# shapes of lhs and rhs, arguments
GEOMETRIES = {
    "plain": ((2, 3, 7, 6), (4, 3, 3, 2), dict(window_strides=(2, 1), padding=((1, 2), (0, 1)))),
    "SAME, NHWC": ((2, 7, 6, 3), (3, 2, 3, 4), dict(window_strides=(2, 3), padding="SAME", **_NHWC)),
    "SAME_LOWER, dilated": ((1, 3, 8), (4, 3, 2), dict(window_strides=(1,), padding="SAME_LOWER", rhs_dilation=(3,))),
    "VALID": ((1, 3, 8), (4, 3, 2), dict(window_strides=(3,), padding="valid")),
    "negative pads": ((2, 3, 7, 6), (4, 3, 2, 2), dict(window_strides=(2, 1), padding=((-1, 0), (1, -2)))),
    "feature groups": ((2, 6, 7), (4, 3, 3), dict(window_strides=(2,), padding=((1, 1),), feature_group_count=2)),
    "depthwise, two each": (
        (2, 7, 3), (3, 1, 6),
        dict(window_strides=(1,), padding="SAME", feature_group_count=3, dimension_numbers=("NWC", "WIO", "NWC")),
    ),
    "batch groups": ((6, 2, 7), (4, 2, 3), dict(window_strides=(2,), padding=((1, 1),), batch_group_count=2)),
    "batch groups, dilated lhs": (
        (6, 2, 5), (4, 2, 3), dict(window_strides=(1,), lhs_dilation=(2,), padding=((1, 1),), batch_group_count=2),
    ),
    "dilated lhs": ((2, 3, 4, 3), (4, 3, 3, 2), dict(padding=((1, 2), (0, 1)), **_DILATED)),
    "dilated lhs and rhs, NHWC": (
        (2, 4, 3, 3), (3, 2, 3, 4), dict(padding=((1, 2), (3, 4)), rhs_dilation=(2, 2), **_DILATED, **_NHWC),
    ),
    "dilated lhs, negative pads": ((1, 3, 4, 3), (4, 3, 2, 2), dict(padding=((-1, 2), (2, -2)), **_DILATED)),
    "dilated lhs, groups": ((1, 6, 4, 3), (4, 3, 2, 2), dict(padding="VALID", feature_group_count=2) | dict(
        padding=((1, 1), (1, 1)), **_DILATED)),
    "dilation of one element": ((1, 3, 1), (4, 3, 2), dict(window_strides=(2,), lhs_dilation=(3,), padding=((4, 4),))),
    "stride of one window": ((1, 3, 3), (4, 3, 4), dict(window_strides=(9,), lhs_dilation=(2,), padding=((0, 1),))),
    "any order of axes": (
        (6, 2, 7, 3), (2, 4, 3, 3),
        dict(window_strides=(2, 1), padding="SAME", dimension_numbers=("HNWC", "WOIH", "CWNH")),
    ),
    "volume": ((1, 2, 3, 4, 3), (3, 2, 2, 2, 2), dict(window_strides=(1, 2, 1), padding="SAME")),
    "nothing left": ((1, 2, 3), (3, 2, 5), dict(window_strides=(1,), padding="VALID")),
}  # fmt: skip


def compare(lhs_shape, rhs_shape, keywords, rng):
    """Results and both gradients, bit for bit in exact integers."""
    lhs, rhs = cases.integers(rng, lhs_shape), cases.integers(rng, rhs_shape)
    shape = jax.eval_shape(lambda a, b: jax.lax.conv_general_dilated(a, b, **keywords), lhs, rhs).shape
    y = cases.integers(rng, shape)

    def everything(convolve):
        def run(lhs, rhs, y):
            result, pull = jax.vjp(lambda a, b: convolve(a, b, **keywords), lhs, rhs)
            return result, *pull(y)

        return jax.jit(run)(lhs, rhs, y)

    for mine, wanted in zip(everything(cj.conv_general_dilated), everything(jax.lax.conv_general_dilated), strict=True):
        np.testing.assert_array_equal(mine, wanted, err_msg=f"{lhs_shape} {rhs_shape} {keywords}")


@pytest.mark.parametrize("name", GEOMETRIES)
def test_results_and_gradients_are_those_of_jax(name, rng):
    compare(*GEOMETRIES[name], rng)


@pytest.mark.parametrize("seed", range(8))
def test_random_geometries(seed, rng):
    compare(*drawn(random.Random(seed)), rng)


def drawn(draw):
    """A convolution, strided or with a dilated lhs, in layouts of any order."""
    rank, transposed = draw.choice([1, 2, 2, 3]), draw.random() < 0.5
    groups = draw.choice([1, 2])
    image, taps = ([draw.randint(low, 6 - rank) for _ in range(rank)] for low in (2, 1))
    strides, spread = ([1 if one else draw.randint(1, 3) for _ in range(rank)] for one in (transposed, not transposed))
    sizes = {"N": draw.randint(1, 2), "C": groups * 2, "O": groups * 3, "I": 2}
    letters = "HWD"[:rank]
    left, right, out = ("".join(draw.sample(start + letters, rank + 2)) for start in ("NC", "OI", "NC"))
    order = [letter for letter in right if letter in letters]
    lhs = [{**sizes, **dict(zip(order, image, strict=True))}[letter] for letter in left]
    rhs = [{**sizes, **dict(zip(order, taps, strict=True))}[letter] for letter in right]
    keywords = dict(
        window_strides=strides,
        padding=[(draw.randint(0, 3), draw.randint(0, 3)) for _ in range(rank)],
        lhs_dilation=spread,
        rhs_dilation=[draw.randint(1, 2) for _ in range(rank)],
        dimension_numbers=(left, right, out),
        feature_group_count=groups,
    )
    return lhs, rhs, keywords


@pytest.mark.parametrize("low", [-2, 2])
@pytest.mark.parametrize("high", [-2, 2])
def test_pads_are_zeros_and_negative_pads_cut(low, high, rng):
    """By hand: XLA's own convolution on CPUs is wrong where a negative pad is followed by a positive one."""
    lhs, rhs = cases.integers(rng, (1, 4, 9)), cases.integers(rng, (3, 4, 2))
    by_hand = jax.lax.pad(lhs, 0.0, ((0, 0, 0), (0, 0, 0), (low, high, 0)))
    wanted = jax.lax.conv_general_dilated(by_hand, rhs, (2,), "VALID")
    np.testing.assert_array_equal(cj.conv_general_dilated(lhs, rhs, (2,), ((low, high),)), wanted)


def test_gradients_are_adjoint_with_pads_beyond_the_taps(rng):
    """Here the gradient in lhs that JAX computes is not the adjoint of its own convolution."""
    lhs, rhs = cases.integers(rng, (1, 3, 4, 3)), cases.integers(rng, (4, 3, 2, 2))
    arguments = dict(window_strides=(1, 1), padding=((5, 6), (4, 0)), lhs_dilation=(2, 3))
    result, pull = jax.vjp(lambda a, b: cj.conv_general_dilated(a, b, **arguments), lhs, rhs)
    np.testing.assert_array_equal(result, jax.lax.conv_general_dilated(lhs, rhs, **arguments))
    y = cases.integers(rng, result.shape)
    of_lhs, of_rhs = pull(y)
    assert np.vdot(result, y) == np.vdot(lhs, of_lhs) == np.vdot(rhs, of_rhs) != 0


def test_real_numbers_are_as_near_as_rounding_allows(rng):
    """Against f64: each sum of n products errs by no more than n roundings of the sum of magnitudes."""
    lhs, rhs = (rng.normal(size=shape).astype(np.float32) for shape in ((2, 16, 9, 9), (8, 16, 3, 3)))
    terms, unit = 16 * 9, 2.0**-24
    with jax.enable_x64(True):
        wide = [jnp.asarray(a, jnp.float64) for a in (lhs, rhs)]
        exact, magnitude = (np.asarray(jax.lax.conv(*map(f, wide), (1, 1), "SAME")) for f in (jnp.asarray, jnp.abs))
    result = cj.conv_general_dilated(lhs, rhs, (1, 1), "SAME")
    assert np.all(np.abs(np.asarray(result, np.float64) - exact) <= (terms + 1) * unit * magnitude)


def test_the_signature_is_that_of_jax():
    """So that it can be given to layers that take such a function."""
    names = [list(inspect.signature(f).parameters) for f in (cj.conv_general_dilated, jax.lax.conv_general_dilated)]
    assert names[0] == names[1]


def test_sixteen_bits_with_a_wide_result(rng):
    lhs, rhs = cases.integers(rng, (1, 3, 6), "bf16"), cases.integers(rng, (4, 3, 3), "bf16")
    result = cj.conv_general_dilated(lhs, rhs, (1,), "SAME", preferred_element_type=jnp.float32)
    wanted = jax.lax.conv_general_dilated(lhs, rhs, (1,), "SAME", preferred_element_type=jnp.float32)
    assert result.dtype == wanted.dtype == jnp.float32
    np.testing.assert_array_equal(result, wanted)


LHS, RHS = (1, 4, 6, 6), (2, 4, 3, 3)
MISTAKES = {
    "stride and dilated lhs": (
        dict(window_strides=(2, 1), lhs_dilation=(1, 2)), ConvError,
        r"window_strides \[2, 1\] with lhs_dilation \[1, 2\] are neither .*; make one of them all ones, or call",
    ),
    "words for pads of a dilated lhs": (
        dict(padding="SAME", lhs_dilation=(1, 2)), AttributeRuleError, "padding is 'SAME', whose meaning is not fixed",
    ),
    "unknown word": (dict(padding="FULL"), AttributeRuleError, "padding is 'FULL': .*; give SAME, SAME_LOWER or VALID"),
    "pads": (dict(padding=(1, 1)), AttributeRuleError, r"padding is \(1, 1\); give SAME"),
    "one pad": (dict(padding=((1, 1),)), ShapeError, r"padding has 1 pairs, \[\(1, 1\)\], but the tensors have 2"),
    "strides": (dict(window_strides=(1,)), ShapeError, r"window_strides has 1 entries, \[1\], but the tensors have 2"),
    "zero": (dict(rhs_dilation=(0, 1)), AttributeRuleError, "rhs_dilation holds 0, but must be at least 1"),
    "cut away": (dict(padding=((-4, -3), (0, 0))), ShapeError, "pads of -4 and -3 cut 6 elements down to -1"),
    "features": (
        dict(feature_group_count=2), ShapeError,
        r"lhs \[1, 4, 6, 6\] has 4 features, but rhs \[2, 4, 3, 3\] takes 4 in each of feature_group_count = 2 groups",
    ),
    "batch groups": (
        dict(batch_group_count=2), ShapeError, r"batch_group_count = 2 must divide the 2 outputs .* the batch 1 of lhs",
    ),
    "two kinds of groups": (
        dict(feature_group_count=2, batch_group_count=2), AttributeRuleError,
        "feature_group_count is 2 and batch_group_count 2; one of them must be 1",
    ),
    "letters": (
        dict(dimension_numbers=("NHC", "OIHW", "NCHW")), ShapeError,
        r"dimension_numbers \('NHC', 'OIHW', 'NCHW'\) do not fit lhs \[1, 4, 6, 6\] and rhs \[2, 4, 3, 3\]: ",
    ),
    "sharding": (dict(out_sharding="here"), AttributeRuleError, "out_sharding is here, .*; use jax.shard_map"),
    "type": (
        dict(preferred_element_type=jnp.int32), DtypeError, "preferred_element_type is .*, but inputs of f32 give f32",
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", MISTAKES)
def test_what_does_not_belong_to_the_family_is_refused(name):
    changed, kind, words = MISTAKES[name]
    keywords = dict(window_strides=(1, 1), padding="VALID") | changed
    if "lhs_dilation" in changed and "padding" not in changed:
        keywords["padding"] = ((0, 0), (0, 0))
    with pytest.raises(kind, match=words):
        cj.conv_general_dilated(jnp.zeros(LHS), jnp.zeros(RHS), **keywords)


def test_shapes_that_cannot_be():
    with pytest.raises(ShapeError, match=r"lhs \[2, 3\] has no spatial axis; .*, or use jax.lax.dot_general"):
        cj.conv_general_dilated(jnp.zeros((2, 3)), jnp.zeros((4, 3)), (), ())
    with pytest.raises(ShapeError, match=r"rhs \[4, 3, 0\] has no taps"):
        cj.conv_general_dilated(jnp.zeros((2, 3, 5)), jnp.zeros((4, 3, 0)), (1,), "VALID")
