"""Weights of so many taps that they are put in order some taps, or some pairs of channels, at a time."""

from dataclasses import replace

import pytest

from codegen.dense_problems import problem_of
from codegen.random_problems import check
from convgrad.codegen.lower import stages_of
from convgrad.plan.general.room import MOST_STAGED_BYTES
from convgrad.problem.conv import Unknown

SQUARE = {"image": (3, 5), "windows": (2, 3), "stride": (2, 2)}
ROW = {"image": (40,), "windows": (5,), "stride": (3,)}
MANY = {  # variant, instruction set, type; unknown, taps, channels, where windows begin, and the rest
    "to pack": (0, "avx512", "f32", Unknown.X, (97, 91), (17, 5), (88, 30), SQUARE),
    "to pack a row": (0, "avx512", "f32", Unknown.Y, (20011,), (3, 17), (16380,), ROW),
    "to write": (0, "avx512", "f32", Unknown.W, (133, 151), (5, 17), (53, 70), SQUARE),
    "to write, of both sides": (1, "avx512", "f32", Unknown.W, (133, 151), (5, 17), (108, 70), SQUARE),
    "pieces": (1, "amx_emulated", "f32", Unknown.X, (17, 18), (32, 40), (14, 8), SQUARE),
    "pieces of a row": (2, "amx_emulated", "f32", Unknown.Y, (600,), (40, 33), (510,), ROW),
    "pairs": (0, "avx512_bf16_emulated", "bf16", Unknown.X, (47, 48), (32, 40), (16, 8), SQUARE),
    "pairs, of odd taps": (0, "avx512_bf16_emulated", "bf16", Unknown.Y, (2099,), (40, 33), (1000,), ROW),
    "pairs on tiles": (0, "amx_emulated", "bf16", Unknown.X, (37, 37), (32, 40), (16, 8), SQUARE),
    "no room for a pair": (1, "avx512_bf16_emulated", "bf16", Unknown.Y, (17000,), (4, 17), (8000,), ROW),
}


@pytest.mark.parametrize(
    ("variant", "isa", "dtype", "unknown", "taps", "channels", "low", "rest"), MANY.values(), ids=MANY
)
def test_weights_of_many_taps_are_exact(variant, isa, dtype, unknown, taps, channels, low, rest):
    problem = problem_of(unknown, taps=taps, channels=channels, low=low, layout="NXC", weights="NCX", **rest)
    plan = check(replace(problem, dtype=dtype, out_dtype=dtype), isa, variant=variant)
    assert plan.staged_bytes <= 2 * MOST_STAGED_BYTES
    assert stages_of(plan).scratch_bytes <= plan.work_bytes[1] + plan.weights_bytes[1] + 4096
