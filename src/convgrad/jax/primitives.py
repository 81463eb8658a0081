"""The primitives that JAX knows: a problem solved, with and without a bias.

`solve_p` is bilinear: its result is one partial derivative of Φ, and each derivative of it is another one. So its rules
never leave the family, whatever the order and the mode of differentiation.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cache, partial
from typing import Any

import jax
import jax.numpy as jnp
from jax.extend.core import Primitive
from jax.interpreters import ad, batching, mlir
from jax.sharding import NamedSharding, PartitionSpec

from convgrad.dtypes import numpy_dtype
from convgrad.errors import ConvError
from convgrad.jax.folding import Fold
from convgrad.jax.layouts import derivative, given_names, shape_of
from convgrad.jax.targets import target_of, text_of
from convgrad.problem.conv import ConvProblem, Unknown

solve_p = Primitive("convgrad_solve")  # operands: the given tensors, in the order x, w, y
solve_with_bias_p = Primitive("convgrad_solve_with_bias")  # and the bias


def solve(problem: ConvProblem, first: Any, second: Any, bias: Any = None) -> jax.Array:
    """The unknown of a problem from arrays in the shapes of `layouts.shape_of`."""
    operands = _vary_alike(first, second) if bias is None else _vary_alike(first, second, bias)
    return (solve_p if bias is None else solve_with_bias_p).bind(*operands, problem=problem)


def one_like(array: Any) -> jax.Array:
    """The x of BiasAddBackward: a single one."""
    return jnp.ones((), array.dtype)


def _vary_alike(*operands: Any) -> list[Any]:
    """Inside a shard_map: every operand varies over the axes of the mesh that any of them varies over."""
    varying = [_varying(operand) for operand in operands]
    union = frozenset().union(*varying)
    return [
        jax.lax.pcast(operand, tuple(union - own), to="varying") if union - own else operand
        for operand, own in zip(operands, varying, strict=True)
    ]


def _varying(operand: Any) -> frozenset:
    kind = jax.typeof(operand)
    return getattr(getattr(kind, "manual_axis_type", kind), "varying", None) or getattr(kind, "vma", frozenset())


# --- evaluation


def _abstract(first: Any, second: Any, *bias: Any, problem: ConvProblem) -> Any:
    for operand, name in zip((first, second), given_names(problem), strict=True):
        assert operand.shape == shape_of(problem, name), (operand.shape, name, str(problem))
    shape = shape_of(problem, problem.unknown.value)
    dtype = numpy_dtype(problem.out_dtype)
    sharding = NamedSharding(first.sharding.mesh, PartitionSpec(*(None,) * len(shape)))
    return first.update(shape=shape, dtype=dtype, weak_type=False, sharding=sharding)


def _evaluate(primitive: Primitive, *operands: Any, problem: ConvProblem) -> Any:
    return _compiled(primitive, problem)(*operands)


@cache
def _compiled(primitive: Primitive, problem: ConvProblem) -> Callable[..., Any]:
    return jax.jit(lambda *operands: primitive.bind(*operands, problem=problem))


def _lower(context: Any, *operands: Any, problem: ConvProblem) -> Any:
    (result,) = context.avals_out
    if 0 in result.shape:
        return mlir.lower_fun(lambda *_: jnp.zeros(result.shape, result.dtype), multiple_results=False)(
            context, *operands
        )
    rule = jax.ffi.ffi_lowering(target_of(problem))
    return rule(context, *operands, problem=text_of(problem))


def _refuse(context: Any, *operands: Any, problem: ConvProblem) -> Any:
    platforms = context.platforms or context.module_context.platforms
    raise ConvError(
        f"{problem}: the program is lowered for {', '.join(platforms)}, but kernels are compiled for the CPU; place "
        "its arrays on jax.devices('cpu')"
    )


# --- derivatives


def _cotangent_rule(which: int) -> Callable[..., Any]:
    """The cotangent of an operand: one more partial derivative of Φ, given the other operand and that of the result."""

    def rule(cotangent: Any, *operands: Any, problem: ConvProblem) -> Any:
        names = given_names(problem)
        name, kept, other = names[which], names[1 - which], operands[1 - which]
        if problem.dtype == problem.out_dtype:
            return _solve_named(
                derivative(problem, name, problem.dtype, problem.dtype), {kept: other, problem.unknown.value: cotangent}
            )
        # 16-bit tensors with a result of f32: what is 16 bits wide is widened, and the result rounded once.
        wide = derivative(problem, name, problem.out_dtype, problem.out_dtype)
        given = {kept: other.astype(cotangent.dtype), problem.unknown.value: cotangent}
        return _solve_named(wide, given).astype(numpy_dtype(problem.dtype))

    return rule


def _solve_named(problem: ConvProblem, given: dict[str, Any]) -> Any:
    return solve(problem, *(given[name] for name in given_names(problem)))


def _spread(problem: ConvProblem, bias: Any) -> Any:
    """A bias alone as the result: its product with an x that is one everywhere, whose transpose is BiasAddBackward."""
    batch, groups, channels, *extent = problem.shapes[problem.unknown.value]
    ones, zeros = (1,) * len(extent), (0,) * len(extent)
    spread = ConvProblem(
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
        y_strides=problem.strides[problem.unknown.value],
        dtype=problem.dtype,
        out_dtype=problem.out_dtype,
    )
    return solve(spread, one_like(bias), bias.reshape(shape_of(spread, "w")))


# --- vmap


def _batch(operands: tuple[Any, ...], places: tuple[Any, ...], *, problem: ConvProblem) -> tuple[Any, int]:
    first, second, *bias = operands
    names = given_names(problem)
    size = next(o.shape[place] for o, place in zip(operands, places, strict=True) if place is not None)
    if size == 0:
        return jnp.zeros((0, *shape_of(problem, problem.unknown.value)), numpy_dtype(problem.out_dtype)), 0
    at = dict(zip((*names, "bias"), places, strict=False))
    given = dict(zip(names, (first, second), strict=True))
    if at.get("bias") is not None and at["w"] is None:  # a bias of each goes with weights of each
        given["w"], at["w"] = jnp.broadcast_to(given["w"], (size, *given["w"].shape)), 0
    fold = Fold(problem, size, [at[name] is not None for name in names])
    folded = [given[name] if at[name] is None else fold.fold(name, given[name], at[name]) for name in names]
    biases = [fold.fold_bias(b, at["bias"]) for b in bias]
    shapes = [shape_of(fold.problem, name) for name in names]  # as they are, but for tensors without elements
    return fold.unfold(solve(fold.problem, *(a.reshape(s) for a, s in zip(folded, shapes, strict=True)), *biases))


def _tangent_rule(which: int) -> Callable[..., Any]:
    def rule(tangent: Any, *operands: Any, problem: ConvProblem) -> Any:
        if which == 2:
            return _spread(problem, tangent)
        pair = [tangent if place == which else operand for place, operand in enumerate(operands[:2])]
        return solve(derivative(problem, problem.unknown.value, problem.dtype, problem.out_dtype), *pair)

    return rule


ad.defbilinear(solve_p, _cotangent_rule(0), _cotangent_rule(1))
ad.defjvp(solve_with_bias_p, *map(_tangent_rule, range(3)))
for _primitive in (solve_p, solve_with_bias_p):
    _primitive.def_abstract_eval(_abstract)
    _primitive.def_impl(partial(_evaluate, _primitive))
    batching.primitive_batchers[_primitive] = _batch
    mlir.register_lowering(_primitive, _refuse)
    mlir.register_lowering(_primitive, _lower, platform="cpu")
