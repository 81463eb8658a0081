"""Large results that are stored past the caches: where they can be, fenced, and the same numbers wherever they lie."""

from dataclasses import replace
from math import prod
from types import SimpleNamespace

import numpy as np
import pytest

import convgrad
import convgrad.plan.general.data
import convgrad.plan.general.weights
from codegen.dense_problems import SAME, W, X, Y, problem_of
from codegen.emitted import HOST_ISAS, run_here
from codegen.kinds_of_plans import KINDS
from codegen.random_problems import check, solve
from convgrad.codegen.lower import lower
from convgrad.dtypes import SIZES
from convgrad.plan.choose import choose
from convgrad.plan.machine import machine_for

LARGE, _ = KINDS["weights, past the caches"]


def ir_of(problem, isa):
    return lower(choose(problem, machine_for(isa))).ir


def test_stores_past_the_caches_are_fenced():
    ir = ir_of(LARGE, "avx512")
    assert "!nontemporal" in ir
    assert ir.index("!nontemporal") < ir.index("sfence")


def test_small_weights_and_other_sets_have_none():
    small, _ = KINDS["weights, from registers"]
    assert "!nontemporal" not in ir_of(small, "avx512") + ir_of(LARGE, "portable") + ir_of(LARGE, "neon")


def test_vectors_shorter_than_lines_are_not_stored_past_the_caches():
    """Three of AVX2 are a line and a half, whose half waits for memory, however many windows a weight is a sum of."""
    for batch in (1, 32):
        assert "!nontemporal" in ir_of(replace(LARGE, batch=batch), "avx512")
        assert "!nontemporal" not in ir_of(replace(LARGE, batch=batch), "avx2")


@pytest.mark.parametrize("offset", [0, 1, 3])
def test_weights_are_the_same_wherever_they_lie(offset):
    rng = np.random.default_rng(offset)
    src = rng.integers(-3, 4, (1, 3, 500)).astype(np.float32)
    diff_dst = rng.integers(-3, 4, (1, 3, 2112)).astype(np.float32)
    room = np.full(500 * 2112 + 32, np.nan, np.float32)
    start = (-room.ctypes.data // 4) % 16 + offset
    out = room[start : start + 500 * 2112].reshape(1, 500, 2112)
    convgrad.convolution_backward_weights(
        src, diff_dst, weights_shape=out.shape, out=out, strides=[1], pads_begin=[0], pads_end=[0], dilations=[1],
        data_format="NXC", weights_format="XIO",
    )  # fmt: skip
    np.testing.assert_array_equal(out[0], src[0].T @ diff_dst[0])
    assert np.isnan(room[:start]).all()
    assert np.isnan(room[start + 500 * 2112 :]).all()


# --- outputs

OUTPUTS = {  # by how lines are written
    "tiles": problem_of(Y, (3, 41), (3, 41), (1, 1), channels=(19, 80), layout="NXC"),
    "tiles in phases": problem_of(X, (6, 26), (3, 13), (2, 2), channels=(64, 19), stride=2, layout="NXC"),
    "tiles across groups": problem_of(Y, (9, 57), (9, 57), (3, 3), channels=(1, 1), groups=48, layout="NXC", **SAME),
    "vectors": problem_of(Y, (7, 7), (7, 7), (3, 3), channels=(600, 32), layout="NXC", **SAME),
    "squares": problem_of(Y, (9, 32), (9, 32), (3, 3), channels=(64, 64), **SAME),
    "squares in phases": problem_of(X, (12, 32), (6, 16), (4, 4), channels=(40, 33), stride=2, low=1),
    "parts of squares": problem_of(Y, (6, 16), (6, 16), (3, 3), channels=(64, 60), **SAME),
    "phases": problem_of(X, (20, 64), (10, 32), (3, 3), channels=(9, 24), stride=2, low=1),
    "phases, the last ones early": problem_of(X, (20, 80), (10, 40), (3, 3), channels=(5, 24), stride=2, low=1),
    "many phases": problem_of(X, (16, 272), (2, 34), (8, 8), channels=(17, 20), stride=8),
    "turned taps": problem_of(W, (12, 12), (6, 6), (4, 4), channels=(96, 40), stride=2, low=1),
    "turned channels": problem_of(W, (10, 10), (10, 10), (1, 1), channels=(2048, 64)),
    "turned taps of groups": problem_of(W, (12, 12), (6, 6), (4, 4), channels=(32, 24), groups=3, stride=2, low=1),
}


@pytest.fixture
def any_size_is_large(monkeypatch):
    for results in (convgrad.plan.general.data, convgrad.plan.general.weights):
        monkeypatch.setattr(results, "PAST_CACHES_BYTES", 1)


@pytest.mark.usefixtures("any_size_is_large")
@pytest.mark.parametrize("problem", OUTPUTS.values(), ids=OUTPUTS)
def test_stores_of_outputs_are_fenced(problem):
    ir = ir_of(problem, "avx512")
    assert "!nontemporal" in ir
    assert ir.index("!nontemporal") < ir.index("sfence")
    assert "!nontemporal" not in ir_of(problem, "portable") + ir_of(problem, "neon")


def test_small_outputs_stay_in_caches():
    for problem in OUTPUTS.values():
        assert "!nontemporal" not in ir_of(problem, "avx512")
    large = problem_of(Y, (1, 13000), (1, 13000), (1, 1), channels=(3, 64), layout="NXC")
    assert SIZES["f32"] * prod(large.shapes["y"]) > convgrad.plan.general.data.PAST_CACHES_BYTES
    assert "!nontemporal" in ir_of(large, "avx512")


@pytest.mark.usefixtures("any_size_is_large")
def test_lines_of_weights_of_which_a_part_is_written_at_once_stay_in_caches():
    """Of 27 taps of a channel the last ones are a part of one."""
    whole = problem_of(W, (12, 12), (6, 6), (4, 4), channels=(96, 40), stride=2, low=1)
    part = problem_of(W, (14, 14, 14), (7, 7, 7), (3, 3, 3), channels=(96, 48), stride=2, low=1)
    assert ["!nontemporal" in ir_of(problem, "avx512") for problem in (whole, part)] == [True, False]


@pytest.mark.usefixtures("any_size_is_large")
def test_lines_of_several_groups_stay_in_caches():
    """A task of one group would write a part of them past what the other part is kept in."""
    for channels, alone in ((24, False), (32, True)):
        problem = problem_of(Y, (9, 57), (9, 57), (3, 3), channels=(20, channels), groups=2, layout="NXC", **SAME)
        assert ("!nontemporal" in ir_of(problem, "avx512")) == alone


@pytest.mark.usefixtures("any_size_is_large")
@pytest.mark.parametrize("isa", HOST_ISAS)
@pytest.mark.parametrize("problem", OUTPUTS.values(), ids=OUTPUTS)
def test_outputs_past_the_caches_are_exact(problem, isa):
    check(problem, isa)
    check(problem, isa, alter=1, low=True)


@pytest.mark.usefixtures("any_size_is_large")
@pytest.mark.parametrize("offset", [0, 1, 8])
@pytest.mark.parametrize("problem", OUTPUTS.values(), ids=OUTPUTS)
def test_outputs_are_the_same_wherever_they_lie(problem, offset):
    """Aligned to less than a cache line they are stored as usual."""
    rng, unknown = np.random.default_rng(offset), problem.unknown.value
    arrays, views = {}, {}
    for name, shape in problem.shapes.items():
        room = np.full(prod(shape) + 64, np.nan, np.float32)
        start = (-room.ctypes.data // 4) % 16 + (offset if name == unknown else 0)
        steps = [4 * step for step in problem.strides[name]]
        views[name] = np.ndarray(shape, np.float32, room, 4 * start, steps)
        arrays[name] = SimpleNamespace(address=room.ctypes.data + 4 * start, room=room, start=start)
        if name != unknown:
            views[name][...] = rng.integers(-2, 3, shape)
    exact = solve(problem, **{name: None if name == unknown else views[name].astype(float) for name in "xwy"})
    machine = machine_for(HOST_ISAS[-1])
    run_here(lower(choose(problem, machine)), machine, [*(arrays[name] for name in "xwy"), None])
    np.testing.assert_array_equal(views[unknown], exact)
    room, start = arrays[unknown].room, arrays[unknown].start
    assert np.isnan(room[:start]).all()
    assert np.isnan(room[start + exact.size :]).all()
