"""SAME pads in PyTorch's order of axes, for functions and layers; symbolic extents stay symbolic.

Source: the attribute auto_pad of the oneDNN Graph specification, as its library computes it.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

Ints = Sequence[Any]  # of int, or of torch.SymInt while a program is traced


def same_pads(
    kernel: Ints, strides: Ints, dilations: Ints, image: Ints | None, *, lower: bool
) -> tuple[tuple[Any, ...], tuple[Any, ...]]:
    """pads_begin and pads_end that leave ceil(extent / stride) windows of an image; `lower` begins with the odd one.

    `image` are its spatial extents, or None for a transposed convolution, whose image is stride times as large.
    """
    spans = [(k - 1) * d + 1 for k, d in zip(kernel, dilations, strict=True)]
    steps = strides if image is None else [s if s == 1 else x % s or s for x, s in zip(image, strides, strict=True)]
    totals = [max(0, span - step) for span, step in zip(spans, steps, strict=True)]
    smaller, larger = tuple(t // 2 for t in totals), tuple(t - t // 2 for t in totals)
    return (larger, smaller) if lower else (smaller, larger)
