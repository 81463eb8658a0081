"""From a plan to LLVM IR."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING

from convgrad.codegen.ir_module import Module
from convgrad.codegen.module import Fallback, KernelModule
from convgrad.codegen.stages import Stages
from convgrad.codegen.watch.guard import guarded, lower_inside, shared_with_guard
from convgrad.plan.inside import InsidePlan

if TYPE_CHECKING:
    from convgrad.codegen.watch.verdict import Verdict
    from convgrad.plan.choose import Plan

# Of a kind of plan, what it is lowered to, and the module of this folder that has it. That is imported when such a plan
# is met, so a process that compiles a few kernels imports a third of the compiler.
LOWERINGS = {
    "DotsUnpackedPlan": "by_dots.dots_unpacked.DotsUnpackedStages",
    "DotsInPlacePlan": "by_dots.dots_in_place.DotsInPlaceStages",
    "DotRunPlan": "by_dots.dot_runs.DotRunStages",
    "TurnedDotPlan": "by_dots.turned_dots.TurnedDotStages",
    "DotDataPlan": "by_dots.dot_data.DotStages",
    "PairedOutputsPlan": "by_dots.paired_outputs.PairedOutputsStages",
    "PairedFoldedPlan": "by_dots.paired_outputs.PairedFoldedStages",
    "DotWeightsPlan": "by_dots.dot_weights.DotSums",
    "GatheredRunPlan": "by_matrix.gathered_runs.GatheredRunStages",
    "GatheredRowsPlan": "by_matrix.gathered_rows.GatheredRowsStages",
    "GatheredDataPlan": "by_matrix.across_rows.GatheredStages",
    "AcrossRowsPlan": "by_matrix.across_rows.AcrossRowsStages",
    "MatrixDataPlan": "by_matrix.matrix_data.MatrixStages",
    "WindowWeightsPlan": "by_matrix.window_weights.WindowSums",
    "ShiftedPairsPlan": "by_matrix.shifted_pairs.ShiftedSums",
    "GatheredWeightsPlan": "by_matrix.gathered_weights.GatheredSums",
    "MatrixWeightsPlan": "by_matrix.matrix_weights.MatrixSums",
    "DotPointwisePlan": "by_dots.dot_pointwise.DotPointwiseStages",
    "PointwisePlan": "in_place.flat_data.FlatStages",
    "FlatDataPlan": "in_place.flat_data.FlatStages",
    "DotDepthwisePlan": "by_dots.dot_depthwise.DotDepthwiseStages",
    "CopiedRowsPlan": "depthwise.copied_rows.CopiedRowsStages",
    "DepthwiseDataPlan": "depthwise.depthwise_data.DepthwiseStages",
    "PhaseLanesPlan": "few_channels.phase_lanes.PhaseLanesStages",
    "RunSumsPlan": "few_channels.run_sums.RunSumsStages",
    "LaneSumsPlan": "few_channels.lane_sums.LaneSumsStages",
    "DotRowProductsPlan": "by_dots.dot_row_products.DotRowProductsStages",
    "RowProductsPlan": "in_place.row_products.RowProductsStages",
    "TurnedDataPlan": "groups.turned_data.TurnedStages",
    "RowDataPlan": "in_place.row_data.RowStages",
    "PatchDataPlan": "few_channels.patch_data.PatchStages",
    "FoldedPlan": "few_channels.folded.FoldedStages",
    "DepthwiseDotsPlan": "by_dots.depthwise_dots.DepthwiseDotSums",
    "DepthwiseWeightsPlan": "depthwise.depthwise_weights.DepthwiseSums",
    "GroupDotsPlan": "by_dots.group_dots.GroupDotSums",
    "GroupWeightsPlan": "groups.group_weights.GroupSums",
    "RunWeightsPlan": "few_channels.run_weights.RunWeightsSums",
    "RowDotsPlan": "by_dots.row_dots.RowDotSums",
    "RowWeightsPlan": "in_place.row_weights.RowSums",
    "InPlaceDotsPlan": "by_dots.in_place_dots.InPlaceDotSums",
    "InPlaceWeightsPlan": "in_place.in_place_weights.InPlaceSums",
    "WindowLanesPlan": "few_channels.window_lanes.WindowLanesSums",
    "DotRowsTogetherPlan": "by_dots.dot_rows_together.OutputsTogether",
    "DotRowsPlan": "by_dots.dot_rows.DotRowOutputs",
    "PlaneRowsPlan": "depthwise.plane_rows.PlaneRowOutputs",
    "PlaneDotsPlan": "by_dots.plane_dots.PlaneDotSums",
    "PlaneRowWeightsPlan": "depthwise.plane_row_weights.PlaneRowSums",
    "PlaneDataPlan": "depthwise.plane_data.PlaneOutputs",
    "PlaneWeightsPlan": "depthwise.plane_weights.PlaneSums",
    "DataPlan": "general.data.DataStages",
    "FarPairsPlan": "by_dots.far_pairs.FarPairSums",
    "WeightsPlan": "general.weights.SumsStage",
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
        weights=plan.weights_bytes, fallback=fallback, words=plan.ON_UNITS,
    )  # fmt: skip
    return kernel if plan.ON_UNITS else guarded(plan, kernel)  # units watch data while these are packed


def stages_of(plan: Plan) -> Stages:
    """What a plan is lowered to, by its kind or the nearest one that it is derived from."""
    name = next(LOWERINGS[kind.__name__] for kind in type(plan).__mro__ if kind.__name__ in LOWERINGS)
    module, _, stages = name.rpartition(".")
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
