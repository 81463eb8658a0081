"""Problems for tiles of matrix units, and checks of plans on them: exact, within the bound, and watched."""

from dataclasses import replace

import ml_dtypes
import numpy as np
import pytest

from codegen.buffers import StridedArray
from codegen.dense_problems import W, X, Y, problem_of
from codegen.emitted import run_here
from codegen.random_problems import altered, check_plan, random_problem, solve
from convgrad.codegen.ir_module import Value
from convgrad.codegen.isa.matrix import UNITS, EmulatedTileUnit
from convgrad.codegen.lower import lower
from convgrad.dtypes import numpy_dtype
from convgrad.plan.by_matrix.across_rows import AcrossRowsPlan
from convgrad.plan.by_matrix.matrix import MatrixDataPlan
from convgrad.plan.by_matrix.matrix_weights import MatrixWeightsPlan
from convgrad.plan.by_matrix.shifted_pairs import ShiftedPairsPlan
from convgrad.plan.choose import variants
from convgrad.plan.machine import machine_for, why_not

ISA = "amx_emulated"
needs_tiles = pytest.mark.skipif(why_not(ISA) is not None, reason=f"tiles cannot be emulated here: {why_not(ISA)}")
PLANS = MatrixDataPlan, MatrixWeightsPlan
BF16 = ml_dtypes.bfloat16


def variant_of(problem, isa=ISA):
    """Which variant of a problem's plans is on tiles, of rows of the image, and with channels of x as rows of A."""
    others = AcrossRowsPlan, ShiftedPairsPlan
    plans = variants(problem, machine_for(isa))
    return [isinstance(plan, PLANS) and not isinstance(plan, others) for plan in plans].index(True)


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


KEPT = {  # how sums become weights: straight from the unit, or by way of memory where a tile is not whole or f32
    "whole tiles": ({"channels": (32, 64)}, {"layout": "NXC"}, "f32"),
    "tiles that are not whole": ({"channels": (37, 49)}, {"layout": "NXC"}, "f32"),
    "fewer channels than a tile": ({"channels": (9, 11)}, {"layout": "NXC"}, "f32"),
    "lanes that lie apart": ({"channels": (34, 40)}, {"layout": "NCX"}, "f32"),
    "weights in 16 bits": ({"channels": (34, 40)}, {"layout": "NXC"}, "bf16"),
    "groups": ({"channels": (16, 40), "groups": 3}, {"layout": "NXC"}, "f32"),
}


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


# --- numbers that pieces cannot stand for

SMALL = [problem_of(u, (6, 18), (6, 18), (3, 3), channels=(33, 20), low=1) for u in (X, W, Y)]
IDS = ["x", "w", "y"]


def run(plan, given, bias=None, held=0.0, made=None):
    """The result of a plan, and whether it had to be computed again on vectors; `held` is in the output at first.

    `made` is the module of the plan and what `load_here` gave for it.
    """
    p, machine = asked(plan), machine_for(plan.isa)
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


def asked(plan):
    """The problem of a plan, of numbers where that is of words."""
    return getattr(plan, "numbers", plan.problem)


def data(problem, rng, make):
    return {n: make(rng, s).astype(np.float32) for n, s in problem.shapes.items() if n != problem.unknown.value}


def products_of(plan, monkeypatch):
    """How many products of tiles a kernel makes."""
    count = np.zeros(1, np.int64)

    class Counting(EmulatedTileUnit):
        def multiply_add(self, b, c, a, x):
            place = Value("ptr", f"inttoptr (i64 {count.ctypes.data} to ptr)")
            b.store(b.add(b.load("i64", place, 8), 1), place, 8)
            super().multiply_add(b, c, a, x)

    monkeypatch.setitem(UNITS, ISA, Counting)
    run(plan, data(plan.problem, np.random.default_rng(0), lambda rng, s: rng.standard_normal(s)))
    return int(count[0])


def check_blocks(plan, alterations):
    """A plan, with other blocks for every alteration but none, is exact on whole numbers."""
    for seed in alterations:
        one = altered(plan, np.random.default_rng(seed)) if seed else plan
        check_plan(plan.problem, one, machine_for(plan.isa), seed, low=seed > 0)


def check_random(kind, seeds, least):
    """Plans of one kind for random problems, most of them in other blocks; there are more than `least` of them."""
    found = 0
    for seed in seeds:
        for plan in variants(random_problem(np.random.default_rng(seed)), machine_for(ISA)):
            if type(plan) is kind:
                changed = plan if seed % 3 == 0 else altered(plan, np.random.default_rng(seed))
                check_plan(plan.problem, changed, machine_for(ISA), seed, low=bool(seed % 2))
                found += 1
    assert found > least


def alterations_of(dtype, number):
    """As planned and in other blocks for f32; one of these for the other types, by the number of a problem."""
    return (0, 1, 2) if dtype == "f32" else ((number + (dtype == "f16")) % 3,)


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
    problem, (make, on_vectors) = asked(plan), BF16_KINDS[kind]
    given = {n: v.astype(BF16).astype(np.float32) for n, v in data(problem, np.random.default_rng(5), make).items()}
    result, again = run(plan, given)
    assert again == on_vectors
    wide = {n: None for n in "xwy"} | {n: v.astype(np.float64) for n, v in given.items()}
    exact = solve(problem, **wide)
    scale = solve(problem, **{n: v if v is None else np.abs(v) for n, v in wide.items()})
    terms = problem.flops // (2 * result.size)
    assert np.all(np.abs(result - exact) <= terms * (2.0**-24 * scale + 2.0**-150 * again))


def check_one_number(plan, side, value, place=0.5):
    """One such number in an input gives the bits of vectors; it is so far from the first to the last."""
    given = data(plan.problem, np.random.default_rng(2), lambda rng, s: rng.standard_normal(s))
    name = sorted(given)[side]
    given[name].flat[int((given[name].size - 1) * place + 0.5)] = value
    result, again = run(plan, given)
    assert again
    wanted, _ = run(plan.fallback, given)
    assert result.tobytes() == wanted.tobytes()
