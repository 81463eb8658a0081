"""Tuning: the fastest variant is found, and what is decided is kept, used and forgotten."""

import os
import sys
from dataclasses import replace

import numpy as np
import pytest

from convgrad.plan.choose import variants
from convgrad.plan.machine import current_machine
from convgrad.runtime import cache, decisions, kernel, kernel_for, tuning
from runtime.variant_cases import case

pytestmark = pytest.mark.usefixtures("cache_folder", "team", "vectors")


@pytest.fixture
def problem(rng):
    kernel.forget()
    yield case("Convolution", "dense", "NCX", rng)[0]
    kernel.forget()


@pytest.fixture
def second_is_fastest(monkeypatch):
    monkeypatch.setattr(tuning, "race", lambda calls, seconds: (2.0, 1.0, *[3.0] * len(calls))[: len(calls)])


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

    slow, fast = tuning.race([waiting("slow"), waiting("fast")], 0.1)
    assert slow > 10 * fast
    assert order[:8] == ["slow", "fast"] * 4  # once to warm up, once to count calls, two rounds
    assert set(order[8:]) == {"fast"}


def test_arrays_hold_what_strides_reach(rng):
    problem, *_ = case("Convolution", "dense", "NCX", rng, bias=True)
    backwards = replace(problem, x_strides=(0, 0, *(-step for step in problem.x_strides[2:])), bias_stride=3)
    arrays = tuning.Arrays(backwards)
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
    arrays = tuning.Arrays(asked)
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
    monkeypatch.setattr(tuning, "race", lambda calls, seconds: (1.0,) * len(calls))
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
tuning.race = lambda calls, seconds: (2.0, 1.0)
print(tuning.tune(made.problem).chosen)
"""
TELL = """
from tiny_kernels import llvm_is_here
loaded = ["LLVM"] * llvm_is_here() + ["planning"] * ("convgrad.plan.choose" in sys.modules)
print(made.from_disk, made.scratch_bytes, *loaded)
"""


@pytest.mark.this_processor
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
