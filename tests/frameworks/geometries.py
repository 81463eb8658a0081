"""Geometries of convolutions for the tests of frameworks: a named table, and any number of random ones."""

from __future__ import annotations

import random
from dataclasses import dataclass
from math import prod


@dataclass(frozen=True, kw_only=True)
class Geometry:
    """Extents and attributes of Φ: x on the image side, w (y channels, x channels / groups, taps...), y."""

    batch: int = 2
    x_channels: int = 4
    y_channels: int = 6
    image: tuple[int, ...]
    kernel: tuple[int, ...]
    strides: tuple[int, ...]
    pads_begin: tuple[int, ...]
    pads_end: tuple[int, ...]
    dilations: tuple[int, ...]
    groups: int = 1

    @property
    def rank(self) -> int:
        """Number of spatial axes."""
        return len(self.image)

    @property
    def _axes(self):
        return zip(self.image, self.kernel, self.strides, self.pads_begin, self.pads_end, self.dilations, strict=True)

    @property
    def window(self) -> tuple[int, ...]:
        """Extents of y: how often the kernel fits."""
        return tuple((x + low + high - (k - 1) * d - 1) // s + 1 for x, k, s, low, high, d in self._axes)

    @property
    def output_padding(self) -> tuple[int, ...]:
        """What a transposed convolution of y lacks to the extents of x; always below the stride."""
        return tuple((x + low + high - (k - 1) * d - 1) % s for x, k, s, low, high, d in self._axes)

    @property
    def x_shape(self) -> tuple[int, ...]:
        """(N, C, X...)."""
        return (self.batch, self.x_channels, *self.image)

    @property
    def w_shape(self) -> tuple[int, ...]:
        """(OC, IC/groups, K...) of a convolution, (IC, OC/groups, K...) of a transposed one."""
        return (self.y_channels, self.x_channels // self.groups, *self.kernel)

    @property
    def y_shape(self) -> tuple[int, ...]:
        """(N, K, Y...)."""
        return (self.batch, self.y_channels, *self.window)

    @property
    def words(self) -> tuple:
        """What operators of convolutions take behind the tensors."""
        return (*map(list, (self.strides, self.pads_begin, self.pads_end, self.dilations)), self.groups)

    @property
    def transposed_words(self) -> tuple:
        """What operators of transposed convolutions take behind the tensors."""
        lists = (self.strides, self.pads_begin, self.pads_end, self.output_padding, self.dilations)
        return (*map(list, lists), self.groups)

    @property
    def products(self) -> dict[str, int]:
        """The most products that an element of each tensor sums."""
        taps = prod(self.kernel)
        return {
            "x": self.y_channels // self.groups * taps,
            "y": self.x_channels // self.groups * taps,
            "w": self.batch * prod(self.window),
        }


def _plain(*image: int, kernel: int = 2, pads: int = 0, stride: int = 1, dilation: int = 1, **more) -> Geometry:
    rank = len(image)
    words = {
        "kernel": kernel,
        "strides": stride,
        "pads_begin": pads,
        "pads_end": pads,
        "dilations": dilation,
    }
    return Geometry(image=image, **({name: (value,) * rank for name, value in words.items()} | more))


TABLE = {  # small, since gradients are checked number by number
    "dense, 2 axes": _plain(4, 3, x_channels=2, y_channels=3, pads=1),
    "strided with a rest": _plain(6, 5, kernel=3, stride=2, pads=1, batch=1, x_channels=1, y_channels=2),
    "asymmetric pads": _plain(4, 3, x_channels=1, y_channels=2, pads_begin=(1, 0), pads_end=(0, 2)),
    "dilated": _plain(6, 5, x_channels=2, y_channels=1, dilation=2, pads=1, batch=1),
    "groups": _plain(3, 4, x_channels=4, y_channels=6, groups=2, batch=1),
    "depthwise": _plain(4, 4, x_channels=3, y_channels=3, groups=3, pads=1, stride=2),
    "1 axis": _plain(7, kernel=3, x_channels=2, y_channels=2, stride=3, pads=2),
    "3 axes": _plain(3, 2, 3, x_channels=1, y_channels=2, batch=1, strides=(1, 1, 2), pads=1),
    "empty batch": _plain(3, 3, x_channels=1, y_channels=2, batch=0),
}


def random_geometries(count: int, seed: int = 5) -> list[Geometry]:
    """Geometries of one to three axes whose pads are the same on both sides, as PyTorch has them."""
    pick = random.Random(seed)
    found: list[Geometry] = []
    while len(found) < count:
        rank = pick.choice((1, 2, 2, 3))
        groups = pick.choice((1, 1, 1, 2, 3, 8))
        narrow = groups == 8
        pads = tuple(pick.randrange(4) for _ in range(rank))
        geometry = Geometry(
            batch=pick.randrange(1, 4),
            x_channels=groups * (1 if narrow else pick.randrange(1, 8)),
            y_channels=groups * (1 if narrow else pick.randrange(1, 8)),
            image=tuple(pick.randrange(1, (40, 14, 7)[rank - 1]) for _ in range(rank)),
            kernel=tuple(pick.randrange(1, 5) for _ in range(rank)),
            strides=tuple(pick.choice((1, 1, 2, 3)) for _ in range(rank)),
            pads_begin=pads,
            pads_end=pads,
            dilations=tuple(pick.choice((1, 1, 1, 2, 3)) for _ in range(rank)),
            groups=groups,
        )
        if min(geometry.window) >= 1:
            found.append(geometry)
    return found
