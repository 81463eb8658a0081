"""A job that notes which threads take part in it, for as long as it is told."""

import ctypes
import os
import time
from pathlib import Path

from convgrad.plan.machine import current_machine
from convgrad.runtime import jit, threads

MOST = 8
VISIT = """
define void @visit(ptr %data) nounwind {
start:
  %n.32 = atomicrmw add ptr %data, i32 1 monotonic
  %n = zext i32 %n.32 to i64
  %thread = call i32 @gettid()
  %cpu = call i32 @sched_getcpu()
  %next = add i64 %n, 1
  %at = getelementptr { i32, i32 }, ptr %data, i64 %next
  store i32 %thread, ptr %at
  %cpu.at = getelementptr { i32, i32 }, ptr %at, i64 0, i32 1
  store i32 %cpu, ptr %cpu.at
  %turns.at = getelementptr i32, ptr %data, i64 1
  br label %turn
turn:
  %done = phi i32 [ 0, %start ], [ %more, %turn ]
  %turns = load volatile i32, ptr %turns.at
  %more = add i32 %done, 1
  %left = icmp slt i32 %more, %turns
  br i1 %left, label %turn, label %end
end:
  ret void
}

declare i32 @gettid()
declare i32 @sched_getcpu()
"""


class Job:
    """Called, it runs and returns the threads that took part, and on which processor each of them began."""

    def __init__(self, seconds: float):
        self.addresses, self.alive = jit.load(jit.compile_ir(VISIT, current_machine()), ("visit",))
        self.turns = 100_000
        alone, data = ctypes.CFUNCTYPE(None, ctypes.c_void_p)(self.addresses["visit"]), self._data()
        start = time.perf_counter()
        alone(ctypes.addressof(data))
        self.turns = max(1, int(self.turns * seconds / (time.perf_counter() - start)))

    def _data(self):
        return (ctypes.c_int32 * (2 * (1 + MOST)))(0, self.turns)

    def __call__(self) -> dict[int, int]:
        """On two threads."""
        data = self._data()
        threads.run_stage(self.addresses["visit"], ctypes.addressof(data), 2)
        return dict(zip(data[2 : 2 + 2 * data[0] : 2], data[3 : 3 + 2 * data[0] : 2], strict=True))


def worker_of(job: Job) -> int:
    """The thread that helps."""
    for _ in range(1000):
        others = set(job()) - {os.getpid()}
        if others:
            return others.pop()
    raise AssertionError("nobody helps")


def naps(thread: int) -> int:
    """How often it fell asleep."""
    lines = Path(f"/proc/self/task/{thread}/status").read_text().splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith("voluntary_ctxt_switches"))
