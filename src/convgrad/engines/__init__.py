"""Libraries that compute the same operations, behind one interface: convgrad itself, PyTorch, oneDNN and JAX.

An engine is loaded only when it is asked for, and lives in a process of its own (`remote.Remote`): some problems make a
library abort, and thread pools of two libraries in one process fight for the cores.
"""

from __future__ import annotations

import importlib

from convgrad.engines.interface import Engine, EngineError

_MODULES = {"convgrad": "own", "torch": "pytorch", "onednn": "onednn", "jax": "xla"}
NAMES = tuple(_MODULES)


def load(name: str) -> type[Engine]:
    """The class of an engine; EngineError says why a library cannot be used, and how to get it."""
    try:
        engine = importlib.import_module(f"convgrad.engines.{_MODULES[name]}").ENGINE
        engine.version()
    except (ImportError, OSError, AttributeError) as error:
        raise EngineError(f"{name} cannot be used here: {error}; pip install 'convgrad[{name}]' provides it") from error
    return engine
