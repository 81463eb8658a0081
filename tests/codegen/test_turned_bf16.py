"""Squares of bf16 turned in registers: results as they are rounded, windows and channels as they are packed."""

from dataclasses import replace

import numpy as np
import pytest

import convgrad.plan.general.weights
from codegen.buffers import StridedArray
from codegen.copies import assert_copied, box_copy, boxes, copy_of, run_copy, whole_numbers
from codegen.dense_problems import W, Y, problem_of
from codegen.emitted import HOST_ISAS
from codegen.matrix_checks import needs_tiles, plan_of
from codegen.random_problems import check_plan
from convgrad.codegen.copies.copying import Dim
from convgrad.codegen.copies.paired_copies import paired_copy
from convgrad.codegen.copies.paired_windows import PairedRuns
from convgrad.codegen.copies.splitting import room_for_squares
from convgrad.codegen.isa import ISAS
from convgrad.dtypes import numpy_dtype
from convgrad.plan.machine import machine_for

BF16 = numpy_dtype("bf16")
WIDE = [isa for isa in HOST_ISAS if ISAS[isa].assembly and ISAS[isa].lanes("f32") == 16]
each_wide = pytest.mark.parametrize("isa", WIDE)
known_or_not = pytest.mark.parametrize("known", [True, False], ids=["known", "unknown"])


def random_numbers(shape):
    """That bf16 does not hold, halves among them."""
    return np.random.default_rng(4).integers(-(2**12), 2**12, shape).astype(np.float32)


@pytest.mark.skipif("avx512_bf16" not in HOST_ISAS, reason="the processor does not round to bf16")
@known_or_not
@pytest.mark.parametrize("past_caches", [False, True], ids=["", "past caches"])
def test_ordinary_results_are_rounded_to_nearest_as_they_are_turned(past_caches, known):
    for rows, columns, gap in (
        (32, 16, 0),
        (64, 32, 0),
        (47, 20, 1),
        (96, 17, 0),
        (31, 16, 1),
        (40, 15, 0),
        (9, 16, 0),
    ):
        strides = (columns + 3, 1), (1, rows + gap)
        source, target, _ = boxes((rows, columns), *strides, ("f32", "bf16"), False, low=known)
        source.view[...] = random_numbers((rows, columns))
        copy = replace(copy_of("avx512_bf16", "f32", "bf16"), ordinary=True)
        run_copy("avx512_bf16", source, target, (rows, columns), (known, known), box_copy(copy, *strides))
        assert_copied(target, source.view.astype(BF16).astype(np.float64))


def runs_of(b, isa):
    """Copies to runs of windows."""
    pairs = paired_copy(ISAS[isa], "bf16", None, room_for_squares(b, 16))
    return PairedRuns(pairs=pairs, numbers=copy_of(isa, "bf16", "bf16"))


@each_wide
@known_or_not
def test_channels_side_by_side_become_runs_of_windows(known, isa):
    """Of rows of windows: long ones, short ones two at a time, and as few as are left to other copies."""
    for channels, rows, windows in (
        (16, 1, 32),
        (40, 3, 33),
        (17, 2, 7),
        (16, 5, 16),
        (33, 1, 20),
        (5, 2, 9),
        (16, 2, 3),
    ):
        shape, row = (rows, windows, channels), windows + windows % 2 + 2
        strides = (windows * channels + 4, channels, 1), (row, 1, rows * row + 2)
        source, target, expected = boxes(shape, *strides, ("bf16", "bf16"), False, low=known)

        def emit(b, src, dst, extents, strides=strides):
            of_rows, of_windows, of_channels = (Dim(*one) for one in zip(extents, *strides, strict=True))
            runs_of(b, isa).emit(b, src, dst, [of_channels, of_rows, of_windows])

        run_copy(isa, source, target, shape, (True, known, True), emit)
        assert_copied(target, expected)


@each_wide
@known_or_not
def test_every_so_many_windows_are_dealt_and_picked(known, isa):
    for step, run in ((2, 130), (2, 31), (3, 100), (4, 257), (8, 300), (8, 5)):
        source = StridedArray((2, run), (run + 1, 1), BF16, low=known)
        source.view[...] = whole_numbers((2, run), "bf16")
        pitch = -(-run // step)
        planes = StridedArray((2, step, pitch), (step * pitch + 3, pitch, 1), BF16, low=known)
        planes.view[...] = 0
        expected = np.zeros((2, step, pitch))
        for plane in range(step):
            numbers = source.view[:, plane::step].astype(np.float64)
            expected[:, plane, : numbers.shape[1]] = numbers

        def deal(b, src, dst, extents, step=step, pitch=pitch, row=run + 1):
            rows = [Dim(2, row, step * pitch + 3)]
            runs_of(b, isa).emit_planes(b, src, dst, rows, Dim(extents[1], 1, 1), step, pitch)

        run_copy(isa, source, planes, (2, run), (True, known), deal)
        assert_copied(planes, expected)
        if step > 4:
            continue
        many = -(-run // step)
        picked = StridedArray((2, many), (many + 2, 1), BF16, low=known)

        def pick(b, src, dst, extents, step=step, many=many, row=run + 1):
            runs_of(b, isa).emit(b, src, dst, [Dim(2, row, many + 2), Dim(extents[1], step, 1)])

        run_copy(isa, source, picked, (2, many), (True, known), pick)
        assert_copied(picked, source.view[:, ::step].astype(np.float64))


TURNED = {
    "rows of weights in parts": problem_of(W, (12, 13), (12, 13), (3, 3), channels=(80, 40), low=1, batch=2),
    "rows of weights in whole parts": problem_of(W, (9, 9), (9, 9), (2, 3), channels=(64, 64), low=1),
    "channels last": problem_of(W, (21, 37), (10, 18), (3, 4), channels=(33, 17), stride=2, low=1, layout="NXC"),
    "slabs that are filled": problem_of(W, (8, 32), (8, 32), (1, 1), channels=(32, 64), batch=2),
    "slabs that are filled, planes": problem_of(W, (16, 64), (8, 32), (2, 2), channels=(64, 32), stride=2),
    "zeros above rows": problem_of(W, (8, 32), (8, 32), (3, 1), channels=(32, 64), low=(1, 0)),
    "steps that are not whole": problem_of(W, (6, 6), (6, 6), (1, 1), channels=(32, 64)),
    "planes of channels": problem_of(Y, (19, 37), (19, 37), (3, 3), channels=(70, 33), low=1),
    "short rows of planes": problem_of(Y, (7, 7), (7, 7), (3, 3), channels=(64, 32), low=1, batch=2),
}  # fmt: skip


@needs_tiles
@pytest.mark.parametrize("rounds", [False, True], ids=["integers", "the processor"])
@pytest.mark.parametrize("name", TURNED)
def test_plans_on_tiles_are_exact(name, rounds, monkeypatch):
    """Those of processors that round, too, if this one does."""
    if rounds and "avx512_bf16" not in HOST_ISAS:
        pytest.skip("the processor does not round to bf16")
    isa, machine = "amx_emulated", machine_for("amx_emulated")
    if rounds:
        monkeypatch.setitem(ISAS, isa, ISAS["avx512_bf16"])
        machine = replace(machine, features=f"{machine.features},+avx512bf16")
    monkeypatch.setattr(convgrad.plan.general.weights, "FINISH_NUMBERS", 9 * 32 * 32)
    problem = replace(TURNED[name], dtype="bf16", out_dtype="bf16")
    plan = plan_of(problem)
    if problem.unknown is W:
        plan = replace(plan, chunks=1)
        assert plan.fills_slabs == name.startswith("slabs")
        assert plan.taps_inside == (plan.taps > 1 and problem.w_strides[1] != 1)
    check_plan(problem, plan, machine, low=rounds)
