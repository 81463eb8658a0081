"""Variants of plans: every one computes the definition, and what tuning decides is kept, used and forgotten."""

import os
import sys
from collections import Counter
from dataclasses import replace

import numpy as np
import pytest

from convgrad.dtypes import numpy_dtype
from convgrad.plan.choose import variants
from convgrad.plan.folded import FoldedPlan
from convgrad.plan.machine import current_machine
from convgrad.plan.plane_data import PlaneDataPlan
from convgrad.plan.plane_weights import PlaneWeightsPlan
from convgrad.plan.window_lanes import WindowLanesPlan
from convgrad.problem.canonicalize import ROLES, canonicalize
from convgrad.runtime import cache, decisions, kernel, kernel_for, set_num_threads, tuning
from convgrad.spec.definition import define
from convgrad.spec.resolve import resolve

pytestmark = pytest.mark.usefixtures("cache_folder", "team")

GEOMETRIES = {  # batch, groups, image and window channels of a group, extent, kernel, stride, pads, dilation
    "dense": (2, 1, 9, 18, (7, 19), (3, 3), (1, 1), (1, 0), (1, 1)),
    "strided": (2, 2, 5, 3, (11, 20), (3, 2), (2, 3), (1, 0), (1, 2)),
    "strided, few channels": (2, 1, 3, 5, (9, 20), (3, 4), (2, 2), (1, 1), (1, 1)),
    "depthwise": (2, 34, 1, 1, (6, 9), (3, 3), (1, 1), (1, 1), (1, 1)),
    "depthwise in whole vectors": (1, 32, 1, 1, (5, 9), (3, 3), (1, 1), (1, 1), (1, 1)),
    "few channels of many groups": (1, 18, 2, 2, (5, 18), (2, 3), (1, 2), (0, 2), (2, 1)),
}
OPS = [op for op in ROLES if op != "BiasAddBackward"]


def case(op, geometry, data_format, rng, bias=False, **types):
    """A problem, its inputs and its exact result, on small integers."""
    batch, groups, image, window, extent, taps, stride, pads, dilation = GEOMETRIES[geometry]
    reach = [(t - 1) * d + 1 for t, d in zip(taps, dilation, strict=True)]
    room = [e + 2 * p - r for e, p, r in zip(extent, pads, reach, strict=True)]
    windows = [r // s + 1 for r, s in zip(room, stride, strict=True)]

    def activation(channels, spatial):
        return (batch, channels, *spatial) if data_format == "NCX" else (batch, *spatial, channels)

    transposed = op.startswith("ConvTranspose")
    shapes = {
        "x": activation(groups * image, extent),
        "w": (groups * window, image, *taps),
        "y": activation(groups * window, windows),
    }
    *given, solved = ROLES[op]
    attributes = {
        "strides": stride, "pads_begin": pads, "pads_end": pads, "dilations": dilation, "groups": groups,
        "data_format": data_format, "weights_format": "IOX" if transposed else "OIX",
    }  # fmt: skip
    if transposed:
        attributes["output_padding"] = [r % s for r, s in zip(room, stride, strict=True)]
    dtype = types.get("dtype", "f32")
    inputs = [rng.integers(-2, 3, shapes[name]).astype(numpy_dtype(dtype)) for name in given]
    if bias:
        channels = groups * (image if solved == "x" else window)
        inputs.append(rng.integers(-9, 10, channels).astype(numpy_dtype(dtype)))
    resolved = resolve(op, attributes, [array.shape for array in inputs], output_shape=shapes[solved])
    exact = np.ascontiguousarray(define(resolved, inputs))
    problem = canonicalize(
        resolved,
        input_strides=[strides(array) for array in inputs[:2]],
        output_strides=strides(exact),
        dtype=dtype,
        out_dtype=types.get("out_dtype", dtype),
        bias_stride=1 if bias else None,
    )
    return problem, inputs, exact


def strides(array):
    return tuple(step // array.itemsize for step in array.strides)


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


@pytest.mark.parametrize("data_format", ["NCX", "NXC"])
@pytest.mark.parametrize("geometry", GEOMETRIES)
@pytest.mark.parametrize("op", OPS)
def test_every_variant_computes_the_definition_on_any_number_of_threads(op, geometry, data_format, rng):
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


# --- decisions


@pytest.fixture
def problem(rng):
    kernel.forget()
    yield case("Convolution", "dense", "NCX", rng)[0]
    kernel.forget()


@pytest.fixture
def second_is_fastest(monkeypatch):
    monkeypatch.setattr(tuning, "_race", lambda calls, seconds: (2.0, 1.0, *[3.0] * len(calls))[: len(calls)])


@pytest.fixture
def lowered(monkeypatch):
    """The variants that were compiled, in order."""
    found, original = [], kernel._lower

    def lower(problem, machine, variant=0):
        found.append(variant)
        return original(problem, machine, variant)

    monkeypatch.setattr(kernel, "_lower", lower)
    return found


def decision_files(folder):
    return sorted(folder.glob(f"{decisions.PREFIX}*"))


def test_measured_times_decide(problem):
    tuned = tuning.tune(problem, seconds=0.01)
    assert len(tuned.plans) == len(tuned.seconds) == 2
    assert all(0 < time < 1 for time in tuned.seconds)
    assert all("plan on" in plan and "\n" not in plan for plan in tuned.plans)
    assert tuned.chosen == decisions.variant_of(problem, current_machine())
    assert tuned.gain == tuned.seconds[0] / tuned.seconds[tuned.chosen]
    assert tuned.remembered


@pytest.mark.parametrize(
    ("times", "chosen"), [((1.0,), 0), ((1.0, 0.98), 0), ((1.0, 0.96), 1), ((1.0, 0.9, 0.8), 2), ((1.0, 2.0), 0)]
)
def test_the_prediction_counts_unless_another_is_clearly_faster(times, chosen):
    assert tuning._choose(times) == chosen


def test_calls_take_turns_and_hopeless_ones_are_dropped():
    order, waits = [], {"slow": 0.02, "fast": 0.001}

    def waiting(name):
        def run():
            order.append(name)
            tuning.time.sleep(waits[name])

        return run

    slow, fast = tuning._race([waiting("slow"), waiting("fast")], 0.1)
    assert slow > 10 * fast
    assert order[:8] == ["slow", "fast"] * 4  # once to warm up, once to count calls, two rounds
    assert set(order[8:]) == {"fast"}


def test_arrays_hold_what_strides_reach(rng):
    problem, *_ = case("Convolution", "dense", "NCX", rng, bias=True)
    backwards = replace(problem, x_strides=(0, 0, *(-step for step in problem.x_strides[2:])), bias_stride=3)
    arrays = tuning._Arrays(backwards)
    x, w, y, bias = arrays.held
    reach = sum(
        (extent - 1) * -step for extent, step in zip(problem.shapes["x"][2:], backwards.x_strides[2:], strict=True)
    )
    assert (x.size, w.size, y.size, bias.size) == (reach + 1, 18 * 9 * 9, 2 * 18 * 7 * 17, 17 * 3 + 1)
    assert arrays.addresses == (x.ctypes.data + 4 * reach, w.ctypes.data, y.ctypes.data, bias.ctypes.data)
    assert all(array.ctypes.data % 64 == 0 and np.isfinite(array).all() for array in arrays.held)


@pytest.mark.parametrize("changes", [{"accumulate": True}, {"bias": True}, {"x_strides": (0, 0, 0, 0, 0)}], ids=str)
def test_unusual_problems_are_tuned(problem, changes):
    assert len(tuning.tune(replace(problem, **changes), seconds=0.001).seconds) == 2


@pytest.mark.parametrize("of", "xy")
def test_problems_with_two_results_are_tuned(of, rng):
    problem, *_ = case("ConvolutionBackwardWeights", "dense", "NCX", rng)
    asked = replace(problem, bias_gradient=of, bias_stride=-2)
    arrays = tuning._Arrays(asked)
    channels = problem.groups * {"x": problem.x_channels, "y": problem.y_channels}[of]
    assert arrays.held[3].size == 2 * channels - 1
    assert arrays.addresses[3] == arrays.held[3].ctypes.data + 4 * 2 * (channels - 1)
    assert len(tuning.tune(asked, seconds=0.001).seconds) == len(list(variants(asked, current_machine()))) >= 2


@pytest.mark.usefixtures("second_is_fastest")
def test_a_decision_is_used_by_kernels_made_later(problem, lowered):
    before = kernel_for(problem)
    assert tuning.tune(problem).chosen == 1
    after = kernel_for(problem)
    assert after is not before
    assert after.from_disk  # tuning compiled it
    assert lowered == [0, 1]
    kernel.forget()
    cache.clear()
    kernel_for(problem)
    assert lowered == [0, 1, 0]


@pytest.mark.usefixtures("second_is_fastest")
def test_kernels_of_variants_do_not_mix_on_disk(problem):
    tuning.tune(problem)
    first, second = (kernel.kernel_of_variant(problem, current_machine(), variant) for variant in (0, 1))
    assert first.from_disk
    assert second.from_disk
    assert first.scratch_bytes != second.scratch_bytes


@pytest.mark.usefixtures("second_is_fastest")
def test_without_a_disk_a_decision_holds_for_the_process(problem, lowered, monkeypatch):
    monkeypatch.setenv("CONVGRAD_CACHE_DIR", "off")
    assert not tuning.tune(problem).remembered
    kernel_for(problem)
    assert lowered == [0, 1, 1]
    assert tuning.forget(problem)
    kernel_for(problem)
    assert lowered == [0, 1, 1, 0]
    assert not tuning.forget(problem)


@pytest.mark.usefixtures("second_is_fastest")
def test_a_disk_that_is_full_is_no_failure(problem, monkeypatch):
    def full(*_):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "replace", full)
    tuned = tuning.tune(problem)
    assert (tuned.chosen, tuned.remembered) == (1, False)
    assert "No space left" in cache.last_failure()


@pytest.mark.usefixtures("second_is_fastest")
def test_forgetting_goes_back_to_the_prediction(problem, cache_folder):
    tuning.tune(problem)
    tuned = kernel_for(problem)
    assert tuning.forget(problem)
    assert not tuning.forget(problem)
    assert not decision_files(cache_folder)
    assert kernel_for(problem) is not tuned
    assert kernel_for(problem).scratch_bytes != tuned.scratch_bytes


@pytest.mark.usefixtures("second_is_fastest")
def test_everything_can_be_forgotten(problem, cache_folder):
    others = [problem, replace(problem, bias=True)]
    for other in others:
        tuning.tune(other)
    assert len(decision_files(cache_folder)) == 2
    kernels, _ = cache.size()
    assert tuning.forget_all() == 2
    assert [decisions.variant_of(other, current_machine()) for other in others] == [0, 0]
    assert cache.size()[0] == kernels - 2
    assert tuning.forget_all() == 0


@pytest.mark.usefixtures("second_is_fastest")
def test_another_verdict_replaces_the_first(problem, monkeypatch):
    tuning.tune(problem)
    monkeypatch.setattr(tuning, "_race", lambda calls, seconds: (1.0,) * len(calls))
    assert tuning.tune(problem).chosen == 0
    decisions.forget_in_memory()
    assert decisions.variant_of(problem, current_machine()) == 0


@pytest.mark.parametrize("variant", [-1, 64, 10**30, True, "1", None, [1]])
def test_a_file_that_makes_no_sense_is_no_decision(problem, variant):
    machine = current_machine()
    cache.write(decisions._key(problem, machine), cache.Entry(b"", {"variant": variant}))
    assert decisions.variant_of(problem, machine) == 0


def test_a_variant_that_there_is_not_is_the_first(problem, lowered):
    decisions.remember(problem, current_machine(), 7)
    made = kernel_for(problem)
    assert lowered == [7]
    assert made.scratch_bytes == kernel.kernel_of_variant(problem, current_machine(), 0).scratch_bytes


def test_a_damaged_file_is_no_decision(problem, cache_folder):
    machine = current_machine()
    assert decisions.remember(problem, machine, 1)
    decisions.forget_in_memory()
    assert decisions.variant_of(problem, machine) == 1
    (file,) = decision_files(cache_folder)
    whole = file.read_bytes()
    for position in range(0, len(whole), 7):
        file.write_bytes(whole[:position] + bytes([whole[position] ^ 1]) + whole[position + 1 :])
        assert decisions.variant_of(problem, machine) == 0, position
    for length in (0, 20, len(whole) - 1):
        file.write_bytes(whole[:length])
        assert decisions.variant_of(problem, machine) == 0, length


@pytest.mark.skipif(os.name != "posix", reason="permissions of POSIX")
def test_a_file_that_others_may_write_to_is_no_decision(problem, cache_folder):
    decisions.remember(problem, current_machine(), 1)
    decisions.forget_in_memory()
    decision_files(cache_folder)[0].chmod(0o666)
    assert decisions.variant_of(problem, current_machine()) == 0


def test_a_decision_counts_for_its_machine_and_version_only(problem, monkeypatch):
    here = current_machine()
    decisions.remember(problem, here, 1)
    decisions.forget_in_memory()
    assert decisions.variant_of(problem, replace(here, l2_bytes=here.l2_bytes // 2)) == 0
    monkeypatch.setattr(cache, "code_version", lambda: "convgrad 99")
    assert decisions.variant_of(problem, here) == 0


USE = """
import sys
import numpy as np
import convgrad
from convgrad.runtime import kernel
x, w = np.ones((1, 16, 9, 9), np.float32), np.ones((32, 16, 3, 3), np.float32)
convgrad.convolution(x, w, strides=[1, 1], pads_begin=[1, 1], pads_end=[1, 1], dilations=[1, 1],
                     data_format="NCX", weights_format="OIX")
(made,) = kernel._kernels.values()
"""
TUNE = """
from convgrad.runtime import decisions, tuning
tuning._race = lambda calls, seconds: (2.0, 1.0)
print(tuning.tune(made.problem).chosen)
"""
TELL = """
loaded = [name for name in ("llvmlite.binding", "convgrad.plan.choose") if name in sys.modules]
print(made.from_disk, made.scratch_bytes, *loaded)
"""


def test_a_new_process_follows_a_decision_without_a_compiler(python, finish):
    finish(python("from convgrad.runtime.threads import team; team.start()"))  # compiles the workers, once and for all
    first, before, *_ = finish(python(USE + TELL)).split()
    assert first == "False"
    assert finish(python(USE + TELL)).split()[1] == before
    assert finish(python(USE + TUNE)).split() == ["1"]
    from_disk, after, *loaded = finish(python(USE + TELL)).split()
    assert from_disk == "True"
    assert after != before
    if sys.platform.startswith("linux"):
        assert not loaded
