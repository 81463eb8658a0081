"""How far f32 may be relaxed, in PyTorch's words: `torch.backends.mkldnn.conv.fp32_precision`, and what it inherits.

Matrix products have their own, `torch.backends.mkldnn.matmul.fp32_precision`.
"""

from __future__ import annotations

import torch

from convgrad.settings import asked, with_order

MODES = {"ieee": "strict", "tf32": "tf32", "bf16": "bf16"}  # by PyTorch's word; "none" is nobody's

_of_pytorch = getattr(torch._C, "_get_fp32_precision_getter", None)  # since PyTorch 2.9


def asked_mode(operator: str = "conv") -> str | None:
    """The fpmath_mode of the surroundings, else what PyTorch was told for "conv" or "matmul" on CPUs, else None."""
    mode = asked(None)
    if mode is None and _of_pytorch is not None:
        return MODES.get(_of_pytorch("mkldnn", operator))
    return mode


def asked_arithmetic() -> str | None:
    """The fpmath_mode of a convolution, and the order of its sums if one is asked for, in one word."""
    return with_order(asked_mode())
