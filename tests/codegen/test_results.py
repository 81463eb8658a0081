"""Vectors of results that are rounded and stored together: the bits of each, its place, and nothing beside it."""

import functools

import numpy as np
import pytest

from codegen.buffers import StridedArray
from codegen.emitted import compile_function, each_isa
from codegen.test_isa import SPECIAL
from convgrad.codegen.ir_module import index
from convgrad.codegen.isa import ISAS
from convgrad.codegen.isa.base import STORAGE
from convgrad.codegen.outputs.results import TOGETHER, store_runs
from convgrad.codegen.outputs.runs import Run
from convgrad.dtypes import numpy_dtype
from convgrad.plan.machine import machine_for, why_not
from convgrad.runtime import jit

SHAPES = [(1, 1, False), (3, 1, False), (2, 2, False), (2, 3, False), (1, 2, True), (3, 2, True), (1, 4, True),
          (TOGETHER + 1, 1, False), (TOGETHER // 2 + 1, 2, True)]  # fmt: skip
each_shape = pytest.mark.parametrize(("runs", "many", "in_turn"), SHAPES)


def body(isa, dtype, runs, many, in_turn, room, b, source, target, wanted, count):
    """Runs of `many` vectors from source, one after the other in target, each if its bit in `wanted` is set."""
    emitter = ISAS[isa]
    lanes = emitter.lanes("f32")
    length = many * lanes

    def run(n):
        vectors = [emitter.load(b, "f32", b.at(source, n * length + v * lanes, "float"), lanes) for v in range(many)]
        is_wanted = None
        if wanted is not None:
            is_wanted = b.compare("ne", b.emit("i64", f"and {wanted}, {1 << n}"), 0)
        some = count if room == "at run time" else room
        return Run(vectors, b.at(target, n * length, STORAGE[dtype]), some, in_turn, is_wanted)

    store_runs(b, emitter, dtype, [run(n) for n in range(runs)])


@functools.cache
def stored(isa, dtype, runs, many, in_turn, room):
    """(source, target, bits of the runs that are wanted, count)"""
    write = functools.partial(body, isa, dtype, runs, many, in_turn, room)
    return compile_function(isa, ("ptr", "ptr", "i64", "i64"), write)


def exactly(numbers, dtype):
    """Rounded to nearest even, as bits; a NaN of bf16 keeps its upper half."""
    with np.errstate(over="ignore", invalid="ignore"):
        rounded = numbers.astype(numpy_dtype(dtype))
    if dtype == "f32":
        return rounded.view(np.uint32)
    bits = rounded.view(np.uint16).copy()
    if dtype == "bf16":
        bits[np.isnan(numbers)] = numbers.view(np.uint32)[np.isnan(numbers)] >> 16
    return bits


def in_place(numbers, runs, many, in_turn):
    """Numbers of vectors in the order in which runs hold them."""
    return numbers.reshape(runs, many, -1).swapaxes(1, 2).ravel() if in_turn else numbers


def kinds(size, rng):
    """Numbers of a call: ordinary ones, and such that each one special number is somewhere among them."""
    ordinary = (rng.standard_normal(size) * 2.0 ** rng.integers(-30, 30, size)).astype(np.float32)
    yield ordinary
    yield np.where(rng.random(size) < 0.5, 0, ordinary).astype(np.float32)
    for number in SPECIAL:
        some = ordinary.copy()
        some[rng.integers(size)] = number
        some[rng.integers(size)] = 0
        yield some
    yield rng.choice(SPECIAL, size)
    yield rng.integers(0, 1 << 32, size, np.uint32).view(np.float32)


def sums_of(dtype, numbers):
    """The same, but for NaN that no sum of products is: those of bf16 have nothing in their lower half."""
    if dtype != "bf16":
        return numbers
    bits = numbers.view(np.uint32)
    return np.where(np.isnan(numbers), bits & 0xFFFF0000 | 0x400000, bits).astype(np.uint32).view(np.float32)


@each_isa
@each_shape
@pytest.mark.parametrize("dtype", ["bf16", "f32", "f16"])
def test_each_number_has_its_bits(dtype, runs, many, in_turn, isa, rng):
    size = runs * many * ISAS[isa].lanes("f32")
    call = stored(isa, dtype, runs, many, in_turn, None)
    for numbers in (sums_of(dtype, numbers) for numbers in kinds(size, rng)):
        target = np.zeros(size, numpy_dtype(dtype))
        call(numbers.ctypes.data, target.ctypes.data, -1, 0)
        wanted = exactly(in_place(numbers, runs, many, in_turn), dtype)
        is_number = slice(None) if dtype == "bf16" else ~np.isnan(in_place(numbers, runs, many, in_turn))
        np.testing.assert_array_equal(target.view(wanted.dtype)[is_number], wanted[is_number])


@each_isa
@pytest.mark.parametrize(("many", "in_turn"), [(1, False), (2, False), (2, True), (4, True)])
@pytest.mark.parametrize("dtype", ["bf16", "f32", "f16"])
@pytest.mark.parametrize("known", [True, False], ids=["known room", "room at run time"])
@pytest.mark.parametrize("special", [False, True], ids=["ordinary", "the last a denormal"])
def test_what_there_is_no_room_for_is_not_touched(special, known, dtype, many, in_turn, isa, rng):
    size, kind = many * ISAS[isa].lanes("f32"), numpy_dtype(dtype)
    places = in_place(np.arange(size), 1, many, in_turn)
    for room in sorted({1, 2, size // 2, size // 2 + 1, size - 1, size}):
        target = StridedArray((room,), (1,), kind)
        numbers = rng.integers(1, 100, size).astype(np.float32)
        if special:
            numbers[places[room - 1]] = 1e-40  # alone: any other would send it the long way, too
        wanted = exactly(numbers[places], dtype)
        call = stored(isa, dtype, 1, many, in_turn, room if known else "at run time")
        call(numbers.ctypes.data, target.address, -1, room)
        np.testing.assert_array_equal(np.array(target.view).view(wanted.dtype), wanted[:room])
        assert target.buffer.redzone_is_whole()


@each_isa
@pytest.mark.parametrize("dtype", ["bf16", "f32", "f16"])
@pytest.mark.parametrize("special", [False, True], ids=["ordinary", "with a NaN"])
def test_runs_that_are_not_wanted_are_left_out(special, dtype, isa, rng):
    runs, lanes = 5, ISAS[isa].lanes("f32")
    numbers = rng.integers(1, 100, runs * lanes).astype(np.float32)
    numbers[0] = np.nan if special else 1
    call = stored(isa, dtype, runs, 1, False, None)
    for bits in (0, 1, 0b10110, 0b11111):
        target = np.full(runs * lanes, -1, numpy_dtype(dtype))
        call(numbers.ctypes.data, target.ctypes.data, bits, 0)
        chosen = np.repeat([bits >> n & 1 for n in range(runs)], lanes).astype(bool)
        wanted = np.where(chosen, exactly(numbers, dtype), exactly(np.full_like(numbers, -1), dtype))
        np.testing.assert_array_equal(target.view(wanted.dtype), wanted)


@each_isa
@pytest.mark.parametrize("many", [1, 3])
@pytest.mark.parametrize("dtype", ["bf16", "f16"])
def test_vectors_of_two_runs_that_are_rounded_as_one_keep_to_their_rooms(dtype, many, isa, rng):
    runs, length = 3, many * ISAS[isa].lanes("f32")
    numbers = rng.integers(1, 100, runs * length).astype(np.float32)
    call = stored(isa, dtype, runs, many, False, "at run time")
    for room in (length - 1, length - 3):
        target = np.full((runs, length), -1, numpy_dtype(dtype))
        call(numbers.ctypes.data, target.ctypes.data, -1, room)
        wanted = numbers.reshape(runs, length).astype(target.dtype)
        wanted[:, room:] = -1
        np.testing.assert_array_equal(target, wanted)


@pytest.mark.skipif(why_not("avx512_bf16") is not None, reason="no AVX512_BF16 here")
@pytest.mark.parametrize(("many", "in_turn"), [(1, False), (2, True), (4, True)])
def test_two_vectors_are_rounded_by_one_instruction(many, in_turn):
    from convgrad.codegen.ir import Builder
    from convgrad.codegen.ir_module import Module

    module = Module()
    b = Builder(module, "f", [("ptr", "a0"), ("ptr", "a1")], exported=True)
    body("avx512_bf16", "bf16", 4, many, in_turn, None, b, *b.arguments, None, index(0))
    b.finish()
    text = jit.assembly(str(module), machine_for("avx512_bf16"))
    assert text.count("vcvtne2ps2bf16") == 4 * many // 2
    assert "vpmaxuw" in text


@pytest.mark.parametrize("isa", ["avx2", "avx512"])
def test_f16_is_not_rounded_on_its_way_to_memory(isa):
    from convgrad.codegen.ir import Builder
    from convgrad.codegen.ir_module import Module

    module = Module()
    b = Builder(module, "f", [("ptr", "a0"), ("ptr", "a1")], exported=True)
    body(isa, "f16", 2, 1, False, None, b, *b.arguments, None, index(0))
    b.finish()
    rounded = [line for line in jit.assembly(str(module), machine_for(isa)).splitlines() if "vcvtps2ph" in line]
    assert len(rounded) == 2
    assert not any("(" in line for line in rounded), "to a register takes half as long"
