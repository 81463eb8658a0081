"""Worker threads of our own, for processes without an OpenMP runtime and for forked children, where libgomp hangs.

The workers are system threads inside compiled code: they never touch Python, so they need no interpreter lock and
nothing has to be joined at exit. One job runs at a time. A caller that finds the pool busy runs its job alone, which is
harmless: whoever takes part claims tasks until none are left.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import signal
import time
from collections.abc import Callable
from functools import cache

from convgrad.plan.host import available_cpus, host_triple
from convgrad.runtime.pool_ir import SYMBOLS, pool_ir

PATIENCE = 200e-6  # seconds that a worker spins before it sleeps: a few times what waking it costs under a hypervisor
FAULTS = ("SIGSEGV", "SIGBUS", "SIGILL", "SIGFPE", "SIGTRAP", "SIGSYS")  # what a thread does, not what is sent to it
TRIAL = 300  # pauses that are timed to learn how long one takes: 10 to 45 ns, by the CPU
SIGNAL_BYTES = 128  # of a set of signals; systems other than Linux need fewer


@cache
def _code() -> dict[str, int]:
    """Addresses of the compiled functions. Never unloaded: workers are inside."""
    from convgrad.runtime import jit
    from convgrad.runtime.support import support_code

    objects = support_code("pool of threads", pool_ir(host_triple()), jit.IN_HASTE)  # most of it is waiting
    addresses, loaded = jit.load(objects, SYMBOLS)
    ctypes.pythonapi.Py_IncRef(ctypes.py_object(loaded))
    return addresses


def _function(name: str) -> Callable[[int], None]:
    return ctypes.CFUNCTYPE(None, ctypes.c_int64)(_code()[name])


@cache
def _spins() -> int:
    """How many pauses make up PATIENCE on this CPU."""
    pause, times = _function("convgrad_pool_pause"), []
    for _ in range(3):
        start = time.perf_counter()
        pause(TRIAL)
        times.append(time.perf_counter() - start)
    return max(100, int(PATIENCE / min(times) * TRIAL))


class Pool:
    """The workers of this process. After a fork the child has none and starts over."""

    def __init__(self) -> None:
        """A pool without workers."""
        self._ready = False
        self.workers = 0

    @property
    def parallel(self) -> int:
        """Address of the function that runs a job, in the manner of GOMP_parallel."""
        return _code()["convgrad_pool_parallel"]

    def grow(self, workers: int) -> None:
        """Have at least so many workers; what the system refuses to start is done without. One thread at a time."""
        if not self._ready:
            _function("convgrad_pool_reset")(0)
            self._ready = True
        spins = _spins() if workers < available_cpus()[0] else 0  # more threads than cores: leave the cores to work
        _function("convgrad_pool_spin")(spins)
        while self.workers < workers and _start_thread(_code()["convgrad_pool_worker"]):
            self.workers += 1

    def forget(self) -> None:
        """In a forked child: the workers stayed behind."""
        self.__init__()


def _start_thread(function: int) -> bool:
    """Start one that signals do not reach but for its own faults: the others belong to threads that run Python.

    Not by the module `signal`, whose sets of enums take as long to make as the thread takes to start.
    """
    libc, thread = ctypes.CDLL(None), ctypes.c_void_p()
    others, old = ctypes.create_string_buffer(SIGNAL_BYTES), ctypes.create_string_buffer(SIGNAL_BYTES)
    libc.sigfillset(others)
    for name in FAULTS:
        if hasattr(signal, name):
            libc.sigdelset(others, int(getattr(signal, name)))
    libc.pthread_sigmask(signal.SIG_BLOCK, others, old)
    try:
        failed = libc.pthread_create(ctypes.byref(thread), None, ctypes.c_void_p(function), None)
    finally:
        libc.pthread_sigmask(signal.SIG_SETMASK, old, None)
    if not failed:
        libc.pthread_detach(thread)
    return not failed


def is_supported() -> bool:
    """Whether the system has POSIX threads."""
    return os.name == "posix"


class PythonPool:
    """The same service by Python threads, where there are no POSIX threads. Slower to start a job, by 50 us or so."""

    def __init__(self) -> None:
        """A pool without workers."""
        self._executor = None
        signature = ctypes.CFUNCTYPE(None, ctypes.c_void_p, ctypes.c_void_p, ctypes.c_uint, ctypes.c_uint)
        self._callback = signature(self._run)
        self.parallel = ctypes.cast(self._callback, ctypes.c_void_p).value or 0

    def grow(self, workers: int) -> None:
        """Have at least so many workers."""
        from concurrent.futures import ThreadPoolExecutor

        if self._executor is None or self._executor._max_workers < workers:
            self._executor = ThreadPoolExecutor(workers, thread_name_prefix="convgrad")

    def _run(self, task: int, data: int, threads: int, flags: int) -> None:
        function: Callable[[ctypes.c_void_p], None] = ctypes.CFUNCTYPE(None, ctypes.c_void_p)(task)
        argument = ctypes.c_void_p(data)
        helpers = []
        if self._executor:
            with contextlib.suppress(RuntimeError):  # the interpreter is shutting down: no more helpers
                for _ in range(threads - 1):
                    helpers.append(self._executor.submit(function, argument))
        function(argument)
        for helper in helpers:
            if not helper.cancel():  # one that has not begun is not needed any more
                helper.result()

    def forget(self) -> None:
        """In a forked child: the workers stayed behind."""
        self._executor = None
