"""From a problem to something that can be called with addresses."""

from __future__ import annotations

import ctypes
import threading
import time
from typing import Any

from convgrad.codegen.module import KernelModule, Stage
from convgrad.plan.machine import Machine, current_machine
from convgrad.problem.conv import ConvProblem
from convgrad.runtime import driver, jit, memory
from convgrad.runtime.threads import team

_kernels: dict[ConvProblem, Kernel] = {}
_compiling = threading.RLock()


class Kernel:
    """A compiled problem. Calls may come from any number of threads at once."""

    def __init__(self, problem: Any, module: KernelModule, objects: bytes, *, compile_seconds: float, from_disk: bool):
        self.problem = problem
        self.stages: tuple[Stage, ...] = module.stages
        self.shared_bytes = (module.shared_bytes + 63) // 64 * 64
        self.scratch_bytes = module.scratch_bytes
        self.compile_seconds = compile_seconds
        self.from_disk = from_disk
        addresses, self._code = jit.load(objects, (driver.ENTRY,))
        self._run = ctypes.CFUNCTYPE(None)(addresses[driver.ENTRY])
        self._most_tasks = max((stage.tasks for stage in module.stages), default=0)
        self._idle: list[tuple[Any, ctypes.c_void_p]] = []  # call records; one per call in flight

    def workspace_bytes(self, threads: int) -> int:
        """Memory that a call on so many threads works in, besides its arguments."""
        return self.shared_bytes + max(1, min(threads, self._most_tasks)) * self.scratch_bytes

    def __call__(self, x: int, w: int, y: int, bias: int = 0) -> None:
        """Solve for the unknown; arguments are addresses of the elements with all indices zero."""
        threads = team.count or team.start()
        if threads > self._most_tasks:
            threads = self._most_tasks or 1
        size = self.shared_bytes + threads * self.scratch_bytes
        block = memory.acquire(size) if size else None
        shared = block.address if block else 0
        try:
            record, argument = self._idle.pop()
        except IndexError:
            record, argument = _new_record()
        scratch = shared + self.shared_bytes
        driver.RECORD.pack_into(record, 0, x, w, y, bias, shared, scratch, 0, 0, team.parallel, team.limit, threads)
        try:
            self._run(argument)
        finally:
            self._idle.append((record, argument))
            if block:
                memory.release(block)


def kernel_for(problem: ConvProblem) -> Kernel:
    """The kernel of a problem: from memory, else compiled once, however many threads ask."""
    kernel = _kernels.get(problem)
    if kernel is None:
        with _compiling:
            kernel = _kernels.get(problem)
            if kernel is None:
                kernel = _kernels[problem] = _build(problem, current_machine())
    return kernel


def _build(problem: ConvProblem, machine: Machine) -> Kernel:
    from convgrad.codegen import lower
    from convgrad.plan import choose

    start = time.perf_counter()
    module = lower(choose(problem, machine))
    objects = jit.compile_ir(driver.with_driver(module), machine)
    return Kernel(problem, module, objects, compile_seconds=time.perf_counter() - start, from_disk=False)


def _new_record() -> tuple[Any, ctypes.c_void_p]:
    raw = ctypes.create_string_buffer(driver.RECORD_BYTES + 64)
    record = memoryview(raw)[-ctypes.addressof(raw) % 64 :].cast("B")
    return record, ctypes.c_void_p(ctypes.addressof(raw) + -ctypes.addressof(raw) % 64)
