"""From a plan to LLVM IR."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING

from convgrad.codegen.guard import guarded, lower_inside, shared_with_guard
from convgrad.codegen.ir_module import Module
from convgrad.codegen.module import Fallback, KernelModule
from convgrad.codegen.stages import Stages
from convgrad.plan.inside import InsidePlan

if TYPE_CHECKING:
    from convgrad.codegen.verdict import Verdict
    from convgrad.plan.choose import Plan

# Of a kind of plan, what it is lowered to, and the module of this folder that has it. That is imported when such a plan
# is met, so a process that compiles a few kernels imports a third of the compiler.
LOWERINGS = {
    "DotsInPlacePlan": "dots_in_place.DotsInPlaceStages",
    "DotRunPlan": "dot_runs.DotRunStages",
    "TurnedDotPlan": "turned_dots.TurnedDotStages",
    "DotDataPlan": "dot_data.DotStages",
    "PairedOutputsPlan": "paired_outputs.PairedOutputsStages",
    "PairedFoldedPlan": "paired_outputs.PairedFoldedStages",
    "DotWeightsPlan": "dot_weights.DotSums",
    "MatrixRunPlan": "matrix_runs.MatrixRunStages",
    "MatrixDataPlan": "matrix_data.MatrixStages",
    "GatheredWeightsPlan": "gathered_weights.GatheredSums",
    "MatrixWeightsPlan": "matrix_weights.MatrixSums",
    "DotPointwisePlan": "dot_pointwise.DotPointwiseStages",
    "PointwisePlan": "flat_data.FlatStages",
    "FlatDataPlan": "flat_data.FlatStages",
    "DotDepthwisePlan": "dot_depthwise.DotDepthwiseStages",
    "DepthwiseDataPlan": "depthwise_data.DepthwiseStages",
    "PhaseLanesPlan": "phase_lanes.PhaseLanesStages",
    "RunSumsPlan": "run_sums.RunSumsStages",
    "LaneSumsPlan": "lane_sums.LaneSumsStages",
    "DotRowProductsPlan": "dot_row_products.DotRowProductsStages",
    "RowProductsPlan": "row_products.RowProductsStages",
    "TurnedDataPlan": "turned_data.TurnedStages",
    "RowDataPlan": "row_data.RowStages",
    "PatchDataPlan": "patch_data.PatchStages",
    "FoldedPlan": "folded.FoldedStages",
    "DepthwiseDotsPlan": "depthwise_dots.DepthwiseDotSums",
    "DepthwiseWeightsPlan": "depthwise_weights.DepthwiseSums",
    "GroupDotsPlan": "group_dots.GroupDotSums",
    "GroupWeightsPlan": "group_weights.GroupSums",
    "RunWeightsPlan": "run_weights.RunWeightsSums",
    "RowDotsPlan": "row_dots.RowDotSums",
    "RowWeightsPlan": "row_weights.RowSums",
    "InPlaceDotsPlan": "in_place_dots.InPlaceDotSums",
    "InPlaceWeightsPlan": "in_place_weights.InPlaceSums",
    "WindowLanesPlan": "window_lanes.WindowLanesSums",
    "DotRowsTogetherPlan": "dot_rows_together.OutputsTogether",
    "DotRowsPlan": "dot_rows.DotRowOutputs",
    "PlaneRowsPlan": "plane_rows.PlaneRowOutputs",
    "PlaneDotsPlan": "plane_dots.PlaneDotSums",
    "PlaneRowWeightsPlan": "plane_row_weights.PlaneRowSums",
    "PlaneDataPlan": "plane_data.PlaneOutputs",
    "PlaneWeightsPlan": "plane_weights.PlaneSums",
    "DataPlan": "data.DataStages",
    "FarPairsPlan": "far_pairs.FarPairSums",
    "WeightsPlan": "weights.SumsStage",
}


def lower(plan: Plan | InsidePlan) -> KernelModule:
    """The module of any plan."""
    if isinstance(plan, InsidePlan):
        return lower_inside(plan)
    main, module = stages_of(plan), Module()
    stages, shared, fallback = main.emit(module), main.shared_bytes, None
    if main.verdict is not None:
        main.verdict.emit(module)
        shared += main.verdict.size
        fallback = _fallback(main.verdict, len(stages))
    kernel = KernelModule(
        ir=str(module), stages=stages, shared_bytes=shared, scratch_bytes=main.scratch_bytes,
        weights=plan.weights_bytes, fallback=fallback,
    )  # fmt: skip
    return kernel if plan.ON_UNITS else guarded(plan, kernel)  # units watch data while these are packed


def stages_of(plan: Plan) -> Stages:
    """What a plan is lowered to, by its kind or the nearest one that it is derived from."""
    name = next(LOWERINGS[kind.__name__] for kind in type(plan).__mro__ if kind.__name__ in LOWERINGS)
    module, stages = name.split(".")
    return getattr(import_module(f"convgrad.codegen.{module}"), stages)(plan)


def _fallback(verdict: Verdict, stages: int) -> Fallback:
    """The kernel of the plan that takes over, of a kernel of so many stages."""
    plan = verdict.fallback
    assert plan is not None
    other, (packed, own) = stages_of(plan), plan.weights_bytes
    shared = shared_with_guard(plan, other.shared_bytes)
    return Fallback(
        after=stages if verdict.after is None else verdict.after, replaces=verdict.replaces,
        most_tasks=other.most_tasks, shared_bytes=shared, scratch_bytes=other.scratch_bytes,
        weights=(packed + shared - other.shared_bytes, own), lower=lambda: lower(plan),
    )  # fmt: skip
