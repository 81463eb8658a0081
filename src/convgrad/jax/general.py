"""`conv_general_dilated` by the kernels of convgrad: the function that models in JAX call.

A convolution with a stride solves Φ for y. One that dilates its left side is a transposed convolution: it solves Φ for
x, with the taps in reverse. What has a stride and a dilated left side at once is neither.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp

from convgrad.arrays.view import dense_strides
from convgrad.errors import AttributeRuleError, ConvError, ShapeError
from convgrad.jax.arguments import arrays_of, common_dtype, mode_of, result_dtype
from convgrad.jax.layouts import given_names, shape_of
from convgrad.jax.primitives import solve
from convgrad.problem.conv import ConvProblem, Unknown
from convgrad.spec.attributes import integer, integers
from convgrad.values import frozen

OP = "conv_general_dilated"
Ints = tuple[int, ...]


def conv_general_dilated(
    lhs: Any,
    rhs: Any,
    window_strides: Sequence[int],
    padding: str | Sequence[tuple[int, int]],
    lhs_dilation: Sequence[int] | None = None,
    rhs_dilation: Sequence[int] | None = None,
    dimension_numbers: Any = None,
    feature_group_count: int = 1,
    batch_group_count: int = 1,
    precision: Any = None,
    preferred_element_type: Any = None,
    out_sharding: Any = None,
) -> jax.Array:
    """`jax.lax.conv_general_dilated`: the same arguments, the same result.

    lhs and rhs hold f32, bf16, f16 or f64, both the same. Layouts are whatever `dimension_numbers` says, and none of
    them costs a copy. `precision` has no effect: 16-bit types are summed in f32 and rounded once, f32 stays f32 unless
    `convgrad.fpmath_mode` says otherwise while the program is traced.

    Raises a ConvError, while tracing, for what does not belong to the family: a stride together with a dilated lhs;
    other types; a result of another type than that of the inputs, or f32 for 16 bits; an `out_sharding`.
    """
    if out_sharding is not None:
        raise AttributeRuleError(f"{OP}: out_sharding is {out_sharding}, but calls are not cut up; use jax.shard_map")
    named = list(zip(("lhs", "rhs"), arrays_of(OP, (("lhs", lhs), ("rhs", rhs))), strict=True))
    dtype = common_dtype(OP, named)
    out_dtype = result_dtype(OP, "preferred_element_type", dtype, preferred_element_type)
    (_, left), (_, right) = named
    axes = _Axes.read(left.shape, right.shape, dimension_numbers)
    geometry = axes.geometry(left.shape, right.shape, window_strides, padding, lhs_dilation, rhs_dilation)
    groups = axes.groups(left.shape, right.shape, feature_group_count, batch_group_count)
    if any(g.lhs_dilation > 1 for g in geometry):
        right = jnp.flip(right, [axis for axis in axes.rhs[2:] if right.shape[axis] > 1])
    shape = [0] * left.ndim
    sizes = (left.shape[axes.lhs[0]] // groups.of_batch, right.shape[axes.rhs[0]], *(g.out for g in geometry))
    for axis, extent in zip(axes.out, sizes, strict=True):
        shape[axis] = extent
    problem = _problem(axes, geometry, groups, left.shape, right.shape, tuple(shape), dtype, out_dtype)
    side = "y" if problem.unknown is Unknown.X else "x"  # of lhs
    given = [(left if name == side else right).reshape(shape_of(problem, name)) for name in given_names(problem)]
    return solve(problem, *given).reshape(shape)


@frozen(kw_only=True)
class _Groups:
    """At most one of the two is more than 1."""

    of_features: int
    of_batch: int

    @property
    def count(self) -> int:
        return self.of_features * self.of_batch


@frozen(kw_only=True)
class _Geometry:
    """One spatial axis, reduced: a stride of windows that there is one of, or a dilation of one element, is 1."""

    extent: int  # of lhs
    taps: int
    out: int
    stride: int
    lhs_dilation: int
    rhs_dilation: int
    low: int


@frozen(kw_only=True)
class _Axes:
    """Where batch, features and spatial axes lie in lhs and out, and outputs, inputs and taps in rhs."""

    lhs: Ints
    rhs: Ints
    out: Ints

    @classmethod
    def read(cls, lhs: Ints, rhs: Ints, numbers: Any) -> _Axes:
        try:
            found = jax.lax.conv_dimension_numbers(lhs, rhs, numbers)
        except (TypeError, ValueError, KeyError) as error:
            raise ShapeError(
                f"{OP}: dimension_numbers {numbers!r} do not fit lhs {list(lhs)} and rhs {list(rhs)}: {error}"
            ) from None
        axes = cls(lhs=tuple(found.lhs_spec), rhs=tuple(found.rhs_spec), out=tuple(found.out_spec))
        if len(lhs) < 3:
            raise ShapeError(
                f"{OP}: lhs {list(lhs)} has no spatial axis; give one more axis, or use jax.lax.dot_general"
            )
        return axes

    def groups(self, lhs: Ints, rhs: Ints, of_features: Any, of_batch: Any) -> _Groups:
        groups = _Groups(
            of_features=integer(OP, "feature_group_count", of_features, least=1),
            of_batch=integer(OP, "batch_group_count", of_batch, least=1),
        )
        batch, features = (lhs[axis] for axis in self.lhs[:2])
        outputs, inputs = (rhs[axis] for axis in self.rhs[:2])
        if min(groups.of_features, groups.of_batch) > 1:
            raise AttributeRuleError(
                f"{OP}: feature_group_count is {of_features} and batch_group_count {of_batch}; one of them must be 1"
            )
        if features != inputs * groups.of_features:
            raise ShapeError(
                f"{OP}: lhs {list(lhs)} has {features} features, but rhs {list(rhs)} takes {inputs} in each of "
                f"feature_group_count = {of_features} groups; check dimension_numbers and feature_group_count"
            )
        if outputs % groups.count or batch % groups.of_batch:
            raise ShapeError(
                f"{OP}: feature_group_count = {of_features} and batch_group_count = {of_batch} must divide the "
                f"{outputs} outputs of rhs {list(rhs)}, and the latter the batch {batch} of lhs {list(lhs)}"
            )
        return groups

    def geometry(self, lhs, rhs, strides, padding, lhs_dilation, rhs_dilation) -> list[_Geometry]:
        """Every spatial axis, checked; it can be written with a stride or with a dilated lhs, not with both."""
        rank = len(lhs) - 2
        extents, taps = [lhs[axis] for axis in self.lhs[2:]], [rhs[axis] for axis in self.rhs[2:]]
        steps = _list("window_strides", strides, rank)
        spread = (1,) * rank if lhs_dilation is None else _list("lhs_dilation", lhs_dilation, rank)
        apart = (1,) * rank if rhs_dilation is None else _list("rhs_dilation", rhs_dilation, rank)
        reaches = [d * (k - 1) + 1 if k else 0 for k, d in zip(taps, apart, strict=True)]
        pads = _pads(padding, extents, reaches, steps, spread)
        found = []
        for x, k, s, a, d, reach, (low, high) in zip(extents, taps, steps, spread, apart, reaches, pads, strict=True):
            if k == 0:
                raise ShapeError(f"{OP}: rhs {list(rhs)} has no taps; give extents above 0")
            padded = (a * (x - 1) + 1 if x else 0) + low + high
            if padded < 0:
                raise ShapeError(f"{OP}: pads of {low} and {high} cut {padded - low - high} elements down to {padded}")
            out = max(0, (padded - reach) // s + 1)
            found.append(
                _Geometry(
                    extent=x,
                    taps=k,
                    out=out,
                    stride=s if out > 1 else 1,
                    lhs_dilation=a if x > 1 else 1,
                    rhs_dilation=d,
                    low=low,
                )
            )
        if any(g.lhs_dilation > 1 for g in found) and any(g.stride > 1 for g in found):
            raise ConvError(
                f"{OP}: window_strides {list(steps)} with lhs_dilation {list(spread)} are neither a convolution nor a "
                "transposed one, of which convgrad has kernels; make one of them all ones, or call "
                "jax.lax.conv_general_dilated"
            )
        return found


def _problem(
    axes: _Axes,
    geometry: list[_Geometry],
    groups: _Groups,
    lhs: Ints,
    rhs: Ints,
    out: Ints,
    dtype: str,
    out_dtype: str,
) -> ConvProblem:
    """Solve for y with lhs as x; where lhs is dilated, for x with lhs as y."""
    transposed = any(g.lhs_dilation > 1 for g in geometry)
    outputs = rhs[axes.rhs[0]] // groups.count
    inputs = rhs[axes.rhs[1]]
    batch = out[axes.out[0]]
    n, f, *left = _strides(lhs, axes.lhs)
    o, i, *taps = _strides(rhs, axes.rhs)
    m, h, *made = _strides(out, axes.out)
    left_strides = (n, batch * n if groups.of_batch > 1 else inputs * f, f, *left)
    out_strides = (m, outputs * h, h, *made)
    extents, outs = tuple(g.extent for g in geometry), tuple(g.out for g in geometry)
    lows = (g.rhs_dilation * (g.taps - 1) - g.low if transposed else g.low for g in geometry)
    problem = ConvProblem(
        unknown=Unknown.X if transposed else Unknown.Y,
        batch=batch,
        groups=groups.count,
        x_channels=outputs if transposed else inputs,
        y_channels=inputs if transposed else outputs,
        x_extent=outs if transposed else extents,
        y_extent=extents if transposed else outs,
        taps=tuple(g.taps for g in geometry),
        stride=tuple(g.lhs_dilation if transposed else g.stride for g in geometry),
        dilation=tuple(g.rhs_dilation for g in geometry),
        pad_low=tuple(lows),
        x_strides=out_strides if transposed else left_strides,
        w_strides=(outputs * o, i, o, *taps) if transposed else (outputs * o, o, i, *taps),
        y_strides=left_strides if transposed else out_strides,
        dtype=dtype,
        out_dtype=out_dtype,
        fpmath_mode=mode_of(OP, None) if dtype == "f32" else "strict",
    )
    problem.validate()
    return problem


def _strides(shape: Ints, axes: Ints) -> list[int]:
    strides = dense_strides(shape)
    return [strides[axis] for axis in axes]


def _list(name: str, values: Any, rank: int) -> Ints:
    numbers = integers(OP, name, values, least=1)
    if len(numbers) != rank:
        raise ShapeError(
            f"{OP}: {name} has {len(numbers)} entries, {list(numbers)}, but the tensors have {rank} spatial axes; give "
            f"{rank} entries"
        )
    return numbers


def _pads(padding: Any, extents: list[int], reaches: list[int], strides: Ints, spread: Ints) -> list[tuple[int, int]]:
    if isinstance(padding, str):
        if set(spread) != {1}:
            raise AttributeRuleError(
                f"{OP}: padding is {padding!r}, whose meaning is not fixed with lhs_dilation {list(spread)}; give "
                "pairs of numbers"
            )
        try:
            return jax.lax.padtype_to_pads(extents, reaches, strides, padding)
        except (RuntimeError, TypeError, ValueError) as error:
            raise AttributeRuleError(f"{OP}: padding is {padding!r}: {error}; give SAME, SAME_LOWER or VALID") from None
    try:
        pairs = [(int(low.__index__()), int(high.__index__())) for low, high in padding]
    except (AttributeError, TypeError, ValueError):
        raise AttributeRuleError(
            f"{OP}: padding is {padding!r}; give SAME, SAME_LOWER, VALID, or a pair of integers for each spatial axis"
        ) from None
    if len(pairs) != len(extents):
        raise ShapeError(
            f"{OP}: padding has {len(pairs)} pairs, {pairs}, but the tensors have {len(extents)} spatial axes; give "
            f"{len(extents)} pairs"
        )
    return pairs
