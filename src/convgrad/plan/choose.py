"""From a problem to a plan: which algorithm, which tile, which blocks. A pure function of problem and machine."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from math import gcd, prod
from typing import TYPE_CHECKING

from convgrad.dtypes import COMPUTE, SIZES
from convgrad.plan.along import Along, lanes_sum
from convgrad.plan.costs import LINE
from convgrad.plan.machine import Machine
from convgrad.plan.order import channels_in_turn, taps_inside
from convgrad.plan.units import most_added
from convgrad.problem.conv import ConvProblem, Unknown
from convgrad.problem.simplify import simplify

if TYPE_CHECKING:
    from convgrad.plan.depthwise.plane_data import PlaneDataPlan
    from convgrad.plan.depthwise.plane_weights import PlaneWeightsPlan
    from convgrad.plan.general.data import DataPlan
    from convgrad.plan.general.weights import WeightsPlan

    Plan = DataPlan | WeightsPlan | PlaneDataPlan | PlaneWeightsPlan


def variants(problem: ConvProblem, machine: Machine) -> Iterator[Plan]:
    """The plans worth considering, made as they are asked for; those of the fewest predicted cycles first.

    They give the same sums in different orders, hence possibly different last bits. The unknown must hold at least one
    number.
    """
    problem.validate()
    assert prod(problem.shapes[problem.solved]), "an empty result needs no kernel"
    add = partial(lanes_sum, problem, machine.lanes_f32, machine.registers, most_added(problem, machine))
    along = add(dots=machine.has_dots)
    # merging would tell channels, and so the order of sums, by extents
    if along is Along.ROWS and problem.order and along.value not in problem.order:
        along = add(whole=False)  # a part that is a single window, of a whole that is not
    problem = _simplified(problem, machine, along)
    if _are_few_and_alone(problem, machine):
        machine = machine.halved
    if problem.unknown is Unknown.W:  # a process may never need the other half
        from convgrad.plan.choose_weights import weights_variants

        return weights_variants(problem, machine)
    from convgrad.plan.choose_data import data_variants

    return data_variants(problem, machine, along)


def _simplified(problem: ConvProblem, machine: Machine, along: Along | None) -> ConvProblem:
    """A problem that is easier to plan, with the order of sums that it has in part and whole.

    Whether strides and dilations are skipped depends on pads, which parts of an image have in other places.
    """
    merges, whole = along is not Along.CHANNELS, along is Along.ROWS
    simple = simplify(problem, merges=merges, whole=whole)
    if problem.unknown is not Unknown.Y or max(map(gcd, problem.stride, problem.dilation), default=1) == 1:
        return simple
    as_asked = simplify(problem, merges=merges, whole=whole, skips=False)
    lanes = machine.lanes_f32 * 4 // SIZES[COMPUTE[problem.dtype]]

    def order(p: ConvProblem) -> tuple[int, bool]:
        return channels_in_turn(p), taps_inside(p, lanes, machine.registers)

    return simple if order(simple) == order(as_asked) else as_asked


def _are_few_and_alone(p: ConvProblem, machine: Machine) -> bool:
    """Whether all groups together, of a channel each and side by side, are less than a vector as long as a line.

    Half of it reads and writes them where they lie; a whole one would need them packed, and next to others that nobody
    wants. Weights, whose sums stay in registers, have to fill that half.
    """
    lanes = machine.lanes_f32 * 4 // SIZES[COMPUTE[p.dtype]]
    alone = p.x_channels == p.y_channels == p.x_strides[1] == p.y_strides[1] == 1
    whole = machine.lanes_f32 * 4 == LINE
    return whole and alone and (p.groups == lanes // 2 if p.unknown is Unknown.W else lanes // 4 <= p.groups < lanes)


def choose(problem: ConvProblem, machine: Machine) -> Plan:
    """The first variant; the same for equal arguments, on any number of threads."""
    return next(iter(variants(problem, machine)))
