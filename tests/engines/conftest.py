import pytest

from convgrad.engines.interface import EngineError
from convgrad.engines.remote import Remote


@pytest.fixture(scope="session")
def remotes():
    """Engines that are installed, each started once; a test that asks for an absent one is skipped."""
    started = {}

    def get(name):
        if name not in started:
            remote = started[name] = Remote(name, 1, timeout=120)
            try:
                remote.ask("describe")
            except EngineError as error:
                started[name] = remote.close()
                pytest.skip(str(error))
        if started[name] is None:
            pytest.skip(f"{name} is not installed")
        return started[name]

    yield get
    for remote in started.values():
        if remote:
            remote.close()
