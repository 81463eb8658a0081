"""Set everything up on a machine that has nothing but Python: `python3 set_up.py`, or with `--test` for the tests.

Both make a virtual environment in .venv, beside this file, and install the versions of constraints.txt into it. The
first then runs the main job, the gradients of a DCGAN generator; the second runs every check that a change must pass.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import venv
from pathlib import Path

ROOT = Path(__file__).resolve().parent
HOME = ROOT / ".venv"
BINARIES = HOME / ("Scripts" if os.name == "nt" else "bin")
EXAMPLE = Path("examples", "dcgan_generator_backward.json")
OLDEST = (3, 11)
CHECKS = [
    ["ruff", "format", "--check"],
    ["ruff", "check"],
    ["pyright", "--pythonpath", str(BINARIES / "python")],
    # in the order of tests/conftest.py; a crash ends the run, which would wait without end for what the worker had left
    ["pytest", "-n", "2", "--max-worker-restart", "0", "--dist", "loadfile", "--no-loadscope-reorder"],
]


def main() -> int:
    """Install, then run the example or the checks; the status is that of the first step that fails."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--test", action="store_true", help="install what the tests need too, and run every check")
    test = parser.parse_args().test
    if sys.version_info < OLDEST:
        print(f"set_up.py: this is Python {sys.version.split()[0]}; convgrad needs 3.11 or later", file=sys.stderr)
        return 2
    install("cli,test,torch,jax,examples,plot" if test else "cli")
    steps = CHECKS if test else [["convgrad", "run", str(EXAMPLE)]]
    for step in steps:
        print("+", *step, flush=True)
        status = subprocess.run([str(BINARIES / step[0]), *step[1:]], cwd=ROOT).returncode
        if status:
            return status
    return 0


def install(extras: str) -> None:
    """The project and what it needs, at the versions of constraints.txt, the tool that builds it included."""
    if not (BINARIES / "pip").exists() and not (BINARIES / "pip.exe").exists():
        print(f"making {HOME}", flush=True)
        venv.create(HOME, with_pip=True)
    constraints = (ROOT / "constraints.txt").as_uri()  # a URI, for pip splits these settings at blanks
    environment = os.environ | {"PIP_CONSTRAINT": constraints, "PIP_BUILD_CONSTRAINT": constraints}
    command = [str(BINARIES / "python"), "-m", "pip", "install", "--quiet", f"{ROOT}[{extras}]"]
    print(f"installing convgrad[{extras}] into {HOME}", flush=True)
    subprocess.run(command, check=True, env=environment, cwd=ROOT)


if __name__ == "__main__":
    sys.exit(main())
