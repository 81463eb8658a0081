"""Worker threads of our own, for processes without an OpenMP runtime and for forked children, where libgomp hangs.

The workers are system threads inside compiled code: they never touch Python, so they need no interpreter lock and
nothing has to be joined at exit. One job runs at a time. A caller that finds the pool busy runs its job alone, which is
harmless: whoever takes part claims tasks until none are left.

How it works. `word` holds two numbers: below, how many more workers may join the current job; above, how many are
inside. A worker joins by one compare-and-swap (one fewer may join, one more is inside), so it can never enter a job
that has been closed; the caller closes by clearing the lower half and returns when the upper one is zero. `generation`
only tells workers that there is something to look at. A worker spins on it for a while and then sleeps on a condition.
"""

from __future__ import annotations

import ctypes
import os
import signal
import threading
from collections.abc import Callable
from functools import cache

from convgrad.plan.machine import available_cpus, host_triple, machine_for

SPINS = 1500  # pauses before a worker sleeps: 20 to 50 us, a few times what waking it would cost
SYMBOLS = ("convgrad_pool_reset", "convgrad_pool_worker", "convgrad_pool_parallel")

_PAUSE = {
    "x86_64": ("declare void @llvm.x86.sse2.pause()", "call void @llvm.x86.sse2.pause()"),
    "aarch64": ("declare void @llvm.aarch64.hint(i32)", "call void @llvm.aarch64.hint(i32 1)"),  # yield
}

# Offsets into the state; what different threads write is kept on cache lines of its own.
_IR = """
@state = internal global [640 x i8] zeroinitializer, align 128
@word = internal alias i64, ptr @state
@generation = internal alias i64, getelementptr (i8, ptr @state, i64 64)
@task = internal alias ptr, getelementptr (i8, ptr @state, i64 128)
@data = internal alias ptr, getelementptr (i8, ptr @state, i64 136)
@busy = internal alias i32, getelementptr (i8, ptr @state, i64 192)
@sleepers = internal alias i32, getelementptr (i8, ptr @state, i64 256)
@spins = internal alias i64, getelementptr (i8, ptr @state, i64 320)
@mutex = internal alias [128 x i8], getelementptr (i8, ptr @state, i64 384)
@wake = internal alias [128 x i8], getelementptr (i8, ptr @state, i64 512)

declare i32 @pthread_mutex_init(ptr, ptr)
declare i32 @pthread_mutex_lock(ptr)
declare i32 @pthread_mutex_unlock(ptr)
declare i32 @pthread_cond_init(ptr, ptr)
declare i32 @pthread_cond_wait(ptr, ptr)
declare i32 @pthread_cond_broadcast(ptr)
declare i32 @sched_yield()
$declare_pause

define void @convgrad_pool_reset(i64 %spins) nounwind {
  store i64 0, ptr @word
  store i64 0, ptr @generation
  store i32 0, ptr @busy
  store i32 0, ptr @sleepers
  store i64 %spins, ptr @spins
  %m = call i32 @pthread_mutex_init(ptr @mutex, ptr null)
  %w = call i32 @pthread_cond_init(ptr @wake, ptr null)
  ret void
}

define ptr @convgrad_pool_worker(ptr %unused) nounwind {
start:
  br label %idle
idle:
  %seen = phi i64 [ 0, %start ], [ %now, %join ], [ %now, %finish ]
  %patience = load i64, ptr @spins
  br label %look
look:
  %left = phi i64 [ %patience, %idle ], [ %left.1, %pause ]
  %g = load atomic i64, ptr @generation acquire, align 8
  %news = icmp ne i64 %g, %seen
  br i1 %news, label %found, label %count
count:
  %left.1 = sub i64 %left, 1
  %tired = icmp slt i64 %left, 1
  br i1 %tired, label %sleep, label %pause
pause:
  $pause
  br label %look
sleep:
  %l = call i32 @pthread_mutex_lock(ptr @mutex)
  %in = atomicrmw add ptr @sleepers, i32 1 seq_cst
  br label %check
check:
  %h = load atomic i64, ptr @generation seq_cst, align 8
  %woken = icmp ne i64 %h, %seen
  br i1 %woken, label %awake, label %wait
wait:
  %c = call i32 @pthread_cond_wait(ptr @wake, ptr @mutex)
  br label %check
awake:
  %out = atomicrmw sub ptr @sleepers, i32 1 seq_cst
  %u = call i32 @pthread_mutex_unlock(ptr @mutex)
  br label %found
found:
  %now = phi i64 [ %g, %look ], [ %h, %awake ]
  %first = load atomic i64, ptr @word monotonic, align 8
  br label %join
join:
  %old = phi i64 [ %first, %found ], [ %current, %try ]
  %places = and i64 %old, 4294967295
  %full = icmp eq i64 %places, 0
  br i1 %full, label %idle, label %try
try:
  %new = add i64 %old, 4294967295
  %swap = cmpxchg ptr @word, i64 %old, i64 %new acquire monotonic
  %current = extractvalue { i64, i1 } %swap, 0
  %won = extractvalue { i64, i1 } %swap, 1
  br i1 %won, label %run, label %join
run:
  %task = load ptr, ptr @task
  %data = load ptr, ptr @data
  call void %task(ptr %data)
  br label %finish
finish:
  %gone = atomicrmw sub ptr @word, i64 4294967296 release
  br label %idle
}

define void @convgrad_pool_parallel(ptr %task, ptr %data, i32 %threads, i32 %flags) nounwind {
start:
  %take = cmpxchg ptr @busy, i32 0, i32 1 acquire monotonic
  %ours = extractvalue { i32, i1 } %take, 1
  br i1 %ours, label %open, label %alone
alone:
  call void %task(ptr %data)
  ret void
open:
  store ptr %task, ptr @task
  store ptr %data, ptr @data
  %others.32 = sub i32 %threads, 1
  %others = zext i32 %others.32 to i64
  store atomic i64 %others, ptr @word release, align 8
  %g = atomicrmw add ptr @generation, i64 1 seq_cst
  %asleep = load atomic i32, ptr @sleepers seq_cst, align 4
  %quiet = icmp eq i32 %asleep, 0
  br i1 %quiet, label %work, label %rouse
rouse:
  %l = call i32 @pthread_mutex_lock(ptr @mutex)
  %b = call i32 @pthread_cond_broadcast(ptr @wake)
  %u = call i32 @pthread_mutex_unlock(ptr @mutex)
  br label %work
work:
  call void %task(ptr %data)
  %closed = atomicrmw and ptr @word, i64 -4294967296 acquire
  %patience = load i64, ptr @spins
  br label %look
look:
  %left = phi i64 [ %patience, %work ], [ %left.1, %pause ], [ 0, %yield ]
  %w = load atomic i64, ptr @word acquire, align 8
  %empty = icmp eq i64 %w, 0
  br i1 %empty, label %done, label %count
count:
  %left.1 = sub i64 %left, 1
  %tired = icmp slt i64 %left, 1
  br i1 %tired, label %yield, label %pause
pause:
  $pause
  br label %look
yield:
  %y = call i32 @sched_yield()
  br label %look
done:
  store atomic i32 0, ptr @busy release, align 4
  ret void
}
"""


def pool_ir(triple: str) -> str:
    """The pool for a target."""
    declare, pause = _PAUSE.get(triple.split("-")[0].replace("arm64", "aarch64"), ("", ""))
    return _IR.replace("$declare_pause", declare).replace("$pause", pause)


@cache
def _code() -> dict[str, int]:
    """Addresses of the compiled functions. Never unloaded: workers are inside."""
    from convgrad.runtime import cache, jit

    machine = machine_for("portable", triple=host_triple())
    ir = pool_ir(machine.triple)
    key = cache.key_of("pool", ir, machine)
    entry = cache.read(key)
    objects = entry.objects if entry else jit.compile_ir(ir, machine)
    if not entry:
        cache.write(key, cache.Entry(objects, {"what": "pool of threads"}))
    addresses, loaded = jit.load(objects, SYMBOLS)
    ctypes.pythonapi.Py_IncRef(ctypes.py_object(loaded))
    return addresses


class Pool:
    """The workers of this process. After a fork the child has none and starts over."""

    def __init__(self) -> None:
        """A pool without workers."""
        self._lock = threading.Lock()
        self._ready = False
        self.workers = 0

    @property
    def parallel(self) -> int:
        """Address of the function that runs a job, in the manner of GOMP_parallel."""
        return _code()["convgrad_pool_parallel"]

    def grow(self, workers: int) -> None:
        """Have at least so many workers; what the system refuses to start is done without."""
        with self._lock:
            spins = SPINS if workers < available_cpus()[0] else 0  # more threads than cores: leave the cores to work
            if not self._ready:
                ctypes.CFUNCTYPE(None, ctypes.c_int64)(_code()["convgrad_pool_reset"])(spins)
                self._ready = True
            while self.workers < workers and _start_thread(_code()["convgrad_pool_worker"]):
                self.workers += 1

    def forget(self) -> None:
        """In a forked child: the workers stayed behind."""
        self.__init__()


def _start_thread(function: int) -> bool:
    libc, thread = ctypes.CDLL(None), ctypes.c_void_p()
    old = signal.pthread_sigmask(signal.SIG_BLOCK, signal.valid_signals())  # signals belong to threads that run Python
    try:
        failed = libc.pthread_create(ctypes.byref(thread), None, ctypes.c_void_p(function), None)
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, old)
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
        try:
            helpers = [self._executor.submit(function, argument) for _ in range(threads - 1)]
        except (RuntimeError, AttributeError):  # the interpreter is shutting down
            helpers = []
        function(argument)
        for helper in helpers:
            if not helper.cancel():  # one that has not begun is not needed any more
                helper.result()

    def forget(self) -> None:
        """In a forked child: the workers stayed behind."""
        self._executor = None
