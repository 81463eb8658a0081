"""Fallbacks that cannot be made at once: errors and interrupts, and what they leave in the result."""

from itertools import count

import numpy as np
import pytest

from codegen.buffers import StridedArray
from convgrad.runtime import jit, memory
from runtime.fallback_cases import Problem, each_kind, each_unknown, missing

pytestmark = pytest.mark.usefixtures("cache_folder", "team")


@missing
@each_unknown
@each_kind
@pytest.mark.parametrize("error", [MemoryError, jit.CompileError])
def test_an_error_reaches_the_caller_and_the_next_call_tries_again(error, isa, dtype, unknown, monkeypatch):
    case = Problem(unknown, isa, dtype)
    kernel = case.kernel()
    case.spoil()
    wanted = case.bits_of_vectors()
    with monkeypatch.context() as broken:
        broken.setattr(jit, "compile_ir", lambda *_: (_ for _ in ()).throw(error("of this test")))
        case.result[...] = 7
        with pytest.raises(error, match="of this test"):
            kernel(*case.addresses)
    left = case.result.copy()
    assert np.all(np.isnan(left)) if case.written_first else np.all(left == 7)
    assert case.arrays[case.unknown].only_elements_changed()
    assert case.bits(kernel) == wanted


@missing
@pytest.mark.parametrize("strides", [(-2, 3, 40), (0, 1, 8)])
def test_what_cannot_be_completed_is_not_a_number_in_any_layout(strides):
    array = StridedArray((3, 2, 5), strides, np.float32)
    array.view[...] = 1
    memory.spoil(array.address, (3, 2, 5), strides, "f32")
    assert np.all(np.isnan(array.view))
    assert array.only_elements_changed()


@missing
@each_unknown
@each_kind
def test_an_interrupt_waits_until_the_result_is_whole(isa, dtype, unknown, monkeypatch):
    case = Problem(unknown, isa, dtype)
    kernel = case.kernel()
    case.spoil()
    wanted, asked, plain = case.bits_of_vectors(), count(), jit.compile_ir

    def interrupted(ir, machine):
        if next(asked) == 0:
            raise KeyboardInterrupt
        return plain(ir, machine)

    monkeypatch.setattr(jit, "compile_ir", interrupted)
    case.result[...] = 7
    with pytest.raises(KeyboardInterrupt):
        kernel(*case.addresses)
    assert case.result.tobytes() == wanted if case.written_first else np.all(case.result == 7)
    assert case.bits(kernel) == wanted


@missing
@each_unknown
@each_kind
def test_so_does_one_that_comes_while_the_kernel_runs(isa, dtype, unknown):
    """Python raises it when the kernel returns, in the place of what that had to say."""
    case = Problem(unknown, isa, dtype)
    kernel = case.kernel()
    case.spoil()
    wanted, run = case.bits_of_vectors(), kernel._run

    def interrupted(frame):
        run(frame)
        raise KeyboardInterrupt

    kernel._run = interrupted
    case.result[...] = 7
    with pytest.raises(KeyboardInterrupt):
        kernel(*case.addresses)
    assert case.result.tobytes() == wanted if case.written_first else np.all(case.result == 7)
