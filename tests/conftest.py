"""Fixtures of all tests."""

import os
import shutil
import tempfile

import numpy as np
import pytest


def pytest_configure(config):
    """Kernels of one run are compiled in that run: a cache from before would hide what became of the compiler."""
    if "CONVGRAD_CACHE_DIR" not in os.environ:
        config.kernels = os.environ["CONVGRAD_CACHE_DIR"] = tempfile.mkdtemp(prefix="convgrad-tests-")


def pytest_unconfigure(config):
    """Leave nothing behind."""
    if hasattr(config, "kernels"):
        shutil.rmtree(config.kernels, ignore_errors=True)


@pytest.fixture
def rng():
    """Random numbers that are the same in every run."""
    return np.random.default_rng(20240229)
