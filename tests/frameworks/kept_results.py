"""Results that are just large enough to be kept."""

import torch

from convgrad.torch.results import LARGE_BYTES, allocator

NUMBERS = LARGE_BYTES // 4  # of f32, just enough to be kept


def result(numbers=NUMBERS, fill=None, dtype=torch.float32):
    """A tensor as kernels get it."""
    made = allocator((numbers,), dtype)((numbers,), (1,), dtype)
    return made if fill is None else made.fill_(fill)
