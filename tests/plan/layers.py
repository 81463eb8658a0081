"""Square layers of networks as problems, in both layouts and for every unknown."""

import pytest

from codegen.random_problems import strides_in
from convgrad.plan.machine import LEVELS
from convgrad.problem.conv import ConvProblem, Unknown

each_level = pytest.mark.parametrize("isa", LEVELS)


def problem_of(unknown, *, channels, image, windows, taps, stride=1, dilation=1, low=0, groups=1, batch=1, nxc=False):
    """Dense, and square."""
    shapes = {
        "x": (batch, groups, channels[0], image, image),
        "w": (groups, channels[1], channels[0], taps, taps),
        "y": (batch, groups, channels[1], windows, windows),
    }
    order = (0, 3, 4, 1, 2) if nxc else (0, 1, 2, 3, 4)
    strides = {name: strides_in((0, 1, 2, 3, 4) if name == "w" else order, shape) for name, shape in shapes.items()}
    return ConvProblem(
        unknown=unknown, batch=batch, groups=groups, x_channels=channels[0], y_channels=channels[1],
        x_extent=(image,) * 2, y_extent=(windows,) * 2, taps=(taps,) * 2, stride=(stride,) * 2,
        dilation=(dilation,) * 2, pad_low=(low,) * 2, **{f"{name}_strides": value for name, value in strides.items()},
    )  # fmt: skip


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
