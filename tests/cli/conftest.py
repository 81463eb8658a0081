import json

import pytest

from convgrad.cli import main, racing
from convgrad.engines.interface import EngineError, Unsupported

SECONDS = {"convgrad": 1e-3, "torch": 2e-3, "onednn": 4e-3}  # of a call of engines that stand in
CEILINGS = {
    "machine": "any",
    "threads": 1,
    "gflops": {"f32": 100.0, "f64": 50.0},
    "levels": [
        {"name": "L1", "holds_bytes": 1e4, "gb_per_s": 100.0},
        {"name": "memory", "holds_bytes": None, "gb_per_s": 10.0},
    ],
}


@pytest.fixture
def convgrad(capsys):
    """Run a command: its exit status, what it prints, and what it complains of."""

    def run(*arguments):
        try:
            status = main([str(argument) for argument in arguments])
        except SystemExit as exit:  # argparse
            status = exit.code
        out, err = capsys.readouterr()
        return status, out, err

    return run


@pytest.fixture
def peaks(tmp_path):
    """Arguments that give a command its ceilings, so that none are measured."""
    path = tmp_path / "peaks.json"
    path.write_text(json.dumps(CEILINGS))
    return "--peaks", path


@pytest.fixture
def stand_ins(monkeypatch):
    """Engines that need no process: one is absent, one refuses gradients of weights."""
    monkeypatch.setattr(racing, "Remote", StandIn)


class StandIn:
    def __init__(self, name, threads):
        self.name = name

    def ask(self, request, *arguments):
        if request == "describe":
            if self.name == "jax":
                raise EngineError("jax cannot be used here")
            return f"{self.name} 1.0"
        if request == "prepare":
            (task, _) = arguments
            if self.name == "onednn" and task.resolved.op.endswith("Weights"):
                raise Unsupported("invalid_shape")
            return {"compile_seconds": 0.1, "first_seconds": SECONDS[self.name], "call_seconds": SECONDS[self.name]}
        assert request == "batch"
        return [SECONDS[self.name], 2 * SECONDS[self.name]]

    def close(self):
        pass
