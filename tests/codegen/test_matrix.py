"""Matrix units: the emulated tile, plans on it, and data that bf16 pieces cannot stand for."""

import errno
import os
from dataclasses import replace
from types import SimpleNamespace

import ml_dtypes
import numpy as np
import pytest

from codegen.buffers import StridedArray
from codegen.dense_problems import W, X, Y, problem_of
from codegen.emitted import compile_function, run_here
from codegen.random_problems import altered, check, check_plan, random_problem, solve
from convgrad.codegen.isa.matrix import EmulatedTileUnit
from convgrad.codegen.lower import lower
from convgrad.dtypes import numpy_dtype
from convgrad.plan import host, machine
from convgrad.plan.choose import variants
from convgrad.plan.machine import machine_for, why_not
from convgrad.plan.matrix import MatrixDataPlan
from convgrad.plan.matrix_weights import MatrixWeightsPlan
from convgrad.runtime import doctor, jit

ISA = "amx_emulated"
pytestmark = pytest.mark.skipif(why_not(ISA) is not None, reason=f"tiles cannot be emulated here: {why_not(ISA)}")
PLANS = MatrixDataPlan, MatrixWeightsPlan
BF16 = ml_dtypes.bfloat16


def variant_of(problem, isa=ISA):
    """Which variant of a problem's plans is on tiles."""
    return [isinstance(plan, PLANS) for plan in variants(problem, machine_for(isa))].index(True)


def plan_of(problem, isa=ISA):
    return list(variants(problem, machine_for(isa)))[variant_of(problem, isa)]


# --- one instruction


def multiplied(c, a, b, rows):
    """TDPBF16PS as the manual writes it: even and odd products summed apart in f32, denormals being zero."""

    def flushed(x):
        return np.where(np.abs(x) < np.float32(2.0**-126), np.copysign(np.float32(0), x), x)

    result = c.copy()
    for m in range(rows):
        sums = np.zeros((2, 16), np.float32)
        for k in range(16):
            for part in range(2):
                one, others = (flushed(v.astype(np.float32)) for v in (a[m, 2 * k + part], b[k, part::2]))
                exact = one.astype(np.float64) * others.astype(np.float64) + sums[part].astype(np.float64)
                sums[part] = flushed(exact.astype(np.float32))  # a product of bf16 is exact in f64, and nearly the sum
        result[m] = flushed(flushed(c[m]) + flushed(sums[0] + sums[1]))
    return result


@pytest.mark.parametrize("rows", [16, 5])
def test_a_product_of_tiles_is_what_the_manual_says(rows):
    def body(b, c, a, x):
        unit = EmulatedTileUnit(rows)
        unit.begin(b)
        unit.load(b, 0, c, 64)
        unit.load(b, 4, a, 64)
        unit.load(b, 6, x, 64)
        unit.multiply_add(b, 0, 4, 6)
        unit.store(b, 0, c, 64)

    call = compile_function(ISA, ["ptr", "ptr", "ptr"], body)
    rng = np.random.default_rng(0)
    for scale in (1.0, 2.0**-60, 2.0**-64):  # products that are normal, denormal, and neither alone
        a, b = ((rng.standard_normal((16, 32)) * scale).astype(BF16) for _ in range(2))
        a[0, 0], b[0, 0] = BF16(1e-39), BF16(1.0)
        c = (rng.standard_normal((16, 16)) * scale * scale).astype(np.float32)
        wanted = multiplied(c, a, b, rows)
        call(c.ctypes.data, a.ctypes.data, b.ctypes.data)
        np.testing.assert_array_equal(c, wanted)


def test_tiles_that_are_zeroed_are_zero():
    def body(b, c):
        unit = EmulatedTileUnit()
        unit.begin(b)
        unit.zero(b, 3)
        unit.store(b, 3, c, 64)

    c = np.ones((16, 16), np.float32)
    compile_function(ISA, ["ptr"], body)(c.ctypes.data)
    np.testing.assert_array_equal(c, 0)


# --- whole problems, exactly

WIDE = {
    "channels of several tiles": problem_of(Y, (11, 9), (11, 9), (3, 3), channels=(70, 53), low=1),
    "channels of several tiles, image side": problem_of(X, (11, 9), (11, 9), (3, 3), channels=(53, 70), low=1),
    "channels of several tiles, weights": problem_of(W, (11, 9), (11, 9), (3, 3), channels=(70, 53), low=1),
    "strides": problem_of(Y, (21, 37), (10, 18), (3, 4), channels=(33, 17), stride=2, low=1, layout="NXC"),
    "phases": problem_of(X, (21, 37), (10, 18), (3, 4), channels=(33, 17), stride=(2, 2), low=1, layout="NXC"),
    "planes": problem_of(W, (21, 37), (10, 18), (3, 4), channels=(33, 17), stride=(2, 2), low=1),
    "planes of uneven strides": problem_of(W, (23, 40), (8, 10), (3, 5), channels=(18, 40), stride=(3, 4), low=(2, 3)),
    "groups": problem_of(W, (9, 9), (9, 9), (3, 3), channels=(16, 33), groups=3, low=1, layout="NXC"),
    "dilation beyond the image": problem_of(W, (9, 9), (9, 9), (3, 3), channels=(17, 16), dilation=18, low=18),
    "three axes": problem_of(W, (5, 6, 7), (5, 6, 7), (3, 3, 3), channels=(17, 19), batch=2, low=1),
    "three axes, data": problem_of(Y, (5, 6, 7), (5, 6, 7), (3, 3, 3), channels=(40, 19), batch=2, low=1),
    "three channels": problem_of(W, (23, 23), (11, 11), (7, 7), channels=(3, 33), stride=2, low=2, batch=2),
    "a long row": problem_of(W, (700,), (349,), (5,), channels=(20, 30), stride=2, low=1),
    "bias": problem_of(Y, (9, 40), (9, 40), (1, 3), channels=(40, 40), low=(0, 1), bias=True, layout="NXC"),
    "the bias gradient": problem_of(W, (9, 9), (9, 9), (3, 3), channels=(18, 40), low=1, bias_gradient="y"),
}


@pytest.mark.parametrize("dtype", ["f32", "bf16", "f16"])
@pytest.mark.parametrize("problem", WIDE.values(), ids=WIDE)
def test_whole_numbers_are_exact(problem, dtype):
    problem = replace(problem, dtype=dtype, out_dtype="f32")
    variant = variant_of(problem)
    for alter in (None, 1, 2):
        check(problem, ISA, variant=variant, low=alter == 1, alter=alter)


@pytest.mark.parametrize("dtype", ["f32", "bf16"])
@pytest.mark.parametrize(("unknown", "channels"), [(X, (20, 41)), (Y, (41, 20))], ids=["x", "y"])
def test_bands_of_taps_leave_each_other_and_what_fills_up_tiles_alone(unknown, channels, dtype):
    image, windows = (23, 9, 20), (9, 9, 20)
    problem = problem_of(unknown, image, windows, (3, 2, 1), channels=channels, dilation=(7, 5, 1), low=(0, 2, 0))
    problem = replace(problem, dtype=dtype, out_dtype="f32")
    plan = plan_of(problem)
    plan = replace(plan, block=(1, 2 * plan.tile[1], plan.tile[2], plan.block[-1]), writes_in_place=False)
    assert plan.banded(1)
    assert plan.banded(2)
    check_plan(problem, plan, machine_for(ISA))


@pytest.mark.parametrize("mode", ["tf32", "bf16", "f16", "any"])
@pytest.mark.parametrize("unknown", [X, W, Y])
def test_modes_are_exact_where_no_number_is_rounded(unknown, mode):
    problem = problem_of(unknown, (9, 9), (9, 9), (3, 3), channels=(34, 17), low=1, fpmath_mode=mode)
    assert len(plan_of(problem).products) == {"tf32": 3, "bf16": 1, "f16": 3, "any": 1}[mode]
    check(problem, ISA, variant=variant_of(problem))


KEPT = {  # how sums become weights: straight from the unit, or by way of memory where a tile is not whole or f32
    "whole tiles": ({"channels": (32, 64)}, {"layout": "NXC"}, "f32"),
    "tiles that are not whole": ({"channels": (37, 49)}, {"layout": "NXC"}, "f32"),
    "fewer channels than a tile": ({"channels": (9, 11)}, {"layout": "NXC"}, "f32"),
    "lanes that lie apart": ({"channels": (34, 40)}, {"layout": "NCX"}, "f32"),
    "weights in 16 bits": ({"channels": (34, 40)}, {"layout": "NXC"}, "bf16"),
    "groups": ({"channels": (16, 40), "groups": 3}, {"layout": "NXC"}, "f32"),
}


@pytest.mark.parametrize("rows", [4, 12])
@pytest.mark.parametrize("kind", KEPT)
def test_a_task_that_forms_all_of_a_sum_makes_weights_of_it(kind, rows):
    sizes, strides, out_dtype = KEPT[kind]
    problem = problem_of(W, (12, 13), (12, 13), (3, 3), low=1, batch=2, bias_gradient="y", **sizes, **strides)
    problem = replace(problem, dtype="bf16" if out_dtype == "bf16" else "f32", out_dtype=out_dtype)
    for chunks, batch in ((1, 1), (1, 2), (2, 1)):
        plan = replace(plan_of(problem), block=(batch, rows if batch == 1 else 12, 13), chunks=chunks)
        assert plan.own_sums == (chunks == 1)
        assert plan.straight == (plan.own_sums and out_dtype == "f32" and kind != "lanes that lie apart")
        check_plan(problem, plan, machine_for(ISA), low=True)
        shared = replace(plan, row_shares=min(2, plan.row_count // 32 or 1), lane_shares=min(2, plan.lane_blocks))
        check_plan(problem, shared, machine_for(ISA))


@pytest.mark.parametrize("layout", ["NCX", "NXC"])
@pytest.mark.parametrize("unknown", [X, Y])
@pytest.mark.parametrize("dtype", ["f32", "bf16"])
def test_tasks_may_pack_their_own_weights_and_watch_them(dtype, unknown, layout):
    check_own_weights(plan_of, dtype, unknown, layout)


def check_own_weights(plan_of, dtype, unknown, layout):
    """Weights that a task packs are exact, and no number of them that pieces cannot stand for is overlooked."""
    problem = problem_of(unknown, (6, 7), (6, 7), (3, 3), channels=(70, 66), low=1, batch=2, layout=layout, bias=True)
    problem = replace(problem, dtype=dtype, out_dtype=dtype)
    plan = plan_of(problem)
    assert plan.in_channels > plan.channel_unit
    more = {"i_block": plan.channel_unit, "blocks_per_task": 1, "writes_in_place": False}
    plan = replace(plan, packs_weights=True, **more)
    check_plan(problem, plan, machine_for(plan.isa))
    given = data(problem, np.random.default_rng(2), lambda rng, s: rng.standard_normal(s))
    bias = np.ones(problem.shapes[unknown.value][2])
    assert not run(plan, given, bias=bias)[1]
    for place in (0, given["w"].size // 2, given["w"].size - 1):
        extreme = given | {"w": given["w"].copy()}
        extreme["w"].flat[place] = np.inf
        assert run(plan, extreme, bias=bias)[1]
    bias[-1] = 2.0**-130
    assert run(plan, given, bias=bias)[1]


@pytest.mark.parametrize("part", range(4))
def test_random_problems_on_tiles(part):
    found = 0
    for seed in range(1000 * part, 1000 * part + 40):
        problem = random_problem(np.random.default_rng(seed))
        for variant, plan in enumerate(variants(problem, machine_for(ISA))):
            if isinstance(plan, PLANS):
                check(problem, ISA, variant=variant, seed=seed, low=bool(seed % 2), alter=seed if seed % 3 else None)
                found += 1
    assert found > 5


# --- numbers that pieces cannot stand for

SMALL = [problem_of(u, (6, 18), (6, 18), (3, 3), channels=(33, 20), low=1) for u in (X, W, Y)]
IDS = ["x", "w", "y"]


def run(plan, given, bias=None, held=0.0, made=None):
    """The result of a plan, and whether it had to be computed again on vectors; `held` is in the output at first.

    `made` is the module of the plan and what `load_here` gave for it.
    """
    p, machine = plan.problem, machine_for(plan.isa)
    unknown = p.unknown.value
    arrays = {
        n: StridedArray(s, p.strides[n], numpy_dtype(p.out_dtype if n == unknown else p.dtype))
        for n, s in p.shapes.items()
    }
    arrays[unknown].view[...] = held
    for name, values in given.items():
        arrays[name].view[...] = values
    if bias is not None:
        channels = p.shapes[unknown][2]
        array = StridedArray((channels,), (p.bias_stride,), numpy_dtype(p.dtype))
        array.view[...] = bias
        bias = array
    module, loaded = made or (lower(plan), None)
    ran = run_here(module, machine, [*(arrays[name] for name in "xwy"), bias], loaded=loaded)
    return arrays[unknown].view.copy(), any(symbol.startswith("again.") for symbol in ran)


def data(problem, rng, make):
    return {n: make(rng, s).astype(np.float32) for n, s in problem.shapes.items() if n != problem.unknown.value}


def log_uniform(rng, shape):
    return np.exp2(rng.uniform(-60, 60, shape)) * rng.choice([-1, 1], shape)


KINDS = {  # how the data are made, and whether vectors must compute them
    "normal": (lambda rng, s: rng.standard_normal(s), False),
    "uniform": (lambda rng, s: rng.uniform(-1, 1, s), False),
    "one sign": (lambda rng, s: rng.uniform(0, 1, s), False),
    "zeros among them": (lambda rng, s: rng.standard_normal(s) * (rng.random(s) < 0.5), False),
    "all zero": (lambda rng, s: np.zeros(s), False),
    "small": (lambda rng, s: rng.uniform(1, 2, s) * 2.0**-50, False),
    "very small": (lambda rng, s: rng.uniform(1, 2, s) * 2.0**-56, True),
    "denormal": (lambda rng, s: rng.uniform(1, 2, s) * 2.0**-130, True),
    "log-uniform": (log_uniform, True),
    "large": (lambda rng, s: rng.standard_normal(s) * 2.0**55, False),
}


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("problem", SMALL, ids=IDS)
def test_every_kind_of_data_is_within_the_bound(problem, kind):
    make, on_vectors = KINDS[kind]
    given = data(problem, np.random.default_rng(1), make)
    result, again = run(plan_of(problem), given)
    assert again == on_vectors
    wide = {n: None for n in "xwy"} | {n: v.astype(np.float64) for n, v in given.items()}
    exact = solve(problem, **wide)
    scale = solve(problem, **{n: v if v is None else np.abs(v) for n, v in wide.items()})
    terms = 8 if not again else problem.flops // (2 * result.size)  # of tiles: far below one rounding per product
    assert np.all(np.abs(result - exact) <= terms * 2.0**-24 * scale + 2.0**-149)


@pytest.mark.parametrize("side", [0, 1])
@pytest.mark.parametrize("value", [np.inf, -np.inf, np.nan, np.finfo(np.float32).max, 2.0**-149, 2.0**-110])
@pytest.mark.parametrize("problem", SMALL, ids=IDS)
def test_one_extreme_number_gives_the_bits_of_vectors(problem, value, side):
    given = data(problem, np.random.default_rng(2), lambda rng, s: rng.standard_normal(s))
    name = sorted(given)[side]
    given[name].flat[given[name].size // 2] = value
    plan = plan_of(problem)
    result, again = run(plan, given)
    assert again
    wanted, _ = run(plan.fallback, given)
    np.testing.assert_array_equal(result.view(np.uint32), wanted.view(np.uint32))


def test_what_is_added_to_an_output_is_computed_on_vectors_unless_the_verdict_comes_before_it():
    for problem in SMALL:
        plans = list(variants(replace(problem, accumulate=True), machine_for(ISA)))
        assert any(isinstance(plan, PLANS) for plan in plans) == (problem.unknown is W)


@pytest.mark.parametrize("dtype", ["f32", "bf16"])
@pytest.mark.parametrize("value", [1.0, 2.0**-130])
def test_weights_that_are_added_to_are_added_to_once(value, dtype):
    problem = replace(SMALL[1], accumulate=True, dtype=dtype, out_dtype="f32")
    given = {n: np.ones(s) for n, s in problem.shapes.items() if n != "w"}
    given["x"].flat[0] = value
    plan = plan_of(problem)
    result, again = run(plan, given, held=0.5)
    assert again == (value < 1)
    wanted, _ = run(plan.fallback, given, held=0.5)
    np.testing.assert_array_equal(result, wanted)
    exact = 0.5 + solve(problem, w=None, **given)
    np.testing.assert_allclose(result, exact, rtol=2.0**-24)  # ones, and one number that is lost beside them


def check_blocks(plan):
    """A plan and two with other blocks are exact on whole numbers."""
    machine = machine_for(plan.isa)
    check_plan(plan.problem, plan, machine)
    for seed in (1, 2):
        check_plan(plan.problem, altered(plan, np.random.default_rng(seed)), machine, seed, low=True)


def check_pieces(plan):
    """All pieces of numbers are multiplied: whole numbers are in the first of each."""
    p = plan.problem
    given = data(p, np.random.default_rng(1), lambda rng, s: rng.standard_normal(s).astype(numpy_dtype(p.dtype)))
    result, again = run(plan, given)
    assert not again
    wide = {n: None for n in "xwy"} | {n: v.astype(np.float64) for n, v in given.items()}
    exact = solve(p, **wide)
    scale = solve(p, **{n: v if v is None else np.abs(v) for n, v in wide.items()})
    assert np.all(np.abs(result - exact) <= 8 * 2.0**-24 * scale)


BF16_KINDS = {  # every number of a kind, and whether vectors must compute them
    "normal": (lambda rng, s: rng.standard_normal(s), False),
    "zeros among them": (lambda rng, s: rng.standard_normal(s) * (rng.random(s) < 0.5), False),
    "products that are normal to the last bit": (lambda rng, s: rng.uniform(1, 2, s) * 2.0**-56, False),
    "products that are not": (lambda rng, s: rng.uniform(1, 2, s) * 2.0**-57, True),
    "denormal products": (lambda rng, s: rng.uniform(1, 2, s) * 2.0**-65, True),
    "denormal numbers": (lambda rng, s: rng.uniform(1, 2, s) * 2.0**-128, True),
}


def check_kind(plan, kind):
    """Data of one of BF16_KINDS are within the bound of f32, and are computed on vectors if they must be."""
    problem, (make, on_vectors) = plan.problem, BF16_KINDS[kind]
    given = {n: v.astype(BF16).astype(np.float32) for n, v in data(problem, np.random.default_rng(5), make).items()}
    result, again = run(plan, given)
    assert again == on_vectors
    wide = {n: None for n in "xwy"} | {n: v.astype(np.float64) for n, v in given.items()}
    exact = solve(problem, **wide)
    scale = solve(problem, **{n: v if v is None else np.abs(v) for n, v in wide.items()})
    terms = problem.flops // (2 * result.size)
    assert np.all(np.abs(result - exact) <= terms * (2.0**-24 * scale + 2.0**-150 * again))


@pytest.mark.parametrize("kind", BF16_KINDS)
@pytest.mark.parametrize("problem", SMALL, ids=IDS)
def test_bf16_of_every_kind_is_multiplied_as_f32(problem, kind):
    check_kind(plan_of(replace(problem, dtype="bf16", out_dtype="f32")), kind)


@pytest.mark.parametrize("side", [0, 1])
@pytest.mark.parametrize("value", [np.inf, -np.inf, np.nan, 2.0**-133, -(2.0**-127)])
@pytest.mark.parametrize("problem", SMALL, ids=IDS)
def test_one_bf16_that_the_unit_takes_differently_gives_the_bits_of_vectors(problem, value, side):
    problem = replace(problem, dtype="bf16", out_dtype="bf16")
    given = data(problem, np.random.default_rng(2), lambda rng, s: rng.standard_normal(s))
    name = sorted(given)[side]
    given[name].flat[given[name].size // 2] = value
    plan = plan_of(problem)
    result, again = run(plan, given)
    assert again
    wanted, _ = run(plan.fallback, given)
    np.testing.assert_array_equal(result.view(np.uint16), wanted.view(np.uint16))


@pytest.mark.parametrize("dtype", ["f32", "bf16"])
def test_a_bias_is_kept_however_small_it_is(dtype):
    problem = replace(SMALL[2], bias=True, bias_stride=1, dtype=dtype, out_dtype="f32")
    given = {n: np.zeros(s) for n, s in problem.shapes.items() if n != "y"}
    result, again = run(plan_of(problem), given, bias=2.0**-130)
    assert again
    np.testing.assert_array_equal(result, np.float32(2.0**-130))
    result, again = run(plan_of(problem), given, bias=2.0**-30)
    assert not again
    np.testing.assert_array_equal(result, np.float32(2.0**-30))


def test_f16_that_is_infinite_is_computed_on_vectors():
    problem = replace(SMALL[2], dtype="f16", out_dtype="f32")
    plan = plan_of(problem)
    machine, rng = machine_for(ISA), np.random.default_rng(3)
    results = []
    for one in (plan, plan.fallback):
        arrays = {n: StridedArray(s, problem.strides[n], np.float16) for n, s in problem.shapes.items() if n != "y"}
        arrays["y"] = StridedArray(problem.shapes["y"], problem.strides["y"], np.float32)
        rng = np.random.default_rng(3)
        for name in "xw":
            arrays[name].view[...] = rng.standard_normal(arrays[name].view.shape)
        arrays["x"].view[0, 0, 3, 2, 5] = np.inf
        run_here(lower(one), machine, [*(arrays[name] for name in "xwy"), None])
        results.append(arrays["y"].view.copy())
    np.testing.assert_array_equal(results[0], results[1])
    assert np.isinf(results[0]).any()


# --- the real unit


@pytest.mark.parametrize("problem", SMALL, ids=IDS)
def test_kernels_for_the_real_unit_use_its_instructions_and_give_the_tiles_back(problem):
    machine = machine_for("amx")
    text = jit.assembly(lower(plan_of(problem, "amx")).ir, machine)
    for instruction in (
        "ldtilecfg",
        "tilezero" if problem.unknown is not W else "tileloadd",
        "tileloadd",
        "tdpbf16ps",
        "tilestored",
        "tilerelease",
    ):
        assert instruction in text
    assert text.count("ldtilecfg") == text.count("tilerelease")


# --- why it is not there


@pytest.fixture
def amx_flags(monkeypatch):
    """A CPU with the flags that level `amx` needs, but for some, and a kernel that answers with an error number."""

    def pretend(without=(), error=0):
        def syscall(*_):
            return -1 if error else 0

        libc = SimpleNamespace(syscall=syscall)
        known = {"CDLL": lambda *_, **__: libc, "get_errno": lambda: error}
        monkeypatch.setattr(machine, "cpu_flags", lambda: frozenset(machine.LEVELS["amx"].needs) - set(without))
        monkeypatch.setattr(host, "ctypes", SimpleNamespace(c_long=int, c_ulong=int, **known))
        forget()

    def forget():
        for cached in (machine.why_not, machine.available_isas, machine.amx_refusal, machine._current):
            cached.cache_clear()

    yield pretend
    monkeypatch.undo()
    forget()


def what_doctor_says():
    return doctor.report()["instruction sets"]["amx"]


def test_doctor_says_which_part_of_the_unit_is_missing(amx_flags):
    amx_flags(without=("amx_bf16",))
    assert what_doctor_says() == "the CPU or the operating system does not offer amx_bf16"
    amx_flags(without=("amx_bf16", "amx_tile"))
    assert what_doctor_says() == "the CPU or the operating system does not offer amx_tile, amx_bf16"


@pytest.mark.parametrize("error", [errno.EPERM, errno.EINVAL, errno.ENOSYS])
def test_doctor_says_that_the_kernel_refuses_the_unit(amx_flags, error):
    amx_flags(error=error)
    assert what_doctor_says() == f"the kernel refused the tile registers (arch_prctl: {os.strerror(error)})"
    assert "amx" not in machine.available_isas()


def test_the_unit_is_taken_where_it_is_granted(amx_flags):
    amx_flags()
    assert what_doctor_says() == "available"
    assert machine.available_isas()[-1] == "amx"
