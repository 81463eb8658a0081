"""Fixtures of the tests of PyTorch, which is imported by those alone that ask for one."""

import pytest


@pytest.fixture
def nothing_stays():
    """Tests leave PyTorch's convolutions to PyTorch when they are over."""
    import convgrad.torch as ct

    yield
    assert not ct.is_enabled()
