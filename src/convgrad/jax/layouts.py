"""Tensors of a problem as JAX holds them: dense, one axis for each index of Φ that takes more than one value.

An axis of one element has no place in memory, so it has none in these arrays either, and an index along which a tensor
repeats (stride 0, as in the x of BiasAddBackward) has none. What is left is told by the strides alone: the axes of the
problem from the largest stride to the smallest.
"""

from __future__ import annotations

from collections.abc import Sequence

from convgrad.problem.conv import ConvProblem, Unknown
from convgrad.values import replace

Ints = tuple[int, ...]

NAMES = ("x", "w", "y")
LETTERS = {"x": "ngc", "w": "gkc", "y": "ngk"}  # the first three axes; those behind are spatial, or taps
COUNTS = {"n": "batch", "g": "groups", "c": "x_channels", "k": "y_channels"}


def given_names(problem: ConvProblem) -> tuple[str, str]:
    """The two tensors that are given, in the order of the operands."""
    first, second = (name for name in NAMES if name != problem.solved)
    return first, second


def order_of(problem: ConvProblem, name: str) -> Ints:
    """The axes of Φ's tensor that the array has, outermost first."""
    shape, strides = problem.shapes[name], problem.strides[name]
    axes = [axis for axis, extent in enumerate(shape) if extent != 1 and strides[axis] != 0]
    return tuple(sorted(axes, key=lambda axis: -strides[axis]))


def shape_of(problem: ConvProblem, name: str) -> Ints:
    """The shape of the array."""
    shape = problem.shapes[name]
    return tuple(shape[axis] for axis in order_of(problem, name))


def with_orders(problem: ConvProblem, orders: dict[str, Sequence[int]]) -> ConvProblem:
    """The problem on dense arrays whose axes lie in these orders."""
    fields = {}
    for name, order in orders.items():
        shape, strides, step = problem.shapes[name], [0] * len(problem.strides[name]), 1
        for axis in reversed(order):
            strides[axis] = step
            step *= max(shape[axis], 1)
        fields[f"{name}_strides"] = tuple(strides)
    return replace(problem, **fields)


def derivative(problem: ConvProblem, name: str, dtype: str, out_dtype: str) -> ConvProblem:
    """∂Φ/∂name on the same arrays, and nothing besides."""
    return replace(
        problem,
        unknown=Unknown(name),
        bias=False,
        bias_stride=1,
        bias_gradient="",
        accumulate=False,
        dtype=dtype,
        out_dtype=out_dtype,
    )


def bare(problem: ConvProblem) -> ConvProblem:
    """The problem without a bias, or without its gradient."""
    return derivative(problem, problem.solved, problem.dtype, problem.out_dtype)


def spreading(problem: ConvProblem, name: str) -> ConvProblem:
    """Solve for tensor `name` of a problem from a bias alone: its product with an x that is one everywhere.

    Solved for w, it is BiasAddBackward.
    """
    batch, groups, channels, *extent = problem.shapes[name]
    ones, zeros = (1,) * len(extent), (0,) * len(extent)
    return ConvProblem(
        unknown=Unknown.Y,
        batch=batch,
        groups=groups,
        x_channels=1,
        y_channels=channels,
        x_extent=tuple(extent),
        y_extent=tuple(extent),
        taps=ones,
        stride=ones,
        dilation=ones,
        pad_low=zeros,
        x_strides=(0, 0, 0, *zeros),
        w_strides=(channels if groups > 1 else 0, 1 if channels > 1 else 0, 0, *zeros),
        y_strides=problem.strides[name],
        dtype=problem.dtype,
        out_dtype=problem.out_dtype,
    )
