"""The operations as the specification defines them: float64, in the layout of the user, nothing clever.

Every function here follows an index formula in which the window index y and the tap k touch the image element
x = y * S + k * D - PB; an x outside the image contributes nothing. This is the oracle of the tests and of --check,
and shares nothing with the compiler.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import product
from math import prod

import numpy as np

from convgrad.spec.resolve import Resolved
from convgrad.spec.weights import letter_axes


def define(resolved: Resolved, inputs: Sequence[np.ndarray]) -> np.ndarray:
    """The output of the operation, in float64; `inputs` in the order of the operation, a bias last."""
    tensors = [np.asarray(tensor).astype(np.float64) for tensor in inputs]
    match resolved.op:
        case "Convolution" | "ConvTransposeBackwardData":
            return _with_bias(resolved, _solve_window(resolved, *tensors[:2]), tensors[2:])
        case "ConvTranspose" | "ConvolutionBackwardData":
            return _with_bias(resolved, _solve_image(resolved, *tensors[:2]), tensors[2:])
        case "ConvolutionBackwardWeights":
            return _solve_weights(resolved, image=tensors[0], window=tensors[1])
        case "ConvTransposeBackwardWeights":
            return _solve_weights(resolved, image=tensors[1], window=tensors[0])
        case _:
            channel = 1 if resolved.data_format == "NCX" else tensors[0].ndim - 1
            return tensors[0].sum(axis=tuple(axis for axis in range(tensors[0].ndim) if axis != channel))


def magnitude(resolved: Resolved, inputs: Sequence[np.ndarray]) -> np.ndarray:
    """The same sums over absolute values: what a bound on rounding errors is measured in."""
    return define(resolved, [np.abs(np.asarray(tensor).astype(np.float64)) for tensor in inputs])


def _solve_window(resolved: Resolved, image: np.ndarray, weights: np.ndarray) -> np.ndarray:
    """window[n, g, o, y] = sum over i and k of image[n, g, i, y * S + k * D - PB] * W[g, o, i, k]."""
    out = np.zeros((resolved.batch, *_per_group(resolved, resolved.window_channels), *resolved.window_extent))
    x = _grouped(resolved, image)
    w = _grouped_weights(resolved, weights)
    for tap, y_at, x_at in _taps(resolved):
        part = x[:, :, :, *x_at]
        columns = part.reshape(*part.shape[:3], prod(part.shape[3:]))
        out[:, :, :, *y_at] += np.matmul(w[:, :, :, *tap], columns).reshape(out[:, :, :, *y_at].shape)
    return _ungrouped(resolved, out)


def _solve_image(resolved: Resolved, window: np.ndarray, weights: np.ndarray) -> np.ndarray:
    """image[n, g, i, x] = sum over o, k and y with y * S + k * D - PB = x of window[n, g, o, y] * W[g, o, i, k]."""
    out = np.zeros((resolved.batch, *_per_group(resolved, resolved.image_channels), *resolved.image_extent))
    y = _grouped(resolved, window)
    w = _grouped_weights(resolved, weights).swapaxes(1, 2)
    for tap, y_at, x_at in _taps(resolved):
        part = y[:, :, :, *y_at]
        columns = part.reshape(*part.shape[:3], prod(part.shape[3:]))
        out[:, :, :, *x_at] += np.matmul(w[:, :, :, *tap], columns).reshape(out[:, :, :, *x_at].shape)
    return _ungrouped(resolved, out)


def _solve_weights(resolved: Resolved, *, image: np.ndarray, window: np.ndarray) -> np.ndarray:
    """W[g, o, i, k] = sum over n and y of image[n, g, i, y * S + k * D - PB] * window[n, g, o, y]."""
    out = np.zeros(resolved.output_shape)
    w = _grouped_weights(resolved, out)  # a view: what is written to it arrives in the user's layout
    assert np.shares_memory(w, out) or not out.size
    x, y = _grouped(resolved, image), _grouped(resolved, window)
    for tap, y_at, x_at in _taps(resolved):
        a, b = y[:, :, :, *y_at], x[:, :, :, *x_at]
        rows = a.reshape(*a.shape[:3], prod(a.shape[3:]))
        columns = b.reshape(*b.shape[:3], prod(b.shape[3:])).swapaxes(2, 3)
        w[:, :, :, *tap] = np.matmul(rows, columns).sum(axis=0)
    return out


def _taps(resolved: Resolved) -> Iterator[tuple[tuple[int, ...], tuple[slice, ...], tuple[slice, ...]]]:
    """Every tap, the windows that see a real element through it, and those elements."""
    per_axis = []
    for x, y, k, s, d, pad in zip(
        resolved.image_extent,
        resolved.window_extent,
        resolved.kernel,
        resolved.strides,
        resolved.dilations,
        resolved.pads_begin,
        strict=True,
    ):
        steps = []
        for tap in range(k):
            offset = tap * d - pad
            first = max(0, -(offset // s))
            last = min(y - 1, (x - 1 - offset) // s)
            if first <= last:
                start = first * s + offset
                steps.append((tap, slice(first, last + 1), slice(start, last * s + offset + 1, s)))
        per_axis.append(steps)
    for steps in product(*per_axis):
        taps, windows, elements = zip(*steps, strict=True)
        yield taps, windows, elements


def _grouped(resolved: Resolved, tensor: np.ndarray) -> np.ndarray:
    """(batch, group, channel of the group, spatial...) of an activation: global channel = g * C/G + c."""
    tensor = tensor if resolved.data_format == "NCX" else np.moveaxis(tensor, -1, 1)
    return tensor.reshape(tensor.shape[0], *_per_group(resolved, tensor.shape[1]), *tensor.shape[2:])


def _ungrouped(resolved: Resolved, tensor: np.ndarray) -> np.ndarray:
    n, g, c, *extent = tensor.shape
    joined = tensor.reshape(n, g * c, *extent)
    return joined if resolved.data_format == "NCX" else np.moveaxis(joined, 1, -1)


def _grouped_weights(resolved: Resolved, weights: np.ndarray) -> np.ndarray:
    """(group, window channel, image channel, taps...) of the weights, as a view of a contiguous array.

    The letter that counts all channels holds the groups: O of a convolution and I of a transposed one, which both
    lie on the window side, or O of a transposed one in the convention of the pages, which lies on the image side.
    """
    axes = letter_axes(resolved.weights_format, resolved.rank)
    transposed = resolved.op.startswith("ConvTranspose")
    window_axis, image_axis = (axes["I"], axes["O"]) if transposed else (axes["O"], axes["I"])
    taps = range(axes["X"], axes["X"] + resolved.rank)
    w = weights.transpose(window_axis, image_axis, *taps)
    g = resolved.groups
    if resolved.weights_convention == "library":
        return w.reshape(g, w.shape[0] // g, *w.shape[1:])
    return w.reshape(w.shape[0], g, w.shape[1] // g, *w.shape[2:]).swapaxes(0, 1)


def _with_bias(resolved: Resolved, out: np.ndarray, bias: Sequence[np.ndarray]) -> np.ndarray:
    if not bias:
        return out
    return out + (bias[0].reshape(-1, *(1,) * resolved.rank) if resolved.data_format == "NCX" else bias[0])


def _per_group(resolved: Resolved, channels: int) -> tuple[int, int]:
    return resolved.groups, channels // resolved.groups
