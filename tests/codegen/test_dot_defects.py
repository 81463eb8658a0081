"""Kernels by dot products that are broken on purpose."""

from dataclasses import replace

import pytest

from codegen.dense_problems import W, Y, problem_of
from codegen.dot_cases import (
    EMULATED,
    FEW,
    PACKED,
    PLANS,
    RUNS,
    in_bf16,
    needs_dots,
)
from codegen.matrix_checks import WIDE
from codegen.random_problems import check_plan
from convgrad.codegen.by_dots.dot_runs import DotRunStages
from convgrad.codegen.copies import paired_copies
from convgrad.codegen.copies.paired_copies import PairedCopy
from convgrad.codegen.copies.paired_runs import PairedRun
from convgrad.codegen.copies.paired_weights import PairedPanel
from convgrad.codegen.copies.paired_windows import PairedRuns
from convgrad.codegen.microkernels.dots import WRITTEN_OUT, DotTile
from convgrad.plan.by_dots.dots import DotWeightsPlan
from convgrad.plan.by_matrix.runs import DotRunPlan
from convgrad.plan.choose import variants
from convgrad.plan.machine import machine_for

pytestmark = needs_dots


def without_the_rest(plain, self, b, pairs, a, x, tile):
    return plain(self, b, pairs - pairs % WRITTEN_OUT, a, x, tile)


def nothing(*_):
    return None


def of_the_first_tile_alone(plain, self, b, source, target, lanes, channels):
    return plain(replace(self, tiles=1), b, source, target, lanes, channels)


def itself_as_partner(plain, self, partner):
    return plain(self, 0 if partner is None else partner)


def the_other_way_round(plain, b, low, high):
    return plain(b, high, low)


def one_after_the_other(*_):
    return range(6)


def with_one_tap(plain, self, *arguments):
    return plain(replace(self, taps=[replace(tap, extent=1) for tap in self.taps]), *arguments)


def with_every_tap_alone(plain, self, *arguments):
    return plain(replace(self, every=1), *arguments)


MANY_TAPS = problem_of(Y, (7, 7), (7, 7), (5, 5), channels=(34, 40), low=2)  # more than a vector and its partner hold
SHORT = problem_of(W, (3, 3), (3, 3), (3, 3), channels=(34, 40), low=1, layout="NXC")  # rows that are no squares

BROKEN = {  # what is broken, what becomes of it, and a problem that shows it
    "the last pairs of a step are left out": (DotTile, "_step", without_the_rest, PACKED["a few channels, NXC"]),
    "what runs do not fill is not zeroed": (
        DotRunStages,
        "begin_slab",
        nothing,
        RUNS["3 channels, taps 7, stride 2, NXC"],
    ),
    "the last of an odd row of x is left out": (PairedRuns, "_last", nothing, SHORT),
    "the last of an odd row of y meets itself": (
        PairedCopy,
        "with_partner",
        itself_as_partner,
        PACKED["rows of odd length, NCX"],
    ),
    "runs that are put together change places": (
        paired_copies,
        "concatenated",
        the_other_way_round,
        PACKED["groups of half a vector, NXC"],
    ),
    "weights of other tiles are left out": (
        PairedPanel,
        "emit",
        of_the_first_tile_alone,
        WIDE["channels of several tiles"],
    ),
    "taps in planes are taken for neighbours": (
        DotWeightsPlan,
        "row_places",
        property(one_after_the_other),
        FEW["2 channels, taps (4, 6), stride 4, dilation 1, NCX"],
    ),
    "taps between channels are taken for one": (PairedPanel, "_run", with_one_tap, MANY_TAPS),
    "of the taps between channels one is met": (
        PairedRun,
        "emit",
        with_every_tap_alone,
        WIDE["channels of several tiles"],
    ),
}


@pytest.mark.parametrize("defect", BROKEN)
def test_kernels_that_are_broken_are_found_out(defect, monkeypatch):
    owner, name, instead, problem = BROKEN[defect]
    problem = in_bf16(problem)
    kind = DotRunPlan if owner is DotRunStages else PLANS
    plan = next(plan for plan in variants(problem, machine_for(EMULATED)) if isinstance(plan, kind))
    plain = getattr(owner, name)
    broken = instead if isinstance(instead, property) else lambda *arguments: instead(plain, *arguments)
    monkeypatch.setattr(owner, name, broken)
    with pytest.raises(AssertionError):
        check_plan(problem, plan, machine_for(EMULATED), low=True)
