"""The process of one engine: pickled requests come on standard input, pickled replies go to standard output.

    python -m convgrad.engines.worker ENGINE THREADS

Not for use by hand: `remote.Remote` starts it and speaks to it.
"""

from __future__ import annotations

import ctypes
import os
import pickle
import signal
import struct
import sys
from collections.abc import Sequence
from time import perf_counter
from typing import Any, BinaryIO

import numpy as np

from convgrad import engines
from convgrad.engines.interface import Engine, Task, Unsupported
from convgrad.engines.timing import sample

LENGTH = struct.Struct("=Q")
_THREAD_VARIABLES = ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "DPCPP_CPU_NUM_CUS", "TBB_NUM_THREADS")
_DIE_WITH_PARENT = 1  # PR_SET_PDEATHSIG of Linux


class Worker:
    """Answers requests; holds one problem at a time."""

    def __init__(self, name: str, threads: int) -> None:
        """Nothing is loaded before the first request."""
        self._name, self._threads = name, threads
        self._engine: Engine | None = None
        self._expected = 0.0

    def describe(self) -> str:
        """Load the library and tell its version."""
        return engines.load(self._name).version()

    def prepare(self, task: Task, inputs: Sequence[np.ndarray] | int) -> dict[str, float]:
        """Compile and run once; `inputs` may be the seed of random ones. Seconds of both, and of a call after that."""
        self._engine = None  # before the next one takes memory
        start = perf_counter()
        engine = engines.load(self._name)(task, self._threads)
        compiled = perf_counter()
        engine.load(task.random_inputs(inputs) if isinstance(inputs, int) else inputs)
        loaded = perf_counter()
        engine.call()
        first = perf_counter() - loaded
        self._expected = min(first, min(sample(engine.call, 0.0, first))) if first < 0.5 else first
        self._engine = engine
        return {"compile_seconds": compiled - start, "first_seconds": first, "call_seconds": self._expected}

    def batch(self, seconds: float) -> list[float]:
        """Seconds per call for about so long, after a call that brings data and threads back."""
        assert self._engine is not None
        if self._expected < seconds:
            self._engine.call()
        return sample(self._engine.call, seconds, self._expected)

    def output(self) -> np.ndarray:
        """What the latest call computed."""
        assert self._engine is not None
        return self._engine.output()


def send(stream: BinaryIO, message: Any) -> None:
    """One message, after its length."""
    data = pickle.dumps(message, protocol=5)
    stream.write(LENGTH.pack(len(data)))
    stream.write(data)
    stream.flush()


def bind(threads: int) -> None:
    """Stay on the last of the CPUs that this process may use, and tell libraries that are yet to come."""
    if hasattr(os, "sched_setaffinity"):
        os.sched_setaffinity(0, sorted(os.sched_getaffinity(0))[-threads:])
    for name in _THREAD_VARIABLES:
        os.putenv(name, str(threads))


def end_with_parent() -> None:
    """Leave interrupts to the parent, and do not outlive it, not even when stopped."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    if sys.platform.startswith("linux"):
        ctypes.CDLL(None).prctl(_DIE_WITH_PARENT, signal.SIGKILL)


def main() -> None:
    """Answer until there are no more requests; an error of the library is an answer too."""
    end_with_parent()
    threads = int(sys.argv[2])
    bind(threads)
    replies = os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)  # what libraries print must not mix with replies
    worker = Worker(sys.argv[1], threads)
    while header := sys.stdin.buffer.read(LENGTH.size):
        name, arguments = pickle.loads(sys.stdin.buffer.read(LENGTH.unpack(header)[0]))
        try:
            reply = ("ok", getattr(worker, name)(*arguments))
        except Unsupported as error:
            reply = ("unsupported", str(error))
        except Exception as error:  # whatever a library raises is a result here
            reply = ("error", f"{type(error).__name__}: {' '.join(str(error).split())}")
        send(replies, reply)


if __name__ == "__main__":
    main()
