"""Where vectors shorter than lines gain by reading rows of planes in place, as measured with AVX2 on Zen 3.

They have sixteen registers and no masks to speak of: every tap reads its numbers from memory by itself, and the numbers
of a stride are picked by shuffles. Slabs convert numbers of 16 bits once, and planes turned to groups fill every lane.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import prod

from convgrad.plan.axes import GatherAxis
from convgrad.plan.depthwise.plane_rows import is_narrow
from convgrad.problem.conv import ConvProblem

SHORTEST = 8  # lanes; the portable set's 4 were not measured
VECTORS = 2  # of a tile: sums of one, a row after the other, wait for each other
MOST_TAPS, MOST_NARROW_TAPS = 9, 16  # of an output, and of all where numbers are converted for each of them
MOST_SUMS = 10  # taps of a tile of weights
LONG, LONG_NARROW = 3, 4  # vectors, of which rows of windows that are met again and again have more


def short_data_pays(p: ConvProblem, axes: Sequence[GatherAxis], lanes: int) -> bool:
    """For X or Y."""
    inner = axes[-1]
    if prod(p.taps) > MOST_TAPS * prod(len(axis.phases) for axis in axes) or (
        inner.count <= lanes and inner.in_step > 1
    ):
        return False
    if not is_narrow(p):
        return True
    if prod(p.taps) > MOST_NARROW_TAPS or p.rank > 2 or inner.count <= lanes:
        return False
    return inner.taps <= inner.in_step if inner.in_step > 1 else p.dtype == "f16" or inner.out_step > 1


def short_weights_pay(p: ConvProblem, lanes: int) -> bool:
    """For W."""
    if prod(p.taps[-2:]) > MOST_SUMS:
        return False
    if is_narrow(p):
        alone = p.taps[-1] <= p.stride[-1] > 1  # each number is read for one tap
        long = p.dtype == "f16" and p.stride[-1] == 1 and p.y_extent[-1] > LONG_NARROW * lanes
        return p.rank == 2 and (alone or long)
    long = p.dtype == "f32" and p.y_extent[-1] > LONG * lanes
    return p.rank == 2 or prod(p.taps) <= MOST_TAPS or p.stride[-1] > 1 or long
