"""Operations counted for `torch.utils.flop_counter.FlopCounterMode`, as PyTorch counts those of its own convolutions.

Two for every window, tap and pair of channels, also where a tap falls beside the image. Gradients take what the
operation takes whose gradients they are; unlike PyTorch's, those of the weights of groups count one group at a time.
"""

from __future__ import annotations

from math import prod
from typing import Any

import torch
from torch.utils.flop_counter import register_flop_formula

# By operation, which of (first input, second input, result) holds the windows, and which one the weights.
WHERE = {
    "convolution": (2, 1),
    "convolution_backward_data": (0, 1),
    "convolution_backward_weights": (1, 2),
    "conv_transpose": (0, 1),
    "conv_transpose_backward_data": (2, 1),
    "conv_transpose_backward_weights": (0, 2),
}


def register() -> None:
    """Tell PyTorch; takes 2 ms, for the import of its counter."""
    for name in WHERE:
        register_flop_formula(getattr(torch.ops.convgrad, name))(_formula(name))


def _formula(name: str):
    windows, weights = WHERE[name]

    def count(first: Any, second: Any, *_args: Any, out_shape: Any = None, **_keywords: Any) -> int:
        shapes = first, second, out_shape
        batch, _, *extents = shapes[windows]
        return 2 * batch * prod(extents) * prod(shapes[weights])

    return count
