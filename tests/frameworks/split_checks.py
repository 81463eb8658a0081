"""The list of what is checked of split tensors, and how split and whole ones are compared to the bit."""

import torch

from convgrad.sharding import Proportions
from convgrad.torch.distributed import SplitTensor, split

CHECKS = []


def check(function):
    """One of the checks: test_torch_distributed.py finds them by this word."""
    CHECKS.append(function)
    return function


def integers(*shape, low=-3, high=4, seed=0, dtype=torch.float32):
    """The same on every process; sums of them are exact."""
    generator = torch.Generator().manual_seed(seed + sum(shape))
    return torch.randint(low, high, shape, generator=generator).to(dtype)


def same(result, expected, where):
    assert result.shape == expected.shape, (where, result.shape, expected.shape)
    assert torch.equal(result, expected), f"{where}: {(result != expected).sum()} of {expected.numel()} differ"


def uneven(parts):
    """Parts of 1, 2, 3, ... shares."""
    ends = [n * (n + 1) // 2 for n in range(parts + 1)]
    return Proportions.of(ends)


def compare(where, function, inputs, dim, proportions=None, seed=7):
    """A function of split and of whole tensors: the results, and the gradients of its tensors and of its inputs.

    function(inputs) takes one tensor, split or whole, and a dictionary of those that are the same everywhere.
    """
    results = []
    for is_split in (False, True):
        src, *rest = (tensor.clone().requires_grad_() for tensor in inputs)
        given = split(src, dim, proportions=proportions) if is_split else src
        dst = function(given, *rest)
        if is_split:
            assert isinstance(dst, SplitTensor), where
            assert dst.boundaries == dst.proportions.boundaries(dst.shape[dim])
            dst = dst.gather()
        diff = integers(*dst.shape, seed=seed, dtype=dst.dtype)
        dst.backward(diff)
        results.append((dst.detach(), *(tensor.grad for tensor in (src, *rest))))
    for name, expected, result in zip(("dst", "src", "weights", "bias"), *results, strict=False):
        same(result, expected, (where, name))
