"""Mutants of the compiler, and of how stages are run, that a single call shows."""

from __future__ import annotations

import dataclasses
from dataclasses import replace

from defects import Mutant, all_of, nothing, wrap
from random_cases import TILES, Case

import convgrad.codegen.by_matrix.matrix_data as matrix_data
import convgrad.codegen.copies.contiguous as contiguous
import convgrad.codegen.copies.copying as copying
import convgrad.codegen.copies.input_slab as input_slab
import convgrad.codegen.copies.panels as panels
import convgrad.codegen.copies.split_runs as split_runs
import convgrad.codegen.copies.split_weights as split_weights
import convgrad.codegen.general.data as data
import convgrad.codegen.general.flat as flat
import convgrad.codegen.general.weights as weights
import convgrad.codegen.isa.base as isa
import convgrad.codegen.loops.sweep as sweep
import convgrad.codegen.lower as lower
import convgrad.codegen.microkernels.matrix as tiles
import convgrad.codegen.outputs.bias as bias
import convgrad.codegen.outputs.finish as finish
import convgrad.codegen.stages as stages
import convgrad.codegen.watch.guard as guard
import convgrad.codegen.watch.inside as inside
import convgrad.codegen.watch.inside_data as inside_data
import convgrad.plan.axes as axes
import convgrad.runtime.driver as driver
from convgrad.codegen.ir_module import Value, constant
from convgrad.codegen.loops.tap_sums import TapSums


def _dropped_tail(plain, self, b, src, dst, dim):
    lanes = self.copy.isa.lanes(self.copy.compute)
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
        value = self.isa.widen(b, self.dst_dtype, self.isa.narrow(b, self.dst_dtype, value))
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


def _windows_alone(plain, self, b, axis, start, block):
    first, last = plain(b, axis, start, block)
    window = b.sub(b.minimum(b.add(start, block), axis.windows), 1)
    behind = b.add(b.mul(window, axis.stride), axis.dilation * (axis.taps - 1) + 1 - axis.low)
    return first, b.maximum(b.minimum(last, behind), first)


def _on_tiles(case: Case) -> bool:
    return case.isa == TILES and case.dtype != "f64"


def _on_vectors(case: Case) -> bool:
    return case.special > 0 and case.isa != TILES


def _strided(case: Case) -> bool:
    return case.op in ("ConvTranspose", "ConvolutionBackwardData") and max(case.attributes["strides"]) > 1


def _grouped(case: Case) -> bool:
    return case.attributes.get("groups", 1) > 1


def _solves_weights(case: Case) -> bool:
    return case.op.endswith("BackwardWeights")


KERNEL_DEFECTS = {
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
    "dropped tail": Mutant(
        "copies end with their last whole vector", wrap(contiguous.ContiguousRuns, "vectors", _dropped_tail)
    ),
    "lane mask too long": Mutant("masks hold in one lane more", wrap(isa, "first_lanes", _other_mask(1))),
    "lane mask too short": Mutant("masks hold in one lane less", wrap(isa, "first_lanes", _other_mask(-1))),
    "swapped lanes": Mutant("a transposition exchanges two vectors", wrap(isa.Isa, "load_transposed", _swapped_rows)),
    "missing zero padding": Mutant(
        "what surrounds the image is not zeroed",
        all_of(nothing(input_slab, "emit_zero_outside"), nothing(panels, "emit_zero")),
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
        wrap(
            stages, "_emit_claims",
            lambda plain, m, name, tasks, *others, **how: plain(m, name, max(1, tasks - 1), *others, **how),
        ),
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
        like=_on_tiles, isa=TILES,
    ),
    "pairs the wrong way": Mutant(
        "weights are paired by other channels than the input",
        all_of(*(wrap(module, "HalvesCopy", _other_partners) for module in (split_weights, split_runs))),
        like=_on_tiles, isa=TILES,
    ),
    "tiles filled up with anything": Mutant(
        "channels that fill up a tile, and pads, are not zeroed",
        all_of(*(nothing(matrix_data.MatrixStages, name) for name in ("begin_slab", "clear_slab"))),
        like=_on_tiles, isa=TILES,
    ),
    "slabs of weights filled up with anything": Mutant(
        "the same where weights are solved for",
        nothing(flat, "emit_zero"),
        like=lambda c: _on_tiles(c) and _solves_weights(c), isa=TILES,
    ),
    "infinities overlooked": Mutant(
        "no kernel but those on tiles finds its numbers special",
        all_of(*(wrap(guard, name, lambda *_: Value("i1", "false")) for name in ("any_nan", "any_not_finite"))),
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
}  # fmt: skip
