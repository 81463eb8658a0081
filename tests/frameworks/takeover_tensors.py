"""Tensors of small whole numbers for the tests of what convgrad takes over."""

import torch


def integers(*shape, dtype=torch.float32, seed=1):
    return torch.randint(-2, 3, shape, generator=torch.Generator().manual_seed(seed)).to(dtype)
