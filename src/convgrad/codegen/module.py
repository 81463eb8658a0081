"""What the compiler hands to the runtime: LLVM IR and how to run it."""

from __future__ import annotations

from dataclasses import dataclass

# Every stage is one exported function `void stage(ptr call)`. All threads that take part call it with the same
# `call`, a record of 8-byte fields in this order; each thread claims tasks 0 .. tasks-1 from the counter of the stage
# with an atomic add until there are none left, and its own slice of scratch with one atomic add on `slots`.
# The runtime sets both counters to zero before each stage. A stage is complete before the next one starts.
CALL_FIELDS = (
    "x",  # address of the element of x with all indices zero; likewise w, y and bias
    "w",
    "y",
    "bias",
    "shared",  # address of `shared_bytes` of memory that lives through all stages of a call, 64-byte aligned
    "scratch",  # address of threads * `scratch_bytes`, 64-byte aligned; slot i begins at scratch + i * scratch_bytes
    "tasks",  # counter: tasks claimed so far
    "slots",  # counter: slots claimed so far
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Stage:
    """One parallel loop of a kernel: independent tasks; two of them write to the same place only the same value."""

    symbol: str
    tasks: int
    optional: bool = False  # decides itself, from what earlier stages left in shared memory, whether to do anything


@dataclass(frozen=True, slots=True, kw_only=True)
class KernelModule:
    """A compiled plan, before LLVM has seen it."""

    ir: str  # LLVM IR text, without target triple and data layout
    stages: tuple[Stage, ...]  # run in this order
    shared_bytes: int
    scratch_bytes: int  # per thread, a multiple of 64


def round64(count: int) -> int:
    """Bytes up to whole cache lines."""
    return -(-count // 64) * 64
