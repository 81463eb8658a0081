"""What has to be looked at to know that no result is NaN because a zero around an image met an infinity.

Such a zero meets a weight or, solving for W, a window; with a number that is not finite that gives NaN, in all results
that are sums over the same taps. So it is enough to look through the smaller one of the weights and the results of one
image, or at the weights of one channel.
"""

from __future__ import annotations

from math import prod
from typing import TYPE_CHECKING, cast

from convgrad.plan.axes import gather_axes
from convgrad.plan.window_axes import window_axes
from convgrad.problem.conv import ConvProblem, Unknown
from convgrad.values import frozen

if TYPE_CHECKING:
    from convgrad.plan.choose import Plan
    from convgrad.plan.depthwise.plane_data import PlaneDataPlan
    from convgrad.plan.depthwise.plane_weights import PlaneWeightsPlan
    from convgrad.plan.general.data import DataPlan
    from convgrad.plan.general.weights import WeightsPlan

COPIED_FOR = 2  # numbers that are read and written, not only read


@frozen
class Box:
    """Some of the numbers of a tensor, from the first one: extent and step of every axis."""

    tensor: str
    axes: tuple[tuple[int, int], ...]

    @property
    def size(self) -> int:
        """How many."""
        return prod(extent for extent, _ in self.axes)


@frozen(kw_only=True)
class Guard:
    """What a kernel looks at: before it begins, for numbers that are not finite, or when it is done, for NaN."""

    before: tuple[Box, ...] = ()
    after: tuple[Box, ...] = ()
    if_also: tuple[Box, ...] = ()  # NaN only counts where one of these has a number that is not finite
    keeps_weights: bool = False  # they are added to, and were copied before


def guard_of(plan: Plan) -> Guard | None:
    """None where every product is one of the definition."""
    problem = plan.asked
    if 0 in problem.shapes["w"]:
        return None
    if problem.unknown is Unknown.W:
        sums = cast("WeightsPlan | PlaneWeightsPlan", plan)
        return _of_weights(problem, along_windows=sums.ALONG_WINDOWS)
    data = cast("DataPlan | PlaneDataPlan", plan)
    guard = None if data.leaves_out_borders else _of_data(problem)
    if data.some_lack_taps:  # zeros in their place meet y
        return Guard(before=(whole(problem, "y"), *((whole(problem, "w"),) if guard else ())))
    return guard


def _of_data(p: ConvProblem) -> Guard | None:
    if not any(axis.clipped for axis in gather_axes(p)):
        return None
    weights = (whole(p, "w"),)
    name = p.solved
    shape, strides = p.shapes[name], p.strides[name]
    first_and_last = (1, 0) if p.batch == 1 else (2, (p.batch - 1) * strides[0])
    results = Box(name, (first_and_last, *zip(shape[1:], strides[1:], strict=True)))
    if p.accumulate or weights[0].size <= results.size:
        return Guard(before=weights)
    return Guard(after=(results,), if_also=weights)


def _of_weights(p: ConvProblem, *, along_windows: bool) -> Guard | None:
    if not (along_windows or any(axis.clipped for axis in window_axes(p))):
        return None
    given = (whole(p, "x"), whole(p, "y"))
    keeps = p.accumulate and bool(p.bias_gradient or COPIED_FOR * prod(p.shapes["w"]) <= sum(b.size for b in given))
    if p.accumulate and not keeps:
        return Guard(before=given)
    return Guard(after=_of_one_channel(p, along_windows=along_windows), if_also=given, keeps_weights=keeps)


def _of_one_channel(p: ConvProblem, *, along_windows: bool) -> tuple[Box, ...]:
    axes = tuple(zip(p.shapes["w"], p.w_strides, strict=True))
    boxes = [Box("w", (*axes[:2], *axes[3:]))]
    if along_windows and p.x_channels > 1:
        boxes.append(Box("w", (axes[0], *axes[2:])))
    return tuple(boxes)


def whole(p: ConvProblem, name: str) -> Box:
    """All of a tensor."""
    return Box(name, tuple(zip(p.shapes[name], p.strides[name], strict=True)))
