"""In which order a problem is summed on this machine, for others that are parts of it."""

from __future__ import annotations

from functools import lru_cache
from itertools import islice

from convgrad.plan.machine import Machine, current_machine
from convgrad.problem.conv import ConvProblem
from convgrad.runtime import decisions


def order_of(problem: ConvProblem) -> str:
    """The words of the order that its kernel has, tuned or not; "" of weights, and where there is nothing to sum."""
    machine = current_machine()
    return _order_of(problem, machine, decisions.variant_of(problem, machine))


@lru_cache(maxsize=4096)
def _order_of(problem: ConvProblem, machine: Machine, variant: int) -> str:
    if 0 in problem.shapes[problem.solved]:
        return ""
    from convgrad.plan.choose import choose, variants  # here, as in `kernel`

    plan = next(islice(variants(problem, machine), variant, None), None) or choose(problem, machine)
    return plan.order
