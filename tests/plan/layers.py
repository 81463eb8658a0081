"""Square layers of networks as problems, in both layouts and for every unknown."""

from functools import cache
from math import prod

import pytest

from codegen import dense_problems
from convgrad.plan.choose import variants
from convgrad.plan.machine import LEVELS, machine_for
from convgrad.problem.conv import Unknown

each_level = pytest.mark.parametrize("isa", LEVELS)


def problem_of(unknown, *, channels, image, windows, taps, stride=1, dilation=1, low=0, groups=1, batch=1, nxc=False):
    """Dense, and square."""
    sizes = {"channels": channels, "groups": groups, "batch": batch, "stride": stride, "dilation": dilation, "low": low}
    layout = "NXC" if nxc else "NCX"
    return dense_problems.problem_of(
        unknown, (image,) * 2, (windows,) * 2, (taps,) * 2, **sizes, layout=layout, weights="NCX"
    )


LAYERS = {
    "stem": {"channels": (3, 64), "image": 224, "windows": 112, "taps": 7, "stride": 2, "low": 3},
    "dense": {"channels": (256, 256), "image": 14, "windows": 14, "taps": 3, "low": 1},
    "pointwise": {"channels": (512, 2048), "image": 7, "windows": 7, "taps": 1},
    "depthwise": {"channels": (1, 1), "groups": 144, "image": 56, "windows": 56, "taps": 3, "low": 1},
    "grouped": {"channels": (4, 4), "groups": 32, "image": 56, "windows": 56, "taps": 3, "low": 1},
    "generator": {"channels": (64, 128), "image": 64, "windows": 32, "taps": 4, "stride": 2, "low": 1},
    "patches": {"channels": (3, 768), "image": 224, "windows": 14, "taps": 16, "stride": 16},
    "dilated": {"channels": (256, 256), "image": 33, "windows": 33, "taps": 3, "dilation": 18, "low": 18},
    "head": {"channels": (64, 1), "image": 128, "windows": 128, "taps": 9, "low": 4},
    "large patches of many channels": {"channels": (1000, 64), "image": 64, "windows": 4, "taps": 16, "stride": 16},
}
TABLE = {
    f"{name}, {unknown.value}, {'NXC' if nxc else 'NCX'}": problem_of(unknown, **layer, nxc=nxc)
    for name, layer in LAYERS.items()
    for unknown in Unknown
    for nxc in (False, True)
}


@cache  # several tests look at the same plans
def plans_of(name, isa):
    """All plans of a problem of the table, as a tuple."""
    return tuple(variants(TABLE[name], machine_for(isa)))


def tasks_of_a_panel(plan):
    """How many of them multiply the same weights."""
    return prod(plan.grid) // (plan.group_blocks * -(-plan.lane_blocks // plan.blocks_per_task))
