"""Kernels for AMX as they are, instruction by instruction: where there are no tiles, a handler stands for them."""

import ctypes
import shutil
import signal
import subprocess
import sys
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

import convgrad
from codegen.dense_problems import W, X, Y, problem_of
from codegen.emitted import compile_function, stood_in_for
from codegen.matrix_checks import BF16, KEPT, PLANS, WIDE, data, multiplied, plan_of, run, variant_of
from codegen.random_problems import check, check_plan, random_problem
from convgrad import operations
from convgrad.arrays.call import Operation
from convgrad.codegen.isa.matrix import TileUnit
from convgrad.plan import machine
from convgrad.plan.choose import variants
from convgrad.plan.machine import machine_for, why_not

ISA = "amx"
COMPILER = shutil.which("cc") or shutil.which("gcc")
NATIVE = why_not(ISA) is None
pytestmark = [
    pytest.mark.skipif(
        not NATIVE and why_not("avx512_bf16") is not None,
        reason=f"what is not a tile cannot run here: {why_not('avx512_bf16')}",
    ),
    pytest.mark.skipif(not NATIVE and COMPILER is None, reason="no C compiler for the handler that stands for tiles"),
]
KINDS = ("ldtilecfg", "tilerelease", "tilezero", "tileloadd", "tilestored", "tdpbf16ps")  # as the handler counts them


@pytest.fixture(scope="module")
def handler(tmp_path_factory):
    """The handler, compiled; None where the processor has tiles."""
    if NATIVE:
        return None
    path = tmp_path_factory.mktemp("tiles") / "trapped_tiles.so"
    source = Path(__file__).with_name("trapped_tiles.c")
    flags = ["-O2", "-march=x86-64-v4", "-Wall", "-Wextra", "-Werror", "-shared", "-fPIC"]
    subprocess.run([COMPILER, *flags, "-o", path, source], check=True)
    library = ctypes.CDLL(str(path))
    library.executed.restype = library.holding.restype = ctypes.c_int64
    return library


@contextmanager
def trapping(library):
    """Tile instructions have a meaning inside; afterwards no thread holds tiles. Their counts come when it is over."""
    counts = {}
    if library is None:
        yield counts
        return
    assert library.trap() == 0
    try:
        with stood_in_for(ISA):
            yield counts
    finally:
        assert library.release() == 0
    counts |= {kind: library.executed(n) for n, kind in enumerate(KINDS)}
    assert library.holding() == 0, "a thread kept its tiles"
    assert counts["ldtilecfg"] == counts["tilerelease"] > 0


@pytest.fixture
def tiles(handler):
    """The same around a whole test."""
    with trapping(handler):
        yield


# --- instructions


@pytest.mark.parametrize("rows", [16, 5])
def test_a_product_of_tiles_is_what_the_manual_says(tiles, rows):
    def body(b, c, a, x, step):
        unit = TileUnit(rows)
        unit.begin(b)
        unit.load(b, 0, c, 64)
        unit.load(b, 4, a, step)
        unit.load(b, 6, x, 64)
        unit.multiply_add(b, 0, 4, 6)
        unit.zero(b, 3)
        unit.multiply_add(b, 3, 4, 6)
        unit.store(b, 0, c, 64)
        unit.store(b, 3, x, 64)
        unit.end(b)

    call = compile_function(ISA, ["ptr", "ptr", "ptr", "i64"], body)
    rng = np.random.default_rng(0)
    for scale in (1.0, 2.0**-60, 2.0**-64):
        a = (rng.standard_normal((16, 48)) * scale).astype(BF16)
        b = (rng.standard_normal((16, 32)) * scale).astype(BF16)
        a[0, 0], b[0, 0] = BF16(1e-39), BF16(1.0)
        c = (rng.standard_normal((16, 16)) * scale * scale).astype(np.float32)
        wanted, alone = (multiplied(start, a, b, rows) for start in (c, np.zeros_like(c)))
        call(c.ctypes.data, a.ctypes.data, b.ctypes.data, 96)
        np.testing.assert_array_equal(c, wanted)
        np.testing.assert_array_equal(b.view(np.float32)[:rows], alone[:rows])


REFUSED = {
    "never configured": ("", "no tiles are configured"),
    "given back": ("begin end", "no tiles are configured"),
    "twice the same": ("begin same", "three different tiles"),
    "too many rows": ("tall", "a tile has 16 rows of 64 bytes at most"),
}
PROGRAM = """
import ctypes, sys
from codegen.emitted import compile_function, stood_in_for
from convgrad.codegen.isa.matrix import TileUnit

def body(b, c):
    for step in sys.argv[2].split():
        if step == "same":
            TileUnit().multiply_add(b, 0, 4, 4)
        elif step == "tall":
            TileUnit(17).begin(b)
        else:
            getattr(TileUnit(), step)(b)
    TileUnit().zero(b, 0)

with stood_in_for("amx"):
    call = compile_function("amx", ["ptr"], body)
ctypes.CDLL(sys.argv[1]).trap()
call(None)
"""


@pytest.mark.skipif(NATIVE, reason="the processor decides what it refuses")
@pytest.mark.parametrize("case", REFUSED)
def test_what_the_processor_would_refuse_is_refused(handler, case):
    """In a child, which ends with it."""
    steps, why = REFUSED[case]
    command = [sys.executable, "-c", PROGRAM, handler._name, steps]
    child = subprocess.run(command, capture_output=True, text=True, cwd=Path(__file__).parents[1], check=False)
    assert (child.returncode, child.stderr) == (-signal.SIGABRT, f"tile instruction refused: {why}\n")


# --- kernels


@pytest.mark.parametrize("dtype", ["f32", "bf16", "f16"])
@pytest.mark.parametrize("problem", WIDE.values(), ids=WIDE)
def test_whole_numbers_are_exact(tiles, problem, dtype):
    problem = replace(problem, dtype=dtype, out_dtype="f32")
    alter = {"f32": None, "bf16": 1, "f16": 2}[dtype]
    check(problem, ISA, variant=variant_of(problem, ISA), low=dtype == "f32", alter=alter)


@pytest.mark.parametrize("kind", KEPT)
def test_a_task_that_forms_all_of_a_sum_makes_weights_of_it(tiles, kind):
    sizes, strides, out_dtype = KEPT[kind]
    problem = problem_of(W, (12, 13), (12, 13), (3, 3), low=1, batch=2, bias_gradient="y", **sizes, **strides)
    problem = replace(problem, dtype="bf16" if out_dtype == "bf16" else "f32", out_dtype=out_dtype)
    plan = replace(plan_of(problem, ISA), block=(1, 4, 13), chunks=1)
    assert plan.own_sums
    check_plan(problem, plan, machine_for(ISA), low=True)


@pytest.mark.parametrize("layout", ["NCX", "NXC"])
@pytest.mark.parametrize("unknown", [X, Y])
def test_tasks_may_pack_their_own_weights(tiles, unknown, layout):
    problem = problem_of(unknown, (6, 7), (6, 7), (3, 3), channels=(70, 66), low=1, batch=2, layout=layout, bias=True)
    plan = plan_of(problem, ISA)
    more = {"i_block": plan.channel_unit, "blocks_per_task": 1, "writes_in_place": False}
    check_plan(problem, replace(plan, packs_weights=True, **more), machine_for(ISA))


@pytest.mark.parametrize("part", range(2))
def test_random_problems_have_the_bits_of_emulated_tiles(tiles, part):
    """Of numbers that are rounded, so that the order of sums shows."""
    found = 0
    for seed in range(1000 * part, 1000 * part + 40):
        problem = random_problem(np.random.default_rng(seed))
        if problem.accumulate or problem.bias or problem.bias_gradient:
            continue
        pairs = zip(variants(problem, machine_for(ISA)), variants(problem, machine_for("amx_emulated")), strict=True)
        for plan, emulated in pairs:
            if isinstance(plan, PLANS):
                given = data(plan.problem, np.random.default_rng(seed), lambda rng, s: rng.standard_normal(s))
                bits = [run(one, given)[0].tobytes() for one in (plan, emulated)]
                assert bits[0] == bits[1], plan
                found += 1
    assert found > 3


def test_no_product_is_made_twice_and_hardly_a_tile_loaded_for_one(handler):
    """As many products as there are; two tiles of A meet two of B, so each is loaded once for two of them."""
    problem = problem_of(Y, (18, 18), (16, 16), (3, 3), channels=(64, 64), layout="NXC", batch=1)
    plan = plan_of(problem, ISA)
    arrays = data(problem, np.random.default_rng(0), lambda rng, s: rng.integers(-2, 3, s))
    with trapping(handler) as counts:
        run(plan, arrays)
    if counts:
        products = len(plan.products) * 9 * (16 * 16 // 16) * (64 // 16) * (64 // 32)
        assert counts["tdpbf16ps"] == products
        assert counts["tileloadd"] <= products


# --- the library


@pytest.mark.parametrize("threads", [1, 2, 3])
def test_the_whole_library_computes_on_tiles_with_the_bits_of_emulated_ones(tiles, threads, monkeypatch):
    flags = frozenset(machine.LEVELS[ISA].needs)
    monkeypatch.setattr(machine, "cpu_flags", lambda: flags)
    monkeypatch.setattr(machine, "amx_refusal", lambda: None)
    machine.why_not.cache_clear()
    rng = np.random.default_rng(7)
    src, weights = rng.standard_normal((1, 24, 24, 128), np.float32), rng.standard_normal((3, 3, 128, 112), np.float32)
    pads = {"pads_begin": [1, 1], "pads_end": [1, 1], "strides": [1, 1]}
    results, before = [], convgrad.num_threads()
    convgrad.set_num_threads(threads)
    try:
        for isa in (ISA, "amx_emulated"):
            monkeypatch.setenv("CONVGRAD_ISA", isa)
            for known in vars(operations).values():
                if isinstance(known, Operation):
                    known.forget()
            y = convgrad.convolution(src, weights, **pads)
            dw = convgrad.convolution_backward_weights(src, y, weights.shape, **pads)
            dx = convgrad.convolution_backward_data(y, weights, src.shape, **pads)
            results.append([y.tobytes(), dw.tobytes(), dx.tobytes()])
    finally:
        convgrad.set_num_threads(before)
        monkeypatch.undo()
        machine.why_not.cache_clear()
    assert results[0] == results[1]
