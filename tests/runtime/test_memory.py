"""Memory that kernels work in."""

import ctypes

import numpy as np

from convgrad.runtime.memory import ALIGNMENT, Workspace


def test_a_workspace_begins_as_zeros():
    """Whatever the memory held before: lanes that nobody wants are multiplied, and subnormal numbers are slow."""
    for size in (1 << 12, 1 << 16, 1 << 20):
        kept = [np.full(size + ALIGNMENT, 255, np.uint8) for _ in range(4)]
        kept.clear()  # malloc hands out what was freed last
        block = Workspace(size)
        held = (ctypes.c_uint8 * size).from_address(block.address)
        assert not np.frombuffer(held, np.uint8).any()
