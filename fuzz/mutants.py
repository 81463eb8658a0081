"""Break the compiler or the runtime on purpose, and see that the fuzzer or the soak notices.

    python fuzz/mutants.py            every mutant; prints the table of docs/reliability.md
    python fuzz/mutants.py "dropped tail" ...

Each mutant lives in a forked child. It is killed by a failing case of fuzz/problems.py (wrong numbers, or a fault at a
guard page), or, where only threads can show it, by calls from several threads at once. One that raises an exception
instead is no defect of a kernel but one of this file, and does not count as killed. `none` is no mutant: it lives.
"""

from __future__ import annotations

import argparse
import dataclasses
import os
import sys
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from itertools import chain, count
from typing import Any

import numpy as np
import problems
from problems import Case, Failure, Layout

import convgrad.codegen.bias as bias
import convgrad.codegen.copying as copying
import convgrad.codegen.data as data
import convgrad.codegen.finish as finish
import convgrad.codegen.flat as flat
import convgrad.codegen.guard as guard
import convgrad.codegen.input_slab as input_slab
import convgrad.codegen.inside as inside
import convgrad.codegen.inside_data as inside_data
import convgrad.codegen.isa.base as isa
import convgrad.codegen.lower as lower
import convgrad.codegen.matrix_data as matrix_data
import convgrad.codegen.matrix_weights as matrix_weights
import convgrad.codegen.microkernels.matrix as tiles
import convgrad.codegen.panels as panels
import convgrad.codegen.split_weights as split_weights
import convgrad.codegen.stages as stages
import convgrad.codegen.sweep as sweep
import convgrad.codegen.weights as weights
import convgrad.plan.axes as axes
import convgrad.runtime.driver as driver
import convgrad.runtime.memory as memory
import convgrad.runtime.pool_ir as pool_ir
from convgrad.arrays import call as calls
from convgrad.codegen.ir_module import Value, constant
from convgrad.codegen.tap_sums import TapSums
from convgrad.runtime import set_num_threads

SEED = 77
SECONDS = 20  # that a mutant may survive for
PATIENCE = 1.5  # seconds in which some call returns
RAISES = "does not run: "  # before what a mutant raised


@dataclass(frozen=True)
class Mutant:
    """One defect: `breaks()` puts it in place."""

    what: str
    breaks: Callable[[], None]
    threads: bool = False  # only calls from several threads show it
    like: Callable[[Case], bool] = lambda case: True  # cases that could show it


def wrap(owner: Any, name: str, around: Callable) -> Callable[[], None]:
    """Replace `owner.name` by a function that is given the plain one first."""

    def breaks() -> None:
        plain = getattr(owner, name)
        setattr(owner, name, lambda *args, **keywords: around(plain, *args, **keywords))

    return breaks


def nothing(owner: Any, name: str) -> Callable[[], None]:
    """Leave out what `owner.name` does."""
    return wrap(owner, name, lambda plain, *args, **keywords: None)


def _all(*breaks: Callable[[], None]) -> Callable[[], None]:
    return lambda: [one() for one in breaks] and None


# --- what the mutants do


def _dropped_tail(plain, self, b, src, dst, dim):
    lanes = self.isa.lanes(self.compute)
    plain(self, b, src, dst, replace(dim, extent=b.mul(b.floor_div(dim.extent, lanes), lanes)))


def _ends_early(plain, *args):
    first, last = plain(*args)
    return first, _builder(args).sub(last, 1)


def _begins_early(plain, self, b):
    first, last = plain(self, b)
    return b.sub(first, 1), last


def _begins_late(plain, *args):
    first, last = plain(*args)
    return _builder(args).add(first, 1), last


def _builder(args):
    return args[0].b if isinstance(args[0], TapSums) else args[1]


def _next_tap(plain, x, y, taps, *rest):
    axis = plain(x, y, taps, *rest)
    wrong = (replace(p, tap=p.tap + 1 if p.taps and p.tap + 1 < taps else p.tap) for p in axis.phases)
    return replace(axis, phases=tuple(wrong))


def _swapped_phases(plain, *args):
    axis = plain(*args)
    if len(axis.phases) < 2:
        return axis
    one, two, *rest = axis.phases
    return replace(axis, phases=(replace(one, first=two.first, count=two.count), replace(two, first=0), *rest))


def _shifted(plain, x, y, taps, stride, dilation, low):
    return plain(x, y, taps, stride, dilation, low + 1)


def _truncated(b, value):
    whole = isa.like(value, "i32")
    bits = b.cast("bitcast", value, whole)
    return b.cast("trunc", b.binary("lshr", bits, constant(whole, 16)), isa.like(value, "i16"))


def _other_mask(step: int):
    return lambda plain, b, lanes, n: plain(b, lanes, isa.Value("i64", f"{b.add(n, step)}".removeprefix("i64 ")))


def _swapped_rows(plain, self, *arguments):
    one, two, *rest = plain(self, *arguments)
    return [two, one, *rest]


def _fewer_products(plain, self, b, a, x, products):
    plain(self, b, a, x, tuple(product for product in products if product != (1, 0)))


def _other_partners(plain, *, apart, **others):
    return plain(apart=apart // 2, **others)


def _lost_chunk(plain, plan, *rest):
    plain(replace(plan, chunks=plan.chunks - 1), *rest)


def _never_adds(plain, self, b, value, dst, count=None):
    plain(dataclasses.replace(self, accumulate=False), b, value, dst, count)


def _rounds_twice(plain, self, b, value, dst, count=None):
    if self.accumulate and value.type == "float" and self.dst_dtype in ("bf16", "f16"):
        value = self.isa._widen(b, self.dst_dtype, self.isa.narrow(b, self.dst_dtype, value))
    plain(self, b, value, dst, count)


def _smaller_scratch(plain, plan):
    module = plain(plan)
    return replace(module, scratch_bytes=max(0, module.scratch_bytes - 64))


def _smaller_shared(plain, plan):
    module = plain(plan)
    return replace(module, shared_bytes=max(0, module.shared_bytes - 64))


def _last_stage_first(plain, plan):
    module = plain(plan)
    return replace(module, stages=module.stages[::-1])


def _without_resets(plain, number, stage):
    return plain(number, stage) if number == 0 else plain(number, stage)[2:]


def _pool_that_does_not_wait() -> None:
    text = "%empty = icmp eq i64 %w, 0"
    assert text in pool_ir._IR
    pool_ir._IR = pool_ir._IR.replace(text, "%empty = icmp eq i64 0, 0")


def _pool_for_two_callers() -> None:
    text = "%ours = extractvalue { i32, i1 } %take, 1"
    assert text in pool_ir._IR
    pool_ir._IR = pool_ir._IR.replace(text, "%ours = icmp eq i32 0, 0")


def _claims_without_atomics(plain, self, type_, text):
    if text.startswith("atomicrmw add") and text.endswith("monotonic"):
        place = text.split("add ")[1].split(",")[0]
        old = plain(self, type_, f"load volatile i64, {place}")
        self.do(f"store volatile i64 {plain(self, type_, f'add {old}, 1').text}, {place}")
        return old
    return plain(self, type_, text)


def _block_for_two_calls(plain, size):
    block = plain(size)
    memory._free.append(block)
    return block


def _windows_alone(plain, self, b, axis, start, block):
    first, last = plain(b, axis, start, block)
    window = b.sub(b.minimum(b.add(start, block), axis.windows), 1)
    behind = b.add(b.mul(window, axis.stride), axis.dilation * (axis.taps - 1) + 1 - axis.low)
    return first, b.maximum(b.minimum(last, behind), first)


def _on_tiles(case: Case) -> bool:
    return case.isa == "amx_emulated" and case.dtype != "f64"


def _on_vectors(case: Case) -> bool:
    return case.special > 0 and case.isa != "amx_emulated"


def _strided(case: Case) -> bool:
    return case.op in ("ConvTranspose", "ConvolutionBackwardData") and max(case.attributes["strides"]) > 1


def _grouped(case: Case) -> bool:
    return case.attributes.get("groups", 1) > 1


def _solves_weights(case: Case) -> bool:
    return case.op.endswith("BackwardWeights")


MUTANTS = {
    "none": Mutant("nothing is broken", lambda: None),
    "wrong tap": Mutant("a phase begins with the tap after its first", wrap(axes, "_x_axis", _next_tap)),
    "wrong tap of Y": Mutant("the kernel is read one tap later", wrap(axes, "_y_axis", _next_tap)),
    "shifted pad": Mutant("pad_low is one more than it is", wrap(axes, "_y_axis", _shifted)),
    "shifted pad of X": Mutant("the same where the image is solved for", wrap(axes, "_x_axis", _shifted)),
    "wrong phase": Mutant("results of two phases change places", wrap(axes, "_x_axis", _swapped_phases), like=_strided),
    "wrong border bound": Mutant("the last tap in the image is left out", wrap(TapSums, "bounds", _ends_early)),
    "border begins late": Mutant("the first tap in the image is left out", wrap(TapSums, "bounds", _begins_late)),
    "wrong border of weights": Mutant(
        "the last window is left out", wrap(weights.SumsStage, "bounds", _ends_early), like=_solves_weights
    ),
    "dropped tail": Mutant("copies end with their last whole vector", wrap(copying.Copy, "_vectors", _dropped_tail)),
    "lane mask too long": Mutant("masks hold in one lane more", wrap(isa, "first_lanes", _other_mask(1))),
    "lane mask too short": Mutant("masks hold in one lane less", wrap(isa, "first_lanes", _other_mask(-1))),
    "swapped lanes": Mutant("a transposition exchanges two vectors", wrap(isa.Isa, "load_transposed", _swapped_rows)),
    "missing zero padding": Mutant(
        "what surrounds the image is not zeroed",
        _all(nothing(input_slab, "emit_zero_outside"), nothing(panels, "emit_zero")),
    ),
    "missing zeros of weights": Mutant(
        "the same where weights are solved for", nothing(weights.SumsStage, "_zero_border"), like=_solves_weights
    ),
    "sums not cleared": Mutant(
        "sums begin with what the workspace holds", nothing(weights.SumsStage, "_clear"), like=_solves_weights
    ),
    "bias gradient not cleared": Mutant(
        "sums per channel begin with what the workspace holds", nothing(bias.BiasShare, "clear"), like=_solves_weights
    ),
    "lost gap": Mutant(
        "elements of x behind the windows are in no sum per channel", wrap(bias.BiasShare, "_x_share", _windows_alone),
        like=lambda c: c.op == "ConvTransposeBackwardWeights",
    ),
    "lost chunk": Mutant(
        "the last chunk of windows is not added", wrap(finish, "_add_chunks", _lost_chunk), like=_solves_weights
    ),
    "swapped groups": Mutant(
        "every group reads the input of the first", wrap(data, "first_group", lambda plain, *_: 0), like=_grouped
    ),
    "lost bias": Mutant(
        "sums begin with zero", wrap(sweep.Sweep, "_start", lambda _, self, tile: tile.zeros()), like=lambda c: c.bias
    ),
    "missing rounding": Mutant(
        "bf16 results are cut off", wrap(isa, "float_to_bfloat", lambda _, *args: _truncated(*args)),
        like=lambda c: c.dtype == "bf16",
    ),
    "rounded twice": Mutant(
        "a sum is rounded before it is added to a 16-bit output", wrap(copying.Copy, "store", _rounds_twice),
        like=lambda c: c.accumulate and c.dtype in ("bf16", "f16") and c.out_dtype is None,
    ),
    "accumulation forgotten": Mutant(
        "the output is replaced", wrap(copying.Copy, "store", _never_adds), like=lambda c: c.accumulate
    ),
    "lost task": Mutant(
        "the last task of a stage is not done",
        wrap(stages, "_emit_claims", lambda plain, m, name, tasks, *others: plain(m, name, max(1, tasks - 1), *others)),
    ),
    "small scratch": Mutant(
        "scratch is a cache line short",
        wrap(lower, "lower", _smaller_scratch),
    ),
    "small shared memory": Mutant(
        "so is the memory that all threads share",
        wrap(lower, "lower", _smaller_shared),
    ),
    "stages out of order": Mutant(
        "the last stage runs first",
        wrap(lower, "lower", _last_stage_first),
    ),
    "counters not reset": Mutant("a stage finds its tasks done already", wrap(driver, "_run", _without_resets)),
    "lost product of pieces": Mutant(
        "the second piece of A never meets the first of B", wrap(tiles.MatrixTile, "_multiply", _fewer_products),
        like=_on_tiles,
    ),
    "pairs the wrong way": Mutant(
        "weights are paired by other channels than the input",
        wrap(split_weights, "HalvesCopy", _other_partners), like=_on_tiles,
    ),
    "tiles filled up with anything": Mutant(
        "channels that fill up a tile, and pads, are not zeroed",
        _all(*(nothing(matrix_data.MatrixStages, name) for name in ("begin_slab", "clear_slab"))), like=_on_tiles,
    ),
    "slabs of weights filled up with anything": Mutant(
        "the same where weights are solved for", _all(nothing(matrix_weights, "emit_zero"), nothing(flat, "emit_zero")),
        like=lambda c: _on_tiles(c) and _solves_weights(c),
    ),
    "infinities overlooked": Mutant(
        "no kernel but those on tiles finds its numbers special",
        _all(*(wrap(guard, name, lambda *_: Value("i1", "false")) for name in ("any_nan", "any_not_finite"))),
        like=_on_vectors,
    ),
    "old weights lost": Mutant(
        "where weights are computed again, they are added to what was written first",
        wrap(inside.Inside, "write", lambda plain, self, x, to, _, *others: plain(self, x, to, None, *others)),
        like=lambda c: _on_vectors(c) and c.accumulate and _solves_weights(c),
    ),
    "a product too many": Mutant(
        "results that are computed again begin with a tap before the first in the image",
        wrap(inside_data._Spot, "met", _begins_early), like=_on_vectors,
    ),
    "attributes left out": Mutant(
        "calls that differ in attributes share a record", lambda: setattr(calls, "dumps", lambda *_: b""), threads=True
    ),
    "shared scratch": Mutant(
        "all threads work in one slice of scratch",
        wrap(stages, "_emit_claims", lambda plain, m, name, tasks, _, *others: plain(m, name, tasks, 0, *others)),
        threads=True,
    ),
    "claims without atomics": Mutant(
        "two threads may claim one task", wrap(stages.Builder, "emit", _claims_without_atomics), threads=True
    ),
    "workspace used twice": Mutant(
        "a block that is in use is given to another call", wrap(memory, "acquire", _block_for_two_calls), threads=True
    ),
    "no wait": Mutant("a call returns while its helpers still work", _pool_that_does_not_wait, threads=True),
    "two callers in the pool": Mutant("a job begins while another runs", _pool_for_two_callers, threads=True),
}  # fmt: skip


# --- killing them


def by_cases(mutant: Mutant) -> str:
    """What kills a mutant: the large cases, then random ones like it."""
    start = time.perf_counter()
    random = (problems.random_case(SEED, number) for number in count())
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
_TILES = {"isa": "amx_emulated", "largest": problems.LARGE, "seed": 1}  # the first input is large
ON_TILES = tuple(  # where matrix tiles are predicted to be the fastest
    replace(case, dtype=dtype)
    for dtype in ("f32", "bf16", "f16")
    for case in (
        _case("Convolution", (2, 72, 8, 8), (64, 72, 3, 3), **_PADS, **_TILES),
        _case("ConvolutionBackwardWeights", (2, 72, 8, 8), (2, 64, 8, 8), shape=(64, 72, 3, 3), **_PADS, **_TILES),
    )
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
        how = kill(mutant)
        killed = bool(how) and not how.startswith(RAISES)
        if killed == (name == "none"):
            alive.append(name)
        killer = "threads" if mutant.threads else "fuzzer"
        print(f"| {name} | {mutant.what} | {killer if killed else '(lives)'} | {how} |", flush=True)
    broken = sum(name != "none" for name in names)
    print(f"\nnot as it should be: {', '.join(alive)}" if alive else f"\n{broken} mutants, all killed")
    return 1 if alive else 0


if __name__ == "__main__":
    sys.exit(main())
