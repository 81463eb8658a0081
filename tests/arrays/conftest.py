"""Fixtures of the tests of calls."""

import numpy as np
import pytest

from arrays.counted import Counted, arguments
from convgrad.arrays.call import OFTEN


@pytest.fixture
def known():
    """An operation that has admitted the plain call, with `out` and without."""
    operation = Counted()
    for out in (None, np.empty((1, 5, 4), np.float32)):
        for _ in range(OFTEN + 2):  # the first is checked carefully
            operation.call(*arguments(out=out))
    assert len(operation.inline_cache._entries) == 2
    return operation
