"""Memory that kernels work in."""

import ctypes
import mmap
import sys

import numpy as np
import pytest

from convgrad.runtime.memory import ALIGNMENT, BEHIND, Workspace


def test_a_workspace_begins_as_zeros():
    """Whatever the memory held before: lanes that nobody wants are multiplied, and subnormal numbers are slow."""
    for size in (1 << 12, 1 << 16, 1 << 20):
        kept = [np.full(size + ALIGNMENT, 255, np.uint8) for _ in range(4)]
        kept.clear()  # malloc hands out what was freed last
        block = Workspace(size)
        held = (ctypes.c_uint8 * size).from_address(block.address)
        assert not np.frombuffer(held, np.uint8).any()


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="asks Linux which pages are there")
@pytest.mark.parametrize("size", [1, 100, 4095, 4096, 70_000, 300_000, 1 << 22])
def test_pages_of_a_workspace_are_there_and_some_behind(size):
    """Kernels ask for memory ahead; a page that is not there is looked for again and again."""
    block = Workspace(size)
    first, last = block.address, block.address + size + BEHIND - 1
    start = first // mmap.PAGESIZE * mmap.PAGESIZE
    pages = (last - start) // mmap.PAGESIZE + 1
    there = (ctypes.c_ubyte * pages)()
    libc = ctypes.CDLL(None, use_errno=True)
    status = libc.mincore(ctypes.c_void_p(start), ctypes.c_size_t(pages * mmap.PAGESIZE), there)
    assert status == 0, ctypes.get_errno()
    assert all(page & 1 for page in there)
