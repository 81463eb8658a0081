"""How many threads take part in a call, and who runs them. Results never depend on it.

Routes, best first:
  openmp   the OpenMP runtime that is in the process already, such as PyTorch's: its idle workers spin, and a second set
           of threads would fight them for the cores
  pool     our own workers: without OpenMP, and in every forked child, where libgomp would wait for threads that the
           fork did not copy
  python   Python threads, on systems without POSIX threads

An OpenMP runtime is never loaded by us: the pool starts a job as fast (1.7 us for two threads), sleeps sooner, and is
several times faster when there are more threads than cores.
"""

from __future__ import annotations

import ctypes
import os
import sys
from contextlib import suppress
from typing import NamedTuple

import numpy as np

from convgrad import settings
from convgrad.errors import SettingError, shown
from convgrad.plan.host import available_cpus
from convgrad.runtime import pool
from convgrad.runtime.jit import LOCK  # one for both: a kernel being built looks for threads, and the pool is compiled

RUNTIMES = ("libgomp", "libiomp5", "libomp")  # how the file names of OpenMP runtimes begin
BY_US = ("set_num_threads", "CONVGRAD_NUM_THREADS")  # said to convgrad: OpenMP's own limit does not lower these
MOST_THREADS = 4096


class Route(NamedTuple):
    """A way to run a compiled function on several threads."""

    name: str  # openmp, pool or python; none before it is needed
    path: str = ""  # of the OpenMP runtime, also when it is only asked for its limit
    parallel: int = 0  # address of a function with the signature of GOMP_parallel
    limit: int = 0  # address of omp_get_max_threads; 0 if there is none


class Team:
    """What a call needs to know to go parallel. There is one per process; calls read its attributes without a lock."""

    __slots__ = (
        "_asked",
        "_cap",
        "_modules",
        "_settled",
        "_workers",
        "count",
        "forked",
        "limit",
        "parallel",
        "published",
        "route",
        "source",
    )

    def __init__(self) -> None:
        """A team that has not been asked for yet."""
        self._workers: pool.Pool | pool.PythonPool | None = None
        self._asked = 0  # the number given to set_num_threads
        self._cap = 0  # the number given to threadpoolctl, where that is the smaller one
        self._settled = 0  # threads of a call without that cap
        self._modules = 0  # how many Python modules were loaded when we last looked for OpenMP
        self.count = 0  # threads of a call; 0 before the first use
        self.source = ""  # what decided that number
        self.forked = False
        self.route, self.parallel, self.limit = Route("none"), 0, 0
        self.published = (ctypes.c_int64 * 3)()  # count, parallel and limit, for callers that are compiled; never moves

    def start(self) -> int:
        """Settle the number of threads; the first call does it. Returns the number."""
        with LOCK:
            if not self.count:
                before = (self._asked, "set_num_threads") if self._asked else None  # by the parent of this process
                self._settle(*(before or settings.num_threads() or available_cpus()))
        return self.count

    def resize(self, count: int) -> None:
        """Use so many threads from the next call on."""
        with LOCK:
            self._asked, self._cap = count, 0
            self._settle(count, "set_num_threads")

    def settled(self) -> int:
        """The number of threads without a cap; nothing is started to tell it."""
        return self._settled or self._asked or (settings.num_threads() or available_cpus())[0]

    def cap(self, count: int) -> None:
        """Use no more threads than these until a cap that is not below the number settled on takes this one away."""
        with LOCK:
            self._cap = count if count < self.settled() else 0
            if self.count:
                self.count = self.capped(self._settled)
                self._publish()

    def capped(self, count: int) -> int:
        """The number of threads, or the cap."""
        return min(count, self._cap or count)

    def look_again(self) -> None:
        """Move to an OpenMP runtime that came after us, with PyTorch for instance. Cheap when nothing was imported."""
        if self.route.name in ("pool", "python") and not self.forked and len(sys.modules) != self._modules:
            with LOCK:
                self._choose_route()

    def _settle(self, count: int, source: str) -> None:
        count = min(count, MOST_THREADS)
        self.source = source
        if count > 1:
            if self.route.name == "none":
                self._choose_route()
            if self._workers:
                self._workers.grow(count - 1)
        self._apply_limit()
        self._settled = count
        self.count = self.capped(count)  # last: whoever reads it finds a route
        self._publish()

    def _choose_route(self) -> None:
        self._modules = len(sys.modules)
        loaded = openmp_in_process()
        if loaded and loaded.parallel and not self.forked:
            self.route = loaded
        elif self.route.name == "none":
            self.route = self._own_route(loaded)
        self.parallel = self.route.parallel
        self._apply_limit()
        self._publish()

    def _publish(self) -> None:
        """One word at a time: any mixture of old and new is good, since a route that was chosen once keeps working."""
        self.published[1], self.published[2], self.published[0] = self.parallel, self.limit, self.count

    def _own_route(self, loaded: Route | None) -> Route:
        name = "pool" if pool.is_supported() else "python"
        self._workers = self._workers or (pool.Pool() if name == "pool" else pool.PythonPool())
        return Route(name, loaded.path if loaded else "", self._workers.parallel, loaded.limit if loaded else 0)

    def _apply_limit(self) -> None:
        self.limit = 0 if self.source in BY_US else self.route.limit

    def after_fork(self) -> None:
        """In the child: the workers, ours or OpenMP's, stayed behind."""
        if self._workers:
            self._workers.forget()
        self.forked = True
        if self.route.name != "none":
            self.count, self._settled, self.route = 0, 0, Route("none")  # settled again by the next call
            self._publish()

    def effective(self) -> int:
        """Threads that a call made now would use at most."""
        count = self.start()
        if self.limit and count > 1:
            count = max(1, min(count, ctypes.CFUNCTYPE(ctypes.c_int)(self.limit)()))
        return count


team = Team()
if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=team.after_fork)


def num_threads() -> int:
    """The most threads that a call uses."""
    return team.effective()


def set_num_threads(count: int) -> None:
    """Use at most this many threads from the next call on. Results do not depend on it."""
    if isinstance(count, np.integer):
        count = int(count)
    if not isinstance(count, int) or isinstance(count, bool) or count < 1:
        raise SettingError(f"set_num_threads got {shown(count)}; it takes a whole number of threads, 1 or more")
    team.resize(count)


def run_stage(function: int, record: int, threads: int) -> None:
    """Run a compiled `void function(ptr record)` on at most so many threads; returns when all have left it."""
    team.start()
    if threads <= 1 or not team.parallel:
        ctypes.CFUNCTYPE(None, ctypes.c_void_p)(function)(record)
        return
    signature = ctypes.CFUNCTYPE(None, ctypes.c_void_p, ctypes.c_void_p, ctypes.c_uint, ctypes.c_uint)
    signature(team.parallel)(function, record, min(threads, max(1, team.count)), 0)


def openmp_in_process() -> Route | None:
    """The OpenMP runtime that somebody else loaded; PyTorch's if there are several."""
    try:
        with open("/proc/self/maps", "rb", buffering=0) as file:
            lines = file.read().splitlines()
    except OSError:
        return None
    mapped = dict.fromkeys(os.fsdecode(line.split(maxsplit=5)[5]) for line in lines if b"omp" in line and b"/" in line)
    found = [path for path in mapped if os.path.basename(path).startswith(RUNTIMES)]
    routes = [route for path in sorted(found, key=lambda path: "torch" not in path) if (route := _open("openmp", path))]
    return next((route for route in routes if route.parallel), routes[0] if routes else None)


def _open(name: str, path: str) -> Route | None:
    try:
        library = ctypes.CDLL(path)
    except OSError:
        return None
    return Route(name, path, _address(library, "GOMP_parallel"), _address(library, "omp_get_max_threads"))


def _address(library: ctypes.CDLL, symbol: str) -> int:
    try:
        return ctypes.cast(getattr(library, symbol), ctypes.c_void_p).value or 0
    except AttributeError:  # libomp is not everywhere built with the names of libgomp
        return 0


def _register_with_threadpoolctl() -> None:
    """Let `threadpool_limits` hold for our threads, too, in a process that has the package."""
    try:
        from threadpoolctl import LibController, register
    except ImportError:
        return

    class Controller(LibController):
        """Our threads. It is found by the library of NumPy, since ours are of none."""

        user_api = internal_api = "convgrad"
        filename_prefixes = ("_multiarray_umath",)

        def get_num_threads(self) -> int:
            try:
                return team.capped(team.settled())
            except SettingError:  # for a call to raise
                return 1

        def set_num_threads(self, num_threads: int) -> None:
            with suppress(SettingError):
                team.cap(max(1, num_threads))

        def get_version(self) -> str | None:
            return getattr(sys.modules.get("convgrad"), "__version__", None)

    register(Controller)


_register_with_threadpoolctl()
