"""Kernels for AVX-512, dot products and tiles, on a processor that has AVX2 and stands in for one that has them."""

import re
from dataclasses import replace

import numpy as np
import pytest

from codegen.dense_problems import EDGES
from codegen.kinds_of_plans import KINDS
from codegen.random_problems import check, random_problem
from convgrad.codegen.lower import lower
from convgrad.plan.choose import variants
from convgrad.plan.machine import machine_for, why_not
from stand_in.instructions import translated
from stand_in.processor import LEVELS_BEYOND, PRESENT, run_in_other_words

pytestmark = pytest.mark.skipif(not PRESENT, reason=f"AVX2 would stand in for what is missing: {why_not('avx2')}")
each = pytest.mark.parametrize("isa", LEVELS_BEYOND)


def of_type(problem, isa, number):
    """For units in bf16, and results of either type."""
    return problem if isa == "avx512" else replace(problem, dtype="bf16", out_dtype=("f32", "bf16")[number % 2])


def is_own(plan, isa):
    """Whether a level has a plan of its own, or that of avx512."""
    return isa == "avx512" or plan.ON_UNITS


def has_turn(isa, number):
    """Whether a problem is one of the third that a unit gets: kernels for units take LLVM long."""
    return isa == "avx512" or (number + LEVELS_BEYOND.index(isa)) % 3 == 0


@each
def test_every_kind_of_plan_is_exact(isa):
    for number, (problem, _) in enumerate(KINDS.values()):
        problem = of_type(problem, isa, number)
        if has_turn(isa, number) and is_own(next(variants(problem, machine_for(isa))), isa):
            check(problem, isa, run=run_in_other_words)


@each
def test_edges_are_exact(isa):
    for number, problem in enumerate(EDGES.values()):
        problem = of_type(problem, isa, number)
        plans = list(variants(problem, machine_for(isa)))
        if has_turn(isa, number) and is_own(plans[number % 3 % len(plans)], isa):
            check(problem, isa, variant=number % 3, run=run_in_other_words)


@each
def test_random_problems_are_exact(isa):
    for seed in range(7000, 7015):
        problem, machine = random_problem(np.random.default_rng(seed)), machine_for(isa)
        own = (n for n, plan in enumerate(variants(problem, machine)) if is_own(plan, isa))
        variant = seed % 3 if isa == "avx512" else next(own, None)
        if variant is None:
            continue
        check(problem, isa, variant=variant, alter=seed if seed % 2 else None, run=run_in_other_words)


def test_nothing_is_left_of_what_the_processor_lacks():
    for number, (problem, _) in enumerate(KINDS.values()):
        isa = LEVELS_BEYOND[number % 3]
        plan = next(variants(of_type(problem, isa, number), machine_for(isa)))
        text = translated(lower(plan).ir)
        assert not re.search(r"@llvm\.x86\.(?!sse|avx2)", text)
        assert not re.search(r'asm "[^"]*(\{1to|vshuff64|valign|vcvtne|32x4)', text)
        assert not re.search(r'asm [^"]*"", "=v,0"', text)


def test_a_piece_of_assembly_that_is_not_known_is_an_error():
    line = '  %x = call <16 x float> asm "vrcp14ps $1, $0", "=v,v"(<16 x float> %y) memory(none)'
    with pytest.raises(KeyError, match="vrcp14ps"):
        translated(line)


@pytest.mark.parametrize(
    ("isa", "name", "right", "wrong"),
    [
        ("avx512", "along channels, packed", "vunpcklps", "vunpckhps"),
        ("avx512", "along channels, packed", "vshuff64x2 $$0x88", "vshuff64x2 $$0xdd"),
        ("avx512", "along channels, packed", "vinsertf32x4 $$1", "vinsertf32x4 $$2"),
        ("avx512", "along outputs", "valignd $$1,", "valignd $$2,"),
        ("avx512_bf16", "along channels, tiles of two sizes", "{1to16}, $2, $0", "{1to16}, $0, $2"),
        ("avx512_bf16", "along channels, tiles of two sizes", "vpunpcklwd", "vpunpckhwd"),
        ("amx", "along channels, packed", "tdpbf16ps(i8 0, i8 4, i8 6)", "tdpbf16ps(i8 0, i8 4, i8 7)"),
        ("amx", "along channels, packed", "tileloadd64(i8 4", "tileloadd64(i8 5"),
    ],
)
def test_a_wrong_instruction_is_noticed(isa, name, right, wrong):
    def broken(module, machine, arrays, **keywords):
        if right not in module.ir:
            raise LookupError(right)
        run_in_other_words(replace(module, ir=module.ir.replace(right, wrong)), machine, arrays, **keywords)

    with pytest.raises(AssertionError, match="check"):
        check(of_type(KINDS[name][0], isa, 0), isa, run=broken)
