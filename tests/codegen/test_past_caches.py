"""Large weights that are stored past the caches: where they can be, fenced, and the same numbers wherever they lie."""

import numpy as np
import pytest

import convgrad
from codegen.test_kernels import KINDS
from convgrad.codegen.lower import lower
from convgrad.plan.choose import choose
from convgrad.plan.machine import machine_for

LARGE, _ = KINDS["weights, past the caches"]


def ir_of(problem, isa):
    return lower(choose(problem, machine_for(isa))).ir


@pytest.mark.parametrize("isa", ["avx512", "avx2"])
def test_stores_past_the_caches_are_fenced(isa):
    ir = ir_of(LARGE, isa)
    assert "!nontemporal" in ir
    assert ir.index("!nontemporal") < ir.index("sfence")


def test_small_weights_and_other_sets_have_none():
    small, _ = KINDS["weights, from registers"]
    assert "!nontemporal" not in ir_of(small, "avx512") + ir_of(LARGE, "portable") + ir_of(LARGE, "neon")


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
