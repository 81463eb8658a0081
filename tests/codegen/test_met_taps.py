"""Weights of taps that lie beside the image for every output are not packed: 3x3 on one position, far dilations."""

from dataclasses import replace

import numpy as np
import pytest

from codegen.buffers import StridedArray
from codegen.dense_problems import problem_of
from codegen.emitted import HOST_ISAS, each_isa
from codegen.random_problems import check_plan, run_here
from convgrad.codegen.lower import lower
from convgrad.plan.axes import gather_axes
from convgrad.plan.choose import variants
from convgrad.plan.general.data import DataPlan
from convgrad.plan.machine import machine_for
from convgrad.problem.conv import Unknown

# image, windows, taps, stride, dilation, low; and which taps are met, solving for Y or X
AXES = {
    "a single position": (((1, 1), (1, 1), (3, 3), 1, 1, 1), [(1, 2), (1, 2)]),
    "halved to a single position": (((2, 2), (1, 1), (4, 4), 2, 1, 1), [(1, 3), (1, 3)]),
    "taps farther apart than the image is long": (((6, 7), (6, 7), (3, 5), 1, (9, 7), (9, 14)), [(1, 2), (2, 3)]),
    "causal": (((5,), (5,), (4,), 1, 4, 12), [(2, 4)]),
    "some of a volume": (((1, 4, 2), (1, 4, 2), (3, 3, 5), 1, 1, (0, 1, 2)), [(0, 1), (0, 3), (1, 4)]),
}
BOTH = pytest.mark.parametrize("unknown", [Unknown.X, Unknown.Y])


def case(name, unknown, **others):
    (*extents, stride, dilation, low), met = AXES[name]
    return problem_of(unknown, *extents, stride=stride, dilation=dilation, low=low, **others), met


@BOTH
@pytest.mark.parametrize("name", AXES)
def test_which_taps_are_met(name, unknown):
    problem, met = case(name, unknown)
    assert [(axis.met_taps.start, axis.met_taps.stop) for axis in gather_axes(problem)[1:]] == met


def test_none_is_met_where_windows_lie_beside_the_image():
    assert gather_axes(problem_of(Unknown.Y, (2,), (2,), (2,), low=9))[1].met_taps == range(0)


def packing(problem, machine):
    """The plans of the general kind, which pack weights in either way."""
    for plan in variants(problem, machine):
        if type(plan) is DataPlan and plan.bundle == 1:
            yield replace(plan, packs_weights=False, reads_weights=False)
            if not plan.spread:
                yield replace(plan, packs_weights=True, reads_weights=False)


def packed(layout, *axes):
    """First and last of each axis, and how many at a time, of an axis by its extents of x and y, taps, stride, low."""
    image, windows, taps, stride, low = zip(*axes, strict=True)
    problem = problem_of(Unknown.Y, image, windows, taps, stride=stride, low=low, channels=(37, 40), layout=layout)
    plan = next(plan for plan in variants(problem, machine_for("portable")) if type(plan) is DataPlan)
    met, at_once = plan.packed_taps
    return [(r.start, r.stop) for r in met], at_once


def test_what_is_packed_at_a_time():
    """Near taps in one run if they are half of a kernel at most, a single one alone, others row by row."""
    halved, single, most, every = (2, 1, 4, 2, 1), (1, 1, 3, 1, 1), (3, 1, 5, 3, 2), (9, 9, 3, 1, 1)
    assert packed("NXC", halved, halved) == ([(1, 3), (1, 3)], (1, 2))
    assert packed("NCX", halved, halved) == ([(1, 3), (0, 4)], (2, 4))
    assert packed("NCX", single, single) == ([(1, 2), (1, 2)], (1, 1))
    assert packed("NCX", most, every) == ([(0, 5), (0, 3)], (5, 3))
    assert packed("NXC", most, every) == ([(2, 5), (0, 3)], (3, 3))
    assert packed("NCX", every, every) == packed("NXC", every, every) == ([(0, 3), (0, 3)], (3, 3))


@each_isa
@BOTH
@pytest.mark.parametrize("layout", ["NCX", "NXC"])
@pytest.mark.parametrize("name", AXES)
def test_results_are_exact(name, layout, unknown, isa):
    seed = (list(AXES).index(name) + (layout == "NXC") + HOST_ISAS.index(isa)) % 2
    dtype, channels, groups = (("f32", (20, 37), 2), ("f16", (37, 20), 1))[seed]
    problem, _ = case(
        name, unknown, channels=channels, groups=groups, batch=3, layout=layout, bias=True, dtype=dtype,
        out_dtype=dtype,
    )  # fmt: skip
    plans = list(packing(problem, machine_for(isa)))
    assert plans
    for plan in plans:
        check_plan(problem, plan, machine_for(isa), seed)


@each_isa
@BOTH
@pytest.mark.parametrize("low", [False, True], ids=["before a guard page", "behind a guard page"])
def test_others_are_not_read(low, unknown, isa):
    """Memory ends with what is met of the outermost axis of the weights."""
    problem, ((first, stop), *_) = case("a single position", unknown, channels=(24, 24), batch=2, layout="NXC")
    machine, rng = machine_for(isa), np.random.default_rng(1)
    plan = next(packing(problem, machine))
    arrays = {name: StridedArray(problem.shapes[name], problem.strides[name], np.float32) for name in "xy"}
    shape, strides = list(problem.shapes["w"]), problem.w_strides
    shape[3] = stop - first
    arrays["w"] = StridedArray(shape, strides, np.float32, low=low)
    for array in arrays.values():
        array.view[...] = rng.integers(-2, 3, array.view.shape)
    arrays["w"].address -= 4 * first * strides[3]
    run_here(lower(plan), machine, [*(arrays[name] for name in "xwy"), None])
    x, w, y = (arrays[name].view for name in "xwy")
    w, x, y = w[0, :, :, 0, 1], x[:, 0, :, 0, 0], y[:, 0, :, 0, 0]
    np.testing.assert_array_equal(*((y, x @ w.T) if unknown is Unknown.Y else (x, y @ w)))
