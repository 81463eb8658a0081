"""Memory that there is not is an error with numbers in it, and calls leave nothing behind."""

import gc
import subprocess
import sys
import tracemalloc
from pathlib import Path

import numpy as np
import pytest

from cases import FUNCTIONS
from convgrad import ConvError
from convgrad.arrays import call
from convgrad.operations import _convolution
from convgrad.plan.machine import current_machine
from convgrad.runtime import jit, kernel, memory

linux = pytest.mark.skipif(not sys.platform.startswith("linux"), reason="limits and /proc as Linux has them")
CALLS = 10_000
SLACK = 4 << 20  # bytes of resident memory: a few pages more are no leak


def resident_bytes():
    return int(Path("/proc/self/statm").read_text().split()[1]) * 4096


def mappings():
    return len(Path("/proc/self/maps").read_text().splitlines())


@linux
def test_workspace_that_there_is_not():
    """A process that may not take more memory: the error has numbers, the output is untouched, and it works after."""
    code = """
import resource, numpy as np, convgrad
x, w = np.ones((1, 1024, 16384), np.float32), np.ones((1, 16384, 1024), np.float32)
out = np.full((1, 1024, 1024), np.nan, np.float32)
convgrad.convolution(x[:, :, :64], w[:, :64, :64])
used = int(open("/proc/self/statm").read().split()[0]) * 4096
resource.setrlimit(resource.RLIMIT_AS, (used + (48 << 20), resource.RLIM_INFINITY))
for _ in range(2):
    try:
        convgrad.convolution(x, w, out=out)
    except MemoryError as error:
        print(error, np.isnan(out).all())
resource.setrlimit(resource.RLIMIT_AS, (resource.RLIM_INFINITY, resource.RLIM_INFINITY))
convgrad.convolution(x, w, out=out)
print((out == 16384).all())
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    first, second, after = done.stdout.splitlines() or [done.stderr] * 3
    assert first == second
    assert first.startswith("a kernel needs ")
    assert first.endswith(" MiB) of workspace True")
    assert after == "True"


def test_an_output_is_untouched_when_there_is_no_workspace(monkeypatch):
    def nothing(size, words):
        raise MemoryError(f"a kernel needs {size} bytes")

    x, w = np.ones((1, 9, 20), np.float32), np.ones((3, 20, 30), np.float32)
    out = np.full((1, 7, 30), np.nan, np.float32)
    monkeypatch.setattr(memory, "acquire", nothing)
    for _ in range(2):  # the careful path, then the fast one
        with pytest.raises(MemoryError, match=r"needs \d+ bytes"):
            FUNCTIONS["Convolution"](x, w, out=out)
        assert np.isnan(out).all()
    monkeypatch.undo()
    FUNCTIONS["Convolution"](x, w, out=out)
    np.testing.assert_array_equal(out, np.full((1, 7, 30), 60))


@linux
def test_ten_thousand_calls_leave_nothing_behind():
    """Results that are dropped, outputs of the caller, and calls that are refused."""
    x, w = np.ones((2, 20, 17), np.float32), np.ones((3, 17, 33), np.float32)
    out = np.empty((2, 18, 33), np.float32)

    def use(times):
        for _ in range(times):
            FUNCTIONS["Convolution"](x, w)
            FUNCTIONS["ConvolutionBackwardWeights"](x, out, out=w)
            with pytest.raises(ConvError):
                FUNCTIONS["Convolution"](x, w, groups=5)
            FUNCTIONS["ConvolutionBackwardData"](out, w, list(x.shape))

    # `__array_interface__` interns its keys anew each time; where nobody else holds them, CPython rebuilds its table of
    # all names every few thousand calls: 2 MB at once, in a process that has many.
    kept = [sys.intern(key) for key in x.__array_interface__]
    use(CALLS // 4)  # what is made once, such as the compiled functions of the inline cache, is made
    gc.collect()
    tracemalloc.start()
    try:
        before = tracemalloc.get_traced_memory()[0], resident_bytes(), mappings()
        use(CALLS // 4)
        gc.collect()
        after = tracemalloc.get_traced_memory()[0], resident_bytes(), mappings()
    finally:
        tracemalloc.stop()
    del kept
    assert after[0] - before[0] < 50_000
    assert after[1] - before[1] < SLACK
    assert after[2] - before[2] <= 4


@linux
def test_kernels_that_are_dropped_give_their_memory_back():
    """Made again and again from the cache on disk: the pages of their code go with them."""
    x, w = np.ones((2, 20, 17), np.float32), np.ones((3, 17, 33), np.float32)

    def use(times):
        for _ in range(times):
            kernel.forget()
            _convolution.forget()
            FUNCTIONS["Convolution"](x, w)

    use(20)
    gc.collect()
    before = resident_bytes(), mappings()
    use(300)
    gc.collect()
    assert resident_bytes() - before[0] < SLACK
    assert mappings() - before[1] <= 4


@linux
def test_compiling_leaves_nothing_behind():
    """LLVM's objects of a compilation, of which llvmlite does not give back all."""
    ir, machine = "define void @nothing() {\n ret void\n}\n", current_machine()

    def use(times):
        for _ in range(times):
            jit.compile_ir(ir, machine)

    def growth():
        before = resident_bytes()
        use(1000)
        return resident_bytes() - before

    use(100)
    assert any(growth() < 1 << 20 for _ in range(3))  # it was 5 MiB every time; what else a process does shows once


def test_geometries_that_are_remembered_are_bounded(monkeypatch):
    monkeypatch.setattr(call, "MOST_RECORDS", 10)
    _convolution.forget()
    w = np.ones((1, 1, 1), np.float32)
    for extent in range(1, 40):
        FUNCTIONS["Convolution"](np.ones((1, extent, 1), np.float32), w)
        assert len(_convolution.records) <= 10


def test_workspace_that_is_kept_is_bounded():
    memory.clear()
    blocks = [memory.acquire(1000) for _ in range(memory.KEEP_BLOCKS + 20)]
    for block in blocks:
        memory.release(block)
    assert memory.held_bytes() == memory.KEEP_BLOCKS * blocks[0].size
    memory.clear()
