"""From a plan to LLVM IR."""

from collections.abc import Callable

from convgrad.codegen.data import lower_data
from convgrad.codegen.depthwise_data import lower_depthwise_data
from convgrad.codegen.depthwise_weights import lower_depthwise_weights
from convgrad.codegen.dot_data import lower_dot_data
from convgrad.codegen.dot_runs import lower_dot_runs
from convgrad.codegen.dot_weights import lower_dot_weights
from convgrad.codegen.flat_data import lower_flat_data
from convgrad.codegen.folded import lower_folded
from convgrad.codegen.gathered_weights import lower_gathered_weights
from convgrad.codegen.group_weights import lower_group_weights
from convgrad.codegen.guard import guarded, lower_inside
from convgrad.codegen.in_place_weights import lower_in_place_weights
from convgrad.codegen.lane_sums import lower_lane_sums
from convgrad.codegen.matrix_data import lower_matrix_data
from convgrad.codegen.matrix_runs import lower_matrix_runs
from convgrad.codegen.matrix_weights import lower_matrix_weights
from convgrad.codegen.module import KernelModule
from convgrad.codegen.patch_data import lower_patch_data
from convgrad.codegen.plane_data import lower_plane_data
from convgrad.codegen.plane_row_weights import lower_plane_row_weights
from convgrad.codegen.plane_rows import lower_plane_rows
from convgrad.codegen.plane_weights import lower_plane_weights
from convgrad.codegen.row_data import lower_row_data
from convgrad.codegen.row_weights import lower_row_weights
from convgrad.codegen.turned_data import lower_turned_data
from convgrad.codegen.turned_dots import lower_turned_dots
from convgrad.codegen.weights import lower_weights
from convgrad.codegen.window_lanes import lower_window_lanes
from convgrad.plan.choose import Plan
from convgrad.plan.data import DataPlan
from convgrad.plan.depthwise_data import DepthwiseDataPlan
from convgrad.plan.depthwise_weights import DepthwiseWeightsPlan
from convgrad.plan.dots import DotDataPlan, DotWeightsPlan
from convgrad.plan.flat_data import FlatDataPlan
from convgrad.plan.folded import FoldedPlan
from convgrad.plan.gathered_weights import GatheredWeightsPlan
from convgrad.plan.group_weights import GroupWeightsPlan
from convgrad.plan.in_place_weights import InPlaceWeightsPlan
from convgrad.plan.inside import InsidePlan
from convgrad.plan.lane_sums import LaneSumsPlan
from convgrad.plan.matrix import MatrixDataPlan
from convgrad.plan.matrix_weights import MatrixWeightsPlan
from convgrad.plan.patch_data import PatchDataPlan
from convgrad.plan.plane_data import PlaneDataPlan
from convgrad.plan.plane_rows import PlaneRowsPlan, PlaneRowWeightsPlan
from convgrad.plan.plane_weights import PlaneWeightsPlan
from convgrad.plan.row_data import RowDataPlan
from convgrad.plan.row_weights import RowWeightsPlan
from convgrad.plan.runs import DotRunPlan, MatrixRunPlan
from convgrad.plan.turned_data import TurnedDataPlan
from convgrad.plan.turned_dots import TurnedDotPlan
from convgrad.plan.weights import WeightsPlan
from convgrad.plan.window_lanes import WindowLanesPlan

LOWERINGS: tuple[tuple[type, Callable[..., KernelModule]], ...] = (  # of kinds of plans, special ones first
    (InsidePlan, lower_inside),
    (DotRunPlan, lower_dot_runs),
    (TurnedDotPlan, lower_turned_dots),
    (DotDataPlan, lower_dot_data),
    (DotWeightsPlan, lower_dot_weights),
    (MatrixRunPlan, lower_matrix_runs),
    (MatrixDataPlan, lower_matrix_data),
    (GatheredWeightsPlan, lower_gathered_weights),
    (MatrixWeightsPlan, lower_matrix_weights),
    (FlatDataPlan, lower_flat_data),
    (DepthwiseDataPlan, lower_depthwise_data),
    (LaneSumsPlan, lower_lane_sums),
    (TurnedDataPlan, lower_turned_data),
    (RowDataPlan, lower_row_data),
    (PatchDataPlan, lower_patch_data),
    (FoldedPlan, lower_folded),
    (DepthwiseWeightsPlan, lower_depthwise_weights),
    (GroupWeightsPlan, lower_group_weights),
    (RowWeightsPlan, lower_row_weights),
    (InPlaceWeightsPlan, lower_in_place_weights),
    (WindowLanesPlan, lower_window_lanes),
    (PlaneRowsPlan, lower_plane_rows),
    (PlaneRowWeightsPlan, lower_plane_row_weights),
    (PlaneDataPlan, lower_plane_data),
    (PlaneWeightsPlan, lower_plane_weights),
    (DataPlan, lower_data),
    (WeightsPlan, lower_weights),
)

UNGUARDED = (InsidePlan, MatrixDataPlan, MatrixWeightsPlan)  # on units, data are watched while they are packed


def lower(plan: Plan | InsidePlan) -> KernelModule:
    """The module of any plan."""
    lowering = next(lowering for kind, lowering in LOWERINGS if isinstance(plan, kind))
    module = lowering(plan)
    return module if isinstance(plan, UNGUARDED) else guarded(plan, module)
