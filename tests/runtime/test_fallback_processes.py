"""Fallbacks behind the public functions, in processes of their own: on demand, from the disk, in a forked child."""

import importlib.util
import os
import sys

import pytest

from runtime.fallback_cases import HERE, missing

pytestmark = [pytest.mark.usefixtures("cache_folder", "team"), pytest.mark.this_processor]

forks = pytest.mark.skipif(not hasattr(os, "fork"), reason="the system does not fork")
torch_is_here = importlib.util.find_spec("torch") is not None

CALLS = """
import hashlib, os, sys
import numpy as np, ml_dtypes
import convgrad
from convgrad.runtime import jit, threads
from tiny_kernels import llvm_is_here
threads.team.start()
texts, plain = [], jit.compile_ir
jit.compile_ir = lambda ir, *target: texts.append(ir) or plain(ir, *target)
rng = np.random.default_rng(0)
x, w = (rng.standard_normal(shape).astype(ml_dtypes.bfloat16) for shape in ((2, 9, 9, 40), (3, 3, 40, 24)))
bad = x.copy()
bad[1, 4, 4, 20] = np.inf

def call(x, **others):
    return convgrad.convolution(x, w, strides=[1, 1], dilations=[1, 1], **others)

def count(what):
    print(what, len(texts))
    texts.clear()

def show(result):
    print(hashlib.sha256(np.asarray(result, np.float32).tobytes()).hexdigest())
"""


@pytest.fixture
def printed(python, finish):
    """What a program prints that begins with CALLS, line by line."""

    def run(program, **variables):
        isa, _ = HERE[-1]
        return finish(python(CALLS + program, CONVGRAD_ISA=isa, **variables)).split("\n")

    return run


@missing
def test_the_functions_for_arrays_compile_it_on_demand(printed):
    program = "call(x); count('tame')\nfor _ in range(2): call(bad); count('bad')\ncall(x); count('tame')"
    out = "out = np.empty((2, 7, 7, 24), x.dtype); call(bad, out=out); show(out); show(call(bad)); show(call(x))"
    assert printed(program)[:4] == ["tame 1", "bad 1", "bad 0", "tame 0"]
    given, returned, tame, _ = printed(out)
    assert given == returned != tame


@missing
@pytest.mark.skipif(not torch_is_here, reason="PyTorch is not installed")
def test_so_do_those_for_tensors(printed):
    program = """
import torch
import convgrad.torch
threads.team.start()
def tensor(array, axes):
    return torch.from_numpy(array.astype(np.float32).transpose(axes).copy()).to(torch.bfloat16)
def of_torch(x):
    given = tensor(x, (0, 3, 1, 2)), tensor(w, (3, 2, 0, 1))
    return torch.ops.convgrad.convolution(*given, None, [1, 1], [0, 0], [0, 0], [1, 1], 1)
of_torch(x); count('tame')
for _ in range(2):
    result = of_torch(bad); count('bad')
show(result.float().numpy().transpose(0, 2, 3, 1)); show(call(bad))
"""
    *counts, ours, wanted, _ = printed(program)
    assert counts == ["tame 1", "bad 1", "bad 0"]
    assert ours == wanted


@missing
def test_a_later_process_finds_it_on_disk(printed):
    use = "call(x); count('tame'); show(call(bad)); count('bad'); print(llvm_is_here())"
    assert printed("call(x); count('tame')")[0] == "tame 1"
    tame, bits, bad, _, _ = printed(use)
    assert (tame, bad) == ("tame 0", "bad 1")  # nobody had needed it
    later = printed(use)
    assert later[:3] == ["tame 0", bits, "bad 0"]
    if sys.platform.startswith("linux"):
        assert later[3] == "False"


@missing
@forks
def test_a_child_makes_its_own(printed):
    program = """
call(x); count('tame')
if not os.fork():
    show(call(bad)); count('child')
    sys.stdout.flush()
    os._exit(0)
os.wait()
show(call(bad)); count('parent')
"""
    tame, ours, child, wanted, parent, _ = printed(program, CONVGRAD_CACHE_DIR="off")
    assert (tame, child, parent) == ("tame 1", "child 1", "parent 1")
    assert ours == wanted
