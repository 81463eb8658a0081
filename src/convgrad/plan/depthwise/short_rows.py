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
LONG_ROW, LONG_PAIRS, LONG_ROW_TAPS = 96, 160, 25  # outputs, also of bf16, of whose rows as many taps are not too many
MOST_TWICE = 1.45  # times as many lanes as outputs
LONG = 3  # vectors, of which rows of windows that are met again and again have more
LONG_NARROW = {"f16": 1, "bf16": 2}  # likewise, of rows that are converted for each tile


def short_data_pays(p: ConvProblem, axes: Sequence[GatherAxis], lanes: int) -> bool:
    """For X or Y."""
    inner, taps, phases = axes[-1], prod(p.taps), prod(len(axis.phases) for axis in axes)
    alone, strided = inner.count <= lanes, inner.in_step > 1
    if p.rank == 2 and not strided and phases == 1 and inner.count >= (LONG_PAIRS if p.dtype == "bf16" else LONG_ROW):
        return taps <= LONG_ROW_TAPS
    if taps > MOST_TAPS * phases or (alone and (strided or (p.rank > 2 and taps > MOST_TAPS))):
        return False
    if not is_narrow(p):
        return True
    if taps > MOST_NARROW_TAPS or p.rank > 2 or alone:
        return False
    if p.dtype == "bf16" and not strided and inner.out_step == 1:
        return fills_pairs(inner, lanes)
    return inner.taps <= inner.in_step if strided else p.dtype == "f16" or inner.out_step > 1


def fills_pairs(axis: GatherAxis, lanes: int) -> bool:
    """Whether vectors of bf16 that are read two by two have few outputs of a row twice, and each has a partner."""
    vectors = -(-axis.count // (2 * lanes))
    return axis.count % 2 == 0 and 2 * lanes <= axis.count >= vectors * 2 * lanes / MOST_TWICE


def short_weights_pay(p: ConvProblem, lanes: int) -> bool:
    """For W."""
    stride, windows = p.stride[-1], p.y_extent[-1]
    if prod(p.taps[-2:]) > MOST_SUMS:
        return False
    if is_narrow(p):
        once = p.taps[-1] <= stride > 1  # each number is read for one tap
        long = stride == 1 and windows > LONG_NARROW[p.dtype] * lanes
        return p.rank == 2 and (once or long)
    if p.rank == 2 or prod(p.taps) <= MOST_TAPS or stride > 2:
        return True
    return windows > lanes if stride > 1 else p.dtype == "f32" and windows > LONG * lanes
