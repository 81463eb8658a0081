"""A cache of their own for tests of the runtime, and ways to run another process."""

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

FORKS = "ignore:This process:DeprecationWarning"  # Python 3.12 and later say that of forks beside threads
HERE = Path(__file__).parent
sys.path.insert(0, str(HERE))  # for tiny_kernels

import convgrad  # noqa: E402
from convgrad.runtime import threads  # noqa: E402


@pytest.fixture
def cache_folder(tmp_path, monkeypatch):
    """An empty cache directory that is in use."""
    folder = tmp_path / "cache"
    monkeypatch.setenv("CONVGRAD_CACHE_DIR", str(folder))
    return folder


@pytest.fixture
def team():
    """The team of threads, put back as it was."""
    threads.team.start()
    before = threads.team.count, threads.team.source
    yield threads.team
    threads.team.resize(before[0])
    threads.team.source = before[1]


@pytest.fixture
def python(cache_folder):
    """Starts Python on a program; `finish` waits and gives what it printed."""

    def start(program: str, **variables: str) -> subprocess.Popen:
        source = str(Path(next(iter(convgrad.__path__))).parent)
        env = {**os.environ, "PYTHONPATH": os.pathsep.join((source, str(HERE))), **variables}
        return subprocess.Popen(
            [sys.executable, "-W", FORKS, "-c", program],
            env=env,
            stdout=-1,
            stderr=-2,
            text=True,
            start_new_session=True,
        )

    return start


@pytest.fixture
def finish():
    """Waits for a process, and fails with all that it printed."""

    def wait(process: subprocess.Popen) -> str:
        try:
            text, _ = process.communicate(timeout=120)
        except subprocess.TimeoutExpired:
            os.killpg(process.pid, signal.SIGKILL)  # its children too: they hold the pipe
            raise AssertionError(f"the process hangs; it had printed: {process.communicate()[0]}") from None
        assert process.returncode == 0, text
        return text

    return wait
