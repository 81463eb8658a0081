"""Fixtures of the tests of PyTorch, which is imported by those alone that ask for one."""

import pytest


@pytest.fixture
def nothing_stays():
    """Tests leave PyTorch's convolutions to PyTorch when they are over."""
    import convgrad.torch as ct

    yield
    assert not ct.is_enabled()


@pytest.fixture
def keep():
    """Sets the limit of what is kept; nothing is, afterwards."""
    import convgrad.torch
    from convgrad.torch.results import STORE

    assert (STORE.limit, STORE.idle_bytes) == (0, 0)
    yield convgrad.torch.keep_results
    convgrad.torch.keep_results(0)
    assert (STORE.limit, STORE.idle_bytes) == (0, 0)
