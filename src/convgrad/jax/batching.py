"""vmap: an axis that is mapped over becomes part of an axis that Φ has, so that one kernel does all of it.

Of the three tensors of Φ two or three have the mapped axis: the result, and one or both of the given. Two of them share
exactly one index that the third lacks (n, c or k), and three share g. The mapped axis becomes the outer part of that
index, which costs a copy only where the two do not lie side by side; where the index took one value only, it simply is
the mapped axis, wherever that lies.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp
from jax.interpreters import batching

from convgrad.dtypes import numpy_dtype
from convgrad.jax.derivatives import sums
from convgrad.jax.layouts import COUNTS, LETTERS, bare, given_names, order_of, shape_of, with_orders
from convgrad.jax.primitives import solve, solve_p, solve_pair_p, solve_with_bias_p
from convgrad.problem.conv import ConvProblem
from convgrad.values import replace

SHARED_WITHOUT = {"x": "k", "w": "n", "y": "c"}  # the index of the two others


class Fold:
    """A problem with an axis of `size` folded into it, and what that does to arrays."""

    def __init__(self, problem: ConvProblem, size: int, mapped: Sequence[bool]) -> None:
        """`mapped` tells which of the two given tensors have the axis; one of them at least."""
        names = given_names(problem)
        kept = [name for name, has_axis in zip(names, mapped, strict=True) if not has_axis]
        # A given tensor of one element takes part in no index: then g serves, along which that tensor repeats.
        self.letter = "g" if not kept or not order_of(problem, kept[0]) else SHARED_WITHOUT[kept[0]]
        self.before, self.size = problem, size
        count = COUNTS[self.letter]
        self.extent = getattr(problem, count)
        self._after = replace(problem, **{count: self.extent * size})
        self._orders: dict[str, Sequence[int]] = {kept[0]: ()} if kept and self.letter == "g" else {}

    @property
    def problem(self) -> ConvProblem:
        """Known when all given tensors have been folded."""
        unknown = self.before.solved
        order = list(order_of(self.before, unknown))
        if self.extent == 1:
            order.insert(0, self._axis(unknown))
        return with_orders(self._after, {**self._orders, unknown: order})

    def fold(self, name: str, array: Any, at: int) -> Any:
        """A given tensor that has the mapped axis at `at`."""
        order, axis = list(order_of(self.before, name)), self._axis(name)
        if self.extent == 1:
            order.insert(at, axis)
        else:
            place = order.index(axis)
            array = jnp.moveaxis(array, at, place)
            shape = array.shape
            array = array.reshape(*shape[:place], self.size * self.extent, *shape[place + 2 :])
        self._orders[name] = order
        return array

    def unfold(self, array: Any) -> tuple[Any, int]:
        """The result, and where it has the mapped axis."""
        unknown = self.before.solved
        order = list(order_of(self.before, unknown))
        place = 0 if self.extent == 1 else order.index(self._axis(unknown))
        shape = list(shape_of(self.before, unknown))
        shape.insert(place, self.size)
        return array.reshape(shape), place

    def fold_bias(self, bias: Any, at: int | None) -> Any:
        """The bias of all; one that is not mapped is repeated."""
        if self.letter == "n":
            assert at is None, "a bias that is mapped over asks for weights that are"
            return bias
        groups, channels = self.before.groups, bias.shape[-1 if at is None else 1 - at] // self.before.groups
        one = (groups, channels)
        bias = jnp.broadcast_to(bias, (self.size, *bias.shape)) if at is None else jnp.moveaxis(bias, at, 0)
        bias = bias.reshape(self.size, *one)
        return (bias if self.letter == "g" else jnp.moveaxis(bias, 0, 1)).reshape(-1)

    def _axis(self, name: str) -> int:
        return LETTERS[name].index(self.letter)


def _batch(operands: tuple[Any, ...], places: tuple[Any, ...], *, problem: ConvProblem) -> tuple[Any, int]:
    first, second, *bias = operands
    names = given_names(problem)
    size = next(o.shape[place] for o, place in zip(operands, places, strict=True) if place is not None)
    if size == 0:
        return jnp.zeros((0, *shape_of(problem, problem.solved)), numpy_dtype(problem.out_dtype)), 0
    at = dict(zip((*names, "bias"), places, strict=False))
    given = dict(zip(names, (first, second), strict=True))
    if at.get("bias") is not None and at["w"] is None:  # a bias of each goes with weights of each
        given["w"], at["w"] = jnp.broadcast_to(given["w"], (size, *given["w"].shape)), 0
    fold = Fold(problem, size, [at[name] is not None for name in names])
    folded = [given[name] if at[name] is None else fold.fold(name, given[name], at[name]) for name in names]
    biases = [fold.fold_bias(b, at["bias"]) for b in bias]
    shapes = [shape_of(fold.problem, name) for name in names]  # as they are, but for tensors without elements
    return fold.unfold(solve(fold.problem, *(a.reshape(s) for a, s in zip(folded, shapes, strict=True)), *biases))


def _batch_pair(operands: tuple[Any, ...], places: tuple[Any, ...], *, problem: ConvProblem) -> tuple[Any, Any]:
    """Apart: the two results need not have the mapped axis both, nor in one place."""

    def apart(x: Any, y: Any) -> tuple[Any, Any]:
        return solve(bare(problem), x, y), sums(problem, x if problem.bias_gradient == "x" else y)

    return jax.vmap(apart, in_axes=places)(*operands), (0, 0)


batching.primitive_batchers[solve_p] = _batch
batching.primitive_batchers[solve_with_bias_p] = _batch
batching.primitive_batchers[solve_pair_p] = _batch_pair
