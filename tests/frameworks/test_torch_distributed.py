"""Split tensors on groups of processes: every check of the modules split_*.py, by 2 and by 4 of them over gloo."""

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from convgrad.plan.machine import why_not

torch = pytest.importorskip("torch", reason="PyTorch is not installed")
if not (torch.distributed.is_available() and torch.distributed.is_gloo_available()):
    pytest.skip("this PyTorch has no torch.distributed with gloo", allow_module_level=True)

SCRIPT = Path(__file__).with_name("distributed_checks.py")
MODULES = sorted(SCRIPT.parent.glob("split_*.py"))
CHECKS = [name for each in MODULES for name in re.findall(r"^@check\ndef (\w+)", each.read_text("utf-8"), re.M)]
MOST_SECONDS = 240  # far beyond what they need on a busy machine


def outcomes_of(folder, count, checks=(), **variables):
    """What each process says of each check; processes that end early say why."""
    commands = [[sys.executable, SCRIPT, str(rank), str(count), folder, *checks] for rank in range(count)]
    processes = [
        subprocess.Popen(
            command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, env=os.environ | variables
        )
        for command in commands
    ]
    try:
        printed = [process.communicate(timeout=MOST_SECONDS)[0] for process in processes]
    finally:
        for process in processes:
            process.kill()
    files = [folder / f"rank{rank}.json" for rank in range(count)]
    return [
        json.loads(file.read_text()) if file.exists() else dict.fromkeys(CHECKS, f"process ended early: {text}")
        for file, text in zip(files, printed, strict=True)
    ]


@pytest.fixture(scope="module", params=[2, 4], ids=lambda count: f"{count} processes")
def outcomes(request, tmp_path_factory):
    """Of all checks."""
    return outcomes_of(tmp_path_factory.mktemp("processes"), request.param)


@pytest.mark.parametrize("check", CHECKS)
def test_split_tensors_are_as_whole_ones(outcomes, check):
    for rank, outcome in enumerate(outcomes):
        assert outcome.get(check, "not reached, after another one failed") == "passed", f"process {rank}"


def test_parts_on_matrix_units_have_the_bits_of_the_whole(tmp_path):
    if why_not("amx_emulated"):
        pytest.skip("this processor cannot act as if it had tiles")
    check = "bits_of_sums_that_are_rounded"
    assert outcomes_of(tmp_path, 2, [check], CONVGRAD_ISA="amx_emulated") == [{check: "passed"}] * 2


def test_importing_the_layers_starts_nothing():
    program = (
        "import convgrad.torch, sys; assert 'convgrad.torch.distributed' not in sys.modules; "
        "import convgrad.torch.distributed, torch.distributed as d; assert not d.is_initialized()"
    )
    subprocess.run([sys.executable, "-c", program], check=True)
