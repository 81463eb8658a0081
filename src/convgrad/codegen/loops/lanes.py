"""Which channels the lanes of a block of a DataPlan hold, and where they lie in a tensor."""

from __future__ import annotations

from convgrad.codegen.ir import Builder
from convgrad.codegen.ir_module import Index
from convgrad.plan.general.data import DataPlan


def lane_dims(plan: DataPlan, block: Index, b: Builder, group_step: int, channel_step: int) -> list:
    """The lanes of a block that hold a channel, as (extent, packed step, step in a tensor)."""
    if plan.spread:
        rest = b.sub(plan.problem.groups, b.mul(block, plan.lane_groups))
        whole = plan.writes_in_place or plan.problem.groups % plan.lane_groups == 0
        groups = plan.lane_groups if whole else b.minimum(rest, plan.lane_groups)
        return [(groups, plan.out_channels, group_step), (plan.out_channels, 1, channel_step)]
    rest = b.sub(plan.out_channels, b.mul(block, plan.width))
    return [(plan.width if whole_lanes(plan) else b.minimum(rest, plan.width), 1, channel_step)]


def first_group(plan: DataPlan, b: Builder, group: Index, block: Index) -> Index:
    """Of a block of lanes. Written in place, the last block begins early and repeats some groups."""
    if not plan.spread:
        return group
    first = b.mul(block, plan.lane_groups)
    return b.minimum(first, plan.problem.groups - plan.lane_groups) if plan.writes_in_place else first


def lane_origin(plan: DataPlan, b: Builder, group: Index, block: Index, group_step: int, channel_step: int) -> Index:
    """Where the first lane of a block lies in a tensor."""
    first = b.mul(block, 0 if plan.spread else plan.width)
    if plan.lanes_begin_early and not plan.spread:
        first = b.minimum(first, max(0, plan.out_channels - plan.width))
    return b.dot([(first_group(plan, b, group, block), group_step), (first, channel_step)])


def whole_lanes(plan: DataPlan) -> bool:
    """Whether every lane of every block holds a channel."""
    if plan.lanes_begin_early:
        return plan.spread or plan.out_channels >= plan.width
    if plan.spread:
        return plan.lane_groups * plan.out_channels == plan.width and plan.problem.groups % plan.lane_groups == 0
    return plan.out_channels % plan.width == 0


def weights_steps(plan: DataPlan) -> tuple[int, int, int]:
    """Steps of w per group, output channel and input channel."""
    group, k, c = plan.problem.w_strides[:3]
    return (group, k, c) if plan.solves_y else (group, c, k)


def weights_origin(plan: DataPlan, b: Builder, group: Index, block: Index, i_block: Index) -> Index:
    """Where the weights of a block of lanes and a block of input channels begin in w."""
    group_step, out_step, in_step = weights_steps(plan)
    return b.add(lane_origin(plan, b, group, block, group_step, out_step), b.mul(i_block, plan.i_block * in_step))
