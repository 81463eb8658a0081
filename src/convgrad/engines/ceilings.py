"""What this machine can do at most: arithmetic and reading, measured by kernels from convgrad's own code generator.

The roofline (Williams, Waterman & Patterson, CACM 52(4), 2009): no operation takes less time than its arithmetic at the
peak, or than moving every byte once from the nearest memory that holds all of them.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict
from typing import Any

from convgrad.dtypes import COMPUTE
from convgrad.engines.probes import cache_gb_per_s, memory_gb_per_s, products_gflops
from convgrad.errors import FileFormatError
from convgrad.plan.machine import Machine, current_machine
from convgrad.plan.units import PRODUCTS, pieces_of
from convgrad.problem.conv import ConvProblem
from convgrad.runtime import num_threads, set_num_threads
from convgrad.values import frozen

SECONDS = 0.1  # for each figure: the best run within it
L3_BYTES, MEMORY_BYTES = 8 << 20, 256 << 20  # L3 per thread, memory in all
DOTS, TILES = "bf16 dot products", "bf16 tile products"  # what units do, in `Ceilings.gflops`


@frozen
class Level:
    """A memory: how many bytes of a problem count as held by it, and how fast they are read."""

    name: str
    holds_bytes: float
    gb_per_s: float


@frozen
class Ceilings:
    """Of some threads together."""

    machine: str
    threads: int
    gflops: dict[str, float]  # multiply-adds by their type, f32 and f64; products of the units that there are
    levels: tuple[Level, ...]  # nearest first; the last one holds everything

    def level(self, bytes_moved: int) -> Level:
        """The nearest memory that holds all of it."""
        return next((level for level in self.levels if bytes_moved <= level.holds_bytes), self.levels[-1])

    def peak(self, problem: ConvProblem) -> tuple[str, float]:
        """The fastest arithmetic that may solve a problem, in words, and how many GF/s of the problem it makes."""
        kind = COMPUTE[problem.dtype]
        ways = [(name_of(kind), self.gflops[kind])]
        pieces, products = pieces_of(problem) or (0, ())
        for unit in (DOTS, TILES):
            if unit in self.gflops and products and (pieces == 1 or unit == TILES):
                many = len(products)
                name = unit if many == 1 else f"{unit}, {many} for one of {problem.dtype}"
                ways.append((name, self.gflops[unit] / many))
        return max(ways, key=lambda way: way[1])

    def bound(self, problem: ConvProblem, bytes_moved: int) -> tuple[float, str]:
        """The least time in seconds, and what limits it: arithmetic, or reading from a level."""
        level = self.level(bytes_moved)
        arithmetic = problem.flops / self.peak(problem)[1] / 1e9
        reading = bytes_moved / level.gb_per_s / 1e9
        return (arithmetic, "arithmetic") if arithmetic >= reading else (reading, f"reading from {level.name}")

    @property
    def advice(self) -> str | None:
        """What to know of a matrix unit that computes f32 slower than vectors do, as those of virtual machines may."""
        many = len(PRODUCTS["f32", "strict"][1])
        tiles, vectors = self.gflops.get(TILES, 0.0) / many, self.gflops["f32"]
        if not 0 < tiles < vectors:
            return None
        return (
            f"The matrix unit is slow: {many} tile products for one of f32 make {tiles:.0f} GF/s, and multiply-adds "
            f"{vectors:.0f}. Units of virtual machines may be so for seconds at a time; if this one stays so, set "
            "CONVGRAD_ISA=avx512, or measure with `convgrad tune` what is faster."
        )

    def as_dict(self) -> dict[str, Any]:
        """For JSON, which has no infinity."""
        levels = [asdict(level) | ({"holds_bytes": None} if level is self.levels[-1] else {}) for level in self.levels]
        return {"machine": self.machine, "threads": self.threads, "gflops": self.gflops, "levels": levels}


def name_of(kind: str) -> str:
    """What arithmetic of `Ceilings.gflops` is called."""
    return kind if kind in (DOTS, TILES) else f"{kind} multiply-adds"


def from_dict(found: Mapping[str, Any], source: str) -> Ceilings:
    """What `as_dict` made, alone or as the `ceilings` of a report."""
    try:
        found = found.get("ceilings", found)
        levels = [
            Level(str(one["name"]), float(one["holds_bytes"] or "inf"), float(one["gb_per_s"]))
            for one in found["levels"]
        ]
        gflops = {str(kind): float(value) for kind, value in found["gflops"].items()}
        ceilings = Ceilings(str(found["machine"]), int(found["threads"]), gflops, tuple(levels))
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        raise FileFormatError(f"{source}: not ceilings as `convgrad roofline --json` writes them: {error!r}") from error
    if not levels or not {"f32", "f64"} <= gflops.keys() or min(*gflops.values(), *(x.gb_per_s for x in levels)) <= 0:
        raise FileFormatError(f"{source}: ceilings need levels, and f32 and f64 arithmetic, all above zero")
    return ceilings


def measure(threads: int | None = None, seconds: float = SECONDS) -> Ceilings:
    """Measure with so many threads, or as many as calls use; takes about six times `seconds`."""
    before = num_threads()
    count = threads or before
    machine = current_machine()
    if count != before:
        set_num_threads(count)
    try:
        gflops = _arithmetic(machine, count, seconds)
        l1, l2 = machine.l1_bytes // 2, machine.l2_bytes // 2
        levels = (
            Level("L1", 2 * l1 * count, cache_gb_per_s(machine, l1, count, seconds)),
            Level("L2", 2 * l2 * count, cache_gb_per_s(machine, l2, count, seconds)),
            Level("L3", 2 * L3_BYTES * count, memory_gb_per_s(machine, L3_BYTES * count, seconds)),
            Level("memory", float("inf"), memory_gb_per_s(machine, MEMORY_BYTES, seconds)),
        )
    finally:
        if count != before:
            set_num_threads(before)
    return Ceilings(machine.isa, count, gflops, levels)


def _arithmetic(machine: Machine, threads: int, seconds: float) -> dict[str, float]:
    found = {kind: products_gflops(machine, "fma", kind, threads, seconds) for kind in ("f32", "f64")}
    for name, what, there in ((DOTS, "dots", machine.has_dots), (TILES, "tiles", machine.has_tiles)):
        if there:
            found[name] = products_gflops(machine, what, "f32", threads, seconds)
    return found
