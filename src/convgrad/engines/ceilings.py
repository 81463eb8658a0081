"""What this machine can do at most: arithmetic and reading, measured by kernels from convgrad's own code generator.

The roofline (Williams, Waterman & Patterson, CACM 52(4), 2009): no operation takes less time than its arithmetic at the
peak, or than moving every byte once from the nearest memory that holds all of them.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from time import perf_counter
from typing import Any

import numpy as np

from convgrad.codegen.ir import Builder
from convgrad.codegen.ir_module import Index, Module, Value
from convgrad.codegen.isa import ISAS
from convgrad.codegen.isa.base import ARITHMETIC
from convgrad.codegen.module import KernelModule
from convgrad.codegen.stages import Places, emit_stage
from convgrad.dtypes import COMPUTE
from convgrad.errors import FileFormatError
from convgrad.plan.machine import Machine, current_machine
from convgrad.runtime import num_threads, set_num_threads
from convgrad.runtime.kernel import Kernel, build

SECONDS = 0.1  # for each figure: the best run within it
TASKS_PER_THREAD = 4
TRIPS = 20_000  # of the arithmetic loop
READ_BYTES = 64 << 20  # that a task reads from a cache of its core
TOGETHER = 8  # loads in one step of a reading loop
L3_BYTES, MEMORY_BYTES = 8 << 20, 256 << 20  # L3 per thread, memory in all
SHARE_BYTES = 256 << 10  # of a large buffer that one task reads


@dataclass(frozen=True, slots=True)
class Level:
    """A memory: how many bytes of a problem count as held by it, and how fast they are read."""

    name: str
    holds_bytes: float
    gb_per_s: float


@dataclass(frozen=True, slots=True)
class Ceilings:
    """Of some threads together."""

    machine: str
    threads: int
    gflops: dict[str, float]  # by arithmetic type
    levels: tuple[Level, ...]  # nearest first; the last one holds everything

    def level(self, bytes_moved: int) -> Level:
        """The nearest memory that holds all of it."""
        return next((level for level in self.levels if bytes_moved <= level.holds_bytes), self.levels[-1])

    def bound(self, flops: int, bytes_moved: int, dtype: str) -> tuple[float, str]:
        """The least time in seconds, and what limits it: arithmetic, or reading from a level."""
        level = self.level(bytes_moved)
        arithmetic = flops / self.gflops[COMPUTE[dtype]] / 1e9
        reading = bytes_moved / level.gb_per_s / 1e9
        return (arithmetic, "arithmetic") if arithmetic >= reading else (reading, f"reading from {level.name}")

    def as_dict(self) -> dict[str, Any]:
        """For JSON, which has no infinity."""
        levels = [asdict(level) | ({"holds_bytes": None} if level is self.levels[-1] else {}) for level in self.levels]
        return {"machine": self.machine, "threads": self.threads, "gflops": self.gflops, "levels": levels}


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
        gflops = {compute: _fma_gflops(machine, compute, count, seconds) for compute in ("f32", "f64")}
        l1, l2 = machine.l1_bytes // 2, machine.l2_bytes // 2
        levels = (
            Level("L1", 2 * l1 * count, _cache_gb_per_s(machine, l1, count, seconds)),
            Level("L2", 2 * l2 * count, _cache_gb_per_s(machine, l2, count, seconds)),
            Level("L3", 2 * L3_BYTES * count, _memory_gb_per_s(machine, L3_BYTES * count, seconds)),
            Level("memory", float("inf"), _memory_gb_per_s(machine, MEMORY_BYTES, seconds)),
        )
    finally:
        if count != before:
            set_num_threads(before)
    return Ceilings(machine.isa, count, gflops, levels)


@dataclass(frozen=True, slots=True)
class Probe:
    """A kernel that measures, in the place of a problem."""

    what: str  # fma, or read of `own` memory of a thread again and again, or of memory that all `share`
    compute: str
    tasks: int
    size: int  # bytes that a task reads
    trips: int

    def __str__(self) -> str:
        return f"probe {self.what} {self.compute}: {self.tasks} tasks, {self.size} bytes, {self.trips} trips"


def _fma_gflops(machine: Machine, compute: str, threads: int, seconds: float) -> float:
    probe = Probe("fma", compute, TASKS_PER_THREAD * threads, 0, TRIPS)
    flops = 2 * _chains(machine) * ISAS[machine.isa].lanes(compute) * TRIPS * probe.tasks
    return flops / _fastest(_kernel(probe, machine), np.zeros(1 << 12, np.uint8), seconds) / 1e9


def _cache_gb_per_s(machine: Machine, size: int, threads: int, seconds: float) -> float:
    probe = Probe("own", "f32", TASKS_PER_THREAD * threads, size, READ_BYTES // size)
    total = probe.tasks * probe.size * probe.trips
    return total / _fastest(_kernel(probe, machine), np.zeros(64, np.uint8), seconds) / 1e9


def _memory_gb_per_s(machine: Machine, size: int, seconds: float) -> float:
    probe = Probe("share", "f32", size // SHARE_BYTES, SHARE_BYTES, 1)
    buffer = np.ones(size + 64, np.uint8)  # written, or the system would lend one page of zeros many times
    return size / _fastest(_kernel(probe, machine), buffer, seconds) / 1e9


def _fastest(kernel: Kernel, buffer: np.ndarray, seconds: float) -> float:
    address = buffer.ctypes.data + -buffer.ctypes.data % 64
    kernel(address, address, address)
    best, end = float("inf"), perf_counter() + seconds
    while perf_counter() < end:
        start = perf_counter()
        kernel(address, address, address)
        best = min(best, perf_counter() - start)
    return best


def _kernel(probe: Probe, machine: Machine) -> Kernel:
    return build(probe, machine, lower=_lower)


def _lower(probe: Probe, machine: Machine) -> KernelModule:
    module = Module()
    scratch = (max(probe.size, 1 << 12) + 63) // 64 * 64
    body = {"fma": _multiply, "own": _read_own, "share": _read_share}[probe.what]
    stage = emit_stage(module, "probe", probe.tasks, scratch, lambda b, at, task: body(probe, machine, b, at, task))
    return KernelModule(ir=str(module), stages=(stage,), shared_bytes=0, scratch_bytes=scratch)


def _chains(machine: Machine) -> int:
    """Independent sums: enough to hide the latency of two units, and they fit the registers."""
    return machine.registers * 3 // 4


def _multiply(probe: Probe, machine: Machine, b: Builder, at: Places, task: Value) -> None:
    """sum[j] += a · a for as many sums as hide the latency of one product; they start from memory, so none is known."""
    isa, kind = ISAS[machine.isa], ARITHMETIC[probe.compute]
    lanes = isa.lanes(probe.compute)
    places = [b.at(at.x, lanes * j, kind) for j in range(_chains(machine))]
    sums = {j: isa.load(b, probe.compute, place, lanes) for j, place in enumerate(places)}
    a = isa.load(b, probe.compute, at.x, lanes)

    def step(_: Index, now: dict[Any, Value]) -> dict[Any, Value]:
        return {j: isa.multiply_add(b, a, a, total) for j, total in now.items()}

    sums = b.loop(0, probe.trips, step, carried=sums, name="trip")
    for j, total in sums.items():
        isa.store(b, probe.compute, total, b.at(at.scratch, lanes * j, kind))


def _read_own(probe: Probe, machine: Machine, b: Builder, at: Places, task: Value) -> None:
    """Write the thread's own memory once, so that it is there, and read it many times."""
    isa = ISAS[machine.isa]
    lanes = isa.lanes("f32")
    zero = Value(isa.vector("f32"), "zeroinitializer")
    b.loop(
        0, probe.size, lambda i, _: isa.store(b, "f32", zero, b.at(at.scratch, i, "i8")), step=4 * lanes, name="clear"
    )  # fmt: skip
    b.loop(0, probe.trips, lambda trip, _: _read(probe, machine, b, at.scratch), name="trip")


def _read_share(probe: Probe, machine: Machine, b: Builder, at: Places, task: Value) -> None:
    """Every task reads another part."""
    _read(probe, machine, b, b.at(at.x, b.mul(task, probe.size), "i8"))


def _read(probe: Probe, machine: Machine, b: Builder, base: Value) -> None:
    """Volatile, so that no load is left out."""
    vector = ISAS[machine.isa].vector("f32")
    width = ISAS[machine.isa].vector_bytes

    def step(i: Index, _: object) -> None:
        for j in range(TOGETHER):
            b.emit(vector, f"load volatile {vector}, {b.at(base, b.add(i, j * width), 'i8')}, align {width}")

    b.loop(0, probe.size, step, step=TOGETHER * width, name="read")
