"""The instruction that multiplies pairs of bf16, its emulation, and where kernels use it."""

import numpy as np
import pytest

from codegen.dense_problems import Y, problem_of
from codegen.dot_cases import BF16, IDS, REAL, SMALL, each, in_bf16, needs_dots, plan_of, shaped
from codegen.emitted import compile_function
from convgrad.codegen.isa.dots import DOT_UNITS
from convgrad.codegen.lower import lower
from convgrad.plan import machine
from convgrad.plan.machine import machine_for
from convgrad.runtime import jit

pytestmark = needs_dots


def multiplied(total, x, y):
    """VDPBF16PS as the manual writes it: the odd products, then the even ones, denormals being zero."""

    def flushed(values):
        return np.where(np.abs(values) < np.float32(2.0**-126), np.copysign(np.float32(0), values), values)

    total = flushed(total)
    for part in (1, 0):
        factors = (flushed(pairs[part::2].astype(np.float32)).astype(np.float64) for pairs in (x, y))
        total = flushed((np.prod(list(factors), axis=0) + total.astype(np.float64)).astype(np.float32))
    return total


@each
def test_a_dot_product_is_what_the_manual_says(isa):
    def body(b, total, x, y):
        unit = DOT_UNITS[isa]()
        before = b.load("<16 x float>", total, 4)
        b.store(unit.multiply_add(b, unit.load(b, x), unit.load(b, y), before), total, 4)

    call = compile_function(isa, ["ptr", "ptr", "ptr"], body)
    rng = np.random.default_rng(0)
    for scale in (1.0, 2.0**-60, 2.0**-64):  # products that are normal, denormal, and neither alone
        for _ in range(50):
            x, y = ((rng.standard_normal(32) * scale).astype(BF16) for _ in range(2))
            x[0], y[0] = BF16(1e-39), BF16(1.0)
            total = (rng.standard_normal(16) * scale * scale).astype(np.float32)
            total[3] = 1e-40
            wanted = multiplied(total, x, y)
            call(total.ctypes.data, x.ctypes.data, y.ctypes.data)
            np.testing.assert_array_equal(total.view(np.uint32), wanted.view(np.uint32))


@each
def test_one_pair_meets_all_lanes(isa):
    def body(b, total, x, y):
        unit = DOT_UNITS[isa]()
        b.store(unit.multiply_add(b, unit.splat(b, x), unit.load(b, y), b.load("<16 x float>", total, 4)), total, 4)

    total, y = np.zeros(16, np.float32), np.arange(32).astype(BF16)
    x = np.array([9, 3, 5], BF16)
    compile_function(isa, ["ptr", "ptr", "ptr"], body)(total.ctypes.data, x[1:].ctypes.data, y.ctypes.data)
    np.testing.assert_array_equal(total, 3 * np.arange(0, 32, 2) + 5 * np.arange(1, 32, 2))


@each
@pytest.mark.parametrize("place", range(4))
def test_a_pair_in_memory_meets_all_lanes(isa, place):
    def body(b, total, x, y):
        unit = DOT_UNITS[isa]()
        sums = unit.multiply_add_one(b, b.at(x, place, "i16"), unit.load(b, y), b.load("<16 x float>", total, 4))
        b.store(sums, total, 4)

    total, x, y = np.ones(16, np.float32), np.array([9, 3, 5, -7, 2], BF16), np.arange(32).astype(BF16)
    compile_function(isa, ["ptr", "ptr", "ptr"], body)(total.ctypes.data, x.ctypes.data, y.ctypes.data)
    low, high = x[place : place + 2].astype(np.float32)
    np.testing.assert_array_equal(total, 1 + low * np.arange(0, 32, 2) + high * np.arange(1, 32, 2))


@each
@pytest.mark.parametrize("vectors", [1, 2])
def test_sums_are_rounded_to_the_nearest_bf16(isa, vectors):
    def body(b, numbers, sums):
        values = [b.load("<16 x float>", b.at(sums, 16 * n, "float"), 4) for n in range(vectors)]
        b.store(DOT_UNITS[isa]().narrow(b, values), numbers, 2)

    call = compile_function(isa, ["ptr", "ptr"], body)
    rng = np.random.default_rng(0)
    for scale in (0, 1, 2.0**100, 2.0**-100):
        sums = (rng.standard_normal(16 * vectors) * scale).astype(np.float32)
        sums[:4] = 1 + 2.0**-8, 1 + 3 * 2.0**-8, np.inf, np.finfo(np.float32).max  # ties, and what is rounded up to it
        numbers = np.zeros(16 * vectors, BF16)
        call(numbers.ctypes.data, sums.ctypes.data)
        np.testing.assert_array_equal(numbers.view(np.uint16), sums.astype(BF16).view(np.uint16))


@pytest.mark.parametrize("problem", SMALL, ids=IDS)
def test_kernels_for_processors_that_have_it_use_the_instruction(problem):
    text = jit.assembly(lower(plan_of(problem, REAL)).ir, machine_for(REAL))
    assert "vdpbf16ps" in text
    assert "vcvtne" not in text, "it takes denormals for zero"


def test_only_sums_that_are_watched_are_rounded_by_the_processor_without_a_look():
    problem = in_bf16(problem_of(Y, (6, 18), (6, 18), (3, 3), channels=(34, 40), low=1, layout="NXC"), "bf16")
    plan = shaped(plan_of(problem, REAL), 6, 32)
    assert plan.writes_in_place
    assert plan.watch
    main, fallback = (jit.assembly(lower(one).ir, machine_for(REAL)) for one in (plan, plan.fallback))
    assert "vcvtne2ps2bf16" in main
    assert "vfpclassps" not in main
    assert "vfpclassps" in fallback


@pytest.mark.parametrize("slow", [False, True])
def test_it_is_preferred_where_it_is_as_fast_as_a_multiply_add(monkeypatch, slow):
    flags = {*machine.LEVELS[REAL].needs, *(["avx512_fp16"] if slow else [])}
    monkeypatch.setattr(machine, "cpu_flags", lambda: frozenset(flags))
    monkeypatch.setattr(machine, "host_triple", lambda: "x86_64-unknown-linux-gnu")
    for cached in (machine.why_not, machine.available_isas):
        cached.cache_clear()
    try:
        assert machine.available_isas()[-1] == ("avx512" if slow else REAL)
        assert REAL in machine.available_isas()
    finally:
        monkeypatch.undo()
        for cached in (machine.why_not, machine.available_isas):
            cached.cache_clear()
