"""Kernels as callables: stages, records, workspace, and many callers at once."""

import ctypes
import struct
import threading

import numpy as np
import pytest
from tiny_kernels import run_tiny, tiny_kernel, tiny_module

from codegen.dense_problems import Y, problem_of
from convgrad.codegen.module import KernelModule, Stage
from convgrad.plan import host, machine
from convgrad.plan.choose import variants
from convgrad.plan.machine import available_isas, machine_for
from convgrad.runtime import Kernel, driver, jit, kernel, memory, set_num_threads
from convgrad.runtime.kernel import kernel_of_variant

pytestmark = pytest.mark.usefixtures("cache_folder", "team")


@pytest.mark.parametrize("tasks", [1, 2, 3, 64, 1000])
@pytest.mark.parametrize("threads", [1, 2, 3, 7])
def test_every_task_is_done_once_in_every_stage(tasks, threads):
    set_num_threads(threads)
    tiny = tiny_kernel(tasks)
    for first in range(20):
        run_tiny(tiny, tasks, first)


@pytest.mark.parametrize("isa", machine.available_isas())
def test_every_instruction_set_of_this_machine_runs(isa):
    run_tiny(tiny_kernel(5, machine.machine_for(isa)), 5)


def test_many_threads_call_one_kernel():
    set_num_threads(2)
    tiny, failures = tiny_kernel(64), []

    def caller(first):
        try:
            for step in range(300):
                run_tiny(tiny, 64, first + step)
        except AssertionError as error:
            failures.append(error)

    callers = [threading.Thread(target=caller, args=(1000 * number,)) for number in range(8)]
    for thread in callers:
        thread.start()
    for thread in callers:
        thread.join()
    assert not failures


def test_many_threads_ask_for_one_problem_and_one_compiles(monkeypatch):
    lowered, kernels = [], []

    def lower(problem, target):
        lowered.append(problem)
        return tiny_module(4)

    monkeypatch.setattr(kernel, "_lower", lower)
    kernel.forget()
    asking = [threading.Thread(target=lambda: kernels.append(kernel.kernel_for("a problem"))) for _ in range(8)]
    for thread in asking:
        thread.start()
    for thread in asking:
        thread.join()
    kernel.forget()
    assert len(lowered) == 1
    assert len(set(map(id, kernels))) == 1


def test_kernels_that_are_not_used_any_more_make_room(monkeypatch):
    monkeypatch.setattr(kernel, "_lower", lambda problem, target: tiny_module(1))
    monkeypatch.setattr(kernel, "KEEP_KERNELS", 2)
    kernel.forget()
    kept = [kernel.kernel_for(name) for name in "abc"]
    assert len(kernel._kernels) == 2
    assert kernel.kernel_for("c") is kept[2]
    run_tiny(kept[0], 1)
    kernel.forget()


def test_workspace_is_known_before_running():
    tiny = tiny_kernel(100)
    assert tiny.shared_bytes == 832  # 800 rounded up to whole cache lines
    assert tiny.workspace_bytes(1) == 832 + 64
    assert tiny.workspace_bytes(4) == 832 + 4 * 64
    assert tiny.workspace_bytes(1000) == 832 + 100 * 64


def test_a_kernel_without_stages_or_tasks_does_nothing():
    empty = KernelModule(ir="", stages=(), shared_bytes=0, scratch_bytes=0)
    idle = KernelModule(ir="", stages=(Stage(symbol="never", tasks=0),), shared_bytes=0, scratch_bytes=0)
    for module in (empty, idle):
        target = machine.current_machine()
        objects = jit.compile_ir(driver.with_driver(module, target.triple), target)
        Kernel("nothing", module, objects, seconds=0.0, from_disk=False)(0, 0, 0)


def test_workspace_is_aligned_and_used_again():
    memory.clear()
    first = memory.acquire(1000)
    second = memory.acquire(1000)
    assert first.address % 64 == second.address % 64 == 0
    assert first.address != second.address
    memory.release(second)
    assert memory.acquire(500) is second
    memory.release(second)
    assert memory.held_bytes() == second.size
    assert memory.acquire(second.size + 1).size > second.size
    memory.clear()


def test_kernels_that_leave_words_of_16_bits_have_blocks_of_their_own(monkeypatch):
    """Such words may be subnormal f32, which take forty times as long in lanes that nobody wants."""
    memory.clear()
    plain, words = memory.acquire(1000), memory.acquire(1000, words=True)
    memory.release(words, words=True)
    memory.release(plain)
    assert memory.held_bytes() == plain.size + words.size
    assert memory.acquire(500) is plain
    assert memory.acquire(500, words=True) is words
    asked = []
    monkeypatch.setattr(memory, "acquire", lambda size, words: asked.append(words) or memory.Workspace(size))
    monkeypatch.setattr(memory, "release", lambda block, words: asked.append(words))
    problem = problem_of(Y, (6, 9), (6, 9), (3, 3), channels=(34, 20), low=1)
    arrays = [np.ones(problem.shapes[name], np.float32) for name in "xwy"]
    for isa in available_isas():
        target, plans = machine_for(isa), list(variants(problem, machine_for(isa)))
        for variant, plan in enumerate(plans):
            kernel_of_variant(problem, target, variant)(*(array.ctypes.data for array in arrays))
            assert asked[-2:] == [plan.ON_UNITS] * 2
    memory.clear()


def test_memory_that_there_is_not_is_said_in_numbers():
    with pytest.raises(MemoryError, match=r"a kernel needs \d+ bytes \([\d.]+ MiB\) of workspace"):
        memory.acquire(1 << 60)


@pytest.mark.skipif(not host.host_triple().startswith("x86_64"), reason="sets a register of x86-64")
@pytest.mark.parametrize("threads", [1, 2])
def test_the_mode_of_the_thread_does_not_reach_the_arithmetic(threads):
    """With denormals flushed to zero in the calling thread, a kernel still halves the smallest normal number."""
    ir = """
define void @halve(ptr %call) nounwind {
  %from = load ptr, ptr %call
  %at = getelementptr i8, ptr %call, i64 16
  %to = load ptr, ptr %at
  %value = load float, ptr %from
  %half = fmul float %value, 0.5
  store float %half, ptr %to
  ret void
}
declare void @llvm.x86.sse.ldmxcsr(ptr)
declare void @llvm.x86.sse.stmxcsr(ptr)
define void @set_mode(ptr %mode) nounwind {
  call void @llvm.x86.sse.ldmxcsr(ptr %mode)
  ret void
}
define void @get_mode(ptr %mode) nounwind {
  call void @llvm.x86.sse.stmxcsr(ptr %mode)
  ret void
}
"""
    set_num_threads(threads)
    module = KernelModule(ir=ir, stages=(Stage(symbol="halve", tasks=threads),), shared_bytes=0, scratch_bytes=0)
    target = machine.current_machine()
    objects = jit.compile_ir(driver.with_driver(module, target.triple), target)
    halve = Kernel("halve", module, objects, seconds=0.0, from_disk=False)
    addresses, _alive = jit.load(objects, ("set_mode", "get_mode"))
    set_mode, get_mode = (ctypes.CFUNCTYPE(None, ctypes.c_void_p)(addresses[name]) for name in ("set_mode", "get_mode"))
    old, flushing, after = ctypes.c_uint32(), ctypes.c_uint32(0x9FC0), ctypes.c_uint32()
    x, y = ctypes.c_float(struct.unpack("<f", b"\x00\x00\x80\x00")[0]), ctypes.c_float(7)
    get_mode(ctypes.addressof(old))
    set_mode(ctypes.addressof(flushing))
    try:
        halve(ctypes.addressof(x), 0, ctypes.addressof(y))
        get_mode(ctypes.addressof(after))
    finally:
        set_mode(ctypes.addressof(old))
    assert bytes(y) == b"\x00\x00\x40\x00"
    assert after.value & 0x8040 == 0x8040  # and the caller finds its mode as it left it
