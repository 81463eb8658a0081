"""Memory of large results that died, kept for the next result of the same size: bounded, and given back on demand.

How it works. The storage of such a result holds a lease on memory of the store. PyTorch drops the lease when the last
tensor on that storage is gone, be it the result or a view of it, or the last NumPy array, and the memory returns. The
storage has one owner, as others have: PyTorch adds up gradients in place only then.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence

import numpy as np
import torch
from torch import Tensor

Ints = Sequence[int]

# What compiled graphs allocate with: it goes past the dispatcher, and takes half the time of torch.empty_strided
empty_strided: Callable[[Ints, Ints, torch.dtype], Tensor] = torch._C._dynamo.guards._empty_strided_cpu


class Store:
    """Pieces of memory by their size. Calls may come from any number of threads at once."""

    def __init__(self, fresh: Callable[[int], Tensor]) -> None:
        """An empty store that may keep nothing yet; `fresh` makes so many new bytes."""
        self._fresh = fresh
        self._idle: list[Tensor] = []  # what came back last comes last: it is the warmest
        self._lock = threading.RLock()  # a thread that is inside may find that a result has died
        self.limit = 0  # bytes that may lie idle
        self.idle_bytes = 0

    def empty_strided(self, shape: Ints, strides: Ints, dtype: torch.dtype, size: int) -> Tensor:
        """A dense tensor of undefined numbers; `size` is that of its memory in bytes.

        It is one like any other, but that `resize_` cannot make its storage larger.
        """
        memory = self._take(size)
        lease = memory.numpy().view(_Lease)
        lease.memory, lease.store = memory, self
        with torch._C.DisableTorchFunction():  # modes of the program have no business with how results are made
            numbers = torch.frombuffer(lease, dtype=dtype)
            return empty_strided((0,), (1,), dtype).set_(numbers, 0, shape, strides)

    def give(self, memory: Tensor) -> None:
        """Keep memory that nobody uses, in place of what has been idle longest if there is too much."""
        with self._lock:
            self._idle.append(memory)
            self.idle_bytes += memory.numel()
            self._shrink()

    def resize(self, limit: int) -> None:
        """Keep at most so many bytes from now on; 0 gives all of them back to the system."""
        with self._lock:
            self.limit = limit
            self._shrink()

    def after_fork(self) -> None:
        """In the child: another thread of the parent may have been inside."""
        self._lock, self._idle, self.idle_bytes = threading.RLock(), [], 0

    def _take(self, size: int) -> Tensor:
        with self._lock:
            for n in reversed(range(len(self._idle))):
                if self._idle[n].numel() == size:
                    self.idle_bytes -= size
                    return self._idle.pop(n)
        return self._fresh(size)

    def _shrink(self) -> None:
        while self.idle_bytes > self.limit:
            self.idle_bytes -= self._idle.pop(0).numel()


class _Lease(np.ndarray):
    """The bytes of a piece of memory, which goes back to its store when nobody holds the lease any more."""

    memory: Tensor
    store: Store

    def __del__(self) -> None:
        store = getattr(self, "store", None)  # arrays that NumPy derives from this one have none
        if store is not None:
            store.give(self.memory)
