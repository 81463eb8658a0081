import json
from dataclasses import replace

import pytest

from codegen.dense_problems import W, problem_of
from convgrad.engines.ceilings import DOTS, TILES, Ceilings, Level, from_dict, measure
from convgrad.engines.probes import products_gflops
from convgrad.errors import FileFormatError
from convgrad.plan.machine import available_isas, machine_for
from convgrad.runtime import num_threads

SOME = Ceilings(
    "avx2", 1, {"f32": 100.0, "f64": 50.0}, (Level("L1", 1000.0, 200.0), Level("memory", float("inf"), 10.0))
)


PROBLEM = problem_of(W, (10, 10), (10, 10), (1, 1), channels=(50, 100))  # 10^6 operations


def of(dtype, mode="strict"):
    return replace(PROBLEM, dtype=dtype, out_dtype=dtype, fpmath_mode=mode)


def test_the_bound_is_the_longer_of_arithmetic_and_reading_from_the_nearest_memory_that_holds_all():
    assert PROBLEM.flops == 10**6
    assert SOME.bound(of("f32"), 1000) == (pytest.approx(1e-5), "arithmetic")
    assert SOME.bound(of("f64"), 1000) == (pytest.approx(2e-5), "arithmetic")
    assert SOME.bound(of("bf16"), 10**6) == (pytest.approx(1e-4), "reading from memory")
    slow = replace(SOME, levels=(Level("L1", 1000.0, 1e-3), *SOME.levels[1:]))
    assert slow.bound(of("f32"), 1000) == (pytest.approx(1e-3), "reading from L1")
    assert slow.bound(of("f32"), 1001)[1] == "arithmetic"


@pytest.mark.parametrize(
    ("unit", "dtype", "mode", "peak"),
    [
        (DOTS, "bf16", "strict", (DOTS, 600.0)),
        (DOTS, "f32", "bf16", (DOTS, 600.0)),
        (DOTS, "f16", "strict", ("f32 multiply-adds", 100.0)),  # of two pieces
        (DOTS, "f32", "strict", ("f32 multiply-adds", 100.0)),
        (TILES, "bf16", "strict", (TILES, 600.0)),
        (TILES, "f16", "strict", ("bf16 tile products, 4 for one of f16", 150.0)),
        (TILES, "f32", "tf32", ("bf16 tile products, 3 for one of f32", 200.0)),
        (TILES, "f32", "strict", ("f32 multiply-adds", 100.0)),  # as fast by six products
        (TILES, "f64", "strict", ("f64 multiply-adds", 50.0)),
    ],
)
def test_the_peak_is_that_of_the_fastest_arithmetic_that_is_allowed(unit, dtype, mode, peak):
    with_unit = replace(SOME, gflops=SOME.gflops | {unit: 600.0})
    assert with_unit.peak(of(dtype, mode)) == peak


def test_ceilings_survive_json():
    assert from_dict(json.loads(json.dumps({"ceilings": SOME.as_dict()})), "file") == SOME


@pytest.mark.parametrize("broken", [{}, [], {"levels": []}, {**SOME.as_dict(), "gflops": {"f32": 0, "f64": 1}}])
def test_a_file_that_holds_no_ceilings_is_explained(broken):
    with pytest.raises(FileFormatError, match="file: "):
        from_dict(broken, "file")


def test_measured_ceilings_are_those_of_a_machine():
    before = num_threads()
    found = measure(1, seconds=0.005)
    assert num_threads() == before
    assert found.gflops["f32"] > 1.2 * found.gflops["f64"] > 1
    assert [level.name for level in found.levels] == ["L1", "L2", "L3", "memory"]
    assert found.levels[0].gb_per_s > found.levels[-1].gb_per_s > 0.5


@pytest.mark.parametrize(("isa", "what"), [("avx512_bf16_emulated", "dots"), ("amx_emulated", "tiles")])
def test_units_are_measured(isa, what):
    if "avx512" not in available_isas():
        pytest.skip("units are emulated by AVX-512, which this machine has not")
    assert products_gflops(machine_for(isa), what, "f32", 1, 0.001) > 1
