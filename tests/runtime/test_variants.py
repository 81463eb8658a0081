"""Variants of plans: every one computes the definition, with the same bits on any number of threads."""

from collections import Counter

import numpy as np
import pytest

from convgrad.dtypes import numpy_dtype
from convgrad.plan.choose import variants
from convgrad.plan.depthwise.plane_data import PlaneDataPlan
from convgrad.plan.depthwise.plane_weights import PlaneWeightsPlan
from convgrad.plan.few_channels.folded import FoldedPlan
from convgrad.plan.few_channels.window_lanes import WindowLanesPlan
from convgrad.plan.machine import current_machine
from convgrad.problem.canonicalize import ROLES
from convgrad.runtime import kernel, set_num_threads
from runtime.variant_cases import GEOMETRIES, OPS, case

pytestmark = pytest.mark.usefixtures("cache_folder", "team")


def call(made, op, problem, inputs, shape):
    result = np.full(shape, np.nan, numpy_dtype(problem.out_dtype))
    addresses = dict(zip(ROLES[op], [array.ctypes.data for array in (*inputs[:2], result)], strict=True))
    made(addresses["x"], addresses["w"], addresses["y"], inputs[2].ctypes.data if len(inputs) > 2 else 0)
    return result


def kind(plan):
    if isinstance(plan, PlaneDataPlan | PlaneWeightsPlan | FoldedPlan | WindowLanesPlan):
        return type(plan).__name__
    if hasattr(plan, "lane_side"):
        return f"weights, {plan.lane_side}{' across groups' if plan.spread else ''}{' in place' * plan.direct}"
    return "outputs" if plan.pixels else f"{'groups' if plan.spread else 'channels'}{' in place' * plan.reads_in_place}"


@pytest.mark.parametrize("geometry", GEOMETRIES)
@pytest.mark.parametrize("op", OPS)
def test_every_variant_computes_the_definition_on_any_number_of_threads(op, geometry, rng):
    """In one layout or the other, so that both unknowns of data, and those of weights, meet a geometry in both."""
    data_format = "NXC" if (OPS.index(op) // 3 + list(GEOMETRIES).index(geometry)) % 2 else "NCX"
    problem, inputs, exact = case(op, geometry, data_format, rng)
    plans = list(variants(problem, current_machine()))
    assert len(plans) >= 2
    for variant, plan in enumerate(plans):
        made = kernel.kernel_of_variant(problem, current_machine(), variant)
        for threads in (1, 2, 5):
            set_num_threads(threads)
            result = call(made, op, problem, inputs, exact.shape)
            np.testing.assert_array_equal(result, exact, err_msg=f"{problem} as {plan} on {threads} threads")


def test_these_geometries_have_every_kind_of_variant(rng):
    found = Counter()
    for op in OPS:
        for geometry in GEOMETRIES:
            for data_format in ("NCX", "NXC"):
                problem, *_ = case(op, geometry, data_format, rng)
                found.update(kind(plan) for plan in variants(problem, current_machine()))
    assert {"outputs", "groups", "groups in place", "channels", "weights, x", "weights, y"} <= set(found)
    assert {"weights, y across groups", "weights, y across groups in place"} <= set(found)
    assert {"PlaneDataPlan", "PlaneWeightsPlan", "FoldedPlan", "WindowLanesPlan"} <= set(found)


@pytest.mark.parametrize(("dtype", "out_dtype"), [("f64", "f64"), ("bf16", "f32"), ("f16", "f32")])
@pytest.mark.parametrize("op", OPS)
def test_every_variant_computes_the_definition_in_other_types(op, dtype, out_dtype, rng):
    bias = not op.endswith("Weights") and "Backward" not in op
    problem, inputs, exact = case(op, "strided", "NXC", rng, bias, dtype=dtype, out_dtype=out_dtype)
    for variant, plan in enumerate(variants(problem, current_machine())):
        made = kernel.kernel_of_variant(problem, current_machine(), variant)
        result = call(made, op, problem, inputs, exact.shape)
        np.testing.assert_array_equal(result, exact, err_msg=f"{problem} as {plan}")


@pytest.mark.parametrize("op", OPS)
def test_a_variant_has_the_same_bits_on_any_number_of_threads(op, rng):
    problem, inputs, exact = case(op, "dense", "NCX", rng)
    inputs = [rng.standard_normal(array.shape).astype(array.dtype) for array in inputs]
    for variant, _ in enumerate(variants(problem, current_machine())):
        made = kernel.kernel_of_variant(problem, current_machine(), variant)
        results = []
        for threads in (1, 2, 3, 7):
            set_num_threads(threads)
            results.append(call(made, op, problem, inputs, exact.shape).tobytes())
        assert len(set(results)) == 1
