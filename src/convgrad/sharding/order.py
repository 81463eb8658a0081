"""Parts that have the bits of the whole on every unit: they sum in the order that the whole is summed in."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from functools import lru_cache

from convgrad import settings
from convgrad.plan.strides import row_major
from convgrad.problem.canonicalize import canonicalize
from convgrad.runtime.orders import order_of
from convgrad.spec.resolve import Resolved

Ints = tuple[int, ...]


@contextmanager
def in_order_of(
    whole: Resolved, dtype: str = "f32", *, strides: Sequence[Ints] | None = None, fpmath_mode: str | None = None
) -> Iterator[None]:
    """Calls in the `with` sum in the order in which the whole operation is summed by the machine they run on.

    whole        the operation, `ShardPlan.problem`
    dtype        of its inputs and of the output: f32, bf16, f16 or f64
    strides      of its inputs without the bias, and of its output, in elements; dense if they are not given
    fpmath_mode  that of the surroundings if it is None

    The order is that of the fastest plan for the whole operation: which unit multiplies, along what it adds up, and how
    many channels come between two taps. A call that has no such plan takes its own. Sums of gradients in weights run
    over extents, so they have no such order, and nothing is asked for. It plans the whole operation, some milliseconds,
    once.
    """
    mode = fpmath_mode or settings.fpmath_mode()
    with settings.ordered(_order(whole, dtype, None if strides is None else tuple(map(tuple, strides)), mode)):
        yield


@lru_cache(maxsize=4096)
def _order(whole: Resolved, dtype: str, strides: tuple[Ints, ...] | None, mode: str) -> str:
    *inputs, output = strides or (row_major(shape, 1) for shape in (*whole.input_shapes[:2], whole.output_shape))
    problem = canonicalize(
        whole,
        input_strides=inputs,
        output_strides=output,
        dtype=dtype,
        out_dtype=dtype,
        bias_stride=1 if len(whole.input_shapes) > 2 else None,
        fpmath_mode=mode,
    )
    return order_of(problem)
