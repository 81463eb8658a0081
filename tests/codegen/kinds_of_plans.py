"""What is special about a plan, in words, and problems with the names of the kinds of plan that they get."""

from dataclasses import replace
from math import prod

from codegen.dense_problems import SAME, W, X, Y, problem_of
from convgrad.plan.depthwise.depthwise_weights import DepthwiseWeightsPlan
from convgrad.plan.few_channels.folded import FoldedPlan
from convgrad.plan.few_channels.patch_data import PatchDataPlan
from convgrad.plan.few_channels.run_weights import RunWeightsPlan
from convgrad.plan.general.data import DataPlan
from convgrad.plan.groups.turned_data import TurnedDataPlan
from convgrad.plan.in_place.flat_data import FlatDataPlan
from convgrad.plan.in_place.row_data import RowDataPlan
from convgrad.plan.in_place.row_weights import RowWeightsPlan


def kinds(plan):
    """What is special about a plan, in words."""
    if isinstance(plan, DataPlan):
        along = "along outputs" if plan.pixels else "across groups" if plan.spread else "along channels"
        along = "phases at once" if isinstance(plan, FoldedPlan) else along
        along = "along planes" if isinstance(plan, FlatDataPlan) else along
        along = "along rows in place" if isinstance(plan, RowDataPlan) else along
        along = "along taps of patches" if isinstance(plan, PatchDataPlan) else along
        inner = plan.axes[-1]
        traits = {
            "read in place": plan.reads_in_place,
            "written in place": plan.writes_in_place and not plan.reads_in_place,
            "borders": plan.reads_in_place and inner.clipped,
            "overlapping tiles": plan.reads_in_place
            and plan.tile[-1] > 1
            and any((high - low) % plan.tile[-1] for low, high in map(inner.inside, inner.phases)),
            "overlapping lanes": plan.writes_in_place
            and bool((plan.problem.groups % plan.lane_groups) if plan.spread else (plan.out_channels % plan.width)),
            "planes": plan.planes > 1,
            "phases": any(len(axis.phases) > 1 for axis in plan.axes),
            "several blocks of input channels": plan.i_blocks > 1,
            "several tasks along channels": plan.grid[-1] > 1,
            "taps written out": plan.unroll > 0,
            "taps one by one": plan.separate_taps,
            "vectors between lines": plan.aligned,
            "zeros around": any(plan.padded(n) for n in range(len(plan.axes))),
            "own weights": plan.packs_weights,
            "unpacked weights": plan.reads_weights,
            "bands": plan.has_bands,
            "tiles of two sizes": plan.ragged is not None,
            "turned at the end": isinstance(plan, TurnedDataPlan),
            "bundles of groups": plan.bundle > 1,
        }
    else:
        along = f"lanes along {plan.lane_side}{', across groups' if plan.spread else ''}"
        along = "lanes along windows" if plan.along_windows else along
        along = "lanes along rows" if isinstance(plan, RowWeightsPlan) else along
        along = "lanes along runs of taps and channels" if isinstance(plan, RunWeightsPlan) else along
        traits = {
            "in place": plan.direct,
            "rows in place": plan.rows_in_place,
            "lanes in place": plan.lanes_in_place,
            "several chunks": plan.chunks > 1,
            "lane shares": plan.lane_shares > 1,
            "row shares": plan.row_shares > 1,
            "rows in runs": plan.row_run < plan.share_rows,
            "several taps in a tile": plan.tile_taps > 1,
            "several blocks": prod(plan.block_grid) > 1,
            "bands": any(plan.banded(n) for n in range(len(plan.axes))),
            "sums of their own": plan.own_sums,
            "written from registers": plan.straight,
            "past the caches": plan.past_caches,
            "taps together": isinstance(plan, DepthwiseWeightsPlan),
            "groups at once": plan.at_once > 1,
        }
    return {along, *(name for name, has in traits.items() if has)}


KINDS = {  # on avx512, whose vectors are the longest; other sets run the same problems
    "along channels, packed": (
        problem_of(Y, (9, 9), (9, 9), (3, 3), channels=(33, 40), **SAME),
        {"along channels", "zeros around"},
    ),
    "along channels, in place": (
        problem_of(Y, (1, 41), (1, 41), (1, 1), channels=(19, 72), layout="NXC"),
        {"along channels", "read in place", "overlapping lanes", "overlapping tiles"},
    ),
    "along channels, tiles of two sizes": (
        problem_of(Y, (9, 19), (9, 19), (3, 3), channels=(64, 64), **SAME),
        {"along channels", "tiles of two sizes"},
    ),
    "along channels, tiles of two sizes in place": (
        problem_of(Y, (5, 17), (5, 17), (3, 3), channels=(24, 64), layout="NXC", batch=2, **SAME),
        {"along channels", "written in place", "tiles of two sizes"},
    ),
    "along channels in phases, tiles of two sizes": (
        problem_of(X, (14, 38), (7, 19), (4, 4), channels=(64, 24), stride=2, low=1, layout="NXC"),
        {"along channels", "phases", "tiles of two sizes"},
    ),
    "along outputs": (
        problem_of(Y, (20, 37), (20, 36), (3, 3), channels=(3, 3), **SAME),
        {"along outputs", "taps written out", "zeros around"},
    ),
    "along outputs, written in place": (
        problem_of(Y, (20, 49), (20, 48), (3, 3), channels=(7, 4), **SAME),
        {"along outputs", "written in place"},
    ),
    "along planes, in place": (
        problem_of(Y, (20, 48), (20, 48), (3, 3), channels=(9, 4), **SAME),
        {"along planes", "read in place"},
    ),
    "along outputs, in planes": (
        problem_of(Y, (20, 67), (10, 34), (3, 3), channels=(5, 20), stride=2, low=1),
        {"along outputs", "planes"},
    ),
    "along rows in place": (
        problem_of(Y, (20, 67), (10, 34), (3, 3), channels=(3, 4), stride=2, low=1),
        {"along rows in place", "read in place"},
    ),
    "along taps of patches": (
        problem_of(X, (32, 48), (2, 3), (16, 16), channels=(3, 40), stride=16),
        {"along taps of patches", "written in place"},
    ),
    "along outputs, in phases": (
        problem_of(X, (20, 67), (10, 34), (3, 3), channels=(5, 4), stride=2, low=1),
        {"along outputs", "phases"},
    ),
    "along outputs, few rows": (
        problem_of(Y, (30, 70), (30, 70), (3, 3), channels=(40, 1), **SAME),
        {"along outputs", "taps one by one", "vectors between lines"},
    ),
    "along outputs, few rows, in phases": (
        problem_of(X, (40, 190), (20, 95), (3, 3), channels=(5, 20), stride=2, low=1, batch=2),
        {"along outputs", "phases", "taps one by one", "vectors between lines"},
    ),
    "phases at once": (
        problem_of(X, (40, 190), (20, 95), (4, 4), channels=(3, 40), stride=2, low=1, bias=True),
        {"phases at once", "vectors between lines"},
    ),
    "phases at once, of which some have fewer taps": (
        problem_of(X, (37, 190), (13, 63), (9, 8), channels=(1, 40), stride=3, low=4, layout="NXC", batch=2),
        {"phases at once", "several blocks of input channels"},
    ),
    "along channels, in phases": (
        problem_of(X, (12, 13), (6, 7), (4, 4), channels=(40, 33), stride=2, low=1),
        {"along channels", "phases"},
    ),
    "across groups, in place": (
        problem_of(Y, (5, 57), (5, 57), (3, 3), channels=(1, 1), groups=40, layout="NXC", **SAME),
        {"across groups", "read in place", "borders", "overlapping lanes", "overlapping tiles"},
    ),
    "across groups, in place, in phases": (
        problem_of(X, (9, 33), (5, 17), (3, 5), channels=(1, 1), groups=50, stride=2, low=2, layout="NXC"),
        {"across groups", "read in place", "phases", "borders"},
    ),
    "across groups, packed": (
        problem_of(Y, (9, 13), (9, 13), (3, 3), channels=(2, 4), groups=19, layout="NXC", **SAME),
        {"across groups"},
    ),
    "across groups, turned at the end": (
        problem_of(X, (9, 13), (9, 13), (3, 3), channels=(4, 4), groups=19, layout="NXC", **SAME),
        {"across groups", "turned at the end"},
    ),
    "along channels, groups of a task one after the other": (
        problem_of(Y, (5, 13), (5, 13), (3, 3), channels=(2, 24), groups=9, layout="NXC", batch=17, bias=True, **SAME),
        {"along channels", "written in place", "bundles of groups", "zeros around"},
    ),
    "several blocks of input channels": (
        problem_of(Y, (7, 7), (7, 7), (3, 3), channels=(600, 20), **SAME),
        {"several blocks of input channels"},
    ),
    "several tasks along channels": (
        problem_of(Y, (5, 5), (5, 5), (3, 3), channels=(64, 200), **SAME),
        {"several tasks along channels"},
    ),
    "tasks pack their own weights": (
        problem_of(Y, (6, 6), (6, 6), (3, 3), channels=(700, 150), bias=True, **SAME),
        {"own weights", "several blocks of input channels", "several tasks along channels"},
    ),
    "tasks pack their own weights, channels last": (
        problem_of(X, (8, 8), (4, 4), (4, 4), channels=(100, 150), stride=2, low=1, layout="NXC"),
        {"own weights", "phases", "several tasks along channels"},
    ),
    "tasks pack weights for others": (
        problem_of(Y, (40, 40), (40, 40), (3, 3), channels=(20, 32), **SAME),
        {"along channels"},
    ),
    "bands of rows": (
        problem_of(Y, (61, 20), (7, 20), (3, 3), channels=(20, 32), dilation=(24, 1), low=(0, 1), stride=(2, 1)),
        {"along channels", "bands"},
    ),
    "bands within a row": (
        problem_of(X, (9, 9), (33, 33), (3, 3), channels=(13, 33), dilation=12, low=24, layout="NXC"),
        {"along channels", "bands"},
    ),
    "bands across groups": (
        problem_of(Y, (47, 20), (7, 20), (3, 3), channels=(2, 2), groups=9, dilation=(20, 1), low=(0, 1), layout="NXC"),
        {"across groups", "bands"},
    ),
    "weights, lanes along y": (
        problem_of(W, (9, 9), (9, 9), (3, 3), channels=(4, 33), batch=2, **SAME),
        {"lanes along y", "several taps in a tile"},
    ),
    "weights, lanes along windows": (
        problem_of(W, (30, 41), (30, 41), (3, 3), channels=(4, 4), groups=3, batch=2, **SAME),
        {"lanes along windows", "sums of their own", "several taps in a tile"},
    ),
    "weights, lanes along windows, in planes": (
        replace(
            problem_of(W, (41, 61), (21, 31), (5, 3), channels=(5, 3), groups=2, stride=2, low=(2, 1), batch=2),
            dtype="f16",
            out_dtype="f32",
        ),
        {"lanes along windows"},
    ),
    "weights, lanes along windows, several chunks": (
        problem_of(W, (190, 211), (190, 211), (3, 3), channels=(3, 4), **SAME),
        {"lanes along windows", "several chunks", "several blocks"},
    ),
    "weights, lanes along windows, shares": (
        problem_of(W, (3000,), (2997,), (4,), channels=(1, 60)),
        {"lanes along windows", "lane shares"},
    ),
    "weights, lanes along x": (
        problem_of(W, (9, 9), (9, 9), (3, 3), channels=(47, 5), batch=2, **SAME),
        {"lanes along x"},
    ),
    "weights, lane shares": (
        problem_of(W, (20, 20), (20, 20), (1, 1), channels=(17, 700)),
        {"lanes along y", "lane shares"},
    ),
    "weights, row shares": (
        problem_of(W, (16, 16), (16, 16), (1, 1), channels=(300, 300)),
        {"row shares"},
    ),
    "weights, rows in runs": (
        problem_of(W, (14, 14), (14, 14), (1, 1), channels=(130, 64), layout="NXC", dtype="bf16", out_dtype="f32"),
        {"lanes along y", "rows in runs"},
    ),
    "weights, groups of a task one after the other": (
        problem_of(W, (61, 13), (61, 13), (1, 1), channels=(2, 16), groups=32, layout="NXC"),
        {"lanes along y", "rows in place", "lanes in place", "groups at once", "several chunks"},
    ),
    "weights, row channels in place": (
        problem_of(W, (9, 11), (9, 11), (1, 1), channels=(67, 33), batch=2),
        {"rows in place"},
    ),
    "weights, rows and lanes in place": (
        problem_of(W, (12, 12), (12, 12), (1, 1), channels=(130, 64), layout="NXC"),
        {"rows in place", "lanes in place"},
    ),
    "weights, several chunks and blocks": (
        problem_of(W, (60, 70), (60, 70), (3, 3), channels=(4, 48), **SAME),
        {"several chunks", "several blocks"},
    ),
    "weights, from registers": (
        problem_of(W, (9, 9), (9, 9), (3, 3), channels=(13, 37), layout="NXC", **SAME),
        {"lanes along y", "written from registers"},
    ),
    "weights, from registers after several blocks": (
        problem_of(W, (21, 27), (20, 26), (2, 2), channels=(3, 21), groups=16, layout="NXC"),
        {"lanes along y", "written from registers", "several blocks"},
    ),
    "weights, kept by a task through several blocks": (
        problem_of(W, (21, 27), (20, 26), (2, 2), channels=(7, 21)),
        {"sums of their own", "several blocks"},
    ),
    "weights, past the caches": (
        problem_of(W, (2, 3), (2, 3), (1, 2), channels=(500, 1056), layout="NXC"),
        {"written from registers", "past the caches"},
    ),
    "weights, planes in place": (
        problem_of(W, (60, 300), (60, 300), (3, 3), channels=(5, 17), dilation=(25, 2), low=(25, 2)),
        {"lanes along windows", "in place"},
    ),
    "weights, rows in place": (
        problem_of(W, (64, 64), (32, 32), (3, 3), channels=(4, 4), groups=5, stride=2, low=1),
        {"lanes along rows", "in place"},
    ),
    "weights, bands of rows": (
        problem_of(W, (60, 300), (60, 299), (3, 3), channels=(5, 17), dilation=(25, 2), low=(25, 2)),
        {"lanes along y", "bands"},
    ),
    "weights, bands within a row": (
        problem_of(W, (700,), (700,), (3,), channels=(33, 12), dilation=400, low=400, layout="NXC"),
        {"lanes along x", "bands"},
    ),
    "weights, bands across groups": (
        problem_of(
            W, (40, 300), (40, 300), (3, 3), channels=(3, 2), groups=9, dilation=(15, 1), low=(15, 1), layout="NXC"
        ),
        {"lanes along y, across groups", "bands"},
    ),
    "weights across groups, in place": (
        problem_of(W, (9, 25), (9, 25), (3, 3), channels=(1, 1), groups=70, layout="NXC", **SAME),
        {"lanes along y, across groups", "in place"},
    ),
    "weights across fewer groups than lanes": (
        problem_of(W, (9, 25), (9, 25), (3, 3), channels=(1, 1), groups=7, layout="NXC", **SAME),
        {"lanes along y, across groups", "taps together"},
    ),
    "weights of fewer channels than lanes": (
        problem_of(W, (19, 25), (10, 13), (3, 3), channels=(11, 1), stride=2, low=1, layout="NXC"),
        {"lanes along x", "taps together"},
    ),
    "weights across groups, packed": (
        problem_of(W, (9, 13), (9, 13), (3, 3), channels=(3, 8), groups=19, layout="NXC", **SAME),
        {"lanes along y, across groups"},
    ),
    "weights across groups, y picked": (
        problem_of(W, (21, 60), (21, 60), (3, 3), channels=(2, 4), groups=19, layout="NXC", **SAME),
        {"lanes along x, across groups", "several chunks", "several blocks"},
    ),
    "weights along runs of taps": (
        problem_of(W, (61, 40), (31, 21), (3, 5), channels=(19, 21), batch=2, stride=2, low=(1, 2)),
        {"lanes along runs of taps and channels", "several chunks", "several blocks", "rows in place"},
    ),
}
