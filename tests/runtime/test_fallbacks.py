"""Kernels whose data may be beyond them: the one that takes over is made when it is first needed, and not before."""

import ctypes
import threading

import numpy as np
import pytest

from codegen.buffers import Buffer
from codegen.dense_problems import W, Y
from codegen.random_problems import solve
from convgrad.codegen.lower import lower
from convgrad.runtime import driver, jit, set_num_threads
from convgrad.runtime.threads import team as threads_team
from runtime.fallback_cases import HERE, Problem, each_kind, each_unknown, missing

pytestmark = pytest.mark.usefixtures("cache_folder", "team")


@pytest.fixture
def compiled(monkeypatch):
    """The IR of every compilation, as they come."""
    texts, plain = [], jit.compile_ir

    def compile_ir(ir, *target):
        texts.append(ir)
        return plain(ir, *target)

    threads_team.start()  # which may compile workers
    monkeypatch.setattr(jit, "compile_ir", compile_ir)
    return texts


@missing
@each_unknown
@each_kind
def test_a_fallback_is_compiled_when_data_need_it_and_once(isa, dtype, unknown, compiled):
    case = Problem(unknown, isa, dtype)
    kernel, usual = case.kernel(), case.given.flat[case.given.size // 2]
    tame = [case.bits(kernel) for _ in range(2)]
    assert len(compiled) == 1
    case.spoil()
    bad = [case.bits(kernel) for _ in range(2)]
    assert len(compiled) == 2
    assert {*bad, case.bits_of_vectors()} == {bad[0]}
    case.spoil(usual)
    assert {*tame, case.bits(kernel)} == {tame[0]} != {bad[0]}


@missing
@each_unknown
@each_kind
def test_results_are_the_same_on_any_number_of_threads(isa, dtype, unknown):
    case = Problem(unknown, isa, dtype)
    kernel = case.kernel()
    case.spoil(2.0**-130)
    wanted = case.bits_of_vectors()
    for threads in (1, 2, 3, 7):
        set_num_threads(threads)
        assert case.bits(kernel) == wanted


@missing
@each_unknown
def test_many_threads_that_need_a_fallback_at_once_get_one(unknown, compiled):
    cases = [Problem(unknown, *HERE[-1]) for _ in range(8)]
    kernel = cases[0].kernel()
    for case in cases:
        case.spoil()
    together, found = threading.Barrier(len(cases)), [b""] * len(cases)

    def caller(number):
        together.wait()
        found[number] = cases[number].bits(kernel)

    callers = [threading.Thread(target=caller, args=(number,)) for number in range(len(cases))]
    for thread in callers:
        thread.start()
    for thread in callers:
        thread.join()
    assert len(compiled) == 2
    assert set(found) == {cases[0].bits_of_vectors()}


def called_by_code(kernel, statuses):
    """A caller without Python around it: a record, workspace of just the size that it is told, and what comes back."""

    def call(*addresses):
        shared, scratch = Buffer(kernel.shared_bytes), Buffer(kernel.scratch_bytes)
        fields = (*addresses, 0, shared.address, scratch.address, 0, 0, 0, 0, 0, 1)
        record = (ctypes.c_int64 * len(driver.RECORD_FIELDS))(*fields)
        statuses.append(ctypes.CFUNCTYPE(ctypes.c_int, ctypes.c_void_p)(kernel.address)(ctypes.addressof(record)))
        assert shared.redzone_is_whole()
        assert scratch.redzone_is_whole()

    return call


@missing
@each_unknown
@each_kind
def test_a_compiled_caller_is_told_and_calls_again(isa, dtype, unknown, compiled):
    case, statuses = Problem(unknown, isa, dtype), []
    kernel = case.kernel()
    call = called_by_code(kernel, statuses)
    assert case.bits(call) == case.bits(kernel)
    case.spoil()
    left = np.frombuffer(case.bits(call), case.result.dtype)
    assert case.written_first == bool(np.any(left != 7))
    assert len(compiled) == 1
    kernel.prepare()
    assert case.bits(call) == case.bits_of_vectors()
    assert statuses == [driver.DONE, driver.LACKING, driver.DONE]


@missing
@pytest.mark.parametrize("unknown", [Y, W], ids=["y", "w"])
@each_kind
def test_what_it_works_in_is_known_before_there_is_a_fallback_and_holds_that(isa, dtype, unknown):
    case = Problem(unknown, isa, dtype, image=(30, 30), channels=(64, 64))
    kernel, module = case.kernel(), lower(case.plan)
    fallback, told = module.fallback.lower(), module.fallback
    assert (told.shared_bytes, told.scratch_bytes) == (fallback.shared_bytes, fallback.scratch_bytes)
    assert told.most_tasks == max(stage.tasks for stage in fallback.stages) > 1
    assert kernel.most_tasks == max(told.most_tasks, *(stage.tasks for stage in module.stages))
    assert kernel.shared_bytes == max(module.shared_bytes, fallback.shared_bytes)
    assert kernel.scratch_bytes == max(module.scratch_bytes, fallback.scratch_bytes)
    if unknown is Y and dtype == "bf16":  # weights of f32, instead of one piece
        assert module.shared_bytes < fallback.shared_bytes
    assert kernel.workspace_bytes(1) == kernel.shared_bytes + kernel.scratch_bytes
    case.spoil()
    kernel.prepare()
    assert case.bits(called_by_code(kernel, [])) == case.bits_of_vectors()


@missing
def test_what_is_added_to_weights_is_added_once_by_the_call_that_makes_the_fallback():
    case = Problem(W, "amx_emulated", HERE[0][1], accumulate=True)
    kernel = case.kernel()
    case.spoil(2.0**-130)
    assert case.bits(kernel) == case.bits(kernel) == case.bits_of_vectors()


# --- fallbacks of vectors, and of fallbacks


@each_unknown
def test_an_infinity_that_meets_padding_takes_one_more_kernel_and_that_once(unknown, compiled):
    case = Problem.of_vectors(unknown)
    kernel, name = case.kernel(), "y" if unknown is W else "w"
    tame = case.bits(kernel)
    assert len(compiled) == 1
    view = case.arrays[name].view
    usual, view.flat[0] = view.flat[0], np.inf
    bad = [case.bits(kernel) for _ in range(2)]
    assert len(compiled) == 2
    assert bad[0] == bad[1]
    wanted = solve(case.problem, **{n: None if n == case.unknown else a.view for n, a in case.arrays.items()})
    np.testing.assert_array_equal(np.isfinite(case.result), np.isfinite(wanted))
    view.flat[0] = usual
    assert case.bits(kernel) == tame


def test_what_is_added_to_weights_has_its_fallback_from_the_start(compiled):
    case = Problem.of_vectors(W, channels=(9, 8), accumulate=True)
    kernel = case.kernel()
    assert len(compiled) == 2
    case.arrays["y"].view.flat[0] = np.inf
    statuses = []
    call = called_by_code(kernel, statuses)
    assert case.bits(call) == case.bits(kernel)
    assert statuses == [driver.DONE]
    wanted = solve(case.problem, w=None, **{n: case.arrays[n].view for n in "xy"}) + 7
    np.testing.assert_array_equal(np.isfinite(case.result), np.isfinite(wanted))


@missing
@each_kind
def test_a_fallback_may_need_one_itself(isa, dtype, compiled):
    """Of pieces on vectors, and of these product by product; a compiled caller asks twice."""
    case, statuses = Problem(Y, isa, dtype), []
    kernel = case.kernel()
    case.arrays["w"].view.flat[0] = np.inf
    call = called_by_code(kernel, statuses)
    for _ in range(2):
        case.bits(call)
        kernel.prepare_next()
    wanted = case.bits(call)
    assert statuses == [driver.LACKING, driver.LACKING, driver.DONE]
    assert len(compiled) == 3
    assert case.bits(case.kernel()) == case.bits(kernel) == wanted
    exact = solve(case.problem, y=None, **{n: case.arrays[n].view.astype(np.float64) for n in "xw"})
    np.testing.assert_array_equal(np.isnan(case.result), np.isnan(exact))
    np.testing.assert_array_equal(np.isinf(case.result), np.isinf(exact))
