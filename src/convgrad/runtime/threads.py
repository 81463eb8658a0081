"""How many threads take part, and who runs them."""

from __future__ import annotations

import ctypes
import ctypes.util
import os
from dataclasses import dataclass
from pathlib import Path

from convgrad import settings
from convgrad.errors import SettingError
from convgrad.plan.machine import available_cpus


@dataclass(frozen=True, slots=True)
class Route:
    """A way to run a compiled function on several threads."""

    name: str  # openmp, pool, python or serial
    path: str  # of the library, if it is one
    parallel: int  # address of a function like GOMP_parallel; 0 if serial
    limit: int  # address of omp_get_max_threads; 0 if there is none


SERIAL = Route("serial", "", 0, 0)


class Team:
    """What a call needs to know to go parallel. One exists per process; kernels read its attributes without a lock."""

    __slots__ = ("count", "limit", "parallel", "route", "source")

    def __init__(self) -> None:
        self.count = 0  # 0 before the first use
        self.source = ""
        self.use(SERIAL)

    def use(self, route: Route) -> None:
        """Take a route from the next call on."""
        self.route, self.parallel, self.limit = route, route.parallel, route.limit

    def start(self) -> int:
        """Settle the number of threads and the route; done once, by the first call."""
        if not self.count:
            count, self.source = _default_threads()
            if count > 1:
                self.use(_openmp() or SERIAL)
            self.count = count if self.parallel else 1
        return self.count


team = Team()


def num_threads() -> int:
    """The most threads that a call uses."""
    return team.start()


def set_num_threads(count: int) -> None:
    """Use at most this many threads from the next call on. Results do not depend on it."""
    if not isinstance(count, int) or isinstance(count, bool) or count < 1:
        raise SettingError(f"set_num_threads got {count!r}; it takes a whole number, 1 or more")
    team.start()
    if count > 1 and not team.parallel:
        team.use(_openmp() or SERIAL)
    team.count, team.source = count if team.parallel else 1, "set_num_threads"


def _default_threads() -> tuple[int, str]:
    return settings.num_threads() or available_cpus()


def _openmp() -> Route | None:
    """The OpenMP runtime that is in the process already, else the system's."""
    for path in (*_loaded_openmp(), "libgomp.so.1"):
        try:
            library = ctypes.CDLL(path)
            parallel = ctypes.cast(library.GOMP_parallel, ctypes.c_void_p).value or 0
            limit = ctypes.cast(library.omp_get_max_threads, ctypes.c_void_p).value or 0
        except (OSError, AttributeError):
            continue
        return Route("openmp", path, parallel, limit)
    return None


def _loaded_openmp() -> list[str]:
    try:
        lines = Path("/proc/self/maps").read_text().splitlines()
    except OSError:
        return []
    paths = dict.fromkeys(line.split(maxsplit=5)[5] for line in lines if "omp" in line and line.count("/"))
    found = [path for path in paths if os.path.basename(path).startswith(("libgomp", "libiomp5", "libomp"))]
    return sorted(found, key=lambda path: "torch" not in path)
