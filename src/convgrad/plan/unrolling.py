"""How many axes of a problem that solves for X or Y have taps that are written out."""

from __future__ import annotations

from math import prod

from convgrad.plan.data_candidates import picks_once, sums_taps_inside
from convgrad.plan.general.data import DataPlan
from convgrad.plan.general.data_in_place import MOST_KNOWN_PHASES
from convgrad.plan.machine import Machine
from convgrad.plan.order import FEW_CHANNELS

MOST_UNROLLED = 320  # multiply-adds written out, of groups side by side
MOST_WRITTEN = 1024  # and of outputs along an axis; more takes seconds to compile and runs no faster


def unrolled_axes(plan: DataPlan, machine: Machine) -> int:
    """Innermost axes whose taps are worth writing out: where few input channels leave little to loop over."""
    if plan.known_axes is not None:
        return plan.known_axes
    if not plan.spread and sums_taps_inside(plan, machine):
        return 1
    if plan.spread and plan.in_channels > 1:
        return int(picks_once(plan.in_channels, plan.axes[-1]))
    if plan.in_channels > FEW_CHANNELS or plan.channel_unit > 1 or not (plan.spread or plan.pixels):
        return 0
    count, products = 0, max(1, prod(plan.tile) * plan.width // plan.lanes)
    most = MOST_WRITTEN if plan.pixels else MOST_UNROLLED
    for axis in reversed(plan.axes[1:]):
        products *= sum(phase.taps for phase in axis.phases)
        if products > most or len(axis.phases) > MOST_KNOWN_PHASES or (plan.reads_in_place and count == 1):
            break
        count += 1
    return count
