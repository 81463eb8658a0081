"""From a plan to LLVM IR."""

from convgrad.codegen.data import lower_data
from convgrad.codegen.module import KernelModule
from convgrad.codegen.weights import lower_weights
from convgrad.plan.choose import Plan
from convgrad.plan.data import DataPlan


def lower(plan: Plan) -> KernelModule:
    """The module of any plan."""
    return lower_data(plan) if isinstance(plan, DataPlan) else lower_weights(plan)
