"""Estimates for matrix units on machines without: what stands in for tile instructions, what is made of its times."""

import sys
from itertools import cycle

import pytest

import convgrad
from codegen.dense_problems import W, Y, problem_of
from codegen.matrix_checks import products_of
from convgrad.codegen.isa.matrix import UNITS, TileUnit
from convgrad.codegen.lower import lower
from convgrad.plan.choose import variants
from convgrad.plan.machine import machine_for, why_not
from frameworks.benchmark_modules import benchmark_modules

(tiles,) = benchmark_modules("tiles")

pytestmark = pytest.mark.skipif(why_not("avx512") is not None, reason=f"kernels for tiles: {why_not('avx512')}")
PROBLEMS = {
    "data": problem_of(Y, (9, 11), (9, 11), (3, 3), channels=(40, 40), low=1, batch=2, layout="NXC"),
    "weights": problem_of(W, (9, 11), (9, 11), (3, 3), channels=(40, 40), low=1, batch=2),
}


@pytest.fixture(autouse=True)
def alone(monkeypatch):
    """One thread, and nothing of this on disk."""
    monkeypatch.setenv("CONVGRAD_CACHE_DIR", "off")
    before = convgrad.num_threads()
    convgrad.set_num_threads(1)
    yield
    convgrad.set_num_threads(before)


def on_tiles(problem, isa):
    return [plan for plan in variants(problem, machine_for(isa)) if plan.ON_UNITS and plan.isa in UNITS]


@pytest.mark.parametrize("unit", [tiles.LeftOut, tiles.Moved, tiles.Counted])
@pytest.mark.parametrize("name", PROBLEMS)
def test_no_tile_instruction_is_left(name, unit, monkeypatch):
    plan = on_tiles(PROBLEMS[name], "amx")[0]
    assert "llvm.x86.tile" in lower(plan).ir
    monkeypatch.setitem(UNITS, "amx", unit)
    ir = lower(plan).ir
    assert "llvm.x86.t" not in ir
    assert ("load volatile <16 x i32>" in ir) == ("store volatile <16 x i32>" in ir) == (unit is tiles.Moved)


@pytest.mark.parametrize("name", PROBLEMS)
def test_products_are_those_of_the_kernel(name, monkeypatch):
    times = cycle((2e-3, 5e-3))
    monkeypatch.setattr(tiles, "race", lambda calls, seconds: (next(times),))
    found = list(tiles.estimates(PROBLEMS[name], 0.1))
    assert UNITS["amx"] is TileUnit
    emulated = on_tiles(PROBLEMS[name], "amx_emulated")
    assert [estimate.kind for estimate in found] == [plan.KIND for plan in emulated]
    for estimate, plan in zip(found, emulated, strict=True):
        assert estimate.products == pytest.approx(products_of(plan, monkeypatch) * tiles.PRODUCT_SECONDS)
        assert estimate.packing == 2e-3
        assert estimate.moving == pytest.approx(3e-3)
        assert estimate.all == pytest.approx(estimate.products + 2e-3 * tiles.PACKING + 3e-3 * tiles.MOVING)


def test_they_are_printed(monkeypatch, capsys):
    times = cycle((1e-3, 3e-3))
    monkeypatch.setattr(tiles, "race", lambda calls, seconds: (next(times),))
    monkeypatch.setattr(sys, "argv", ["tiles.py", "--dir", "BWD_W", "ic40ih9oc40kh3ph1"])
    tiles.main()
    title, header, *lines = capsys.readouterr().out.splitlines()
    assert title.startswith("ConvolutionBackwardWeights")
    assert header.split() == ["on", "tiles", "products", "packing", "tiles", "moved"]
    assert len(lines) == 3
    for line in lines:
        estimate, products, packing, moving = map(float, line.split()[:4])
        assert (packing, moving) == (1, 2)
        assert estimate == pytest.approx(products + tiles.PACKING + 2 * tiles.MOVING, abs=2e-3)


def test_a_machine_without_vectors_of_512_bits_is_told(monkeypatch, capsys):
    monkeypatch.setattr(tiles, "why_not", lambda isa: "it has no such thing")
    monkeypatch.setattr(sys, "argv", ["tiles.py", "ic40ih9oc40kh3ph1"])
    with pytest.raises(SystemExit):
        tiles.main()
    assert "no estimate can be made here: it has no such thing" in capsys.readouterr().err
