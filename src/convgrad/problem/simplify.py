"""Exact rewrites: the same sum over the same memory as a problem that is easier to plan.

Nothing is copied or moved; only extents and strides change.
"""

from __future__ import annotations

from math import gcd, prod

from convgrad.dtypes import COMPUTE
from convgrad.problem.conv import ConvProblem, Unknown
from convgrad.values import frozen, replace

MOST_PHASES = 8  # of a stride that become channels: still few outputs in the words of plan.order, so sums keep theirs
LEAST_CHANNELS = 4  # that are summed, from where on phases are worth it
LEAST_MERGED = 16  # channels of a group, which make up for groups that are no longer taken together
FILLING_GROUPS, MANY_SUMMED = 8, 3  # side by side, that fill half of a vector; channels of y from which on they are 16
FAR_BETWEEN = 3  # elements, of which one is met, from where on an axis more is worth it
FAR_APART, NARROW_APART = 2, 1.5  # strides per span of a window from which elements between are not worth packing


@frozen
class _Axis:
    """One spatial axis, or the batch, with the steps of its elements in memory."""

    x: int
    y: int
    taps: int
    stride: int
    dilation: int
    low: int
    x_step: int
    w_step: int
    y_step: int

    @property
    def pointwise(self) -> bool:
        """Whether output p meets input p and no other."""
        return self.taps == self.stride == 1 and self.low == 0 and self.x == self.y


def simplify(
    problem: ConvProblem, *, merges: bool = True, whole: bool = False, skips: bool = True
) -> ConvProblem:  # fmt: skip
    """Strides without meaning become steps in memory, and neighbouring pointwise axes one axis.

    If it `merges`, taps and phases become channels where they can; of windows that are `whole` images always. If it
    `skips`, what stride and dilation have in common becomes a step as well, which depends on pads.
    """
    if 0 in (problem.batch, *problem.x_extent, *problem.y_extent, *problem.taps):
        return problem
    if whole:
        problem = with_taps_merged(problem)
    elif merges:
        problem = _phases_as_channels(_taps_as_channels(problem))
    axes = _axes(problem)
    if problem.unknown is not Unknown.X and problem.bias_gradient != "x":  # else elements between windows count, too
        apart = NARROW_APART if _is_widened_in_runs(problem) else FAR_APART
        axes = [piece for axis in axes for piece in _without_stride(axis, apart, skips=skips)]
    axes = _joined(axes)
    batch, x_step, y_step = problem.batch, problem.x_strides[0], problem.y_strides[0]
    first = axes[0]
    if first.pointwise and (x_step, y_step) == (first.x * first.x_step, first.y * first.y_step):
        axes[0] = replace(first, x=batch * first.x, y=batch * first.y)
        batch, x_step, y_step = 1, 0, 0
    elif first.pointwise and first.x == len(axes) == 1:  # an image of one element: there is nothing but images
        axes[0] = replace(first, x=batch, y=batch, x_step=x_step, y_step=y_step)
        batch, x_step, y_step = 1, 0, 0
    return _problem(problem, axes, batch, x_step, y_step)


def _taps_as_channels(p: ConvProblem) -> ConvProblem:
    """Not solving for y: taps of windows that lie side by side and fill an axis of x, as channels of the windows' grid.

    Every element of x then meets one window, at one tap. With one window it is what a fully connected layer is.
    """
    if p.unknown is Unknown.Y or p.bias_gradient == "x" or (p.bias and p.groups * p.x_channels > 1):
        return p
    if _groups_fill_vectors(p):
        return p
    merged = with_taps_merged(p)
    sums_of_taps = p.unknown is Unknown.X and prod(merged.taps) > 1
    return p if p.groups > 1 and (sums_of_taps or merged.x_channels < LEAST_MERGED) else merged


def _groups_fill_vectors(p: ConvProblem) -> bool:
    """Whether they lie side by side, enough of them to be taken together; more of those whose images are many sums."""
    many = p.unknown is Unknown.X and p.y_channels >= MANY_SUMMED
    enough = p.groups >= (LEAST_MERGED if many else FILLING_GROUPS)
    return enough and abs(p.x_strides[1]) <= max(map(abs, p.x_strides[3:]))


def with_taps_merged(p: ConvProblem) -> ConvProblem:
    """Taps of all axes as channels, where windows lie side by side and steps in memory follow each other."""
    before = None
    while p != before:  # with channels outermost it is the outermost axis that follows on them
        before = p
        for n in reversed(range(p.rank)):
            p = _with_taps_merged(p, n)
    return p


def _with_taps_merged(p: ConvProblem, n: int) -> ConvProblem:
    taps, x_step, w_step = p.taps[n], p.x_strides[3 + n], p.w_strides[3 + n]
    side_by_side = p.stride[n] == taps or p.y_extent[n] == 1
    if taps == 1 or not side_by_side or (p.dilation[n], p.pad_low[n], p.x_extent[n]) != (1, 0, taps * p.y_extent[n]):
        return p
    steps = p.x_strides[2], p.w_strides[2]
    if steps == (taps * x_step, taps * w_step) or p.x_channels == 1:
        steps = x_step, w_step
    elif (x_step, w_step) != (p.x_channels * steps[0], p.x_channels * steps[1]):
        return p

    def changed(values: tuple[int, ...], place: int, value: int) -> tuple[int, ...]:
        return (*values[:place], value, *values[place + 1 :])

    return replace(
        p,
        x_channels=taps * p.x_channels,
        merged_taps=taps * p.merged_taps,
        x_extent=changed(p.x_extent, n, p.y_extent[n]),
        taps=changed(p.taps, n, 1),
        stride=changed(p.stride, n, 1),
        x_strides=changed(changed(p.x_strides, 3 + n, taps * x_step), 2, steps[0]),
        w_strides=changed(changed(p.w_strides, 3 + n, 0), 2, steps[1]),
        bias_stride=0 if p.bias and p.unknown is Unknown.X else p.bias_stride,  # one number for all
    )


def _phases_as_channels(p: ConvProblem) -> ConvProblem:
    """Solving for one channel of x: elements between windows as channels of the windows' grid, where they fill it.

    With x at s·q + f and taps at s·t + f: s channels f, of a problem of stride 1 whose windows reach q = p + t.
    So what is read of y serves all phases of the stride. Only extents and pads tell which of two parts of an image is
    rewritten: the order of sums is the same.
    """
    if p.unknown is not Unknown.X or p.groups * p.x_channels > 1 or p.y_channels < LEAST_CHANNELS:
        return p
    s = p.stride[-1]
    fits = (p.x_extent[-1] % s, p.taps[-1] % s, p.pad_low[-1] % s) == (0, 0, 0) and p.dilation[-1] == 1
    if not (fits and 1 < s <= MOST_PHASES):
        return p
    x_step, w_step = p.x_strides[-1], p.w_strides[-1]
    return replace(
        p,
        x_channels=s,
        x_extent=(*p.x_extent[:-1], p.x_extent[-1] // s),
        taps=(*p.taps[:-1], p.taps[-1] // s),
        stride=(*p.stride[:-1], 1),
        pad_low=(*p.pad_low[:-1], p.pad_low[-1] // s),
        x_strides=(*p.x_strides[:2], x_step, *p.x_strides[3:-1], s * x_step),
        w_strides=(*p.w_strides[:2], w_step, *p.w_strides[3:-1], s * w_step),
        bias_stride=0,
    )


def _axes(p: ConvProblem) -> list[_Axis]:
    return [
        _Axis(*axis)
        for axis in zip(
            p.x_extent, p.y_extent, p.taps, p.stride, p.dilation, p.pad_low, p.x_strides[3:], p.w_strides[3:],
            p.y_strides[3:], strict=True,
        )
    ]  # fmt: skip


def _is_widened_in_runs(p: ConvProblem) -> bool:
    """Whether x is of 16 bits, which are packed, and a position has its channels side by side."""
    return COMPUTE[p.dtype] != p.dtype and p.unknown is Unknown.Y and abs(p.x_strides[2]) <= abs(p.x_strides[-1])


def _without_stride(axis: _Axis, apart: float, *, skips: bool) -> list[_Axis]:
    """Windows that lie apart: elements between them are skipped by a step in memory."""
    if axis.stride == 1:
        return [axis]
    last = axis.dilation * (axis.taps - 1)
    inside = axis.low == 0 and axis.stride * (axis.y - 1) + last < axis.x
    common = axis.stride if axis.taps == 1 else gcd(axis.stride, axis.dilation)
    skipped = common > 1 and (axis.taps == 1 or (skips and abs(axis.x_step) > 1))  # rows as they lie are whole vectors
    if skipped and axis.low % common == 0:
        return [_every(axis, common, inside=inside and axis.taps == 1)]
    if inside and axis.stride >= apart * (last + 1):  # windows p, and within each of them one window of taps
        windows = replace(axis, x=axis.y, taps=1, stride=1, dilation=1, x_step=axis.stride * axis.x_step, w_step=0)
        return [windows, replace(axis, x=last + 1, y=1, stride=1, y_step=0)]
    first = -axis.low % common
    if (
        skips and skipped and common >= FAR_BETWEEN and first < axis.x
    ):  # the first element that is met, on an axis of its own
        begin = replace(axis, x=first + 1, y=1, taps=1, stride=1, dilation=1, low=-first, w_step=0, y_step=0)
        return [begin, _every(replace(axis, x=axis.x - first, low=axis.low + first), common)]
    return [axis]


def _every(axis: _Axis, common: int, *, inside: bool = False) -> _Axis:
    """Of elements so far apart, which are all that strides and dilations meet; if that is `inside` x, one each."""
    return replace(
        axis,
        x=axis.y if inside else -(-axis.x // common),
        stride=axis.stride // common,
        dilation=axis.dilation // common if axis.taps > 1 else 1,
        low=axis.low // common,
        x_step=common * axis.x_step,
    )


def _joined(axes: list[_Axis]) -> list[_Axis]:
    joined: list[_Axis] = []
    for axis in axes:
        outer = joined[-1] if joined else None
        if outer and outer.pointwise and axis.pointwise:
            steps = (axis.x * axis.x_step, axis.y * axis.y_step)
            if axis.x == axis.y == 1 or (outer.x_step, outer.y_step) == steps:
                inner = outer if axis.x == 1 else axis
                joined[-1] = replace(inner, x=outer.x * axis.x, y=outer.y * axis.y)
                continue
        joined.append(axis)
    return joined


def _problem(p: ConvProblem, axes: list[_Axis], batch: int, x_step: int, y_step: int) -> ConvProblem:
    return replace(
        p,
        batch=batch,
        x_extent=tuple(axis.x for axis in axes),
        y_extent=tuple(axis.y for axis in axes),
        taps=tuple(axis.taps for axis in axes),
        stride=tuple(axis.stride for axis in axes),
        dilation=tuple(axis.dilation for axis in axes),
        pad_low=tuple(axis.low for axis in axes),
        x_strides=(x_step, *p.x_strides[1:3], *(axis.x_step for axis in axes)),
        w_strides=(*p.w_strides[:3], *(axis.w_step for axis in axes)),
        y_strides=(y_step, *p.y_strides[1:3], *(axis.y_step for axis in axes)),
    )
