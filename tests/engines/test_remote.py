import subprocess
import sys

import pytest

from convgrad import engines
from convgrad.engines import remote as remotes
from convgrad.engines.interface import EngineError
from convgrad.engines.remote import Remote

BODY = "import sys, os, time; sys.stdin.buffer.read(8); {}"


@pytest.fixture
def instead(monkeypatch):
    """Run a program in the place of the worker."""

    def start(what):
        def popen(command, **options):
            return started(([sys.executable, "-c", BODY.format(what)]), **options)

        started = subprocess.Popen
        monkeypatch.setattr(remotes.subprocess, "Popen", popen)

    return start


def test_a_process_that_dies_is_an_error_with_its_signal_and_words(instead):
    instead("print('terminate called', file=sys.stderr, flush=True); os.kill(os.getpid(), 6)")
    with Remote("torch", 1) as remote, pytest.raises(EngineError, match=r"died \(SIGABRT\): terminate called"):
        remote.ask("describe")


def test_a_process_that_never_answers_is_given_up(instead):
    instead("time.sleep(60)")
    with Remote("torch", 1, timeout=0.3) as remote, pytest.raises(EngineError, match="no answer within"):
        remote.ask("describe")


def test_an_absent_library_says_how_to_get_it(monkeypatch):
    monkeypatch.setitem(sys.modules, "convgrad.engines.xla", None)
    with pytest.raises(EngineError, match=r"jax cannot be used here: .*pip install 'convgrad\[jax\]'"):
        engines.load("jax")


def test_no_engine_is_imported_before_it_is_used():
    heavy = ("torch", "jax", "llvmlite.binding", "matplotlib")
    program = f"import sys, convgrad.cli.bench; print([name for name in {heavy} if name in sys.modules])"
    out = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True).stdout
    assert out.strip() == "[]"
