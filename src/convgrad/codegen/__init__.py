"""From a plan to LLVM IR."""

from convgrad.codegen.data import lower_data
from convgrad.codegen.module import KernelModule
from convgrad.plan import Plan


def lower(plan: Plan) -> KernelModule:
    """The module of any plan."""
    return lower_data(plan)


__all__ = ["lower"]
