"""The modules of `benchmarks/`, which are scripts beside the package and no part of it."""

import sys
from importlib import import_module
from pathlib import Path

BENCHMARKS = Path(__file__).parents[2] / "benchmarks"


def benchmark_modules(*names):
    """So many modules, with their folder on the path only while they are imported."""
    sys.path.insert(0, str(BENCHMARKS))
    try:
        return [import_module(name) for name in names]
    finally:
        sys.path.remove(str(BENCHMARKS))
