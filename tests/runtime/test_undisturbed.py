"""Work in the middle of which no handler of a signal raises."""

import os
import signal
import subprocess
import sys
import threading
import time

import pytest

from convgrad.runtime import undisturbed as module
from convgrad.runtime.undisturbed import undisturbed

posix = pytest.mark.skipif(os.name != "posix", reason="signals are sent as POSIX systems do")


class Told(Exception):
    """What the handler of a test raises."""


@pytest.fixture
def handler():
    """A handler of SIGUSR1 that raises."""

    def told(number, frame):
        raise Told

    before = signal.signal(signal.SIGUSR1, told)
    yield
    signal.signal(signal.SIGUSR1, before)


def test_it_returns_and_raises_as_the_function_does():
    assert undisturbed(lambda: 7) == 7
    with pytest.raises(ZeroDivisionError):
        undisturbed(lambda: 1 // 0)
    with pytest.raises(SystemExit):
        undisturbed(lambda: sys.exit(3))


def test_only_the_main_thread_needs_another_one():
    assert undisturbed(threading.get_ident) != threading.get_ident()
    found = []
    thread = threading.Thread(target=lambda: found.append(undisturbed(threading.get_ident) == threading.get_ident()))
    thread.start()
    thread.join()
    assert found == [True]


@posix
def test_what_a_handler_raises_comes_when_the_work_has_ended(handler):
    steps = []

    def work():
        for step in range(20):
            if step % 5 == 0:
                os.kill(os.getpid(), signal.SIGUSR1)
            time.sleep(0.005)
            steps.append(step)

    with pytest.raises(Told):
        undisturbed(work)
    assert steps == list(range(20))
    assert undisturbed(lambda: 7) == 7


@posix
def test_an_interrupt_comes_before_what_the_work_raises(handler):
    def work():
        os.kill(os.getpid(), signal.SIGUSR1)
        time.sleep(0.05)
        raise ValueError

    with pytest.raises(Told):
        undisturbed(work)


def test_without_more_threads_the_work_is_done_all_the_same(monkeypatch):
    def refuse(*given):
        raise RuntimeError("can't start new thread")

    monkeypatch.setattr(module, "start_new_thread", refuse)
    assert undisturbed(threading.get_ident) == threading.get_ident()


INTERRUPTED = """
import os, random, signal, threading, time
from convgrad.plan.machine import machine_for
from convgrad.runtime import jit

ir, machine = "define i64 @f(i64 %a) {\\n  %b = add i64 %a, 1\\n  ret i64 %b\\n}\\n", machine_for("portable")
armed = False  # an interrupt is raised once for a compilation, and never outside the block that catches it

def interrupt(number, frame):
    global armed
    if armed:
        armed = False
        raise KeyboardInterrupt

signal.signal(signal.SIGINT, interrupt)
jit.compile_ir(ir, machine)
end, interrupts, compiled = time.monotonic() + 3, 0, 0

def shoot():
    while time.monotonic() < end:
        time.sleep(random.random() * 0.002)
        os.kill(os.getpid(), signal.SIGINT)

threading.Thread(target=shoot).start()
while time.monotonic() < end + 0.1:
    try:
        armed = True
        (jit.compile_ir if compiled % 2 else jit.optimised_ir)(ir, machine)  # by the library itself, and by llvmlite
        armed = False
        compiled += 1
    except KeyboardInterrupt:
        interrupts += 1
print("all right" if interrupts > 20 and compiled > 20 else (interrupts, compiled))
"""


@posix
def test_interrupts_in_the_middle_of_compilations_leave_llvm_whole():
    """llvmlite disposes of a string, is interrupted before it has noted that, and does it again: a double free."""
    done = subprocess.run([sys.executable, "-c", INTERRUPTED], capture_output=True, text=True, timeout=60)
    assert (done.returncode, done.stdout.strip()) == (0, "all right"), done.stderr[-2000:]
