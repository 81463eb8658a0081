"""From an operation in the user's layout to the canonical problem: formats and conventions end here, as strides."""

from __future__ import annotations

from collections.abc import Sequence

from convgrad.problem.conv import SOLVES_FOR, ConvProblem, Unknown
from convgrad.spec.resolve import Resolved
from convgrad.spec.weights import LETTERS, letter_axes

Ints = tuple[int, ...]

# What the first input, the second input and the output of an operation are in Φ. BiasAddBackward has one input: the
# sum over y is the gradient of W against an x that is one everywhere, a single element that all strides of x repeat.
ROLES: dict[str, tuple[str, str, str]] = {
    "Convolution": ("x", "w", "y"),
    "ConvolutionBackwardData": ("y", "w", "x"),
    "ConvolutionBackwardWeights": ("x", "y", "w"),
    "ConvTranspose": ("y", "w", "x"),
    "ConvTransposeBackwardData": ("x", "w", "y"),
    "ConvTransposeBackwardWeights": ("y", "x", "w"),
    "BiasAddBackward": ("y", "x", "w"),
}


def canonicalize(
    resolved: Resolved,
    *,
    input_strides: Sequence[Ints],
    output_strides: Ints,
    dtype: str,
    out_dtype: str,
    bias_stride: int | None = None,
    accumulate: bool = False,
    fpmath_mode: str = "strict",
    order: str = "",
) -> ConvProblem:
    """The problem whose kernel computes the operation on tensors of these strides.

    Strides count elements, in the axis order of the user: of the inputs except the bias, and of the output.
    `bias_stride` is None without a bias; for a weights gradient it is that of the bias gradient, the sums of diff_dst,
    which is computed along; it has no `order`, since its sums run over extents. Nothing is ever copied for a layout:
    the group axis is split off the channel axis that counts all channels by stride arithmetic.
    """
    if resolved.op == "BiasAddBackward":
        return _bias_problem(resolved, input_strides[0], output_strides, dtype, out_dtype, accumulate)
    roles = ROLES[resolved.op]
    strides = dict(zip(roles, (*input_strides[:2], output_strides), strict=True))
    x_channels, y_channels = (n // resolved.groups for n in (resolved.image_channels, resolved.window_channels))
    unknown, has_bias = SOLVES_FOR[resolved.op], bias_stride is not None
    problem = ConvProblem(
        unknown=unknown,
        batch=resolved.batch,
        groups=resolved.groups,
        x_channels=x_channels,
        y_channels=y_channels,
        x_extent=resolved.image_extent,
        y_extent=resolved.window_extent,
        taps=resolved.kernel,
        stride=resolved.strides,
        dilation=resolved.dilations,
        pad_low=resolved.pads_begin,
        x_strides=_activation_strides(resolved.data_format, strides["x"], x_channels),
        w_strides=_weights_strides(resolved, strides["w"], x_channels, y_channels),
        y_strides=_activation_strides(resolved.data_format, strides["y"], y_channels),
        dtype=dtype,
        out_dtype=out_dtype,
        bias=has_bias and unknown is not Unknown.W,
        bias_stride=1 if bias_stride is None else bias_stride,
        bias_gradient=roles[1] if has_bias and unknown is Unknown.W else "",  # diff_dst is the second input
        accumulate=accumulate,
        fpmath_mode=fpmath_mode if dtype == "f32" else "strict",
        order="" if unknown is Unknown.W else order,
    )
    problem.validate()
    return problem


def _activation_strides(data_format: str, strides: Ints, channels: int) -> Ints:
    """Strides of (n, g, c, spatial...): global channel = g * channels + c."""
    if data_format == "NCX":
        n, c, *spatial = strides
    else:
        n, *spatial, c = strides
    return (n, channels * c, c, *spatial)


def _weights_strides(resolved: Resolved, strides: Ints, x_channels: int, y_channels: int) -> Ints:
    """Strides of (g, k, c, taps...): k runs over the window side, c over the image side."""
    axes = letter_axes(resolved.weights_format, resolved.rank)
    family = "transposed" if resolved.op.startswith("ConvTranspose") else "convolution"
    window, image = (strides[axes[letter]] for letter in LETTERS[family])
    group = y_channels * window if resolved.weights_convention == "library" else x_channels * image
    return (group, window, image, *strides[axes["X"] : axes["X"] + resolved.rank])


def _bias_problem(
    resolved: Resolved, strides: Ints, output_strides: Ints, dtype: str, out_dtype: str, accumulate: bool
) -> ConvProblem:
    """diff_bias[k] = Σ y[n, k, p] · 1, over one spatial axis of one element where there is none."""
    extent = resolved.window_extent or (1,)
    y_strides = _activation_strides(resolved.data_format, strides, resolved.window_channels)
    ones, zeros = (1,) * len(extent), (0,) * len(extent)
    problem = ConvProblem(
        unknown=Unknown.W,
        batch=resolved.batch,
        groups=1,
        x_channels=1,
        y_channels=resolved.window_channels,
        x_extent=extent,
        y_extent=extent,
        taps=ones,
        stride=ones,
        dilation=ones,
        pad_low=zeros,
        x_strides=(0, 0, 0, *zeros),
        w_strides=(0, output_strides[0], 0, *zeros),
        y_strides=y_strides if resolved.rank else (*y_strides, 0),
        dtype=dtype,
        out_dtype=out_dtype,
        accumulate=accumulate,
    )
    problem.validate()
    return problem
