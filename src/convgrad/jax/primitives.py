"""The primitives that JAX knows: a problem solved, alone, with a bias, or with the gradient of a bias.

Their rules are in `derivatives` and `batching`; here is how they are called and evaluated.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cache, partial
from typing import Any

import jax
import jax.numpy as jnp
from jax.extend.core import Primitive
from jax.interpreters import mlir
from jax.sharding import NamedSharding, PartitionSpec

from convgrad.dtypes import numpy_dtype
from convgrad.errors import ConvError
from convgrad.jax.layouts import given_names, shape_of
from convgrad.jax.targets import target_of, text_of
from convgrad.problem.conv import ConvProblem

solve_p = Primitive("convgrad_solve")  # operands: the given tensors, in the order x, w, y
solve_with_bias_p = Primitive("convgrad_solve_with_bias")  # and the bias, of one axis
solve_pair_p = Primitive("convgrad_solve_pair")  # gives w, and the sums of a given tensor over all but its channels
solve_pair_p.multiple_results = True


def solve(problem: ConvProblem, first: Any, second: Any, bias: Any = None) -> jax.Array:
    """The unknown of a problem from arrays in the shapes of `layouts.shape_of`."""
    if bias is None:
        return solve_p.bind(*_vary_alike(first, second), problem=problem)
    return solve_with_bias_p.bind(*_vary_alike(first, second, bias), problem=problem)


def solve_pair(problem: ConvProblem, x: Any, y: Any) -> tuple[jax.Array, jax.Array]:
    """The weights gradient, and the bias gradient that the problem asks for."""
    weights, bias = solve_pair_p.bind(*_vary_alike(x, y), problem=problem)
    return weights, bias


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


def _abstract(first: Any, second: Any, *bias: Any, problem: ConvProblem) -> Any:
    for operand, name in zip((first, second), given_names(problem), strict=True):
        assert operand.shape == shape_of(problem, name), (operand.shape, name, str(problem))

    def result(shape: tuple[int, ...]) -> Any:
        sharding = NamedSharding(first.sharding.mesh, PartitionSpec(*(None,) * len(shape)))
        dtype = numpy_dtype(problem.out_dtype)
        return first.update(shape=shape, dtype=dtype, weak_type=False, sharding=sharding)

    solved = result(shape_of(problem, problem.solved))
    return [solved, result((problem.bias_length,))] if problem.bias_gradient else solved


def _evaluate(primitive: Primitive, *operands: Any, problem: ConvProblem) -> Any:
    if jax.config.jax_disable_jit:  # a call into XLA is always a compiled one
        with jax.disable_jit(False):
            return _compiled(primitive, problem)(*operands)
    return _compiled(primitive, problem)(*operands)


@cache
def _compiled(primitive: Primitive, problem: ConvProblem) -> Callable[..., Any]:
    return jax.jit(lambda *operands: primitive.bind(*operands, problem=problem))


def _lower(context: Any, *operands: Any, problem: ConvProblem) -> Any:
    result = context.avals_out[0]
    if 0 in result.shape:  # nothing to compute is no problem; a pair is never asked for then
        zeros = mlir.lower_fun(lambda *_: jnp.zeros(result.shape, result.dtype), multiple_results=False)
        return zeros(context, *operands)
    rule = jax.ffi.ffi_lowering(target_of(problem))
    return rule(context, *operands, problem=text_of(problem))


def _refuse(context: Any, *operands: Any, problem: ConvProblem) -> Any:
    platforms = context.platforms or context.module_context.platforms
    raise ConvError(
        f"{problem}: the program is lowered for {', '.join(platforms)}, but kernels are compiled for the CPU; place "
        "its arrays on jax.devices('cpu')"
    )


for _primitive in (solve_p, solve_with_bias_p, solve_pair_p):
    _primitive.def_abstract_eval(_abstract)
    _primitive.def_impl(partial(_evaluate, _primitive))
    mlir.register_lowering(_primitive, _refuse)
    mlir.register_lowering(_primitive, _lower, platform="cpu")
