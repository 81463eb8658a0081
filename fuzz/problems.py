"""Random problems through the public functions, compared bit by bit with the float64 definition.

    python fuzz/problems.py --seconds 600 --seed 7

Inputs are integers, so small that every sum is exact and a result can only be right or wrong; in some cases there are
infinities and NaN among them, which must reach the results that the definition says and no others. Each array lies
between guards, flush against one of them; inputs are read-only; outputs, gaps between elements and the workspace
are filled with NaN before the call. A case is run several times: at either guard, with one thread and with more.

Cases are made by a child process. One that fails, or ends the child, is printed as one line that runs it again.
"""

from __future__ import annotations

import argparse
import ctypes
import faulthandler
import mmap
import os
import signal
import sys
import time
import traceback
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from math import prod
from typing import Any

import numpy as np
from guarded import GuardedArray, GuardedWorkspace
from random_cases import LARGE, Case, case_from, random_case

import convgrad
from convgrad import ConvError
from convgrad.arrays.call import Operation
from convgrad.dtypes import numpy_dtype
from convgrad.runtime import kernel, num_threads, set_num_threads
from convgrad.spec.definition import define
from convgrad.spec.resolve import Resolved, resolve
from convgrad.spec.schemas import SCHEMAS

FUNCTIONS = {
    "Convolution": convgrad.convolution,
    "ConvolutionBackwardData": convgrad.convolution_backward_data,
    "ConvolutionBackwardWeights": convgrad.convolution_backward_weights,
    "ConvTranspose": convgrad.conv_transpose,
    "ConvTransposeBackwardData": convgrad.conv_transpose_backward_data,
    "ConvTransposeBackwardWeights": convgrad.conv_transpose_backward_weights,
    "BiasAddBackward": convgrad.bias_add_backward,
}
EXACT = 2**24  # whole numbers up to here are f32 numbers
SMALL = 3  # of factors that are not large
SPECIAL = (np.inf, -np.inf, np.nan)
LEVEL = "CONVGRAD_ISA"


class Failure(AssertionError):
    """A case that is not what it should be."""


@dataclass
class Counts:
    """What was done so far."""

    cases: int = 0
    calls: int = 0
    refused: int = 0  # cases that are mistakes, and were told to be
    by: Counter = field(default_factory=Counter)


def check(case: Case, counts: Counts | None = None) -> None:
    """Run a case in every placement; a Failure says what is wrong."""
    counts = counts or Counts()
    counts.cases += 1
    resolved = resolved_of(case)
    results = []
    with _settings_of(case):
        for low, threads in ((False, 1), (True, 1), (False, case.threads)):
            set_num_threads(threads)
            counts.calls += 1
            result = _call(case, resolved, low=low)
            if result is None:
                counts.refused += 1
                return
            results.append(result)
    if any(other.tobytes() != results[0].tobytes() for other in results[1:]):
        raise Failure("the result depends on the place of the arrays or on the number of threads")
    counts.by.update(
        [
            *["special numbers"] * bool(case.special),
            case.op,
            case.dtype,
            case.isa or "best",
            f"mode {case.fpmath_mode}",
            f"rank {len(case.shapes[0]) - 2}",
        ]
    )


def resolved_of(case: Case) -> Resolved | ConvError:
    """What the specification makes of a case: numbers, or a mistake."""
    try:
        return resolve(case.op, case.attributes, case.shapes, shape_input=case.shape)
    except ConvError as error:
        return error


def forget() -> None:
    """Drop what calls remember, so that the next one compiles."""
    import convgrad.operations as operations

    kernel.forget()
    for value in vars(operations).values():
        if isinstance(value, Operation):
            value.forget()


@contextmanager
def _settings_of(case: Case) -> Iterator[None]:
    """The level of a case, and no kernels of earlier ones; afterwards the settings that the process had."""
    level, threads = os.environ.pop(LEVEL, None), num_threads()
    if case.isa:
        os.environ[LEVEL] = case.isa
    forget()
    try:
        yield
    finally:
        os.environ.pop(LEVEL, None)
        if level is not None:
            os.environ[LEVEL] = level
        set_num_threads(threads)


def _call(case: Case, resolved: Resolved | ConvError, *, low: bool) -> np.ndarray | None:
    """One call between guards; None if it was refused, as it had to be."""
    inputs, rng, largest = guarded_inputs(case, resolved, low=low)
    arrays = [guarded.array for guarded in inputs]
    if isinstance(resolved, ConvError):
        try:
            call(case, arrays, None)
        except ConvError:
            return None
        raise Failure(f"the call takes what the specification refuses: {resolved}")
    with np.errstate(invalid="ignore"):  # infinities that meet
        wanted = define(resolved, arrays)  # in float64, which holds every number that the kernel sums
    out_dtype = numpy_dtype(case.out_dtype or case.dtype)
    out = None
    if case.out is not None:
        out = GuardedArray(wanted.shape, case.out.strides(wanted.shape), out_dtype, low=low)
        if case.accumulate:
            out.array[...] = rng.integers(-largest, largest + 1, wanted.shape)
            wanted = wanted + out.array.astype(np.float64)  # as they are once rounded to its type
    with GuardedWorkspace() as workspace:
        workspace.low = low
        result = call(case, arrays, out and out.array)
    if workspace.broken:
        raise Failure("; ".join(workspace.broken))
    with np.errstate(over="ignore"):  # f16 ends at 65504
        compare(result, wanted.astype(out_dtype))
    if out is not None and not (result is out.array and out.untouched_beside()):
        raise Failure("bytes beside the elements of the output changed")
    if case.op.endswith("BackwardWeights"):
        _check_bias_gradient(case, resolved, arrays, low=low)
    return np.array(result, order="C")  # a copy: the memory of the output goes


def _check_bias_gradient(case: Case, resolved: Resolved, arrays: list[np.ndarray], *, low: bool) -> None:
    """The same weights once more, with the sums of diff_dst beside them."""
    diff_dst = arrays[1].astype(np.float64)
    channels = 1 if resolved.data_format == "NCX" else diff_dst.ndim - 1
    with np.errstate(invalid="ignore"):
        wanted = diff_dst.sum(tuple(n for n in range(diff_dst.ndim) if n != channels))
    sums = GuardedArray(wanted.shape, ((1, 2, -3)[case.seed % 3],), numpy_dtype(case.out_dtype or case.dtype), low=low)
    with GuardedWorkspace() as workspace:
        workspace.low = low
        weights, found = call(case, arrays, None, diff_bias=sums.array)
    if workspace.broken:
        raise Failure("with a bias gradient: " + "; ".join(workspace.broken))
    with np.errstate(over="ignore", invalid="ignore"):
        compare(weights, define(resolved, arrays).astype(weights.dtype))
        compare(found, wanted.astype(found.dtype))
    if not sums.untouched_beside():
        raise Failure("bytes beside the elements of the bias gradient changed")


def guarded_inputs(
    case: Case, resolved: Resolved | ConvError, *, low: bool = False
) -> tuple[list[GuardedArray], np.random.Generator, int]:
    """The inputs, which nobody can write to; where the random numbers go on, and the largest of them."""
    rng, largest = np.random.default_rng(case.seed), _largest(case, resolved)
    inputs = []
    for number, (shape, layout) in enumerate(zip(case.shapes, case.layouts, strict=True)):
        guarded = GuardedArray(shape, layout.strides(shape), numpy_dtype(case.dtype), low=low)
        small = case.largest == LARGE and number == case.seed % 2  # the other one is large
        most = min(largest, SMALL) if small else largest
        guarded.array[...] = rng.integers(-most, most + 1, shape)
        for _ in range(case.special if guarded.array.size else 0):
            guarded.array[tuple(rng.integers(0, shape))] = rng.choice(SPECIAL)
        guarded.block.freeze()
        guarded.array.flags.writeable = False
        inputs.append(guarded)
    return inputs, rng, largest


def _largest(case: Case, resolved: Resolved | ConvError) -> int:
    """Of the numbers: small enough for every sum to be exact."""
    if isinstance(resolved, ConvError):
        return 1
    if case.op == "BiasAddBackward":
        return min(case.largest, EXACT // (prod(case.shapes[0]) + 1))
    terms, largest = _most_terms(case, resolved), case.largest
    while largest > 1 and (terms + 1) * largest * (SMALL if case.largest == LARGE else largest) > EXACT:
        largest //= 2
    return largest


def _most_terms(case: Case, resolved: Resolved) -> int:
    """At least as many products as there are in any sum."""
    if case.op.endswith("BackwardWeights"):
        return max(prod(shape) // max(1, _channels(shape, case.attributes)) for shape in case.shapes)
    weights, rank = case.shapes[1], len(resolved.kernel)
    channels = weights[:-rank] if case.attributes["weights_format"].endswith("X") else weights[rank:]
    return prod(resolved.kernel) * max(channels)


def _channels(shape: tuple[int, ...], attributes: dict) -> int:
    return shape[1] if attributes["data_format"] == "NCX" else shape[-1]


def call(case: Case, arrays: list[np.ndarray], out: np.ndarray | None, **others: Any) -> Any:
    """The call, as a user writes it."""
    keywords = case.attributes | {"out": out, "accumulate": case.accumulate and out is not None} | others
    if case.out_dtype and out is None:
        keywords["out_dtype"] = case.out_dtype
    if case.fpmath_mode:
        keywords["fpmath_mode"] = case.fpmath_mode
    if case.shape is not None and (case.tell or out is None):
        keywords[SCHEMAS[case.op].shape_attribute] = list(case.shape)
    return FUNCTIONS[case.op](*arrays, **keywords)


def compare(result: np.ndarray, wanted: np.ndarray) -> None:
    """A Failure unless every element is right: equal, or NaN where nothing else is."""
    if result.shape != wanted.shape or result.dtype != wanted.dtype:
        raise Failure(f"the result is {result.dtype} {result.shape}, but {wanted.dtype} {wanted.shape} is right")
    got, right = result.astype(np.float64), wanted.astype(np.float64)
    wrong = np.argwhere(~((got == right) | (np.isnan(got) & np.isnan(right))))
    if len(wrong):
        place = tuple(map(int, wrong[0]))
        raise Failure(f"{len(wrong)} of {got.size} elements are wrong; at {place} {got[place]} for {right[place]}")


# --- the command


class _Progress:
    """Which case a child is at, in memory that outlives it."""

    def __init__(self) -> None:
        self._memory = mmap.mmap(-1, mmap.PAGESIZE)
        self._number = ctypes.c_int64.from_buffer(self._memory)

    @property
    def at(self) -> int:
        return self._number.value

    @at.setter
    def at(self, number: int) -> None:
        self._number.value = number


def run(seed: int, *, seconds: float, most: int, first: int, progress: _Progress) -> bool:
    """Cases of a seed until the time is over; returns whether all were right. Says what was done."""
    counts, start, right = Counts(), time.perf_counter(), True
    try:
        while counts.cases < most and time.perf_counter() - start < seconds:
            progress.at = first + counts.cases
            right = judge(random_case(seed, progress.at), counts)
            if not right:
                break
    except KeyboardInterrupt:
        pass  # the summary follows
    spent = time.perf_counter() - start
    print(
        f"seed {seed}, cases {first} to {first + counts.cases - 1}: {counts.cases} cases, {counts.calls} calls, "
        f"{counts.refused} refused as they should be, {0 if right else 1} wrong, in {spent:.0f} s"
    )
    print(", ".join(f"{name} {number}" for name, number in sorted(counts.by.items())), flush=True)
    return right


def judge(case: Case, counts: Counts | None = None) -> bool:
    """Whether a case is right; if not, its line is printed."""
    try:
        check(case, counts)
    except KeyboardInterrupt:
        raise
    except BaseException as error:
        print(f"{type(error).__name__}: {error}\n{case.line()}", flush=True)
        return False
    return True


def in_child(work, describe, *, quiet: bool = False) -> bool:
    """Whether `work` returned True in a forked child; if the child was killed, `describe` says what it was at."""
    sys.stdout.flush()
    child = os.fork()
    if child == 0:
        if not quiet:
            faulthandler.enable()
        right = False
        try:
            right = work()
        except BaseException:
            traceback.print_exc()
        finally:
            sys.stdout.flush()
            os._exit(0 if right else 1)
    while True:
        try:
            _, status = os.waitpid(child, 0)
            break
        except KeyboardInterrupt:
            continue  # the child got it too, and is about to end
    if os.WIFSIGNALED(status) and not quiet:
        name = signal.Signals(os.WTERMSIG(status)).name
        print(f"the process was ended by {name}\n{describe()}", flush=True)
    return status == 0


def main() -> int:
    """The command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seconds", type=float, default=60, help="when to stop (default: %(default)s)")
    parser.add_argument("--cases", type=int, default=sys.maxsize, help="when to stop")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--first", type=int, default=0, help="number of the first case of the seed")
    parser.add_argument("--case", help="the JSON of a line that a failure printed")
    args = parser.parse_args()
    os.environ["CONVGRAD_CACHE_DIR"] = "off"  # every kernel is one of this compiler
    if args.case:
        case = case_from(args.case)
        right = in_child(lambda: judge(case), case.line)
        print("right" if right else "wrong")
        return 0 if right else 1
    progress = _Progress()
    right = in_child(
        lambda: run(args.seed, seconds=args.seconds, most=args.cases, first=args.first, progress=progress),
        lambda: random_case(args.seed, progress.at).line(),
    )
    return 0 if right else 1


if __name__ == "__main__":
    sys.exit(main())
