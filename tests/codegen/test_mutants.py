"""Kernels broken on purpose: the check of whole kernels notices each, so that it is known to be able to fail.

Buffers lie at their lower guard here: what a broken kernel writes or reads beyond the upper end is redzone.
"""

from dataclasses import dataclass, replace

import pytest

from codegen import random_problems
from codegen.dense_problems import EDGES, SAME, W, Y, problem_of
from codegen.emitted import HOST_ISAS
from codegen.kinds_of_plans import KINDS
from codegen.random_problems import check
from codegen.test_kernels import SUMMED
from convgrad.codegen import stages
from convgrad.codegen.copies import input_slab, interleave, packing, panels
from convgrad.codegen.copies.contiguous import ContiguousRuns
from convgrad.codegen.copies.copying import Copy
from convgrad.codegen.few_channels import run_weights
from convgrad.codegen.general import data, flat, weights
from convgrad.codegen.groups import group_weights, turned_data
from convgrad.codegen.isa.base import Isa
from convgrad.codegen.loops import lanes
from convgrad.codegen.loops.sweep import Sweep
from convgrad.codegen.loops.tap_sums import TapSums
from convgrad.codegen.loops.window_sweep import WindowSweep
from convgrad.codegen.microkernels.contract import Tile
from convgrad.codegen.microkernels.reduction import Groups
from convgrad.codegen.outputs import bias, finish
from convgrad.codegen.outputs.own_sums import OwnSums
from convgrad.codegen.outputs.sums import ChannelSums
from convgrad.plan import axes, choose_weights, data_candidates

NAMED = EDGES | {name: problem for name, (problem, _) in KINDS.items()}
BIASED = problem_of(Y, (9, 9), (9, 9), (3, 3), channels=(17, 20), **SAME, bias=True)
ODD_GROUPS = problem_of(Y, (5, 57), (5, 57), (3, 3), channels=(1, 1), groups=41, layout="NXC", **SAME)
PACKED = problem_of(
    W, (9, 9), (9, 9), (3, 3), channels=(61, 37), layout="NXC", **SAME, dtype="bf16", out_dtype="f32"
)  # fmt: skip
IMAGES = problem_of(W, (33, 60), (33, 60), (3, 3), channels=(2, 2), groups=9, batch=9, layout="NXC", **SAME)
ADDED = problem_of(Y, (9, 9), (9, 9), (3, 3), channels=(17, 20), **SAME, accumulate=True)


@dataclass(frozen=True)
class Mutant:
    """A function and what it becomes, as `instead(what it was, *arguments)`; `on` is a problem that shows it."""

    owner: object
    name: str
    instead: object
    on: object
    isas: tuple = HOST_ISAS


def bounds_without_last_tap(plain, self, *arguments):
    start, stop = plain(self, *arguments)
    return start, self.b.sub(stop, 1)


def bounds_without_first_window(plain, self, b, *arguments):
    first, last = plain(self, b, *arguments)
    return b.add(first, 1), last


def nothing_but_the_middle(plain, self, r):
    return (max(plain(self, r), key=lambda segment: len(segment.rows) * len(segment.columns)),)


def shifted_pads(plain, problem):
    return plain(replace(problem, pad_low=tuple(low + 1 for low in problem.pad_low)))


def shifted_phases(plain, *arguments):
    axis = plain(*arguments)
    *others, last = axis.phases
    return replace(axis, phases=(*others, replace(last, offset=last.offset + 1)))


def swapped(plain, *arguments):
    first, second, *rest = plain(*arguments)
    return [second, first, *rest]


def nothing(plain, *arguments):
    return None


def store_without_count(plain, self, b, dtype, value, address, count=None):
    return plain(self, b, dtype, value, address)


def vectors_without_tail(plain, self, b, src, dst, dim):
    lanes = self.copy.isa.lanes(self.copy.compute)
    return plain(self, b, src, dst, replace(dim, extent=b.mul(b.floor_div(dim.extent, lanes), lanes)))


def sources_of_the_group_before(sources, self, lanes, number):
    return [max(0, place - self.numbers) for place in sources(self, lanes, number)]


def picked_one_too_far(plain, b, parts, wanted):
    return plain(b, parts, [*wanted[1:], wanted[0]])


def groups_that_go_on(plain, plan, b, group, block):
    return b.mul(block, plan.lane_groups)


def whole_vectors_of_groups(plain, self, b):
    many = self.plan.vector_groups
    return b.mul(b.floor_div(plain(self, b), many), many)


def not_turned(plain, b, x, y, lanes):
    return plain(b, x, y, sorted(lanes))


def taps_before(plain, self, taps, channels):
    tile = plain(self, taps, channels)
    return replace(tile, columns=(tile.columns[0], *tile.columns[:-1]))


def what_was_there(plain, self, b, tile, sums):
    return tile.load(b, sums)


def zeros_of_tile(plain, self, b, tile, sums):
    return tile.zeros()


def tile_without_its_last(plain, self, rows, columns):
    return plain(self, max(1, rows - 1), columns)


def a_row_less(plain, sweep, rows):
    plain(sweep, rows if rows == sweep.plan.row_channels else max(1, rows - 1))


def one_task_less(plain, module, symbol, tasks, *others, **how):
    return plain(module, symbol, tasks - 1, *others, **how)


def less_scratch(plain, plan):
    module = plain(plan)
    return replace(module, scratch_bytes=module.scratch_bytes - 64)


def panel_of_the_first_lanes(plain, self, b, at, which, *others):
    group, _, i_block = which
    return plain(self, b, at, (group, 0, i_block), *others)


def panel_of_the_first_channels(plain, self, b, at, which, *others):
    group, block, _ = which
    return plain(self, b, at, (group, block, 0), *others)


def stored_over(plain, self, b, value, dst, count=None):
    return plain(replace(self, accumulate=False), b, value, dst, count)


def sums_that_start_from_zero(plain, self, tile):
    return tile.zeros()


def zeros(plain, self, b, place):
    return self.tile.zeros()


def last_row_twice(plain, self, b, a, x, c, reductions, first, *taps):
    return plain(replace(self, rows=(*self.rows[:-1], self.rows[0])), b, a, x, c, reductions, first, *taps)


def without_what_windows_leave(plain, self, b, axis, start, block):
    first, last = plain(b, axis, start, block)
    window = b.sub(b.minimum(b.add(start, block), axis.windows), 1)
    behind = b.add(b.mul(window, axis.stride), axis.dilation * (axis.taps - 1) + 1 - axis.low)
    return first, b.maximum(b.minimum(last, behind), first)


def tap_zero(plain, self, b, n, start, tap):
    return plain(self, b, n, start, 0)


def first_band_alone(plain, self, b, at, slab, i_block, taps):
    return plain(self, b, at, slab, i_block, tuple(0 for _ in taps))


def first_chunk_alone(plain, plan, *arguments):
    return plain(replace(plan, chunks=1), *arguments)


def without_tail(plain, self, b, load, axes, columns, *, lanes, tail=None):
    return plain(self, b, load, axes, columns, lanes=lanes)


def summed(name, of):
    return replace(SUMMED[name], bias_gradient=of)


MASKED = tuple(isa for isa in HOST_ISAS if isa in ("avx512", "amx"))
MUTANTS = {
    "the last tap is dropped": Mutant(
        TapSums, "bounds", bounds_without_last_tap, NAMED["along channels, packed"]
    ),
    "the first window of a border is dropped": Mutant(
        weights.SumsStage, "bounds", bounds_without_first_window, NAMED["weights across groups, in place"]
    ),
    "windows at the border meet no tap": Mutant(
        WindowSweep, "segments", nothing_but_the_middle, NAMED["weights, from registers"]
    ),
    "pads of results are shifted": Mutant(
        data_candidates, "gather_axes", shifted_pads, NAMED["along channels, packed"]
    ),
    "pads of weights are shifted": Mutant(
        choose_weights, "window_axes", shifted_pads, NAMED["weights, lanes along y"]
    ),
    "a phase begins too late": Mutant(
        axes, "_x_axis", shifted_phases, NAMED["along channels, in phases"]
    ),
    "padding is not zeroed": Mutant(
        input_slab, "emit_zero_outside", nothing, NAMED["along channels, packed"]
    ),
    "padding in planes is not zeroed": Mutant(
        input_slab, "emit_zero_outside", nothing, NAMED["along outputs, in planes"]
    ),
    "borders of weights are not zeroed": Mutant(
        weights.SumsStage, "_zero_border", nothing,
        problem_of(W, (9, 13), (9, 13), (3, 3), channels=(3, 3), groups=19, layout="NXC", low=1),
    ),
    "bands of other taps than the first are left out": Mutant(
        data.DataStages, "_pack_band", first_band_alone, NAMED["bands of rows"]
    ),
    "slabs of windows are not zeroed": Mutant(
        flat, "emit_zero", nothing, NAMED["weights, lanes along windows"]
    ),
    "all bands hold those of the first tap": Mutant(
        weights.SumsStage, "_on_x", tap_zero, NAMED["weights, bands of rows"]
    ),
    "sums are not cleared": Mutant(
        weights.SumsStage, "_clear", nothing, NAMED["weights, several chunks and blocks"]
    ),
    "sums of blocks before are forgotten": Mutant(
        OwnSums, "before", zeros, NAMED["weights, from registers after several blocks"]
    ),
    "tiles of weights are written whole": Mutant(
        OwnSums, "_whole", nothing, PACKED
    ),
    "the last tile of rows leaves one out": Mutant(
        WindowSweep, "_with_tile", a_row_less, NAMED["weights, row channels in place"]
    ),
    "sums that a task has kept are not written": Mutant(
        OwnSums, "finish", nothing, NAMED["weights, kept by a task through several blocks"]
    ),
    "chunks are not added": Mutant(
        finish, "_add_chunks", nothing, NAMED["weights, several chunks and blocks"]
    ),
    "sums per channel are not cleared": Mutant(bias.BiasShare, "clear", nothing, summed("rows", "y")),
    "sums of x leave out what lies behind the windows": Mutant(
        bias.BiasShare, "_x_share", without_what_windows_leave, NAMED["gaps between windows are summed, too"]
    ),
    "chunks of sums per channel are not added": Mutant(
        bias, "finish_bias", first_chunk_alone, summed("several chunks and blocks", "y")
    ),
    "the tail of a row is not summed": Mutant(
        ChannelSums, "_sum", without_tail, summed("depthwise, channels first", "x")
    ),
    "rows of a tile are exchanged when turned": Mutant(
        Isa, "load_transposed", swapped, NAMED["along channels, packed"]
    ),
    "a row of a tile is another": Mutant(
        Tile, "emit", last_row_twice, NAMED["along channels, packed"]
    ),
    "lanes are dealt to the wrong plane": Mutant(
        interleave, "pick", picked_one_too_far, NAMED["along outputs, in planes"]
    ),
    "groups meet each other's channels": Mutant(
        Groups, "sources", sources_of_the_group_before, NAMED["across groups, packed"]
    ),
    "gradients of groups meet each other's channels": Mutant(
        packing, "pick", picked_one_too_far, NAMED["weights across groups, packed"], MASKED
    ),
    "weights of groups are not exchanged": Mutant(
        turned_data.TurnedStages, "_exchange", nothing, NAMED["across groups, turned at the end"]
    ),
    "sums of groups are not turned": Mutant(
        turned_data, "shuffle", not_turned, NAMED["across groups, turned at the end"]
    ),
    "lanes of a group meet another one's y": Mutant(
        Groups, "sources", sources_of_the_group_before, NAMED["weights across groups, y picked"]
    ),
    "zeros around x are left out, in vectors of groups": Mutant(
        group_weights, "emit_zero_outside", nothing, IMAGES
    ),
    "a slab of vectors of groups begins with what was there": Mutant(
        group_weights, "emit_zero", nothing, NAMED["weights across groups, y picked"]
    ),
    "groups that fill no vector are not packed": Mutant(
        group_weights.GroupSums, "_groups", whole_vectors_of_groups, NAMED["weights across groups, y picked"]
    ),
    "taps of a vector of groups are others": Mutant(
        group_weights.GroupSums, "_tile_of", taps_before, NAMED["weights across groups, y picked"]
    ),
    "rows of x have what was there beside them": Mutant(
        run_weights, "emit_zero", nothing, NAMED["weights along runs of taps"], MASKED
    ),
    "sums of runs go on from those of another chunk": Mutant(
        run_weights.RunWeightsSums, "before", what_was_there, NAMED["weights along runs of taps"], MASKED
    ),
    "sums of runs forget the blocks before": Mutant(
        run_weights.RunWeightsSums, "before", zeros_of_tile, NAMED["weights along runs of taps"], MASKED
    ),
    "the last row of a tile of runs is left out": Mutant(
        run_weights.RunWeightsSums, "tile_of", tile_without_its_last, NAMED["weights along runs of taps"], MASKED
    ),
    "the last bundle goes on beyond the groups": Mutant(
        lanes, "first_group", groups_that_go_on, ODD_GROUPS
    ),
    "the mask of a store is forgotten": Mutant(
        Isa, "store", store_without_count, NAMED["pads beyond the kernel"], MASKED
    ),
    "the tail of a copy is forgotten": Mutant(
        ContiguousRuns, "vectors", vectors_without_tail, NAMED["weights, several chunks and blocks"]
    ),
    "all blocks of lanes pack the weights of the first": Mutant(
        data.DataStages, "_pack", panel_of_the_first_lanes, NAMED["tasks pack their own weights"]
    ),
    "all blocks of channels pack the weights of the first": Mutant(
        data.DataStages, "_pack", panel_of_the_first_channels, NAMED["tasks pack their own weights"]
    ),
    "bias of own weights is not packed": Mutant(panels, "pack_bias", nothing, NAMED["tasks pack their own weights"]),
    "bias is forgotten": Mutant(Sweep, "_start", sums_that_start_from_zero, BIASED),
    "the result is stored over what was there": Mutant(Copy, "store", stored_over, ADDED),
    "the last task is left behind": Mutant(stages, "_emit_claims", one_task_less, NAMED["along channels, packed"]),
    "scratch is too small": Mutant(random_problems, "lower", less_scratch, NAMED["along channels, packed"]),
}  # fmt: skip


@pytest.mark.parametrize("mutant", MUTANTS.values(), ids=MUTANTS)
def test_a_broken_kernel_is_noticed(mutant, monkeypatch):
    if not mutant.isas:
        pytest.skip("no instruction set of this machine has what is broken here")
    plain = getattr(mutant.owner, mutant.name)
    monkeypatch.setattr(
        mutant.owner, mutant.name, lambda *arguments, **named: mutant.instead(plain, *arguments, **named)
    )
    assert [isa for isa in mutant.isas if not any(fails(mutant.on, isa, variant) for variant in range(3))] == []


def fails(problem, isa, variant):
    """Whether one of the ways to lay out vectors gives something else than the form; others may not have the part."""
    try:
        check(problem, isa, variant=variant, low=True)
    except AssertionError as error:
        return str(error).startswith("check(ConvProblem(")  # it says how to see it again
    return False
