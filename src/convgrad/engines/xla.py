"""JAX: one convolution, and its transposes in the image and in the weights."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from convgrad.dtypes import numpy_dtype
from convgrad.engines.interface import Engine, Task, Unsupported
from convgrad.problem.canonicalize import ROLES
from convgrad.spec.resolve import Resolved

_LETTERS = "DHW"


class Jax(Engine):
    """The operation under jax.jit, compiled ahead; a call ends when the result is there."""

    @staticmethod
    def version() -> str:
        """Of jax."""
        return jax.__version__

    def __init__(self, task: Task, threads: int) -> None:
        """Trace and compile. XLA takes as many threads as the process has CPUs, so the process must be bound."""
        if task.out_dtype != task.dtype:
            raise Unsupported(f"the convolutions of JAX make no {task.out_dtype} of {task.dtype}")
        resolved = task.resolved
        if resolved.rank > len(_LETTERS):
            raise Unsupported(f"JAX's dimension numbers are given for up to {len(_LETTERS)} spatial axes here")
        if resolved.weights_convention != "library" and resolved.groups > 1:
            raise Unsupported("JAX has no grouped weights of I = IC/groups on the window side")
        jax.config.update("jax_platforms", "cpu")
        jax.config.update("jax_enable_x64", task.dtype == "f64")
        dtype = numpy_dtype(task.dtype)
        shapes = [jax.ShapeDtypeStruct(shape, dtype) for shape in resolved.input_shapes]
        self._run = jax.jit(_function(resolved, dtype)).lower(*shapes).compile()
        self._inputs: list[Any] = []
        self._result: Any = None

    def load(self, inputs: Sequence[np.ndarray]) -> None:
        """Copy to JAX's own memory."""
        self._inputs = [jnp.asarray(array) for array in inputs]

    def call(self) -> None:
        """JAX allocates the result."""
        self._result = self._run(*self._inputs).block_until_ready()

    def output(self) -> np.ndarray:
        """As numpy sees it."""
        return np.array(self._result)


def _function(resolved: Resolved, dtype: np.dtype) -> Callable[..., Any]:
    """Every operation is one convolution y = C(x, w), or its transpose in x or in w."""
    if resolved.op == "BiasAddBackward":
        channel = 1 if resolved.data_format == "NCX" else resolved.rank + 1
        axes = tuple(axis for axis in range(resolved.rank + 2) if axis != channel)
        return lambda y: jnp.sum(y, axes)
    made = ROLES[resolved.op][2]
    shape = jax.ShapeDtypeStruct(resolved.output_shape, dtype)

    def solve(a, b, bias=None):
        given = dict(zip(ROLES[resolved.op], (a, b), strict=False))
        if made == "y":
            result = _convolve(resolved, given["x"], given["w"])
        elif made == "x":
            (result,) = jax.linear_transpose(lambda x: _convolve(resolved, x, given["w"]), shape)(given["y"])
        else:
            (result,) = jax.linear_transpose(lambda w: _convolve(resolved, given["x"], w), shape)(given["y"])
        if bias is None:
            return result
        return result + (bias.reshape(-1, *(1,) * resolved.rank) if resolved.data_format == "NCX" else bias)

    return solve


def _convolve(resolved: Resolved, x: Any, w: Any) -> Any:
    """The window side from the image side; pads at the end are what the window extent asks for."""
    axes = zip(
        resolved.image_extent, resolved.window_extent, resolved.kernel, resolved.strides, resolved.dilations,
        resolved.pads_begin, strict=True,
    )  # fmt: skip
    pads = [(low, s * (p - 1) + d * (k - 1) + 1 - low - image) for image, p, k, s, d, low in axes]
    spatial = _LETTERS[-resolved.rank :]
    data = resolved.data_format.replace("X", spatial)
    letters = resolved.weights_format
    if resolved.op.startswith("ConvTranspose"):  # I is the window side there
        letters = letters.translate(str.maketrans("OI", "IO"))
    return jax.lax.conv_general_dilated(
        x, w, resolved.strides, pads, rhs_dilation=resolved.dilations, feature_group_count=resolved.groups,
        dimension_numbers=(data, letters.replace("X", spatial), data),
    )  # fmt: skip


ENGINE = Jax
