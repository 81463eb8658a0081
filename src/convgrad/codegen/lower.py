"""From a plan to LLVM IR."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING

from convgrad.codegen.guard import guarded, lower_inside
from convgrad.codegen.module import KernelModule
from convgrad.plan.inside import InsidePlan

if TYPE_CHECKING:
    from convgrad.plan.choose import Plan

# Of a kind of plan, the module M of this folder whose `lower_M` lowers it. It is imported when such a plan is met, so a
# process that compiles a few kernels imports a third of the compiler.
LOWERINGS = {
    "DotRunPlan": "dot_runs",
    "TurnedDotPlan": "turned_dots",
    "DotDataPlan": "dot_data",
    "PairedOutputsPlan": "paired_outputs",
    "PairedFoldedPlan": "paired_outputs",
    "DotWeightsPlan": "dot_weights",
    "MatrixRunPlan": "matrix_runs",
    "MatrixDataPlan": "matrix_data",
    "GatheredWeightsPlan": "gathered_weights",
    "MatrixWeightsPlan": "matrix_weights",
    "FlatDataPlan": "flat_data",
    "DotDepthwisePlan": "dot_depthwise",
    "DepthwiseDataPlan": "depthwise_data",
    "PhaseLanesPlan": "phase_lanes",
    "RunSumsPlan": "run_sums",
    "LaneSumsPlan": "lane_sums",
    "DotRowProductsPlan": "dot_row_products",
    "RowProductsPlan": "row_products",
    "TurnedDataPlan": "turned_data",
    "RowDataPlan": "row_data",
    "PatchDataPlan": "patch_data",
    "FoldedPlan": "folded",
    "DepthwiseDotsPlan": "depthwise_dots",
    "DepthwiseWeightsPlan": "depthwise_weights",
    "GroupDotsPlan": "group_dots",
    "GroupWeightsPlan": "group_weights",
    "RunWeightsPlan": "run_weights",
    "RowDotsPlan": "row_dots",
    "RowWeightsPlan": "row_weights",
    "InPlaceDotsPlan": "in_place_dots",
    "InPlaceWeightsPlan": "in_place_weights",
    "WindowLanesPlan": "window_lanes",
    "DotRowsTogetherPlan": "dot_rows_together",
    "DotRowsPlan": "dot_rows",
    "PlaneRowsPlan": "plane_rows",
    "PlaneDotsPlan": "plane_dots",
    "PlaneRowWeightsPlan": "plane_row_weights",
    "PlaneDataPlan": "plane_data",
    "PlaneWeightsPlan": "plane_weights",
    "DataPlan": "data",
    "WeightsPlan": "weights",
}


def lower(plan: Plan | InsidePlan) -> KernelModule:
    """The module of any plan."""
    if isinstance(plan, InsidePlan):
        return lower_inside(plan)
    kinds = [kind.__name__ for kind in type(plan).__mro__]  # special ones first
    name = next(LOWERINGS[kind] for kind in kinds if kind in LOWERINGS)
    module = getattr(import_module(f"convgrad.codegen.{name}"), f"lower_{name}")(plan)
    return module if plan.ON_UNITS else guarded(plan, module)  # units watch data while these are packed
