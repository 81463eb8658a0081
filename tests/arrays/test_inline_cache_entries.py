"""Entries of an inline cache: what they hold, how they fail, and how they come and go while threads call."""

import ctypes
import gc
import os
import sys
import threading

import numpy as np
import pytest

from arrays.counted import PLAIN, Counted, W, X, arguments, attributes
from convgrad.arrays import call, inline_cache
from convgrad.arrays.call import OFTEN
from convgrad.arrays.inline_cache import MOST_ENTRIES
from convgrad.arrays.patterns import layout_holds
from convgrad.dtypes import numpy_dtype
from convgrad.errors import ArrayError, ConvError
from convgrad.plan.machine import why_not
from convgrad.runtime import driver, kernel

DOTS = "avx512_bf16_emulated"

pytestmark = pytest.mark.skipif(not layout_holds(), reason="objects of this interpreter lie in memory in another way")


def test_what_python_raises_comes_through(known):
    with pytest.raises(TypeError):
        known.call()
    with pytest.raises(TypeError):
        known.call(*range(20))
    with pytest.raises(ConvError):
        known.call(*arguments(given=attributes(groups=3)))


def test_a_failure_of_a_new_result_or_of_the_fallback_comes_through(known):
    def fail(*given):
        raise MemoryError(f"no room, {len(given)} given")

    lacking = ctypes.CFUNCTYPE(ctypes.c_int, ctypes.c_void_p)(lambda record: driver.LACKING)
    at = ctypes.cast(lacking, ctypes.c_void_p).value
    with_out, without = known.inline_cache._entries[1], known.inline_cache._entries[0]
    out = np.empty((1, 5, 4), np.float32)
    for entry, changed, given, message in (
        (without, {"new": id(fail)}, None, "0 given"),
        (without, {"kernel": at, "fall_back": id(fail)}, None, "4 given"),
        (with_out, {"kernel": at, "fall_back": id(fail)}, out, "4 given"),
    ):
        before = entry.words.copy()
        for name, word in changed.items():
            entry.words[inline_cache.ENTRY.index(name)] = word
        references = sys.getrefcount(out)
        with pytest.raises(MemoryError, match=message):
            known.call(*arguments(out=given))
        assert sys.getrefcount(out) == references
        entry.words[:] = before
        np.testing.assert_array_equal(known.call(*arguments(out=given)), known(*arguments()))


def test_what_the_fallback_returns_is_dropped(known):
    answer = object()
    fall_back = lambda *given: answer  # noqa: E731
    lacking = ctypes.CFUNCTYPE(ctypes.c_int, ctypes.c_void_p)(lambda record: driver.LACKING)
    words = known.inline_cache._entries[0].words
    words[inline_cache.ENTRY.index("kernel")] = ctypes.cast(lacking, ctypes.c_void_p).value
    words[inline_cache.ENTRY.index("fall_back")] = id(fall_back)
    before = sys.getrefcount(answer)
    for _ in range(10):
        result = known.call(*arguments())
        assert sys.getrefcount(result) == 2
    assert sys.getrefcount(answer) == before


def test_nothing_is_held_and_nothing_is_lost(known):
    out = np.empty((1, 5, 4), np.float32)
    gc.collect()
    held = (X, W, out, PLAIN, *known.inline_cache._entries)
    before = [sys.getrefcount(each) for each in held]
    for _ in range(1000):
        known.call(*arguments(out=out))
        known.call(*arguments())
    memory = np.zeros(40, np.float32)
    result = memory[:20].reshape(1, 5, 4)
    for _ in range(3):
        with pytest.raises(ArrayError, match="share"):
            known.call(*arguments(memory[10:24].reshape(1, 7, 2), out=result))
    assert sys.getrefcount(result) == 2
    assert [sys.getrefcount(each) for each in held] == before


def test_arrays_of_a_call_that_was_admitted_are_not_held():
    operation, out = Counted(), np.empty((1, 5, 4), np.float32)
    x, w, bias = X.copy(), W.copy(), np.ones(4, np.float32)
    before = [sys.getrefcount(each) for each in (x, w, bias, out)]
    for _ in range(OFTEN + 2):
        operation.call(*arguments(x, w, bias, out=out))
    assert len(operation.inline_cache._entries) == 1
    assert [sys.getrefcount(each) for each in (x, w, bias, out)] == before


def test_entries_are_bounded_and_old_ones_go():
    operation = Counted()
    for extent in range(3, 3 + MOST_ENTRIES + 5):
        x = np.ones((1, extent, 2), np.float32)
        for _ in range(OFTEN + 2):
            result = operation.call(*arguments(x))
        np.testing.assert_array_equal(result, np.full((1, extent - 2, 4), 6))
        assert len(operation.inline_cache._entries) <= MOST_ENTRIES
    assert len(operation.inline_cache._entries) == 5
    operation.forget()
    slow, result = operation.took_python(*arguments())
    assert slow
    np.testing.assert_array_equal(result, Counted()(*arguments()))


def test_entries_come_and_go_while_threads_call(monkeypatch):
    """In every call of Python something is admitted, and between two others everything is dropped."""
    monkeypatch.setattr(call, "OFTEN", 1)
    monkeypatch.setattr(call, "SELDOM", 2)
    before = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    operation, stop, wrong = Counted(), threading.Event(), []
    inputs = [np.ones((1, extent, 2), np.float32) for extent in range(3, 9)]
    expected = [Counted()(*arguments(x)) for x in inputs]

    def work(number):
        rng = np.random.default_rng(number)
        while not stop.is_set():
            for place in rng.integers(0, len(inputs), 40):
                out = np.empty_like(expected[place]) if place % 2 else None
                if not np.array_equal(operation.call(*arguments(inputs[place], out=out)), expected[place]):
                    wrong.append(place)

    workers = [threading.Thread(target=work, args=(number,)) for number in range(4)]
    try:
        for worker in workers:
            worker.start()
        for _ in range(12):
            operation.forget()
            kernel.forget()
            gc.collect()
    finally:
        stop.set()
        for worker in workers:
            worker.join()
        sys.setswitchinterval(before)
    assert not wrong


@pytest.mark.skipif(bool(why_not(DOTS)), reason=str(why_not(DOTS)))
def test_kernels_of_words_have_a_workspace_of_their_own(monkeypatch):
    """What they leave there may be subnormal f32 to others; they are admitted nevertheless."""
    monkeypatch.setenv("CONVGRAD_ISA", DOTS)
    operation, words = Counted(), inline_cache._common()
    given = [array.astype(numpy_dtype("bf16")) for array in (np.resize(X, (1, 40, 64)), np.resize(W, (3, 64, 64)))]
    expected = operation(*arguments(*given))
    (record,) = set(operation.records.values())
    assert record.kernel.words
    for _ in range(OFTEN):
        operation.call(*arguments(*given))
    for name, slow in (("workspace", False), ("workspace_of_words", True)):
        place = inline_cache.COMMON.index(name)
        address, words[place] = int(words[place]), 0
        took_python, result = operation.took_python(*arguments(*given))
        words[place] = address
        assert took_python == slow
        np.testing.assert_array_equal(result, expected)


@pytest.mark.skipif(not hasattr(os, "fork"), reason="the system has no fork")
def test_a_child_goes_on(known):
    """Also if another thread had the workspace at that moment."""
    words, place = inline_cache._common(), inline_cache.COMMON.index("workspace")
    expected, address = known(*arguments()), int(words[place])
    words[place] = 0
    slow, result = known.took_python(*arguments())
    assert slow
    child = os.fork()
    if not child:
        slow, result = known.took_python(*arguments())
        os._exit(0 if not slow and np.array_equal(result, expected) else 1)
    words[place] = address
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    np.testing.assert_array_equal(result, expected)
