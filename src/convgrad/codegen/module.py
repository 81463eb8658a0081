"""What the compiler hands to the runtime: LLVM IR and how to run it."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

from convgrad.values import frozen

# Every stage is one exported function `void stage(ptr call)`. All threads that take part call it with the same
# `call`, a record of 8-byte fields in this order. Each thread claims its own slice of scratch with one atomic add on
# `slots`, then tasks with atomic adds on the counters until there are none left: with an even slot those that `tasks`
# counts, and in the end those that `others` counts, with an odd slot the other way round. The runtime sets the counters
# to zero before each stage. A stage is complete before the next one starts.
CALL_FIELDS = (
    "x",  # address of the element of x with all indices zero; likewise w, y and bias
    "w",
    "y",
    "bias",
    "shared",  # address of `shared_bytes` of memory that lives through all stages of a call, 64-byte aligned
    "scratch",  # address of threads * `scratch_bytes`, 64-byte aligned; slot i begins at scratch + i * scratch_bytes
    "tasks",  # counter: of the first tasks, all or half of them, claimed so far
    "slots",  # counter: slots claimed so far
    "others",  # counter: of the other tasks, claimed so far
)


class Stage(NamedTuple):
    """One parallel loop of a kernel: independent tasks; two of them write to the same place only the same value."""

    symbol: str
    tasks: int


VERDICT = "verdict"  # a function of kernels that have a fallback


@frozen(kw_only=True)
class Fallback:
    """What computes a call whose data are beyond the kernel that met them: a kernel of its own, for the same record.

    A kernel with a fallback exports `void verdict(ptr call, ptr answer)`, which writes an i64, 0 if the data are good.
    Nearly all are, so a fallback is not even lowered before some are not; what it works in is known all the same.
    """

    after: int  # stages of the kernel that run before the verdict; the others run if it is good, else the fallback
    replaces: bool  # what these stages have written already, so that it must not be left there
    most_tasks: int  # of a stage of the fallback
    shared_bytes: int
    scratch_bytes: int
    weights: tuple[int, int]
    lower: Callable[[], KernelModule]
    at_once: bool = False  # it is made together with the kernel: a call that has come to the verdict cannot be repeated


@frozen(kw_only=True)
class KernelModule:
    """A compiled plan, before LLVM has seen it."""

    ir: str  # LLVM IR text, without target triple and data layout
    stages: tuple[Stage, ...]  # run in this order
    shared_bytes: int
    scratch_bytes: int  # per thread, a multiple of 64
    weights: tuple[int, int] = (0, 0)  # bytes of either that hold packed weights, or a copy of the weights as sums
    fallback: Fallback | None = None
    words: bool = False  # whether numbers of 16 bits are left in memory, two by two

    @property
    def most_tasks(self) -> int:
        """The most threads that find work."""
        most = max((stage.tasks for stage in self.stages), default=0) or 1
        return max(most, self.fallback.most_tasks) if self.fallback else most

    @property
    def all_shared_bytes(self) -> int:
        """Of a call, whichever way it goes: the fallback works in the same memory."""
        return round64(max(self.shared_bytes, self.fallback.shared_bytes if self.fallback else 0))

    @property
    def all_scratch_bytes(self) -> int:
        """Likewise."""
        return max(self.scratch_bytes, self.fallback.scratch_bytes if self.fallback else 0)

    @property
    def all_weights(self) -> tuple[int, int]:
        """Likewise, of either."""
        if self.fallback is None:
            return self.weights
        (shared, own), (of_fallback, its_own) = self.weights, self.fallback.weights
        return max(shared, of_fallback), max(own, its_own)

    def workspace_bytes(self, threads: int) -> int:
        """Memory that a call on so many threads works in, besides its arguments."""
        return self.all_shared_bytes + max(1, min(threads, self.most_tasks)) * self.all_scratch_bytes

    def weights_bytes(self, threads: int) -> int:
        """Of that, packed weights, which are as large as the weights are; the rest is bounded, for each thread."""
        shared, own = self.all_weights
        return shared + max(1, min(threads, self.most_tasks)) * own


def round64(count: int) -> int:
    """Bytes up to whole cache lines."""
    return -(-count // 64) * 64
