"""Kernels whose data may be beyond them: the one that takes over is made when it is first needed, and not before."""

import ctypes
import importlib.util
import os
import sys
import threading
from itertools import count

import numpy as np
import pytest

from codegen.buffers import Buffer, StridedArray
from codegen.dense_problems import W, X, Y, problem_of
from codegen.random_problems import solve
from convgrad.codegen.lower import lower
from convgrad.dtypes import numpy_dtype
from convgrad.plan.choose import variants
from convgrad.plan.data import DataPlan
from convgrad.plan.machine import available_isas, machine_for, why_not
from convgrad.plan.window_lanes import WindowLanesPlan
from convgrad.runtime import driver, jit, memory, set_num_threads
from convgrad.runtime.kernel import build, kernel_of_variant
from convgrad.runtime.threads import team as threads_team

pytestmark = pytest.mark.usefixtures("cache_folder", "team")

KINDS = [("amx_emulated", "f32"), ("amx_emulated", "bf16"), ("avx512_bf16_emulated", "bf16"), ("avx512_bf16", "bf16")]
HERE = [kind for kind in KINDS if why_not(kind[0]) is None]
missing = pytest.mark.skipif(not HERE, reason="no instruction set of this machine computes in pieces")
each_kind = pytest.mark.parametrize(("isa", "dtype"), HERE or KINDS[:1])
each_unknown = pytest.mark.parametrize("unknown", [X, W, Y], ids=["x", "w", "y"])
forks = pytest.mark.skipif(not hasattr(os, "fork"), reason="the system does not fork")
torch_is_here = importlib.util.find_spec("torch") is not None


def has_fallback(plan):
    return getattr(plan, "fallback", None) is not None


class Problem:
    """A problem with a kernel that has a fallback, its arrays, and what it has to give for data that need that."""

    def __init__(self, unknown, isa, dtype, *, image=(6, 18), channels=(33, 20), wanted=has_fallback, **others):
        self.machine = machine_for(isa)
        self.problem = p = problem_of(
            unknown, image, image, (3, 3), channels=channels, low=1, dtype=dtype, out_dtype="f32", **others
        )
        plans = list(variants(p, self.machine))
        self.variant = next(n for n, plan in enumerate(plans) if wanted(plan))
        self.plan = plans[self.variant]
        self.written_first = unknown is not W or self.plan.own_sums  # before the verdict
        self.unknown = p.unknown.value
        rng = np.random.default_rng(3)
        self.arrays = {
            name: StridedArray(shape, p.strides[name], numpy_dtype(p.out_dtype if name == self.unknown else p.dtype))
            for name, shape in p.shapes.items()
        }
        for name, array in self.arrays.items():
            if name != self.unknown:
                array.view[...] = rng.standard_normal(array.view.shape)
        self.given = next(array.view for name, array in self.arrays.items() if name != self.unknown)
        self.result = self.arrays[self.unknown].view
        self.addresses = [self.arrays[name].address for name in "xwy"]

    @classmethod
    def of_vectors(cls, unknown, **others):
        """Solving for W, of a kind that multiplies what surrounds an image."""
        kind = WindowLanesPlan if unknown is W else DataPlan
        return cls(unknown, available_isas()[-1], "f32", wanted=lambda plan: type(plan) is kind, **others)

    def kernel(self):
        return kernel_of_variant(self.problem, self.machine, self.variant)

    def spoil(self, value=2.0**-130):
        """Put in a number that pieces cannot stand for."""
        self.given.flat[self.given.size // 2] = value

    def bits(self, call):
        self.result[...] = 7
        call(*self.addresses)
        return self.result.tobytes()

    def bits_of_vectors(self):
        """Of the plan that the fallback is to be, by a kernel of its own."""
        name = f"vectors of {self.problem}"
        return self.bits(build(name, self.machine, lower=lambda *_: lower(self.plan.fallback)))


@pytest.fixture
def compiled(monkeypatch):
    """The IR of every compilation, as they come."""
    texts, plain = [], jit.compile_ir

    def compile_ir(ir, machine):
        texts.append(ir)
        return plain(ir, machine)

    threads_team.start()  # which may compile workers
    monkeypatch.setattr(jit, "compile_ir", compile_ir)
    return texts


@missing
@each_unknown
@each_kind
def test_a_fallback_is_compiled_when_data_need_it_and_once(isa, dtype, unknown, compiled):
    case = Problem(unknown, isa, dtype)
    kernel, usual = case.kernel(), case.given.flat[case.given.size // 2]
    tame = [case.bits(kernel) for _ in range(2)]
    assert len(compiled) == 1
    case.spoil()
    bad = [case.bits(kernel) for _ in range(2)]
    assert len(compiled) == 2
    assert {*bad, case.bits_of_vectors()} == {bad[0]}
    case.spoil(usual)
    assert {*tame, case.bits(kernel)} == {tame[0]} != {bad[0]}


@missing
@each_unknown
@each_kind
def test_results_are_the_same_on_any_number_of_threads(isa, dtype, unknown):
    case = Problem(unknown, isa, dtype)
    kernel = case.kernel()
    case.spoil(2.0**-130)
    wanted = case.bits_of_vectors()
    for threads in (1, 2, 3, 7):
        set_num_threads(threads)
        assert case.bits(kernel) == wanted


@missing
@each_unknown
def test_many_threads_that_need_a_fallback_at_once_get_one(unknown, compiled):
    cases = [Problem(unknown, *HERE[-1]) for _ in range(8)]
    kernel = cases[0].kernel()
    for case in cases:
        case.spoil()
    together, found = threading.Barrier(len(cases)), [b""] * len(cases)

    def caller(number):
        together.wait()
        found[number] = cases[number].bits(kernel)

    callers = [threading.Thread(target=caller, args=(number,)) for number in range(len(cases))]
    for thread in callers:
        thread.start()
    for thread in callers:
        thread.join()
    assert len(compiled) == 2
    assert set(found) == {cases[0].bits_of_vectors()}


def called_by_code(kernel, statuses):
    """A caller without Python around it: a record, workspace of just the size that it is told, and what comes back."""

    def call(*addresses):
        shared, scratch = Buffer(kernel.shared_bytes), Buffer(kernel.scratch_bytes)
        fields = (*addresses, 0, shared.address, scratch.address, 0, 0, 0, 0, 1)
        record = (ctypes.c_int64 * len(driver.RECORD_FIELDS))(*fields)
        statuses.append(ctypes.CFUNCTYPE(ctypes.c_int, ctypes.c_void_p)(kernel.address)(ctypes.addressof(record)))
        assert shared.redzone_is_whole()
        assert scratch.redzone_is_whole()

    return call


@missing
@each_unknown
@each_kind
def test_a_compiled_caller_is_told_and_calls_again(isa, dtype, unknown, compiled):
    case, statuses = Problem(unknown, isa, dtype), []
    kernel = case.kernel()
    call = called_by_code(kernel, statuses)
    assert case.bits(call) == case.bits(kernel)
    case.spoil()
    left = np.frombuffer(case.bits(call), case.result.dtype)
    assert case.written_first == bool(np.any(left != 7))
    assert len(compiled) == 1
    kernel.prepare()
    assert case.bits(call) == case.bits_of_vectors()
    assert statuses == [driver.DONE, driver.LACKING, driver.DONE]


@missing
@pytest.mark.parametrize("unknown", [Y, W], ids=["y", "w"])
@each_kind
def test_what_it_works_in_is_known_before_there_is_a_fallback_and_holds_that(isa, dtype, unknown):
    case = Problem(unknown, isa, dtype, image=(30, 30), channels=(64, 64))
    kernel, module = case.kernel(), lower(case.plan)
    fallback, told = module.fallback.lower(), module.fallback
    assert (told.shared_bytes, told.scratch_bytes) == (fallback.shared_bytes, fallback.scratch_bytes)
    assert told.most_tasks == max(stage.tasks for stage in fallback.stages) > 1
    assert kernel.most_tasks == max(told.most_tasks, *(stage.tasks for stage in module.stages))
    assert kernel.shared_bytes == max(module.shared_bytes, fallback.shared_bytes)
    assert kernel.scratch_bytes == max(module.scratch_bytes, fallback.scratch_bytes)
    if unknown is Y and dtype == "bf16":  # weights of f32, instead of one piece
        assert module.shared_bytes < fallback.shared_bytes
    assert kernel.workspace_bytes(1) == kernel.shared_bytes + kernel.scratch_bytes
    case.spoil()
    kernel.prepare()
    assert case.bits(called_by_code(kernel, [])) == case.bits_of_vectors()


@missing
@each_unknown
@each_kind
@pytest.mark.parametrize("error", [MemoryError, jit.CompileError])
def test_an_error_reaches_the_caller_and_the_next_call_tries_again(error, isa, dtype, unknown, monkeypatch):
    case = Problem(unknown, isa, dtype)
    kernel = case.kernel()
    case.spoil()
    wanted = case.bits_of_vectors()
    with monkeypatch.context() as broken:
        broken.setattr(jit, "compile_ir", lambda *_: (_ for _ in ()).throw(error("of this test")))
        case.result[...] = 7
        with pytest.raises(error, match="of this test"):
            kernel(*case.addresses)
    left = case.result.copy()
    assert np.all(np.isnan(left)) if case.written_first else np.all(left == 7)
    assert case.arrays[case.unknown].only_elements_changed()
    assert case.bits(kernel) == wanted


@missing
@pytest.mark.parametrize("strides", [(-2, 3, 40), (0, 1, 8)])
def test_what_cannot_be_completed_is_not_a_number_in_any_layout(strides):
    array = StridedArray((3, 2, 5), strides, np.float32)
    array.view[...] = 1
    memory.spoil(array.address, (3, 2, 5), strides, "f32")
    assert np.all(np.isnan(array.view))
    assert array.only_elements_changed()


@missing
@each_unknown
@each_kind
def test_an_interrupt_waits_until_the_result_is_whole(isa, dtype, unknown, monkeypatch):
    case = Problem(unknown, isa, dtype)
    kernel = case.kernel()
    case.spoil()
    wanted, asked, plain = case.bits_of_vectors(), count(), jit.compile_ir

    def interrupted(ir, machine):
        if next(asked) == 0:
            raise KeyboardInterrupt
        return plain(ir, machine)

    monkeypatch.setattr(jit, "compile_ir", interrupted)
    case.result[...] = 7
    with pytest.raises(KeyboardInterrupt):
        kernel(*case.addresses)
    assert case.result.tobytes() == wanted if case.written_first else np.all(case.result == 7)
    assert case.bits(kernel) == wanted


@missing
@each_unknown
@each_kind
def test_so_does_one_that_comes_while_the_kernel_runs(isa, dtype, unknown):
    """Python raises it when the kernel returns, in the place of what that had to say."""
    case = Problem(unknown, isa, dtype)
    kernel = case.kernel()
    case.spoil()
    wanted, run = case.bits_of_vectors(), kernel._run

    def interrupted(frame):
        run(frame)
        raise KeyboardInterrupt

    kernel._run = interrupted
    case.result[...] = 7
    with pytest.raises(KeyboardInterrupt):
        kernel(*case.addresses)
    assert case.result.tobytes() == wanted if case.written_first else np.all(case.result == 7)


@missing
def test_what_is_added_to_weights_is_added_once_by_the_call_that_makes_the_fallback():
    case = Problem(W, "amx_emulated", HERE[0][1], accumulate=True)
    kernel = case.kernel()
    case.spoil(2.0**-130)
    assert case.bits(kernel) == case.bits(kernel) == case.bits_of_vectors()


# --- fallbacks of vectors, and of fallbacks


@each_unknown
def test_an_infinity_that_meets_padding_takes_one_more_kernel_and_that_once(unknown, compiled):
    case = Problem.of_vectors(unknown)
    kernel, name = case.kernel(), "y" if unknown is W else "w"
    tame = case.bits(kernel)
    assert len(compiled) == 1
    view = case.arrays[name].view
    usual, view.flat[0] = view.flat[0], np.inf
    bad = [case.bits(kernel) for _ in range(2)]
    assert len(compiled) == 2
    assert bad[0] == bad[1]
    wanted = solve(case.problem, **{n: None if n == case.unknown else a.view for n, a in case.arrays.items()})
    np.testing.assert_array_equal(np.isfinite(case.result), np.isfinite(wanted))
    view.flat[0] = usual
    assert case.bits(kernel) == tame


def test_what_is_added_to_weights_has_its_fallback_from_the_start(compiled):
    case = Problem.of_vectors(W, channels=(9, 8), accumulate=True)
    kernel = case.kernel()
    assert len(compiled) == 2
    case.arrays["y"].view.flat[0] = np.inf
    statuses = []
    call = called_by_code(kernel, statuses)
    assert case.bits(call) == case.bits(kernel)
    assert statuses == [driver.DONE]
    wanted = solve(case.problem, w=None, **{n: case.arrays[n].view for n in "xy"}) + 7
    np.testing.assert_array_equal(np.isfinite(case.result), np.isfinite(wanted))


@missing
@each_kind
def test_a_fallback_may_need_one_itself(isa, dtype, compiled):
    """Of pieces on vectors, and of these product by product; a compiled caller asks twice."""
    case, statuses = Problem(Y, isa, dtype), []
    kernel = case.kernel()
    case.arrays["w"].view.flat[0] = np.inf
    call = called_by_code(kernel, statuses)
    for _ in range(2):
        case.bits(call)
        kernel.prepare_next()
    wanted = case.bits(call)
    assert statuses == [driver.LACKING, driver.LACKING, driver.DONE]
    assert len(compiled) == 3
    assert case.bits(case.kernel()) == case.bits(kernel) == wanted
    exact = solve(case.problem, y=None, **{n: case.arrays[n].view.astype(np.float64) for n in "xw"})
    np.testing.assert_array_equal(np.isnan(case.result), np.isnan(exact))
    np.testing.assert_array_equal(np.isinf(case.result), np.isinf(exact))


# --- other processes, and the public functions

CALLS = """
import hashlib, os, sys
import numpy as np, ml_dtypes
import convgrad
from convgrad.runtime import jit, threads
threads.team.start()
texts, plain = [], jit.compile_ir
jit.compile_ir = lambda ir, machine: texts.append(ir) or plain(ir, machine)
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
    use = "call(x); count('tame'); show(call(bad)); count('bad'); print('llvmlite.binding' in sys.modules)"
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
