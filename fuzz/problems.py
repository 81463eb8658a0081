"""Random problems through the public functions, compared bit by bit with the float64 definition.

    python fuzz/problems.py --seconds 600 --seed 7

Inputs are integers, so small that every sum is exact and a result can only be right or wrong; in some cases there are
infinities and NaN among them, which must reach the results that the definition says and no others. Each array lies
between guard pages, flush against one of them; inputs are read-only; outputs, gaps between elements and the workspace
are filled with NaN before the call. A case is run several times: at either guard page, with one thread and with more.

Cases are made by a child process. One that fails, or ends the child, is printed as one line that runs it again.
"""

from __future__ import annotations

import argparse
import ctypes
import faulthandler
import json
import mmap
import os
import signal
import sys
import time
import traceback
from collections import Counter
from dataclasses import asdict, dataclass, field, replace
from math import prod
from typing import Any

import numpy as np
from guarded import GuardedArray, GuardedWorkspace

import convgrad
from convgrad import ConvError
from convgrad.dtypes import numpy_dtype
from convgrad.plan.machine import available_isas, why_not
from convgrad.runtime import kernel, set_num_threads
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
FORWARD = {"convolution": "Convolution", "transposed": "ConvTranspose"}
MOST_WORK = 3_000_000  # multiplications of one case: the definition takes its time
EXACT = 2**24  # whole numbers up to here are f32 numbers
LARGE, SMALL = 2000, 3  # of one factor, more than a piece of bf16 holds, so that splitting leaves something over
EMULATED = ("amx_emulated",) if why_not("amx_emulated") is None else ()  # matrix tiles, by vectors
SPECIAL = (np.inf, -np.inf, np.nan)
MODES = ("tf32", "f16", "bf16", "any")  # of which each holds small numbers exactly


@dataclass(frozen=True, slots=True)
class Layout:
    """Where the elements of an array lie: axes from the outermost in memory, and for each the step it takes."""

    order: tuple[int, ...]  # axes, outermost first
    gaps: tuple[int, ...]  # per axis: how many times wider than dense it steps
    signs: tuple[int, ...]  # per axis: 1, -1 for backwards, 0 for the same element again and again

    def strides(self, shape: tuple[int, ...]) -> tuple[int, ...]:
        """In elements."""
        strides, step = [0] * len(shape), 1
        for axis in reversed(self.order):
            step *= self.gaps[axis]
            strides[axis] = step * self.signs[axis]
            step *= max(shape[axis], 1)
        return tuple(strides)


@dataclass(frozen=True, slots=True, kw_only=True)
class Case:
    """One call."""

    op: str
    shapes: tuple[tuple[int, ...], ...]  # of the inputs, that of the bias included
    layouts: tuple[Layout, ...]  # of the inputs
    attributes: dict
    shape: tuple[int, ...] | None = None  # what tells the shape of the output
    tell: bool = True  # by an argument, else by `out`
    dtype: str = "f32"
    out_dtype: str | None = None
    out: Layout | None = None  # None: the function makes the output
    accumulate: bool = False
    isa: str | None = None
    fpmath_mode: str | None = None
    threads: int = 2
    largest: int = 3  # of the numbers in the inputs
    special: int = 0  # numbers of each input that are infinite or NaN
    seed: int = 0

    @property
    def bias(self) -> bool:
        """Whether there is one."""
        return len(self.shapes) > len(SCHEMAS[self.op].inputs)

    def line(self) -> str:
        """A command that runs this case again."""
        return f"python fuzz/problems.py --case '{json.dumps(asdict(self))}'"


def case_from(text: str) -> Case:
    """The case of a line."""
    fields = json.loads(text)
    tuples = {name: tuple(map(tuple, fields[name])) for name in ("shapes",)}
    layouts = tuple(_layout(entry) for entry in fields["layouts"])
    out, shape = fields["out"], fields["shape"]
    return Case(
        **fields
        | tuples
        | {"layouts": layouts, "out": out and _layout(out), "shape": None if shape is None else tuple(shape)}
    )


def _layout(entry: dict) -> Layout:
    return Layout(**{name: tuple(values) for name, values in entry.items()})


class Failure(AssertionError):
    """A case that is not what it should be."""


# --- making cases


def random_case(seed: int, number: int) -> Case:
    """Case `number` of a seed; the same for ever, until this function changes."""
    rng = np.random.default_rng([seed, number])
    while True:
        case = _BiasCase(rng).make() if rng.random() < 0.06 else _Draw(rng).make()
        if case is not None:
            return replace(case, seed=int(rng.integers(2**31)))


class _Draw:
    """One convolution or transposed convolution, drawn part by part."""

    def __init__(self, rng: np.random.Generator) -> None:
        self.rng = rng

    def pick(self, *values):
        """One of the values, with equal chances."""
        return values[self.rng.integers(len(values))]

    def chance(self, share: float) -> bool:
        """True in this share of the cases."""
        return bool(self.rng.random() < share)

    def below(self, low: int, high: int) -> int:
        """A whole number, both ends included."""
        return int(self.rng.integers(low, high + 1))

    def make(self) -> Case | None:
        """A case, or None if what was drawn does not fit together."""
        family = self.pick("convolution", "transposed")
        rank = self.pick(1, 1, 2, 2, 2, 3, 4)
        groups, image_channels, window_channels = self.channels()
        axes = [self.axis(rank) for _ in range(rank)]
        kernel, strides, dilations, begin, end, window, extra = map(tuple, zip(*axes, strict=True))
        attributes = {"strides": strides, "dilations": dilations, "groups": groups}
        attributes |= {"data_format": self.pick("NCX", "NXC"), "weights_format": self.pick("OIX", "XIO", "IOX", "XOI")}
        auto_pad = self.pick("same_upper", "SAME_LOWER", "valid") if self.chance(0.25) else None
        attributes |= {"auto_pad": auto_pad} if auto_pad else {"pads_begin": begin, "pads_end": end}
        if family == "transposed" and self.chance(0.6):
            attributes["output_padding"] = extra
        reach = [(k - 1) * d + 1 for k, d in zip(kernel, dilations, strict=True)]
        image = tuple(
            s * (y - 1) + r - b - e + x
            for s, y, r, b, e, x in zip(strides, window, reach, begin, end, extra, strict=True)
        )
        if auto_pad:
            image = tuple(self.below(1, 14) for _ in kernel)
        if min(image) < 0:
            return None
        batch = 0 if self.chance(0.01) else self.pick(1, 1, 2, 3)
        documented = family == "transposed" and groups > 1 and self.chance(0.4)
        weights = _weights_shape(family, documented, groups, window_channels, image_channels, kernel, attributes)
        return self.call(
            family, attributes, weights,
            image=_activation(batch, groups * image_channels, image, attributes),
            window=_activation(batch, groups * window_channels, window, attributes),
        )  # fmt: skip

    def channels(self) -> tuple[int, int, int]:
        """Groups, and channels of one group on either side; around the lengths of vectors, depthwise, or few."""
        match self.pick("few", "few", "lanes", "lanes", "depthwise", "groups", "none"):
            case "lanes":
                return 1, self.lane_count(), self.pick(self.lane_count(), self.below(1, 5))
            case "depthwise":
                return self.lane_count(), 1, self.pick(1, 1, 2, 3)
            case "groups":
                return self.below(2, 6), self.pick(self.below(1, 4), self.lane_count() // 2 + 1), self.below(1, 9)
            case "none" if self.chance(0.1):
                return 1, self.pick(0, 2), self.pick(0, 3)
        return self.pick(1, 1, 2, 3), self.below(1, 5), self.below(1, 5)

    def lane_count(self) -> int:
        """One off a number of lanes, or it."""
        return max(1, self.pick(4, 8, 16, 32, 48, 64) + self.below(-1, 1))

    def axis(self, rank: int) -> tuple[int, ...]:
        """Taps, stride, dilation, pads, window extent and what the image has beyond the last window."""
        most = {1: 40, 2: 14, 3: 6, 4: 4}[rank]
        taps = self.pick(1, 2, 3, 3, self.below(1, 7 if rank < 3 else 3))
        stride, dilation = self.pick(1, 1, 2, self.below(1, 4)), self.pick(1, 1, 2, self.below(1, 4))
        begin, end = self.below(0, taps + 1), self.below(0, taps + 1)
        if self.chance(0.04):
            begin, end = self.below(0, 20), self.below(0, 20)
        window = 0 if self.chance(0.005) else self.below(1, most)
        return taps, stride, dilation, begin, end, window, self.below(0, stride - 1)

    def call(self, family: str, attributes: dict, weights: tuple, *, image: tuple, window: tuple) -> Case | None:
        """Which of the three operations of the family, and how it is called."""
        forward = FORWARD[family]
        source, other = (image, window) if family == "convolution" else (window, image)
        try:  # the extents of the other side, as the forward operation has them
            other = resolve(forward, attributes, [source, weights]).output_shape
        except ConvError:
            if self.chance(0.9):
                return None  # some are kept: the call has to refuse them too
        op = self.pick(*(name for name, schema in SCHEMAS.items() if schema.family == family))
        shape = None
        if op == forward:
            shapes = [source, weights]
        elif op.endswith("BackwardWeights"):
            shapes, shape = [source, other], weights
        else:
            shapes = [other, weights]
            if family == "convolution":
                shape = source if self.chance(0.7) else _spatial(source, attributes)
        if op == forward and self.chance(0.4):
            channels = other[1] if attributes["data_format"] == "NCX" else other[-1]
            shapes.append((channels,))
        if prod(weights) * prod(_spatial(window, attributes)) * max(window[0], 1) > MOST_WORK:
            return None
        return self.finish(op, shapes, attributes, shape)

    def finish(self, op: str, shapes: list, attributes: dict, shape: tuple | None) -> Case:
        """Types, layouts and the rest of the call."""
        dtype = self.pick("f32", "f32", "bf16", "f16", "f64")
        case = Case(
            op=op, shapes=tuple(map(tuple, shapes)), attributes=attributes, shape=shape, dtype=dtype,
            layouts=tuple(self.layout(len(s), broadcast=True) for s in shapes),
            out_dtype=self.pick(None, None, "f32") if dtype in ("bf16", "f16") else None,
            isa=self.pick(None, None, *available_isas(), *EMULATED), threads=self.pick(1, 2, 3, 7),
            largest=self.pick(2, 3, 9, 40, LARGE),
        )  # fmt: skip
        if op != "BiasAddBackward" and case.largest != LARGE and self.chance(0.3):
            case = replace(case, fpmath_mode=self.pick(*MODES))
        elif self.chance(0.2):
            case = replace(case, special=self.pick(1, 1, 3, 40))
        rank = 1 if op == "BiasAddBackward" else len(shapes[0])
        if self.chance(0.7):
            case = replace(case, out=self.layout(rank, broadcast=False), accumulate=self.chance(0.3))
            if self.chance(0.5):
                case = replace(case, tell=False)
        return case

    def layout(self, rank: int, *, broadcast: bool) -> Layout:
        """Dense in most cases."""
        order, gaps, signs = list(range(rank)), [1] * rank, [1] * rank
        if self.chance(0.45):
            order = [int(axis) for axis in self.rng.permutation(rank)]
        if self.chance(0.3):
            gaps = [self.pick(1, 1, 2, 3) for _ in gaps]
        if self.chance(0.3):
            signs = [self.pick(1, 1, -1) for _ in signs]
        if broadcast and self.chance(0.15):
            signs = [self.pick(sign, sign, 0) for sign in signs]
        return Layout(tuple(order), tuple(gaps), tuple(signs))


class _BiasCase(_Draw):
    """A sum over everything but the channels."""

    def make(self) -> Case:
        """Any number of axes."""
        rank, channels = self.below(0, 4), self.pick(self.below(1, 5), self.lane_count())
        extent = tuple(self.below(1, 12 if rank < 3 else 5) for _ in range(rank))
        attributes = {"data_format": self.pick("NCX", "NXC")}
        return self.finish(
            "BiasAddBackward", [_activation(self.below(1, 4), channels, extent, attributes)], attributes, None
        )


def _activation(batch: int, channels: int, extent: tuple, attributes: dict) -> tuple[int, ...]:
    return (batch, channels, *extent) if attributes["data_format"] == "NCX" else (batch, *extent, channels)


def _spatial(shape: tuple, attributes: dict) -> tuple[int, ...]:
    return shape[2:] if attributes["data_format"] == "NCX" else shape[1:-1]


def _weights_shape(family, documented, groups, window, image, kernel, attributes) -> tuple[int, ...]:
    """O is the window side of a convolution and the image side of a transposed one; one of them counts all groups."""
    image, window = (image * groups, window) if documented else (image, window * groups)
    o, i = (window, image) if family == "convolution" else (image, window)
    extents = {"O": (o,), "I": (i,), "X": tuple(kernel)}
    return sum((extents[letter] for letter in attributes["weights_format"]), ())


# --- running them


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
    if case.isa:
        os.environ["CONVGRAD_ISA"] = case.isa
    else:
        os.environ.pop("CONVGRAD_ISA", None)
    forget()
    results = []
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
        if isinstance(getattr(value, "records", None), dict):
            value.records.clear()


def _call(case: Case, resolved: Resolved | ConvError, *, low: bool) -> np.ndarray | None:
    """One call between guard pages; None if it was refused, as it had to be."""
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
