"""Every emitter of an instruction set, run against its meaning."""

import functools
import math
import mmap
import subprocess
import sys
from fractions import Fraction
from pathlib import Path

import numpy as np
import pytest

from codegen.buffers import StridedArray
from codegen.dense_problems import problem_of
from codegen.emitted import HOST_ISAS, compile_function, each_isa
from convgrad.codegen.ir_module import Value, index
from convgrad.codegen.isa import ISAS
from convgrad.codegen.isa.base import STORAGE
from convgrad.codegen.lower import lower
from convgrad.dtypes import COMPUTE, FLOATING, numpy_dtype
from convgrad.plan.choose import variants
from convgrad.plan.machine import machine_for
from convgrad.problem.conv import Unknown
from convgrad.runtime import jit

SHORT = ("bf16", "f16")
each_dtype = pytest.mark.parametrize("dtype", FLOATING)


def same_numbers(result, expected):
    """Equal bits, signs of zeros included, but for the payload of NaN."""
    assert result.dtype == expected.dtype
    bits = np.dtype(f"u{result.itemsize}")
    with np.errstate(invalid="ignore"):  # of signalling NaN
        np.testing.assert_array_equal(np.isnan(result), np.isnan(expected))
        number = ~np.isnan(expected)
    np.testing.assert_array_equal(result.view(bits)[number], expected.view(bits)[number])


def in_lanes(isa, dtype):
    """Lanes of a whole vector of the arithmetic type."""
    return ISAS[isa].lanes(COMPUTE[dtype])


@functools.cache
def converter(isa, source, target, lanes):
    """to[i] = from[i], `lanes` at a time; (from, to, count)."""

    def body(b, src, dst, count):
        def step(i, _):
            value = ISAS[isa].load(b, source, b.at(src, i, STORAGE[source]), lanes)
            ISAS[isa].store(b, target, value, b.at(dst, i, STORAGE[target]))

        b.loop(0, count, step, step=lanes)

    return compile_function(isa, ("ptr", "ptr", "i64"), body)


def converted(isa, numbers, source, target, *, scalar=False):
    lanes = 1 if scalar else in_lanes(isa, source)
    padded = np.concatenate([numbers, np.zeros(-len(numbers) % lanes, numbers.dtype)])
    result = np.full(len(padded), np.nan, numpy_dtype(target))
    converter(isa, source, target, lanes)(padded.ctypes.data, result.ctypes.data, len(padded))
    return result[: len(numbers)]


# --- conversions


def every_pattern(dtype):
    return np.arange(1 << 16, dtype=np.uint16).view(numpy_dtype(dtype))


@each_isa
@pytest.mark.parametrize("scalar", [False, True], ids=["vectors", "scalars"])
@pytest.mark.parametrize("dtype", SHORT)
def test_all_16_bit_numbers_are_widened_exactly(dtype, scalar, isa):
    numbers = every_pattern(dtype)
    with np.errstate(invalid="ignore"):
        same_numbers(converted(isa, numbers, dtype, "f32", scalar=scalar), numbers.astype(np.float32))


@each_isa
@pytest.mark.parametrize("dtype", SHORT)
def test_all_16_bit_numbers_survive_the_way_there_and_back(dtype, isa):
    numbers = every_pattern(dtype)
    same_numbers(converted(isa, numbers, dtype, dtype), numbers)


def hard_to_round(dtype):
    """All 16-bit numbers, the ties between neighbours, and the f32 numbers on either side of both."""
    with np.errstate(invalid="ignore", over="ignore"):
        exact = np.unique(every_pattern(dtype).astype(np.float64))
        exact = exact[np.isfinite(exact)]
        step = 2.0 ** (math.frexp(exact[-1])[1] - (8 if dtype == "bf16" else 11))
        exact = np.concatenate([exact, [exact[-1] + step, -exact[-1] - step]])  # rounds to infinity
        exact.sort()
        ties = (exact[1:] + exact[:-1]) / 2
        singles = np.concatenate([exact, ties]).astype(np.float32)
    bits = singles.view(np.uint32)
    return np.concatenate([bits, bits + 1, bits - 1]).astype(np.uint32).view(np.float32)


SPECIAL = np.array(
    [0x00000000, 0x80000000, 0x00000001, 0x80000001, 0x007FFFFF, 0x00800000, 0x7F7FFFFF, 0xFF7FFFFF, 0x7F800000,
     0xFF800000, 0x7F800001, 0xFF800001, 0x7FC00000, 0xFFC00000, 0x7FFFFFFF, 0xFFFFFFFF, 0x7F801FFF, 0x7F80FFFF,
     0x7F7F8000, 0x7F7F7FFF, 0x477FEFFF, 0x477FF000, 0x33000000, 0x33000001, 0x32FFFFFF, 0x387FE000, 0x387FF000],
    np.uint32,
).view(np.float32)  # fmt: skip


@each_isa
@pytest.mark.parametrize("scalar", [False, True], ids=["vectors", "scalars"])
@pytest.mark.parametrize("dtype", SHORT)
def test_f32_is_rounded_once_to_nearest_even(dtype, scalar, isa, rng):
    anything = rng.integers(0, 1 << 32, 100_000 if scalar else 1_000_000, np.uint32).view(np.float32)
    ordinary = rng.standard_normal(10_000, np.float32) * np.float32(2.0) ** rng.integers(-30, 20, 10_000)
    numbers = np.concatenate([SPECIAL, hard_to_round(dtype), anything, ordinary.astype(np.float32)])
    if dtype == "bf16":  # whose sums are no NaN with anything in its lower half
        bits = numbers.view(np.uint32)
        numbers = np.where(np.isnan(numbers), bits & 0xFFFF0000 | 0x400000, bits).astype(np.uint32).view(np.float32)
    with np.errstate(invalid="ignore", over="ignore"):
        same_numbers(converted(isa, numbers, "f32", dtype, scalar=scalar), numbers.astype(numpy_dtype(dtype)))


def test_the_hard_numbers_hold_ties_subnormals_and_overflow():
    numbers = hard_to_round("f16")
    assert {np.float32(65520), np.float32(65519.996), np.float32(2.0**-25)} <= set(numbers.tolist())


@each_isa
@pytest.mark.parametrize("dtype", ["f32", "f64"])
def test_arithmetic_types_are_moved_bit_by_bit(dtype, isa, rng):
    bits = np.dtype(f"u{numpy_dtype(dtype).itemsize}")
    numbers = rng.integers(0, np.iinfo(bits).max, 4096, bits).view(numpy_dtype(dtype))
    same_numbers(converted(isa, numbers, dtype, dtype), numbers)


# --- memory


@each_isa
@each_dtype
@pytest.mark.parametrize("low", [False, True], ids=["before a guard page", "behind a guard page"])
def test_plain_loads_and_stores_take_any_address(dtype, low, isa, rng):
    lanes, kind = in_lanes(isa, dtype), numpy_dtype(dtype)
    for start in range(3):  # elements before the vector: no alignment but that of the element
        source = StridedArray((lanes + start,), (1,), kind, low=low)
        target = StridedArray((lanes + start,), (1,), kind, low=low)
        source.view[...] = rng.integers(-9, 10, lanes + start).astype(kind)
        place = start * kind.itemsize
        converter(isa, dtype, dtype, lanes)(source.address + place, target.address + place, lanes)
        np.testing.assert_array_equal(target.view[start:].astype(float), source.view[start:].astype(float))
        assert np.all(target.buffer.bytes[:place] == 0xFF)
        assert target.buffer.redzone_is_whole()


@functools.cache
def masked(isa, dtype, count):
    """Loads `count` lanes of dtype, stores the whole vector; then stores `count` lanes; (from, whole, part, count)."""
    lanes, compute = in_lanes(isa, dtype), COMPUTE[dtype]

    def body(b, src, whole, part, n):
        first = n if count is None else index(count)
        value = ISAS[isa].load(b, dtype, src, lanes, first)
        ISAS[isa].store(b, compute, value, whole)
        ISAS[isa].store(b, dtype, value, part, first)

    return compile_function(isa, ("ptr", "ptr", "ptr", "i64"), body)


@each_isa
@each_dtype
@pytest.mark.parametrize("known", [True, False], ids=["known count", "count at run time"])
@pytest.mark.parametrize("low", [False, True], ids=["before a guard page", "behind a guard page"])
def test_counted_loads_and_stores_touch_the_first_lanes_only(dtype, known, low, isa, rng):
    lanes, kind = in_lanes(isa, dtype), numpy_dtype(dtype)
    for count in range(1 if known else 0, lanes + 1):
        source, part = (StridedArray((count,), (1,), kind, low=low) for _ in range(2))
        source.view[...] = rng.integers(1, 10, count).astype(kind)
        whole = StridedArray((lanes,), (1,), numpy_dtype(COMPUTE[dtype]))
        call = masked(isa, dtype, count if known else None)
        call(source.address, whole.address, part.address, count)
        np.testing.assert_array_equal(whole.view, [*source.view.astype(float), *[0] * (lanes - count)])
        np.testing.assert_array_equal(part.view.astype(float), source.view.astype(float))
        assert part.buffer.redzone_is_whole()


@each_isa
@each_dtype
def test_a_mask_reads_a_known_run_of_lanes_only(dtype, isa, rng):
    """Any run, between guard pages on either side."""
    lanes, kind = in_lanes(isa, dtype), numpy_dtype(dtype)
    for first in range(lanes):
        for stop in range(first + 1, lanes + 1):
            mask = Value(f"i{lanes}", str((1 << stop) - (1 << first)))

            def body(b, source, whole, first=first, mask=mask):
                start = b.at(source, -first, STORAGE[dtype])
                emitter, compute = ISAS[isa], COMPUTE[dtype]
                emitter.store(b, compute, emitter.load(b, dtype, start, lanes, mask=mask), whole)

            call = compile_function(isa, ("ptr", "ptr"), body)
            for low in (False, True):
                source = StridedArray((stop - first,), (1,), kind, low=low)
                source.view[...] = rng.integers(1, 10, stop - first).astype(kind)
                whole = np.full(lanes, np.nan, numpy_dtype(COMPUTE[dtype]))
                call(source.address, whole.ctypes.data)
                np.testing.assert_array_equal(whole, [*[0] * first, *source.view.astype(float), *[0] * (lanes - stop)])


@each_isa
@pytest.mark.parametrize("dtype", SHORT)
def test_a_run_at_one_end_may_be_read_with_its_neighbours(dtype, isa, rng):
    """As many as are there at its other end, up to a guard page; of these nothing is left."""
    lanes, kind = in_lanes(isa, dtype), numpy_dtype(dtype)
    runs = [(first, lanes) for first in range(1, lanes)] + [(0, stop) for stop in range(1, lanes)]
    for first, stop in runs:
        mask = Value(f"i{lanes}", str((1 << stop) - (1 << first)))
        for there in {0, first + lanes - stop}:
            near, before = ((0, there), 0) if first else ((there, 0), there)

            def body(b, source, whole, place=before - first, mask=mask, near=near):
                start = b.at(source, place, STORAGE[dtype])
                emitter, compute = ISAS[isa], COMPUTE[dtype]
                emitter.store(b, compute, emitter.load(b, dtype, start, lanes, mask=mask, near=near), whole)

            call = compile_function(isa, ("ptr", "ptr"), body)
            for low in (False, True):
                source = StridedArray((stop - first + there,), (1,), kind, low=low)
                source.view[...] = rng.integers(1, 10, stop - first + there).astype(kind)
                wanted = source.view.astype(float)[before : before + stop - first]
                whole = np.full(lanes, np.nan, numpy_dtype(COMPUTE[dtype]))
                call(source.address, whole.ctypes.data)
                np.testing.assert_array_equal(whole, [*[0] * first, *wanted, *[0] * (lanes - stop)])


@each_isa
def test_a_number_of_f16_goes_where_nothing_was(isa):
    """vpinsrw keeps the rest of its register, which is the number before: eight cycles for each of a run."""
    modules = []

    def body(b, source, target):
        ISAS[isa].store(b, "f32", ISAS[isa].load(b, "f16", source), target)
        modules.append(b.module)

    compile_function(isa, ("ptr", "ptr"), body)
    assert ("vmovd $1, $0" in str(modules[0])) == (ISAS[isa].half and ISAS[isa].assembly)


# --- arithmetic and rearrangement


def fused(x, y, total, dtype):
    """x · y + total, rounded once."""
    exact = Fraction(float(x)) * Fraction(float(y)) + Fraction(float(total))
    if dtype == "f64":
        return np.float64(exact.numerator / exact.denominator)
    near = np.float32(float(exact))
    around = [np.nextafter(near, np.float32(-np.inf)), near, np.nextafter(near, np.float32(np.inf))]
    return min(around, key=lambda v: (abs(Fraction(float(v)) - exact), int(v.view(np.uint32)) & 1))


@each_isa
@pytest.mark.parametrize("dtype", ["f32", "f64"])
def test_multiply_add_rounds_as_the_set_says(dtype, isa, rng):
    emitter, lanes, kind = ISAS[isa], in_lanes(isa, dtype), numpy_dtype(dtype)

    def body(b, x, y, total, result):
        x, y, total = (emitter.load(b, dtype, address, lanes) for address in (x, y, total))
        emitter.store(b, dtype, emitter.multiply_add(b, x, y, total), result)

    call = compile_function(isa, ("ptr",) * 4, body)
    for _ in range(40):
        x, y = (rng.standard_normal(lanes).astype(kind) for _ in range(2))
        total = (-x * y * rng.choice([1, 1, 0.5], lanes)).astype(kind)  # what is rounded off is what is left
        result = np.full(lanes, np.nan, kind)
        call(*(array.ctypes.data for array in (x, y, total, result)))
        if emitter.fma:
            expected = np.array([fused(*numbers, dtype) for numbers in zip(x, y, total, strict=True)], kind)
        else:
            expected = x * y + total
        np.testing.assert_array_equal(result, expected)


@each_isa
@pytest.mark.parametrize("dtype", ["f32", "f64"])
def test_splat_fills_every_lane(dtype, isa):
    emitter, lanes, kind = ISAS[isa], in_lanes(isa, dtype), numpy_dtype(dtype)

    def body(b, number, result):
        emitter.store(b, dtype, emitter.splat(b, emitter.load(b, dtype, number), lanes), result)

    number, result = np.array([-7.25], kind), np.full(lanes, np.nan, kind)
    compile_function(isa, ("ptr", "ptr"), body)(number.ctypes.data, result.ctypes.data)
    np.testing.assert_array_equal(result, [-7.25] * lanes)


@each_isa
@pytest.mark.parametrize("dtype", ["f32", "f64"])
def test_transpose_exchanges_rows_and_lanes(dtype, isa):
    emitter, lanes, kind = ISAS[isa], in_lanes(isa, dtype), numpy_dtype(dtype)

    def body(b, source, result):
        places = [[b.at(base, i * lanes, STORAGE[dtype]) for i in range(lanes)] for base in (source, result)]
        rows = [emitter.load(b, dtype, address, lanes) for address in places[0]]
        for row, address in zip(emitter.transpose(b, rows), places[1], strict=True):
            emitter.store(b, dtype, row, address)

    source, result = np.arange(lanes**2).reshape(lanes, lanes).astype(kind), np.full((lanes, lanes), np.nan, kind)
    compile_function(isa, ("ptr", "ptr"), body)(source.ctypes.data, result.ctypes.data)
    np.testing.assert_array_equal(result, source.T)


@each_isa
@pytest.mark.parametrize("dtype", ["f32", "f64"])
@pytest.mark.parametrize("groups", [1, 2, 4])
def test_pick_takes_any_lanes(groups, dtype, isa):
    """Within parts of a vector, across them, and one lane for all."""
    emitter, lanes, kind = ISAS[isa], in_lanes(isa, dtype), numpy_dtype(dtype)
    per_group = max(1, lanes // groups)
    wanted = [lane // per_group * per_group + per_group - 1 for lane in range(lanes)]

    def body(b, source, result):
        emitter.store(b, dtype, emitter.pick(b, emitter.load(b, dtype, source, lanes), wanted), result)

    source, result = np.arange(lanes).astype(kind), np.full(lanes, np.nan, kind)
    compile_function(isa, ("ptr", "ptr"), body)(source.ctypes.data, result.ctypes.data)
    np.testing.assert_array_equal(result, source[wanted])


def test_vectors_are_those_of_the_machine():
    for isa, emitter in ISAS.items():
        machine = machine_for(isa)
        assert emitter.lanes("f32") == 2 * emitter.lanes("f64") == machine.lanes_f32
        assert (emitter.registers, emitter.fma) == (machine.registers, machine.has_fma)


@pytest.mark.skipif("avx512" not in HOST_ISAS, reason="LLVM may know no other processor than this one")
@pytest.mark.parametrize("dtype", FLOATING)
def test_code_that_does_without_instructions_for_bf16_is_that_of_the_set_without_them(dtype):
    """So tests may run what was compiled for the one on the other."""
    problem = problem_of(Unknown.W, (9, 13), (9, 13), (3, 3), channels=(2, 4), groups=19, dtype=dtype, out_dtype=dtype)
    irs = {lower(plan).ir for plan in variants(problem, machine_for("avx512"))}
    irs |= {ir for plan in variants(problem, machine_for("avx512_bf16")) if "bf16" not in (ir := lower(plan).ir)}
    for ir in irs:
        one, other = (jit.compile_ir(ir, machine_for(isa)) for isa in ("avx512", "avx512_bf16"))
        assert one == other


@pytest.mark.skipif(not hasattr(mmap, "PROT_READ"), reason="guard pages need mprotect")
@pytest.mark.parametrize("low", [False, True])
def test_a_guard_page_stops_whoever_steps_on_it(low):
    """So what passes here did not read beyond the edge."""
    place = "b.address - 1" if low else "b.address + 64"
    program = f"from codegen.buffers import *; b = Buffer(64, low={low}); print('here', flush=True); "
    program += f"print(ctypes.string_at({place}, 1))"
    tests = str(Path(__file__).parents[1])
    run = subprocess.run([sys.executable, "-c", program], env={"PYTHONPATH": tests}, capture_output=True, text=True)
    assert run.stdout == "here\n"
    assert run.returncode != 0
