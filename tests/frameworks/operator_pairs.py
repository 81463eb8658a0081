"""Operators beside the functions of PyTorch that compute the same, with whole numbers for both."""

import pytest
import torch

from convgrad.torch import operators

F = torch.nn.functional


def integers(*shape, dtype=torch.float64, seed=1):
    return torch.randint(-3, 4, shape, generator=torch.Generator().manual_seed(seed)).to(dtype)


X, W, BIAS = integers(2, 4, 7, 6), integers(6, 2, 3, 2, seed=2), integers(6, seed=3)
Y, OF_X = integers(2, 6, 4, 7, seed=4), integers(4, seed=5)


def ours(x, w, b):
    return operators.convolution(x, w, b, [2, 1], [1, 0], [1, 2], [1, 2], 2)


def theirs(x, w, b):
    return torch.conv2d(F.pad(x, (0, 2, 1, 1)), w, b, (2, 1), 0, (1, 2), 2)


def ours_transposed(y, w, b):
    return operators.conv_transpose(y, w, b, [2, 1], [1, 0], [1, 2], [1, 0], [1, 1], 2)


def theirs_transposed(y, w, b):
    return torch.conv_transpose2d(y, w, b, (2, 1), (1, 0), (1, 0), 2)[..., :-2]


PAIRS = {
    "convolution": (ours, theirs, (X, W, BIAS)),
    "conv_transpose": (ours_transposed, theirs_transposed, (Y, W, OF_X)),
}
pairs = pytest.mark.parametrize("pair", PAIRS.values(), ids=PAIRS)
