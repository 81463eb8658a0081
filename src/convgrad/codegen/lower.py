"""From a plan to LLVM IR."""

from convgrad.codegen.data import lower_data
from convgrad.codegen.folded import lower_folded
from convgrad.codegen.matrix_data import lower_matrix_data
from convgrad.codegen.matrix_weights import lower_matrix_weights
from convgrad.codegen.module import KernelModule
from convgrad.codegen.plane_data import lower_plane_data
from convgrad.codegen.plane_weights import lower_plane_weights
from convgrad.codegen.weights import lower_weights
from convgrad.codegen.window_lanes import lower_window_lanes
from convgrad.plan.choose import Plan
from convgrad.plan.data import DataPlan
from convgrad.plan.folded import FoldedPlan
from convgrad.plan.matrix import MatrixDataPlan
from convgrad.plan.matrix_weights import MatrixWeightsPlan
from convgrad.plan.plane_data import PlaneDataPlan
from convgrad.plan.plane_weights import PlaneWeightsPlan
from convgrad.plan.window_lanes import WindowLanesPlan


def lower(plan: Plan) -> KernelModule:
    """The module of any plan."""
    if isinstance(plan, MatrixDataPlan):
        return lower_matrix_data(plan)
    if isinstance(plan, MatrixWeightsPlan):
        return lower_matrix_weights(plan)
    if isinstance(plan, FoldedPlan):
        return lower_folded(plan)
    if isinstance(plan, WindowLanesPlan):
        return lower_window_lanes(plan)
    if isinstance(plan, PlaneWeightsPlan):
        return lower_plane_weights(plan)
    if isinstance(plan, PlaneDataPlan):
        return lower_plane_data(plan)
    return lower_data(plan) if isinstance(plan, DataPlan) else lower_weights(plan)
