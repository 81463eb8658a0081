"""Kernels small enough to write by hand: y[t] = 3 x[t] + 1 in two stages, through the shared memory of the call."""

import ctypes
import sys
from pathlib import Path

from convgrad.codegen.module import CALL_FIELDS, KernelModule, Stage
from convgrad.plan.machine import Machine, current_machine
from convgrad.runtime.kernel import Kernel, build

STAGE = """
define void @NAME(ptr %call) nounwind {
start:
  %from.at = getelementptr i8, ptr %call, i64 FROM
  %from = load ptr, ptr %from.at
  %to.at = getelementptr i8, ptr %call, i64 TO
  %to = load ptr, ptr %to.at
  %scratch.at = getelementptr i8, ptr %call, i64 SCRATCH
  %scratch = load ptr, ptr %scratch.at
  %tasks.at = getelementptr i8, ptr %call, i64 TASKS
  %slots.at = getelementptr i8, ptr %call, i64 SLOTS
  %slot = atomicrmw add ptr %slots.at, i64 1 monotonic
  %skip = mul i64 %slot, 64
  %mine = getelementptr i8, ptr %scratch, i64 %skip
  br label %claim
claim:
  %t = atomicrmw add ptr %tasks.at, i64 1 monotonic
  %more = icmp ult i64 %t, COUNT
  br i1 %more, label %work, label %done
work:
  %source = getelementptr i64, ptr %from, i64 %t
  %value = load i64, ptr %source
  store volatile i64 %value, ptr %mine
  %again = load volatile i64, ptr %mine
  %result = OPERATION
  %target = getelementptr i64, ptr %to, i64 %t
  store i64 %result, ptr %target
  br label %claim
done:
  ret void
}
"""


def stage_ir(name: str, source: str, target: str, tasks: int, operation: str) -> str:
    """One stage: target[t] = operation(source[t]), by way of the thread's own scratch."""
    words = {"NAME": name, "FROM": source, "TO": target, "COUNT": str(tasks), "OPERATION": operation}
    text = STAGE.replace("SCRATCH", "scratch").replace("TASKS", "tasks").replace("SLOTS", "slots")
    for word, value in words.items():
        text = text.replace(word, value)
    for field in CALL_FIELDS:
        text = text.replace(f"i64 {field}\n", f"i64 {8 * CALL_FIELDS.index(field)}\n")
    return text


def tiny_module(tasks: int) -> KernelModule:
    """The two stages."""
    return KernelModule(
        ir=stage_ir("triple", "x", "shared", tasks, "mul i64 %again, 3")
        + stage_ir("increment", "shared", "y", tasks, "add i64 %again, 1"),
        stages=(Stage(symbol="triple", tasks=tasks), Stage(symbol="increment", tasks=tasks)),
        shared_bytes=8 * tasks,
        scratch_bytes=64,
    )


def tiny_kernel(tasks: int, machine: Machine | None = None) -> Kernel:
    """The kernel, by the way that every kernel takes."""
    return build(f"tiny {tasks}", machine or current_machine(), lower=lambda problem, machine: tiny_module(tasks))


def run_tiny(kernel: Kernel, tasks: int, first: int = 0) -> None:
    """Call, and assert every element."""
    x = (ctypes.c_int64 * tasks)(*range(first, first + tasks))
    y = (ctypes.c_int64 * tasks)()
    kernel(ctypes.addressof(x), 0, ctypes.addressof(y))
    assert list(y) == [3 * value + 1 for value in x]


def llvm_is_here():
    """Whether LLVM's library is part of this process."""
    if sys.platform.startswith("linux"):
        return "libllvmlite" in Path("/proc/self/maps").read_text()
    return "llvmlite.binding" in sys.modules
