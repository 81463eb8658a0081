"""The programs in fuzz/, as modules and as processes."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

import convgrad

FUZZ = Path(__file__).parents[2] / "fuzz"
sys.path.append(str(FUZZ))
if sys.platform != "linux":  # guard pages, forks and limits are those of Linux
    collect_ignore = ["test_fuzzers.py", "test_more_mutants.py", "test_soak.py"]


@pytest.fixture(scope="session")
def program():
    """Runs one of the programs, which must end well, and gives what it printed."""

    def run(name: str, *arguments: str, status: int | None = 0, **variables: str) -> str:
        source = str(Path(next(iter(convgrad.__path__))).parent)
        command = [sys.executable, str(FUZZ / name), *arguments]
        done = subprocess.run(
            command, env={**os.environ, "PYTHONPATH": source, **variables}, text=True, timeout=300, check=False,
            stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
        )  # fmt: skip
        assert status in (None, done.returncode), done.stdout
        return done.stdout

    return run
