"""Break the compiler or the runtime on purpose, and see that the fuzzer or the soak notices.

    python fuzz/mutants.py            every mutant; prints the table of docs/reliability.md
    python fuzz/mutants.py "dropped tail" ...

Each mutant lives in a forked child. It is killed by a failing case of fuzz/problems.py (wrong numbers, or a fault at a
guard), or, where only threads can show it, by calls from several threads at once. One that raises an exception
instead is no defect of a kernel but one of the mutant, and does not count as killed. `none` is no mutant: it lives.
"""

from __future__ import annotations

import argparse
import os
import sys
import threading
import time
from dataclasses import replace
from itertools import chain, count
from typing import Any

import numpy as np
import problems
import random_cases
from defects import Mutant
from kernel_defects import KERNEL_DEFECTS
from problems import Failure
from random_cases import Case, Layout
from thread_defects import THREAD_DEFECTS

from convgrad.plan.machine import why_not
from convgrad.runtime import set_num_threads

SEED = 77
SECONDS = 20  # that a mutant may survive for
PATIENCE = 1.5  # seconds in which some call returns
RAISES = "does not run: "  # before what a mutant raised
MUTANTS = {"none": Mutant("nothing is broken", lambda: None)} | KERNEL_DEFECTS | THREAD_DEFECTS


def by_cases(mutant: Mutant) -> str:
    """What kills a mutant: the large cases, then random ones like it."""
    start = time.perf_counter()
    random = (random_cases.random_case(SEED, number) for number in count())
    for tried, case in enumerate(filter(mutant.like, chain(LARGE, ON_TILES, random)), 1):
        if time.perf_counter() - start > SECONDS or (mutant is MUTANTS["none"] and tried > 40):
            return ""
        _say(f"a fault in case {tried}")
        try:
            problems.check(case)
        except Failure as failure:
            return f"case {tried}: {failure}"
    return ""


def by_threads(mutant: Mutant) -> str:
    """What kills a mutant: a wrong result of calls from four threads at once, with two threads each."""
    set_num_threads(2)
    jobs = [(case, *_expected(case)) for case in (*LARGE, *ALIKE)]
    found: list[str] = []
    start, calls_made, wrong = time.perf_counter(), [0] * 4, threading.Event()

    def caller(number: int) -> None:
        for step in count(3 * number):
            if found or time.perf_counter() - start > SECONDS:
                return
            case, arrays, wanted, out_dtype = jobs[step % len(jobs)]
            out = np.zeros(wanted.shape, out_dtype) if case.accumulate else np.full(wanted.shape, np.nan, out_dtype)
            _say(f"a fault after {sum(calls_made)} calls")
            try:
                problems.compare(problems.call(case, [a.array for a in arrays], out), wanted)
            except Failure as failure:
                found.append(f"after {sum(calls_made)} calls: {failure}")
                wrong.set()
            except Exception as error:
                found.append(_raised(error))
                wrong.set()
            calls_made[number] += 1

    callers = [threading.Thread(target=caller, args=(n,)) for n in range(4)]
    for thread in callers:
        thread.daemon = True  # some never return
        thread.start()
    before = 0
    while any(thread.is_alive() for thread in callers):
        if wrong.wait(PATIENCE):
            break
        if before == sum(calls_made):
            return f"calls that do not return, after {before} that did"
        before = sum(calls_made)
    return found[0] if found else ""


def _expected(case: Case) -> tuple:
    resolved = problems.resolved_of(case)
    arrays, _, _ = problems.guarded_inputs(case, resolved)
    out_dtype = problems.numpy_dtype(case.out_dtype or case.dtype)
    return arrays, problems.define(resolved, [a.array for a in arrays]).astype(out_dtype), out_dtype


_told: list[Any] = []


def _say(text: str) -> None:
    """Tell the parent where a mutant that ends the process was."""
    _told[0].seek(0)
    _told[0].write(text.encode().ljust(400)[:400])


def _raised(error: Exception) -> str:
    return f"{RAISES}{type(error).__name__}: {error}"


def kill(mutant: Mutant) -> str:
    """How a mutant died, in words; empty if it lives."""
    _told[:] = [problems.mmap.mmap(-1, 4096)]

    def work() -> bool:
        try:
            mutant.breaks()
            how = by_threads(mutant) if mutant.threads else by_cases(mutant)
        except Exception as error:
            how = _raised(error)
        _say(how)
        return not how

    alive = problems.in_child(work, lambda: "", quiet=True)
    _told[0].seek(0)
    return "" if alive else _told[0].read(400).decode(errors="replace").strip()


def _dense(rank: int) -> Layout:
    return Layout(tuple(range(rank)), (1,) * rank, (1,) * rank)


def _case(op: str, *shapes: tuple[int, ...], **fields: Any) -> Case:
    attributes = {"data_format": "NCX", "weights_format": "IOX" if op.startswith("ConvTranspose") else "OIX"}
    attributes |= {name: fields.pop(name) for name in ("pads_begin", "pads_end", "groups") if name in fields}
    rank = len(shapes[0]) - 2
    attributes |= {"strides": (1,) * rank, "dilations": (1,) * rank}
    layouts = tuple(_dense(len(shape)) for shape in shapes)
    fields = {"out": _dense(len(shapes[0])), "largest": 2} | fields
    return Case(op=op, shapes=shapes, layouts=layouts, attributes=attributes, **fields)


_PADS = {"pads_begin": (1, 1), "pads_end": (1, 1)}
LARGE = (  # several tasks, several chunks, several blocks of input channels
    _case("Convolution", (2, 40, 30, 30), (50, 40, 3, 3), **_PADS),
    _case("ConvolutionBackwardWeights", (4, 24, 40, 40), (4, 40, 40, 40), shape=(40, 24, 3, 3), **_PADS),
    _case("ConvTranspose", (2, 1100, 6, 6), (1100, 20, 3, 3), **_PADS),
    _case("Convolution", (3, 17, 20, 20), (33, 17, 1, 1), accumulate=True),
)
_TILES = {"isa": random_cases.TILES, "largest": random_cases.LARGE, "seed": 1}  # the first input is large
ON_TILES = tuple(  # where matrix tiles are predicted to be the fastest, if this machine has what emulates them
    replace(case, dtype=dtype)
    for dtype in ("f32", "bf16", "f16")
    for case in (
        _case("Convolution", (2, 72, 8, 8), (64, 72, 3, 3), **_PADS, **_TILES),
        _case("ConvolutionBackwardWeights", (2, 72, 8, 8), (2, 64, 8, 8), shape=(64, 72, 3, 3), **_PADS, **_TILES),
    )
    if random_cases.EMULATED
)
ALIKE = tuple(  # they differ in attributes alone
    _case("Convolution", (1, 3, 9, 9), (4, 3, 3, 3), pads_begin=pads, pads_end=pads[::-1]) for pads in ((0, 2), (2, 0))
)


def main() -> int:
    """The command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("names", nargs="*", help="of mutants; all if none is given")
    names = parser.parse_args().names or list(MUTANTS)
    os.environ["CONVGRAD_CACHE_DIR"] = "off"
    print("| mutant | what is broken | killed by | how it shows |\n|---|---|---|---|")
    alive = []
    for name in names:
        mutant = MUTANTS[name]
        if why_not(mutant.isa):
            print(f"| {name} | {mutant.what} | (not here) | {why_not(mutant.isa)} |", flush=True)
            continue
        how = kill(mutant)
        killed = bool(how) and not how.startswith(RAISES)
        if killed == (name == "none"):
            alive.append(name)
        killer = "threads" if mutant.threads else "fuzzer"
        print(f"| {name} | {mutant.what} | {killer if killed else '(lives)'} | {how} |", flush=True)
    broken = sum(name != "none" and not why_not(MUTANTS[name].isa) for name in names)
    print(f"\nnot as it should be: {', '.join(alive)}" if alive else f"\n{broken} mutants, all killed")
    return 1 if alive else 0


if __name__ == "__main__":
    sys.exit(main())
