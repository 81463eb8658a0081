"""Outputs that the caches hold already stay there: what is found out of them, and the same numbers either way."""

import ctypes
from dataclasses import replace
from itertools import count
from math import prod

import ml_dtypes
import numpy as np
import pytest

import convgrad.plan.by_dots.dots
import convgrad.plan.general.data
from codegen.buffers import StridedArray
from codegen.dense_problems import SAME, X, Y, problem_of
from codegen.emitted import compile_function, kernel_here
from codegen.random_problems import solve
from convgrad.codegen.lower import lower
from convgrad.codegen.outputs import whereabouts
from convgrad.codegen.outputs.whereabouts import _ticks
from convgrad.plan.choose import choose, variants
from convgrad.plan.machine import available_isas, machine_for, why_not

NEAR, FAR = 1, 10**6  # ticks
NUMBERS = count()
AVX512, DOTS = machine_for("avx512"), machine_for("avx512_bf16")
needs_avx512 = pytest.mark.skipif(why_not("avx512") is not None, reason=f"this machine: {why_not('avx512')}")
needs_dots = pytest.mark.skipif(why_not("avx512_bf16") is not None, reason=f"this machine: {why_not('avx512_bf16')}")
needs_x86 = pytest.mark.skipif("avx2" not in available_isas(), reason="this machine has no time stamps of x86")

OUTPUTS = {  # that are little else than written
    "one channel": problem_of(X, (12, 37), (12, 37), (3, 3), channels=(64, 1), layout="NXC", **SAME),
    "a few channels": problem_of(X, (9, 41), (9, 41), (1, 1), channels=(80, 8), layout="NXC"),
    "phases": problem_of(X, (12, 38), (6, 19), (2, 2), channels=(64, 9), stride=2, layout="NXC"),
    "a row": problem_of(Y, (600,), (119,), (10,), channels=(1, 64), stride=5, layout="NXC"),
    "depthwise": problem_of(X, (14, 30), (7, 15), (3, 3), channels=(1, 1), groups=48, stride=2, low=1, layout="NXC"),
    "groups": problem_of(X, (14, 30), (7, 15), (3, 3), channels=(4, 4), groups=8, stride=2, low=1, layout="NXC"),
}
BY_DOTS = {  # likewise, of bf16
    name: problem_of(Y if name == "runs" else X, *shape, layout="NXC", dtype="bf16", out_dtype="bf16", **more)
    for name, (*shape, more) in {
        "in place": ((9, 41), (9, 41), (1, 1), {"channels": (64, 8)}),
        "slab": ((12, 36), (12, 36), (1, 3), {"channels": (64, 4), "low": 1}),
        "runs": ((2000,), (399,), (10,), {"channels": (1, 512), "stride": 5}),
    }.items()
}


# --- decisions


class Decisions:
    """What is decided, call by call, of outputs that say themselves how long it takes to load their lines."""

    def __init__(self, isa="avx2"):
        self.problem = problem_of(Y, (36,), (36,), (1,), channels=(1, 1))

        def body(b, output, answer):
            b.module.table([next(NUMBERS)])  # equal modules are loaded once, and would remember what others asked for
            whereabouts.is_far(b)  # somebody asks
            whereabouts.look(b, self.problem, output)
            far = b.emit("i64", f"zext {whereabouts.is_far(b)} to i64")
            b.store(b.sub(1, far), answer, 8)

        self.function = compile_function(isa, ("ptr", "ptr"), body)

    def of(self, ticks):
        """An output of 36 numbers, the lines that are looked at being so many ticks away."""
        output = np.zeros(40, np.int32)
        for n, number in enumerate(ticks):
            output[(1, 2, 7, 8)[n] * 36 // 12] = number
        return output

    def near(self, output):
        answer = ctypes.c_int64(-1)
        self.function(output.ctypes.data, ctypes.addressof(answer))
        return answer.value


@pytest.fixture
def decisions(monkeypatch):
    def ticks(b, address):
        return b.emit("i64", f"sext {b.load('i32', address, 4)} to i64")

    monkeypatch.setattr(whereabouts, "_ticks", ticks)
    return Decisions(available_isas()[0])


def test_most_lines_decide(decisions):
    outputs = [decisions.of([NEAR] * n + [FAR] * (4 - n)) for n in range(5)]  # at addresses of their own
    assert list(map(decisions.near, outputs)) == [0, 0, 0, 1, 1]


def test_the_limit_is_between_caches_and_memory(decisions):
    outputs = [decisions.of([ticks] * 4) for ticks in (whereabouts.NEAR_TICKS - 1, whereabouts.NEAR_TICKS)]
    assert list(map(decisions.near, outputs)) == [1, 0]


def test_the_same_output_again_is_tried_now_and_then(decisions):
    output, between = decisions.of([FAR] * 4), [0] * whereabouts.CALLS_BETWEEN
    assert [decisions.near(output) for _ in range(40)] == [0, 1, *between, 1, *between, 1, 0, 0, 0, 0]


def test_other_outputs_are_not_tried(decisions):
    one, other = (decisions.of([FAR] * 4) for _ in range(2))
    assert [decisions.near(output) for _ in range(6) for output in (one, other)] == [0] * 12
    assert [decisions.near(other), decisions.near(other)] == [1, 0]


def test_after_a_try_that_was_of_use_the_next_one_comes_at_once(decisions):
    output = decisions.of([FAR] * 4)
    assert [decisions.near(output) for _ in range(4)] == [0, 1, 0, 0]
    output[:] = NEAR
    assert [decisions.near(output) for _ in range(3)] == [1, 1, 1]
    output[:] = FAR
    assert [decisions.near(output) for _ in range(3)] == [1, 0, 0]


def test_nobody_looks_where_nobody_asks():
    def body(b, output, answer):
        whereabouts.look(b, problem_of(Y, (36,), (36,), (1,), channels=(1, 1)), output)
        assert not b.module.has_variable(whereabouts.NEAR)

    compile_function(available_isas()[0], ("ptr", "ptr"), body)


@needs_x86
def test_what_was_just_written_is_near_and_what_memory_holds_is_not():
    """By the clock, so that one of many turns has to show it."""
    time = compile_function("avx2", ("ptr", "ptr"), lambda b, place, answer: b.store(_ticks(b, place), answer, 8))
    lots, output, answer = np.zeros(2**25), np.zeros(40, np.int32), ctypes.c_int64()

    def ticks():
        time(output.ctypes.data, ctypes.addressof(answer))
        return answer.value

    near = [(output.fill(turn), ticks())[1] for turn in range(1000)]
    far = [(lots.fill(turn), ticks())[1] for turn in range(10)]
    assert 0 < min(near) < whereabouts.NEAR_TICKS <= max(far)


# --- kernels


def check_calls(problem, times, offset, machine=AVX512):
    """Assert that so many calls for the same output give the exact result and touch nothing else."""
    rng, unknown = np.random.default_rng(7), problem.unknown.value
    dtype = np.dtype(ml_dtypes.bfloat16 if problem.dtype == "bf16" else np.float32)
    arrays = {}
    for name, shape in problem.shapes.items():
        arrays[name] = StridedArray(shape, problem.strides[name], dtype)
        if name != unknown:
            arrays[name].view[...] = rng.integers(-2, 3, shape)
    exact = solve(problem, **{name: None if name == unknown else arrays[name].view.astype(float) for name in "xwy"})
    room, size = np.empty(exact.size + 128, dtype), dtype.itemsize
    start = (-room.ctypes.data // size) % (64 // size) + offset
    steps = [size * step for step in problem.strides[unknown]]
    view = np.ndarray(exact.shape, dtype, room, size * start, steps)
    kernel = kernel_here(problem, lower(choose(problem, machine)), machine)
    places = [room.ctypes.data + size * start if name == unknown else arrays[name].address for name in "xwy"]
    for _ in range(times):
        room.fill(np.nan)
        kernel(*places, 0)
        np.testing.assert_array_equal(view.astype(float), exact)
        assert np.isnan(room[:start].astype(float)).all()
        assert np.isnan(room[start + exact.size :].astype(float)).all()


@pytest.fixture
def any_size_is_large(monkeypatch):
    for module in (convgrad.plan.general.data, convgrad.plan.by_dots.dots):
        monkeypatch.setattr(module, "PAST_CACHES_BYTES", 1)


@needs_avx512
@pytest.mark.usefixtures("any_size_is_large")
@pytest.mark.parametrize("limit", [0, 10**12, whereabouts.NEAR_TICKS], ids=["far", "near", "either"])
@pytest.mark.parametrize("offset", [0, 1, 8])
@pytest.mark.parametrize("problem", OUTPUTS.values(), ids=OUTPUTS)
def test_outputs_are_exact_wherever_they_are(problem, offset, limit, monkeypatch):
    monkeypatch.setattr(whereabouts, "NEAR_TICKS", limit)
    check_calls(problem, 4, offset)


@needs_dots
@pytest.mark.usefixtures("any_size_is_large")
@pytest.mark.parametrize("limit", [0, 10**12], ids=["far", "near"])
@pytest.mark.parametrize("offset", [0, 1, 16])
@pytest.mark.parametrize("problem", BY_DOTS.values(), ids=BY_DOTS)
def test_outputs_of_dot_products_are_exact_wherever_they_are(problem, offset, limit, monkeypatch):
    monkeypatch.setattr(whereabouts, "NEAR_TICKS", limit)
    check_calls(problem, 4, offset, DOTS)


@pytest.mark.usefixtures("any_size_is_large")
@pytest.mark.parametrize("problem", BY_DOTS.values(), ids=BY_DOTS)
def test_dot_products_look_and_ask_for_nothing(problem):
    plan = choose(problem, DOTS)
    assert plan.ON_UNITS
    assert plan.may_stay
    ir = lower(plan).ir
    task = ir[ir.index("@main.task") :]
    assert task.index("@near") < task.index("!nontemporal")
    assert "i32 1, i32 3, i32 1" not in task
    assert "readcyclecounter" in ir


@pytest.mark.usefixtures("any_size_is_large")
@pytest.mark.parametrize("problem", OUTPUTS.values(), ids=OUTPUTS)
def test_lines_are_asked_for_before_they_are_written(problem):
    plan = choose(problem, AVX512)
    assert plan.may_stay
    ir = lower(plan).ir
    task = ir[ir.index("@main.task") :]
    assert task.index("@near") < task.index("@llvm.prefetch") < task.index("!nontemporal")
    assert "readcyclecounter" in ir
    assert "i32 1, i32 3, i32 1" in task, "to be written, in L1"


@pytest.mark.usefixtures("any_size_is_large")
@pytest.mark.parametrize(
    ("channels", "taps", "staying"),
    [((64, 1), 3, True), ((64, 2), 3, False), ((64, 12), 1, True), ((32, 12), 1, True), ((16, 12), 1, False)],
)
def test_where_there_is_more_to_multiply_or_to_read_nobody_looks(channels, taps, staying):
    pads = SAME if taps > 1 else {}
    problem = problem_of(X, (12, 48), (12, 48), (taps, taps), channels=channels, layout="NXC", **pads)
    plan = choose(problem, AVX512)
    assert plan.past_caches
    assert plan.may_stay == staying
    assert ("@near" in lower(plan).ir) == staying


@pytest.mark.usefixtures("any_size_is_large")
@pytest.mark.parametrize(("machine", "dtype", "most"), [(AVX512, "f32", 12), (DOTS, "bf16", 24)])
def test_dot_products_hide_twice_as_many_multiply_adds(machine, dtype, most):
    def staying(channels):
        sizes = {"channels": (64, channels), "layout": "NXC", "dtype": dtype, "out_dtype": dtype}
        return choose(problem_of(X, (12, 48), (12, 48), (1, 1), **sizes), machine).may_stay

    assert [staying(channels) for channels in (most - 2, most, most + 2)] == [True, True, False]


def test_matrix_tiles_do_not_look():
    problem = problem_of(X, (64, 256), (64, 256), (1, 1), channels=(64, 8), layout="NXC")
    on_tiles = [plan for plan in variants(problem, machine_for("amx")) if plan.ON_UNITS]
    assert on_tiles
    assert all(plan.hidden_products == 0 and not plan.may_stay for plan in on_tiles)


def test_nobody_looks_for_what_caches_cannot_hold_or_always_do():
    problem = problem_of(X, (64, 128), (64, 128), (3, 3), channels=(64, 1), layout="NXC", **SAME)
    staying = {}
    for images in (1, 2, 8, 10):
        one = replace(problem, batch=images)
        plan = choose(one, AVX512)
        staying[4 * prod(one.shapes["x"]) >> 20] = plan.may_stay
    assert staying == {2: False, 4: True, 16: True, 20: False}
    plan = choose(replace(problem, batch=2), machine_for("avx2"))
    assert not plan.may_stay
