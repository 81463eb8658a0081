"""What kernels would take on AMX tiles, estimated on a machine with AVX-512 that has none.

    python benchmarks/tiles.py --dir BWD_W --data-format NXC mb8ic64ih56oc64kh3ph1

Every variant on tiles is compiled three times with something else in place of tile instructions: products that are only
counted; nothing, which leaves packing, copies and rounding; loads and stores of the rows of tiles, as vectors. Of these
times, of one thread, an estimate is made. How far off it is: docs/measured_facts/processors.md. It is too low for plans
whose rows of A begin anywhere in lines ("on matrix tiles", of weights and several taps): tiles load those slowly.
"""

from __future__ import annotations

import argparse
import ctypes
import os
from collections.abc import Iterator
from typing import TYPE_CHECKING, NamedTuple

from convgrad import set_num_threads, settings
from convgrad.cli import work
from convgrad.codegen.ir import Builder
from convgrad.codegen.ir_module import Index, Value
from convgrad.codegen.isa.matrix import ROW_BYTES, UNITS, TileUnit
from convgrad.codegen.lower import lower
from convgrad.plan.choose import variants
from convgrad.plan.machine import Machine, machine_for, why_not
from convgrad.problem.conv import ConvProblem
from convgrad.runtime import kernel
from convgrad.runtime.tuning import Arrays, race

if TYPE_CHECKING:
    from convgrad.plan.choose import Plan

PRODUCT_SECONDS = 16 / 2.7e9  # of two whole tiles; with fewer rows of A it takes as long
PACKING, MOVING = 2.3, 1.5  # times as long as on a Zen 5: packing and the like, and loads and stores of tiles
ROW = f"<{ROW_BYTES // 4} x i32>"


class LeftOut(TileUnit):
    """No tile instruction at all."""

    def begin(self, b: Builder) -> None:
        """Nothing."""

    def end(self, b: Builder) -> None:
        """Nothing."""

    def zero(self, b: Builder, tile: int) -> None:
        """Nothing."""

    def load(self, b: Builder, tile: int, address: Value, row_bytes: Index) -> None:
        """Nothing."""

    def store(self, b: Builder, tile: int, address: Value, row_bytes: int) -> None:
        """Nothing."""

    def multiply_add(self, b: Builder, c: int, a: int, x: int) -> None:
        """Nothing."""


class Moved(LeftOut):
    """Rows of tiles come and go as vectors."""

    def load(self, b: Builder, tile: int, address: Value, row_bytes: Index) -> None:
        """And are forgotten."""
        for row in range(self.rows_of(tile)):
            b.emit(ROW, f"load volatile {ROW}, {b.at(address, b.mul(row, row_bytes), 'i8')}, align 4")

    def store(self, b: Builder, tile: int, address: Value, row_bytes: int) -> None:
        """Zeros."""
        for row in range(self.rows_of(tile)):
            b.do(f"store volatile {ROW} zeroinitializer, {b.at(address, row * row_bytes, 'i8')}, align 4")


class Counted(LeftOut):
    """Products are counted, by one thread."""

    count = ctypes.c_int64()

    def multiply_add(self, b: Builder, c: int, a: int, x: int) -> None:
        """One more."""
        place = Value("ptr", f"inttoptr (i64 {ctypes.addressof(self.count)} to ptr)")
        b.store(b.add(b.load("i64", place, 8), 1), place, 8)


class Estimate(NamedTuple):
    """Of one variant, in seconds."""

    kind: str
    products: float
    packing: float
    moving: float

    @property
    def all(self) -> float:
        """On tiles."""
        return self.products + PACKING * self.packing + MOVING * self.moving


def estimates(problem: ConvProblem, seconds: float) -> Iterator[Estimate]:
    """Of every variant on tiles, in the order of predictions; those of one problem are timed for so long each."""
    machine, arrays = machine_for("amx"), Arrays(problem)
    for plan in variants(problem, machine):
        if plan.ON_UNITS and plan.isa in UNITS:
            counted, packed, moved = (_built(plan, machine, unit) for unit in (Counted, LeftOut, Moved))
            Counted.count.value = 0
            counted(*arrays.addresses)
            without, touched = (_fastest(built, arrays, seconds / 2) for built in (packed, moved))
            yield Estimate(plan.KIND, Counted.count.value * PRODUCT_SECONDS, without, max(0.0, touched - without))


def _fastest(built: kernel.Kernel, arrays: Arrays, seconds: float) -> float:
    """By itself: beside one that takes half as long it would not be timed often."""
    return race([lambda: built(*arrays.addresses)], seconds)[0]


def _built(plan: Plan, machine: Machine, unit: type[TileUnit]) -> kernel.Kernel:
    """With this unit in place of tiles."""
    assert settings.cache_dir() is None, "on disk it would be taken for the kernel of the plan"
    present = UNITS["amx"]
    UNITS["amx"] = unit
    try:
        return kernel.build(plan.problem, machine, lower=lambda problem, machine: lower(plan))
    finally:
        UNITS["amx"] = present


def main() -> None:
    """Print them."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    work.add_arguments(parser, many=True, directions=("BWD_W",))
    parser.add_argument("--seconds", type=float, default=1.0, help="for each variant (default 1)")
    args = parser.parse_args()
    if reason := why_not("avx512"):
        parser.error(f"no estimate can be made here: {reason}")
    os.environ["CONVGRAD_CACHE_DIR"] = "off"
    set_num_threads(1)
    for job in work.jobs_of(args):
        print(f"{job.op}, {job.label}: milliseconds, of one thread")
        print(f"{'on tiles':>9} {'products':>9} {'packing':>9} {'tiles moved':>12}")
        for found in estimates(job.problem, args.seconds):
            parts = f"{1e3 * found.products:9.3f} {1e3 * found.packing:9.3f} {1e3 * found.moving:12.3f}"
            print(f"{1e3 * found.all:9.3f} {parts}  {found.kind}")


if __name__ == "__main__":
    main()
