"""Fixtures of all tests."""

import os
import shutil
import tempfile
from pathlib import Path

import numpy as np
import pytest


def pytest_addoption(parser):
    """What a run may be told."""
    parser.addoption(
        "--stand-in", action="store_true",
        help="run what AVX-512, dot products and matrix tiles would, on a processor that has AVX2; see stand_in/",
    )  # fmt: skip


def pytest_configure(config):
    """Kernels of one run are compiled in that run: a cache from before would hide what became of the compiler."""
    if config.getoption("--stand-in"):
        from stand_in.processor import stand_in

        stand_in()
    if "CONVGRAD_CACHE_DIR" not in os.environ:
        config.kernels = os.environ["CONVGRAD_CACHE_DIR"] = tempfile.mkdtemp(prefix="convgrad-tests-")


def pytest_unconfigure(config):
    """Leave nothing behind."""
    if hasattr(config, "kernels"):
        shutil.rmtree(config.kernels, ignore_errors=True)


LONG = (  # where a few tests take many seconds each; those that have threads meet begin beside quiet ones
    "stress/test_more_mutants.py",
    "sharding/",
    "stress/",
    "frameworks/test_examples.py",
    "frameworks/test_torch_distributed.py",
)


def pytest_collection_modifyitems(config, items):
    """What takes long begins first, so that no process is left with it when the others are done."""
    tests = Path(__file__).parent

    def place(item):
        path = item.path.relative_to(tests).as_posix()
        return next((number for number, name in enumerate(LONG) if path.startswith(name)), len(LONG))

    items.sort(key=place)
    if config.getoption("--stand-in"):
        alone = pytest.mark.skip(reason="asks the processor itself, in which nothing stands in for what it lacks")
        for item in items:
            if item.get_closest_marker("this_processor"):
                item.add_marker(alone)


@pytest.fixture
def rng():
    """Random numbers that are the same in every run."""
    return np.random.default_rng(20240229)


@pytest.fixture
def vectors(monkeypatch):
    """A level without a matrix unit."""
    from cases import best_of_vectors

    monkeypatch.setenv("CONVGRAD_ISA", best_of_vectors())


@pytest.fixture(autouse=True)
def settings_stay():
    """No test leaves a setting behind, which would decide what every later one of its process tests."""

    def found():
        return {name: value for name, value in os.environ.items() if name.startswith("CONVGRAD_")}

    before = found()
    yield
    assert found() == before
