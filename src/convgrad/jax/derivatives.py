"""Derivatives of the primitives, which are the primitives again, whatever the order and the mode.

A problem without a bias is bilinear: its result is one partial derivative of Φ, and each derivative of it another one.
A problem with a bias is linear in weights and bias together; its transpose gives the gradients of both from one
reading of the cotangent, and the transpose of that is a problem with a bias.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import reduce
from typing import Any

import jax
from jax.interpreters import ad

from convgrad.dtypes import numpy_dtype
from convgrad.jax.layouts import bare, derivative, given_names, shape_of, spreading
from convgrad.jax.primitives import one_like, solve, solve_p, solve_pair, solve_pair_p, solve_with_bias_p
from convgrad.problem.conv import ConvProblem
from convgrad.values import replace


def of_named(problem: ConvProblem, given: dict[str, Any]) -> Any:
    """Solve from tensors by name; of a pair both results."""
    operands = [given[name] for name in given_names(problem)]
    return solve_pair(problem, *operands) if problem.bias_gradient else solve(problem, *operands, given.get("bias"))


def spread(problem: ConvProblem, bias: Any) -> Any:
    """A bias alone as the result of a problem that has one."""
    alone = spreading(problem, problem.solved)
    return solve(alone, one_like(bias), bias.reshape(shape_of(alone, "w")))


def sums(problem: ConvProblem, tensor: Any) -> Any:
    """The bias gradient of a pair, by itself."""
    alone = derivative(spreading(problem, problem.bias_gradient), "w", problem.dtype, problem.out_dtype)
    return solve(alone, one_like(tensor), tensor).reshape(-1)


def _widened(problem: ConvProblem, given: dict[str, Any], solved: Callable[[ConvProblem, dict[str, Any]], Any]) -> Any:
    """Solve in the type of the result of `problem`, and give what belongs to its inputs in theirs.

    Where 16-bit tensors gave a result of f32, they are widened for that, and the gradient is rounded once.
    """
    wide = numpy_dtype(problem.out_dtype)
    results = solved(
        replace(problem, dtype=problem.out_dtype), {name: tensor.astype(wide) for name, tensor in given.items()}
    )
    return [result.astype(numpy_dtype(problem.dtype)) for result in results]


def _cotangent_rule(which: int) -> Callable[..., Any]:
    """The cotangent of an operand of `solve_p`: one more partial derivative of Φ."""

    def rule(cotangent: Any, *operands: Any, problem: ConvProblem) -> Any:
        names = given_names(problem)

        def solved(wide: ConvProblem, given: dict[str, Any]) -> Any:
            return [of_named(derivative(wide, names[which], wide.dtype, wide.dtype), given)]

        given = {names[1 - which]: operands[1 - which], problem.solved: cotangent}
        return _widened(problem, given, solved)[0]

    return rule


def _with_bias_jvp(primals: Any, tangents: Any, *, problem: ConvProblem) -> Any:
    names = (*given_names(problem), "bias")
    side = names[1 - names.index("w")]  # the tensor that is given besides w
    point = dict(zip(names, primals, strict=True))
    moves = {name: t for name, t in zip(names, tangents, strict=True) if not isinstance(t, ad.Zero)}
    parts = []
    if side in moves:
        parts.append(of_named(bare(problem), {side: moves[side], "w": point["w"]}))
    if "w" in moves:
        kind = problem if "bias" in moves else bare(problem)
        parts.append(of_named(kind, {**moves, side: point[side]}))
    elif "bias" in moves:
        parts.append(spread(problem, moves["bias"]))
    return solve_with_bias_p.bind(*primals, problem=problem), reduce(ad.add_jaxvals, parts)


def _with_bias_transpose(cotangent: Any, *operands: Any, problem: ConvProblem) -> Any:
    names = (*given_names(problem), "bias")
    given = dict(zip(names, operands, strict=True))
    side = names[1 - names.index("w")]
    linear = [name for name in names if ad.is_undefined_primal(given[name])]
    assert linear in (["w", "bias"],), "the rule above makes weights and bias tangents together"
    if isinstance(cotangent, ad.Zero):
        return [_nothing(given[name]) if name in linear else None for name in names]

    def solved(wide: ConvProblem, tensors: dict[str, Any]) -> Any:
        weights = derivative(wide, "w", wide.dtype, wide.dtype)
        pair = replace(weights, bias_gradient=problem.solved)
        if 0 in shape_of(weights, "w"):
            return of_named(weights, tensors), sums(pair, tensors[pair.bias_gradient])
        return of_named(pair, tensors)

    gradients = _widened(problem, {side: given[side], problem.solved: cotangent}, solved)
    found = dict(zip(linear, gradients, strict=True))
    return [found.get(name) for name in names]


def _pair_jvp(primals: Any, tangents: Any, *, problem: ConvProblem) -> Any:
    names = given_names(problem)
    summed = problem.bias_gradient
    side = names[1 - names.index(summed)]
    point = dict(zip(names, primals, strict=True))
    moves = {name: t for name, t in zip(names, tangents, strict=True) if not isinstance(t, ad.Zero)}
    result = solve_pair_p.bind(*primals, problem=problem)
    weights, bias = [], ad.Zero(jax.typeof(result[1]).to_tangent_aval())
    if side in moves:
        weights.append(of_named(bare(problem), {side: moves[side], summed: point[summed]}))
    if summed in moves:
        one, bias = of_named(problem, {side: point[side], summed: moves[summed]})
        weights.append(one)
    return result, [reduce(ad.add_jaxvals, weights), bias]


def _pair_transpose(cotangents: Any, *operands: Any, problem: ConvProblem) -> Any:
    """Linear in the tensor that is summed: a problem that solves for it, with a bias."""
    names = given_names(problem)
    summed = problem.bias_gradient
    given = dict(zip(names, operands, strict=True))
    side = names[1 - names.index(summed)]
    assert ad.is_undefined_primal(given[summed]), "the rule above moves the other tensor alone"
    assert problem.dtype == problem.out_dtype
    of_weights, of_bias = cotangents
    forward = derivative(problem, summed, problem.dtype, problem.out_dtype)
    if isinstance(of_weights, ad.Zero) and isinstance(of_bias, ad.Zero):
        found = _nothing(given[summed])
    elif isinstance(of_bias, ad.Zero):
        found = of_named(forward, {side: given[side], "w": of_weights})
    elif isinstance(of_weights, ad.Zero):
        found = spread(forward, of_bias)
    else:
        found = of_named(replace(forward, bias=True), {side: given[side], "w": of_weights, "bias": of_bias})
    return [found if name == summed else None for name in names]


def _nothing(operand: Any) -> ad.Zero:
    """The cotangent of an operand on which nothing depends."""
    return ad.Zero(operand.aval.to_ct_aval())


ad.defbilinear(solve_p, _cotangent_rule(0), _cotangent_rule(1))
ad.primitive_jvps[solve_with_bias_p] = _with_bias_jvp
ad.primitive_transposes[solve_with_bias_p] = _with_bias_transpose
ad.primitive_jvps[solve_pair_p] = _pair_jvp
ad.primitive_transposes[solve_pair_p] = _pair_transpose
