"""Kernels that measure what a machine can do: products of each kind without a wait, and reading from each memory."""

from __future__ import annotations

from collections.abc import Callable
from time import perf_counter
from typing import Any

import numpy as np

from convgrad.codegen.ir import Builder
from convgrad.codegen.ir_module import Index, Module, Value
from convgrad.codegen.isa import ISAS
from convgrad.codegen.isa.base import ARITHMETIC
from convgrad.codegen.isa.dots import DOT_UNITS, LANES, PAIR, SUMS
from convgrad.codegen.isa.matrix import A_TILES, B_TILES, C_TILES, COLUMNS, DEPTH, ROW_BYTES, ROWS, UNITS
from convgrad.codegen.module import KernelModule
from convgrad.codegen.stages import Places, emit_stage
from convgrad.plan.machine import Machine
from convgrad.runtime.kernel import Kernel, build
from convgrad.values import frozen

TASKS_PER_THREAD = 4
TRIPS = 20_000  # of a loop of products of vectors
TILE_TRIPS = 1_000  # of one of products of tiles, each of which takes as long as 16 of vectors
READ_BYTES = 64 << 20  # that a task reads from a cache of its core
TOGETHER = 8  # loads in one step of a reading loop
SHARE_BYTES = 256 << 10  # of a large buffer that one task reads


@frozen
class Probe:
    """A kernel that measures, in the place of a problem."""

    what: str  # a product, or read of `own` memory of a thread again and again, or of memory that all `share`
    compute: str
    tasks: int
    size: int  # bytes that a task reads
    trips: int

    def __str__(self) -> str:
        return f"probe {self.what} {self.compute}: {self.tasks} tasks, {self.size} bytes, {self.trips} trips"


def products_gflops(machine: Machine, what: str, compute: str, threads: int, seconds: float) -> float:
    """Of one kind of product, in all threads together, counted as two operations for each multiply-add."""
    trips, flops = {
        "fma": (TRIPS, 2 * ISAS[machine.isa].lanes(compute) * _chains(machine)),
        "dots": (TRIPS, 2 * PAIR * LANES * _chains(machine)),
        "tiles": (TILE_TRIPS, 2 * ROWS * COLUMNS * DEPTH * len(C_TILES)),
    }[what]
    probe = Probe(what, compute, TASKS_PER_THREAD * threads, 0, trips)
    least = _fastest(_kernel(probe, machine), np.zeros(1 << 12, np.uint8), seconds)
    return flops * trips * probe.tasks / least / 1e9


def cache_gb_per_s(machine: Machine, size: int, threads: int, seconds: float) -> float:
    """Of reading memory of each thread's own, of so many bytes, again and again."""
    probe = Probe("own", "f32", TASKS_PER_THREAD * threads, size, READ_BYTES // size)
    total = probe.tasks * probe.size * probe.trips
    return total / _fastest(_kernel(probe, machine), np.zeros(64, np.uint8), seconds) / 1e9


def memory_gb_per_s(machine: Machine, size: int, seconds: float) -> float:
    """Of reading so many bytes once, in parts that threads share."""
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
    body = _BODIES[probe.what]
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


def _dot(probe: Probe, machine: Machine, b: Builder, at: Places, task: Value) -> None:
    """The same by dot products of pairs of bf16."""
    unit = DOT_UNITS[machine.isa]()
    sums = {j: b.load(SUMS, b.at(at.x, LANES * j, "float"), 4) for j in range(_chains(machine))}
    a = unit.load(b, at.x)

    def step(_: Index, now: dict[Any, Value]) -> dict[Any, Value]:
        return {j: unit.multiply_add(b, a, a, total) for j, total in now.items()}

    sums = b.loop(0, probe.trips, step, carried=sums, name="trip")
    for j, total in sums.items():
        b.store(total, b.at(at.scratch, LANES * j, "float"), 4)


def _multiply_tiles(probe: Probe, machine: Machine, b: Builder, at: Places, task: Value) -> None:
    """The same of all tiles that hold sums, which are more than are under way at a time."""
    unit = UNITS[machine.isa]()
    unit.begin(b)
    for c in C_TILES:
        unit.zero(b, c)
    for tile in (A_TILES[0], B_TILES[0]):
        unit.load(b, tile, at.x, ROW_BYTES)

    def step(_: Index, __: object) -> None:
        for c in C_TILES:
            unit.multiply_add(b, c, A_TILES[0], B_TILES[0])

    b.loop(0, probe.trips, step, name="trip")
    for c in C_TILES:
        unit.store(b, c, b.at(at.scratch, c * ROWS * ROW_BYTES, "i8"), ROW_BYTES)
    unit.end(b)


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


_BODIES: dict[str, Callable[[Probe, Machine, Builder, Places, Value], None]] = {
    "fma": _multiply, "dots": _dot, "tiles": _multiply_tiles, "own": _read_own, "share": _read_share,
}  # fmt: skip
