"""The definition of single elements of a result, for results too large to be defined whole."""

from __future__ import annotations

from collections.abc import Sequence
from math import prod

import numpy as np

from convgrad.spec.resolve import Resolved
from convgrad.spec.weights import letter_axes

_SEED = 20  # the same elements every time, so that a failure comes back


def sample(shape: Sequence[int], count: int) -> np.ndarray:
    """Indices of `count` elements, one in each row; a third of the coordinates lie on the rim."""
    rng = np.random.default_rng(_SEED)
    columns = []
    for extent in shape:
        inner = rng.integers(0, extent, count)
        rim = rng.choice([0, extent - 1], count)
        columns.append(np.where(rng.random(count) < 1 / 3, rim, inner))
    return np.stack(columns, axis=1)


def define_at(resolved: Resolved, inputs: Sequence[np.ndarray], indices: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Float64 values of the output at some indices, and the sums of the absolute products."""
    term = _term(resolved, *inputs[:2])
    channel_axis = 1 if resolved.data_format == "NCX" else -1
    values, sizes = np.empty(len(indices)), np.empty(len(indices))
    for i, index in enumerate(indices.tolist()):
        a, b = (factor.astype(np.float64) for factor in term.factors(index))
        bias = float(inputs[2][index[channel_axis]]) if len(inputs) == 3 else 0.0
        values[i] = np.sum(a * b) + bias
        sizes[i] = np.sum(np.abs(a) * np.abs(b)) + abs(bias)
    return values, sizes


def factors_of(resolved: Resolved, shapes: Sequence[Sequence[int]], index: Sequence[int]) -> np.ndarray:
    """Where the factors of every product in one element lie in the two inputs, as flat indices: (2, products)."""
    numbers = [np.arange(prod(shape)).reshape(shape) for shape in shapes[:2]]
    a, b = np.broadcast_arrays(*_term(resolved, *numbers).factors(index))
    places = np.stack([a.ravel(), b.ravel()])
    return places if _first_input_first(resolved) else places[::-1]


def _first_input_first(resolved: Resolved) -> bool:
    return resolved.op != "ConvTransposeBackwardWeights"


def _term(resolved: Resolved, first: np.ndarray, second: np.ndarray) -> _Element:
    op = resolved.op
    if op.endswith("BackwardWeights"):
        image, window = (first, second) if _first_input_first(resolved) else (second, first)
        return _WeightsElement(resolved, _grouped(resolved, image), _grouped(resolved, window))
    kind = _WindowElement if op in ("Convolution", "ConvTransposeBackwardData") else _ImageElement
    return kind(resolved, _grouped(resolved, first), _grouped_weights(resolved, second))


class _Element:
    """The factors of the products that one element of the output is the sum of."""

    def __init__(self, resolved: Resolved, a: np.ndarray, b: np.ndarray) -> None:
        self.resolved = resolved
        self.a = a
        self.b = b
        self.axes = list(
            zip(
                resolved.image_extent, resolved.window_extent, resolved.kernel, resolved.strides,
                resolved.dilations, resolved.pads_begin, strict=True,
            )
        )  # fmt: skip

    def activation_index(self, index: Sequence[int], channels: int) -> tuple[int, int, int, Sequence[int]]:
        """Batch, group, channel of the group and position of an element in the user's order."""
        if self.resolved.data_format == "NCX":
            n, channel, *position = index
        else:
            n, *position, channel = index
        group, channel = divmod(channel, channels // self.resolved.groups)
        return n, group, channel, position


class _WindowElement(_Element):
    def factors(self, index: Sequence[int]) -> tuple[np.ndarray, np.ndarray]:
        n, g, k, position = self.activation_index(index, self.resolved.window_channels)
        elements, taps = [], []
        for p, (extent, _, count, s, d, pad) in zip(position, self.axes, strict=True):
            r = np.arange(count)
            x = p * s + r * d - pad
            inside = (x >= 0) & (x < extent)
            elements.append(x[inside])
            taps.append(r[inside])
        return self.a[n, g][:, *np.ix_(*elements)], self.b[g, k][:, *np.ix_(*taps)]


class _ImageElement(_Element):
    def factors(self, index: Sequence[int]) -> tuple[np.ndarray, np.ndarray]:
        n, g, c, position = self.activation_index(index, self.resolved.image_channels)
        windows, taps = [], []
        for x, (_, extent, count, s, d, pad) in zip(position, self.axes, strict=True):
            r = np.arange(count)
            p, rest = np.divmod(x + pad - r * d, s)
            inside = (rest == 0) & (p >= 0) & (p < extent)
            windows.append(p[inside])
            taps.append(r[inside])
        return self.a[n, g][:, *np.ix_(*windows)], self.b[g, :, c][:, *np.ix_(*taps)]


class _WeightsElement(_Element):
    def factors(self, index: Sequence[int]) -> tuple[np.ndarray, np.ndarray]:
        g, k, c, position = self._weights_index(index)
        elements, windows = [], []
        for r, (extent, count, _, s, d, pad) in zip(position, self.axes, strict=True):
            p = np.arange(count)
            x = p * s + r * d - pad
            inside = (x >= 0) & (x < extent)
            elements.append(x[inside])
            windows.append(p[inside])
        return self.a[:, g, c][:, *np.ix_(*elements)], self.b[:, g, k][:, *np.ix_(*windows)]

    def _weights_index(self, index: Sequence[int]) -> tuple[int, int, int, Sequence[int]]:
        """Group, window channel, image channel and tap: one of the letters counts the channels of all groups."""
        resolved = self.resolved
        axes = letter_axes(resolved.weights_format, resolved.rank)
        window, image = ("I", "O") if resolved.op.startswith("ConvTranspose") else ("O", "I")
        k, c = index[axes[window]], index[axes[image]]
        position = index[axes["X"] : axes["X"] + resolved.rank]
        if resolved.weights_convention == "library":
            g, k = divmod(k, resolved.window_channels // resolved.groups)
        else:
            g, c = divmod(c, resolved.image_channels // resolved.groups)
        return g, k, c, position


def _grouped(resolved: Resolved, tensor: np.ndarray) -> np.ndarray:
    """(batch, group, channel of the group, spatial...)."""
    tensor = tensor if resolved.data_format == "NCX" else np.moveaxis(tensor, -1, 1)
    n, channels, *extent = tensor.shape
    return tensor.reshape(n, resolved.groups, channels // resolved.groups, *extent)


def _grouped_weights(resolved: Resolved, weights: np.ndarray) -> np.ndarray:
    """(group, window channel, image channel, taps...)."""
    axes = letter_axes(resolved.weights_format, resolved.rank)
    window, image = ("I", "O") if resolved.op.startswith("ConvTranspose") else ("O", "I")
    taps = range(axes["X"], axes["X"] + resolved.rank)
    w = weights.transpose(axes[window], axes[image], *taps)
    groups = resolved.groups
    if resolved.weights_convention == "library":
        return w.reshape(groups, w.shape[0] // groups, *w.shape[1:])
    return w.reshape(w.shape[0], groups, w.shape[1] // groups, *w.shape[2:]).swapaxes(0, 1)
