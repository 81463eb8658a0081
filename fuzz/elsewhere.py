"""Kernels compiled on this machine, run and checked on one that has their instruction set, or that emulates it.

    python fuzz/elsewhere.py record objects --isa amx --problems 300
    python fuzz/elsewhere.py run objects --isa amx --problems 300

The other machine may be very slow, such as a processor whose every instruction is emulated: it plans and writes IR
again, which proves that both have the same sources, but finds object code in the folder by the text of the IR.
Problems are those of tests/codegen/random_problems.py, small and with exact results; of an instruction set with matrix
tiles only plans that use them.
"""

from __future__ import annotations

import argparse
import hashlib
import sys
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path

import numpy as np

sys.path.append(str(Path(__file__).parents[1] / "tests"))

from codegen import emitted
from codegen.random_problems import check, random_problem
from convgrad.plan.by_matrix.matrix import MatrixDataPlan
from convgrad.plan.by_matrix.matrix_weights import MatrixWeightsPlan
from convgrad.plan.choose import variants
from convgrad.plan.machine import Machine, machine_for
from convgrad.runtime import jit

ON_TILES = MatrixDataPlan, MatrixWeightsPlan


class Missing(Exception):
    """There is no object code of a kernel in the folder."""


class Recorded(Exception):
    """A kernel was compiled and kept; it is not run here."""


def object_file(folder: Path, text: str, machine: Machine) -> Path:
    """Where the object code of some IR is kept."""
    return folder / hashlib.sha256(f"{machine.isa}\n{text}".encode()).hexdigest()[:32]


def record(folder: Path, module, machine: Machine, _arrays, *, low: bool) -> None:
    """Compile a kernel and its fallback, in the place of running it."""
    for part in (module, *([module.fallback.lower()] if module.fallback else [])):
        object_file(folder, part.ir, machine).write_bytes(jit.compile_ir(part.ir, machine))
    raise Recorded


def recorded(folder: Path, text: str, machine: Machine) -> bytes:
    """In the place of compiling it."""
    found = object_file(folder, text, machine)
    if not found.exists():
        raise Missing(f"no object code for a kernel on {machine.isa}; record again, from equal sources and counts")
    return found.read_bytes()


def variant_of(problem, machine: Machine, seed: int) -> int | None:
    """Which plan of a problem is tried: any, but where there are tiles, one that uses them if any does."""
    plans = list(variants(problem, machine))
    if not machine.has_tiles:
        return seed % len(plans)
    return next((number for number, plan in enumerate(plans) if isinstance(plan, ON_TILES)), None)


def check_all(isa: str, problems: int, run: Callable[..., object]) -> tuple[int, int]:
    """How many problems there were, and how many were wrong; a line for each of these."""
    machine, tried, wrong = machine_for(isa), 0, 0
    for seed in range(problems):
        problem = random_problem(np.random.default_rng(seed))
        variant = variant_of(problem, machine, seed)
        if variant is None:
            continue
        tried += 1
        try:
            check(
                problem, isa, variant=variant, seed=seed, low=bool(seed % 2), alter=seed if seed % 3 else None, run=run
            )
        except Recorded:
            pass
        except (AssertionError, Missing) as error:
            wrong += 1
            print(f"seed {seed}: {error}", flush=True)
    return tried, wrong


def main() -> int:
    """Exit status 1 if anything is wrong."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("what", choices=("record", "run"))
    parser.add_argument("folder", type=Path)
    parser.add_argument("--isa", required=True)
    parser.add_argument("--problems", type=int, default=100, help="seeds; of some problems no plan is on tiles")
    options = parser.parse_args()
    options.folder.mkdir(parents=True, exist_ok=True)
    run: Callable[..., object] = partial(record, options.folder)
    if options.what == "run":
        emitted.jit.compile_ir = partial(recorded, options.folder)
        run = emitted.run_here
    start = time.perf_counter()
    tried, wrong = check_all(options.isa, options.problems, run)
    done = "recorded" if options.what == "record" else "run"
    print(f"{tried} kernels of {options.isa} {done} in {time.perf_counter() - start:.0f} s, {wrong} wrong")
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
